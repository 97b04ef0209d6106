from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etymon.errors import EtymonError
from etymon.text import encoding, sentences
from etymon.text.reading import Document
from etymon.text.sentences import cut_spans, sentence_starts
from etymon.text.sources import Texts
from etymon.text.store import Split, TokenStore, _open_array
from etymon.text.store_building import build_store, ensure_store
from etymon.text.tokenizer import Tokenizer
from tests.fuzz.damage import damaged_npy
from tests.reconstruct import sentence_spans

from .conftest import story


@pytest.fixture(scope="module")
def store(
    tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer, documents: list[Document]
) -> TokenStore:
    folder = tmp_path_factory.mktemp("store") / tokenizer.kind
    build_store(documents, tokenizer, folder, validation=0.2)
    return TokenStore.open(folder, tokenizer)


def test_documents_come_back_in_order(
    store: TokenStore, tokenizer: Tokenizer, documents: list[Document]
) -> None:
    train, validation = store.train, store.validation
    assert len(train) + len(validation) == len(documents) and len(validation) > 0
    assert store.summary.held_out == "documents"
    encoded = [tokenizer.encode(document.text) for document in documents]
    sides = [iter([split.document(i) for i in range(len(split))]) for split in (train, validation)]
    waiting = [next(side, None) for side in sides]
    for ids in encoded:  # each document is the next one of one of the two splits
        side = next(n for n, item in enumerate(waiting) if item is not None and np.array_equal(item, ids))
        waiting[side] = next(sides[side], None)
    assert waiting == [None, None]
    assert train.tokens.dtype == np.uint16
    store.verify()


def test_sizes_and_sentences(store: TokenStore, tokenizer: Tokenizer, documents: list[Document]) -> None:
    text_of = {tokenizer.encode(document.text).tobytes(): document.text for document in documents}
    for split in (store.train, store.validation):
        for index in range(len(split)):
            text = text_of[split.document(index).astype(np.int32).tobytes()]
            assert split.bytes[index] == len(text.encode())
            assert split.words[index] == len(text.split())
            spans = sentence_spans(split, index)
            assert spans[0][0] == split.documents[index] and spans[-1][1] == split.documents[index + 1]
            assert all(stop == start for (_, stop), (start, _) in pairwise(spans))
            ids, starts, stops = tokenizer.offsets(text)
            space = tokenizer.backend.token_to_id("▁")
            for (token, _), place in zip(spans, sentence_starts(text), strict=False):
                token -= split.documents[index]
                token += ids[token] == space  # a space of its own comes before the first character
                assert starts[token] <= place < stops[token]
            if "asked" in text:
                assert len(spans) == len(sentence_starts(text))
    counts = store.summary.train
    assert counts.tokens == len(store.train.tokens) and counts.sentences == len(store.train.sentences)
    assert counts.bytes == store.train.bytes.sum() and counts.documents == len(store.train)


def test_the_virtual_stream(store: TokenStore) -> None:
    split = store.train
    whole = np.concatenate([[*split.document(i), 9999] for i in range(len(split))])
    assert split.stream_length == len(whole) == len(split.tokens) + len(split)
    assert np.array_equal(split.stream(0, len(whole), 9999), whole)
    rng = np.random.default_rng(0)
    for _ in range(200):
        start, stop = np.sort(rng.integers(0, len(whole) + 1, 2)).tolist()
        part = split.stream(start, stop, 9999)
        assert part.dtype == np.int64 and np.array_equal(part, whole[start:stop])
    assert split.stream(-1, 3, 9999).tolist() == [9999, *whole[:3]]
    assert len(split.stream(-1, -1, 9999)) == len(split.stream(5, 5, 9999)) == 0
    for wrong in ((-2, 1), (3, 2), (0, len(whole) + 1)):
        with pytest.raises(IndexError):
            split.stream(*wrong, 9999)


def test_building_is_deterministic_and_the_seed_moves_documents(
    trained: dict[str, Tokenizer], documents: list[Document], tmp_path: Path
) -> None:
    tokenizer = trained["byte-bpe"]

    def held(name: str, seed: int, texts: list[Document]) -> set[bytes]:
        build_store(texts, tokenizer, tmp_path / name, validation=0.3, seed=seed)
        split = TokenStore.open(tmp_path / name).validation
        return {split.document(i).tobytes() for i in range(len(split))}

    first = held("a", 0, documents)
    assert held("b", 0, documents) == first != held("c", 1, documents)
    assert (tmp_path / "a" / "store.json").read_bytes() == (tmp_path / "b" / "store.json").read_bytes()
    assert held("d", 0, documents[::-1]) == first  # by the text, not by its place
    assert held("e", 0, documents[:40]) <= first
    assert 5 < len(first) < 35


