"""Text to text: only the target is asked for, whatever else is in the batch, and use sees what training saw."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from etymon.errors import EtymonError
from etymon.families import get_family
from etymon.nn.batch import Batch
from etymon.nn.vocabulary import Context
from etymon.sampling.plans import key
from etymon.settings.decoding import DecodingSettings
from etymon.tables.table import read_table
from etymon.tasks import get_task, task_of
from etymon.tasks.scores import mean_score, text_scores
from etymon.tasks.text2text import Text2Text, Text2TextOptions, _cut
from etymon.training.feeding import Feed, Position
from etymon.training.unit import TrainingUnit
from tests import tiny

PAIRS = read_table([
    {"source": "The dog sees the cat.", "target": "The cat."},
    {"source": "The king follows the river in the night.", "target": "The river follows the king."},
    {"source": "A cat.", "target": "The dog sees the cat and the king."},
])  # fmt: skip
FAMILIES = ["t5", "bart", "transformer", "rnn", "gpt2", "gpt1", "transformer-xl"]


def bound(family: str, **options: Any) -> tuple[Text2Text, Any]:
    task = get_task("text2text", options, get_family(family))
    assert isinstance(task, Text2Text)
    model = tiny.model(family, task).eval()
    task.bind(model, 40)
    return task, model


def losses(task: Text2Text, model: Any, batch_tokens: int) -> tuple[float, float]:
    task.batch_tokens = batch_tokens
    examples = task.encode(PAIRS)
    unit, total, count = TrainingUnit(model, task), 0.0, 0.0
    for row in task.plan(examples, 0, 0):
        prepared = task.collate([task.prepare(examples, row, key(0))])
        total += unit(prepared)["loss"].sum.item()
        count += prepared.counts["loss"]
    return total, count


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_the_loss_is_that_of_the_targets_alone_however_they_are_bundled(family: str) -> None:
    task, model = bound(family)
    examples = task.encode(PAIRS)
    expected = 0.0
    for number in range(len(PAIRS)):
        source, target = (examples.columns[name][number] for name in ("source", "target"))
        head = model.heads["vocabulary"]
        if model.encoder_decoder:
            batch = Batch.of([[model.decoder_start, *target[:-1]]])
            hidden, _ = model.decode(batch, model.encode(Batch.of([source])))
            log_probs = head.log_probs(hidden, None, Context(batch))
        else:
            batch = Batch.of([[*source, *target[:-1]]])
            hidden, _ = model.hidden(batch)
            log_probs = head.log_probs(hidden, None, Context(batch))[len(source) - 1 :]
        expected -= float(log_probs[torch.arange(len(target)), torch.from_numpy(target).long()].sum())
    count = int(examples.columns["target"].lengths.sum())
    for batch_tokens in (1, 4096):
        total, asked = losses(task, model, batch_tokens)
        assert asked == count
        assert total == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("family", ["t5", "gpt2", "gpt1"])
def test_use_begins_as_training_did(family: str) -> None:
    task, model = bound(family, prefix="say: ")
    examples = task.encode(PAIRS)
    prompts = task.sources(["say: " + text for text in PAIRS.texts("source")])
    for number, prompt in enumerate(prompts):
        assert examples.columns["source"][number].tolist() == prompt.tolist()
        end = examples.columns["target"][number][-1]
        assert end == model.tokenizer.id("end")
    if family == "gpt1":
        assert prompts[0][0] == model.tokenizer.id("begin") and prompts[0][-1] == model.tokenizer.id(
            "separator"
        )


def test_what_is_too_long_is_cut_and_said() -> None:
    for family in ("t5", "gpt2"):
        task, _ = bound(family)
        task.limits["length"] = 16
        told: list[str] = []
        examples = task.encode(PAIRS, told.append, learn=True)
        lengths = {name: column.lengths for name, column in examples.columns.items()}
        if family == "t5":
            assert max(lengths["source"]) == 16 and max(lengths["target"]) <= 16
            assert all(examples.columns["source"][n][-1] == task.reader.id("end") for n in range(3))
        else:
            assert max(lengths["source"] + lengths["target"]) == 16
            assert all(
                examples.columns["source"][n][-len(task.between) :].tolist() == task.between.tolist()
                for n in range(3)
            )
        assert any("of 3 texts in 'source' are longer than 16 tokens and are cut" in note for note in told)


@pytest.mark.parametrize("family", ["t5", "rnn", "gpt2"])
def test_predictions_do_not_depend_on_their_neighbours(family: str) -> None:
    task, model = bound(family)
    task.encode(PAIRS, learn=True)
    settings = DecodingSettings(max_new_tokens=6)
    together = task.predict(model, PAIRS, settings)
    alone = [task.predict(model, PAIRS.at([number]), settings)[0] for number in range(3)]
    assert together == alone
    backwards = task.predict(model, PAIRS.at([2, 1, 0]), settings)
    assert backwards[::-1] == together


def test_a_number_of_new_tokens_is_kept_or_refused() -> None:
    """Whatever stands beside a text."""
    task, model = bound("gpt2")  # 64 positions
    prompts = task.sources(PAIRS.texts("source"))
    lengths = [len(prompt) for prompt in prompts]
    room = 64 - max(lengths)
    assert min(lengths) < max(lengths)
    task.write(model, prompts, DecodingSettings(max_new_tokens=room))
    with pytest.raises(EtymonError, match=f"ask for at most {room} new tokens"):
        task.write(model, prompts, DecodingSettings(max_new_tokens=room + 1))
    (alone,) = task.write(model, prompts[2:], DecodingSettings(max_new_tokens=room + 1, min_new_tokens=room))
    assert alone


def test_a_feed_of_bundles_is_exact_from_any_position() -> None:
    task, _ = bound("t5")
    task.batch_tokens = 30
    examples: Any = task.encode(PAIRS)
    feed = Feed(task, examples, 7, slices=1, rows=1)
    position, seen = Position(), []
    for _ in range(5):
        (samples,), position = feed.addresses(position)
        seen.append(feed.slice(samples).targets)
    again = Feed(task, examples, 7, slices=1, rows=1)
    (samples,), _ = again.addresses(feed.addresses(Position())[1])
    assert torch.equal(again.slice(samples).targets, seen[1])


def test_smoothing_is_for_training_alone() -> None:
    plain, model = bound("t5")
    smooth = get_task("text2text", {"smoothing": 0.2}, get_family("t5"))
    smooth.bind(model, 40)
    assert losses(plain, model, 99) == losses(smooth, model, 99)  # type: ignore[arg-type]
    model.train()
    assert losses(plain, model, 99)[0] != losses(smooth, model, 99)[0]  # type: ignore[arg-type]


def test_families_that_cannot_write_are_refused_with_the_reason() -> None:
    for family in ("bert", "electra", "elmo"):
        with pytest.raises(EtymonError, match="cannot write a text"):
            get_task("text2text", {}, get_family(family)).fit(get_family(family))
    assert get_task("text2text", {}, get_family("bart")).fit(get_family("bart")).heads == {"vocabulary"}
    with pytest.raises(EtymonError, match=r"unknown key 'sorce' .*did you mean 'source'"):
        get_task("text2text", {"sorce": "de"}, get_family("t5"))
    with pytest.raises(EtymonError, match="there is no task 'text2txt': did you mean 'text2text'"):
        get_task("text2txt", {}, get_family("t5"))


def test_a_model_remembers_its_task() -> None:
    task, model = bound("t5", prefix="say: ")
    assert task_of(model) is None
    task.encode(PAIRS, learn=True)
    model.history = [{"task": task.describe()}, {"objective": "causal"}]
    again = task_of(model)
    assert isinstance(again, Text2Text)
    assert again.options == task.options and again.limits == task.limits
    assert task_of(model, {"prefix": ""}).options.prefix == ""  # type: ignore[union-attr]


# ------------------------------------------------------------ scores


def test_scores_are_the_libraries_own() -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    predictions, references = ["the cat sat on the mat", "a dog"], ["the cat sat on a mat", "a dog"]
    found = text_scores(predictions, references, ["bleu", "chrf", "exact"], resamples=50)
    assert found["bleu"].value == sacrebleu.corpus_bleu(predictions, [references]).score
    assert found["chrf"].value == sacrebleu.corpus_chrf(predictions, [references]).score
    assert found["exact"].value == 50.0
    assert all(score.low is None and score.rows == 2 for score in found.values()), "too few for an interval"
    many = text_scores(predictions * 10, references * 10, list(found), resamples=50)
    assert all(score.low <= score.value <= score.high for score in many.values())  # type: ignore[operator]
    assert "tok:13a" in found["bleu"].signature
    chinese = text_scores(["我爱你。"], ["我爱他。"], ["bleu"])["bleu"]
    assert "tok:zh" in chinese.signature and chinese.value > 0


def test_intervals_are_sacrebleus_and_stand_where_some_resamples_score_nothing() -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    rows = [("the cat sat on the mat", "the cat sat on a mat"), ("a dog", "a dog"), ("one", "two")] * 10
    predictions, references = [row[0] for row in rows], [row[1] for row in rows]
    found = text_scores(predictions, references, ["chrf"], resamples=50)["chrf"]
    theirs = sacrebleu.CHRF().corpus_score(predictions, [references], n_bootstrap=50)
    assert (found.low, found.high) == pytest.approx(
        (theirs._mean - theirs._ci, theirs._mean + theirs._ci), rel=1e-5
    )
    # One row of twenty is right: a third of the resamples leave it out, and score exactly 0.
    right = "these are the same words"
    nearly_nothing = [right, *["z"] * 19], [right, *["q"] * 19]
    rare = text_scores(*nearly_nothing, ["bleu", "chrf"], resamples=50)
    assert all(0.0 <= score.low < score.high for score in rare.values())  # type: ignore[operator]


def test_rouge() -> None:
    pytest.importorskip("rouge_score")
    found = text_scores(["the cats sat"], ["the cat sat down"], ["rouge1", "rougeL"])
    assert found["rouge1"].value == pytest.approx(100 * 2 * 0.75 / 1.75)


def test_rouge_of_other_letters() -> None:
    pytest.importorskip("rouge_score")
    for written, right, value in (
        ("Сегодня хорошая погода!", "сегодня плохая погода", 200 / 3),
        ("今天天气好。", "今天天气很好", 100 * 10 / 11),
        ("2024", "2024", 100),
        ("un café", "un cafe", 50),  # as the library has it
    ):
        assert text_scores([written], [right], ["rougeL"])["rougeL"].value == pytest.approx(value), written


def test_a_bootstrap_interval_narrows_with_the_rows() -> None:
    draw = np.random.default_rng(0)
    widths = []
    for rows in (20, 2000):
        score = mean_score(draw.random(rows).tolist(), 500)
        assert score.low is not None and score.high is not None
        widths.append(score.high - score.low)
    assert widths[1] < widths[0] / 5
    assert mean_score([1.0, 0.0], 0).low is None


def test_missing_libraries_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sacrebleu", None)
    with pytest.raises(EtymonError, match=r"pip install 'etymon\[evaluate\]'"):
        Text2Text(Text2TextOptions()).check_metrics(["bleu"])
    Text2Text(Text2TextOptions()).check_metrics(["exact", "loss"])


def test_a_separator_that_fills_a_row_leaves_nothing_of_the_source() -> None:
    (row,), cut = _cut([np.arange(20)], [4], tail=6)
    assert (row.tolist(), cut) == ([14, 15, 16, 17, 18, 19], 1)


def test_training_sees_no_more_of_a_source_than_a_decode_will() -> None:
    """Transformer-XL's new tokens see as far back as its memory is long, and so a row is no longer than that."""
    task: Any = get_task("text2text", {}, get_family("transformer-xl"))
    model = tiny.model("transformer-xl", task)
    task.bind(model, 400)
    assert model.body.reach == model.shape.memory == task.limits["length"]
    model.shape, model.body.stack.memory = replace(model.shape, memory=0), 0
    task.bind(model, 400)
    assert task.limits["length"] == 400
