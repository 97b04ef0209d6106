"""The files and models that pages speak of, small, made in the current folder when a command names them.

Tables have the columns of all pages, so `reviews.csv` serves each of them. Models are made once and copied.
"""

from __future__ import annotations

import atexit
import csv
import json
import random
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import yaml

import etymon
from etymon.families import REGISTRY
from etymon.text.prose import StandardLibrary, package_paragraphs
from etymon.text.reading import Document
from etymon.text.sources import Texts
from etymon.text.tokenizer_training import train_tokenizer
from tests import tiny

GOOD = "位置很好 服务周到 早餐丰富 房间干净 前台热情 性价比很高 下次还会来".split()
BAD = "房间太小 隔音很差 早餐难吃 态度冷淡 卫生间有异味 价格太贵 再也不来了".split()
LONGEST = 64
"""Positions of the tiny shapes."""


@contextmanager
def tiny_pocket_sizes() -> Iterator[None]:
    """The pocket size of every family is a tiny one, so folders have the names that pages give them."""
    with pytest.MonkeyPatch.context() as patch:
        for family in REGISTRY:
            sizes: Any = REGISTRY[family].sizes
            shape = {**tiny.shape(family, dropout=0.1), "vocabulary": tiny.VOCABULARY}
            for size in ("pocket", "small", "base"):
                if size in sizes:
                    patch.setitem(sizes, size, shape)
        # All of Python's own prose takes seconds to collect.
        prose = [Document(text) for text in package_paragraphs("http")]
        patch.setattr(StandardLibrary, "_documents", prose)
        yield


# ------------------------------------------------------------ texts and tables


def english(path: Path) -> None:
    path.write_text("\n\n".join(tiny.texts(60)), encoding="utf-8")


def chinese_lines() -> list[str]:
    draw = random.Random(0)
    return ["，".join(draw.sample(BAD if number % 2 else GOOD, 3)) + "。" for number in range(240)]


def chinese(path: Path) -> None:
    path.write_text("\n".join(chinese_lines()), encoding="utf-8")


def cut_chinese(path: Path) -> None:
    path.write_text("\n".join(line.replace("很", " 很 ") for line in chinese_lines()), encoding="utf-8")


def records(path: Path) -> None:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in tiny.texts(60)), encoding="utf-8")


def folder_of(make: Callable[[Path], None], name: str = "a.txt") -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.mkdir(parents=True)
        make(path / name)

    return write


def rows() -> list[dict[str, str]]:
    """Of every column that a page's table of labels or pairs has."""
    made = []
    for number, text in enumerate(tiny.texts(60)):
        label, words = ("good", "bad")[number % 2], text.split()
        review = f"a {('fine', 'dull')[number % 2]} film. {' '.join(words[:6])}"
        made.append(
            dict.fromkeys(("text", "review", "premise", "hypothesis", "tweet", "sentence", "question", "de"), review)
            | dict.fromkeys(("label", "verdict", "stars", "gold"), label)
            | {"en": review[::-1], "answer": label, "choice1": "one", "choice2": "two", "dialogue": review, "summary": label}
        )  # fmt: skip
    return made


def chinese_rows() -> list[dict[str, str]]:
    return [
        {"评论": line, "评价": "差评" if number % 2 else "好评", "分数": str(number % 5), "zh": line, "en": f"a {number} b", "text": line, "label": str(number % 2)}
        for number, line in enumerate(chinese_lines()[:80])
    ]  # fmt: skip


def table(made: Callable[[], list[dict[str, str]]], encoding: str = "utf-8") -> Callable[[Path], None]:
    def write(path: Path) -> None:
        records = made()
        with path.open("w", encoding=encoding, newline="") as file:
            lines = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
            lines.writerows([list(records[0]), *(list(row.values()) for row in records)])

    return write


