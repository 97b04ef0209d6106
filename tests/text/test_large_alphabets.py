"""Tokenizers for scripts of many letters, and for those without spaces: what they know, and what they cost."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import etymon
from etymon.runs.tokenizer import advise_on_unknown, training_choice
from etymon.tables.table import read_table
from etymon.text.alphabets import CharacterCounts, choose_letters, loses_by_stripping
from etymon.text.tokenizer import Tokenizer
from etymon.text.tokenizer_growing import covering_size, grow_tokenizer, measure_tokenizer
from etymon.text.tokenizer_pipelines import strips_accents
from etymon.text.tokenizer_training import BYTE_PIECES, train_tokenizer

# Sentences of the Universal Declaration of Human Rights, article 1, which is in the public domain.
SENTENCES = {
    "Chinese": "人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心，并应以兄弟关系的精神相对待。",
    "Japanese": "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "Korean": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. 인간은 이성과 양심을 가진다.",
    "Thai": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ ต่างมีเหตุผลและมโนธรรม",
    "Khmer": "មនុស្សទាំងអស់កើតមកមានសេរីភាពនិងភាពស្មើៗគ្នាក្នុងសេចក្ដីថ្លៃថ្នូរនិងសិទ្ធិ។",
    "Burmese": "လူတိုင်းသည် တူညီလွတ်လပ်သော ဂုဏ်သိက္ခာဖြင့် လည်းကောင်း၊ တူညီလွတ်လပ်သော အခွင့်အရေးများဖြင့် လည်းကောင်း မွေးဖွားလာသူများ ဖြစ်သည်။",
    "Tibetan": "འགྲོ་བ་མིའི་རིགས་རྒྱུད་ཡོངས་ལ་སྐྱེས་ཙམ་ཉིད་ནས་ཆེ་མཐོངས་དང་ཐོབ་ཐངགི་རང་དབང་འདྲ་མཉམ་དུ་ཡོད་ལ།",
    "Ethiopic": "የሰው ልጅ ሁሉ ሲወለድ ነጻና በክብርና በመብትም እኩልነት ያለው ነው። የተፈጥሮ ማስተዋልና ሕሊና ስላለው አንዱ ሌላውን በወንድማማችነት መንፈስ መመልከት ይገባዋል።",
    "Devanagari": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है।",
    "Arabic": "يولد جميع الناس أحراراً متساوين في الكرامة والحقوق، وقد وهبوا عقلاً وضميراً وعليهم أن يعامل بعضهم بعضاً بروح الإخاء.",
}
SPACED = {"Korean", "Ethiopic", "Devanagari", "Arabic"}
KINDS = ("wordpiece", "word-bpe", "bpe", "unigram", "character", "byte-bpe")
SPECIALS = {"pad": "[PAD]", "unknown": "[UNK]", "class": "[CLS]", "separator": "[SEP]", "mask": "[MASK]"}


def texts_of(script: str) -> list[str]:
    """Sixty lines made of the words, or runs, of the sentence, some of them long."""
    words = SENTENCES[script].replace("。", "。 ").split()
    if len(words) < 4:
        words = [SENTENCES[script][n : n + 9] for n in range(0, len(SENTENCES[script]), 9)]
    draw = np.random.default_rng(0)
    gap = " " if script in SPACED else ""
    return [gap.join(draw.choice(words, 5 + n % 23)) + SENTENCES[script][-1] for n in range(60)]


def train(kind: str, texts: list[str], size: int, **options: Any) -> Tokenizer:
    return train_tokenizer(kind, texts, size, **{"specials": SPECIALS, **options})


@pytest.mark.parametrize("script", SENTENCES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_script_is_known_and_kept(kind: str, script: str) -> None:
    texts = texts_of(script)
    tokenizer = train(kind, texts[:50], 700)
    report = measure_tokenizer(tokenizer, texts[50:])
    assert report.unknown == 0 and report.unknown_character_rate == 0
    assert report.has_words == (script in SPACED)
    assert (report.fertility is None) == (script not in SPACED) and report.tokens_per_character > 0
    text = unicodedata.normalize("NFKC", texts[0]) if kind in ("bpe", "unigram") else texts[0]
    again = tokenizer.decode(tokenizer.encode(text))
    assert "".join(again.split()) == "".join(text.split()), "vowel signs and all"


def ideographs(count: int) -> list[str]:
    """Texts in which so many ideographs occur, the later ones ever more rarely."""
    weights = 1 / np.arange(1, count + 1)
    draw = np.random.default_rng(1)
    letters = draw.choice(count, 30_000, p=weights / weights.sum())
    rows = np.concatenate([letters, np.arange(count)]).reshape(-1, 50)
    return ["".join(chr(0x4E00 + int(letter)) for letter in row) for row in rows]


@pytest.mark.parametrize("kind", ["wordpiece", "word-bpe"])
def test_no_place_is_empty_while_a_character_has_none(kind: str) -> None:
    texts = ideographs(1500)
    tokenizer = train(kind, texts, 1400, min_frequency=1)
    assert tokenizer.size == 1400, "fewer than there are characters"
    letters = [token.removesuffix("</w>") for token in tokenizer.tokens[5:]]
    assert len(set(letters)) == 1395, "an ideograph has one form alone"
    everything = train(kind, texts, 2000)
    assert measure_tokenizer(everything, texts).unknown == 0 and everything.size < 1600


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_merging_kinds_cover_a_large_alphabet_too(kind: str) -> None:
    texts = ideographs(1500)
    counts = CharacterCounts(texts)
    tokenizer = train(kind, texts, 2200)
    known = sum(counts[letter] for letter in counts if letter in set(tokenizer.tokens))
    total = sum(counts[letter] for letter in counts)
    assert known / total > 0.998 and tokenizer.size == 2200
    assert train(kind, texts, 2200).backend.to_str() == tokenizer.backend.to_str()


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_bytes_spell_what_a_large_alphabet_has_no_room_for(kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    texts = ideographs(3000)
    tokenizer = train(kind, texts, 2200)
    assert tokenizer.size == 2200 and tokenizer.tokens[5:261] == BYTE_PIECES
    unseen = "𠮷野家は寿司🍣、" + "".join(chr(0x4E00 + 2900 + n) for n in range(90))
    assert measure_tokenizer(tokenizer, [*texts, unseen]).unknown == 0
    ids = tokenizer.encode(unseen)
    stream = tokenizer.stream()
    assert tokenizer.decode(ids) == unseen
    assert "".join(map(stream.feed, ids.tolist())) + stream.finish() == unseen
    _, starts, stops = tokenizer.offsets(unseen)
    assert sorted(set(zip(starts.tolist(), stops.tolist()))) == [(n, n + 1) for n in range(len(unseen))]
    firsts = np.diff(starts, prepend=-1) > 0
    firsts[starts == unseen.index("🍣")] = False  # a symbol of no script
    assert (tokenizer.word_starts[ids] == firsts).all(), "a word begins with its first byte"
    tokenizer.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs(unseen, add_special_tokens=False)["input_ids"] == ids.tolist()
    assert theirs.decode(ids) == unseen
    assert train(kind, texts, 2200).backend.to_str() == tokenizer.backend.to_str()
    assert not set(BYTE_PIECES) & set(train(kind, texts, 1800).tokens), "only where there is room"


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_characters_that_a_small_text_never_had_are_spelled_too(kind: str) -> None:
    """No text has all ideographs, whatever room the vocabulary has for those of this one; a few letters are all of a script."""
    for script, unseen in (("Chinese", "饕餮"), ("Japanese", "薔薇"), ("Korean", "뷁쉙")):
        tokenizer = train(kind, texts_of(script), 2200)
        assert measure_tokenizer(tokenizer, [unseen]).unknown == 0
        assert tokenizer.decode(tokenizer.encode(unseen)) == unseen
    for script in ("Thai", "Devanagari", "Arabic"):
        assert not set(BYTE_PIECES) & set(train(kind, texts_of(script), 2200).tokens)


def test_letters_beyond_the_usual_share_only_where_the_text_needs_them() -> None:
    rare = {"a": 99_999, "b": 50_000, "c": 3, "d": 2}
    assert choose_letters(rare, 2, 4, lambda letter: 1) == (["a", "b"], ["c", "d"])
    even = dict.fromkeys("abcdef", 10)
    assert choose_letters(even, 2, 4, lambda letter: 1) == (["a", "b", "c", "d"], ["e", "f"])
    assert choose_letters(even, 2, 5, lambda letter: 2)[0] == ["a", "b"], "as long as their tokens have room"
    assert choose_letters(even, 2, 50, lambda letter: 2) == (list("abcdef"), [])


def test_a_run_without_spaces_is_not_unknown_however_long(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    for script in ("Thai", "Khmer", "Burmese"):
        texts = texts_of(script)
        tokenizer = train("wordpiece", texts, 600)
        long = SENTENCES[script].replace(" ", "") * 20
        ids = tokenizer.encode(long)
        assert tokenizer.id("unknown") not in ids
        assert "".join(tokenizer.decode(ids).split()) == long
        tokenizer.save(tmp_path / script)
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / script)
        assert theirs(long, add_special_tokens=False)["input_ids"] == ids.tolist()


def test_accents_are_stripped_where_that_spoils_no_letters() -> None:
    options = training_choice(None, "bert", 700)
    del options["kind"]
    for script in SENTENCES:
        tokenizer = train_tokenizer("wordpiece", texts_of(script), **options)
        spoilt = any(map(loses_by_stripping, SENTENCES[script]))
        assert strips_accents(tokenizer) is not spoilt, script
    assert strips_accents(train_tokenizer("wordpiece", ["Le café est fermé."] * 9, **options))
    forced = {**options, "strip_accents": True}
    assert strips_accents(train_tokenizer("wordpiece", texts_of("Thai"), **forced))


def test_a_tokenizer_grows_by_the_characters_that_it_lacks() -> None:
    texts = ideographs(1500)
    small = train("wordpiece", ["The river and the garden."] * 9, 60)
    grown = grow_tokenizer(small, lambda: texts, 1700)
    assert grown.tokens[: small.size] == small.tokens
    assert measure_tokenizer(grown, texts).unknown == 0
    assert grown.size == small.size + 1500, "and nothing else, as ideographs are words"


def test_advice_names_a_size_that_helps_and_fits_the_family() -> None:
    texts = ideographs(1500)
    counts = CharacterCounts(texts)
    tokenizer = train("wordpiece", texts, 600)
    size = covering_size(tokenizer, counts, new=True)
    before, after = (measure_tokenizer(train("wordpiece", texts, n), texts).unknown_rate for n in (600, size))
    assert before > 0.01 and after < 0.001
    plain, bert = (advise_on_unknown(tokenizer, family, counts) for family in (None, "bert"))
    assert f"--size {size}" in plain and plain.endswith("--kind byte-bpe has nothing unknown")
    assert "bert was published with wordpiece: tokens may then be parts of characters" in bert
    assert "--from old --size" in advise_on_unknown(tokenizer, None, counts, "old")
    whole = train("wordpiece", texts, 2000)
    assert "give it more" in advise_on_unknown(whole, None, counts)


@pytest.fixture(scope="module")
def chinese(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4 MB of reviews and news, a document a line."""
    table = (shared / "data" / "chnsenticorp" / "train.tsv").read_text(encoding="utf-8").splitlines()[1:]
    lines = [line.partition("\t")[2] for line in table]
    lines += [row["text"] for row in read_table(shared / "data" / "cluener" / "train.json").rows]
    path = tmp_path_factory.mktemp("chinese") / "zh.txt"
    path.write_text("\n".join(lines).encode()[:4_000_000].decode(errors="ignore"), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("kind", "most", "tokens"), [("wordpiece", 0.001, 1), ("bpe", 0, 0.75), ("unigram", 0, 0.75)]
)
def test_chinese_text_has_below_one_unknown_token_in_a_thousand(
    kind: str, most: float, tokens: float, chinese: Path, tmp_path: Path
) -> None:
    made = etymon.tokenizer(
        kind=kind, size=8000, data=chinese, documents="line", out=tmp_path / "t", progress="silent"
    )  # type: ignore[arg-type]
    assert made.report is not None and made.report.unknown_rate <= most
    assert made.report.fertility is None and 0.9 * tokens < made.report.tokens_per_character < tokens
