"""Pages that are written from what the library declares and what the benchmarks measured: `python -m tests.reference`.

docs/families.md, docs/formats.md and docs/speed.md with docs/pictures/speed.svg; `tests/test_docs.py` says whether they are current.
"""

from __future__ import annotations

import json
import re
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
RESULTS = ROOT / "benchmarks" / "results"

ORDER = "bert roberta albert distilbert electra xlnet elmo gpt1 gpt2 gpt3 gptj transformer-xl t5 bart transformer rnn".split()
MOST_SIZES = 6


def families() -> str:
    from etymon.families import REGISTRY

    rows = []
    for name in ORDER:
        family = REGISTRY[name]
        sizes = list(family.sizes)
        shown = ", ".join(f"`{size}`" for size in sizes[:MOST_SIZES]) + (
            " ..." if len(sizes) > MOST_SIZES else ""
        )
        kind = (
            "encoder and decoder" if "encoder-decoder" in family.capabilities
            else "decoder" if "causal" in family.capabilities else "encoder"
        )  # fmt: skip
        classes = {each.name for each in family.architectures}
        rows.append(
            f"| [{family.title}](families/{name}.md) | `{name}` | {kind} | `{family.objective}` | "
            f"`{family.tokenizer.kind}` | {len(classes)} | {shown} |"
        )
    assert len(rows) == len([name for name in REGISTRY if (DOCS / "families" / f"{name}.md").is_file()])
    header = (
        "| family | name | kind | own objective | own tokenizer | classes of Transformers, or ours | sizes |"
    )
    return "\n".join(
        [
            "# Families",
            "",
            "After this page you can pick a family by what it is, and know its name, its own objective and its sizes.",
            "",
            "```sh",
            "etymon show bert                # shape, memory, and every recipe of a size",
            "etymon tasks                    # which family does which task, and how",
            "```",
            "",
            header,
            "|---|---|---|---|---|---|---|",
            *rows,
            "",
            "Every family can learn other [objectives](objectives.md), and takes other [tokenizers](tokenizers.md) and [shapes](shapes.md). "
            "A family of your own: [extending](extending.md).",
            "",
            "Written from their declarations by `python -m tests.reference`.",
            "",
        ]
    )


FOLDERS = {
    "A model": {
        "config.json": "family, shape, labels, in Transformers' keys",
        "model.safetensors": "weights under published names; above 5 GB in parts with an index",
        "tokenizer.json, tokenizer_config.json": "the tokenizer, with the family's framing",
        "generation_config.json": "of models that generate",
        "etymon.json": "digests of the weights, which loading compares",
        "history.json": "how it was trained, one entry a run",
        "README.md": "a model card",
    },
    "A run": {
        "run.yaml": "every setting, resolved: [run files](run-files.md)",
        "metrics.jsonl": "a line a step and a line a validation",
        "report.html": "curves, figures and samples, one file for a browser",
        "model/": "the trained model (ELECTRA: discriminator/ and generator/)",
        "checkpoints/": "to resume from: model, optimiser, position, checksums",
        "milestones/": "models kept on the way (--save-at)",
    },
    "A comparison": {
        "report.html": "the answer, pictures, tables, costs",
        "results.json": "everything in it, as data",
        "table.md, table.tex": "the table for a page or a paper",
    },
}


