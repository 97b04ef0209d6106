"""Loss by context length: exact contexts, the same text for every model, and RECL by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import etymon
from etymon.errors import EtymonError
from etymon.families.saving import save
from etymon.lab import context as module
from etymon.lab.context import choose, context_lengths, effective_length, measure
from etymon.nn.batch import Batch
from etymon.text.reading import Document
from etymon.text.tokenizer_training import train_tokenizer
from tests import tiny
from tests.carrying import carrying

TEXT = " ".join(tiny.texts(8))
SPECIALS = {"unknown": "<unknown>", "end": "<end>"}


class Told:
    """A model whose loss from c tokens of context is known: `losses[c]` nats for every token."""

    capabilities, encoder_decoder, training = frozenset({"causal"}), False, False
    device, family = torch.device("cpu"), SimpleNamespace(title="Told", name="told")

    def __init__(self, tokenizer: Any, losses: Callable[[int], float], window: int | None = None) -> None:
        self.tokenizer, self.losses, self.window = tokenizer, losses, window
        self.shape = SimpleNamespace(vocabulary=tokenizer.size)
        self.heads = {"vocabulary": self}
        self.rows: list[list[int]] = []
        self.asked: list[int] = []

    def eval(self) -> None: ...
    def train(self, mode: bool) -> None: ...
    def require_vocabulary(self, doing: str) -> None: ...

    def hidden(self, batch: Batch, state: Any = None) -> tuple[torch.Tensor, Any]:
        self.rows += [row.tolist() for row in batch.ids.split(list(batch.layout.lengths))]
        return torch.zeros(batch.layout.tokens, 1), None

    def target_log_probs(self, hidden: Any, at: torch.Tensor, targets: torch.Tensor, context: Any) -> Any:
        assert at.tolist() == (np.cumsum(context.batch.layout.lengths) - 1).tolist()
        self.asked += targets.tolist()
        return -torch.tensor([self.losses(length) for length in context.batch.layout.lengths])


@pytest.fixture(scope="module")
def characters() -> Any:
    return train_tokenizer("character", [TEXT], 100, specials=SPECIALS)


@pytest.fixture(scope="module")
def pieces() -> Any:
    return train_tokenizer("byte-bpe", [TEXT], 320, specials=SPECIALS)


def told(models: list[Any], lengths: list[int], text: str = TEXT, **options: Any) -> Any:
    return measure(models, [f"m{n}" for n in range(len(models))], [Document(text)], lengths, **options)


def test_lengths() -> None:
    assert context_lengths(8) == [1, 2, 4, 8] and context_lengths(11) == [1, 2, 4, 8, 11]
    assert context_lengths(300, 100) == [100, 200, 300]
    for longest, step in ((0, None), (5, 6), (5, 0)):
        with pytest.raises(EtymonError, match="cannot be"):
            context_lengths(longest, step)


def test_a_known_loss_is_found(characters: Any) -> None:
    """One token a target and one byte a token: 2 ** -c nats are 2 ** -c / ln 2 bits a byte."""
    found = told([Told(characters, lambda c: 2.0**-c)], [1, 2, 4], targets=50)
    (model,) = found.models
    assert (found.targets, found.bytes, found.same_tokenizer) == (50, 50, True)
    assert model.bits_per_byte == pytest.approx([2.0**-c / math.log(2) for c in (1, 2, 4)])
    assert model.margins == pytest.approx([0, 0, 0], abs=1e-9) and model.bytes_a_token == 1


def test_every_token_has_exactly_its_context(pieces: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_TOKENS", 20)
    model = Told(pieces, lambda c: 1.0)
    told([model], [1, 4], targets=9)
    ids = pieces.encode(TEXT).tolist()
    once = model.asked[:9]
    assert model.asked == once * 2, "the same targets for every length"
    for row, target in zip(model.rows, model.asked, strict=True):
        assert any(ids[at - len(row) : at] == row and ids[at] == target for at in range(len(ids)))
    assert sorted({len(row) for row in model.rows}) == [1, 4]


def test_different_tokenizers_predict_the_same_text(characters: Any, pieces: Any) -> None:
    chosen = choose([Document(TEXT)], [characters, pieces], [5, 3], 30, same=False)
    for size, one, two in zip(chosen.sizes, *chosen.spans, strict=True):
        spelled = [
            tokenizer.decode(texts[text][first:stop])
            for tokenizer, texts, (text, first, stop) in zip(
                (characters, pieces), chosen.texts, (one, two), strict=True
            )
        ]
        # The space between two words may stand before the one or behind the other.
        assert spelled[0].strip() == spelled[1].strip() != "" and size == one[2] - one[1]
        assert one[1] >= 5 and two[1] >= 3
    assert len(set(chosen.spans[0])) == 30


def test_characters_of_several_tokens_stay_together() -> None:
    text = "naïve 日本 façade — soup " * 9
    tokenizer = train_tokenizer("byte", ["x"], 300, specials=SPECIALS)
    chosen = choose([Document(text)], [tokenizer], [2], 1000, same=True)
    assert set(chosen.sizes) == {1, 2, 3}
    assert [stop - first for _, first, stop in chosen.spans[0]] == chosen.sizes


def test_a_model_with_a_shorter_window_is_measured_up_to_it(characters: Any) -> None:
    models = [Told(characters, lambda c: 8.0 / c), Told(characters, lambda c: 4.0 / c, window=2)]
    found = told(models, [1, 2, 4, 8], targets=10)
    assert found.models[1].lengths == [1, 2] and len(found.models[0].bits_per_byte) == 4
    assert found.models[1].effective[1.0] == 2 and not found.models[1].gaining[1.0]
    with pytest.raises(EtymonError, match="reads 2 tokens, fewer than any context"):
        told([models[1]], [4, 8])


def test_effective_length_by_hand() -> None:
    # Two models, two targets, contexts of 10, 20 and 30 tokens.
    one = np.array([[4.0, 1.0], [3.0, 1.0], [2.0, 1.0]])
    two = np.array([[3.0, 2.0], [3.0, 2.0], [2.995, 2.0]])
    lengths = [10, 20, 30]
    # From 10 on the baseline is (3, 1). The first model has 3 and 1 at 20: no gain over it.
    assert effective_length([one, two], 0, lengths, 1.0) == (10, False)
    # Alone, its baseline at 10 is (4, 1): at 20, (3 + 1) / 2 against 2.5 nats; at 30, 1.5 against 2. It gains to the end.
    assert effective_length([one], 0, lengths, 1.0) == (30, True)
    assert effective_length([two], 0, lengths, 1.0) == (10, False)
    # On the harder half alone: the first gains nothing from 10 to 20 (3 against 3), whoever it is compared with.
    assert effective_length([one, two], 0, lengths, 0.5) == (10, False)
    # A gain of exactly 1% of the perplexity is one.
    slow = np.array([[1.0], [1.0 + math.log(0.99) - 1e-9], [1.0 + math.log(0.99) - 1e-3]])
    assert effective_length([slow], 0, lengths, 0.1) == (20, False)
    # What does not lower the best of the group does not count, nor does a loss above it spoil the mean.
    worse = np.array([[2.0, 2.0], [1.0, 9.0], [1.0, 9.0]])
    assert effective_length([worse], 0, lengths, 1.0) == (20, False)


def test_a_real_decoder(tmp_path: Path) -> None:
    objective = tiny.objective("gpt2", "causal")
    model = tiny.model("gpt2", objective).eval()
    found = measure([model], ["gpt2"], [Document(TEXT)], [1, 3], targets=4)
    ids = tiny.tokenizer("gpt2").encode(TEXT)
    chosen = choose([Document(TEXT)], [tiny.tokenizer("gpt2")], [3], 4, same=True)
    for number, length in enumerate((1, 3)):
        total = 0.0
        for _, first, stop in chosen.spans[0]:
            for at in range(first, stop):
                with torch.no_grad():
                    hidden, _ = model.hidden(Batch.of([ids[at - length : at]]))
                    total -= float(
                        model.heads["vocabulary"].log_probs(hidden, torch.tensor([length - 1]))[
                            0, int(ids[at])
                        ]
                    )
        assert found.models[0].bits_per_byte[number] == pytest.approx(
            total / math.log(2) / sum(chosen.sizes), rel=1e-5
        )


def test_a_model_that_remembers_reads_segments() -> None:
    with carrying():
        model = tiny.model("gpt2", tiny.objective("gpt2", "causal")).eval()
        whole, cut, none = (
            measure([model], [""], [Document(TEXT)], [10], targets=5, **options).models[0].bits_per_byte[0]
            for options in ({"segment": 10}, {"segment": 4}, {"memory": 0})
        )
    assert whole == pytest.approx(none) and cut != pytest.approx(none)


@pytest.mark.parametrize("family", ["bert", "t5"])
def test_what_does_not_read_from_left_to_right_is_refused(family: str) -> None:
    objective = tiny.objective(family, "masked" if family == "bert" else "span-corruption")
    model = tiny.model(family, objective)
    with pytest.raises(EtymonError, match="does not predict a text from left to right"):
        measure([model], ["it"], [Document(TEXT)], [1, 2])


def test_too_little_text(characters: Any) -> None:
    with pytest.raises(EtymonError, match="no text there is longer than 64 tokens"):
        told([Told(characters, lambda c: 1.0)], [1, 64], text="short")


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from etymon import cli

    model = tiny.model("gpt2", tiny.objective("gpt2", "causal"))
    save(model, tmp_path / "one")
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    asked = ["context", str(tmp_path / "one"), str(tmp_path / "one"), "--data", str(tmp_path / "text.txt")]
    asked += ["--longest", "8", "--targets", "20", "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit) as ended:
        cli.main(asked)
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "RECL 0.1" in said and len(said.splitlines()) == 2 + 4 + 1 + 3 + 1
    kept = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
    assert kept["lengths"] == [1, 2, 4, 8] and len(kept["models"]) == 2
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "<svg" in page and "Relative effective context length" in page
    with pytest.raises(SystemExit):
        cli.main([*asked, "--json"])
    assert json.loads(capsys.readouterr().out) == kept
    with pytest.raises(EtymonError, match="no such file"):
        etymon.context(model, data=tmp_path / "nowhere.txt")
    (alone,) = etymon.context(model, data=tmp_path / "text.txt", longest=8, targets=20).models
    assert alone.bits_per_byte == pytest.approx(kept["models"][0]["bits_per_byte"], rel=1e-5)
