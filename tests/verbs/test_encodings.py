"""Every verb that reads files reads them in any encoding, as it reads the same text in UTF-8; without its name they are refused."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import etymon
from etymon.errors import EtymonError
from etymon.families.saving import save
from etymon.text.store import TokenStore
from etymon.text.tokenizer import Tokenizer
from tests import tiny
from tests.tasks.heads import begun
from tests.verbs.small_runs import metrics, with_test_sizes

SENTENCES = {
    "gb18030": ["酒店的位置很好，服务周到。", "房间太小了，早餐也不好吃。", "下次来这里还会住这家酒店。"],
    "big5": ["人人生而自由，在尊嚴上平等。", "他們賦有理性和良心。", "並應以兄弟關係互相對待。"],
    "shift_jis": [
        "すべての人間は自由である。",
        "尊厳と権利について平等である。",
        "互いに同胞の精神をもって行動する。",
    ],
    "euc_kr": [
        "모든 인간은 태어날 때부터 자유롭다.",
        "그 존엄과 권리에 있어 동등하다.",
        "인간은 이성과 양심을 가진다.",
    ],
    "utf-16": ["酒店的位置很好，服务周到。", "房间太小了，早餐也不好吃。", "下次来这里还会住这家酒店。"],
}
ENCODINGS = [*SENTENCES]
SHORT = {"steps": 1, "validate_every": 1, "progress": "silent"}
PROMPT = {"template": "{text}: {answer}", "label": "answer", "choices": ["A", "B"]}


class Files:
    """The same files in an encoding."""

    def __init__(self, folder: Path, sentences: list[str], encoding: str) -> None:
        folder.mkdir()
        self.out, self.sentences = folder / "out", sentences
        self.how: dict[str, Any] = {"encoding": encoding}
        lines = [f"{sentences[number % 3]}{number}" for number in range(60)]
        rows = [f"{line},{('good', 'bad')[number % 2]},{sentences[0]}" for number, line in enumerate(lines)]
        records = [json.dumps({"text": line, "answer": "A"}, ensure_ascii=False) for line in lines[:3]]
        probes = [f"{split}\t{'ab'[n % 2]}\t{lines[n]}" for split in ("tr", "va", "te") for n in range(12)]
        contents = {
            "text.txt": "\n\n".join(lines), "lines.txt": "\n".join(lines[:6]), "rows.csv": "\n".join(["text,label,source", *rows]),
            "cases.jsonl": "\n".join(records), "probe.txt": "\n".join([*probes, ""]),
        }  # fmt: skip
        self.paths = {}
        for name, content in contents.items():
            (folder / name).write_bytes(content.encode(encoding))
            self.paths[name.partition(".")[0]] = folder / name
        self.stdin = "\n".join(f"{sentence} ___" for sentence in sentences).encode(encoding)

    def __getitem__(self, name: str) -> Path:
        return self.paths[name]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    place = tmp_path_factory.mktemp("models")
    chosen = {"gpt2": "vocabulary", "bert": "vocabulary", "electra": "replaced", "t5": "vocabulary"}
    for family, head in chosen.items():
        save(tiny.model(family, frozenset({head})), place / family)
    task, model = begun("bert")
    model.history = [{"task": task.describe()}]
    save(model, place / "task")
    with with_test_sizes():
        yield {path.name: path for path in place.iterdir()}


def stored(folder: Path) -> list[int]:
    return TokenStore.open(folder).train.tokens.tolist()


def trained(at: dict[str, Path], files: Files) -> Any:
    etymon.pretrain(
        "gpt2",
        size="test",
        data=files["text"],
        tokenizer="character",
        length=16,
        batch=2,
        out=files.out,
        **SHORT,
        **files.how,
    )
    assert (
        files.how["encoding"] in (files.out / "run.yaml").read_text(encoding="utf-8")
        or files.how["encoding"] == "utf-8"
    )
    return stored(files.out / "store"), metrics(files.out)


def swept(at: dict[str, Path], files: Files) -> Any:
    options = {"size": "test", "budget": "1steps", "length": 16, "batch": 2, "progress": "silent"}
    etymon.sweep("gpt2", grid={"seed": [1]}, data=[files["text"]], out=files.out, **options, **files.how)
    return [stored(path) for path in sorted(files.out.glob("*/store"))]


def distilled(at: dict[str, Path], files: Files) -> Any:
    etymon.distill(
        at["gpt2"],
        data=files["text"],
        length=16,
        batch=2,
        out=files.out,
        steps=1,
        progress="silent",
        **files.how,
    )
    return stored(files.out / "store")


def tuned(at: dict[str, Path], files: Files) -> Any:
    etymon.finetune(at["bert"], task="classify", train=files["rows"], out=files.out, **SHORT, **files.how)
    return metrics(files.out)


def prepared(at: dict[str, Path], files: Files) -> Any:
    etymon.prepare(data=files["text"], tokenizer=at["gpt2"], out=files.out, progress="silent", **files.how)
    return stored(files.out)


def tokenized(at: dict[str, Path], files: Files) -> Any:
    etymon.tokenizer(kind="character", data=files["text"], out=files.out, progress="silent", **files.how)
    return Tokenizer.load(files.out).tokens


def from_standard_input(verb: Callable[..., Any], model: str, **options: Any) -> Callable[..., Any]:
    def call(at: dict[str, Path], files: Files) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(files.stdin)))
            return repr(verb(at[model], "-", **options, **files.how))

    return call


def converted(at: dict[str, Path], files: Files) -> Any:
    done = etymon.convert(at["gpt2"], files.out, quantize="int8", data=files["lines"], **files.how)
    return {name: change for name, change in done.changes.items() if "second" not in name}


VERBS: dict[str, Callable[[dict[str, Path], Files], Any]] = {
    "tokenizer": tokenized,
    "prepare": prepared,
    "pretrain": trained,
    "sweep": swept,
    "distill": distilled,
    "finetune": tuned,
    "predict": lambda at, files: etymon.predict(at["task"], data=files["rows"], **files.how),
    "evaluate": lambda at, files: [
        {
            name: score.value
            for name, score in etymon.evaluate(
                at["task"], data=files["rows"], resamples=0, metric="loss", label="label", **files.how
            ).scores.items()
        }
    ],
    "score": lambda at, files: [
        score.log_likelihood
        for score in etymon.score(at["gpt2"], file=files["lines"], lines=True, **files.how)
    ],
    "embed": lambda at, files: np.asarray(
        etymon.embed(at["gpt2"], file=files["lines"], **files.how)
    ).tolist(),
    "replaced": lambda at, files: etymon.replaced(at["electra"], file=files["lines"], **files.how),
    "translate": lambda at, files: etymon.translate(
        at["t5"], file=files["lines"], max_new_tokens=2, **files.how
    ),
    "summarize": lambda at, files: etymon.summarize(
        at["t5"], file=files["lines"], max_new_tokens=2, **files.how
    ),
    "surprisal": lambda at, files: repr(etymon.surprisal(at["gpt2"], file=files["lines"], **files.how)),
    "pairs": lambda at, files: repr(
        etymon.pairs(at["gpt2"], data=[files["rows"]], good="text", bad="text", **files.how).models
    ),
    "generate": from_standard_input(etymon.generate, "gpt2", max_new_tokens=2),
    "fill": from_standard_input(etymon.fill, "bert"),
    "convert": converted,
    "context": lambda at, files: repr(
        etymon.context([at["gpt2"]], data=files["text"], longest=8, targets=5, **files.how).models
    ),
    "probe": lambda at, files: repr(
        etymon.probe(at["bert"], data=files["probe"], twin=False, **files.how).tasks
    ),
    "prompt": lambda at, files: repr(
        etymon.prompt(at["gpt2"], {**PROMPT, "queries": str(files["cases"])}, shots=[0], **files.how).outcomes
    ),
}


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_reads_what_it_reads_in_utf_8(
    verb: str, encoding: str, models: dict[str, Path], tmp_path: Path
) -> None:
    sentences = SENTENCES[encoding]
    named, plain = (Files(tmp_path / name, sentences, name) for name in (encoding, "utf-8"))
    unnamed = Files(tmp_path / "unnamed", sentences, encoding)
    unnamed.how = {}
    with pytest.raises(
        EtymonError, match=r"is not UTF-8 at byte \d+ \(line \d+\): it (reads as|begins with)"
    ):
        VERBS[verb](models, unnamed)
    found, expected = (VERBS[verb](models, files) for files in (named, plain))
    assert str(found).replace(str(tmp_path / encoding), "") == str(expected).replace(
        str(tmp_path / "utf-8"), ""
    )


def test_every_verb_that_reads_files_is_here() -> None:
    without = {
        "attention",
        "demo",
        "explain",
        "export",
        "new",
        "plan",
        "push",
        "serve",
        "show",
        "tasks",
    }  # which read models, texts of the command line, or nothing
    # Its arms are runs of `pretrain`, which is here; a whole comparison for every encoding would take minutes.
    without.add("compare")
    for verb in etymon.VERBS:
        if verb == "compare":
            continue
        names = signature(getattr(import_module(f"etymon.verbs.{verb}"), verb)).parameters
        assert ("encoding" in names) == (verb in VERBS) == (verb not in without), verb


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_comparison_names_the_encoding_before_any_work(encoding: str, tmp_path: Path) -> None:
    files = Files(tmp_path / "files", SENTENCES[encoding], encoding)
    with pytest.raises(
        EtymonError, match=r"is not UTF-8 at byte \d+ \(line \d+\): it (reads as|begins with)"
    ):
        etymon.compare(["gpt2", "gptj"], data=[files["text"]], budget="600tokens", out=files.out)
    assert not files.out.exists()
