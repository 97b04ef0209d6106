"""`etymon demo`: everything at once, without a download or a question."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from etymon.errors import EtymonError

if TYPE_CHECKING:
    from etymon.runs.result import Pretrained


def demo(
    *,
    out: Annotated[str | Path, "the run's folder"] = "runs/demo",
    budget: Annotated[str, "time to train for"] = "3m",
    steps: Annotated[int | None, "optimiser steps to take, instead of a budget"] = None,
    size: Annotated[str, "size of GPT-2 to train"] = "pocket",
    seed: Annotated[int, "of everything that is drawn"] = 0,
    progress: Annotated[Literal["auto", "rich", "plain", "silent"], "how to show progress"] = "auto",
) -> Pretrained:
    """Train a small GPT-2 on the prose inside Python itself, in about three minutes.

    Nothing is downloaded. Tokenizer and prepared text are kept in OUT, so that a second run starts at once.
    """
    import shutil

    from etymon.config import load_yaml
    from etymon.runs.run_file import RunFile
    from etymon.text.prose import StandardLibrary
    from etymon.verbs.pretrain import pretrain

    folder = Path(out)
    if (folder / "run.yaml").is_file():
        if load_yaml(folder / "run.yaml", RunFile).text != StandardLibrary.description:
            raise EtymonError(f"{folder} holds a run on other text: give another folder with --out")
        # An earlier demonstration makes way; its tokenizer and text stay and are checked before they are used.
        for name in ("run.yaml", "metrics.jsonl", "report.html"):
            (folder / name).unlink(missing_ok=True)
        for name in ("checkpoints", "model"):
            shutil.rmtree(folder / name, ignore_errors=True)
    return pretrain(
        "gpt2", data=StandardLibrary(), size=size, out=folder, budget=None if steps is not None else budget,
        steps=steps, seed=seed, progress=progress,
    )  # fmt: skip


def present(result: Pretrained) -> None:
    from etymon.verbs import pretrain

    pretrain.present(result)
    if result.stopped:
        return
    if result.samples:
        print(f"\nIt writes:\n  {' '.join(result.samples[-1][1].split())}")
    folder = result.folder
    print(
        f"""
Try next:
  etymon generate {folder} "The function returns" --temperature 0.8
  etymon score {folder} "The function returns a list." "list a returns function The."
  etymon show {folder}
  etymon pretrain bert --data YOUR.txt --budget 5m
and open {result.report} in a browser."""
    )