@pytest.mark.parametrize("number", [1, 3])
def test_few_documents_lose_their_tail(
    tokenizer: Tokenizer, tmp_path: Path, documents: list[Document], number: int
) -> None:
    texts = [Document(story(number, 40)) for number in range(number)]
    summary = build_store(texts, tokenizer, tmp_path / "s", validation=0.1)
    assert summary.held_out == "tail"
    store = TokenStore.open(tmp_path / "s")
    joined = np.concatenate([store.train.tokens, store.validation.tokens])
    assert np.array_equal(joined, np.concatenate([tokenizer.encode(text.text) for text in texts]))
    assert 0.05 < len(store.validation.tokens) / len(joined) < 0.2
    assert len(store.train) + len(store.validation) in (number, number + 1)
    total = sum(len(text.text.encode()) for text in texts), sum(len(text.text.split()) for text in texts)
    assert total == (
        store.train.bytes.sum() + store.validation.bytes.sum(),
        store.train.words.sum() + store.validation.words.sum(),
    )
    tail = tokenizer.decode(store.validation.document(0)).strip()
    assert tail.startswith(("The", '"')) and texts[-1].text.endswith(tail[-20:])


def test_one_sentence_is_cut_by_tokens(trained: dict[str, Tokenizer], tmp_path: Path) -> None:
    tokenizer = trained["byte-bpe"]
    summary = build_store([Document("the river " * 20)], tokenizer, tmp_path / "s", validation=0.25)
    assert summary.train.tokens > summary.validation.tokens > 0
    assert summary.train.bytes + summary.validation.bytes == 200
    with pytest.raises(EtymonError, match="a single token"):
        build_store([Document("!")], tokenizer, tmp_path / "t")
    whole = build_store([Document("the river")], tokenizer, tmp_path / "u", validation=0)
    assert whole.validation.tokens == 0 and len(TokenStore.open(tmp_path / "u").validation.tokens) == 0


@pytest.mark.parametrize(
    "text", ["Title.\n" + "the river " * 500, "天地玄黄" * 500 + "\nThe end.", "Title\n" + "天地" * 500]
)
def test_a_sentence_without_end_is_divided(text: str, trained: dict[str, Tokenizer], tmp_path: Path) -> None:
    tokenizer = trained["byte-bpe"]
    first = build_store([Document("One. Two.")] * 2, tokenizer, tmp_path / "f", validation=0).train
    texts = [Document("One. Two.")] * 2 + [Document(text)]
    summary = build_store(texts, tokenizer, tmp_path / "s", validation=0.1)
    store, total = TokenStore.open(tmp_path / "s"), len(tokenizer.encode(text)) + first.tokens
    assert summary.validation.tokens == pytest.approx(0.1 * total, abs=3)
    assert summary.validation.bytes == pytest.approx(0.1 * len(text.encode()), rel=0.1)
    assert summary.train.bytes + summary.validation.bytes == len(text.encode()) + first.bytes
    assert store.validation.sentences[0] == 0 and len(store.train) == 3
    assert "\ufffd" not in tokenizer.decode(store.validation.tokens) + tokenizer.decode(store.train.tokens)


def test_no_text_and_bad_shares(trained: dict[str, Tokenizer], tmp_path: Path) -> None:
    tokenizer = trained["unigram"]
    for texts in ([], [Document(""), Document(" \n")]):
        with pytest.raises(EtymonError, match="there is no text to store"):
            build_store(texts, tokenizer, tmp_path / "s")
    with pytest.raises(EtymonError, match="validation is a share"):
        build_store([Document("a b")], tokenizer, tmp_path / "s", validation=1)
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- long documents in pieces


@given(st.text(alphabet="ab \n。é", max_size=200), st.integers(2, 50))
def test_pieces_cover_the_text(text: str, limit: int) -> None:
    spans = list(cut_spans(text, limit))
    assert "".join(text[start:stop] for start, stop in spans) == text
    assert all(0 < stop - start <= limit for start, stop in spans) or not text


@settings(max_examples=50, deadline=None)
@given(st.text(alphabet="The river\n  Café saw it. ", min_size=1, max_size=300))
def test_pieces_are_encoded_like_the_whole(trained: dict[str, Tokenizer], text: str) -> None:
    spans = list(cut_spans(text, 40))
    cut_at_space = all(text[start].isspace() for start, _ in spans[1:])
    for tokenizer in trained.values():
        parts = tokenizer.encode_batch([text[start:stop] for start, stop in spans])
        if cut_at_space:
            assert np.array_equal(np.concatenate(parts), tokenizer.encode(text))


