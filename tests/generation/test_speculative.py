"""A draft that runs ahead changes the speed and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from etymon.errors import EtymonError
from etymon.families.model import Model
from etymon.generation import DecodingSettings, decode, generate_texts
from etymon.generation.processors import warp
from etymon.generation.stepper import Stepper
from etymon.nn.batch import Batch
from etymon.nn.vocabulary import Context
from tests.decoders import WORDS, rows_of, tiny_decoder
from tests.generation.conftest import remembering, tiny_model
from tests.generation.reference import fit
from tests.generation.test_looking_back import looking_back


def shaken(model: Model, by: float, seed: int = 5) -> Model:
    """Nearly the same model: a draft that is right now and then."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += by * torch.randn(parameter.shape, generator=generator)
    return model


PROMPTS = rows_of([7, 1, 4, 12, 3, 2, 9, 5], seed=3)


def ids(rows: list[list[Any]]) -> list[list[list[int]]]:
    return [[one.ids for one in row] for row in rows]


@pytest.mark.parametrize("drafted", [1, 3, 5])
@pytest.mark.parametrize("family", ["gpt2", "gpt3", "gptj", "t5"])
def test_greedy_texts_are_those_of_the_model(family: str, drafted: int, tiny: Callable[[str], Model]) -> None:
    model = tiny(family)
    settings = DecodingSettings(max_new_tokens=14, draft_tokens=drafted, log_probs=True)
    plain = decode(model, PROMPTS, settings)
    for draft in (model, shaken(tiny_model(family), 0.05), tiny_model(family, seed=8)):
        found = decode(model, PROMPTS, settings, draft=draft)
        assert ids(found) == ids(plain)
        for row, expected in zip(found, plain, strict=True):
            assert row[0].finished == expected[0].finished
            assert row[0].token_log_probs == pytest.approx(expected[0].token_log_probs, abs=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"no_repeat_ngram": 2},
        {"repetition_penalty": 1.6},
        {"repetition_penalty": 0.7, "no_repeat_ngram": 1},
        {"min_new_tokens": 9},
    ],
    ids=str,
)
def test_rules_see_what_they_would_see(options: dict[str, Any]) -> None:
    model = tiny_decoder("gpt2")
    probe = decode(model, PROMPTS, DecodingSettings(max_new_tokens=8, end_ids=(1,)))
    settings = DecodingSettings(
        max_new_tokens=12, end_ids=(probe[0][0].ids[3], probe[3][0].ids[4]), **options
    )
    plain = decode(model, PROMPTS, settings)
    for by in (0.0, 0.05, 1.0):
        assert ids(decode(model, PROMPTS, settings, draft=shaken(tiny_decoder("gpt2"), by))) == ids(plain)


@pytest.mark.parametrize(("prefix", "pointer"), [(True, 0), (False, 4), (True, 30)])
def test_models_that_look_back(prefix: bool, pointer: int) -> None:
    model, settings = looking_back("gpt2", prefix, pointer), DecodingSettings(max_new_tokens=12)
    plain = decode(model, PROMPTS, settings)
    for by in (0.0, 0.05, 0.5):
        draft = shaken(looking_back("gpt2", prefix, pointer), by)
        assert ids(decode(model, PROMPTS, settings, draft=draft)) == ids(plain)


def test_texts_far_longer_than_a_memory() -> None:
    """What is read at once sees no more than what is read token by token."""
    model, settings = remembering(16), DecodingSettings(max_new_tokens=60, end_ids=(1,), log_probs=True)
    plain = decode(model, PROMPTS, settings)
    for draft in (remembering(16), shaken(remembering(16), 0.05)):
        found = decode(model, PROMPTS, settings, draft=draft)
        assert ids(found) == ids(plain)
        for row, expected in zip(found, plain, strict=True):
            assert row[0].token_log_probs == pytest.approx(expected[0].token_log_probs, abs=1e-4)


def test_up_to_the_last_position() -> None:
    """Rows that are nearly full draft beyond their end, and nothing comes of it."""
    model = tiny_decoder("gpt2")  # 24 positions
    prompts = rows_of([23, 20, 10, 1])
    settings = DecodingSettings(end_ids=(WORDS - 1,), draft_tokens=6)
    found = decode(model, prompts, settings, draft=shaken(tiny_decoder("gpt2"), 0.05))
    assert ids(found) == ids(decode(model, prompts, settings))
    assert [len(row[0].ids) for row in found][:2] == [1, 4]


def test_a_good_draft_saves_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    extend = Stepper.extend

    def spy(self: Stepper, rows: Any) -> None:
        if self.model is model:
            calls.append(len(rows[0]))
        extend(self, rows)

    monkeypatch.setattr(Stepper, "extend", spy)
    model = tiny_decoder("gpt2")
    settings = DecodingSettings(max_new_tokens=16, min_new_tokens=16, draft_tokens=4)
    decode(model, PROMPTS[:2], settings, draft=tiny_decoder("gpt2"))
    assert calls == [5] * 3  # one token, and then five a call
    calls.clear()
    sampled = replace(settings, sample=True, returns=2)
    decode(model, PROMPTS[:2], sampled, draft=tiny_decoder("gpt2"))
    assert calls == [5] * 3  # where p is q, every draw stays


