"""The dry run counts the tokens that the run will have."""

from __future__ import annotations

import gzip
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from tests import tiny
from tests.verbs.small_runs import pretrain


def test_the_dry_run_counts_the_tokens_of_the_run(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n".join(tiny.texts(80)), encoding="utf-8")
    asked: dict[str, Any] = {"data": [text], "documents": "line", "steps": 1}
    tried = pretrain("gpt2", tmp_path / "run", dry_run=True, **asked)
    done = pretrain("gpt2", tmp_path / "run", **asked)
    splits = json.loads((done.folder / "store" / "store.json").read_text(encoding="utf-8"))["splits"]
    train, held = (splits[name]["tokens"] for name in ("train", "validation"))
    assert tried.plan["text"].endswith(f": {train:,} tokens to train on, {held:,} to validate on")


@pytest.mark.parametrize("ending, size", [("", 400_000), (".gz", 1_000_000)])
def test_of_a_large_text_the_dry_run_counts_nearly_the_tokens_of_the_run(
    ending: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are read in blocks, far ahead of the text that is looked at."""
    monkeypatch.setattr("etymon.runs.text_data.BEGINNING_BYTES", size // 3)
    monkeypatch.setattr("etymon.runs.text_data.WHOLE_BYTES", 0)
    for module in ("sources", "charsets"):
        monkeypatch.setattr(f"etymon.text.{module}.BUFFER", 16_000)
    words = [f"{word}{number}" for number in range(40) for word in ("king", "river", "of", "light")]
    draw = random.Random(0)
    for name in ("a", "b"):
        content = " ".join(draw.choices(words, k=size // 14)).encode()
        (tmp_path / f"{name}.txt{ending}").write_bytes(gzip.compress(content) if ending else content)
    run = pretrain(
        "gpt2", tmp_path / "run", data=[tmp_path / f"*.txt{ending}"], tokenizer="byte", steps=1, dry_run=True
    )
    (told,) = re.findall(r"about ([\d.]+)k tokens to train on, ([\d.]+)k to validate on", run.plan["text"])
    whole = sum(len(each) for each in _texts(tmp_path, ending))
    assert 1000 * (float(told[0]) + float(told[1])) == pytest.approx(whole, rel=0.15)


def _texts(folder: Path, ending: str) -> list[bytes]:
    files = [path.read_bytes() for path in folder.glob(f"*.txt{ending}")]
    return [gzip.decompress(content) for content in files] if ending else files
