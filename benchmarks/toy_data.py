"""Made-up corpora of a few kilobytes, in the files and columns of the real ones: for runs at toy size."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Sequence
from pathlib import Path

WORDS = "the a king river light water story of and saw walked cold old boat house long told her his gold 0 1".split()
CHINESE = "天地人水火山川日月风云我你他看见说来去大小好书"


def make_corpora(folder: Path) -> Path:
    """Writes every corpus that a benchmark reads; gives the folder."""
    draw = random.Random(0)

    def sentence(least: int = 4, most: int = 12) -> str:
        return " ".join(draw.choices(WORDS, k=draw.randint(least, most))).capitalize() + " ."

    def write(name: str, lines: Sequence[str]) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")

    def table(name: str, header: str | None, rows: Sequence[Sequence[object]]) -> None:
        write(
            name,
            [*([header.replace(" | ", "\t")] if header else []), *("\t".join(map(str, row)) for row in rows)],
        )

    for paradigm in ("agreement", "order"):
        rows = [{"sentence_good": sentence(), "sentence_bad": sentence(), "UID": paradigm} for _ in range(12)]
        write(f"blimp/{paradigm}.jsonl", [json.dumps({**row, "field": "syntax"}) for row in rows])
    for split in ("train", "dev"):
        table(f"glue/SST-2/{split}.tsv", "sentence | label", [(sentence(), n % 2) for n in range(40)])
        table(f"glue/CoLA/{split}.tsv", None, [("made", n % 2, "", sentence()) for n in range(24)])
        pairs = [(sentence(), sentence()) for _ in range(24)]
        table(
            f"glue/RTE/{split}.tsv", "index | sentence1 | sentence2 | label",
            [(n, *pair, ("entailment", "not_entailment")[n % 2]) for n, pair in enumerate(pairs)],
        )  # fmt: skip
        table(
            f"glue/MRPC/{split}.tsv", "Quality | #1 ID | #2 ID | #1 String | #2 String",
            [(n % 2, n, n, *pair) for n, pair in enumerate(pairs)],
        )  # fmt: skip
        table(
            f"glue/STS-B/{split}.tsv", "index | sentence1 | sentence2 | score",
            [(n, *pair, f"{n % 6:.3f}") for n, pair in enumerate(pairs)],
        )  # fmt: skip
        table(
            f"openbookqa/{split}.tsv", "ID | Question Stem | Choices | Answer Key",
            [(n, sentence(), "(A) king (B) river (C) light (D) water", "ABCD"[n % 4]) for n in range(24)],
        )  # fmt: skip
        chinese = ["".join(draw.choices(CHINESE, k=12)) for _ in range(24)]
        table(
            f"chnsenticorp/{split}.tsv", "label | text_a", [(n % 2, text) for n, text in enumerate(chinese)]
        )
        entities = [{"text": text, "label": {"name": {text[2:4]: [[2, 3]]}}} for text in chinese]
        write(f"cluener/{split}.json", [json.dumps(row, ensure_ascii=False) for row in entities])
        tagged = []
        for _ in range(24):
            words = sentence().split()
            kinds = ["NOUN" if word in ("king", "river", "boat") else "DET" for word in words]
            tagged += [
                f"{n}\t{word}\t{word}\t{kind}\t_\t_\t0\t_\t_\t_"
                for n, (word, kind) in enumerate(zip(words, kinds), 1)
            ]
            tagged.append("")
        write(f"ud-ewt/en_ewt-ud-{split}.conllu", tagged)
        write("ud-ewt/en_ewt-ud-test.conllu", tagged)
    write("tatoeba-en-zh/cmn.txt", [f"{sentence()}\t{text}\tmade up" for text in chinese])
    for side in ("en", "de"):
        write(f"multi30k/train.{side}", [sentence() for _ in range(80)])
        write(f"multi30k/test_2016_flickr.{side}", [sentence() for _ in range(20)])
    for name in ("train", "test"):
        write(f"wikitext-2/{name}.txt", [sentence() for _ in range(300 if name == "train" else 40)])
    for name in ("one", "two"):
        write(f"eltec-novels/{name}.txt", [sentence() for _ in range(150)])
    write("tinyshakespeare/input.txt", [sentence() for _ in range(100)])
    for name in ("past_present", "subj_number"):
        rows = [(split, ("ONE", "TWO")[n % 2], sentence()) for split in ("tr", "va", "te") for n in range(16)]
        table(f"senteval-probing/{name}.txt", None, rows)
    articles = []
    for number in range(3):
        context = " ".join(sentence() for _ in range(3))
        answer = context.split()[3]
        question = {
            "id": str(number),
            "question": sentence(),
            "answers": [{"text": answer, "answer_start": context.index(answer)}],
        }
        articles.append(
            {"title": f"Article {number}", "paragraphs": [{"context": context, "qas": [question]}]}
        )
    (folder / "squad").mkdir()
    (folder / "squad" / "dev-v1.1.json").write_text(
        json.dumps({"version": "1.1", "data": articles}), encoding="utf-8"
    )
    (folder / "samsum").mkdir()
    with open(folder / "samsum" / "train.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("id", "dialogue", "summary"))
        writer.writerows((number, f"{sentence()}\n{sentence()}", sentence()) for number in range(40))
    return folder
