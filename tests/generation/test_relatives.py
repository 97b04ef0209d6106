"""BERT's relatives fill, score and embed as Transformers does with the same folder, tokenizer included."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import etymon
from etymon.families.model import Model
from etymon.families.saving import save
from etymon.generation.fill import fill_texts
from etymon.generation.likelihood import score_texts

RELATIVES = ("roberta", "albert", "distilbert", "electra")


@pytest.fixture(scope="module", params=RELATIVES)
def opened(
    request: pytest.FixtureRequest, tiny: Callable[[str], Model], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Model, Path, Any, Any]:
    """Our model, its folder, and what Transformers makes of it: a masked model and a tokenizer."""
    transformers = pytest.importorskip("transformers")
    model, folder = tiny(request.param), tmp_path_factory.mktemp(request.param)
    save(model, folder)
    reference = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    return model, folder, reference, transformers.AutoTokenizer.from_pretrained(folder)


def test_fill(opened: tuple[Model, Path, Any, Any]) -> None:
    model, _, reference, tokenizer = opened
    text = "Paris is the ___ of France, and ___"
    found = fill_texts(model, [text], top_k=4)[0]
    given = tokenizer(text.replace("___", tokenizer.mask_token), return_tensors="pt")
    with torch.no_grad():
        expected = reference(**given).logits[0].softmax(-1)[:, : len(tokenizer)]
    places = (given["input_ids"][0] == tokenizer.mask_token_id).nonzero()[:, 0]
    assert len(places) == len(found.blanks) == 2
    for place, candidates in zip(places, found.blanks, strict=True):
        assert [one.probability for one in candidates] == pytest.approx(
            expected[place].topk(4).values.tolist(), rel=1e-4
        )
    assert "___" not in found.filled and found.filled.startswith("Paris is the")


def test_score(opened: tuple[Model, Path, Any, Any]) -> None:
    model, _, reference, tokenizer = opened
    text = "The cat sat on the mat."
    given = tokenizer(text, return_tensors="pt")["input_ids"][0]
    assert given.tolist() == model.tokenizer.framing.frame(model.tokenizer.encode(text)).ids.tolist()  # type: ignore[union-attr]
    total = 0.0
    for place in range(1, len(given) - 1):
        masked = given.clone()
        masked[place] = tokenizer.mask_token_id
        with torch.no_grad():
            total += float(reference(masked[None]).logits[0, place].log_softmax(-1)[given[place]])
    score = score_texts(model, [text])[0]
    assert score.kind == "pseudo-likelihood"
    assert score.log_likelihood == pytest.approx(total, rel=1e-4)


def test_embed(opened: tuple[Model, Path, Any, Any]) -> None:
    _, folder, reference, tokenizer = opened
    texts = ["The cat sat on the mat.", "Paris", "Rome is the capital of Italy"]
    given = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = reference.base_model(**given).last_hidden_state
    mask = given["attention_mask"][:, :, None]
    np.testing.assert_allclose(etymon.embed(folder, texts), (hidden * mask).sum(1) / mask.sum(1), atol=2e-5)
    np.testing.assert_allclose(etymon.embed(folder, texts, pooling="cls"), hidden[:, 0], atol=2e-5)


def test_pieces_of_words_are_joined(tiny: Callable[[str], Model]) -> None:
    """In byte-level BPE a token that begins no word goes on with the one before it."""
    from etymon.generation.fill import BlankText, _candidate

    tokenizer = tiny("roberta").tokenizer
    assert tokenizer is not None
    blank = BlankText("The ca ___ sat", ["The ca ", " sat"], ["___"])
    ids = [tokenizer.backend.token_to_id(token) for token in ("t", "Ġthe", "<s>")]
    found = [_candidate(tokenizer, blank, 0, number, 1.0) for number in ids]
    assert [one.sentence for one in found] == ["The cat sat", "The ca the sat", "The ca <s> sat"]
    assert [one.text for one in found] == ["t", "the", "<s>"]
