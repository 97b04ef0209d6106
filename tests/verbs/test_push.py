"""`etymon push`: what arrives on the hub, what never leaves the machine, and one line for every refusal."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import etymon
from etymon.checkpoints.confidential import ABSOLUTE, SECRETS, without_paths
from etymon.errors import EtymonError
from tests import tiny
from tests.hub_server import TOKEN, HubServer

NAME = "ada/tiny-gpt2"


@pytest.fixture(scope="module")
def made_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a picture of its curves, two milestones and data in a folder with a telling name."""
    place = tmp_path_factory.mktemp("home-of-ada")
    text = place / "letters.txt"
    text.write_text("\n\n".join(tiny.texts(60)), encoding="utf-8")
    etymon.pretrain(
        "gpt2", data=[text], documents="blank", out=place / "run", vocabulary=300, steps=8, batch=2, length=16,
        validate_every=4, save_at=["40words", "80words"], progress="silent",
        set=("shape.dim=16", "shape.layers=1", "shape.heads=2", "shape.positions=32", "license=cc-by-4.0", "language=en"),
    )  # fmt: skip
    return place / "run"


@pytest.fixture
def run(made_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made_run, tmp_path / "run"))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    constants = pytest.importorskip("huggingface_hub").constants
    server = HubServer()
    monkeypatch.setenv("HF_ENDPOINT", server.address)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "no-login"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-login"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "AGENT_HARNESSES_PATH", str(tmp_path / "harnesses.json"), raising=False)
    # Its own idea of the endpoint is a dead port, so that what works does so through HF_ENDPOINT.
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    # Plain large-file storage: the other one is not a protocol of HTTP alone.
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    yield server
    server.close()


def front_matter(card: bytes) -> dict[str, Any]:
    front: dict[str, Any] = yaml.safe_load(card.decode().split("---\n")[1])
    return front


def folder_of(files: dict[str, bytes], folder: Path) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


# --- what arrives


def test_a_run_arrives_whole_with_its_milestones(hub: HubServer, run: Path, tmp_path: Path) -> None:
    result = etymon.push(run, NAME)
    assert [revision.name for revision in result.revisions] == ["40words", "80words", "main"]
    assert all(revision.commit for revision in result.revisions) and result.url.endswith(NAME)
    files = hub.files(NAME)
    assert files["model.safetensors"] == (run / "model" / "model.safetensors").read_bytes()
    assert (
        files["curves.png"].startswith(b"\x89PNG")
        and {"run.yaml", "README.md", "history.json"} <= files.keys()
    )
    assert set(json.loads(files["etymon.json"])["files"]) == files.keys()
    opened = etymon.load(folder_of(files, tmp_path / "downloaded"))
    assert opened.tokenizer is not None and opened.head_names == {"vocabulary"}
    early = hub.files(NAME, "40words")
    assert early["model.safetensors"] == (run / "milestones" / "40words" / "model.safetensors").read_bytes()
    assert early["model.safetensors"] != files["model.safetensors"] and "curves.png" not in early
    assert f'from_pretrained("{NAME}", revision="40words")' in early["README.md"].decode()


def test_the_card_says_what_the_hub_asks_for(hub: HubServer, run: Path) -> None:
    etymon.push(run, NAME, language=["de", "en"], datasets="ada/letters")
    card = hub.files(NAME)["README.md"]
    front = front_matter(card)
    assert front["license"] == "cc-by-4.0" and front["language"] == ["de", "en"]
    assert front["pipeline_tag"] == "text-generation" and front["datasets"] == ["ada/letters"]
    assert front["library_name"] == "transformers" and front["tags"] == ["etymon", "gpt2"]
    (index,) = front["model-index"]
    assert index["name"] == "tiny-gpt2"
    (results,) = index["results"]
    assert results["task"]["type"] == "text-generation" and results["dataset"]["type"] == "ada/letters"
    metrics = {metric["type"]: metric["value"] for metric in results["metrics"]}
    history = json.loads((run / "model" / "history.json").read_text())["history"][-1]
    assert metrics == history["metrics"]
    text = card.decode()
    for piece in (
        f'GPT2LMHeadModel.from_pretrained("{NAME}")', f'AutoTokenizer.from_pretrained("{NAME}")',
        f'etymon.load("{NAME}")', f'etymon generate {NAME} "..."', "(curves.png)", "| budget | 8steps |",
        "| precision | float32 |", "| words read |", 'revision="40words"', "| 80words |", "## Licence and limits",
    ):  # fmt: skip
        assert piece in text, piece


