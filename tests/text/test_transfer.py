"""Another tokenizer for a model: what its tokens are made of, and that nothing else changes."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tokenizers
import torch

from etymon.families import get_family
from etymon.families.loading import build
from etymon.families.surgery import replace_words
from etymon.nn.batch import Batch
from etymon.text.tokenizer import Tokenizer
from etymon.text.tokenizer_training import train_tokenizer
from etymon.text.tokenizer_transfer import transfer_tokens
from tests import tiny

SPECIALS = {"pad": "[PAD]", "unknown": "[UNK]", "class": "[CLS]", "separator": "[SEP]", "mask": "[MASK]"}
OTHER = ["the river crosses a winter village", "gardens remembered mountains", "江山如画，一时多少豪杰。"] * 4
KINDS = ["wordpiece", "unigram", "bpe", "byte-bpe", "character"]


def train(kind: str, texts: list[str], size: int = 300) -> Tokenizer:
    return train_tokenizer(kind, texts, size, specials=SPECIALS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tokenizer_is_made_of_itself(kind: str) -> None:
    tokenizer = train(kind, tiny.texts())
    transfer = transfer_tokens(tokenizer, tokenizer)
    assert transfer.copied == tokenizer.size and transfer.composed == transfer.new == 0
    assert transfer.spellings == [[number] for number in range(tokenizer.size)]


@pytest.mark.parametrize("old_kind", KINDS)
@pytest.mark.parametrize("new_kind", ["wordpiece", "unigram", "byte-bpe"])
def test_pieces_keep_their_text(old_kind: str, new_kind: str) -> None:
    """What is copied has the same text, whatever marks beginnings of words; what is composed has its characters."""
    old, new = train(old_kind, tiny.texts()), train(new_kind, OTHER)
    transfer = transfer_tokens(new, old)
    assert transfer.copied >= 5 and len(transfer.spellings) == new.size
    assert transfer.copied + transfer.composed + transfer.new == new.size
    for role in SPECIALS:
        number, same = new.id(role), old.id(role)
        assert number is not None and transfer.spellings[number] == [same]
    for number, pieces in enumerate(transfer.spellings):
        if pieces is None or number in new.special_ids:
            continue
        text = new.decode([number]).strip().lower().removeprefix("##")
        spelled = "".join(old.decode([piece]).strip().removeprefix("##") for piece in pieces).lower()
        if "\ufffd" not in text + spelled:
            assert set(spelled) <= set(text), (text, spelled)
            assert len(pieces) > 1 or spelled == text or old.id("unknown") is not None
    chinese = (
        new.tokens.index(next(token for token in new.tokens if "江" in token))
        if new_kind != "byte-bpe"
        else None
    )
    if chinese is not None:
        pieces = transfer.spellings[chinese]
        assert (pieces is None) == (old_kind != "byte-bpe"), "only bytes know of characters never seen"


def test_a_word_with_an_unknown_character_is_composed_of_the_others() -> None:
    old = train("wordpiece", ["abc abd acd bcd"] * 4, 60)
    new = train("wordpiece", ["abxc abxc abxc"] * 4, 60)
    number = new.tokens.index("abxc")
    pieces = transfer_tokens(new, old).spellings[number]
    assert pieces is not None and old.id("unknown") not in pieces
    assert [old.tokens[piece] for piece in pieces] == ["a", "##b", "##c"]


@pytest.mark.parametrize("family", ["bert", "gpt2", "t5"])
def test_the_same_words_in_another_order_give_the_same_model(family: str) -> None:
    recipe = get_family(family)
    old = train_tokenizer(
        recipe.tokenizer.kind,
        tiny.texts(),
        tiny.VOCABULARY,
        specials=dict(recipe.tokenizer.specials),
        sentinels=recipe.tokenizer.sentinels,
        framing=recipe.framing,
    )
    new = reordered(old)
    model = build(
        recipe, shape={**tiny.shape(family), "vocabulary": old.size}, heads=("vocabulary",), seed=1
    ).eval()
    transfer = transfer_tokens(new, old)
    assert transfer.copied == new.size
    made = replace_words(model, transfer.spellings).eval()
    text = tiny.texts()[0]
    before, after = old.encode(text), new.encode(text)
    assert not np.array_equal(before, after) and old.decode(before) == new.decode(after)

    def logits(which: object, ids: np.ndarray) -> torch.Tensor:
        net: object = which
        batch = Batch.of([ids])
        with torch.no_grad():
            if net.encoder_decoder:  # type: ignore[attr-defined]
                hidden, _ = net.decode(batch, net.encode(batch))  # type: ignore[attr-defined]
            else:
                hidden, _ = net.hidden(batch)  # type: ignore[attr-defined]
            return net.heads["vocabulary"].logits(hidden, None)  # type: ignore[attr-defined]

    order = torch.tensor([pieces[0] for pieces in transfer.spellings if pieces is not None])
    torch.testing.assert_close(logits(made, after), logits(model, before)[:, order], rtol=1e-5, atol=1e-5)


def reordered(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokens with other ids."""
    description = json.loads(tokenizer.backend.to_str())
    vocabulary, model = tokenizer.backend.get_vocab(with_added_tokens=True), description["model"]
    size = len(vocabulary)
    if isinstance(model["vocab"], dict):
        model["vocab"] = {token: size - 1 - number for token, number in vocabulary.items()}
    else:
        model["vocab"] = model["vocab"][::-1]
        if model.get("unk_id") is not None:
            model["unk_id"] = len(model["vocab"]) - 1 - model["unk_id"]
    names = (
        {token: number for number, (token, _) in enumerate(model["vocab"])}
        if isinstance(model["vocab"], list)
        else model["vocab"]
    )
    for token in description["added_tokens"]:
        token["id"] = names.get(token["content"], size - 1 - token["id"])
    return Tokenizer(
        tokenizers.Tokenizer.from_str(json.dumps(description)), tokenizer.roles, framing=tokenizer.framing
    )


def test_words_of_which_nothing_is_known_are_drawn_like_the_others() -> None:
    shape = {**tiny.shape("bert"), "vocabulary": 200}
    model = build(get_family("bert"), shape=shape, heads=("vocabulary",), seed=1)
    made = replace_words(model, [[3], None, [4, 5]] + [None] * 2000, seed=2)
    old, new = (each.body.embeddings.words.weight for each in (model, made))
    assert torch.equal(new[0], old[3]) and torch.allclose(new[2], old[[4, 5]].mean(0))
    assert torch.allclose(new[3:].mean(0), old.mean(0), atol=4 * float(old.std()) / 2000**0.5)
    assert torch.allclose(new[3:].std(0), old.std(0), rtol=0.15)
    assert torch.equal(
        new, replace_words(model, [[3], None, [4, 5]] + [None] * 2000, seed=2).body.embeddings.words.weight
    )
