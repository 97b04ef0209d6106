"""Tasks that a head of the model answers. In the order of a run: rows, targets, loss, answers.

An example is one row of tokens or several (choices, both orders of a pair). A head gives logits of every row,
or of chosen places; a task turns them into its loss and its answers.

Legend: N tokens, E examples, L labels, D width.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from etymon.config import did_you_mean
from etymon.errors import EtymonError
from etymon.families.family import Family
from etymon.families.model import Model
from etymon.nn.batch import Batch
from etymon.nn.layers import eval_mode
from etymon.nn.vocabulary import DenseVocabulary
from etymon.objectives.objective import Term, Unit
from etymon.sampling.examples import NONE, Examples, bundles
from etymon.settings.decoding import DecodingSettings
from etymon.settings.tasks import HeadOptions
from etymon.tables.table import Table
from etymon.tasks.reading import FeatureCache, HeadBatch, Pair, TextReader, column_by_example, split_flat
from etymon.tasks.task import Fit, Notify, Task, ignore_note

PREDICTED_TOKENS = 4096
"""Tokens of a batch where nothing is learnt."""
TEACHER = "taught"
"""The column of a teacher's logits, and the term of the loss that follows them."""


class HeadTask(Task):
    """A task says what the texts of an example are (`pairs`), its targets, the loss (`criterion`) and the
    answers."""

    head: str
    writes_text = False
    default_rows = 32
    writable: ClassVar[bool] = True
    """Whether a model may write the answer instead (`WrittenTask`)."""
    teachable: ClassVar[bool] = False
    """Whether another model's logits can be followed."""
    keeps_end: ClassVar[bool] = False
    """Whether a first text that is too long loses its beginning: the question stands at its end."""
    distributions: ClassVar[int] = 1
    """How many the head gives for an example, such as of beginnings and of ends; its loss is their mean."""
    options: HeadOptions
    outputs: tuple[int, int] | None = None
    """Where tasks share a head: the outputs of this one, from the first to behind the last."""
    label_names: tuple[str, ...] = ()
    """In the order of the head's outputs."""
    problem_type: str | None = None
    """As Transformers calls it, where it has a name for it."""
    has_possible_texts = False
    """Whether a row has but a few answers that could be written: `possible_texts` of all rows, of which
    `choose_text` takes one by their probabilities."""
    label_by_text: Mapping[str, str] = {}
    """The labels by how a model writes them."""
    teacher: Callable[[Table], np.ndarray] | None = None
    """Gives the logits of another model, to be followed in training."""
    has_penalty = False
    """Whether the head has a penalty of its own, which is added to every step's loss."""
    cache: FeatureCache | None = None
    """Layers of a body that does not learn, for rows that were read before."""

    # --- tied to a family, a model, a teacher

    def fit(self, family: Family) -> Fit:
        options = self.options
        if self.head not in family.heads:
            raise EtymonError(f"{family.title} has no head for the task {self.name!r}")
        for name in ("prefix", "free_text"):
            if getattr(options, name, None):
                raise EtymonError(
                    f"{name} is for answers that are written, and a head of {family.title} gives them: "
                    "leave it out, or say --way text"
                )
        if family.features is not None and (options.language_model or getattr(options, "symmetric", False)):
            raise EtymonError(
                "features take the place of a head that reads the last states: leave language_model "
                "and symmetric out"
            )
        if options.language_model and "causal" not in family.capabilities:
            raise EtymonError(
                "language_model is the loss of a model that reads from left to right, "
                f"which {family.title} is not: set it to 0"
            )
        return Fit("native", self.heads)

    @property
    def heads(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({self.head, *(["vocabulary"] if self.options.language_model else [])})

    def bind(self, model: Model, length: int | None = None) -> None:
        self.reader = TextReader(model, length or self.limits.get("length"))
        self.limits["length"] = self.reader.length
        self.label_names = model.labels if self.outputs is None else self.label_names
        # What a second stream begins with, or a decoder behind features, is used by no task and gets no
        # gradient.
        self.skips_heads = "two-stream" in model.capabilities or model.features is not None

    def bind_for_training(self, model: Model, length: int | None, *, frozen: bool) -> None:
        self.bind(model, length)
        if frozen:
            model.frozen_body = True
            self.cache = FeatureCache(model)
        if self.options.language_model and type(model.heads["vocabulary"]) is not DenseVocabulary:
            raise EtymonError(
                "language_model needs an ordinary softmax, and this model has another: set "
                "language_model to 0"
            )
        if self.options.r_drop and not model.drops:
            raise EtymonError(
                "R-Drop compares two passes with different dropout, and this model has none: leave "
                "--r-drop out"
            )
        if self.problem_type is not None:
            model.carried = {**model.carried, "problem_type": self.problem_type}
        self.has_penalty = model.features is not None and bool(model.features.penalty)

    def follow_teacher(self, model: Model, task: Any, name: str) -> None:
        """Learns from the logits of a model that was fine-tuned for the same task; `name` is for messages."""
        # Logits can be compared if they mean the same: one label, several, or a label of every word.
        same = isinstance(task, type(self)) and task.problem_type == self.problem_type
        if not self.teachable or not same:
            raise EtymonError(
                f"the task {self.name!r} cannot follow {name}, which does {task.name!r}: leave the "
                "teacher out"
            )
        labels = [task.model_label(label) for label in self.label_names]
        if set(task.label_names) != set(labels):
            raise EtymonError(
                f"{name} knows the labels {', '.join(task.label_names)}, "
                f"and the table has {', '.join(self.label_names)}"
            )
        # Both heads may have their outputs in different orders; the student's is that of its table.
        order = [task.label_names.index(label) for label in labels]

        def logits(batch: HeadBatch) -> list[np.ndarray]:
            return batch.by_example(task.task_logits(model, batch)[:, order].float().cpu().numpy())

        self.teacher = lambda table: np.concatenate(task.run_batches(model, task.encode_texts(table), logits))

    def __getstate__(self) -> dict[str, Any]:
        """Worker processes that prepare batches get no model."""
        return {**self.__dict__, "teacher": None, "cache": None}

    def describe(self) -> dict[str, Any]:
        outputs = {} if self.outputs is None else {"outputs": list(self.outputs)}
        return {**super().describe(), "labels": list(self.label_names), **outputs}

    # --- rows: texts as batches of tokens

    @property
    def columns(self) -> tuple[str, ...]:
        options: Any = self.options
        return (*self.input_columns, options.label)

    @abstractmethod
    def pairs(self, table: Table) -> list[list[Pair]]:
        """The rows of every example: one text, or two."""

    def texts(self, table: Table) -> dict[str, list[str]]:
        self.targets(table)
        return {
            "text": [text for rows in self.pairs(table) for pair in rows for text in pair if text is not None]
        }

    def encode_texts(self, table: Table, notify: Notify = ignore_note) -> Examples:
        """The table's texts as tokens, whether it has answers or not. A column `places` has the tokens that
        the head reads of every example, counted in its row; without it, it reads those of the family."""
        return self.reader.examples(self.pairs(table), table, notify, keeps_end=self.keeps_end)

    def encode(self, table: Table, notify: Notify = ignore_note, *, learn: bool = False) -> Examples:
        examples = self.encode_texts(table, notify)
        columns = {**examples.columns, "target": column_by_example(self.targets(table), examples)}
        # Once, before training: without dropout, a teacher gives the same logits in every epoch.
        if learn and self.teacher is not None:
            notify(f"the teacher reads {len(table):,} rows")
            columns[TEACHER] = column_by_example(self.teacher(table), examples)
        return Examples(columns, examples.sizes, examples.words)

    def prepare(self, split: Any, row: np.ndarray, rng: np.random.Generator) -> list[dict[str, np.ndarray]]:
        numbers = row[row != NONE].tolist()
        return [{**split.example(number), "key": np.array([split.serial, number])} for number in numbers]

    def collate(self, examples: Sequence[list[dict[str, np.ndarray]]]) -> HeadBatch:
        # By length: attention runs in groups of similar neighbours (nn/visibility.py).
        chosen = sorted(chain.from_iterable(examples), key=lambda example: len(example["ids"]))
        ids, segments = (
            [part for example in chosen for part in split_flat(example[name], example["lengths"])]
            for name in ("ids", "segments")
        )
        # No column stands for segment 0 everywhere, as of every single text.
        batch = Batch.of(ids, segments=segments if any(map(np.any, segments)) else None)
        has_places, targets = "places" in chosen[0], np.zeros((len(chosen), 0))
        if "target" in chosen[0]:
            targets = np.concatenate([example["target"] for example in chosen])
        prepared = HeadBatch(
            counts={"loss": self.loss_count(targets)},
            tokens=batch.layout.tokens,
            batch=batch,
            targets=torch.from_numpy(targets),
            at=batch.layout.flat([example["places"] for example in chosen]) if has_places else None,
            rows=tuple(len(example["lengths"]) for example in chosen),
            keys=tuple(
                (*example["key"].tolist(), number)
                for example in chosen
                if "key" in example
                for number in range(len(example["lengths"]))
            ),
        )
        if self.options.r_drop:
            prepared.counts["r_drop"] = float(len(targets))  # whatever labels weigh
        if self.has_penalty:
            prepared.counts["penalty"] = float(len(chosen))
        if TEACHER in chosen[0]:
            logits = torch.from_numpy(np.concatenate([example[TEACHER] for example in chosen]))
            # A mean over distributions: of examples, of words, or, of several labels, of every single one.
            prepared.teacher_logits = logits
            prepared.counts[TEACHER] = float(self.log_probabilities(logits, prepared)[..., 0].numel())
        if self.options.language_model:
            prepared.add_words(ids)
        return prepared

    # --- targets: what is right, as numbers

    @abstractmethod
    def targets(self, table: Table) -> np.ndarray:
        """The targets of all examples, or of all their places, in the order of the table. Raises an error for
        values that cannot be."""

    def model_label(self, label: str) -> str:
        """A label of a table as the model calls it: many published ones have numbers, and no names."""
        # Transformers' names of labels that nobody named: LABEL_0, LABEL_1 and so on.
        number = f"LABEL_{label}"
        return number if number in self.label_names and label not in self.label_names else label

    def label_ids(self, rows: Sequence[Sequence[str]], table: Table, what: str = "label") -> dict[str, int]:
        """The output of every label; refuses rows with a label that was not learnt."""
        ids = {label: number for number, label in enumerate(self.label_names)}
        for place, names in zip(table.places, rows, strict=True):
            for name in names:
                if name not in ids:
                    raise EtymonError(
                        f"{place}: {what} {name!r} is none of those that were learnt; "
                        f"{did_you_mean(name, self.label_names)}"
                    )
        return ids

    def loss_count(self, targets: np.ndarray) -> float:
        """What the summed loss of targets is divided by."""
        return float(len(targets))

    # --- loss: from logits to terms

    def head_logits(self, model: Model, prepared: HeadBatch, states_ND: Tensor | None = None) -> Tensor:
        """The head's logits of every example, or of every place. `states_ND` are the last states, or None."""
        batch = prepared.batch
        if states_ND is not None:
            return model.read(self.head, states_ND, batch, prepared.at)
        if self.cache is not None and prepared.keys:
            layers = self.cache.layers(prepared.keys, batch)
            return model.answer_from(self.head, layers, batch, prepared.at)
        return model.answer(self.head, batch, prepared.at)

    def task_logits(self, model: Model, prepared: HeadBatch, states_ND: Tensor | None = None) -> Tensor:
        """The logits of this task alone, where several share a head."""
        logits = self.head_logits(model, prepared, states_ND)
        return logits if self.outputs is None else logits[..., slice(*self.outputs)]

    @abstractmethod
    def criterion(self, logits: Tensor, prepared: HeadBatch) -> Tensor:
        """The summed loss, over as many targets as `loss_count` says."""

    def log_probabilities(self, logits: Tensor, prepared: HeadBatch) -> Tensor:
        """Log-probabilities; what excludes one another is in the last dimension."""
        return logits.log_softmax(-1)

    def loss(self, unit: Unit, prepared: HeadBatch) -> dict[str, Term]:
        model: Model = unit.model
        options, training = self.options, model.training

        def forward() -> tuple[Tensor | None, Tensor]:
            # The language model and the head read the same states, which are then computed once.
            states_ND = model.states(prepared.batch) if prepared.words is not None and training else None
            return states_ND, self.task_logits(model, prepared, states_ND)

        states_ND, logits = forward()
        loss = self.criterion(logits, prepared)
        # Validation is the task's loss alone, so that runs with and without the other terms can be compared.
        if not training:
            return {"loss": Term(loss)}
        terms: dict[str, Term] = {}
        if options.r_drop:
            # R-Drop (Liang et al. 2021, section 2) adds the losses of both passes. Here it is their mean, so
            # that a learning rate keeps its meaning: the paper's alpha of 1 is an `r_drop` of 0.5.
            other = forward()[1]
            loss = (loss + self.criterion(other, prepared)) / 2
            first, second = (self.log_probabilities(each, prepared) for each in (logits, other))
            # KL(p|q) + KL(q|p) is the sum of (p - q)(log p - log q); the mean of both, and of an example's
            # distributions.
            divergence = ((first.exp() - second.exp()) * (first - second)).sum() / (2 * self.distributions)
            terms["r_drop"] = Term(divergence, options.r_drop)
        share = 1.0
        if prepared.teacher_logits is not None:
            share, temperature = 1 - options.teaching, options.temperature
            wanted, given = (
                self.log_probabilities(each / temperature, prepared)
                for each in (prepared.teacher_logits, logits)
            )
            # The square keeps gradients as large as at a temperature of 1 (Hinton et al. 2015, section 2).
            follow = temperature**2 * F.kl_div(given, wanted, reduction="sum", log_target=True)
            terms[TEACHER] = Term(follow, options.teaching)
        if states_ND is not None:
            # The auxiliary objective of GPT-1 (section 3.2, with a weight of 0.5).
            vocabulary: Any = model.heads["vocabulary"]
            words = vocabulary.smoothed_loss(
                states_ND, prepared.words_at, prepared.words, weights_n=prepared.words_weights
            )
            terms["language_model"] = Term(words, options.language_model)
        if self.has_penalty:
            head: Any = model.heads[self.head]
            terms["penalty"] = Term(head.penalty() * prepared.counts["penalty"])
        return {"loss": Term(loss, share), **terms}

    # --- answers: from logits to predictions

    @abstractmethod
    def answers(self, logits: Tensor, prepared: HeadBatch) -> list[Any]:
        """The answer to every example of a batch."""

    def answer_batch(self, model: Model, prepared: HeadBatch) -> list[Any]:
        return self.answers(self.task_logits(model, prepared), prepared)

    def batches(self, examples: Examples, device: torch.device) -> Iterator[tuple[list[int], HeadBatch]]:
        """All examples in batches of similar length, each with the numbers of its examples."""
        rng = np.random.default_rng(0)  # prediction draws nothing; `prepare` wants a generator all the same
        for row in bundles(examples.sizes, PREDICTED_TOKENS, 0, 0, shuffle=False):
            # `collate` sorts in the same way, and both sorts are stable: answers meet their examples.
            chosen = np.array(sorted(row[row != NONE], key=lambda number: int(examples.sizes[number])))
            yield chosen.tolist(), self.collate([self.prepare(examples, chosen, rng)]).to(device)

    def run_batches(
        self, model: Model, examples: Examples, answer: Callable[[HeadBatch], Sequence[Any]]
    ) -> list[Any]:
        """What `answer` returns for every example, in their order."""
        results: dict[int, Any] = {}
        with torch.inference_mode(), eval_mode(model):
            for numbers, prepared in self.batches(examples, model.device):
                results |= dict(zip(numbers, answer(prepared), strict=True))
        return [results[number] for number in range(len(examples))]

    def merge_row_answers(self, table: Table, answers: list[Any]) -> list[Any]:
        """The prediction for every row of the table, by the answers to its examples."""
        return answers

    def predict(
        self,
        model: Model,
        table: Table,
        decoding: DecodingSettings | None = None,
        notify: Notify = ignore_note,
    ) -> list[Any]:
        examples = self.encode_texts(table, notify)
        return self.merge_row_answers(
            table, self.run_batches(model, examples, partial(self.answer_batch, model))
        )

    def evaluate(self, model: Model, examples: Examples, table: Table) -> tuple[list[Any], float] | None:
        results: dict[int, Any] = {}
        loss = count = 0.0
        with torch.inference_mode(), eval_mode(model):
            for numbers, prepared in self.batches(examples, model.device):
                logits = self.task_logits(model, prepared)
                loss += float(self.criterion(logits, prepared))
                count += prepared.counts["loss"]
                results |= dict(zip(numbers, self.answers(logits, prepared), strict=True))
        answers = [results[number] for number in range(len(examples))]
        return self.merge_row_answers(table, answers), loss / max(count, 1.0)