def test_transformers_and_the_hub_s_library_read_what_arrived(
    hub: HubServer, run: Path, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    from huggingface_hub import ModelCard

    etymon.push(run, NAME)
    folder = folder_of(hub.files(NAME), tmp_path / "downloaded")
    assert transformers.AutoModelForCausalLM.from_pretrained(folder).num_parameters() > 0
    assert transformers.AutoTokenizer.from_pretrained(folder)("The river")["input_ids"]
    card = ModelCard.load(folder / "README.md")
    assert card.data.license == "cc-by-4.0" and len(card.data.eval_results) == 3


def test_nothing_is_sent_twice(hub: HubServer, run: Path) -> None:
    etymon.push(run, NAME)
    sent, commits = list(hub.sent), {name: list(c) for name, c in hub.repositories[NAME].commits.items()}
    again = etymon.push(run, NAME)
    assert hub.sent == sent and hub.repositories[NAME].commits == commits
    assert [revision.commit for revision in again.revisions] == [None, None, None]


def test_what_has_changed_is_a_new_commit_and_old_shards_go(hub: HubServer, run: Path) -> None:
    etymon.push(run, NAME)
    files = hub.repositories[NAME].branches["main"]
    files |= {"model-00001-of-00002.safetensors": b"old", "notes.md": b"the author's own"}
    sent = len(hub.sent)
    result = etymon.push(run, NAME, license="mit")
    assert [bool(revision.commit) for revision in result.revisions] == [True, True, True]
    assert set(hub.sent[sent:]) == {"README.md"}
    assert "model-00001-of-00002.safetensors" not in hub.files(NAME) and "notes.md" in hub.files(NAME)
    assert front_matter(hub.files(NAME)["README.md"])["license"] == "mit"


def test_an_upload_that_was_cut_off_goes_on(hub: HubServer, run: Path) -> None:
    hub.fail = lambda method, path: 400 if path.endswith("/commit/main") else None
    with pytest.raises(EtymonError, match=r"failed \(it answered 400\); run the same again to go on"):
        etymon.push(run, NAME)
    assert "model.safetensors" not in hub.files(NAME) and "model.safetensors" in hub.files(NAME, "80words")
    blobs = list(hub.blobs)
    hub.fail = lambda method, path: None
    result = etymon.push(run, NAME)
    assert [bool(revision.commit) for revision in result.revisions] == [False, False, True]
    large = [name for name in hub.sent if len(name) == 64]
    assert list(hub.blobs) == blobs and len(large) == len(set(large))


def test_a_model_s_folder_and_another_branch(hub: HubServer, run: Path) -> None:
    result = etymon.push(run / "model", NAME, revision="trial", private=True)
    # It lies in a run, whose curves and milestones are its own.
    assert [revision.name for revision in result.revisions] == ["40words", "80words", "trial"]
    assert hub.repositories[NAME].private and hub.files(NAME) == {}
    alone = run.parent / "alone"
    shutil.copytree(run / "model", alone)
    result = etymon.push(alone, "ada/alone")
    assert [revision.name for revision in result.revisions] == ["main"]
    assert (
        "run.yaml" not in hub.files("ada/alone")
        and "(curves.png)" not in hub.files("ada/alone")["README.md"].decode()
    )
    assert etymon.push(run, "ada/third", milestones=False).revisions[0].name == "main"


def test_an_edited_card_keeps_its_words(hub: HubServer, run: Path) -> None:
    (run / "model" / "README.md").write_text(
        "---\nlicense: mit\n---\n# My words\n\nStay.\n", encoding="utf-8"
    )
    etymon.push(run, NAME, keep_card=True)
    card = hub.files(NAME)["README.md"]
    assert card.decode().endswith("# My words\n\nStay.\n") and front_matter(card)["license"] == "cc-by-4.0"


def test_a_dry_run_shows_every_file_and_sends_nothing(
    hub: HubServer, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from etymon import cli

    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(SystemExit) as left:
        cli.main(["push", str(run), NAME, "--dry-run"])
    assert left.value.code == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[-1] == "nothing was sent" and not hub.requests
    size = (run / "model" / "model.safetensors").stat().st_size
    assert etymon.push(run, NAME, dry_run=True).revisions[-1].files["model.safetensors"] == size
    for name in ("run.yaml", "curves.png", "README.md", "model.safetensors", "revision 40words"):
        assert name in printed


# --- what never leaves the machine


def test_paths_of_the_machine_are_shortened_everywhere(hub: HubServer, run: Path) -> None:
    (run / "model" / "notes.txt").write_text("private")
    result = etymon.push(run, NAME)
    assert result.left_out == ["notes.txt"]
    place = json.loads((run / "model" / "history.json").read_text())["history"][-1]["data"]
    assert "/" in place  # there is something to take out
    for branch in hub.repositories[NAME].branches:
        for name, data in hub.files(NAME, branch).items():
            assert b"home-of-ada" not in data and str(Path.home()).encode() + b"/" not in data, name
    assert yaml.safe_load(hub.files(NAME)["run.yaml"])["data"] == ["letters.txt"]


@pytest.mark.parametrize(
    ("file", "words", "expected"),
    [
        (
            "config.json",
            "hf_" + "a1B2" * 9,
            "config.json holds what looks like a token of the hub (hf_a1B...)",
        ),
        ("history.json", "AKIA" + "ABCD1234" * 2, "history.json holds what looks like a key of Amazon"),
        ("generation_config.json", "https://ada:lovelace@host/x", "a password in an address"),
        ("config.json", TOKEN, "config.json holds your token of the hub"),
    ],
)
def test_secrets_are_refused_and_nothing_is_sent(
    hub: HubServer, run: Path, file: str, words: str, expected: str
) -> None:
    path = run / "model" / file
    path.write_text(json.dumps({**json.loads(path.read_text()), "note_by_hand": words}))
    with pytest.raises(EtymonError) as caught:
        etymon.push(run, NAME)
    assert expected in str(caught.value) or (words == TOKEN and "config.json holds" in str(caught.value))
    assert "nothing was uploaded" in str(caught.value) and words not in str(caught.value) and not hub.requests


def test_a_secret_in_the_run_file_or_a_variable_is_noticed(
    hub: HubServer, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_SERVICE_API_KEY", "correct-horse-battery")
    settings = run / "run.yaml"
    settings.write_text(settings.read_text() + "# correct-horse-battery\n")
    with pytest.raises(EtymonError, match=r"run\.yaml holds the value of MY_SERVICE_API_KEY"):
        etymon.push(run, NAME)
    assert not hub.requests


@pytest.mark.parametrize(
    ("text", "shortened"),
    [
        ("/home/ada/texts/book.txt", "book.txt"),
        ('{"data": "/data/corpus/", "n": 1}', '{"data": "corpus", "n": 1}'),
        (r"C:\\Users\\ada\\book.txt", "book.txt"),
        ("D:/texts/book.txt and /tmp/x/y", "book.txt and y"),
        ("https://example.org/a/b and/or ../a/b a/b/c", "https://example.org/a/b and/or ../a/b a/b/c"),
        ("3/4 of 1/2", "3/4 of 1/2"),
    ],
)
def test_absolute_paths_are_told_from_others(text: str, shortened: str) -> None:
    assert without_paths(text) == shortened and not ABSOLUTE.search(shortened)


def test_words_of_a_vocabulary_are_no_secrets() -> None:
    import re

    vocabulary = json.dumps({"password": 12345678, "secret": 3, "api_key": 4567, "token": 1, "/usr": 7})
    assert not [what for what, pattern in SECRETS.items() if re.search(pattern, vocabulary)]


# --- refusals


def refusal(*arguments: Any, **options: Any) -> str:
    with pytest.raises(EtymonError) as caught:
        etymon.push(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_without_a_token(hub: HubServer, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN")
    assert "there is no token for the hub: log in with `hf auth login`" in refusal(run, NAME)
    assert not hub.requests


def test_a_wrong_token_or_somebody_else_s_name(
    hub: HubServer, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "the hub refused the upload to bob/model (403)" in refusal(run, "bob/model")
    monkeypatch.setenv("HF_TOKEN", "hf_" + "y" * 34)
    assert "the hub refused the upload to ada/tiny-gpt2 (401)" in refusal(run, NAME)
    assert not hub.repositories


def test_offline(hub: HubServer, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "offline mode is on" in refusal(run, NAME)


@pytest.mark.parametrize("place", ["/commit/40words", "/preupload/main", "/api/repos/create"])
def test_an_upload_that_is_refused_on_the_way(hub: HubServer, run: Path, place: str) -> None:
    hub.fail = lambda method, path: 403 if path.endswith(place) else None
    assert "the hub refused the upload" in refusal(run, NAME)


def test_a_hub_that_is_gone(hub: HubServer, run: Path) -> None:
    hub.close()
    message = refusal(run, NAME)
    assert message.startswith(f"uploading to {NAME} failed (") and "run the same again" in message
    hub.__init__()  # type: ignore[misc]  # for the fixture to close


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("no/such/name", "is no possible name of a repository"),
        ("ada/bad name", "is no possible name of a repository"),
        ("tiny", "does not say whose it is: give owner/name, as in ada/tiny"),
    ],
)
def test_impossible_names(hub: HubServer, run: Path, name: str, expected: str) -> None:
    assert expected in refusal(run, name)
    assert not hub.requests


def test_an_impossible_branch(hub: HubServer, run: Path) -> None:
    for name in ("a b", "a..b", "-x", "a/", "x.lock"):
        assert "no possible name of a branch" in refusal(run, NAME, revision=name)


def test_no_licence_an_unfinished_run_and_other_weights(hub: HubServer, run: Path, tmp_path: Path) -> None:
    history = run / "model" / "history.json"
    note = json.loads(history.read_text())
    del note["history"][-1]["license"]
    history.write_text(json.dumps(note))
    assert "states no licence, without which nobody may use it: say --license cc-by-4.0" in refusal(run, NAME)
    (run / "model" / "model.safetensors").rename(run / "model" / "pytorch_model.bin")
    assert "no weights in safetensors, and nothing else is uploaded" in refusal(run, NAME)
    shutil.rmtree(run / "model")
    assert "has not ended: go on with --resume" in refusal(run, NAME)
    assert "no such folder" in refusal(tmp_path / "nothing", NAME)
    (tmp_path / "empty").mkdir()
    assert "there is no model in" in refusal(tmp_path / "empty", NAME)
    assert not hub.requests


def test_an_export_is_not_sent_and_no_command_is_promised(hub: HubServer, run: Path, tmp_path: Path) -> None:
    etymon.export(run, to="torch", out=tmp_path / "program")
    shutil.copytree(tmp_path / "program", tmp_path / "onnx")
    shutil.copy(run / "model" / "config.json", tmp_path / "onnx")  # as an export to ONNX has
    for name in ("program", "onnx"):
        message = refusal(tmp_path / name, NAME, license="mit")
        assert message.endswith("is an export for another runtime: push the model that it was made of")
    assert not hub.requests


def test_a_damaged_model_is_not_sent(hub: HubServer, run: Path) -> None:
    path = run / "model" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    assert "is not what was saved" in refusal(run, NAME)
    assert not hub.requests and os.environ["HF_ENDPOINT"] == hub.address
