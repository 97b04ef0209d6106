"""`etymon demo`: everything at once, without a download or a question."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from etymon.errors import EtymonError
from etymon.settings import ProgressOptions, option, settings
from etymon.verbs.terminal import say
from etymon.verbs.verb import verb

if TYPE_CHECKING:
    from etymon.runs.result import Pretrained


@settings
class DemoOptions(ProgressOptions):
    out: str | Path = option("runs/demo", "the run's folder")
    budget: str = option("3m", "time to train for")
    steps: int | None = option(None, "number of training steps, instead of --budget")
    size: str = option("pocket", "size of GPT-2 to train")
    seed: int = option(0, "random seed; the same seed gives the same run")


@verb(DemoOptions)
def demo(options: DemoOptions) -> Pretrained:
    """Nothing is downloaded. Tokenizer and prepared text are kept in OUT, so that a second run starts at
    once."""
    import shutil

    from etymon.config import load_yaml
    from etymon.runs.run_file import RunFile
    from etymon.text.prose import StandardLibrary
    from etymon.verbs.pretrain import pretrain

    folder = Path(options.out)
    if (folder / "run.yaml").is_file():
        if load_yaml(folder / "run.yaml", RunFile).text != StandardLibrary.description:
            raise EtymonError(f"{folder} holds a run on other text: give another folder with --out")
        # An earlier demonstration makes way; its tokenizer and text stay and are checked before they are
        # used.
        for name in ("run.yaml", "metrics.jsonl", "report.html"):
            (folder / name).unlink(missing_ok=True)
        for name in ("checkpoints", "model"):
            shutil.rmtree(folder / name, ignore_errors=True)
    return pretrain(
        "gpt2",
        data=StandardLibrary(),
        size=options.size,
        out=folder,
        budget=None if options.steps is not None else options.budget,
        steps=options.steps,
        seed=options.seed,
        progress=options.progress,
    )


def present(result: Pretrained, options: DemoOptions) -> None:
    from etymon.verbs import pretrain

    pretrain.present(result)
    if result.stopped:
        return
    if result.samples:
        print()
        say("It writes, from nothing:")
        print(f"  {' '.join(result.samples[-1][1].split())}")
    print()
    say("Try next:")
    folder = result.folder
    print(f'  etymon generate {folder} "The function returns" --temperature 0.8')
    print(f'  etymon score {folder} "The function returns a list." "list a returns function The."')
    print(f"  etymon show {folder}")
    print("  etymon pretrain bert --data YOUR.txt --budget 5m")
    say(f"and open {result.report} in a browser.")
