"""What the objective asked in its first samples, from the first validation on, and what the model answers.

All of it is read off after training: samples are a function of the seed and their number, and nothing that a
run goes on with is touched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from etymon.explaining.descriptions import about
from etymon.explaining.explain import explain_example
from etymon.explaining.explanation import ExplainedReader, TextQuestion
from etymon.objectives.objective import Objective
from etymon.runs.folder import Job
from etymon.sampling.plans import key
from etymon.text.languages import LanguageSplit
from etymon.training.feeding import Feed, sample_plan
from etymon.training.shards import root_gathered
from etymon.training.unit import TrainingUnit

MOST_ASKED = 3
"""Members of a mixture, or languages, of which a sample is shown."""
MOST_TOKENS = 48
"""Of what each part of the model reads: about a paragraph, in which a few tokens are asked for."""


@dataclass(frozen=True)
class AskedSample:
    """A sample: who reads what, what is asked there, and the model's guesses."""

    name: str
    """Of the objective, and of the language where there are several."""
    about: str
    is_held_out: bool
    readers: list[ExplainedReader]
    about_text: list[TextQuestion]


def ask_samples(job: Job, unit: TrainingUnit, feed: Feed, store: Any) -> list[AskedSample]:
    """The first sample of the held-out text (of the training text, if nothing is held out); of a mixture one
    of every member, of several languages one of each."""
    # Processes that share a model compute together.
    if not (job.world.first or job.world.is_sharded):
        return []
    outside = unit.objective
    try:
        with root_gathered(unit):
            return list(_ask(unit, feed, store, job.file.seed))
    except Exception as error:  # of a plugin's objective: the trained model is worth more than its sample
        job.note(f"the report shows no sample of the objective: {error}")
        return []
    finally:
        unit.objective = outside


def _ask(unit: TrainingUnit, feed: Feed, store: Any, seed: int) -> Iterator[AskedSample]:
    model: Any = unit.model
    for name, objective, splits in _parts(feed.objective, store)[:MOST_ASKED]:
        streams = feed.slices * feed.rows
        for is_held_out, split in zip((True, False), splits, strict=True):
            plan = sample_plan(objective, split, seed, 0, streams, shuffle=False)
            if not len(plan):
                continue
            example = objective.prepare(split, plan[0], key(seed, "validation", 0))
            # By its objective a unit knows how much streams remember.
            unit.objective = objective
            with unit.isolated_memory():
                readers, about_text, _ = explain_example(
                    unit, model.tokenizer, example, trained=True, most_tokens=MOST_TOKENS, pictures=False
                )
            yield AskedSample(name, about(objective), is_held_out, readers, about_text)
            break


def _parts(objective: Any, store: Any) -> list[tuple[str, Objective, tuple[Any, Any]]]:
    """Everything that is asked apart: its name, its objective, and its held-out and training text."""
    splits = {"": (store.validation, store.train)}
    if isinstance(store.train, LanguageSplit):
        objective = objective.inner
        splits = {code: (store.validation.parts[code], part) for code, part in store.train.parts.items()}
    members: dict[str, Objective] = getattr(objective, "parts", None) or {objective.name: objective}
    return [
        (" ".join(filter(None, (name, code))), member, pair)
        for code, pair in splits.items()
        for name, member in members.items()
    ]
