"""Trains, resumes, fine-tunes, distils and asks small models, and writes down what came out.

A script, run once by each of the two revisions that are compared; it uses nothing but the public interface, so that both
understand it: `python tests/golden/record.py WORK [--before OTHER] [--only PATTERN]`. With `--before`, the models that the
other revision saved are opened and asked, and the runs that it left unfinished are gone on with.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import itertools
import json
import os
import random
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

import etymon
from etymon.errors import EtymonError

ENCODER = {"dim": 32, "layers": 2, "heads": 2, "inner_dim": 48, "positions": 64}
SHAPES: dict[str, dict[str, Any]] = {
    "gpt1": {"dim": 32, "layers": 2, "heads": 2, "positions": 64},
    "gpt2": {"dim": 32, "layers": 2, "heads": 2, "positions": 64},
    "gpt3": {"dim": 32, "layers": 2, "heads": 2, "positions": 64, "band": 8},
    "gptj": {"dim": 32, "layers": 2, "heads": 2, "positions": 64, "rotary_dim": 8},
    **dict.fromkeys(("bert", "roberta", "distilbert", "bart"), ENCODER),
    "albert": {**ENCODER, "embedding_dim": 16},
    "electra": {**ENCODER, "embedding_dim": 16},
    "rnn": {"word_dim": 32, "dim": 32, "encoder_dim": 16, "readout_dim": 32},
    "transformer": {"dim": 32, "layers": 2, "heads": 2, "inner_dim": 48},
    "transformer-xl": {"dim": 32, "embedding_dim": 32, "layers": 2, "heads": 2, "head_dim": 16, "inner_dim": 48, "memory": 16},
    "xlnet": {"dim": 32, "layers": 2, "heads": 2, "inner_dim": 48, "memory": 16},
    "elmo": {"dim": 12, "cells": 20, "letter_dim": 5, "filters": "1x4 2x6 3x8", "targets": 20},
    "t5": {"dim": 32, "layers": 2, "heads": 2, "head_dim": 8, "inner_dim": 48},
}  # fmt: skip
OBJECTIVES = (
    "causal", "recurrent", "prefix", "masked", "masked-next-sentence", "masked-sentence-order", "permutation",
    "bidirectional", "replaced", "denoising", "span-corruption", "masked=0.5,causal=0.5", "masked=0.7,masked-next-sentence=0.3",
)  # fmt: skip
OPTIMISERS = ("adamw", "adam-bert", "adafactor", "lamb", "muon", "adagrad")
SCHEDULES = ("constant", "linear", "cosine", "inverse-square-root", "wsd")
TASKS: dict[str, dict[str, Any]] = {
    "classify": {"train": ["labels.csv"]},
    "regress": {"train": ["numbers.csv"]},
    "choose": {"train": ["choices.jsonl"]},
    "tag": {"train": ["tags.jsonl"]},
    "answer": {"train": ["answers.jsonl"]},
    "text2text": {"train": ["pairs.tsv"]},
    "language-model": {"train": ["labels.csv"]},
}
WRITERS = {"gpt1", "gpt2", "gpt3", "gptj", "transformer-xl", "bart", "transformer", "rnn", "t5"}
CLOCK = {"tokens_per_second", "utilisation", "memory", "seconds"}
PROMPTS = ["The river crossed", "The captain remembered the old"]


def write_data(folder: Path) -> None:
    """Text and tables that are drawn anew, and alike, every time."""
    draw = random.Random(5)
    nouns = (
        "river mountain letter garden winter captain window morning village question bridge answer".split()
    )
    verbs = "crossed remembered followed painted wanted carried opened answered".split()

    def sentence() -> str:
        return f"The {draw.choice(nouns)} {draw.choice(verbs)} the old {draw.choice(nouns)}."

    texts = [" ".join(sentence() for _ in range(draw.randint(3, 9))) for _ in range(80)]
    (folder / "text.txt").write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    rows = [(sentence(), draw.choice(("good", "bad")), draw.random() * 4) for _ in range(60)]
    with open(folder / "labels.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *((text, label) for text, label, _ in rows)])
    with open(folder / "numbers.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(
            [("text", "label"), *((text, f"{number:.3f}") for text, _, number in rows)]
        )
    records: dict[str, list[dict[str, Any]]] = {"choices": [], "tags": [], "answers": []}
    for text, label, _ in rows:
        words = text.rstrip(".").split()
        records["choices"].append(
            {"text": text, "choices": [sentence(), sentence()], "label": int(label == "good")}
        )
        records["tags"].append({"tokens": words, "tags": ["N" if word in nouns else "O" for word in words]})
        answer = {"text": words[1], "answer_start": text.index(words[1])}
        records["answers"].append({"question": f"Who {words[2]}?", "context": text, "answers": [answer]})
    for name, kept in records.items():
        (folder / f"{name}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8"
        )
    pairs = [f"{text}\t{' '.join(reversed(text.split()))}" for text, _, _ in rows]
    (folder / "pairs.tsv").write_text("source\ttarget\n" + "\n".join(pairs) + "\n", encoding="utf-8")
    mixture = {
        "members": [
            {
                "name": "text",
                "objective": "span-corruption",
                "data": [str(folder / "text.txt")],
                "length": 32,
            },
            {"name": "mood", "task": "classify", "data": [str(folder / "labels.csv")]},
        ]
    }
    (folder / "mixture.yaml").write_text(json.dumps(mixture), encoding="utf-8")


class Recorder:
    """Runs cases by name and keeps what each gave: digests of weights, figures, answers, or how it was refused."""

    def __init__(self, work: Path, before: Path | None, only: str) -> None:
        self.work, self.before, self.only = work, before, only
        self.data = work / "data"
        self.cases: dict[str, tuple[Callable[[], Any], str]] = {}
        self.results: dict[str, Any] = {}

    def case(self, name: str, run: Callable[[], Any], needs: str = "") -> None:
        """Adds a case, which may need what another one leaves."""
        self.cases[name] = run, needs

    def run_cases(self) -> None:
        """Runs the cases that `only` names, and those that they need."""
        chosen = {name for name in self.cases if fnmatch(name, self.only)}
        chosen |= {self.cases[name][1] for name in chosen}
        for name, (run, _) in self.cases.items():
            if name in chosen:
                self.run_case(name, run)

    def run_case(self, name: str, run: Callable[[], Any]) -> None:
        begin = time.perf_counter()
        try:
            self.results[name] = run()
        except EtymonError as error:  # what is refused stays refused; its words may change
            self.results[name] = {"refused": True}
            print(f"{name}: refused ({error})", file=sys.stderr)
        except Exception:
            self.results[name] = {"failed": traceback.format_exc()}
        print(f"{name}: {time.perf_counter() - begin:.1f} s", flush=True)

    def write(self) -> None:
        (self.work / "results.json").write_text(
            json.dumps(self.results, indent=1, sort_keys=True), encoding="utf-8"
        )

    # --- cases

    def pretrain(self, family: str, objective: str | None, number: int) -> dict[str, Any]:
        """A run from scratch; optimiser, schedule and slices change from case to case."""
        out = self.work / "runs" / f"{family}-{(objective or 'own').replace('=', '').replace(',', '+')}"
        run = etymon.pretrain(family, out=out, **self.settings(family, objective, number))
        return {**outcome(run.folder), **self.ask(run.model_folder)}

    def settings(self, family: str, objective: str | None, number: int) -> dict[str, Any]:
        shape = [f"shape.{name}={value}" for name, value in SHAPES[family].items()]
        options: dict[str, Any] = {"objective": objective} if objective else {}
        if number:
            options |= {
                "optimiser": OPTIMISERS[number % len(OPTIMISERS)],
                "schedule": SCHEDULES[number % len(SCHEDULES)],
            }
            options["learning_rate"] = 2e-3  # a recipe's own is for its own optimiser
        return {
            "data": [self.data / "text.txt"], "steps": 6, "batch": 8, "slices": 1 + number % 2, "length": 32,
            "vocabulary": 420, "validation": 0.2, "validate_every": 3, "save_every": 2, "documents": "blank",
            "progress": "silent", "seed": number, "set": shape, **options,
        }  # fmt: skip

    def stop(self, family: str, number: int) -> dict[str, Any]:
        """A run that a signal ends on its way, and what it comes to when it goes on."""
        out = self.work / "stopped" / family
        settings = {**self.settings(family, None, number), "steps": 40}
        with interrupted(out / "metrics.jsonl"):
            etymon.pretrain(family, out=out, **settings)
        shutil.copytree(out, self.work / "unfinished" / family)
        etymon.pretrain(family, out=out, resume=True, progress="silent")
        return outcome(out)

    def go_on(self, family: str) -> dict[str, Any]:
        """The same, of the run that the other revision left; its result must be that of `stop`."""
        assert self.before is not None
        out = self.work / "taken over" / family
        shutil.copytree(self.before / "unfinished" / family, out)
        etymon.pretrain(family, out=out, resume=True, progress="silent")
        return outcome(out)

    def finetune(self, family: str, task: str, number: int) -> dict[str, Any]:
        source = self.work / "runs" / f"{family}-own"
        given = {name: [self.data / file for file in files] for name, files in TASKS[task].items()}
        out = self.work / "runs" / f"{task}-{family}"
        run = etymon.finetune(
            source, task=task, out=out, steps=4, batch=8, validate_every=2, progress="silent", seed=number, baselines=False,
            **given,
        )  # fmt: skip
        if task == "language-model":
            return outcome(run.folder)
        answers = etymon.predict(run.model_folder, data=given["train"])
        return {**outcome(run.folder), "answers": digest([answer.answer for answer in answers])}

    def mix(self, family: str) -> dict[str, Any]:
        out = self.work / "runs" / f"mixture-{family}"
        shape = [f"shape.{name}={value}" for name, value in SHAPES[family].items()]
        run = etymon.finetune(
            family, from_scratch=True, mixture=self.data / "mixture.yaml", out=out, steps=6, batch_tokens=256,
            vocabulary=420, validate_every=3, progress="silent", set=shape,
        )  # fmt: skip
        return outcome(run.folder)

    def distil(self, teacher: str, family: str | None) -> dict[str, Any]:
        out = self.work / "runs" / f"distilled-{teacher}-{family}"
        run = etymon.distill(
            self.work / "runs" / f"{teacher}-own", family=family, layers=1, data=[self.data / "text.txt"], out=out,
            budget="4steps", batch=8, length=32, documents="blank", progress="silent",
        )  # fmt: skip
        return outcome(run.folder)

    def sweep(self) -> dict[str, Any]:
        settings = self.settings("gpt2", None, 0)
        shape, kept = settings["set"], ("data", "batch", "length", "vocabulary", "documents", "progress")
        swept = etymon.sweep(
            "gpt2", grid={"learning_rate": [1e-3, 3e-3]}, budget="4steps", out=self.work / "runs" / "sweep",
            set=shape, **{name: settings[name] for name in kept},
        )  # fmt: skip
        return {
            "runs": {str(path.relative_to(swept.folder)): outcome(path) for path in runs_below(swept.folder)}
        }

    def reopen(self, name: str) -> dict[str, Any]:
        """A model that the other revision saved, asked by this one."""
        assert self.before is not None
        run = self.before / "runs" / name
        return self.ask(
            next(run / member for member in ("model", "discriminator") if (run / member).is_dir())
        )

    def ask(self, folder: Path) -> dict[str, Any]:
        """Everything that such a model can be asked; None where it cannot."""

        def told(verb: Callable[[], Any]) -> Any:
            try:
                return digest(verb())
            except EtymonError:
                return None

        return {
            "greedy": told(lambda: [text.text for text in etymon.generate(folder, PROMPTS, max_new_tokens=8)]),
            "sampled": told(lambda: [text.text for text in etymon.generate(folder, PROMPTS, max_new_tokens=8, top_k=5, seed=3)]),
            "beams": told(lambda: [text.text for text in etymon.generate(folder, PROMPTS, max_new_tokens=8, beams=3)]),
            "scores": told(lambda: [list(score.log_probs) for score in etymon.score(folder, PROMPTS)]),
            "filled": told(lambda: [repr(filling) for filling in etymon.fill(folder, ["The ___ crossed the garden."])]),
            "vectors": told(lambda: etymon.embed(folder, PROMPTS).tolist()),
        }  # fmt: skip


def outcome(folder: Path) -> dict[str, Any]:
    """What a finished run came to: its weights by digest, its figures but for the clock, and its settings."""
    weights = {
        str(file.relative_to(folder)): {
            name: tensor_digest(tensor) for name, tensor in load_file(file).items()
        }
        for file in sorted(folder.glob("*/*.safetensors"))
    }
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    figures = [{k: v for k, v in json.loads(line).items() if k not in CLOCK} for line in lines]
    return {"weights": weights, "figures": figures}


def runs_below(folder: Path) -> Iterator[Path]:
    return (file.parent for file in sorted(folder.rglob("metrics.jsonl")))


def tensor_digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()[:16]


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


class interrupted:
    """Sends this process a SIGTERM when a run has logged its third step."""

    def __init__(self, log: Path) -> None:
        self.log, self.over = log, threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)

    def watch(self) -> None:
        while not self.over.wait(0.005):
            if self.log.exists() and sum(1 for _ in self.log.open("rb")) >= 3:
                os.kill(os.getpid(), signal.SIGTERM)
                return

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("work", type=Path)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--only", default="*")
    options = parser.parse_args()
    torch.set_num_threads(1)
    recorder = Recorder(options.work, options.before, options.only)
    recorder.data.mkdir(parents=True)
    write_data(recorder.data)
    families = list(SHAPES)
    for number, family in enumerate(families):
        recorder.case(f"pretrain/{family}/own", lambda f=family, n=number: recorder.pretrain(f, None, 0))
    for number, (family, objective) in enumerate(itertools.product(families, OBJECTIVES), 1):
        recorder.case(
            f"pretrain/{family}/{objective}",
            lambda f=family, o=objective, n=number: recorder.pretrain(f, o, n),
        )
    for number, family in enumerate(families):
        recorder.case(f"resume/{family}", lambda f=family, n=number: recorder.stop(f, n))
        if options.before is not None:
            recorder.case(f"take-over/{family}", lambda f=family: recorder.go_on(f))
            recorder.case(f"reopen/{family}", lambda f=family: recorder.reopen(f"{f}-own"))
    # Every family has two tasks, every task several families, and all that write do so.
    for number, family in enumerate(families):
        names = list(TASKS)
        for task in (names[number % 5], names[(number + 2) % 5], names[5 + number % 2]):
            recorder.case(
                f"finetune/{family}/{task}",
                lambda f=family, t=task, n=number: recorder.finetune(f, t, n),
                f"pretrain/{family}/own",
            )
    for family in ("t5", "bart"):
        recorder.case(f"mixture/{family}", lambda f=family: recorder.mix(f))
    for teacher, student in (
        ("bert", None),
        ("bert", "distilbert"),
        ("roberta", None),
        ("gpt2", None),
        ("gptj", None),
    ):
        recorder.case(
            f"distil/{teacher}-{student}",
            lambda t=teacher, s=student: recorder.distil(t, s),
            f"pretrain/{teacher}/own",
        )
    recorder.case("sweep", recorder.sweep)
    recorder.run_cases()
    recorder.write()


if __name__ == "__main__":
    main()
