"""Tasks that a head of the model answers: what they share in reading, training and answering.

An example is one row of tokens or several (choices, both orders of a pair). Heads say one thing of every row, or of chosen
places; a task turns that into its scores and its loss.

Legend: N tokens, E examples, L labels, D width.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import ConfigDict, Field, NonNegativeFloat, PositiveFloat
from pydantic.dataclasses import dataclass as checked
from torch import Tensor

from etymon.config import did_you_mean
from etymon.errors import EtymonError
from etymon.families.family import Family
from etymon.families.model import Model
from etymon.generation.decoding import eval_mode
from etymon.nn.batch import Batch
from etymon.nn.vocabulary import DenseVocabulary
from etymon.objectives.objective import Term, Unit
from etymon.sampling.examples import NONE, Examples, Ragged, bundles
from etymon.settings.decoding import DecodingSettings
from etymon.tables.table import Table
from etymon.tasks.feature_cache import FeatureCache
from etymon.tasks.head_batches import HeadPrepared, ask_for_words, parts_of
from etymon.tasks.reading import Pair, TextReader
from etymon.tasks.task import Fit, Notify, Task, ignore_note

PREDICTED_TOKENS = 4096
"""That are read together where nothing is learnt."""
NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")
TEACHER = "taught"
"""The column of what a teacher says, and the term that follows it."""


@checked(frozen=True, config=ConfigDict(extra="forbid"))
class HeadOptions:
    way: Literal["auto", "head", "text"] = "auto"
    """`head`: a head of the model answers; `text`: the model writes its answer; `auto`: as the family was published."""
    prefix: str = ""
    """Where the answer is written, before every text: T5's tasks have names, such as `sst2 `."""
    language_model: NonNegativeFloat = 0.0
    """The weight of the language-modelling loss over the same texts, beside the task's (GPT-1: 0.5)."""
    r_drop: NonNegativeFloat = 0.0
    """The weight of the divergence between two passes with different dropout (R-Drop)."""
    temperature: PositiveFloat = 2.0
    """At which a teacher's answers are followed."""
    teaching: Annotated[float, Field(ge=0, le=1)] = 0.5
    """The weight of following the teacher, if there is one; the labels have the rest."""


