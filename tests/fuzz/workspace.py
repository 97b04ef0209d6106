"""Whole folders and files that fuzzing damages copies of: tiny models, a run, a store, tables and text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import etymon
from etymon.families.saving import save
from tests.generation.conftest import TEXTS, tiny_model

LABELLED = [{"text": text, "label": label} for text, label in zip(TEXTS[:2] * 4, ("good", "bad") * 4)]
MODELS = ("gpt2", "bert", "t5", "electra", "classifier", "adapters")
SHAPE = ("shape.dim=16", "shape.layers=1", "shape.heads=2", "shape.positions=32")


class Workspace:
    """The folders under `whole` stay as they are; every case gets an empty folder `scratch`."""

    def __init__(self, folder: Path) -> None:
        self.whole, self.scratch = folder / "whole", folder / "scratch"

    def make(self) -> None:
        self.whole.mkdir(parents=True)
        for family in ("gpt2", "bert", "t5"):
            save(tiny_model(family), self.whole / family)
        detector = tiny_model("electra")
        made = etymon.build("electra", shape=_fields(detector.shape), heads={"replaced"})
        made.tokenizer = detector.tokenizer
        save(made, self.whole / "electra")
        table = self.whole / "rows.jsonl"
        table.write_text("".join(json.dumps(row) + "\n" for row in LABELLED), encoding="utf-8")
        short = [{"text": row["text"][:12], "label": row["label"]} for row in LABELLED]
        (self.whole / "short.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in short), encoding="utf-8"
        )
        self.text = self.whole / "text.txt"
        self.text.write_text("\n\n".join(TEXTS), encoding="utf-8")
        common = {
            "task": "classify",
            "train": [table],
            "validation": [table],
            "steps": 1,
            "progress": "silent",
        }
        bert = self.whole / "bert"
        etymon.finetune(bert, out=self.whole / "tuned", baselines=False, **common)
        shutil.copytree(self.whole / "tuned" / "model", self.whole / "classifier")
        etymon.finetune(bert, out=self.whole / "low-rank", lora=2, baselines=False, **common)
        shutil.copytree(self.whole / "low-rank" / "model", self.whole / "adapters")
        etymon.prepare(
            data=[self.text], tokenizer=self.whole / "gpt2", out=self.whole / "store", documents="blank"
        )
        run = self.whole / "run"
        etymon.pretrain(
            "gpt2", data=[self.text], documents="blank", tokenizer=self.whole / "gpt2", out=run, set=SHAPE, steps=4,
            batch=2, length=16, save_every=1, validate_every=2, validation=0.2, progress="silent",
        )  # fmt: skip
        # A run that was stopped: the last checkpoint and what follows it are gone.
        shutil.rmtree(run / "model")
        (run / "report.html").unlink(missing_ok=True)
        shutil.rmtree(max((run / "checkpoints").iterdir()))

    def clear(self) -> Path:
        """The empty folder for a case."""
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir(parents=True)
        return self.scratch

    def copy(self, name: str) -> Path:
        """A copy of one of the whole folders, to be damaged."""
        return Path(shutil.copytree(self.whole / name, self.scratch / name))


def _fields(shape: object) -> dict[str, object]:
    return {name: getattr(shape, name) for name in shape.__dataclass_fields__}  # type: ignore[attr-defined]
