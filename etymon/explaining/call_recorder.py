"""Following an objective while it computes its loss: what every model is given to read, and what is asked of
its heads.

Nothing is re-enacted: the methods of the models are watched for the time of one real `objective.loss`, so
objectives that this file has never heard of are followed as well.

Legend: N tokens, n positions that are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from etymon.nn.batch import Batch
from etymon.nn.trace import Trace, trace


@dataclass
class ReadCall:
    """A model read a batch."""

    who: str
    """`model`, `encoder`, `decoder`, `teacher`, or the name of a companion (`generator`)."""
    model: Any
    batch: Batch
    hidden: Tensor
    at: Tensor | None = None
    """The flat position of every row of `hidden`; None: all positions in order (XLNet's queries are few)."""
    source: Batch | None = None
    """What the encoder had read before, for a decoder."""


@dataclass
class VocabularyCall:
    """A vocabulary head was asked for `targets` at some rows of `hidden`."""

    head: Any
    hidden: Tensor
    at: Tensor | None
    targets: Tensor
    drawn: Tensor | None = None
    """What the head wrote there itself, where it was asked to draw (ELECTRA's generator)."""


@dataclass
class HeadCall:
    """Another head read a batch: its logits, one row for every place that it reads."""

    who: str
    name: str
    logits: Tensor
    batch: Batch


@dataclass
class CallRecord:
    """All calls of one loss, in their order, and what the models' stacks showed by the way."""

    reads: list[ReadCall] = field(default_factory=list)
    vocabulary: list[VocabularyCall] = field(default_factory=list)
    heads: list[HeadCall] = field(default_factory=list)
    traces: dict[str, Trace] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    """Of the models that were watched."""

    def read_of(self, hidden: Tensor) -> ReadCall | None:
        """The call that computed these states, or states that they are a part of (ELMo's directions)."""
        storage = hidden.untyped_storage().data_ptr()
        return next(
            (read for read in self.reads if read.hidden.untyped_storage().data_ptr() == storage), None
        )


@contextmanager
def recorded_calls(unit: Any, traces: bool = True) -> Iterator[CallRecord]:
    """Records the calls that are made to the models of a training unit inside the `with` block; with `traces`
    also every layer's attention weights."""
    record = CallRecord()
    models = {"model": unit.model, **dict(unit.companions.items())}
    if unit.teacher is not None:
        models["teacher"] = unit.teacher
    record.names = tuple(models)
    watched: list[tuple[nn.Module, str]] = []

    def watch(part: nn.Module, name: str, after: Callable[..., None]) -> None:
        original = getattr(part, name, None)
        if original is None:
            return

        def call(*arguments: Any, **values: Any) -> Any:
            result = original(*arguments, **values)
            after(result, *arguments, **values)
            return result

        # On the object, not its class: other models of the family are left alone.
        object.__setattr__(part, name, call)
        watched.append((part, name))

    followers = []
    try:
        for who, model in models.items():
            if traces:
                followers.append(trace(model))
                record.traces[who] = followers[-1].__enter__()
            _watch_model(who, model, record, watch)
        yield record
    finally:
        for part, name in reversed(watched):
            del part.__dict__[name]
        for follower in reversed(followers):
            follower.__exit__(None, None, None)


def _watch_model(who: str, model: Any, record: CallRecord, watch: Callable[..., None]) -> None:
    """Watches whatever an objective calls of a model."""

    def after_hidden(result: Any, batch: Batch, *rest: Any, **values: Any) -> None:
        record.reads.append(ReadCall(who, model, batch, result[0]))

    def after_two_stream(result: Any, batch: Batch, queries: Any, *rest: Any, **values: Any) -> None:
        record.reads.append(ReadCall(who, model, batch, result[0], at=queries.at))

    def after_encode(memory: Any, batch: Batch, *rest: Any, **values: Any) -> None:
        record.reads.append(ReadCall("encoder", model, batch, memory.hidden_MD))

    def after_decode(result: Any, batch: Batch, memory: Any, *rest: Any, **values: Any) -> None:
        record.reads.append(ReadCall("decoder", model, batch, result[0], source=memory.batch))

    def after_read(logits: Tensor, head: str, hidden: Tensor, batch: Batch, *rest: Any) -> None:
        record.heads.append(HeadCall(who, head, logits, batch))

    watch(model, "hidden", after_hidden)
    watch(model, "two_stream", after_two_stream)
    watch(model, "encode", after_encode)
    watch(model, "decode", after_decode)
    watch(model, "read", after_read)
    vocabulary = dict(model.heads.items()).get("vocabulary")
    if vocabulary is None:
        return

    def after_loss(
        result: Any, hidden: Tensor, at: Tensor | None, targets: Tensor, *rest: Any, **values: Any
    ) -> None:
        # A loss may be made of another one's parts: one question all the same.
        if not record.vocabulary or record.vocabulary[-1].targets is not targets:
            record.vocabulary.append(VocabularyCall(vocabulary, hidden, at, targets))

    def after_draw(
        result: Any, hidden: Tensor, at: Tensor | None, targets: Tensor, *rest: Any, **values: Any
    ) -> None:
        record.vocabulary.append(VocabularyCall(vocabulary, hidden, at, targets, drawn=result[1]))

    watch(vocabulary, "loss", after_loss)
    watch(vocabulary, "smoothed_loss", after_loss)
    watch(vocabulary, "loss_and_sample", after_draw)
