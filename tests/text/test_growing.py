"""A grown tokenizer: every id keeps its meaning, the new text gets shorter, and others read it alike."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from etymon.errors import EtymonError
from etymon.text.tokenizer import Tokenizer
from etymon.text.tokenizer_growing import extends, grow_tokenizer, spellings
from tests import tiny
from tests.text.test_tokenizer_kinds import train

KINDS = ("byte-bpe", "bpe", "wordpiece", "unigram", "word", "character")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
PARTS = "neuro trans mitter recep tor syn apse cortex axon αβ βγ".split()


def domain_text() -> list[str]:
    draw = random.Random(1)

    def word() -> str:
        return "".join(draw.choices(PARTS, k=draw.choice([2, 3])))

    lines = [" ".join(word() for _ in range(12)) + ".\n\n    x = café\n" for _ in range(60)]
    return [*lines, "公园我们去公园天气很好" * 20]


DOMAIN = domain_text()
GENERAL = [*tiny.texts(), *[f"{LETTERS} {LETTERS[::-1]} ."] * 3]


@pytest.fixture(scope="module")
def grown() -> dict[str, tuple[Tokenizer, Tokenizer]]:
    """By kind, the old tokenizer and the one that grew from it."""
    made = {}
    for kind in KINDS:
        old = train(kind, GENERAL, 420, sentinels=10 if kind == "unigram" else 0)
        made[kind] = (old, grow_tokenizer(old, lambda: DOMAIN, old.size + 120))
    return made


def tokens(tokenizer: Tokenizer, texts: list[str]) -> int:
    return sum(len(ids) for ids in tokenizer.encode_batch(texts))


def unknown(tokenizer: Tokenizer, texts: list[str]) -> int:
    return sum(int((ids == tokenizer.id("unknown")).sum()) for ids in tokenizer.encode_batch(texts))


@pytest.mark.parametrize("kind", KINDS)
def test_every_id_keeps_its_meaning(kind: str, grown: dict[str, tuple[Tokenizer, Tokenizer]]) -> None:
    old, new = grown[kind]
    assert extends(new, old) and not extends(old, new)
    assert old.size < new.size <= old.size + 120 and len(set(new.tokens)) == new.size
    assert new.kind == kind and new.special_ids == old.special_ids and new.sentinels == old.sentinels
    for text in GENERAL:
        ids = old.encode(text)
        assert new.decode(ids) == old.decode(ids)
        assert new.decode(new.encode(text)) == old.decode(ids)
    pairs = [tuple(pair) for pair in old.description["model"].get("merges", [])]
    longer = [tuple(pair) for pair in new.description["model"].get("merges", [])]
    assert longer[: len(pairs)] == pairs and len(set(longer)) == len(longer), "new merges come last"


@pytest.mark.parametrize("kind", KINDS)
def test_the_new_text_gets_shorter_or_better_known(
    kind: str, grown: dict[str, tuple[Tokenizer, Tokenizer]]
) -> None:
    old, new = grown[kind]
    if kind in ("word", "character"):
        assert unknown(new, DOMAIN) < unknown(old, DOMAIN) / 2
    else:
        assert tokens(new, DOMAIN) < tokens(old, DOMAIN) / 2 and not unknown(new, DOMAIN)
        assert new.size == old.size + 120
        assert tokens(new, GENERAL) <= tokens(old, GENERAL), "and the old one no longer"
    for text in DOMAIN if kind in ("byte-bpe", "character") else []:
        assert new.decode(new.encode(text)) == text
    for text in DOMAIN[:5] if kind in ("bpe", "unigram") else []:
        assert new.decode(new.encode(text)) == " ".join(text.split())


@pytest.mark.parametrize("kind", ["byte-bpe", "bpe", "unigram"])
def test_what_was_joined_was_side_by_side(kind: str, grown: dict[str, tuple[Tokenizer, Tokenizer]]) -> None:
    """A new token is used only where the old tokenizer had tokens that spell it."""
    old, new = grown[kind]
    marks = {number: old.tokens[number] for number in range(old.size)}
    for text in [*DOMAIN[:9], *GENERAL[:9]]:
        if not unknown(old, [text]):
            bounds = {0, *np.cumsum([len(marks[number]) for number in old.encode(text).tolist()]).tolist()}
            joined = np.cumsum([len(new.tokens[number]) for number in new.encode(text)]).tolist()
            assert bounds.issuperset(joined)


@pytest.mark.parametrize("kind", KINDS)
def test_files_are_read_alike_elsewhere(
    kind: str, grown: dict[str, tuple[Tokenizer, Tokenizer]], tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    _, new = grown[kind]
    new.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert (again.fingerprint, again.roles, again.kind) == (new.fingerprint, new.roles, kind)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert len(theirs) == new.size
    for text in [*DOMAIN[-8:], *GENERAL[-8:], "neurotransmitter </s> axon", "<extra_id_3> 公园"]:
        assert theirs(text, add_special_tokens=False)["input_ids"] == new.encode(text).tolist()


def test_spellings(grown: dict[str, tuple[Tokenizer, Tokenizer]]) -> None:
    for kind, (old, new) in grown.items():
        spelled = spellings(new, old)
        assert len(spelled) == new.size - old.size and spellings(old, old) == []
        for token, pieces in zip(new.tokens[old.size :], spelled, strict=True):
            assert pieces and all(0 <= number < old.size for number in pieces)
            if old.id("unknown") not in pieces:
                names = [old.tokens[number] for number in pieces]
                joined = names[0] + "".join(name.removeprefix("##") for name in names[1:])
                assert joined == token, kind
                assert kind != "wordpiece" or all(name.startswith("##") for name in names[1:])
            else:
                assert kind != "byte-bpe"
    old = train("wordpiece", ["river rivers over over"], 40, min_frequency=1)
    inside = old.tokens.index("##r")
    assert spellings(grow_tokenizer(old, lambda: ["rrrr rrrr"], old.size + 1), old) == [[inside, inside]]


def test_it_is_deterministic_and_grows_again(grown: dict[str, tuple[Tokenizer, Tokenizer]]) -> None:
    for old, new in grown.values():
        again = grow_tokenizer(old, lambda: DOMAIN, old.size + 120)
        assert again.backend.to_str() == new.backend.to_str()
        further = grow_tokenizer(new, lambda: ["glion ganglia glion ganglia éü éü"], new.size + 5)
        assert extends(further, new) and extends(further, old)
    # Nothing new in the text: nothing changes.
    old = grown["word"][0]
    assert grow_tokenizer(old, lambda: ["The river"], old.size + 5) is old


def test_specials_in_the_text_are_never_joined() -> None:
    old = train("byte-bpe", GENERAL, 300)
    new = grow_tokenizer(old, lambda: ["zq</s>zq"] * 50, old.size + 20)
    assert all("</s>" not in token for token in new.tokens[old.size :]) and "zq" in new.tokens
    assert new.encode("zq</s>zq").tolist() == [new.tokens.index("zq"), old.id("end"), new.tokens.index("zq")]


def test_scripts_without_spaces_give_no_giant_tokens(
    grown: dict[str, tuple[Tokenizer, Tokenizer]],
) -> None:
    draw = random.Random(0)
    phrase = "".join(chr(draw.randrange(0x0E01, 0x0E2F)) for _ in range(400))
    for kind in ("byte-bpe", "bpe", "wordpiece", "unigram"):
        old = grown[kind][0]
        new = grow_tokenizer(old, lambda: [phrase * 30], old.size + 600)
        assert max(map(len, new.tokens[old.size :])) <= 48 + 3


def test_refusals(grown: dict[str, tuple[Tokenizer, Tokenizer]]) -> None:
    old = grown["bpe"][0]
    for size in (old.size, old.size - 1):
        with pytest.raises(EtymonError, match=f"has {old.size} tokens already, so it cannot grow to {size}"):
            grow_tokenizer(old, lambda: DOMAIN, size)
    with pytest.raises(EtymonError, match="a byte tokenizer has all the bytes there are"):
        grow_tokenizer(train("byte", []), lambda: DOMAIN, 1000)