def formats() -> str:
    from etymon.tables.formats import SUFFIXES, WRITTEN
    from etymon.text.reading import READERS
    from etymon.text.sources import PACKINGS

    def names(suffixes: Any) -> str:
        return ", ".join(f"`{suffix}`" for suffix in suffixes)

    lines = [
        "# File formats",
        "",
        "After this page you can say which files Etymon reads and writes, and what lies in the folders that it makes.",
        "",
        "| what | formats | more |",
        "|---|---|---|",
        f"| text to learn from (`--data`) | {names(READERS)} | [data](data.md) |",
        f"| tables of examples (`--train`) | {names(SUFFIXES)}, parallel text files | [fine-tuning](finetuning.md#tables) |",
        f"| packed, any of them | {names(PACKINGS)} | |",
        f"| tables of answers (`--out`) | {names(WRITTEN)} | [scores](scores.md) |",
        "| vectors (`etymon embed --out`) | `.npy`, `.parquet`, `.jsonl` | [generation](generation.md) |",
        "| settings (`--config`) | `.yaml` | [run files](run-files.md) |",
        "| pictures | `.html`, `.svg`, `.png` | [attention](attention.md), [explaining](explaining.md) |",
        "",
    ]
    for folder, files in FOLDERS.items():
        lines += [f"## {folder}", "", "| file | what is in it |", "|---|---|"]
        lines += [f"| {names(file.split(', '))} | {text} |" for file, text in files.items()]
        lines.append("")
    return "\n".join([*lines, "Written from their declarations by `python -m tests.reference`.", ""])


def measured() -> list[dict[str, Any]]:
    """The newest result of every benchmark beside a peer, with its name."""
    results = []
    for path in sorted(RESULTS.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        machines = record.get("machines", []) if isinstance(record, dict) else []
        machines = [each for each in machines if "ratio" in each and each.get("peer")]
        if machines:
            newest = max(machines, key=lambda each: each["machine"]["date"])
            results.append({**newest, "name": path.stem})
    return results


BARS = ("electra", "roberta", "bert", "t5", "albert", "gpt2")
TITLES = {
    "electra": "ELECTRA",
    "roberta": "RoBERTa",
    "bert": "BERT",
    "t5": "T5",
    "albert": "ALBERT",
    "gpt2": "GPT-2",
}


def speed_picture() -> str:
    """Bars: how many times faster a training step is than Transformers', with the spread of the repeats."""
    by_name = {each["name"]: each for each in measured()}
    bars = [by_name[f"training-step-{family}-best"] for family in BARS]
    left, right, top, row = 92, 640, 46, 34
    largest = max(each["spread"][1] for each in bars)
    scale = (right - left - 60) / largest
    parts = []
    for number, (family, each) in enumerate(zip(BARS, bars, strict=True)):
        y = top + row * number
        low, high = (left + scale * end for end in each["spread"])
        end = left + scale * each["ratio"]
        parts.append(
            f'<text x="{left - 10}" y="{y + 15}" text-anchor="end">{TITLES[family]}</text>'
            f'<rect class="bar" x="{left}" y="{y}" width="{end - left:.1f}" height="21" rx="3"/>'
            f'<path class="spread" d="M{low:.1f},{y + 10.5}H{high:.1f}M{low:.1f},{y + 6}v9M{high:.1f},{y + 6}v9"/>'
            f'<text class="figure" x="{max(end, high) + 8:.1f}" y="{y + 15}">{each["ratio"]:.1f}x</text>'
        )
    bottom = top + row * len(BARS)
    one = left + scale
    machine = bars[0]["machine"]
    note = f"{machine['processor']}, {machine['threads']} threads, PyTorch {machine['torch']}, Transformers {machine['transformers']}, {machine['date']}"
    height = bottom + 46
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right} {height}" role="img" '
        'aria-label="Speed of a training step beside Transformers">'
        "<style>text{font:13px system-ui,sans-serif;fill:#1c2430}.head{font-weight:600;font-size:14px}.small{font-size:11px;fill:#5f6b7a}"
        ".figure{font-weight:600}.bar{fill:#2563eb}.spread{stroke:#1c2430;stroke-width:1.2;fill:none;opacity:.55}.one{stroke:#5f6b7a;stroke-dasharray:4 3}"
        "</style>"
        f'<rect width="{right}" height="{height}" fill="#ffffff"/>'  # the site turns it round at night
        f'<text class="head" x="{left}" y="20">Times faster than Transformers, each in its best precision</text>'
        f'<path class="one" d="M{one:.1f},{top - 6}V{bottom}"/><text class="small" x="{one + 4:.1f}" y="{bottom + 12}">1x: Transformers</text>'
        f'{"".join(parts)}<text class="small" x="{left}" y="{height - 8}">{escape(note)}</text></svg>\n'
    )


