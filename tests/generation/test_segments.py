"""Texts far longer than a segment, scored in one pass with a memory."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import etymon
from etymon.errors import EtymonError
from etymon.families.saving import save
from etymon.generation.likelihood import score_texts
from etymon.nn.batch import Batch
from etymon.text import sentences
from tests.carrying import carrying
from tests.generation.conftest import remembering

TEXT = "The cat sat on the mat, and the naïve dog ate soup. " * 12


@pytest.fixture
def model(tiny: Any) -> Iterator[Any]:
    with carrying():
        yield tiny("gpt2")


def by_hand(model: Any, ids: list[int], segment: int, memory: int) -> list[float]:
    """Every token's log-probability, segment by segment."""
    found, state = [], model.remember(1, memory)
    whole = [model.token("end"), *ids]
    for start in range(0, len(ids), segment):
        read = whole[start : start + segment]
        read = read[: len(ids) - start]
        with torch.no_grad():
            hidden, state = model.hidden(Batch.of([read]), state)
            log_probs = model.heads["vocabulary"].log_probs(hidden, None)
        found += [float(log_probs[at, whole[start + at + 1]]) for at in range(len(read))]
    return found


def test_segments_remember(model: Any) -> None:
    ids = model.tokenizer.encode(TEXT).tolist()
    assert len(ids) > 3 * model.positions
    expected = by_hand(model, ids, 16, 32)
    score = score_texts(model, [TEXT], memory=32, segment=16)[0]
    assert score.log_probs == pytest.approx(expected, rel=1e-4, abs=1e-5) and score.tokens == len(ids)
    forgetful = score_texts(model, [TEXT], memory=0, segment=16)[0]
    assert forgetful.log_probs[:16] == pytest.approx(expected[:16], rel=1e-4)
    assert forgetful.log_likelihood != pytest.approx(score.log_likelihood)


def test_a_memory_of_its_own_is_used_unless_told() -> None:
    model = remembering(32)
    own = score_texts(model, [TEXT * 2])[0]
    assert own.tokens > 256
    assert own.log_probs == score_texts(model, [TEXT * 2], memory=32, segment=256)[0].log_probs
    assert own.log_likelihood != score_texts(model, [TEXT * 2], window=own.tokens)[0].log_likelihood


def test_a_target_is_scored_given_all_of_the_text(model: Any) -> None:
    ids = [model.tokenizer.encode(part).tolist() for part in (TEXT, "The cat")]
    expected = by_hand(model, ids[0] + ids[1], 16, 32)[len(ids[0]) :]
    score = score_texts(model, [TEXT], ["The cat"], memory=32, segment=16)[0]
    assert score.log_probs == pytest.approx(expected, rel=1e-4) and score.bytes == 7


def test_a_file_is_read_in_parts(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And gives what the whole gives."""
    file = tmp_path / "book.md"
    file.write_text(TEXT, encoding="utf-8")
    whole = score_texts(model, [TEXT], memory=32, segment=16)[0]
    seen: list[int] = []
    monkeypatch.setattr(sentences, "PART", 100)
    from etymon.text import encoding

    monkeypatch.setattr(encoding, "BATCH", 100)
    batches = encoding.batches

    def watched(documents: Any) -> Any:
        for batch in batches(documents):
            seen.append(sum(len(part.text) for part in batch))
            yield batch

    monkeypatch.setattr(encoding, "batches", watched)
    told: list[str] = []
    (score,) = etymon.score(model, file=file, memory=32, segment=16, on_progress=told.append)
    assert score.log_likelihood == pytest.approx(whole.log_likelihood, rel=1e-5)
    assert (score.tokens, score.bytes, score.bits_per_byte) == (
        whole.tokens, len(TEXT.encode()), pytest.approx(whole.bits_per_byte, rel=1e-5),
    )  # fmt: skip
    assert score.perplexity == pytest.approx(math.exp(-whole.log_likelihood / whole.tokens), rel=1e-5)
    assert len(seen) == 4 and max(seen) < 200, "never much of it at once"
    assert score.text == str(file) and not score.pieces and told[-1] == f"{whole.tokens:,} tokens"
    (given,) = etymon.score(model, file=file, memory=32, segment=16, target="The cat")
    expected = score_texts(model, [TEXT], ["The cat"], memory=32, segment=16)[0]
    assert given.log_likelihood == pytest.approx(expected.log_likelihood, rel=1e-5) and given.bytes == 7
    both = etymon.score(model, ["The cat"], file=file, memory=32, segment=16)
    assert [one.tokens for one in both] == [len(model.tokenizer.encode("The cat")), whole.tokens]


def test_the_command(model: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from etymon import cli

    save(model, tmp_path / "model")
    (tmp_path / "book.txt").write_text(TEXT, encoding="utf-8")
    asked = ["score", str(tmp_path / "model"), "--file", str(tmp_path / "book.txt")]
    with pytest.raises(SystemExit) as ended:
        cli.main([*asked, "--memory", "32", "--segment", "16"])
    assert ended.value.code == 0 and "bits per byte" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        cli.main([*asked, "--memory", "32", "--segment", "16", "--json"])
    assert json.loads(capsys.readouterr().out)["bytes"] == len(TEXT.encode())


def test_what_cannot_be_is_refused_in_one_line(tiny: Any, tmp_path: Path) -> None:
    file = tmp_path / "book.txt"
    file.write_text(TEXT, encoding="utf-8")
    for options in ({"texts": ["a"]}, {"file": file}):
        with pytest.raises(EtymonError, match=r"GPT-2 carries nothing from one segment.*overlapping windows"):
            etymon.score(tiny("gpt2"), memory=8, **options)
        with pytest.raises(EtymonError, match=r"BERT carries nothing.*leave memory out$"):
            etymon.score(tiny("bert"), memory=8, **options)
        with carrying():
            for windows in ({"overlap": 2}, {"window": 12}):
                with pytest.raises(EtymonError, match="give window and overlap or memory, not both"):
                    etymon.score(tiny("gpt2"), memory=8, **windows, **options)
            with pytest.raises(EtymonError, match="a memory of -1 tokens"):
                etymon.score(tiny("gpt2"), memory=-1, **options)
        with pytest.raises(EtymonError, match="segments need a memory"):
            etymon.score(tiny("gpt2"), segment=8, **options)
    (tmp_path / "empty.txt").write_text("", encoding="utf-8")
    with carrying(), pytest.raises(EtymonError, match="no text in"):
        etymon.score(tiny("gpt2"), file=tmp_path / "empty.txt", memory=8)
