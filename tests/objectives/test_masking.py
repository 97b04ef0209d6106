"""Every masking scheme against its definition, by counting; static copies; packings as the model reads them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from etymon.families import get_family
from etymon.objectives import get_objective
from etymon.objectives.masked import Packing
from etymon.objectives.masking import SCHEMES, Masking
from etymon.sampling import noise, plans
from etymon.sampling.plans import key
from etymon.text.reading import Document
from etymon.text.store import Split, TokenStore
from etymon.text.store_building import build_store
from etymon.text.tokenizer import Tokenizer
from etymon.text.tokenizer_training import train_tokenizer
from tests import reconstruct, tiny

LENGTH = 48
DRAWS = 600


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    choice = get_family("bert").tokenizer
    return train_tokenizer(  # so few tokens that most words are of several pieces
        choice.kind, tiny.texts(), 120, specials=choice.specials, framing=get_family("bert").framing
    )


@pytest.fixture(scope="module")
def split(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Split:
    folder = tmp_path_factory.mktemp("masking") / "store"
    build_store([Document(text) for text in tiny.texts()], tokenizer, folder, validation=0.0)
    return TokenStore.open(folder).train


class Drawn:
    """Many draws of one scheme on one framed sample of `LENGTH` tokens, a document's end in its middle."""

    def __init__(
        self, name: str, tokenizer: Tokenizer, split: Split, density: float = 0.15, length: int = LENGTH
    ) -> None:
        self.masking = Masking(name, tokenizer, density, length)
        separator = tokenizer.id("separator")
        assert separator is not None
        middle = int(split.documents[1])
        framed = tokenizer.framing.frame(split.stream(middle - 20, middle - 20 + length - 2, separator))
        self.ids = framed.ids.astype(np.int64)
        self.special = framed.special | (self.ids == separator)
        assert self.special.sum() >= 3 and len(self.ids) == length
        rng = key(0, "draws", name)
        self.places, self.shown = zip(
            *(self.masking.draw(self.ids, self.special, split, rng) for _ in range(DRAWS)), strict=True
        )
        self.counts = np.array([len(places) for places in self.places])
        self.asked = np.concatenate(self.places)
        self.chosen = np.bincount(self.asked, minlength=length) / DRAWS
        """How often every position is asked for in a draw."""
        self.seen = np.concatenate(
            [shown[places] for shown, places in zip(self.shown, self.places, strict=True)]
        )

    def share(self, condition: np.ndarray) -> float:
        return float(condition.mean())


@pytest.mark.parametrize("name", SCHEMES)
def test_what_is_not_asked_for_is_shown_and_what_is_comes_in_order(
    name: str, tokenizer: Tokenizer, split: Split
) -> None:
    drawn = Drawn(name, tokenizer, split)
    for places, shown in zip(drawn.places, drawn.shown, strict=True):
        assert (np.diff(places) >= (0 if name == "electra" else 1)).all()
        assert np.array_equal(reconstruct.from_at(shown, places, drawn.ids[places]), drawn.ids)
    assert drawn.chosen[drawn.special].any() == (name == "roberta"), "only RoBERTa asks for special tokens"


@pytest.mark.parametrize("name", [name for name in SCHEMES if name != "electra"])
def test_eighty_ten_ten(name: str, tokenizer: Tokenizer, split: Split) -> None:
    drawn = Drawn(name, tokenizer, split)
    targets = drawn.ids[drawn.asked]
    first = drawn.masking.vocabulary[0]
    width = tokenizer.size - first
    # A random token may by chance be the mask or the right one.
    assert drawn.share(drawn.seen == tokenizer.id("mask")) == pytest.approx(0.8, abs=0.03)
    assert drawn.share(drawn.seen == targets) == pytest.approx(0.1 + 0.1 / width, abs=0.022)
    random = drawn.seen[(drawn.seen != tokenizer.id("mask")) & (drawn.seen != targets)]
    assert len(random) / len(targets) == pytest.approx(0.1, abs=0.022)
    assert random.max() < tokenizer.size and len(set(random.tolist())) > 0.9 * width
    assert (random.min() >= first) and first == (5 if name == "roberta" else 0)
    assert name == "roberta" or random.min() < 4, "BERT's random tokens may be special ones"


def test_bert_asks_for_a_rounded_share_of_any_text(tokenizer: Tokenizer, split: Split) -> None:
    for density in (0.15, 0.4):
        drawn = Drawn("bert", tokenizer, split, density)
        assert set(drawn.counts) == {round(density * LENGTH)}
        text = drawn.chosen[~drawn.special]
        expected = round(density * LENGTH) / len(text)
        assert np.abs(text - expected).max() < 4.5 * math.sqrt(expected / DRAWS)
    masking = Masking("bert", tokenizer, 0.15, LENGTH)
    places, _ = masking.draw(np.arange(3), np.array([True, False, True]), split, key(0))
    assert places.tolist() == [1], "at least one"


