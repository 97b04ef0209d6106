"""Chinese text in one form: what changes, that places do not, and that the tokenizer's folder says so."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from etymon.errors import EtymonError
from etymon.settings.reading import NormaliseSteps
from etymon.text import normalising
from etymon.text.encoding import Encoder, Part
from etymon.text.normalising import CONVERSIONS, STEPS, TABLES, Normalisation
from etymon.text.tokenizer import Tokenizer
from etymon.text.tokenizer_growing import extends, grow_tokenizer, measure_tokenizer
from etymon.text.tokenizer_pipelines import FORMS
from etymon.text.tokenizer_training import TRAINERS, train_tokenizer
from etymon.text.words import Lexicon, WordReader

TRADITIONAL = [
    "這間酒店的環境和服務態度都很好，「房間」也乾淨！",
    "頭髮發展，乾坤與乾燥，ＡＢＣ１２３元。",
    "圖書館的電腦壞了，請準時參加會議。",
    "我用iPhone拍了很多照片 and sent them home.",
]
SIMPLIFIED = [
    "这间酒店的环境和服务态度都很好，“房间”也干净！",
    "头发发展，乾坤与干燥，ABC123元。",
    "图书馆的电脑坏了，请准时参加会议。",
    "我用iPhone拍了很多照片 and sent them home.",
]
ALL = ["width", "quotes", "t2s"]
SPECIALS = {"pad": "[PAD]", "unknown": "[UNK]", "class": "[CLS]", "separator": "[SEP]", "mask": "[MASK]"}


def train(kind: str, normalise: list[str] | str | None = None, texts: list[str] = TRADITIONAL) -> Tokenizer:
    size = 261 if kind == "byte" else 400
    return train_tokenizer(kind, texts * 20, size, specials=SPECIALS, normalise=normalise)


def test_texts_become_what_they_are_known_to_be() -> None:
    assert list(map(Normalisation.of(ALL), TRADITIONAL)) == SIMPLIFIED
    assert Normalisation.of(["punctuation"])("好，（真的）？！。、《书》Ａ") == "好,(真的)?!。、《书》Ａ"
    assert Normalisation.of(["width"])("Ａｚ０９，\u3000好") == "Az09， 好"
    assert Normalisation.of(["tw2s"])("看著") == "看着", "where Taiwan writes 著"
    assert Normalisation()("「Ａ」") == "「Ａ」" and not Normalisation()


@pytest.mark.parametrize("step", STEPS)
def test_every_character_stays_one_character(step: str) -> None:
    blocks = ((0x20, 0x3400), (0x3400, 0xA000), (0xAC00, 0xD800), (0xE000, 0x10000), (0x20000, 0x323B0))
    text = "".join(chr(code) for block in blocks for code in range(*block))
    normalise = Normalisation.of([step])
    assert len(normalise(text)) == len(text)
    alone = "".join(map(normalise, text))
    assert len(alone) == len(text), "by itself, too"
    phrases = "二噁英 周顗 樠谿 乾隆 著名 頭髮 发现 头发 干净 里面 公里 \x00 é"
    assert len(normalise(phrases)) == len(phrases)


@pytest.mark.parametrize("step", TABLES)
def test_a_table_is_turned_round_exactly(step: str) -> None:
    table = TABLES[step]
    assert len(set(table.values())) == len(table) and not set(table) & set(table.values())
    text = "".join(table) + "汉字。"
    normalise = Normalisation.of([step])
    assert (
        normalise(text) == "".join(table.values()) + "汉字。" and normalise.restore(normalise(text)) == text
    )


def test_what_does_not_come_back_is_measured() -> None:
    assert Normalisation.of(["t2s"]).round_trips(["頭髮發展"]) == {"t2s": (0.75, 1.0)}
    trips = Normalisation.of(["width", "t2s"]).round_trips(["頭髮头发ＡＢCD"])
    assert trips["width"] == (0.25, 0.75), "letters that were narrow before become wide"
    assert trips["t2s"] == (0.25, 0.75), "characters that were Simplified before become Traditional"
    assert all(CONVERSIONS[back] == there for there, back in CONVERSIONS.items())


def test_the_command_line_knows_all_steps() -> None:
    annotated = get_args(NormaliseSteps)[0]
    literal = get_args(get_args(annotated)[0])[0]
    assert set(get_args(literal)) == {*FORMS, *STEPS}


@pytest.mark.parametrize("kind", TRAINERS)
def test_both_scripts_have_the_same_tokens_in_the_same_places(kind: str) -> None:
    tokenizer = train(kind, ALL)
    plain = train(kind)
    for traditional, simplified in zip(TRADITIONAL, SIMPLIFIED, strict=True):
        ids, starts, stops = tokenizer.offsets(traditional)
        others, other_starts, other_stops = tokenizer.offsets(simplified)
        assert ids.tolist() == others.tolist() == tokenizer.encode(traditional).tolist()
        assert starts.tolist() == other_starts.tolist() and stops.tolist() == other_stops.tolist()
    assert plain.encode(TRADITIONAL[0]).tolist() != plain.encode(SIMPLIFIED[0]).tolist(), "off by default"
    assert tokenizer.fingerprint != plain.fingerprint and tokenizer.byte_lengths is None
    assert "發" not in "".join(tokenizer.tokens)
    if kind in ("byte", "byte-bpe", "character"):
        assert tokenizer.decode(tokenizer.encode(TRADITIONAL[1])) == SIMPLIFIED[1]


@pytest.mark.parametrize("kind", ["wordpiece", "byte-bpe", "unigram"])
def test_the_folder_keeps_it_and_transformers_reads_text_that_is_normalised_before(
    kind: str, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = train(kind, [*ALL, *(["nfkc"] if kind == "wordpiece" else [])])
    tokenizer.save(tmp_path / "ours")
    config = json.loads((tmp_path / "ours/tokenizer_config.json").read_text(encoding="utf-8"))
    assert config["etymon_normalise"] == {"steps": ALL, "opencc": normalising.opencc_version()}
    again = Tokenizer.load(tmp_path / "ours")
    assert again.normalise == tokenizer.normalise and again.fingerprint == tokenizer.fingerprint
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    for text in TRADITIONAL:
        ids = tokenizer.encode(text).tolist()
        assert theirs(tokenizer.normalise(text), add_special_tokens=False)["input_ids"] == ids
    assert (
        theirs(TRADITIONAL[0], add_special_tokens=False)["input_ids"]
        != tokenizer.encode(TRADITIONAL[0]).tolist()
    ), "it does not do it by itself"
    theirs.save_pretrained(tmp_path / "theirs")
    assert Tokenizer.load(tmp_path / "theirs").normalise == tokenizer.normalise, "but keeps what was said"
    train(kind).save(tmp_path / "plain")
    assert "normalise" not in (tmp_path / "plain/tokenizer_config.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("words", [None, "jieba"])
@pytest.mark.parametrize("kind", ["wordpiece", "unigram", "byte-bpe", "character"])
def test_a_store_has_the_tokens_and_words_of_the_normalised_text(kind: str, words: str | None) -> None:
    tokenizer, text = train(kind, ALL), "\n".join(TRADITIONAL)
    encoder = Encoder(tokenizer, np.dtype(np.int32), words)
    given, read = (encoder([Part(each, "", None, False)]) for each in (text, tokenizer.normalise(text)))
    assert given.tokens.tolist() == read.tokens.tolist()
    assert given.sentences[:, 0].tolist() == read.sentences[:, 0].tolist()
    if words:
        assert given.word_starts is not None and read.word_starts is not None
        assert given.word_starts.tolist() == read.word_starts.tolist()
    assert given.ends[0, 1] == len(text.encode()) > read.ends[0, 1], "bytes are those of the given text"


def test_words_by_letters_and_torn_words_are_normalised() -> None:
    tokenizer = train("word", ALL)
    lexicon = Lexicon(tokenizer)
    unseen = "鑽石 zoo 钻石 zoo"
    ids = lexicon.offsets(unseen)[0].tolist()
    assert ids[: len(ids) // 2] == ids[len(ids) // 2 :] and max(ids) >= tokenizer.size
    reader = WordReader(train("unigram", ALL))
    for spans in ([(0, 1), (1, 2), (2, 3), (3, 4)], [(0, 2), (2, 4)]):
        assert reader.read("頭髮發展", spans).ids.tolist() == reader.read("头发发展", spans).ids.tolist()


def test_a_tokenizer_that_grows_keeps_it() -> None:
    small = train("wordpiece", ALL)
    grown = grow_tokenizer(small, lambda: ["鑽石與黃金，鐵路。"] * 5, small.size + 9)
    assert grown.normalise == small.normalise and extends(grown, small)
    assert {"钻", "黄", "铁"} <= set(grown.tokens) and not {"鑽", "黃", "鐵"} & set(grown.tokens)
    assert measure_tokenizer(grown, ["鑽石與黃金，鐵路。"]).unknown == 0
    other = train("wordpiece")
    other.normalise = Normalisation.of(["width"])
    assert not extends(other, train("wordpiece"))


def test_what_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for kind, steps, reason in (
        ("wordpiece", ["t2t"], r"normalise must be one of none, nfc, nfkc, width, .*, not 't2t'"),
        ("wordpiece", ["nfc", "nfkc"], "normalise takes one Unicode form, and every step once"),
        ("wordpiece", ["t2s", "t2s"], "normalise takes one Unicode form, and every step once"),
        ("byte-bpe", ["t2s", "nfkc"], "lossless: .* nor nfkc"),
    ):
        with pytest.raises(EtymonError, match=reason):
            train(kind, steps)
    tokenizer = train("wordpiece", ["t2s"])
    tokenizer.save(tmp_path)
    monkeypatch.setitem(sys.modules, "opencc", None)
    normalising._replacer.cache_clear()
    normalising._compare_versions.cache_clear()
    with pytest.raises(EtymonError, match=r"converted by OpenCC: pip install 'etymon\[chinese\]'"):
        train("wordpiece", ["t2s"])
    opened = Tokenizer.load(tmp_path)
    with pytest.raises(EtymonError, match=r"converted by OpenCC: pip install 'etymon\[chinese\]'"):
        opened.encode("頭髮")
    assert len(train("wordpiece", ["width"]).encode("Ａ")) == 1, "tables need nothing"
    config = json.loads((tmp_path / "tokenizer_config.json").read_text(encoding="utf-8"))
    config["etymon_normalise"] = {"steps": ["x2y"]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(EtymonError, match=r"tokenizer_config\.json names a normalisation that this version"):
        Tokenizer.load(tmp_path)


def test_another_opencc_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    normalising._compare_versions.cache_clear()
    old = Normalisation(("t2s",), "0.9")
    with caplog.at_level(logging.WARNING, "etymon.text"):
        assert old("頭髮") == "头发" == old("頭髮")
    (record,) = caplog.records
    assert "OpenCC 0.9 had converted, and this is OpenCC" in record.getMessage()
