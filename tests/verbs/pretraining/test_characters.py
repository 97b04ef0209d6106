"""`--tokenizer char` and `byte`: models of characters and of bytes, from the text to what they write."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import etymon
from etymon.errors import EtymonError
from etymon.families.loading import load
from etymon.generation import decoding
from etymon.runs.result import Pretrained
from etymon.runs.run_file import RunFile, assemble
from etymon.text.sources import Texts
from etymon.text.tokenizer import Tokenizer
from tests.generation.test_text import Scripted
from tests.verbs.small_runs import metrics, pretrain, resume

SUBJECTS, VERBS, OBJECTS = (
    "我们 春天 老师 river 学生".split(),
    "看见 喜欢 remembered 写下".split(),
    "山水 月亮 窗 letter".split(),
)


def chinese(count: int = 60) -> list[str]:
    draw = random.Random(1)

    def sentence() -> str:
        return f"{draw.choice(SUBJECTS)}{draw.choice(VERBS)}{draw.choice(OBJECTS)}。"

    return ["".join(sentence() for _ in range(draw.randint(3, 9))) for _ in range(count)]


def run(out: Path, tokenizer: str | None, **changes: Any) -> Pretrained:
    return pretrain("gpt2", out, **{"data": Texts(chinese()), "tokenizer": tokenizer, **changes})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Pretrained]]:
    folder = tmp_path_factory.mktemp("characters")
    yield {kind: run(folder / kind, kind) for kind in ("char", "byte")}


def test_one_id_a_character(made: dict[str, Pretrained]) -> None:
    model = load(made["char"].model_folder)
    tokenizer = model.tokenizer
    assert tokenizer is not None and tokenizer.kind == "character"
    letters = {letter for text in chinese() for letter in text}
    assert set(tokenizer.tokens) == letters | {"<|endoftext|>", "<unk>"}
    assert model.shape.vocabulary == tokenizer.size == len(letters) + 2
    text = chinese()[0]
    assert len(tokenizer.encode(text)) == len(text)
    assert tokenizer.id("end") is not None  # between documents, and to stop with


def test_one_id_a_byte(made: dict[str, Pretrained]) -> None:
    tokenizer = load(made["byte"].model_folder).tokenizer
    assert tokenizer is not None and tokenizer.kind == "byte" and tokenizer.size == 257
    text = chinese()[0]
    assert len(tokenizer.encode(text)) == len(text.encode()) > len(text)


def test_bits_per_character_stand_beside_bits_per_byte(made: dict[str, Pretrained], tmp_path: Path) -> None:
    longer = sum(len(text.encode()) for text in chinese()) / sum(map(len, chinese()))
    for name, result in {**made, "byte-bpe": run(tmp_path / "bpe", None)}.items():
        figures = result.metrics
        assert figures["bits_per_character"] / figures["bits_per_byte"] == pytest.approx(longer, rel=0.1), (
            name
        )
        trained = [record for record in metrics(result.folder) if "learning_rate" in record]
        assert all("bits_per_character" in record for record in trained)
        assert result.report is not None
        assert "validation bits per character" in result.report.read_text(encoding="utf-8")


def test_characters_that_are_too_many_are_unknown_and_it_is_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    result = run(tmp_path / "few", "char", vocabulary=20, progress="plain")
    told = capfd.readouterr().err
    tokenizer = Tokenizer.load(result.model_folder)
    assert tokenizer.size == 20
    known = set(tokenizer.tokens)
    unknown = sum(letter not in known for text in chinese() for letter in text)
    assert f"{unknown:,} characters of the text are not among the tokenizer's 20 tokens" in told
    assert "read as <unk>" in told
    capfd.readouterr()
    run(tmp_path / "all", "char", progress="plain")
    assert "not among" not in capfd.readouterr().err


def test_a_run_goes_on_and_another_begins_from_it(made: dict[str, Pretrained], tmp_path: Path) -> None:
    for name, result in made.items():
        again = resume("gpt2", result.folder, tokenizer=name)
        assert again.steps == result.steps and again.metrics == result.metrics
        more = run(tmp_path / name, None, from_=result.model_folder, size=None, steps=2)
        assert (
            Tokenizer.load(more.model_folder).fingerprint == Tokenizer.load(result.model_folder).fingerprint
        )
        same = run(tmp_path / f"{name}-named", name, from_=result.model_folder, size=None, steps=2)
        assert same.metrics == more.metrics
    with pytest.raises(EtymonError, match="of the kind 'character': leave --tokenizer byte out"):
        run(tmp_path / "other", "byte", from_=made["char"].model_folder, size=None)
    with pytest.raises(EtymonError, match="of the kind 'byte': leave --tokenizer char out"):
        run(tmp_path / "other", "char", from_=made["byte"].model_folder, size=None)
    assert not (tmp_path / "other").exists()


def test_a_run_file_names_it(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("family: gpt2\ntokenizer: char\nvocabulary: 30\n", encoding="utf-8")
    file = assemble(RunFile, {}, tmp_path / "run.yaml")
    assert file.kind == "character"
    assert assemble(RunFile, {"family": "gpt2", "tokenizer": "./char"}).kind is None  # a folder
    assert RunFile(family="gpt2").kind is None
    with pytest.raises(EtymonError, match="not both"):
        assemble(RunFile, {"family": "gpt2", "tokenizer": "byte", "vocabulary": 300})
    with pytest.raises(EtymonError, match="not both"):
        assemble(RunFile, {"family": "gpt2", "tokenizer": "./char", "vocabulary": 300})


def test_by_way_of_a_tokenizer_and_a_store(made: dict[str, Pretrained], tmp_path: Path) -> None:
    texts = tmp_path / "text.txt"
    texts.write_text("\n".join(chinese()), encoding="utf-8")
    etymon.tokenizer(
        kind="char",
        family="gpt2",
        documents="line",
        data=[texts],
        out=tmp_path / "tokenizer",
        progress="silent",
    )
    etymon.prepare(
        data=[texts], tokenizer=tmp_path / "tokenizer", documents="line", out=tmp_path / "store", validation=0.2,
        progress="silent",
    )  # fmt: skip
    result = run(tmp_path / "run", "char", data=[tmp_path / "store"])
    assert set(Tokenizer.load(result.model_folder).tokens) == set(
        Tokenizer.load(made["char"].model_folder).tokens
    )
    with pytest.raises(EtymonError, match="of the kind 'character'"):
        run(tmp_path / "other", "byte", data=[tmp_path / "store"])


@pytest.mark.parametrize("cut", range(10, 16))
def test_bytes_are_never_written_as_half_a_character(
    made: dict[str, Pretrained], cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the limit falls, the text ends with a whole character, and so does every piece of it."""
    model = load(made["byte"].model_folder)
    assert model.tokenizer is not None
    text = "春天，老师 wrote 一封信。"
    Scripted.scripts = [model.tokenizer.encode(text).tolist()]
    monkeypatch.setattr(decoding, "Stepper", Scripted)
    pieces: list[str] = []
    (found,) = etymon.generate(model, "我们", max_new_tokens=cut, on_text=pieces.append)
    assert found.text == "".join(pieces) == text.encode()[:cut].decode(errors="ignore")
    assert len(found.ids) == cut and "\ufffd" not in found.text


def test_prompts_of_characters(made: dict[str, Pretrained]) -> None:
    for result in made.values():
        (found,) = etymon.generate(result.model_folder, "我们", max_new_tokens=8, temperature=0.5)
        assert len(found.ids) == 8 or found.finished
