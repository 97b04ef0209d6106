"""Language modelling on rows: what an objective over the same text would see and lose, and likelihoods of single rows."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from etymon.errors import EtymonError
from etymon.families import get_family
from etymon.generation.likelihood import score_texts
from etymon.objectives import get_objective
from etymon.objectives.mixture import MixedSplit, RateMixture
from etymon.sampling.examples import unpack_bundle
from etymon.sampling.plans import key
from etymon.tables.table import read_table
from etymon.tasks import get_task, task_for
from etymon.tasks.language_model import LanguageModel
from etymon.tasks.task import value_to_minimise
from etymon.text.store import Split
from etymon.training.feeding import Feed, Position, validation_slices
from etymon.training.unit import TrainingUnit, evaluate
from tests import tiny
from tests.reconstruct import sentence_spans

TEXTS = [*(text[:90] for text in tiny.texts(12, seed=5)), "Größer war der Fluß. Er fror."]
TABLE = read_table([{"tweet": text} for text in TEXTS])
OBJECTIVES = {
    "gpt1": "causal", "gpt2": "causal", "gpt3": "causal", "gptj": "causal", "transformer-xl": "causal", "bert": "masked",
    "roberta": "masked", "albert": "masked", "distilbert": "masked", "electra": "masked", "t5": "span-corruption",
    "bart": "denoising", "transformer": "denoising", "rnn": "denoising",
}  # fmt: skip


def bound(family: str, length: int = 24, **options: Any) -> tuple[LanguageModel, Any]:
    task = get_task("language-model", {"text": "tweet", **options}, get_family(family))
    assert isinstance(task, LanguageModel)
    model = tiny.model(family, task.fit(get_family(family)).heads).eval()
    task.bind(model, length)
    return task, model


@pytest.mark.parametrize("family", ["gpt2", "bert", "t5", "gpt1"])
def test_texts_as_a_split_are_those_of_a_store(family: str, tmp_path: Path) -> None:
    tokenizer = tiny.tokenizer(family)
    split = Split.of_texts(TEXTS, tokenizer)
    store = tiny.store(family, tmp_path / "store", TEXTS)
    stored = store.train if len(store.train) > 1 else store.validation
    assert len(split) == len(TEXTS)
    for number, text in enumerate(TEXTS):
        assert split.document(number).tolist() == tokenizer.encode(text).tolist()
        assert (split.bytes[number], split.words[number]) == (len(text.encode()), len(text.split()))
    assert split.sizes.tolist() == [len(tokenizer.encode(text)) for text in TEXTS]
    # A few documents are a part of both, wherever they are: their sentences begin at the same tokens.
    own = {tuple(split.document(n).tolist()): n for n in range(len(split))}
    found = [(own[tuple(stored.document(n).tolist())], n) for n in range(len(stored) - 1)]
    assert found
    for mine, theirs in found:
        spans = [[b - a for a, b in sentence_spans(each, n)] for each, n in ((split, mine), (stored, theirs))]
        assert spans[0] == spans[1] and len(spans[0]) > 1
    again = pickle.loads(pickle.dumps(split))
    assert np.array_equal(again.tokens, split.tokens) and np.array_equal(again.words, split.words)


@pytest.mark.parametrize("family", OBJECTIVES)
@torch.no_grad()
def test_every_family_loses_what_its_objective_loses(family: str) -> None:
    task, model = bound(family)
    assert task.objective.name == OBJECTIVES[family] and set(model.heads) == task.heads == {"vocabulary"}
    task.batch_tokens = 60
    split = task.encode(TABLE)
    unit, plan = TrainingUnit(model, task), task.plan(split, 3, 1)
    rows = task.objective.plan(split, 3, 1)
    assert len(plan) == -(-len(rows) // 2), "two samples of 24 tokens a bundle"
    for number, row in enumerate(plan):
        own = rows[2 * number : 2 * number + 2]
        rng = key(number)
        expected = task.objective.collate([task.objective.prepare(split, each, rng) for each in own])
        prepared = task.collate([task.prepare(split, row, key(number))])
        assert prepared.counts == expected.counts and prepared.tokens == expected.tokens
        for name, term in task.objective.loss(unit, expected).items():
            assert torch.equal(unit(prepared)[name].sum, term.sum)
    task.batch_rows = 3
    assert len(task.plan(split, 3, 1)) == -(-len(rows) // 3)


def test_validation_tells_bits_per_byte() -> None:
    task, model = bound("gpt2")
    task.batch_tokens = 50
    split = task.encode(TABLE)
    figures = evaluate(TrainingUnit(model, task), validation_slices(task, split, 0, rows=1))
    targets = int(split.sizes.sum()) + len(TEXTS)  # with the end of each
    bits = figures["loss"] * targets / math.log(2)
    assert figures["bits_per_byte"] == pytest.approx(bits / sum(len(text.encode()) for text in TEXTS))
    assert value_to_minimise("loss")(figures) == figures["bits_per_byte"]
    assert value_to_minimise("loss")({"bits_per_target": 3.0}) == 3.0
    assert (
        value_to_minimise("bits_per_byte")({"bits_per_byte": 2.0})
        == value_to_minimise("part/mse")({"part/mse": 2.0})
        == 2.0
    )
    assert value_to_minimise("bleu")({"bleu": 2.0}) == -2.0


def test_predictions_are_those_of_score() -> None:
    for family in ("gpt2", "transformer-xl", "bert"):
        task, model = bound(family)
        few = TABLE.at([3, 12])
        found = task.predict(model, few)
        assert found == score_texts(model, [TEXTS[3], TEXTS[12]])
        scores = task.score(found, few, ["loss"] if family == "bert" else ["loss", *task.metrics], 200)
        bits = -sum(one.log_likelihood for one in found) / math.log(2)
        assert scores["loss"].falls
        assert scores["loss"].value == pytest.approx(bits / sum(one.tokens for one in found))
        record = task.record(found[0])
        assert record["prediction"] == found[0].log_likelihood
        if family != "bert":
            score = scores["bits_per_byte"]
            assert score.value == pytest.approx(bits / sum(len(TEXTS[n].encode()) for n in (3, 12)))
            assert scores["bits_per_character"].value > score.value and scores["bits_per_character"].falls
            each = sorted(one.bits_per_byte or 0.0 for one in found)
            assert score.low is None and score.falls and score.rows == 2
            many = task.score(found * 10, few, ["bits_per_byte"], 200)["bits_per_byte"]
            assert many.low is not None and many.high is not None
            assert each[0] < many.low < score.value < many.high < each[1]
            assert record["bits_per_byte"] == found[0].bits_per_byte
            assert "bits per byte" in task.format_row(few, 0, found[0])
        else:
            assert record["kind"] == "pseudo-likelihood" and "bits_per_byte" not in record


def test_what_a_family_cannot_tell_is_not_asked() -> None:
    for family in ("bert", "t5"):
        task, model = bound(family)
        assert task.default_metrics == ("loss",)
        task.check_metrics(["loss"])
        with pytest.raises(EtymonError, match="say --metric loss"):
            task.check_metrics(["bits_per_byte"])
    with pytest.raises(EtymonError, match="T5 tells how likely a target is given a source"):
        task.predict(model, TABLE)
    assert bound("gpt2")[0].default_metrics == ("bits_per_byte", "bits_per_character")


def test_misfits_are_refused() -> None:
    for family in ("elmo", "xlnet"):
        with pytest.raises(EtymonError, match=rf"etymon pretrain {family} --from MODEL --data TEXT goes on"):
            get_task("language-model", {}, get_family(family)).fit(get_family(family))
    for family, objective in (
        ("transformer-xl", "recurrent"), ("electra", "replaced"), ("distilbert", "distilled-masked"), ("xlnet", "permutation"),
    ):  # fmt: skip
        known = get_family(family)
        with pytest.raises(EtymonError, match=f"'{objective}' cannot be learnt from rows"):
            get_task("language-model", {"objective": objective}, known).fit(known)
    with pytest.raises(EtymonError, match="'causal' needs a model that is causal"):
        bound("bert", objective="causal")
    task, _ = bound("bert", objective="masked-next-sentence")
    assert task.heads == {"vocabulary", "next_sentence"} and task.objective.name == "masked-next-sentence"
    task, model = bound("gpt2", objective="prefix")
    task.bind_for_training(model, 24, frozen=False)
    assert model.reads_prefix


def test_rows_that_cannot_be_used() -> None:
    task, _ = bound("bert")
    with pytest.raises(EtymonError, match="row 2: column 'tweet' has no tokens"):
        task.encode(read_table([{"tweet": "The river."}, {"tweet": "\x01"}]))
    with pytest.raises(EtymonError, match="row 1: no column 'tweet'; did you mean 'tweets'"):
        task.texts(read_table([{"tweets": "a"}]))
    short, _ = bound("bart")
    with pytest.raises(EtymonError, match="too short for a single sample"):
        short.encode(read_table([{"tweet": "."}]))


def test_families_mask_as_they_were_trained() -> None:
    objective: Any = bound("roberta")[0].objective
    assert (objective.masking.name, objective.options.packing) == ("roberta", "full-sentences")
    objective = bound("albert")[0].objective
    assert (objective.masking.name, objective.options.packing) == ("ngram", "stream")


def test_a_feed_goes_on_from_any_position() -> None:
    task, _ = bound("bert")
    task.batch_tokens = 50
    split = task.encode(TABLE)
    feed = Feed(task, split, 7, slices=1, rows=1)
    position, seen = Position(), []
    for _ in range(feed.samples + 2):
        (samples,), position = feed.addresses(position)
        seen.append(feed.slice(samples))
    again = pickle.loads(pickle.dumps(Feed(task, split, 7, slices=1, rows=1)))  # as for a worker
    (samples,), _ = again.addresses(Position(1, 1))
    assert torch.equal(again.slice(samples).batch.ids, seen[feed.samples + 1].batch.ids)  # type: ignore[attr-defined]
    assert feed.words_per_step == pytest.approx(sum(len(text.split()) for text in TEXTS) / feed.samples)


@torch.no_grad()
def test_it_can_be_a_part_of_a_mixture(tmp_path: Path) -> None:
    task, model = bound("gpt2")
    text = get_objective("causal", tiny.tokenizer("gpt2"), 24)
    split = MixedSplit({"rows": task.encode(TABLE), "text": tiny.store("gpt2", tmp_path / "store").train})
    mixture = RateMixture(
        {"rows": task, "text": text},
        {"text": 24},
        {"rows": 0.5, "text": 0.5},
        batch_tokens=60,
        slices=1,
    )
    unit, starts = TrainingUnit(model, mixture), []
    own = {tuple(row[:6].tolist()) for epoch in range(20) for row in task.plan(split.parts["rows"], 0, epoch)}
    for row in mixture.plan(split, 0, 0):
        name, examples = mixture.prepare(split, row, key(0))
        terms = unit(mixture.collate([(name, examples)]))
        if name == "rows":
            assert tuple(unpack_bundle(row[1:])[0].tolist()) in own
            starts += unpack_bundle(unpack_bundle(row[1:])[0])[:, 0].tolist()
            alone = task.loss(unit, task.collate(examples))
            assert torch.equal(terms["rows/loss"].sum, alone["loss"].sum)
    assert -1 in starts, "the first window begins before the text, and -1 is also what fills a plan"


def test_a_published_model_is_asked_by_the_name_of_the_task() -> None:
    for heads in ({"vocabulary"}, {"vocabulary", "choice"}):
        model = tiny.model("gpt1", frozenset(heads))
        task = task_for(model, "language-model", {"text": "tweet"})
        assert isinstance(task, LanguageModel) and len(task.predict(model, TABLE.at([1]))) == 1
