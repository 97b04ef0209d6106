"""Documents that are left out: which, how many, and that nothing depends on who looked at them."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etymon.errors import EtymonError
from etymon.executors import LocalExecutor
from etymon.settings.reading import FilterSettings
from etymon.text import encoding, filtering
from etymon.text.filtering import FilteredText, NearCopies, filter_text, read_report, shingles, word_list
from etymon.text.reading import Document
from etymon.text.sources import PreparedText, TextFiles, Texts
from etymon.text.store import TokenStore
from etymon.text.store_building import build_store
from etymon.text.tokenizer import Tokenizer

from .conftest import story
from .test_preparing import in_parts
from .test_resuming import files

CHINESE = (
    "春天来了，河边的柳树发芽了，孩子们在公园里放风筝，老人们坐在长椅上聊天。湖水很清，可以看见小鱼游来游去。"
    "远处的山还有一点雪，近处的花已经开了，黄的是迎春，白的是玉兰，红的是桃花。傍晚的时候，风有一点凉，大家慢慢地回家。"
)
THAI = "ฤดูใบไม้ผลิมาถึงแล้วต้นหลิวริมแม่น้ำเริ่มผลิใบเด็กๆเล่นว่าวในสวนสาธารณะผู้เฒ่านั่งคุยกันบนม้านั่งยาวน้ำในทะเลสาบใสมากมองเห็นปลาตัวเล็กว่ายไปมา"


def kept(texts: list[str], **settings: Any) -> list[str]:
    source = FilteredText(Texts(texts), FilterSettings(**settings))
    return [document.text for document in source.documents()]


def test_exact_copies_go_and_the_first_stays() -> None:
    source = FilteredText(Texts(["a b", "c", "a b", "a  b", "c"]), FilterSettings(deduplicate="exact"))
    assert [document.text for document in source.documents()] == ["a b", "c", "a  b"]
    report = source.report
    assert (report.read, report.kept, report.dropped) == (5, 3, {"copies": 2})
    assert report.examples["copies"][0] == {"document": 3, "text": "a b", "copy_of": 1}
    assert str(report) == "3 of 5 documents kept (60.0%); dropped: 2 copies"


@pytest.mark.parametrize("text", [story(1, 30), CHINESE, THAI], ids=["english", "chinese", "thai"])
def test_near_copies_go_in_every_script(text: str) -> None:
    changed = text[: len(text) // 2] + ("X" if text.isascii() else "鱼") + text[len(text) // 2 + 1 :]
    louder = text.upper().replace(",", " !")
    other = "".join(random.Random(0).sample(text, len(text)))
    assert kept([text, changed, louder, other], deduplicate="near") == [text, other]
    assert kept([text, changed], deduplicate="exact") == [text, changed]
    assert kept([text, changed], deduplicate="near", similarity=0.999) == [text, changed]


def test_half_a_text_is_no_near_copy() -> None:
    half = CHINESE[: len(CHINESE) // 2]
    assert kept([CHINESE, half], deduplicate="near") == [CHINESE, half]
    assert kept([CHINESE, half], deduplicate="near", similarity=0.3) == [CHINESE]


def test_words_of_all_scripts() -> None:
    assert word_list("The río, it's 3!") == ["the", "río", "it", "s", "3"]
    assert word_list("我们go吧。") == ["我", "们", "go", "吧"]
    assert word_list("नमस्ते ठीक है") == ["नमस्ते", "ठीक", "है"]
    assert shingles("one two") == {"one two"} and shingles("...") == {"..."}
    assert shingles("a b c d e f") == {"a b c d e", "b c d e f"}


def test_similarity_is_estimated_and_few_are_missed() -> None:
    draw = random.Random(3)
    words = [f"w{number}" for number in range(400)]
    near, far = [], []
    for number in range(60):
        text = [draw.choice(words) for _ in range(300)]
        for share, target in ((0.01, near), (0.15, far)):
            changed = [f"x{number}" if draw.random() < share else word for word in text]
            one, two = shingles(" ".join(text)), shingles(" ".join(changed))
            pair = [" ".join(text), " ".join(changed)]
            target.append((len(one & two) / len(one | two), len(kept(pair, deduplicate="near"))))
    assert all(count == 1 for similarity, count in near if similarity > 0.9)
    assert all(count == 2 for similarity, count in far if similarity < 0.65)


@pytest.mark.parametrize("similarity", [0.3, 0.5, 0.8, 0.95])
def test_bands_find_nearly_all_that_is_similar_enough(similarity: float) -> None:
    draw = np.random.default_rng(1)
    copies, found = NearCopies(similarity), 0
    for number in range(100):
        first = draw.integers(0, 1 << 32, filtering.SLOTS, np.uint32)
        second = first.copy()
        changed = int((1 - similarity) * filtering.SLOTS)
        second[draw.permutation(filtering.SLOTS)[:changed]] += np.uint32(1)
        assert copies.add(2 * number, first) is None
        found += copies.add(2 * number + 1, second) == 2 * number
    assert found >= 85


def test_lengths_in_characters_and_words() -> None:
    texts = ["one", "one two three", "one two three four five six", "我们去公园散步"]
    assert kept(texts, min_length=8) == texts[1:3]
    assert kept(texts, min_length="3words", max_length="6words") == texts[1:3]
    assert kept(texts, max_length="7 characters") == [texts[0], texts[3]]
    with pytest.raises(EtymonError, match=r"min_length .*write it as 200 or 200characters, or as 50words"):
        FilterSettings(min_length="a lot")
    with pytest.raises(
        EtymonError, match=r"the filters leave nothing of .*: 0 of 4 documents kept.* 4 too short"
    ):
        kept(texts, min_length=1000)


def test_languages() -> None:
    german = "Der Fluss war breit, und niemand wusste, wie man ihn überqueren sollte."
    texts = [story(1, 8), CHINESE, german]
    assert kept(texts, text_language="zh,en") == texts[:2]
    assert kept(texts, text_language=["de"]) == [german]
    with pytest.raises(EtymonError, match=r"--language xx cannot be told: it is one of .*en, eo, es"):
        kept(texts, text_language="xx")


@pytest.mark.parametrize(
    ("module", "settings"),
    [("rensa", {"deduplicate": "near"}), ("py3langid", {"text_language": "en"})],
)
def test_missing_packages_are_named(module: str, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(EtymonError, match=r"pip install 'etymon\[filters\]'"):
        filter_text(Texts(["a"]), FilterSettings(**settings))


@dataclass
class Parts:
    """Texts, whole or in parts."""

    documents_: list[Document]
    description = "parts"

    def documents(self) -> Iterator[Document]:
        return iter(self.documents_)

    def fingerprint(self) -> str:
        return "parts"


def test_long_documents_in_parts_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    long, short = story(5, 400), "A short one."
    monkeypatch.setattr(filtering, "JOB", 700)
    for copy in (long, long[:9000] + "!" + long[9001:]):
        parts = [*in_parts(long, 500), Document(short), *in_parts(copy, 777), Document(short + " Or not.")]
        source = FilteredText(Parts(parts), FilterSettings(deduplicate="near", min_length=15))
        texts = [document.text for document in source.documents()]
        assert "".join(texts) == long + short + " Or not."
        assert source.report.dropped == {"too short": 1, "copies" if copy is long else "near copies": 1}


# ---------------------------------------------------------------- stores


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    texts = [story(number, 6) for number in range(60)]
    texts += [text.replace("people", "persons", 1) for text in texts[:20]] + texts[5:15] + ["x", CHINESE]
    random.Random(1).shuffle(texts)
    path = tmp_path / "corpus.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    return path


SETTINGS = FilterSettings(deduplicate="near", similarity=0.7, min_length=10, text_language="en")


def test_a_filtered_store_does_not_depend_on_workers_or_kills(
    trained: dict[str, Tokenizer], corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filtering, "JOB", 2000)
    monkeypatch.setattr(encoding, "BATCH", 1500)

    def build(name: str, workers: int, stop: int | None = None) -> None:
        source: Any = filter_text(TextFiles([corpus]), SETTINGS)
        read = source.source.documents

        def broken() -> Iterator[Document]:
            for number, document in enumerate(read()):
                if number == stop:
                    raise EtymonError("cut")
                yield document

        source.source.documents = broken
        options: dict[str, Any] = {"source": source, "executor": LocalExecutor(workers), "resumable": True}
        build_store(source.documents(), trained["byte-bpe"], tmp_path / name, **options)

    build("whole", 1)
    build("two", 2)
    for stop in (30, 70):
        with pytest.raises(EtymonError, match="cut"):
            build("killed", 1, stop)
    computed: list[int] = []
    real = filtering.FeatureReader.__call__
    monkeypatch.setattr(
        filtering.FeatureReader,
        "__call__",
        lambda self, pieces: computed.append(len(pieces)) or real(self, pieces),
    )
    build("killed", 1)
    assert 0 < sum(computed) < 45  # of 92: the others were taken over
    assert files(tmp_path / "whole") == files(tmp_path / "two") == files(tmp_path / "killed")
    report = read_report(tmp_path / "whole")
    assert report is not None and report.read == 92 and report.kept == 60
    assert report.dropped == {"in another language": 1, "too short": 1, "copies": 10, "near copies": 20}
    store = TokenStore.open(tmp_path / "whole")
    assert len(store.train) + len(store.validation) == report.kept
    store.verify()


def test_other_filters_make_another_text(corpus: Path) -> None:
    plain = TextFiles([corpus])
    some = [
        plain,
        filter_text(plain, FilterSettings(deduplicate="exact")),
        filter_text(plain, FilterSettings(deduplicate="near")),
        filter_text(plain, FilterSettings(deduplicate="near", similarity=0.9)),
        filter_text(plain, FilterSettings(min_length=3)),
        filter_text(plain, FilterSettings(min_length="3words")),
    ]
    assert len({source.fingerprint() for source in some}) == len(some)
    assert filter_text(plain, FilterSettings(similarity=0.9)) is plain


def test_a_prepared_text_is_not_filtered(tmp_path: Path) -> None:
    with pytest.raises(EtymonError, match="give the filters to etymon prepare"):
        filter_text(PreparedText(tmp_path), FilterSettings(deduplicate="exact"))