def test_roberta_asks_for_anything(tokenizer: Tokenizer, split: Split) -> None:
    drawn = Drawn("roberta", tokenizer, split)
    assert set(drawn.counts) == {7, 8}
    assert drawn.counts.mean() == pytest.approx(0.15 * LENGTH, abs=0.09)
    assert np.abs(drawn.chosen - 0.15).max() < 4.5 * math.sqrt(0.15 / DRAWS)


@pytest.mark.parametrize("name", ["whole-words", "ngram"])
def test_words_are_hidden_whole(name: str, tokenizer: Tokenizer, split: Split) -> None:
    drawn, plain = Drawn(name, tokenizer, split), Drawn("bert", tokenizer, split)
    text = ~drawn.special
    inside = (text & ~tokenizer.word_starts[drawn.ids])[1:] & text[:-1]  # pieces that go on with a word
    budget = noise.masked_count(LENGTH)

    def torn(places: np.ndarray) -> int:
        asked = np.isin(np.arange(LENGTH), places)
        return int((inside & (asked[1:] != asked[:-1])).sum())

    assert not any(map(torn, drawn.places)) and any(map(torn, plain.places))
    assert drawn.counts.max() == budget and drawn.counts.mean() > 0.85 * budget


CHINESE = np.array(list("天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往秋收冬藏闰余成岁律吕调阳云腾致雨露结为霜"))


@pytest.mark.parametrize(
    ("family", "objective", "masking"),
    [
        ("albert", "masked-sentence-order", "ngram"),
        ("roberta", "masked", "whole-words"),
        ("bart", "denoising", ""),
    ],
)
def test_scripts_without_spaces_are_hidden_as_much(family: str, objective: str, masking: str) -> None:
    rng = key(0, "chinese")
    texts = ["".join("".join(rng.choice(CHINESE, 16)) + "。" for _ in range(20)) for _ in range(12)]
    known = get_family(family)
    tokenizer = train_tokenizer(
        known.tokenizer.kind, texts, 400, specials=known.tokenizer.specials, framing=known.framing
    )
    own = get_objective(objective, tokenizer, 64, **({"masking": masking} if masking else {}))
    split = Split.of_texts(texts, tokenizer)
    examples: list[Any] = [own.prepare(split, row, key(*row.tolist())) for row in own.plan(split, 0, 0)]
    if masking:
        asked, wanted = [len(example.places) / len(example.ids) for example in examples], 0.15
    else:  # the words that are left
        left = [(example.ids != tokenizer.id("mask")).sum() for example in examples]
        asked = [1 - shown / len(example.targets) for shown, example in zip(left, examples, strict=True)]
        wanted = 0.28  # spans overlap now and then
    assert min(asked) > 0 and np.mean(asked) == pytest.approx(wanted, abs=0.05)


def test_n_grams_keep_words_together(tokenizer: Tokenizer, split: Split) -> None:
    def neighbours(name: str) -> float:
        """Of the words asked for, the share whose next word is asked for as well."""
        drawn = Drawn(name, tokenizer, split)
        starts = np.flatnonzero(~drawn.special & tokenizer.word_starts[drawn.ids])
        asked = np.array([np.isin(starts, places) for places in drawn.places])
        return float((asked[:, 1:] & asked[:, :-1]).sum() / asked.sum())

    assert neighbours("ngram") > neighbours("whole-words") + 0.15


def test_rare_tokens_are_asked_for_by_count_to_the_minus_0_7(tokenizer: Tokenizer, split: Split) -> None:
    counts = np.bincount(split.tokens, minlength=tokenizer.size)
    assert np.array_equal(split.token_counts, counts[: len(split.token_counts)])
    drawn = Drawn("rare", tokenizer, split)
    assert set(drawn.counts) == {math.ceil(0.15 * LENGTH)}
    once = Drawn("rare", tokenizer, split, density=1 / LENGTH)  # one token: chosen exactly by the weights
    weights = np.where(once.special, 0.0, np.maximum(counts, 1)[once.ids] ** -0.7)
    expected = weights / weights.sum()
    assert set(once.counts) == {1} and expected.max() > 3 * expected[~once.special].min()
    assert np.abs(once.chosen - expected).max() < 4.5 * math.sqrt(expected.max() / DRAWS)
    rare = expected > np.median(expected[~once.special])
    assert once.chosen[rare].sum() == pytest.approx(expected[rare].sum(), abs=0.08)


def test_electra_draws_with_replacement_and_shows_no_random_token(tokenizer: Tokenizer, split: Split) -> None:
    drawn = Drawn("electra", tokenizer, split)
    slots = int(0.155 * LENGTH)
    assert set(drawn.counts) == {min(slots, round(0.15 * LENGTH))} == {7}
    text = int((~drawn.special).sum())
    twice = np.mean([len(set(places.tolist())) < 7 for places in drawn.places])
    assert twice == pytest.approx(1 - math.prod(1 - i / text for i in range(7)), abs=0.08)
    assert np.abs(drawn.chosen[~drawn.special] - 7 / text).max() < 4.5 * math.sqrt(7 / text / DRAWS)
    once, masked = 0, 0
    for places, shown in zip(drawn.places, drawn.shown, strict=True):
        different, times = np.unique(places, return_counts=True)
        seen = shown[different[times == 1]]
        once += len(seen)
        masked += int((seen == tokenizer.id("mask")).sum())
        assert np.isin(shown[different], [tokenizer.id("mask")]).sum() + (
            shown[different] == drawn.ids[different]
        ).sum() == len(different)
    assert masked / once == pytest.approx(0.85, abs=0.025)
    short = Masking("electra", tokenizer, 0.15, 20)  # where the slots are fewer than the share
    places, _ = short.draw(np.arange(60), np.zeros(60, bool), split, key(0))
    assert len(places) == int(0.155 * 20) == 3
    none, _ = short.draw(np.arange(2), np.ones(2, bool), split, key(0))
    assert len(none) == 0