GROUPS = {
    "A training step": "training-step-",
    "Fine-tuning and answering": "finetuning-",
    "Vectors of sentences": "sentence-encoding",
    "Writing": "generation-",
    "Translating": "translation-",
    "Other": "",
}


def speed() -> str:
    lines = [
        "# Speed",
        "",
        "After this page you can say how fast Etymon is beside its peers, where it is slower, and how to measure it on your machine.",
        "",
        "![Times faster than Transformers](pictures/speed.svg)",
        "",
        "```sh",
        "make bench                      # all of it, on your machine",
        "```",
        "",
        "A ratio is the peer's time by ours, the median of repeats that took turns on the same machine; above 1 we are faster. In brackets: the smallest and the "
        "largest of the repeats. Two threads of two cores.",
        "",
    ]
    left = measured()
    processors = [each["machine"]["processor"] for each in left]
    letters = dict(zip(dict.fromkeys(name for name in processors if name != "not recorded"), "ABCDEFGH"))
    lines += [
        f"Processors: {'; '.join(f'{letter}: {name}' for name, letter in letters.items())}. Without a letter, it was not recorded.",
        "",
    ]
    if slower := [each for each in left if each["ratio"] < 1]:
        lines += _speed_table("Where we are slower", slower, letters)
    for title, begin in GROUPS.items():
        chosen = [each for each in left if each["name"].startswith(begin)]
        left = [each for each in left if each not in chosen]
        lines += _speed_table(title, chosen, letters)
    lines += [
        "How each figure came about, and what gained nothing, is in the [lab notes](lab-notes.md).",
        "",
        "Written from `benchmarks/results` by `python -m tests.reference`.",
        "",
    ]
    return "\n".join(lines)


def _speed_table(title: str, chosen: list[dict[str, Any]], letters: dict[str, str]) -> list[str]:
    lines = [f"## {title}", "", "| what | beside | ratio | measured |", "|---|---|---|---|"]
    last = ""
    for each in chosen:
        low, high = each["spread"]
        what, peer = (str(each[key]).replace("|", "\\|") for key in ("what", "peer"))
        # What was measured stands once for the rows that compare it.
        what, last = ("" if what == last else what), what
        machine = f"{each['machine']['date']} {letters.get(each['machine']['processor'], '')}".strip()
        lines.append(f"| {what} | {peer} | **{each['ratio']:.2f}** ({low:.2f} to {high:.2f}) | {machine} |")
    return [*lines, ""]


def compare_picture() -> str:
    """The picture of scores in the report of a comparison, as the notebook that compares families shows it."""
    record = json.loads((ROOT / "examples" / "comparing-families.ipynb").read_text(encoding="utf-8"))
    shown = [
        output.get("data", {}).get("text/html", "")
        for cell in record["cells"]
        for output in cell.get("outputs", [])
    ]
    page = next(text for text in map("".join, shown) if "The answer" in text)
    svg = page[page.index("<svg") : page.index("</svg>") + len("</svg>")]
    width, height = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg).groups()  # type: ignore[union-attr]
    end = svg.index(">") + 1
    # Alone on a dark page its labels could not be read: it brings its paper along.
    return f'{svg[:end]}<rect width="{width}" height="{height}" fill="#ffffff"/>{svg[end:]}\n'


def pages() -> dict[Path, str]:
    """What is written, by its place."""
    return {
        DOCS / "pictures" / "compare.svg": compare_picture(),
        DOCS / "families.md": families(),
        DOCS / "formats.md": formats(),
        DOCS / "speed.md": speed(),
        DOCS / "pictures" / "speed.svg": speed_picture(),
    }


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
        print(f"{path.relative_to(ROOT)} written")