SAMPLING = DecodingSettings(
    sample=True, max_new_tokens=3, temperature=1.4, top_k=12, top_p=0.97, draft_tokens=2, end_ids=(WORDS - 1,)
)


@pytest.mark.parametrize("by", [0.1, 0.4])
def test_samples_have_the_model_s_distribution(by: float) -> None:
    """First tokens, pairs and third tokens against products of exact softmaxes."""
    model, prompt, draws = tiny_decoder("gpt2"), PROMPTS[2], 6000
    draft = shaken(tiny_decoder("gpt2"), by)

    @torch.inference_mode()
    def exact(texts: list[list[int]]) -> np.ndarray:
        batch = Batch.of([prompt + text for text in texts])
        head: Any = model.heads["vocabulary"]
        logits = head.logits(model.hidden(batch)[0], batch.layout.last, Context(batch))
        return warp(logits, SAMPLING).double().softmax(-1).numpy()

    first = exact([[]])[0]
    pairs = first[:, None] * exact([[one] for one in range(WORDS)])
    pairs[WORDS - 1] = 0  # an end is followed by nothing
    triples = pairs[..., None] * exact([[one, two] for one in range(WORDS) for two in range(WORDS)]).reshape(
        WORDS, WORDS, WORDS
    )
    triples[:, WORDS - 1] = 0
    counts: list[Any] = [np.zeros([WORDS] * size) for size in (1, 2, 3)]
    for one in decode(model, [prompt], replace(SAMPLING, returns=draws), draft=draft)[0]:
        for size in range(len(one.ids)):
            counts[size][tuple(one.ids[: size + 1])] += 1
    assert fit(counts[0], first) > 1e-3
    assert fit(counts[1], pairs) > 1e-3
    assert fit(counts[2].sum((0, 1)), triples.sum((0, 1))) > 1e-3
    assert fit(counts[2].sum(0), triples.sum(0)) > 1e-3


def test_a_row_s_samples_do_not_depend_on_the_batch() -> None:
    model, draft = tiny_decoder("gpt2"), shaken(tiny_decoder("gpt2"), 0.2)
    settings = replace(SAMPLING, max_new_tokens=9, returns=2, seed=4)
    together = decode(model, PROMPTS, settings, draft=draft)
    alone = decode(model, [PROMPTS[4]], settings, draft=draft, keys=[4])
    assert ids(alone)[0] == ids(together)[4]
    assert len({tuple(one) for row in ids(together) for one in row}) > 10


def test_stop_strings_and_streaming(tiny: Callable[[str], Model]) -> None:
    model, pieces = tiny("gpt2"), []
    plain = generate_texts(model, ["The cat"], DecodingSettings(max_new_tokens=20))[0].text
    settings = DecodingSettings(max_new_tokens=20, stop=plain[4:6])
    found = generate_texts(model, ["The cat"], settings, lambda *one: pieces.append(one[2]), draft=model)
    assert found[0].text == plain[: plain.index(plain[4:6])] == "".join(pieces)
    assert found[0].finished


def test_another_number_of_spare_vectors(tiny: Callable[[str], Model]) -> None:
    from tests.generation import conftest

    model = tiny("gpt2")
    for spare in (0, 20):
        shape = replace(model.shape, vocabulary=model.tokenizer.size + spare)  # type: ignore[union-attr]
        draft = Model(model.family, shape, {"vocabulary"}).initialise(1)
        draft.tokenizer = conftest.tiny_tokenizer("gpt2")
        settings = DecodingSettings(max_new_tokens=8)
        assert ids(decode(model, PROMPTS, settings, draft=draft)) == ids(decode(model, PROMPTS, settings))


def test_refusals(tiny: Callable[[str], Model]) -> None:
    model = tiny("gpt2")
    other = tiny_decoder("gpt2", vocabulary=model.shape.vocabulary)
    other.tokenizer = tiny("gpt1").tokenizer
    with pytest.raises(EtymonError, match="another tokenizer"):
        decode(model, [[5]], draft=other)
    with pytest.raises(EtymonError, match="another tokenizer"):
        decode(tiny_decoder("gpt2"), [[5]], draft=tiny_decoder("gpt2", vocabulary=30))
    short = tiny_decoder("gpt2", vocabulary=model.shape.vocabulary, positions=8)
    short.tokenizer = model.tokenizer
    with pytest.raises(EtymonError, match="grow to 21 tokens, but the draft model has 8 positions"):
        decode(model, [[5]], DecodingSettings(max_new_tokens=20), draft=short)
    with pytest.raises(EtymonError, match="fills blanks"):
        decode(model, [[5]], draft=tiny("bert"))
    for options, name in (
        ({"beams": 2}, "beam"),
        ({"window": True}, "window"),
        ({"choices": ("a", "b")}, "choices"),
        ({"penalty_alpha": 0.6, "top_k": 4}, "penalty_alpha"),
    ):
        with pytest.raises(EtymonError, match=name) as caught:
            decode(model, [[5]], DecodingSettings(**options), draft=model)  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)
