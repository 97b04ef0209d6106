"""Words of text without spaces: found by a segmenter, stored with the tokens, hidden whole."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import etymon
from etymon import plugins
from etymon.errors import EtymonError
from etymon.executors import LocalExecutor
from etymon.families import get_family
from etymon.objectives import get_objective
from etymon.sampling import noise
from etymon.sampling.plans import key
from etymon.text.encoding import Encoder, Part
from etymon.text.reading import Document
from etymon.text.segmenters import UncutText, count_words, open_segmenter, segment_spaces, way_for
from etymon.text.sources import Texts
from etymon.text.store import Split, TokenStore
from etymon.text.store_building import build_store, ensure_store
from etymon.text.tokenizer import Tokenizer
from etymon.text.tokenizer_training import train_tokenizer
from etymon.text.words import spaceless_share

SENTENCES = [
    "我们在北京大学学习自然语言处理。",
    "酒店的服务员态度非常好，房间也很干净！",
    "他用iPhone手机拍了很多照片 and sent them home.",
    "研究生命的起源是一个困难的问题。",
    "The river crosses the old city.",
    "明天下午三点在图书馆开会，请准时参加。",
]
KINDS = ["wordpiece", "unigram", "bpe", "byte-bpe", "character", "byte"]


@pytest.fixture(scope="module")
def make() -> Callable[[str], Tokenizer]:
    made: dict[str, Tokenizer] = {}

    def tokenizer(kind: str) -> Tokenizer:
        if kind not in made:
            specials = {
                "pad": "[PAD]",
                "unknown": "[UNK]",
                "class": "[CLS]",
                "separator": "[SEP]",
                "mask": "[MASK]",
            }
            made[kind] = train_tokenizer(
                kind, SENTENCES * 20, 300 if kind != "byte" else 261, specials=specials
            )
        return made[kind]

    return tokenizer


def spell_words(text: str, tokenizer: Tokenizer, way: str) -> list[str]:
    """The words of a text as groups of its tokens."""
    encoded = Encoder(tokenizer, np.dtype(np.int32), way)([Part(text, "", None, False)])
    assert encoded.word_starts is not None and len(encoded.word_starts) == len(encoded.tokens)
    _, starts, stops = tokenizer.offsets(text, quiet=True)
    firsts = np.flatnonzero(encoded.word_starts)
    lasts = np.append(firsts[1:], len(starts)) - 1
    return [text[starts[first] : stops[last]].strip() for first, last in zip(firsts, lasts, strict=True)]


@pytest.mark.parametrize("kind", ["wordpiece", "character", "byte"])
def test_words_of_jieba_are_groups_of_tokens(kind: str, make: Callable[[str], Tokenizer]) -> None:
    words = [word for word in spell_words(SENTENCES[0], make(kind), "jieba") if word]
    assert words == ["我们", "在", "北京大学", "学习", "自然语言", "处理", "。"]
    mixed = [word for word in spell_words(SENTENCES[2], make(kind), "jieba") if word]
    assert mixed[:5] == ["他用", "iPhone", "手机", "拍", "了"], "as jieba cuts it, right or wrong"
    assert mixed[6:10] == ["照片", "and", "sent", "them"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_word_never_shares_a_token_with_another(kind: str, make: Callable[[str], Tokenizer]) -> None:
    """Where a token reaches over the end of a word, both words are one: groups begin and end with words."""
    segmenter = open_segmenter("jieba")
    assert segmenter is not None
    for text in SENTENCES[:2] + SENTENCES[3:4] + SENTENCES[5:]:
        bounds = {place for word in segmenter.segment(text, "").words for place in word}
        place = 0
        for word in spell_words(text, make(kind), "jieba"):
            begin = text.index(word, place)
            place = begin + len(word)
            assert {begin, place} <= bounds, f"{word!r} of {text!r}"


def test_without_chinese_nothing_changes(make: Callable[[str], Tokenizer]) -> None:
    tokenizer = make("byte-bpe")
    text = "The river crosses\nthe old city, isn't it?"
    encoded = Encoder(tokenizer, np.dtype(np.int32), "jieba")([Part(text, "", None, False)])
    assert encoded.word_starts is not None
    assert encoded.word_starts[0] and np.array_equal(
        encoded.word_starts[1:], tokenizer.word_starts[encoded.tokens][1:]
    )


def test_spaces_of_a_tool_go_and_others_stay() -> None:
    cut = "我们 在 北京大学 用 iPhone 15 手机 。\nhello world , 你好"
    text, runs, words = segment_spaces(cut, "")
    assert text == "我们在北京大学用iPhone 15手机。\nhello world ,你好"
    assert runs == [(0, len(text))]
    assert [text[start:stop] for start, stop in words] == cut.split()
    # A part of a longer text: what is before it decides about its first space.
    assert segment_spaces(" world", "hello").text == " world"
    assert segment_spaces(" world", "你好").text == "world"
    assert [each.text for each in UncutText(Texts([cut])).documents()] == [text]


def test_text_that_is_cut_gives_the_store_of_the_text_with_its_words(
    make: Callable[[str], Tokenizer], tmp_path: Path
) -> None:
    tokenizer, segmenter = make("wordpiece"), open_segmenter("jieba")
    assert segmenter is not None
    chinese = [SENTENCES[0], SENTENCES[1], SENTENCES[3]]
    cut = [
        " ".join(text[start:stop] for start, stop in segmenter.segment(text, "").words) for text in chinese
    ]
    for name, texts, way in (("plain", chinese, "jieba"), ("cut", cut, "spaces")):
        build_store(map(Document, texts), tokenizer, tmp_path / name, validation=0.0, words=way)
    plain, again = (TokenStore.open(tmp_path / name).train for name in ("plain", "cut"))
    for array in ("tokens", "documents", "sentences", "bytes", "words", "word_bits"):
        assert np.array_equal(getattr(plain, array), getattr(again, array)), array
    assert plain.words.tolist() == [6, 10, 9], "punctuation marks are no words"


def test_a_function_finds_words(
    make: Callable[[str], Tokenizer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "def pairs(text):\n    return [text[i:i + 2] for i in range(0, len(text), 2)]\n"
    source += "def loses(text):\n    return text.split('在')\n"
    source += "def fails(text):\n    return 1 / 0\n"
    (tmp_path / "my_cutter.py").write_text(source, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv(plugins.NAMED, "my_cutter:no_such_module".replace(":", os.pathsep))
    words = spell_words("我们在北京大学", make("character"), "my_cutter:pairs")
    assert words == ["我们", "在北", "京大", "学"]
    for name, message in (("loses", "changed the text"), ("fails", "division by zero"), ("absent", "absent")):
        with pytest.raises(EtymonError, match=message):
            spell_words("我们在北京大学", make("character"), f"my_cutter:{name}")
    with pytest.raises(EtymonError, match="No module named"):
        open_segmenter("no_such_module:cut")
    # Several processes give the same store, and a store is built again when the function changes.
    documents = [Document(text) for text in SENTENCES * 30]
    for workers in (1, 2):
        options: dict[str, Any] = {
            "validation": 0.1,
            "words": "my_cutter:pairs",
            "executor": LocalExecutor(workers),
        }
        build_store(documents, make("character"), tmp_path / f"store{workers}", **options)
    first, second = ((tmp_path / f"store{n}" / "train" / "word_starts.bin").read_bytes() for n in (1, 2))
    assert first == second and len(first) > 100


def test_a_store_is_used_again_only_with_the_same_words(
    make: Callable[[str], Tokenizer], tmp_path: Path
) -> None:
    source, tokenizer, folder = Texts(SENTENCES * 5), make("byte-bpe"), tmp_path / "store"
    assert not ensure_store(source, tokenizer, folder, words="jieba").reused
    again = ensure_store(source, tokenizer, folder, words="jieba")
    assert again.reused and again.words == {"way": "jieba", "version": "0.42.1"}
    assert not ensure_store(source, tokenizer, folder).reused
    assert TokenStore.open(folder).train.word_flags is None


def test_flags_follow_their_tokens_into_both_splits(make: Callable[[str], Tokenizer], tmp_path: Path) -> None:
    tokenizer = make("character")
    texts = ["".join(chosen) for chosen in product(SENTENCES, repeat=3)]
    build_store(map(Document, texts), tokenizer, tmp_path / "store", validation=0.3, words="jieba")
    store = TokenStore.open(tmp_path / "store", tokenizer)
    store.verify()
    encoder = Encoder(tokenizer, np.dtype(np.uint16), "jieba")
    for split in (store.train, store.validation):
        flags = split.word_flags
        assert flags is not None and len(split) > 20
        for index in range(0, len(split), 7):
            text = tokenizer.decode(split.document(index))
            encoded = encoder([Part(text, "", None, False)])
            assert np.array_equal(flags.document(index).astype(bool), encoded.word_starts)
        start, stop = split.stream_length // 3, split.stream_length // 2
        stream, begins = split.stream(start, stop, -1), flags.stream(start, stop, 1)
        assert len(stream) == len(begins) and begins[stream == -1].all()


@pytest.fixture(scope="module")
def chinese(make: Callable[[str], Tokenizer], tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    folder = tmp_path_factory.mktemp("chinese") / "store"
    documents = [Document("\n".join(SENTENCES[number % 3 :])) for number in range(60)]
    build_store(documents, make("wordpiece"), folder, words="jieba")
    return TokenStore.open(folder)


@pytest.mark.parametrize("objective", ["masked", "masked-next-sentence", "masked-sentence-order"])
@pytest.mark.parametrize("masking", ["whole-words", "ngram"])
@pytest.mark.parametrize("length", [24, 48])
def test_the_neighbours_of_a_masked_token_in_its_word_are_masked(
    objective: str, masking: str, length: int, chinese: TokenStore, make: Callable[[str], Tokenizer]
) -> None:
    tokenizer, split = make("wordpiece"), chinese.train
    made = get_objective(objective, tokenizer, length, masking=masking)
    share = masked_with_neighbours(made, split, tokenizer)
    assert share == 1.0
    # The same text without words: a character by itself, and the measure sees it.
    plain = Split(split.tokens, split.documents, split.sentences)
    assert masked_with_neighbours(made, plain, tokenizer, flags=split) < 0.9


def masked_with_neighbours(
    objective: object, split: Split, tokenizer: Tokenizer, flags: Split | None = None
) -> float:
    """Of the masked tokens with a neighbour in their word, the share whose neighbours are all masked."""
    made: object = objective
    plan = made.plan(split, 0, 0)  # type: ignore[attr-defined]
    words = (flags or split).word_flags
    assert words is not None
    separator = tokenizer.id("separator")
    assert separator is not None
    alike = total = 0
    for number, row in enumerate(plan[:60]):
        example = made.prepare(split, row, key(0, "sample", number))  # type: ignore[attr-defined]
        spans = [row[:2], row[2:4]] if len(row) >= 4 else [row[:2]]
        if len(spans) == 1:
            begins = words.stream(*row.tolist(), 1)
            ids = split.stream(*row.tolist(), separator)
        else:
            begins = np.concatenate([words.tokens[a:b].astype(np.int64) for a, b in spans])
            ids = np.concatenate([split.tokens[a:b] for a, b in spans])
        groups = np.cumsum(begins)
        starts = np.cumsum([0] + [int(b - a) for a, b in spans])[:-1]
        groups += np.searchsorted(starts, np.arange(len(ids)), side="right") * 10_000  # no word in two spans
        # Places in the framed input, back to places in the text: special tokens are 1 before, 1 between.
        text_places = np.flatnonzero(~framed_special(len(ids), starts))
        position = {int(place): at for at, place in enumerate(text_places)}
        masked = {position[int(place)] for place in example.places}
        for at in masked:
            word = np.flatnonzero((groups == groups[at]) & (ids != separator))
            if len(word) > 1:
                total += 1
                alike += set(word.tolist()) <= masked
    assert total > 20
    return alike / total


def framed_special(length: int, starts: np.ndarray) -> np.ndarray:
    special = np.zeros(length + 1 + len(starts), bool)
    special[[0, -1]] = True
    for number, start in enumerate(starts[1:], 1):
        special[start + number] = True
    return special


def test_where_every_word_is_longer_than_the_share_a_shortest_is_hidden_whole() -> None:
    starts = np.array([1, 0, 0, 1, 0, 1, 0, 1, 0, 0], bool)
    hidden = set()
    for number in range(40):
        mask = noise.words_mask(starts, np.ones(10, bool), 1, key(number), 3, is_strict=True)
        hidden.add(tuple(np.flatnonzero(mask).tolist()))
    assert hidden == {(3, 4), (5, 6)}
    assert not noise.words_mask(starts[:2], np.zeros(2, bool), 1, key(0), 1, is_strict=True).any()


@pytest.mark.parametrize("name, options", [("denoising", {"noise": "infilling"}), ("permutation", {})])
def test_other_objectives_read_the_words_too(name: str, options: dict[str, str], tmp_path: Path) -> None:
    family = "bart" if name == "denoising" else "xlnet"
    recipe = get_family(family)
    tokenizer = train_tokenizer(
        "character", SENTENCES, 400, specials=dict(recipe.tokenizer.specials), framing=recipe.framing
    )
    build_store(map(Document, SENTENCES * 20), tokenizer, tmp_path / "store", words="jieba")
    split = TokenStore.open(tmp_path / "store").train
    plain = Split(split.tokens, split.documents, split.sentences)
    objective = get_objective(name, tokenizer, 32, **options)
    plan = objective.plan(split, 0, 0)
    pairs = [
        [objective.prepare(text, row, key(0, number)).ids for text in (split, plain)]
        for number, row in enumerate(plan[:20])
    ]
    if name == "denoising":
        assert any(not np.array_equal(*pair) for pair in pairs)
    else:
        assert all(np.array_equal(*pair) for pair in pairs), "what is read does not change, targets do"


def test_words_are_counted_and_the_share_without_spaces_is_told(make: Callable[[str], Tokenizer]) -> None:
    read, count = count_words([SENTENCES[0], SENTENCES[4]], open_segmenter("jieba"))
    assert read == [SENTENCES[0], SENTENCES[4]] and count == 6 + 6
    assert count_words(["a b, c"], None)[1] == 3
    for kind in KINDS:
        tokenizer = make(kind)
        assert spaceless_share(tokenizer, Split.of_texts([SENTENCES[4]], tokenizer)) == 0
        assert spaceless_share(tokenizer, Split.of_texts([SENTENCES[0]], tokenizer)) > 0.3, kind


def test_ways_by_language() -> None:
    assert way_for((), "zh") is None and way_for(("jieba",), "zh") == "jieba" == way_for(("jieba",))
    ways = ("zh=jieba", "th=cutter:cut", "tokens")
    assert [way_for(ways, code) for code in ("zh", "th", "en")] == ["jieba", "cutter:cut", "tokens"]


def test_an_interrupted_store_goes_on_with_its_words(
    make: Callable[[str], Tokenizer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("etymon.text.encoding.BATCH", 400)
    documents = [Document(f"{text}{number}") for number in range(20) for text in SENTENCES]

    def interrupted() -> Iterator[Document]:
        yield from documents[:70]
        raise KeyboardInterrupt

    options: dict[str, Any] = {"words": "jieba", "resumable": True}
    with pytest.raises(KeyboardInterrupt):
        build_store(interrupted(), make("character"), tmp_path / "store", **options)
    summary = build_store(documents, make("character"), tmp_path / "store", **options)
    assert summary.resumed_bytes > 0
    build_store(documents, make("character"), tmp_path / "straight", words="jieba")
    for split in ("train", "validation"):
        first, second = (
            (tmp_path / name / split / "word_starts.bin").read_bytes() for name in ("store", "straight")
        )
        assert first == second and first
    # What another segmenter had begun is not taken over.
    with pytest.raises(KeyboardInterrupt):
        build_store(interrupted(), make("character"), tmp_path / "other", **options)
    assert build_store(documents, make("character"), tmp_path / "other", resumable=True).resumed_bytes == 0


def test_a_function_that_only_a_folder_names_is_never_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = tmp_path / "ran"
    source = f"open({str(ran)!r}, 'w').close()\n\n\ndef cut(text):\n    return text.split()\n"
    (tmp_path / "bad_cutter.py").write_text(source, encoding="utf-8")
    (tmp_path / "text.txt").write_text("我们 在 北京 大学\n" * 40, encoding="utf-8")
    (tmp_path / "run.yaml").write_text("words: ['bad_cutter:cut']\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv(plugins.NAMED, "")
    asked: dict[str, Any] = {
        "data": "text.txt", "documents": "line", "steps": 1, "vocabulary": 300, "batch": 1, "length": 16,
        "progress": "silent", "set": ["shape.dim=32", "shape.layers=1", "shape.heads=2"],
    }  # fmt: skip
    for way in ("bad_cutter:cut", "os:system"):
        with pytest.raises(EtymonError, match=f"--words {way}") as error:
            open_segmenter(way)
        assert "\n" not in str(error.value)
    with pytest.raises(EtymonError, match="a folder brings no code"):
        etymon.pretrain("gpt2", config="run.yaml", out=tmp_path / "run", **asked)
    assert not ran.exists()
    # Named by the user, the same function is used.
    etymon.pretrain("gpt2", words=["bad_cutter:cut"], out=tmp_path / "named", **asked)
    assert ran.exists()
