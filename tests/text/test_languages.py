"""Several languages: who gets how much, exactly, of samples and of the tokenizer's text."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etymon.errors import EtymonError
from etymon.objectives import get_objective
from etymon.objectives.languages import LanguageSampling
from etymon.text.language_reports import join_reports, report_languages
from etymon.text.languages import (
    LanguageSplit,
    LanguageText,
    exact_quotas,
    language_shares,
    put_together,
    sample_languages,
    split_languages,
)
from etymon.text.reading import Document
from etymon.text.sources import PreparedText, Texts, text_source
from etymon.text.store import TokenStore
from etymon.text.store_building import build_store
from etymon.text.tokenizer import Tokenizer
from etymon.text.tokenizer_training import train_tokenizer
from tests import tiny

CHINESE = [
    "我们在北京大学学习自然语言处理。",
    "酒店的服务员态度非常好，房间也很干净！",
    "研究生命的起源是一个困难的问题。",
]


def test_languages_of_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = split_languages(["zh=a.txt", "bo=b/", "zh=c*.txt", "zh-Hant=d.txt"])
    assert groups == {"zh": ["a.txt", "c*.txt"], "bo": ["b/"], "zh-Hant": ["d.txt"]}
    assert split_languages(["a.txt", "data/x=1.txt", "b.txt"]) is None
    monkeypatch.chdir(tmp_path)
    Path("en=1.txt").write_text("a file of that name", encoding="utf-8")
    assert split_languages(["en=1.txt"]) is None
    with pytest.raises(EtymonError, match=r"b\.txt has no language"):
        split_languages(["zh=a.txt", "b.txt"])
    with pytest.raises(EtymonError, match="prepared text"):
        LanguageText({"zh": PreparedText(tmp_path)})


@given(
    st.lists(st.integers(1, 10_000), min_size=1, max_size=8),
    st.floats(0, 1),
)
def test_quotas_add_up_and_are_nearest_to_their_shares(sizes: list[int], temperature: float) -> None:
    by_code = {f"l{number}": size for number, size in enumerate(sizes)}
    shares, total = language_shares(by_code, temperature), sum(sizes)
    assert sum(shares.values()) == pytest.approx(1)
    quotas = exact_quotas(total, shares)
    assert sum(quotas.values()) == total and min(quotas.values()) >= 1
    off = [abs(quotas[code] - total * share) for code, share in shares.items() if total * share >= 1]
    assert max(off, default=0) <= 1 + sum(total * share < 1 for share in shares.values())
    if temperature == 1:
        assert quotas == by_code
    if temperature == 0:
        assert max(quotas.values()) - min(quotas.values()) <= 1


def test_shares_are_powers_of_the_sizes() -> None:
    shares = language_shares({"en": 1_000_000, "bo": 1000}, 0.3)
    assert shares["en"] / shares["bo"] == pytest.approx(1000**0.3)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer("byte-bpe", [*tiny.texts(), *CHINESE * 5], 400, specials={"end": "<|endoftext|>"})


@pytest.fixture(scope="module")
def split(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> LanguageSplit:
    folder = tmp_path_factory.mktemp("languages")
    texts = {"en": tiny.texts(), "zh": [text * 3 for text in CHINESE]}
    for code, each in texts.items():
        build_store(map(Document, each), tokenizer, folder / code, validation=0.1, source=Texts(each))
    put_together(folder, texts, tokenizer)
    store = TokenStore.open(folder, tokenizer)
    store.verify()
    parts = [TokenStore.open(folder / code).summary.train.tokens for code in texts]
    assert store.summary.train.tokens == sum(parts) and store.summary.held_out == "by language"
    made: Any = store.train
    return made


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0])
def test_an_epoch_has_exact_quotas_and_is_a_function_of_seed_and_epoch(
    temperature: float, tokenizer: Tokenizer, split: LanguageSplit
) -> None:
    inner = get_objective("causal", tokenizer, 16)
    mixed = pickle.loads(pickle.dumps(LanguageSampling(inner, temperature)))
    assert (mixed.name, mixed.likelihood, mixed.heads) == (inner.name, inner.likelihood, inner.heads)
    quotas = mixed.quotas(split, 3)
    sizes = {code: len(inner.plan(part, 3, 0)) for code, part in split.parts.items()}
    assert {code: size for code, (_, size) in quotas.items()} == sizes
    expected = exact_quotas(sum(sizes.values()), language_shares(sizes, temperature))
    for epoch in (5, 0):  # in any order
        plan = mixed.plan(split, 3, epoch)
        counts = Counter(plan[:, 0].tolist())
        assert [counts[0], counts[1]] == list(expected.values())
        assert np.array_equal(plan, mixed.plan(split, 3, epoch))
        assert not np.array_equal(plan, mixed.plan(split, 4, epoch))
    if temperature == 1:
        assert mixed.readings(split, mixed.plan(split, 3, 0)) == pytest.approx(1)
    shares = [quota / size for quota, size in quotas.values()]
    words = [part.words.sum() for part in split.parts.values()]
    reading = float(np.dot(shares, words) / sum(words))
    assert mixed.readings(split, mixed.plan(split, 3, 2)) == pytest.approx(reading)


def test_a_language_goes_through_all_its_samples_before_any_comes_again(
    tokenizer: Tokenizer, split: LanguageSplit
) -> None:
    mixed = LanguageSampling(get_objective("causal", tokenizer, 16), 0.3)
    quotas = mixed.quotas(split, 0)
    for number, (code, (quota, size)) in enumerate(quotas.items()):
        seen: Counter[tuple[int, ...]] = Counter()
        epochs = 7
        for epoch in range(epochs):
            plan = mixed.plan(split, 0, epoch)
            seen.update(map(tuple, plan[plan[:, 0] == number, 1:].tolist()))
        passes = epochs * quota / size
        assert len(seen) == min(size, epochs * quota), code
        assert set(seen.values()) <= {int(passes), int(passes) + 1}, code


def test_validation_reads_all_of_every_language_in_order(tokenizer: Tokenizer, split: LanguageSplit) -> None:
    inner = get_objective("causal", tokenizer, 16)
    plan = LanguageSampling(inner, 0.3).plan(split, 0, 0, shuffle=False)
    parts = [inner.plan(part, 0, 0, shuffle=False) for part in split.parts.values()]
    assert np.array_equal(plan[:, 1:], np.concatenate(parts))
    row = plan[-1]
    example = LanguageSampling(inner, 0.3).prepare(split, row, np.random.default_rng(0))
    same = inner.prepare(split.parts["zh"], row[1:], np.random.default_rng(0))
    assert np.array_equal(example.ids, same.ids)


def test_a_tokenizer_learns_from_the_same_shares_of_the_bytes() -> None:
    texts = {"en": Texts([text * 40 for text in tiny.texts()]), "zh": Texts(CHINESE * 30)}
    sizes = {code: sum(len(text.encode()) for text in each.texts) for code, each in texts.items()}
    for temperature in (1.0, 0.3, 0.0):
        with sample_languages(LanguageText(dict(texts), temperature), hold_out=False) as (mixed, _):
            amounts: Counter[str] = Counter()
            for text in mixed:
                amounts["zh" if "。" in text or "！" in text else "en"] += len(text.encode())
            again = sum(len(text.encode()) for text in mixed)
        shares = language_shares(sizes, temperature)
        assert again == sum(amounts.values())
        for code, share in shares.items():
            # The last text of a language may reach over its quota.
            assert amounts[code] == pytest.approx(share * sum(sizes.values()), abs=20_000), (
                code,
                temperature,
            )


def test_reports_by_language_add_up(tokenizer: Tokenizer) -> None:
    texts = {"en": tiny.texts()[:20], "zh": CHINESE}
    reports = report_languages(tokenizer, texts, {})
    joined = join_reports(reports.values())
    assert joined.bytes == sum(len(text.encode()) for each in texts.values() for text in each)
    assert reports["en"].report.fertility is not None and reports["zh"].report.fertility is None
    ids = {
        code: {id_ for text in each for id_ in tokenizer.encode(text).tolist()}
        for code, each in texts.items()
    }
    assert reports["zh"].used == len(ids["zh"]) and reports["zh"].alone == len(ids["zh"] - ids["en"])


def test_text_by_language_is_known_again(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text(f"text {name}\n" * 30, encoding="utf-8")
    first = text_source([f"en={tmp_path / 'a.txt'}", f"de={tmp_path / 'b.txt'}"])
    second = text_source([f"de={tmp_path / 'b.txt'}", f"en={tmp_path / 'a.txt'}"])
    swapped = text_source([f"de={tmp_path / 'a.txt'}", f"en={tmp_path / 'b.txt'}"])
    assert first.fingerprint() == second.fingerprint() != swapped.fingerprint()
    assert len(list(first.documents())) == 2 and first.description.startswith("en: ")