class HeadTask(Task):
    """What is left to say: the texts of an example, its target, what scores mean, and the loss."""

    head: ClassVar[str]
    writes_text = False
    default_rows = 32
    written_by: ClassVar[frozenset[str]] = frozenset({"t5"})
    """Families that were published as writing their answers."""
    teachable: ClassVar[bool] = False
    """Whether another model's scores can be followed."""
    ending: ClassVar[bool] = False
    """Whether of a first text that is too long the end is read: what is asked stands there."""
    options: HeadOptions
    outputs: tuple[int, int] | None = None
    """Where several tasks share a head: the outputs that are this one's, from the first to behind the last."""
    label_names: tuple[str, ...] = ()
    """The labels, in the order of the head's outputs."""
    spelled: Mapping[str, str] = {}
    """The labels by how a model writes them."""
    teacher: Callable[[Table], np.ndarray] | None = None
    """What another model says of rows, to be followed in training."""
    penalised = False
    """Whether the head has a penalty of its own, which is added to every step's loss."""
    cache: FeatureCache | None = None
    """Of a body that does not learn: what its layers say of rows that were read before."""

    def fit(self, family: Family) -> Fit:
        if self.head not in family.heads:
            raise EtymonError(f"{family.title} has no head for the task {self.name!r}")
        if self.options.prefix:
            raise EtymonError(
                f"prefix is for answers that are written, and a head of {family.title} gives them: leave it out, or say --way text"
            )
        if family.features is not None and self.needs_states:
            raise EtymonError(
                "features take the place of a head that reads the last states: leave language_model and symmetric out"
            )
        if self.options.language_model and "causal" not in family.capabilities:
            raise EtymonError(
                f"language_model is the loss of a model that reads from left to right, which {family.title} is not: set it to 0"
            )
        return Fit("native", self.heads)

    @property
    def needs_states(self) -> bool:
        """Whether it looks at the last states itself."""
        return bool(self.options.language_model)

    @property
    def heads(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({self.head, *(["vocabulary"] if self.options.language_model else [])})

    def __getstate__(self) -> dict[str, Any]:
        """What a process that prepares samples needs: no model."""
        return {**self.__dict__, "teacher": None, "cache": None}

    # --- what a task says of itself

    @abstractmethod
    def pairs(self, table: Table) -> list[list[Pair]]:
        """The rows of every example: one text, or two."""

    @abstractmethod
    def targets(self, table: Table) -> np.ndarray:
        """What is to be learnt, a row for every example. Refuses values that cannot be."""

    @abstractmethod
    def criterion(self, scores: Tensor, prepared: HeadPrepared) -> Tensor:
        """The summed loss of what the head says, over as many as `loss_count` tells."""

    @abstractmethod
    def answers(self, scores: Tensor, prepared: HeadPrepared) -> list[Any]:
        """What the scores of a batch mean, an answer for every example."""

    def head_logits(self, model: Model, states_ND: Tensor | None, prepared: HeadPrepared) -> Tensor:
        """What the head says of every example."""
        if states_ND is None and self.cache is not None and prepared.keys:
            layers = self.cache.layers(prepared.keys, prepared.batch)
            return model.answer_from(self.head, layers, prepared.batch, prepared.at)
        if states_ND is None:
            return model.answer(self.head, prepared.batch, prepared.at)
        return model.read(self.head, states_ND, prepared.batch, prepared.at)

    def task_logits(self, model: Model, states_ND: Tensor | None, prepared: HeadPrepared) -> Tensor:
        """The part of what the head says that is this task's own."""
        scores = self.head_logits(model, states_ND, prepared)
        return scores if self.outputs is None else scores[..., slice(*self.outputs)]

    @property
    def problem_type(self) -> str | None:
        """As Transformers calls it, where it has a name for it."""
        return None

    def model_label(self, label: str) -> str:
        """A label of a table as the model calls it: many published ones have numbers, and no names."""
        number = f"LABEL_{label}"
        return number if number in self.label_names and label not in self.label_names else label

    def numbers(self, rows: Sequence[Sequence[str]], table: Table, what: str = "label") -> dict[str, int]:
        """The number of every label; refuses rows with one that was not learnt."""
        places = {label: number for number, label in enumerate(self.label_names)}
        for number, names in enumerate(rows):
            for name in names:
                if name not in places:
                    raise EtymonError(
                        f"{table.places[number]}: {what} {name!r} is none of those that were learnt; {did_you_mean(name, self.label_names)}"
                    )
        return places

    def loss_count(self, targets: np.ndarray) -> float:
        return float(len(targets))

    def log_shares(self, scores: Tensor) -> Tensor:
        """The log-probabilities that scores mean, those that exclude one another in the last dimension."""
        return scores.log_softmax(-1)

    # --- tasks that ask several places of an example have several values for it

    def by_example(self, values: np.ndarray, examples: Examples) -> Ragged | np.ndarray:
        """Values in the order of the table as a column with an entry for every example."""
        return values

    def together(self, entries: Sequence[np.ndarray]) -> np.ndarray:
        """Entries of such a column as one array."""
        return np.stack(entries)

    def apart(self, values: np.ndarray, prepared: HeadPrepared) -> list[np.ndarray]:
        """What was said of a batch, an entry for every example."""
        return list(values)

    # --- tied to a model

    def bind(self, model: Model, length: int | None = None) -> None:
        self.reader = TextReader(model, length or self.limits.get("length"))
        self.limits["length"] = self.reader.length
        self.label_names = model.labels if self.outputs is None else self.label_names
        # Nobody asks here for what a second stream begins with, or, of features, for a decoder behind them.
        self.skips_heads = "two-stream" in model.capabilities or model.features is not None

    def bind_for_training(self, model: Model, length: int | None, *, frozen: bool) -> None:
        self.bind(model, length)
        if frozen:
            model.frozen_body = True
            self.cache = FeatureCache(model)
        if self.options.language_model and type(model.heads["vocabulary"]) is not DenseVocabulary:
            raise EtymonError(
                "language_model needs an ordinary softmax, and this model has another: set language_model to 0"
            )
        if self.options.r_drop and not model.drops:
            raise EtymonError(
                "R-Drop compares two passes with different dropout, and this model has none: leave --r-drop out"
            )
        if self.problem_type is not None:
            model.carried = {**model.carried, "problem_type": self.problem_type}
        self.penalised = model.features is not None and bool(model.features.penalty)

    def follow_teacher(self, model: Model, task: Any, name: str) -> None:
        """Takes over what another model says, in training."""
        same = isinstance(task, type(self)) and task.problem_type == self.problem_type
        if not self.teachable or not same:
            raise EtymonError(
                f"the task {self.name!r} cannot follow {name}, which does {task.name!r}: leave the teacher out"
            )
        theirs = [task.model_label(label) for label in self.label_names]
        if set(task.label_names) != set(theirs):
            raise EtymonError(
                f"{name} knows the labels {', '.join(task.label_names)}, and the table has {', '.join(self.label_names)}"
            )
        order = [task.label_names.index(label) for label in theirs]

        def look(prepared: HeadPrepared) -> list[np.ndarray]:
            scores = task.task_logits(model, None, prepared)
            return task.apart(scores[:, order].float().cpu().numpy(), prepared)

        self.teacher = lambda table: task.together(task.run_batches(model, task.read(table), look))

    def texts(self, table: Table) -> dict[str, list[str]]:
        self.targets(table)
        return {
            "text": [text for rows in self.pairs(table) for pair in rows for text in pair if text is not None]
        }

    def encode(self, table: Table, notify: Notify = ignore_note, *, learn: bool = False) -> Examples:
        examples = self.read(table, notify)
        columns = {**examples.columns, "target": self.by_example(self.targets(table), examples)}
        if learn and self.teacher is not None:
            notify(f"the teacher reads {len(table):,} rows")
            columns[TEACHER] = self.by_example(self.teacher(table), examples)
        return Examples(columns, examples.sizes, examples.words)

    def read(self, table: Table, notify: Notify = ignore_note) -> Examples:
        """The table's texts as tokens, whether it has answers or not."""
        return self.reader.examples(self.pairs(table), table, notify, ending=self.ending)

    # --- training

    def prepare(self, split: Any, row: np.ndarray, rng: np.random.Generator) -> list[dict[str, np.ndarray]]:
        numbers = row[row != NONE].tolist()
        return [{**split.example(number), "key": np.array([split.serial, number])} for number in numbers]

    def collate(self, examples: Sequence[list[dict[str, np.ndarray]]]) -> HeadPrepared:
        chosen = sorted((one for bundle in examples for one in bundle), key=lambda one: len(one["ids"]))
        ids, segments = (
            [part for one in chosen for part in parts_of(one[name], one["lengths"])]
            for name in ("ids", "segments")
        )
        batch = Batch.of(ids, segments=segments if any(map(np.any, segments)) else None)
        targets = (
            self.together([one["target"] for one in chosen])
            if "target" in chosen[0]
            else np.zeros((len(chosen), 0))
        )
        count = self.loss_count(targets)
        prepared = HeadPrepared(
            counts={"loss": count},
            tokens=batch.layout.tokens,
            batch=batch,
            targets=torch.from_numpy(targets),
            at=self.places(chosen, batch),
            rows=tuple(len(one["lengths"]) for one in chosen),
            keys=tuple(
                (*one["key"].tolist(), number)
                for one in chosen
                if "key" in one
                for number in range(len(one["lengths"]))
            ),
        )
        if self.options.r_drop:
            prepared.counts["r_drop"] = float(len(targets))  # whatever labels weigh
        if self.penalised:
            prepared.counts["penalty"] = float(len(chosen))
        if TEACHER in chosen[0]:
            prepared.taught = torch.from_numpy(self.together([one[TEACHER] for one in chosen]))
            prepared.counts[TEACHER] = float(self.log_shares(prepared.taught)[..., 0].numel())
        if self.options.language_model:
            ask_for_words(prepared, ids)
        return prepared

    def places(self, examples: Sequence[dict[str, np.ndarray]], batch: Batch) -> Tensor | None:
        """Where the head is asked; None for the places that the family reads."""
        return None

    def loss(self, unit: Unit, prepared: HeadPrepared) -> dict[str, Term]:
        model: Model = unit.model
        options, training = self.options, model.training
        states, scores = self.scored(model, prepared)
        loss = self.criterion(scores, prepared)
        terms: dict[str, Term] = {}
        if options.r_drop and training:
            other = self.scored(model, prepared)[1]
            loss = (loss + self.criterion(other, prepared)) / 2
            terms["r_drop"] = Term(self.divergence(scores, other, prepared), options.r_drop)
        share = 1.0
        if prepared.taught is not None and training:
            share, temperature = 1 - options.teaching, options.temperature
            wanted, found = (self.log_shares(each / temperature) for each in (prepared.taught, scores))
            follow = temperature**2 * F.kl_div(found, wanted, reduction="sum", log_target=True)
            terms[TEACHER] = Term(follow, options.teaching)
        if prepared.words is not None and training:
            assert states is not None
            head: Any = model.heads["vocabulary"]
            spoken = head.smoothed_loss(
                states, prepared.words_at, prepared.words, weights_n=prepared.words_weights
            )
            terms["language_model"] = Term(spoken, options.language_model)
        if self.penalised and training:
            own: Any = model.heads[self.head]
            terms["penalty"] = Term(own.penalty() * prepared.counts["penalty"])
        return {"loss": Term(loss, share), **terms}

    def scored(self, model: Model, prepared: HeadPrepared) -> tuple[Tensor | None, Tensor]:
        """The states that were looked at, where somebody else wants them too, and what the head says of every example."""
        wanted = prepared.words is not None and model.training
        states = model.states(prepared.batch) if wanted else None
        return states, self.task_logits(model, states, prepared)

    def divergence(self, one: Tensor, two: Tensor, prepared: HeadPrepared) -> Tensor:
        """The mean of both Kullback-Leibler divergences between what two passes say, summed."""
        blank = one == -torch.inf  # choices that a row does not have
        first, second = (each.log_softmax(-1).masked_fill(blank, 0.0) for each in (one, two))
        return ((first.exp() - second.exp()) * (first - second)).sum() / 2

    # --- use

    def predict(
        self,
        model: Model,
        table: Table,
        decoding: DecodingSettings | None = None,
        notify: Notify = ignore_note,
    ) -> list[Any]:
        return self.merge_row_answers(
            table, self.run_batches(model, self.read(table, notify), partial(self.answer_batch, model))
        )

    def evaluate(self, model: Model, examples: Examples, table: Table) -> tuple[list[Any], float] | None:
        total = count = 0.0

        def look(prepared: HeadPrepared) -> list[Any]:
            nonlocal total, count
            scores = self.task_logits(model, None, prepared)
            total += float(self.criterion(scores, prepared))
            count += prepared.counts["loss"]
            return self.answers(scores, prepared)

        answers = self.merge_row_answers(table, self.run_batches(model, examples, look))
        return answers, total / max(count, 1.0)

    def answer_batch(self, model: Model, prepared: HeadPrepared) -> list[Any]:
        """The answers to a batch."""
        return self.answers(self.task_logits(model, None, prepared), prepared)

    def run_batches(
        self, model: Model, examples: Examples, look: Callable[[HeadPrepared], Sequence[Any]]
    ) -> list[Any]:
        """What `look` says of every example, in their order."""
        found: dict[int, Any] = {}
        rng = np.random.default_rng(0)  # which nothing that is only read asks for
        with torch.inference_mode(), eval_mode(model):
            for row in bundles(examples.sizes, PREDICTED_TOKENS, 0, 0, shuffle=False):
                chosen = np.array(sorted(row[row != NONE], key=lambda number: int(examples.sizes[number])))
                prepared = self.collate([self.prepare(examples, chosen, rng)]).to(model.device)
                found |= dict(zip(chosen.tolist(), look(prepared), strict=True))
        return [found[number] for number in range(len(examples))]

    def merge_row_answers(self, table: Table, answers: list[Any]) -> list[Any]:
        """The answer to every row of the table, by those to its examples."""
        return answers

    def describe(self) -> dict[str, Any]:
        own = {} if self.outputs is None else {"outputs": list(self.outputs)}
        return {**super().describe(), "labels": list(self.label_names), **own}


def by_number(label: str) -> tuple[int, float, str]:
    """Numbers by their size, before names by the alphabet."""
    return (0, float(label), label) if NUMBER.fullmatch(label) else (1, 0.0, label)
