"""`etymon pretrain` from text to folder: what it leaves, budgets, and small or odd texts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import etymon
from etymon import cli
from etymon.families import get_family
from etymon.objectives import get_objective
from etymon.runs.result import Pretrained
from etymon.runs.run_file import RunFile
from etymon.runs.training_settings import steps_within, training_settings
from etymon.text.sources import Texts
from etymon.text.store import TokenStore
from etymon.training.feeding import validation_slices
from etymon.training.loop import Trainer
from etymon.training.state import RunFolder
from etymon.training.unit import TrainingUnit, evaluate
from etymon.verbs import pretrain as verb
from tests import tiny
from tests.verbs.small_runs import FAMILIES, crash, metrics, pretrain


@pytest.mark.parametrize("family", FAMILIES)
def test_a_run_learns_and_leaves_everything(family: str, straight: Callable[[str], Pretrained]) -> None:
    result = straight(family)
    records = metrics(result.folder)
    steps = [record for record in records if "learning_rate" in record]
    assert [record["step"] for record in steps] == list(range(1, 13))
    unit = "bits_per_byte" if family == "gpt2" else "bits_per_target"
    judged = [record[f"validation_{unit}"] for record in records if f"validation_{unit}" in record]
    assert len(judged) == 4 and judged[-1] < 0.9 * judged[0]
    assert result.metrics[unit] == judged[-1]
    assert (result.steps, result.stopped) == (12, False)
    assert RunFolder(result.folder).checkpoints()[-2:] == [10, 12]
    page = (result.folder / "report.html").read_text(encoding="utf-8")
    assert "<svg" in page and unit.replace("_", " ") in page
    assert ("What it writes" in page) is (family == "gpt2")
    assert ("xz" in page) is (family == "gpt2")
    settings = yaml.safe_load((result.folder / "run.yaml").read_text(encoding="utf-8"))
    assert settings["training"]["steps"] == 12 and settings["length"] == 32
    history = json.loads((result.model_folder / "history.json").read_text(encoding="utf-8"))["history"]
    assert history == result.model.history
    assert history[0]["metrics"] == result.metrics and history[0]["data"] == "texts given by the program"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_end_of_a_run_can_be_read(
    family: str, straight: Callable[[str], Pretrained], capsys: pytest.CaptureFixture[str]
) -> None:
    result = straight(family)
    verb.present(result)
    shown = capsys.readouterr().out
    # What is no accuracy and no number of bits is a loss, and says so.
    figures = [line for line in shown.splitlines() if line.startswith("validation ")]
    assert len(figures) == len(result.metrics)
    assert all(any(word in line for word in ("loss", "bits", "accuracy")) for line in figures)
    # Bits per byte mean something beside others.
    assert ("bits_per_byte" in result.metrics) == ("xz, a compressor" in shown) == (family == "gpt2")


@pytest.mark.parametrize("family", FAMILIES)
def test_run_and_model_folders_load(family: str, straight: Callable[[str], Pretrained]) -> None:
    result = straight(family)
    for folder in (result.folder, result.model_folder, str(result.folder)):
        model = etymon.load(folder)
        assert model.tokenizer is not None and not model.training
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, dict(result.model.named_parameters())[name]), name


def loss_of_transformers(family: str, folder: Path, prepared: Any) -> float:
    transformers = pytest.importorskip("transformers")
    from torch.nn.utils.rnn import pad_sequence

    def rectangle(flat: torch.Tensor, batch: Any, fill: int) -> torch.Tensor:
        return pad_sequence(flat.split(list(batch.layout.lengths)), batch_first=True, padding_value=fill)

    classes = {"gpt2": "GPT2LMHeadModel", "bert": "BertForPreTraining", "t5": "T5ForConditionalGeneration"}
    cls = getattr(transformers, classes[family])
    model, notes = cls.from_pretrained(folder, output_loading_info=True)
    assert not notes["missing_keys"] and not notes["unexpected_keys"]
    model.eval()
    batch = prepared.source if family == "t5" else prepared.batch
    ids = rectangle(batch.ids, batch, 0)
    arguments: dict[str, Any] = {"attention_mask": rectangle(torch.ones_like(batch.ids), batch, 0)}
    if family == "gpt2":
        # Transformers shifts labels itself, and so cannot take targets as they are: score its logits.
        targets = rectangle(prepared.targets, batch, -100)
        logits = model(ids, **arguments).logits
        return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()))
    if family == "bert":
        labels = torch.full_like(batch.ids, -100)
        labels[prepared.at] = prepared.targets
        arguments |= {
            "labels": rectangle(labels, batch, -100),
            "token_type_ids": rectangle(batch.segments, batch, 0),
            "next_sentence_label": prepared.labels,
        }
    else:
        arguments["labels"] = rectangle(prepared.targets, prepared.decoder, -100)
    return float(model(ids, **arguments).loss)


@pytest.mark.parametrize("family", ["gpt2", "bert", "t5"])
def test_transformers_opens_the_folder_and_agrees(family: str, straight: Callable[[str], Pretrained]) -> None:
    transformers = pytest.importorskip("transformers")
    result = straight(family)
    tokenizer = result.model.tokenizer
    assert tokenizer is not None
    theirs = transformers.AutoTokenizer.from_pretrained(result.model_folder)
    for text in ("The river crossed the garden.", "Captain answered!", ""):
        assert theirs(text)["input_ids"] == tokenizer.framing.frame(tokenizer.encode(text)).ids.tolist()
    settings = yaml.safe_load((result.folder / "run.yaml").read_text(encoding="utf-8"))
    objective = get_objective(settings["objective"], tokenizer, 32)
    split = TokenStore.open(result.folder / "store", tokenizer).validation
    (prepared,) = validation_slices(objective, split, 0, rows=1000)
    figures = evaluate(TrainingUnit(result.model, objective), [prepared])
    ours = {"gpt2": ["loss"], "bert": ["masked", "next_sentence"], "t5": ["spans"]}[family]
    with torch.no_grad():
        expected = loss_of_transformers(family, result.model_folder, prepared)
    assert sum(figures[name] for name in ours) == pytest.approx(expected, rel=1e-5)
    assert all(figures[name] == pytest.approx(result.metrics[name], rel=1e-5) for name in ours)


def test_command_line_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, text in enumerate(tiny.texts(6)):
        (tmp_path / f"{number}.txt").write_text(text, encoding="utf-8")
    out = tmp_path / "a run"
    command = f"pretrain gpt2 --data {tmp_path}/*.txt --size test --steps 2 --batch 4 --length 32 --progress plain --out"
    with pytest.raises(SystemExit) as exit_info:
        cli.main([*command.split(), str(out)])
    assert exit_info.value.code == 0
    captured = capsys.readouterr()
    assert "validation bits per byte" in captured.out and str(out / "report.html") in captured.out
    assert "tokens to train on" in captured.err
    assert etymon.load(out).history[0]["data"] == f"{tmp_path}/*.txt"


def test_patience_ends_a_run_with_its_best_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("etymon.runs.validation.VALIDATION_SAMPLES", 2)
    done = pretrain(
        "gpt2", tmp_path / "run", learning_rate=30.0, set=["optimiser=adamw", "patience=2"], validate_every=1, save_every=1,
        progress="plain",
    )  # fmt: skip
    told = capsys.readouterr().err
    best = done.steps - 2
    assert done.steps < 12 and not done.stopped
    assert f"no validation was better than that of step {best}" in told
    assert f"the best model is that of step {best}" in told
    # What is kept is what was judged, by all of the held-out text.
    again = etymon.load(done.model_folder)
    objective = get_objective("causal", again.tokenizer, 32)
    split = TokenStore.open(done.folder / "store", again.tokenizer).validation
    figures = evaluate(
        TrainingUnit(again, objective), validation_slices(objective, split, 0, rows=4, slices=2)
    )
    assert figures["loss"] == pytest.approx(done.metrics["loss"], rel=1e-5)
    assert again.history[-1]["seen"]["ended"]


def test_a_warm_up_is_half_of_a_short_run_at_most() -> None:
    recipe = get_family("gpt1").recipe_for("base")
    for steps, warmup in ((100, 50), (3000, 1500), (100_000, 2000)):
        settings = training_settings(recipe, RunFile(family="gpt1"), steps=steps, validations=1)
        assert settings.schedule.warmup == warmup
    t5 = get_family("t5").recipe_for("small")
    assert (
        training_settings(t5, RunFile(family="t5"), steps=100, validations=1).schedule.warmup
        == t5.warmup_steps
    )


def test_documents_that_are_left_out_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text"
    text.mkdir()
    for number, content in enumerate(tiny.texts(40)):
        (text / f"{number}.txt").write_bytes(content.encode() + (b"\xff" if number in (3, 5) else b""))
    pretrain("gpt2", tmp_path / "run", data=[text], errors="skip", steps=1, progress="plain")
    assert "left out 2 documents that could not be read" in capsys.readouterr().err


def test_stopped_run_says_how_to_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stopped = Pretrained(tmp_path, tmp_path, None, None, {}, 7, True, "etymon pretrain gpt2 --resume")  # type: ignore[arg-type]
    verb.present(stopped)
    assert (
        capsys.readouterr().out == "stopped at step 7 and saved; go on with: etymon pretrain gpt2 --resume\n"
    )


def test_paths_of_every_kind(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text(" ".join(tiny.texts(8)), encoding="utf-8")
    runs = [
        pretrain("gpt2", tmp_path / str(number), data=data, steps=1, validate_every=9)
        for number, data in enumerate([str(file), file, [file]])
    ]
    assert len({run.metrics["loss"] for run in runs}) == 1


@pytest.mark.parametrize(
    "budget, step, validation, every, expected",
    [
        (180.0, 0.5, 1.0, None, (338, 10)),  # ten validations and the first: 11 s of 180
        (12.0, 1.0, 2.0, None, (8, 1)),  # too short for more than those at the ends
        (100.0, 0.1, 0.0, None, (1000, 10)),  # nothing is held out
        (102.0, 1.0, 1.0, 1, (50, 50)),
        (1.0, 5.0, 9.0, None, (1, 1)),
        (1.0, 5.0, 9.0, 3, (1, 1)),
    ],
)
def test_steps_within_a_budget(
    budget: float, step: float, validation: float, every: int | None, expected: tuple[int, int]
) -> None:
    assert steps_within(budget, step, validation, every) == expected


def test_a_budget_becomes_steps_and_measuring_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = pretrain("gpt2", tmp_path / "steps", steps=6)
    capsys.readouterr()
    real = Trainer.seconds_per_step

    def half_a_second(trainer: Trainer, seconds: float) -> float:
        real(trainer, 0.0)  # measured for real, for its side effects
        return 0.5

    monkeypatch.setattr(Trainer, "seconds_per_step", half_a_second)
    monkeypatch.setattr("etymon.runs.run.clock", lambda: 1.0)
    measured = pretrain("gpt2", tmp_path / "budget", steps=None, budget="3.2s", progress="plain")
    settings = yaml.safe_load((measured.folder / "run.yaml").read_text(encoding="utf-8"))
    assert settings["budget"] == "3.2s"
    assert settings["training"]["steps"] == measured.steps == 6
    assert metrics(measured.folder) == metrics(plain.folder)
    shown = capsys.readouterr()
    assert "so the budget has room for 6 steps" in shown.err + shown.out
    assert "little in so few steps" in shown.err + shown.out
    model = "model/model.safetensors"
    assert (measured.folder / model).read_bytes() == (plain.folder / model).read_bytes()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("text", ["Hello there, world.", "One. Two. Three. Four. Five."])
def test_a_tiny_text_still_trains(family: str, text: str, tmp_path: Path) -> None:
    result = pretrain(family, tmp_path / "run", data=Texts([text]), steps=2, batch=2, slices=1)
    assert result.steps == 2 and etymon.load(result.folder).parameter_count() > 0


def test_a_text_of_a_few_bytes_is_warned_about(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short, long = Texts(["Hello there, world."]), Texts(["Hello there, world."] * 600)
    for number, text in enumerate((short, long)):
        pretrain(
            "gpt2",
            tmp_path / str(number),
            data=text,
            steps=1,
            batch=2,
            slices=1,
            validation=0.0,
            progress="plain",
        )
        warned = "warning: the text has only 19 bytes" in capsys.readouterr().err
        assert warned == (text is short)


def test_without_held_out_text_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = pretrain("gpt2", tmp_path / "run", steps=2, validation=0.0, progress="plain")
    assert result.metrics == {} and "no text is held out" in capsys.readouterr().err
    assert "<svg" in (result.folder / "report.html").read_text(encoding="utf-8")


def never_begun(run: Path) -> None:
    """Takes away what a run writes once it has begun; its tokenizer and its encoded text stay."""
    for name in ("run.yaml", "metrics.jsonl"):
        (run / name).unlink()
    shutil.rmtree(run / "checkpoints")


def test_leftovers_of_an_interrupted_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokenizer and text of an attempt that never began are used again, but only for the same text and family."""
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train", lambda *_: crash())
        patch.setattr("etymon.runs.run_file.RunFile.write", lambda *_: None)
        with pytest.raises(ConnectionAbortedError):
            pretrain("gpt2", tmp_path / "run")
    assert (tmp_path / "run" / "tokenizer" / "tokenizer.json").is_file()
    with monkeypatch.context() as patch:
        patch.setattr("etymon.runs.tokenizer.train_tokenizer", lambda *_, **__: crash())
        result = pretrain("gpt2", tmp_path / "run", steps=1)  # the same text: nothing is trained again
    never_begun(tmp_path / "run")
    other = pretrain("gpt2", tmp_path / "run", steps=1, data=Texts(tiny.texts(30, seed=5)), vocabulary=300)
    assert other.model.tokenizer is not None and result.model.tokenizer is not None
    assert other.model.tokenizer.size <= 300 < result.model.tokenizer.size
    never_begun(tmp_path / "run")
    assert pretrain("bert", tmp_path / "run", steps=1).steps == 1


def test_xz_is_measured_once_for_report_and_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from etymon.runs import report

    real, measured = report.xz_bits_per_byte, []
    monkeypatch.setattr(
        report, "xz_bits_per_byte", lambda *given: measured.append(real(*given)) or measured[-1]
    )
    result = pretrain("gpt2", tmp_path / "run", steps=1)
    assert [result.references["xz"]] == measured
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert f"xz on the same bytes</dt><dd>{measured[0]:.3f}</dd>" in page
