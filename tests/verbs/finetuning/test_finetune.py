"""Fine-tuning, from a table to a model that answers: exact when it is resumed, with the best model kept."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import etymon
from etymon.errors import EtymonError
from etymon.runs.result import Finetuned
from etymon.runs.task_file import TaskFile
from etymon.tasks.text2text import Text2TextOptions
from etymon.training.state import RunFolder
from tests import tiny
from tests.verbs.small_runs import crash, metrics, pretrain, with_test_sizes

PAGE = Path(__file__).parents[3] / "docs" / "tasks-texts.md"
ROWS = [
    {"de": text, "en": " ".join(reversed(text.split()))} for text in dict.fromkeys(tiny.texts(80, seed=3)) if len(text) < 200
]  # fmt: skip


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    with with_test_sizes():
        yield


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in ROWS), encoding="utf-8")
    return path


def finetune(family: str, out: Path, **changes: Any) -> Finetuned:
    arguments: dict[str, Any] = {
        "from_scratch": True, "size": "test", "train": ROWS, "source": "de", "target": "en", "metric": "exact",
        "out": out, "steps": 4, "batch_tokens": 200, "validate_every": 2, "learning_rate": 3e-3, "vocabulary": 300,
        "progress": "silent", "length": 48,
    }  # fmt: skip
    return etymon.finetune(family, **{**arguments, **changes})


@pytest.mark.parametrize("family", ["t5", "bart", "transformer", "rnn", "gpt2", "gpt1"])
def test_every_family_that_writes_trains_saves_and_predicts(family: str, tmp_path: Path) -> None:
    done = finetune(family, tmp_path / "run", steps=2)
    assert done.steps == 2 and {"loss", "bits_per_target", "exact"} <= set(done.metrics)
    again = etymon.load(tmp_path / "run")
    assert again.history[-1]["task"]["options"]["source"] == "de"
    for name, tensor in done.model.stored_tensors().items():
        assert torch.equal(tensor, again.stored_tensors()[name]), name
    (told,) = etymon.translate(tmp_path / "run", "The dog sees the cat.", beams=2, max_new_tokens=5)
    assert isinstance(told.text, str) and told.parts == 1
    assert (tmp_path / "run" / "report.html").is_file()


def test_a_stopped_run_goes_on_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pairs: Path) -> None:
    own = {"train": pairs, "steps": 7, "save_every": 3, "slices": 2}
    straight = finetune("t5", tmp_path / "straight", **own)
    reached = RunFolder.save

    def save(self: RunFolder, *arguments: Any, **named: Any) -> Path:
        made = reached(self, *arguments, **named)
        if self.folder.name == "broken" and made.name.endswith("3"):
            crash()
        return made

    monkeypatch.setattr(RunFolder, "save", save)
    with pytest.raises(ConnectionAbortedError):
        finetune("t5", tmp_path / "broken", **own)
    monkeypatch.undo()
    with with_test_sizes():
        resumed = etymon.finetune(
            "t5", from_scratch=True, size="test", out=tmp_path / "broken", resume=True, progress="silent"
        )
    assert metrics(tmp_path / "broken") == metrics(tmp_path / "straight")
    for name, tensor in straight.model.stored_tensors().items():
        assert torch.equal(tensor, resumed.model.stored_tensors()[name]), name
    assert resumed.metrics == straight.metrics and resumed.scores == straight.scores


def test_it_learns_and_an_open_file_says_what_it_came_to(tmp_path: Path, pairs: Path) -> None:
    done = finetune(
        "transformer",
        tmp_path / "run",
        train=pairs,
        steps=60,
        validate_every=30,
        learning_rate=1e-2,
        metric="loss",
    )
    judged = [record["validation_loss"] for record in metrics(done.folder) if "validation_loss" in record]
    assert judged[-1] < 0.9 * judged[0]
    tree = yaml.safe_load((done.folder / "run.yaml").read_text(encoding="utf-8"))
    assert set(tree) == {field.name for field in fields(TaskFile)}
    assert (tree["task"], tree["metrics"], tree["budget"]) == ("text2text", ["loss"], "60steps")
    assert set(tree["options"]) == {field.name for field in fields(Text2TextOptions)}
    assert tree["options"]["smoothing"] == 0.1, "the family's own"


def test_the_best_model_is_kept_and_patience_ends_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = iter([9.0, 1.0, 3.0, 2.0, 2.5, 2.0, 1.0, 0.5])
    from etymon.tasks.scores import MetricScore
    from etymon.tasks.text2text import Text2Text

    monkeypatch.setattr(Text2Text, "score", lambda *_: {"exact": MetricScore(next(values))})
    done = finetune("t5", tmp_path / "run", steps=20, patience=2)
    # Before the first step it had 9, which no checkpoint has; then 1, 3 (the best), 2 and 2.5.
    assert (done.steps, done.best_step, done.stopped) == (8, 4, False)
    kept = etymon.load(tmp_path / "run" / "checkpoints" / "step-00000004" / "model")
    for name, tensor in done.model.stored_tensors().items():
        assert torch.equal(tensor, kept.stored_tensors()[name]), name
    assert done.metrics["exact"] == 2.0, "over all rows, by the model that was kept"
    values = iter([1.0] * 9)
    again = etymon.finetune(
        "t5", from_scratch=True, train=ROWS, out=tmp_path / "run", resume=True, progress="silent", size="test"
    )
    assert again.steps == 8


def test_a_run_says_when_it_writes_the_answers_of_all_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from etymon.runs import validation

    told = r"writing the answers of all [\d,]+ validation rows"
    finetune("t5", tmp_path / "few", steps=2, metric=["exact"], hold_out=0.2, progress="plain")
    assert not re.search(told, capsys.readouterr().err), "the run has answered them all before"
    monkeypatch.setattr(validation, "FEW_ROWS", 2)
    finetune("t5", tmp_path / "many", steps=2, metric=["exact"], hold_out=0.2, progress="plain")
    assert re.search(told, capsys.readouterr().err)


@pytest.mark.parametrize(("error", "kept"), [(2.0, 6), (0.5, 4)])
def test_the_last_model_is_kept_where_the_best_is_better_by_luck(
    error: float, kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = iter([0.0, 1.0, 5.0, 4.0, 4.0])
    from etymon.tasks.scores import MetricScore
    from etymon.tasks.text2text import Text2Text

    def score(*_: Any) -> dict[str, MetricScore]:
        value, half = next(values), 1.96 * error
        return {"exact": MetricScore(value, value - half, value + half)}

    monkeypatch.setattr(Text2Text, "score", score)
    done = finetune("t5", tmp_path / "run", steps=6)
    assert (done.steps, done.best_step) == (6, kept)
    checkpoint = tmp_path / "run" / "checkpoints" / f"step-{kept:08}" / "model"
    expected = etymon.load(checkpoint).stored_tensors()
    for name, tensor in done.model.stored_tensors().items():
        assert torch.equal(tensor, expected[name]), name
    errors = [record for record in metrics(done.folder) if "validation_exact_error" in record]
    assert [record["validation_exact_error"] for record in errors] == pytest.approx([error] * 4)


def test_a_pretrained_model_is_tuned_with_its_own_tokenizer(tmp_path: Path) -> None:
    first = pretrain("t5", tmp_path / "first", steps=2)
    done = etymon.finetune(
        first.folder, train=ROWS, source="de", target="en", metric="loss", steps=2, out=tmp_path / "run",
        prefix="turn: ", progress="silent", set=["options.smoothing=0.1"],
    )  # fmt: skip
    assert done.model.tokenizer is not None and first.model.tokenizer is not None
    assert done.model.tokenizer.fingerprint == first.model.tokenizer.fingerprint
    assert len(done.model.history) == 2 and done.model.history[-1]["started_from"] == str(first.folder)
    assert done.model.history[-1]["training"]["optimiser"]["name"] == "adafactor"
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(done.model_folder)
    assert sum(part.numel() for part in theirs.parameters()) == done.model.parameter_count()


def test_vocabularies_may_be_separate(tmp_path: Path) -> None:
    rows = [{"de": row["de"].upper(), "en": row["en"]} for row in ROWS]
    done = finetune("transformer", tmp_path / "run", train=rows, source_vocabulary=120, steps=2)
    again = etymon.load(done.folder)
    assert again.source_tokenizer is not None and again.tokenizer is not None
    assert again.source_tokenizer.fingerprint != again.tokenizer.fingerprint
    assert again.shape.source_vocabulary == again.source_tokenizer.size
    assert etymon.translate(done.folder, ["THE DOG SEES THE CAT."], max_new_tokens=3)
    with pytest.raises(EtymonError, match="T5 has one vocabulary"):
        finetune("t5", tmp_path / "other", source_vocabulary=120)


def test_nothing_is_left_behind_by_a_dry_run(tmp_path: Path) -> None:
    done = finetune("t5", tmp_path / "run", dry_run=True)
    assert "rows to train on" in done.plan["task"] and not (tmp_path / "run").exists()


# ------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"train": None}, "there are no rows to train on"),
        ({"source": "fr"}, "row 1: no column 'fr'"),
        ({"train": [*ROWS, {"de": "a", "en": ""}]}, rf"row {len(ROWS) + 1}: column 'en' is empty"),
        ({"task": "clasify"}, "there is no task 'clasify'"),
        ({"metric": "blue"}, "has no metric 'blue': did you mean 'bleu'"),
        ({"epochs": 2}, "not several of them"),
        ({"set": ["options.sep=1"]}, "unknown key 'sep'"),
        ({"from_scratch": False}, "has its size: leave --size out"),
        ({"patience": 0}, "patience is 0, expected at least 1"),
    ],
)
def test_mistakes_are_refused_before_any_work(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(EtymonError, match=reason) as error:
        finetune("t5", tmp_path / "run", **changes)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_other_rows_are_another_run(tmp_path: Path) -> None:
    finetune("t5", tmp_path / "run", steps=1)
    with pytest.raises(EtymonError, match=r"not those that the run in .* began with"):
        etymon.finetune(
            "t5",
            from_scratch=True,
            size="test",
            train=ROWS[1:],
            out=tmp_path / "run",
            resume=True,
            progress="silent",
        )


# ------------------------------------------------------------ use


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tuned") / "run"
    with with_test_sizes():
        finetune("t5", folder, steps=2, prefix="turn: ")
    return folder


def test_translate_and_evaluate_from_the_command_line(
    model: Path, tmp_path: Path, pairs: Path, run: Callable[..., tuple[int, str, str]]
) -> None:
    (tmp_path / "in.txt").write_text("The dog sees the cat.\n\nA king.\n", encoding="utf-8-sig")
    asked = ["translate", model, "--file", tmp_path / "in.txt", "--beams", 2]
    code, shown, _ = run(*asked, "--out", tmp_path / "out.txt")
    lines = (tmp_path / "out.txt").read_text(encoding="utf-8").split("\n")
    assert code == 0 and len(lines) == 4 and lines[1] == lines[3] == "", shown
    assert run(*asked, "--out", tmp_path / "out.jsonl")[0] == 0
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [each["source"] for each in records] == ["The dog sees the cat.", "", "A king."]
    assert [each["text"] for each in records] == lines[:3]
    code, _, error = run(*asked, "--out", tmp_path / "in.txt" / "out.txt")
    assert code == 2 and "cannot write" in error
    code, shown, error = run(
        "evaluate",
        model,
        "--data",
        pairs,
        "--metric",
        "exact",
        "chrf",
        "--beams",
        1,
        "--resamples",
        20,
        "--json",
    )
    assert code == 0, error
    scores = json.loads(shown)
    assert code == 0 and set(scores) == {"exact", "chrf"} and scores["chrf"]["low"] <= scores["chrf"]["high"]


def test_long_texts_are_refused_with_the_numbers_or_read_in_parts(
    model: Path, run: Callable[..., tuple[int, str, str]]
) -> None:
    text = "The dog sees the cat. " * 12
    code, _, error = run("summarize", model, text)
    assert code == 2 and re.search(r"text 1 of 1 has \d+ tokens, and the model reads 48", error)
    code, shown, error = run("summarize", model, text, "--chunk", "--json", "--max-new-tokens", 3)
    parts = json.loads(shown)["parts"]
    assert code == 0 and parts > 1 and f"is read in {parts} parts of up to 48" in error
    code, shown, error = run("summarize", model, "dog " * 200, "--chunk", "--json", "--max-new-tokens", 3)
    assert code == 0 and json.loads(shown)["parts"] > 4, "a sentence that is too long is cut at words"
    code, _, error = run("summarize", model, "dog" * 200, "--chunk")
    assert code == 2 and "has a word of" in error
    code, _, error = run("summarize", model, "The dog.", "--beams", 1, "--length-penalty", 2)
    assert code == 2 and "belong to beam search" in error


# ------------------------------------------------------------ what the page says


def test_every_option_of_text2text_is_documented_with_its_default() -> None:
    section = PAGE.read_text(encoding="utf-8").split("\n## text2text\n")[1].split("\n#")[0]
    told = {
        key: default.strip().strip("`")
        for key, default in re.findall(r"^\| `(\w+)` \|(.*?)\|", section, re.M)
    }
    assert list(told) == [field.name for field in fields(Text2TextOptions)]
    for field in fields(Text2TextOptions):
        default = getattr(field.default, "default", field.default)
        if default not in (None, MISSING, ""):
            assert told[field.name] == str(default).replace("\n", "\\n"), field.name


def test_a_reader_is_asked_for_its_task(tmp_path: Path) -> None:
    with pytest.raises(EtymonError, match=r"say what BERT is to learn: --task classify, tag"):
        finetune("bert", tmp_path / "run")
    with pytest.raises(EtymonError, match="which the task 'text2text' asks for"):
        finetune("bert", tmp_path / "run", task="text2text")