def choices(path: Path) -> None:
    lines = [{"premise": text, "choice1": "It rained.", "choice2": "He won.", "label": number % 2} for number, text in enumerate(tiny.texts(40))]  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def tagged(path: Path) -> None:
    sentences = [text.split(".")[0].split() for text in tiny.texts(40)]
    lines = ["\n".join(f"{word}\t{'B-X' if place % 3 == 1 else 'O'}" for place, word in enumerate(words)) for words in sentences]  # fmt: skip
    path.write_text("\n\n".join(lines) + "\n", encoding="utf-8")


def tagged_table(path: Path) -> None:
    sentences = [text.split(".")[0].split() for text in tiny.texts(40)]
    lines = [f"{' '.join(words)}\t{' '.join('X' if place % 3 else 'Y' for place in range(len(words)))}" for words in sentences]  # fmt: skip
    path.write_text("\n".join(["tokens\ttags", *lines]) + "\n", encoding="utf-8")


def treebank(path: Path) -> None:
    sentences = []
    for text in tiny.texts(40):
        words = text.split(".")[0].split()
        sentences.append("\n".join(f"{place}\t{word}\t{word}\t{'NOUN' if place % 3 == 2 else 'X'}\t_\t_\t{place - 1}\tdep\t_\t_" for place, word in enumerate(words, 1)))  # fmt: skip
    path.write_text("\n\n".join(sentences) + "\n\n", encoding="utf-8")


def entities(path: Path) -> None:
    lines = [{"text": f"{name}小军在{place}工作。", "label": [[0, 3, "人名"], [4, 6, "地名"]]} for name in "赵钱孙李王" for place in ("北京", "台湾", "上海", "广州") * 3]  # fmt: skip
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")


def squad(path: Path) -> None:
    paragraphs = []
    for number, text in enumerate(tiny.texts(40)):
        noun = text.split()[1]
        answers = [{"text": noun, "answer_start": text.index(noun)}] if number % 4 else []
        question = {
            "id": str(number),
            "question": "Who began?",
            "answers": answers,
            "is_impossible": not answers,
        }
        paragraphs.append({"context": text, "qas": [question]})
    record = {"version": "v2.0", "data": [{"title": "t", "paragraphs": paragraphs}]}
    path.write_text(json.dumps(record), encoding="utf-8")


def tatoeba(path: Path) -> None:
    lines = [f"{english} {number}.\t{chinese}{number}。\tCC-BY 2.0" for number in range(20) for english, chinese in (("Run", "跑"), ("Hi", "你好"), ("Stop", "停"))]  # fmt: skip
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")


def one_side(column: str, made: Callable[[], list[dict[str, str]]]) -> Callable[[Path], None]:
    return lambda path: (
        Path(path).write_text("".join(row[column] + "\n" for row in made()), encoding="utf-8") and None
    )


def minimal_pairs(path: Path) -> None:
    path.mkdir()
    for name, field in (("agreement", "syntax"), ("order", "morphology")):
        lines = [
            {"sentence_good": "The river crossed the garden.", "sentence_bad": "River the crossed garden the.", "field": field, "UID": name, "pairID": str(number)}
            for number in range(4)
        ]  # fmt: skip
        (path / f"{name}.jsonl").write_text(
            "".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8"
        )