def test_a_place_that_comes_twice_counts_twice(tokenizer: Tokenizer, split: Split) -> None:
    objective = get_objective("masked", tokenizer, LENGTH, masking="electra", density=0.5)
    plan = objective.plan(split, 0, 0)
    prepared = objective.collate([objective.prepare(split, row, key(0, n)) for n, row in enumerate(plan[:4])])
    assert prepared.counts["masked"] == len(prepared.at) > len(set(prepared.at.tolist()))


# ------------------------------------------------------------ static copies


def prepared_epoch(objective: Any, split: Split, epoch: int, seed: int = 0) -> dict[tuple[int, ...], bytes]:
    """By where its text lies, what every sample of an epoch shows."""
    found = {}
    for number, row in enumerate(objective.plan(split, seed, epoch)):
        example = objective.prepare(split, row, key(seed, "sample", epoch, number))
        found[tuple(row.tolist())] = example.ids.tobytes() + example.places.tobytes()
    return found


@pytest.mark.parametrize("name", ["masked", "masked-next-sentence", "masked-sentence-order"])
def test_static_copies_repeat_and_only_the_order_differs(
    name: str, tokenizer: Tokenizer, split: Split
) -> None:
    objective = get_objective(name, tokenizer, 24, copies=2)
    epochs = [prepared_epoch(objective, split, epoch) for epoch in range(5)]
    assert epochs[0] == epochs[2] == epochs[4] and epochs[1] == epochs[3]
    assert list(epochs[0]) != list(epochs[2]), "another order"
    alike = set(epochs[0].values()) & set(epochs[1].values())
    assert len(alike) < 0.05 * len(epochs[0]), "another copy has other masks"
    assert epochs[0] != prepared_epoch(objective, split, 0, seed=1)
    judged = objective.plan(split, 0, 0, shuffle=False)
    assert np.array_equal(judged, objective.plan(split, 0, 2, shuffle=False)), (
        "validation is the same every time"
    )
    objective.prepare(split, judged[0], key(0))


def test_dynamic_masks_differ_between_epochs_and_repeat(tokenizer: Tokenizer, split: Split) -> None:
    objective = get_objective("masked", tokenizer, 24, packing="full-sentences")  # the same spans every epoch
    first, again, second = (prepared_epoch(objective, split, epoch) for epoch in (0, 0, 1))
    assert first == again and first.keys() == second.keys()
    assert sum(first[row] == second[row] for row in first) < 0.05 * len(first)


# ------------------------------------------------------------ packings as the model reads them


@pytest.mark.parametrize("name", ["full-sentences", "doc-sentences"])
def test_sentences_are_framed_whole(name: str, tokenizer: Tokenizer, split: Split) -> None:
    objective = get_objective("masked", tokenizer, 32, packing=name)
    first, separator = tokenizer.id("class"), tokenizer.id("separator")
    text, borders = [], 0
    for row in objective.plan(split, 0, 0, shuffle=False):
        example = objective.prepare(split, row, key(0, int(row[0])))
        original = reconstruct.from_at(example.ids, example.places, example.targets)
        assert len(original) <= 32 and (original[0], original[-1]) == (first, separator)
        inner = original[1:-1]
        borders += int((inner == separator).sum())
        text += inner[inner != separator].tolist()
        assert not example.segments.any()
    assert text == split.tokens.tolist()
    assert (borders > 0) == (name == "full-sentences")


def test_segments_are_framed_as_pairs(tokenizer: Tokenizer, split: Split) -> None:
    objective = get_objective("masked", tokenizer, 32, masking="electra", packing="segments")
    separator, single = tokenizer.id("separator"), 0
    plan = objective.plan(split, 0, 0)
    assert np.array_equal(plan, plans.segments(split, 32, tokenizer.framing, 0, 0))
    for row in plan:
        example = objective.prepare(split, row, key(0, int(row[0])))
        original = reconstruct.from_at(example.ids, example.places, example.targets)
        a, b = split.tokens[row[0] : row[1]].tolist(), split.tokens[row[2] : row[3]].tolist()
        assert original.tolist() == [tokenizer.id("class"), *a, separator, *([*b, separator] if b else [])]
        assert example.segments.tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1 if b else 0)
        single += not b
    assert 0 < single < len(plan) / 2


def test_the_page_names_them_all() -> None:
    page = (Path(__file__).parents[2] / "docs" / "objectives.md").read_text(encoding="utf-8")
    for name in (*SCHEMES, *get_args(Packing)):
        assert f"\n| `{name}` | " in page, name
