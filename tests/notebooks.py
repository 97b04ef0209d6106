"""Tutorials as notebooks: `python -m tests.notebooks` writes examples/*.ipynb from docs/tutorials/*.md.

A page is the source: its Python blocks are the cells, its prose is the text between them. Blocks of other languages stay in
the text, but for `text` blocks, which show what a cell printed. `--run NAME` runs a tutorial as it is and keeps what its cells show.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "tutorials"
EXAMPLES = ROOT / "examples"
BLOCK = re.compile(r"(?:<!-- (parameters) -->\n)?```(\w*)\n(.*?)```\n?", re.DOTALL)
MOST_OUTPUT = 60_000
"""Characters of what a cell shows: more is left out of a kept notebook."""


def names() -> list[str]:
    """The tutorials that are notebooks: those with a cell of parameters."""
    pages = sorted(PAGES.glob("*.md"))
    return [page.stem for page in pages if "<!-- parameters -->" in page.read_text(encoding="utf-8")]


def cells(page: str) -> Iterator[tuple[str, str]]:
    """("markdown", "code" or "parameters", source) of a page, in order."""
    prose, at = "", 0
    for block in BLOCK.finditer(page):
        prose += page[at : block.start()]
        at = block.end()
        if block[2] == "python":
            if prose.strip():
                yield "markdown", _for_notebooks(prose)
            prose = ""
            yield block[1] or "code", block[3].rstrip("\n")
        elif block[2] != "text":
            prose += block[0]
    prose += page[at:]
    if prose.strip():
        yield "markdown", _for_notebooks(prose)


def _for_notebooks(prose: str) -> str:
    # From the folder of the notebooks, pages are elsewhere.
    prose = re.sub(r"\]\((?!\w+:|\.\./\.\./|#)(?:\.\./)([^)]+)\)", r"](../docs/\1)", prose)
    prose = re.sub(r"\]\((?!\w+:|\.\./|#)([^)]+)\)", r"](../docs/tutorials/\1)", prose)
    prose = prose.replace("](../../examples/", "](")
    return re.sub(r"<!--.*?-->\n*", "", prose).strip("\n")


def notebook(name: str) -> dict[str, Any]:
    """The notebook of a tutorial, without outputs."""
    page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    made = []
    for number, (kind, source) in enumerate(cells(page)):
        cell: dict[str, Any] = {
            "cell_type": "markdown" if kind == "markdown" else "code",
            "id": f"{name}-{number}",
            "metadata": {"tags": ["parameters"]} if kind == "parameters" else {},
            "source": source.splitlines(keepends=True),
        }
        made.append(cell if kind == "markdown" else cell | {"execution_count": None, "outputs": []})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": made, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def sources(record: dict[str, Any]) -> list[tuple[str, str]]:
    return [(cell["cell_type"], "".join(cell["source"])) for cell in record["cells"]]


def write(name: str) -> None:
    """Writes a notebook; where its cells have not changed, what they showed stays."""
    path, record = EXAMPLES / f"{name}.ipynb", notebook(name)
    if path.is_file():
        old = json.loads(path.read_text(encoding="utf-8"))
        shown = {_meaning(cell): cell["outputs"] for cell in old["cells"] if cell["cell_type"] == "code"}
        for cell in record["cells"]:
            if cell["cell_type"] == "code":
                cell["outputs"] = shown.get(_meaning(cell), [])
    _save(path, record)


def _meaning(cell: dict[str, Any]) -> str:
    """What a cell computes, however its lines are broken."""
    return ast.dump(ast.parse("".join(cell["source"])))


def run(name: str, folder: Path, parameters: str | None = None) -> dict[str, Any]:
    """Runs a tutorial in a folder, with other parameters if these are given; returns it with its outputs."""
    import nbformat
    from nbclient import NotebookClient

    record = notebook(name)
    for cell in record["cells"]:
        if parameters is not None and cell["metadata"].get("tags") == ["parameters"]:
            cell["source"] = parameters
    made = nbformat.reads(json.dumps(record), as_version=4)
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(made, timeout=7200, kernel_name="python3", resources=resources).execute()
    return json.loads(nbformat.writes(made))  # type: ignore[no-any-return]


def keep(name: str, folder: Path) -> None:
    """Runs a tutorial as it is and writes it with what its cells show."""
    record = run(name, folder)
    for cell in record["cells"]:
        for output in cell.get("outputs", []):
            output.pop("execution_count", None) if output["output_type"] != "execute_result" else None
            output.get("metadata", {}).clear()
            output.pop("transient", None)
            # What is shown as HTML needs no account of all its fields beside it.
            data = output.get("data", {})
            if "text/html" in data and len("".join(data["text/plain"])) > 300:
                data["text/plain"] = "".join(data["text/plain"])[:300] + " ..."
        if cell["cell_type"] == "code":
            cell["metadata"].pop("execution", None)
            cell["outputs"] = [each for each in cell["outputs"] if len(json.dumps(each)) <= MOST_OUTPUT]
            cell["outputs"] = [each for each in cell["outputs"] if each.get("name") != "stderr"]
    _save(EXAMPLES / f"{name}.ipynb", record)


def _save(path: Path, record: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(record, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        keep(sys.argv[2], Path(sys.argv[3] if len(sys.argv) > 3 else "."))
    else:
        for each in names():
            write(each)