def probing(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    lines = [f"{'tr' if number < 40 else 'va' if number < 50 else 'te'}\t{('PAST', 'PRES')[number % 2]}\t{text.split('.')[0]}" for number, text in enumerate(tiny.texts(60))]  # fmt: skip
    (path / "past_present.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def settings_file(**settings: Any) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")

    return write


def prompts(path: Path) -> None:
    path.write_text("The river\nThe letter\n", encoding="utf-8")


def grades(path: Path) -> None:
    lines = [f'"{text}",{number % 5}' for number, text in enumerate(tiny.texts(60))]
    path.write_text("\n".join(["essay,grade", *lines]) + "\n", encoding="utf-8")


def shorten_files() -> None:
    """Leaves some of what a page's program wrote: real text, and little of it."""
    for path in Path().iterdir():
        if path.suffix in (".csv", ".tsv", ".txt"):
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            if path.suffix == ".txt":
                kept = lines[:1000]
            else:  # rows of all labels; they have no line breaks inside
                kept = [lines[0], *lines[1 :: max(1, len(lines) // 120)]]
            path.write_text("".join(kept), encoding="utf-8")


# ------------------------------------------------------------ models

SMALL: dict[str, Any] = {"batch": 4, "length": 32, "progress": "silent"}


@cache
def shop() -> Path:
    """A folder for models that are made once; it goes with the process."""
    folder = Path(mkdtemp(prefix="etymon-pages-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def copied(name: str, make: Callable[[Path], object]) -> Callable[[Path], None]:
    """Writes a copy of what `make` has made once."""

    def write(path: Path) -> None:
        made = shop() / name
        if not made.exists():
            make(made)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(made, path)

    return write


def pretrained(family: str, **options: Any) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        with tiny_pocket_sizes():
            etymon.pretrain(family, data=Texts(tiny.texts(60)), steps=2, out=path, **{**SMALL, **options})

    return copied(f"pretrained-{family}-{len(options)}", make)


def chinese_model(family: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        with tiny_pocket_sizes():
            etymon.pretrain(family, data=Texts(chinese_lines()), steps=2, out=path, **SMALL)

    return copied(f"chinese-{family}", make)


def finetuned(task: str, start: str, **options: Any) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        with tiny_pocket_sizes():
            common = {
                **SMALL,
                "length": LONGEST,
                "budget": "2steps",
                "out": path,
                "task": task,
                "from_scratch": True,
                "baselines": False,
            }
            if task == "text2text":
                common = {**common, "batch": None, "batch_tokens": 300}
            etymon.finetune(start, **{**common, **options})

    return copied(f"{task}-{start}-{len(options)}", make)


def milestones(path: Path) -> None:
    """A run that kept a model on the way, by the name that pages give it."""
    pretrained("gpt2", save_at=["1steps"])(path)
    for kept in (path / "milestones").iterdir():
        kept.rename(path / "milestones" / "chck_5M")


def tokenizer(path: Path) -> None:
    tiny.tokenizer("bert").save(path)


def chinese_tokenizer(path: Path) -> None:
    choice = REGISTRY["bert"].tokenizer
    train_tokenizer(
        choice.kind, chinese_lines(), 200, specials=choice.specials, framing=REGISTRY["bert"].framing
    ).save(path)


LABELS = table(rows)
REVIEWS = table(chinese_rows)
CLASSIFIER = finetuned("classify", "bert", train=rows())
TRANSLATOR = finetuned("text2text", "transformer", train=rows(), source="de", target="en")
PROMPT = settings_file(
    template="{country}: {capital}", label="capital", choices=["Madrid", "Paris", "Rome"],
    examples=[{"country": "Spain", "capital": "Madrid"}] * 16, queries=[{"country": "France", "capital": "Paris"}],
)  # fmt: skip
RUN_FILE = settings_file(family="gpt2", data={"files": ["my.txt"]})
WORLD: dict[str, Callable[[Path], None]] = {
    **dict.fromkeys("my.txt book.txt prose.txt domain.txt held.txt held-out.txt story.txt novel.txt other.txt text.txt dialogue.txt a.txt".split(), english),
    **dict.fromkeys("corpus novels domain crawl b".split(), folder_of(english)),
    **dict.fromkeys("zh old 语料".split(), folder_of(chinese)),
    **dict.fromkeys("语料.txt 新文本.txt 没见过.txt reviews.txt thai.txt bo.txt".split(), chinese),
    "cut.txt": cut_chinese,
    "c.jsonl": records,
    **dict.fromkeys(("prompts.txt", "in.txt", "提示.txt"), prompts),
    **dict.fromkeys("reviews.csv test.csv train.csv packages.csv rows.csv new.csv pairs.tsv pairs.csv train.tsv dev.tsv tweets.csv labelled.csv validation.csv".split(), LABELS),
    **dict.fromkeys("评论.csv 测试.csv 新评论.csv 没标的.csv 打分.csv 句对.tsv 任务.csv".split(), REVIEWS),
    "data.md 评论.csv": table(chinese_rows, "gb18030"),
    "data.md 新评论.csv": table(chinese_rows, "gb18030"),
    **{f"{part}.{side}": one_side(side, rows) for part in ("train", "val") for side in ("de", "en")},
    **{f"句子.{side}": one_side(side, chinese_rows) for side in ("zh", "en")},
    "train.jsonl": choices,
    "grades.csv": grades,
    "sentences.conll": tagged,
    "ner.tsv": tagged_table,
    **dict.fromkeys("en_ewt-ud-train.conllu en_ewt-ud-dev.conllu".split(), treebank),
    **dict.fromkeys("实体.jsonl train.json dev.json".split(), entities),
    **dict.fromkeys("squad.json train-v2.0.json dev-v2.0.json".split(), squad),
    "cmn.txt": tatoeba,
    "blimp": minimal_pairs,
    "tasks": probing,
    "tasks/past_present.txt": lambda path: probing(path.parent),
    "task.yaml": PROMPT,
    **dict.fromkeys(("MODEL", "folder-or-hub-id", "bert-folder", "runs/bert", "runs/bert-pocket", "bert-base-cased", "bert-base-uncased", "runs/bert-base"), pretrained("bert")),
    **dict.fromkeys(("bert-base-chinese", "底座", "填空", "runs/zh"), chinese_model("bert")),
    "languages.md MODEL": chinese_model("bert"),
    "写作": chinese_model("gpt2"),
    "分类": finetuned("classify", "bert", train=chinese_rows(), text="评论", label="评价"),
    "languages.md FOLDER": chinese_tokenizer,
    **dict.fromkeys(("tokenizer", "FOLDER"), tokenizer),
    "evaluation.md runs/gpt2": pretrained("gpt2", save_at=["1steps"]),
    **dict.fromkeys(("runs/gpt2", "runs/gpt2-pocket", "runs/mine", "runs/demo", "gpt2"), pretrained("gpt2")),
    "runs/gpt2-pocket/milestones/chck_5M": copied("chck_5M", lambda path: (milestones(path.parent / "kept"), shutil.copytree(path.parent / "kept/milestones/chck_5M", path))),
    **dict.fromkeys(("runs/transformer-xl", "runs/xl"), pretrained("transformer-xl")),
    "runs/t5": pretrained("t5"),
    "runs/bart": pretrained("bart"),
    "elmo-folder": pretrained("elmo"),
    "gpt1": pretrained("gpt1"),
    "t5-small": pretrained("t5"),
    "roberta-base": pretrained("roberta"),
    **dict.fromkeys(("runs/classify-bert",), CLASSIFIER),
    **dict.fromkeys(("runs/de-en", "runs/translator", "runs/samsum", "runs/text2text-t5"), TRANSLATOR),
    "runs/language-model-gpt2": pretrained("gpt2"),
    "runs/answer-bert": finetuned("answer", "bert", train=[{"question": "Who began?", "context": text, "answers": text.split()[1]} for text in tiny.texts(40)]),
    "runs/tag-bert": finetuned("tag", "bert", train=[{"tokens": text.split()[:6], "tags": list("XYXYXY")} for text in tiny.texts(40)]),
}  # fmt: skip
"""By the name in a command, or by page and name where a page means something else by it. A command that made a file
of that name comes before it."""


def furnish(words: list[str], page: str) -> None:
    """Makes what the words of a command name and nobody has made, in the current folder; not what it is to write."""
    for before, word in zip(["", *words], words):
        if before == "--out":
            continue
        for part in re.split(r"[=,]", word):
            name = part.rstrip("/")
            make = WORLD.get(f"{page} {name}") or WORLD.get(name)
            if make is not None and not Path(name).exists():
                make(Path(name))
