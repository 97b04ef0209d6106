from __future__ import annotations

import io
import json
import math
import sys
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest

import etymon
from etymon.errors import EtymonError
from etymon.text.sources import text_source
from etymon.text.store_building import build_store


def test_python_and_command_line_agree(folder, run):
    options = {"max_new_tokens": 12, "temperature": 0.9, "top_k": 40, "seed": 3}
    found = etymon.generate(folder("gpt2"), "The cat", **options)
    assert len(found) == 1
    assert found == etymon.generate(etymon.load(folder("gpt2")), ["The cat"], **options)
    flags = [part for name, value in options.items() for part in ("--" + name.replace("_", "-"), value)]
    assert run("generate", folder("gpt2"), "The cat", *flags) == (0, found[0].text + "\n", "")
    code, out, _ = run("generate", folder("gpt2"), "The cat", *flags, "--json")
    record = json.loads(out)
    assert code == 0
    assert record["ids"] == found[0].ids
    assert record["prompt"] == "The cat"


def test_sampling_options_turn_sampling_on(folder):
    model = etymon.load(folder("gpt2"))
    greedy = etymon.generate(model, "The cat", max_new_tokens=12)
    assert etymon.generate(model, "The cat", max_new_tokens=12, top_k=1)[0].ids == greedy[0].ids
    options = ({"temperature": 2.0}, {"top_p": 0.999}, {"top_k": 50}, {"sample": True})
    for option in (*options, {"min_p": 1e-4}, {"typical_p": 0.99}):
        drawn = {
            tuple(etymon.generate(model, "The cat", max_new_tokens=12, seed=seed, **option)[0].ids)
            for seed in (1, 2)
        }
        assert len(drawn) == 2, option
    with pytest.raises(EtymonError, match="turn on sample"):
        etymon.generate(model, "The cat", sample=False, temperature=2.0)


def test_several_prompts_and_texts(folder, run):
    code, out, _ = run(
        "generate", folder("gpt2"), "The cat", "Paris", "--beams", 2, "--returns", 2, "--max-new-tokens", 4
    )
    assert code == 0
    assert [line for line in out.splitlines() if line.startswith("---")] == ["--- The cat"] * 2 + [
        "--- Paris"
    ] * 2


def test_prompts_from_standard_input(folder, run, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"The cat\n\nParis\n")))
    code, out, err = run("generate", folder("t5"), "-", "--max-new-tokens", 3, "--json")
    assert (code, err) == (0, "etymon: note: blank lines of standard input that were left out: 1\n")
    assert [json.loads(line)["prompt"] for line in out.splitlines()] == ["The cat", "Paris"]


def test_one_prompt_streams_on_a_terminal(folder, run, monkeypatch):
    pieces: list[str] = []
    found = etymon.generate(folder("gpt2"), "The cat", max_new_tokens=12, on_text=pieces.append)
    assert len(pieces) > 1
    assert "".join(pieces) == found[0].text
    flags = ("generate", folder("gpt2"), "The cat", "--max-new-tokens", 12)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert run(*flags)[1] == found[0].text + "\n"
    assert json.loads(run(*flags, "--json")[1])["text"] == found[0].text


def test_choices(folder, run):
    flags = ("--choice", "cat", "--choice", " mat", "--choice", " 日本")
    code, out, _ = run("generate", folder("gpt2"), "The cat sat on the", *flags, "--returns", 3, "--json")
    records = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert {record["text"] for record in records} == {"cat", " mat", " 日本"}
    assert sum(math.exp(record["score"]) for record in records) == pytest.approx(1)
    assert run("generate", folder("gpt2"), "The cat sat on the", *flags)[1] == records[0]["text"] + "\n"


def test_log_probs(folder, run):
    flags = ("generate", folder("gpt2"), "The cat", "--max-new-tokens", 5, "--log-probs")
    record = json.loads(run(*flags, "--json")[1])
    assert len(record["token_log_probs"]) == len(record["pieces"]) == len(record["ids"])
    assert sum(record["token_log_probs"]) == pytest.approx(record["log_prob"])
    lines = run(*flags)[1].splitlines()[-len(record["ids"]) :]
    assert [line.split()[1:] for line in lines] == [[piece] for piece in record["pieces"]]
    assert "pieces" not in json.loads(run(*flags[:-1], "--json")[1])


def test_draft_contrastive_and_window(folder):
    plain = etymon.generate(folder("gpt2"), "The cat", max_new_tokens=20)
    drafted = etymon.generate(
        folder("gpt2"), "The cat", max_new_tokens=20, draft=folder("gpt2"), draft_tokens=3
    )
    assert drafted[0].ids == plain[0].ids
    contrastive = etymon.generate(folder("gpt2"), "The cat", max_new_tokens=20, penalty_alpha=0.6, top_k=4)
    assert contrastive[0].ids != plain[0].ids
    long = etymon.generate(folder("gpt2"), "The cat", max_new_tokens=60, min_new_tokens=60, window=True)
    assert len(long[0].ids) == 60


