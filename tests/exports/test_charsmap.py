"""Tables of replaced characters, as sentencepiece reads them."""

from __future__ import annotations

import random
import unicodedata
from base64 import b64encode

import pytest
from tokenizers import Regex, normalizers

from etymon.exports.charsmap import build_charsmap, character_rules, replace_by


def test_the_longest_key_is_replaced() -> None:
    table = build_charsmap(
        {"a": "1", "ab": "2", "abc": "3", "é": "e", "é!": "", "中": "zhong", "中国": "China"}
    )
    assert replace_by(table, "abcabxa é! é 中国中x") == "32x1  e Chinazhongx"


def test_tables_of_thousands_of_keys_hold_them_all() -> None:
    draw = random.Random(3)
    letters = [chr(code) for code in (*range(33, 127), *range(0xC0, 0x250), *range(0x4E00, 0x5200), 0x1F600)]
    rules = {"".join(draw.choices(letters, k=draw.randint(1, 4))): str(number) for number in range(1000)}
    table = build_charsmap(rules)
    # A tab is in no key.
    assert replace_by(table, "\t".join(rules)) == "\t".join(rules.values())


class Everything:
    def __contains__(self, letter: object) -> bool:
        return True


def test_rules_are_kept_for_what_a_tokenizer_has_letters_for() -> None:
    rules = character_rules(normalizers.NFKC().normalize_str, set("ABC"))
    assert rules["\uff21"] == "A" and "\uff24" not in rules and rules["\u3000"] == " "


@pytest.fixture(scope="module")
def nfkc() -> tuple[normalizers.Normalizer, bytes]:
    steps = [normalizers.NFKC(), normalizers.Lowercase(), normalizers.Replace(Regex(r"\s+"), " ")]
    whole = normalizers.Sequence(steps)
    return whole, build_charsmap(character_rules(whole.normalize_str, Everything()))


def test_every_character_becomes_what_the_normaliser_makes_of_it(
    nfkc: tuple[normalizers.Normalizer, bytes],
) -> None:
    normaliser, table = nfkc
    characters = [
        chr(code) for code in range(1, 0x30000) if unicodedata.category(chr(code)) not in ("Cn", "Co", "Cs")
    ]
    text = "|".join(characters)
    assert replace_by(table, text) == normaliser.normalize_str(text)


def test_marks_behind_letters_are_joined_with_them(nfkc: tuple[normalizers.Normalizer, bytes]) -> None:
    _, table = nfkc
    assert replace_by(table, "Cafe\u0301 e\u0302\u0301 ê\u0301 ﬁ ＡＢＣ，！　½") == "café ế ế fi abc,! 1⁄2"


def test_tokenizers_reads_the_same_table(nfkc: tuple[normalizers.Normalizer, bytes]) -> None:
    """Its reader is that of sentencepiece's files."""
    _, table = nfkc
    peer = normalizers.Precompiled(table)
    assert len(b64encode(table)) < 1_000_000
    for text in ("Ｈｅｌｌｏ　世界，ﬁ½", "Straße ÀÉ ①②③", "tab\tand\nline"):
        assert peer.normalize_str(text) == replace_by(table, text)
