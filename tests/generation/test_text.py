"""Texts in and out: streaming, stop strings, several prompts."""

from __future__ import annotations

import pytest
import torch

from etymon.errors import EtymonError
from etymon.generation import DecodingSettings, decoding, generate_texts
from etymon.generation.text import StopFilter, cut_at_stop


class Scripted:
    """Stands in for the model's side: every row says what its script says."""

    scripts: list[list[int]]

    def __init__(self, model, *, normalised):
        self.vocabulary = model.heads["vocabulary"].size

    def prefill(self, prompts, new_tokens, start):
        self.rows, self.at = list(range(len(prompts))), -1
        return self.step(None)

    def step(self, tokens):
        self.at += 1
        scores = torch.full((len(self.rows), self.vocabulary), -20.0)
        for place, row in enumerate(self.rows):
            scores[place, self.scripts[row][self.at]] = 0.0
        return scores.log_softmax(-1)

    def select(self, rows):
        self.rows = [self.rows[row] for row in rows.tolist()]

    def fork(self, copies):
        self.rows = [row for row in self.rows for _ in range(copies)]


@pytest.fixture
def say(monkeypatch, tiny):
    """Generates with a model that writes the given texts, and then for ever its end token."""

    def run(texts, family="gpt2", **options):
        model = tiny(family)
        end = model.token("end")
        Scripted.scripts = [model.tokenizer.encode(text).tolist() + [end] * 40 for text in texts]
        monkeypatch.setattr(decoding, "Stepper", Scripted)
        pieces: dict[int, list[str]] = {number: [] for number in range(len(texts))}
        found = generate_texts(
            model,
            ["x"] * len(texts),
            DecodingSettings(max_new_tokens=40, **options),
            lambda prompt, number, piece: pieces[prompt].append(piece) if number == 0 else None,
        )
        return found, pieces

    return run


TEXT = "The cat sat on the mat. 日本語 🙂 naïve façade."


@pytest.mark.parametrize("family", ["gpt2", "t5"])
@pytest.mark.parametrize("beams", [1, 2])
def test_streamed_pieces_add_up_to_the_text(say, family, beams):
    text = TEXT if family == "gpt2" else "The cat sat on the mat."
    found, pieces = say([text, "Paris is"], family, beams=beams)
    assert [one.text for one in found] == [text, "Paris is"]
    assert all(one.finished for one in found)
    assert ["".join(pieces[number]) for number in (0, 1)] == [text, "Paris is"]
    assert len(pieces[0]) > 3
    assert not any("\ufffd" in piece for piece in pieces[0])


def test_streaming_arbitrary_bytes(tiny):
    """A random model writes broken UTF-8: the stream still equals the text."""
    streamed: dict[tuple[int, int], str] = {}

    def hear(prompt: int, number: int, piece: str) -> None:
        assert piece
        streamed[prompt, number] = streamed.get((prompt, number), "") + piece

    settings = DecodingSettings(sample=True, temperature=3.0, max_new_tokens=30, returns=4, seed=2)
    found = generate_texts(tiny("gpt2"), ["The cat", "日本"], settings, hear, batch_size=1)
    texts = {(number // 4, number % 4): one.text for number, one in enumerate(found) if one.text}
    assert streamed == texts
    assert any("\ufffd" in text for text in texts.values())
    assert len(found) == 8
    together = generate_texts(tiny("gpt2"), ["The cat", "日本"], settings)
    assert [one.ids for one in found] == [one.ids for one in together]


@pytest.mark.parametrize("beams", [1, 2])
@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        ("t sa", "The ca"),  # from inside one token to inside the next
        (" sat", "The cat"),
        ("a", "The c"),  # inside a token
        ("日", "The cat sat on the mat. "),  # one character out of several byte tokens
        (("zebra", "mat", "the m"), "The cat sat on "),  # the first in the text, not in the list
        ("zebra", TEXT),
        ("façade.", TEXT.removesuffix("façade.")),
    ],
)
def test_stop_strings(say, stop, expected, beams):
    found, pieces = say([TEXT, "Paris is"], stop=stop, beams=beams)
    assert [one.text for one in found] == [
        expected,
        cut_at_stop("Paris is", (stop,) if isinstance(stop, str) else stop),
    ]
    assert "".join(pieces[0]) == expected
    assert found[0].finished
    if stop == "a":
        assert len(found[0].ids) < 5  # decoding itself stopped


def test_a_stop_string_that_does_not_come_is_let_through():
    gate = StopFilter(["abcd", "xyz"])
    assert [gate.feed(piece) for piece in ("1ab", "c", "xabc", "ab")] == ["1", "", "abcx", "abc"]
    assert gate.feed("", last=True) == "ab"
    assert [gate.feed(piece) for piece in ("xy", "zzz", "more")] == ["", "", ""]
    assert gate.stopped


def test_a_text_is_not_cut_by_the_prompt(say):
    found, _ = say(["The cat"], stop="x")
    assert (found[0].prompt, found[0].text) == ("x", "The cat")


@pytest.mark.parametrize("family", ["t5", "gpt2"])
def test_sources_end_as_the_family_frames_them(tiny, monkeypatch, family):
    """T5 reads `text </s>`, GPT-2 the bare prompt."""
    seen = []
    prefill = decoding.Stepper.prefill

    def spy(self, prompts, *rest):
        seen.extend(prompts)
        return prefill(self, prompts, *rest)

    monkeypatch.setattr(decoding.Stepper, "prefill", spy)
    model = tiny(family)
    generate_texts(model, ["The cat"], DecodingSettings(max_new_tokens=1))
    bare = model.tokenizer.encode("The cat").tolist()
    assert seen == [bare + [model.token("end")] if family == "t5" else bare]


def test_without_a_tokenizer(pair):
    _, model = pair("gpt2")
    with pytest.raises(EtymonError, match="no tokenizer"):
        generate_texts(model, ["x"])