@pytest.mark.parametrize("kind", ["file", "prepared", "run"])
def test_report(folder, run, tmp_path, kind):
    """The training text is given, or found where a run keeps it."""
    model, prompts = etymon.load(folder("gpt2")), ["The cat", "Paris is"]
    (tmp_path / "text.txt").write_text(
        "nothing\n" + etymon.generate(model, "The cat", max_new_tokens=12)[0].text + "\n"
    )
    target, data = folder("gpt2"), ["--data", tmp_path / "text.txt"]
    if kind != "file":
        target = tmp_path / "run"
        etymon.save(model, target / "model")
        source = text_source([str(tmp_path / "text.txt")])
        build_store(source.documents(), model.tokenizer, target / "store", validation=0.0, source=source)
        data = [] if kind == "run" else ["--data", target / "store"]
    flags = ("generate", target, *prompts, "--temperature", 1.5, "--returns", 2, "--max-new-tokens", 12)
    page = tmp_path / "report.html"
    code, out, err = run(*flags, "--report", "--out", page, *data)
    assert (code, err) == (0, "")
    ways = ["greedy", "sampling, temperature 1.5", "top-p 0.95", "typical-p 0.95", "contrastive", "4 beams"]
    lines = out.splitlines()
    assert all(line.startswith(way) for line, way in zip(lines[1:7], ways, strict=True))
    for way in ways:
        assert way in page.read_text()
    records = [json.loads(line) for line in run(*flags, "--report", "--json", *data)[1].splitlines()]
    assert [record["texts"] for record in records] == [2, 4, 4, 4, 2, 2]
    assert records[0]["longest_copy"] >= 10  # the text itself, in tokens
    assert all(0 <= record["repeated_4"] <= 100 and record["tokens"] > 0 for record in records)
    assert records[1]["distinct_1"] > records[0]["distinct_1"]
    assert ("self_bleu" in records[0]) == (find_spec("sacrebleu") is not None)


def test_a_report_without_training_text(folder, run):
    found = etymon.generate(etymon.load(folder("t5")), "The cat", max_new_tokens=8, report=True)
    assert len(found) == 6 and found[0].prompt == "The cat"
    assert [way.longest_copy for way in found.ways] == [None] * 6
    assert any("--data" in line for line in found.lines())


def test_a_report_hears_what_was_asked(folder):
    asked = {"max_new_tokens": 4, "report": True}
    found = etymon.generate(folder("gpt2"), "The cat", beams=3, length_penalty=2.0, **asked)
    assert [way.name for way in found.ways][-2:] == ["contrastive, alpha 0.6, top-k 4", "3 beams"]
    (alone,) = etymon.generate(folder("gpt2"), "The cat", beams=3, length_penalty=2.0, max_new_tokens=4)
    assert found[-1] == alone
    found = etymon.generate(folder("gpt2"), "The cat", penalty_alpha=0.4, top_k=5, **asked)
    assert [way.name for way in found.ways][-2:] == ["contrastive, alpha 0.4, top-k 5", "4 beams"]


def test_a_report_finds_the_text_of_its_model_alone(folder, tmp_path, monkeypatch):
    """Neither that of another tokenizer nor what lies about where a hub's name is said."""
    from etymon.lab.compare_decoding import _training_text

    monkeypatch.chdir(tmp_path)
    ours, other = (etymon.load(folder(family)).tokenizer for family in ("gpt2", "t5"))
    (tmp_path / "text.txt").write_text("The cat sat on the mat.\n")
    source = text_source([str(tmp_path / "text.txt")])
    (tmp_path / "model").mkdir()
    for name, tokenizer in (("store", ours), ("store-other", other)):
        build_store(source.documents(), tokenizer, tmp_path / name, validation=0.0, source=source)
    with ExitStack() as stack:
        assert len(_training_text(ours, (), Path("model"), stack)) == 1
        assert _training_text(ours, (), Path("gpt2"), stack) == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("gpt2", "x", "--choice", "a", "--beams", "2"), "beams has no say"),
        (("gpt2", "x", "--penalty-alpha", "0.6"), "needs top_k"),
        (("gpt2", "x", "--out", "page.html"), "ask for it (--report)"),
        (("gpt2", "x", "--report", "--choice", "a"), "leave out choices"),
        (("gpt2", "x", "--draft-tokens", "99"), "is for a draft model"),
        (("gpt2", "x", "--temperature", "0"), "temperature is 0.0"),
        (("gpt2", "x", "--max-new-tokens", "100"), "48 positions"),
        (("bert", "x"), "etymon fill"),
        (("gpt2", "x", "--device", "toaster"), "no device 'toaster'"),
        (("gpt2", "x", "--device", "cuda:99"), "no device 'cuda:99'"),
        (("gpt2", "x", "--stop", ""), "empty stop"),
        (("gpt2", "x", "--batch-size", "0"), "batch_size is 0"),
    ],
)
def test_mistakes_are_one_line(folder, run, arguments, expected):
    family, *rest = arguments
    code, out, err = run("generate", folder(family), *rest)
    assert (code, out) == (2, "")
    assert expected in err
    assert err.count("\n") == 1


def test_a_folder_without_tokenizer(folder, run, tmp_path):
    for file in folder("gpt2").iterdir():
        if not file.name.startswith("tokenizer"):
            (tmp_path / file.name).write_bytes(file.read_bytes())
    for verb in ("generate", "fill", "score", "embed"):
        code, _, err = run(verb, tmp_path, "x")
        assert code == 2
        assert "no tokenizer" in err
        assert err.count("\n") == 1