def test_small_pieces_and_batches_give_the_same_store(
    tokenizer: Tokenizer, documents: list[Document], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = documents[:-1]  # the last one is in many scripts
    build_store(texts, tokenizer, tmp_path / "a")
    monkeypatch.setattr(encoding, "BATCH", 300)
    monkeypatch.setattr(sentences.cut_spans, "__defaults__", (64,))
    seen: list[int] = []
    build_store(texts, tokenizer, tmp_path / "b", progress=seen.append)
    assert (
        seen == sorted(seen) and seen[-1] == sum(len(text.text.encode()) for text in texts) and len(seen) > 10
    )
    assert (tmp_path / "a" / "store.json").read_text() == (tmp_path / "b" / "store.json").read_text()


# ---------------------------------------------------------------- reuse and damage


def test_reuse_only_when_nothing_changed(
    trained: dict[str, Tokenizer], documents: list[Document], tmp_path: Path
) -> None:
    folder = tmp_path / "store"
    texts = [document.text for document in documents]

    def ensure(kind: str = "byte-bpe", texts: list[str] = texts, **options: float) -> bool:
        return ensure_store(Texts(texts), trained[kind], folder, **options).reused  # type: ignore[arg-type]

    assert ensure() is False and ensure() is True
    assert ensure(texts=texts[1:]) is False
    assert ensure("unigram") is False
    assert ensure("unigram", seed=1) is False
    assert ensure("unigram", seed=1, validation=0.1) is False
    assert ensure("unigram", seed=1, validation=0.1) is True
    (folder / "train" / "tokens.bin").write_bytes(b"")
    assert ensure("unigram", seed=1, validation=0.1) is False
    data = bytearray((folder / "train" / "tokens.bin").read_bytes())
    data[100] ^= 1
    (folder / "train" / "tokens.bin").write_bytes(data)
    assert ensure("unigram", seed=1, validation=0.1) is False, "damage of the right size is found, too"
    TokenStore.open(folder).verify()
    with pytest.raises(EtymonError, match="built with another tokenizer"):
        TokenStore.open(folder, trained["byte-bpe"])


def test_damage_is_named(trained: dict[str, Tokenizer], documents: list[Document], tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with pytest.raises(EtymonError, match="no token store"):
        TokenStore.open(folder)
    build_store(documents, trained["byte-bpe"], folder)
    path = folder / "train" / "tokens.bin"
    data = bytearray(path.read_bytes())
    data[100] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(EtymonError, match=r"train.tokens.bin is damaged \(wrong checksum\)"):
        TokenStore.open(folder).verify()
    path.write_bytes(data[:-2])
    with pytest.raises(EtymonError, match=r"train.tokens.bin is missing or cut short"):
        TokenStore.open(folder)
    for content, reason in (("{", "is not valid JSON"), ('{"format": 99}', "has store format 99")):
        (folder / "store.json").write_text(content)
        with pytest.raises(EtymonError, match=reason):
            TokenStore.open(folder)


def test_ids_beyond_the_vocabulary(
    trained: dict[str, Tokenizer], documents: list[Document], tmp_path: Path
) -> None:
    folder = tmp_path / "store"
    build_store(documents, trained["byte-bpe"], folder)
    description = json.loads((folder / "store.json").read_text())
    description["vocabulary_size"] = 50
    (folder / "store.json").write_text(json.dumps(description))
    with pytest.raises(EtymonError, match="but the vocabulary has 50 tokens"):
        TokenStore.open(folder).verify()


def test_a_spelled_out_special_token_keeps_sentences_right(
    trained: dict[str, Tokenizer], tmp_path: Path
) -> None:
    tokenizer = trained["byte-bpe"]
    text = "The river.<|endoftext|>The é mountain. It saw a letter."
    build_store([Document(text)], tokenizer, tmp_path / "s", validation=0)
    split: Split = TokenStore.open(tmp_path / "s").train
    last = split.tokens[slice(*sentence_spans(split, 0)[-1])]
    assert tokenizer.decode(last).strip() == "It saw a letter."
    assert split.bytes[0] == len(text.encode())


def test_large_vocabularies_use_four_bytes(trained: dict[str, Tokenizer], tmp_path: Path) -> None:
    import tokenizers

    backend = tokenizers.Tokenizer.from_str(trained["byte-bpe"].backend.to_str())
    backend.add_tokens([f"extra{number}!" for number in range(70_000)])
    big = Tokenizer(backend, trained["byte-bpe"].roles)
    build_store([Document("the river extra69999! saw")], big, tmp_path / "s", validation=0)
    split = TokenStore.open(tmp_path / "s").train
    assert split.tokens.dtype == np.uint32 and int(split.tokens.max()) == big.size - 1


@pytest.mark.parametrize("seed", range(25))
def test_headers_of_arrays_that_promise_something_else_are_refused(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "documents.npy"
    np.save(path, np.arange(5))
    path.write_bytes(damaged_npy(random.Random(seed), path.read_bytes()))
    try:
        array = _open_array(path)
    except EtymonError as error:
        assert "documents.npy" in str(error) and "\n" not in str(error)
    else:  # bits of its numbers, or bytes behind them, are a matter of the checksum
        assert array.dtype == np.int64 and array.ndim == 1
