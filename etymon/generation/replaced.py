"""Which tokens of a text a discriminator takes for replaced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from etymon.errors import EtymonError
from etymon.families.model import Model
from etymon.generation.text import tokenizer_of
from etymon.nn.batch import Batch
from etymon.nn.layers import eval_mode
from etymon.report.inline import Inline, ShadedText, shaded_spans

if TYPE_CHECKING:
    from etymon.report.page import Section


@dataclass(frozen=True)
class Suspect:
    """A token of a text, where it stands, and how likely it is not the original one."""

    token: str
    start: int
    stop: int
    probability: float


@dataclass(frozen=True)
class Inspection(Inline):
    text: str
    tokens: list[Suspect]

    def inline_sections(self) -> Iterator[Section]:
        spans = [(each.start, each.stop, each.probability, f"{each.probability:.0%}") for each in self.tokens]
        yield ShadedText(shaded_spans(self.text, spans), "the darker, the likelier that it was replaced")


@torch.inference_mode()
def inspect_texts(model: Model, texts: Sequence[str], name: str, batch_size: int = 32) -> list[Inspection]:
    """Of every token of every text the probability that it is not the one that stood there. `name` is the
    model's, for messages."""
    if "replaced" not in model.heads:
        raise EtymonError(
            f"{name} is no discriminator: train one with `etymon pretrain electra`, or give its "
            "discriminator's folder",
            code="wrong-family",
        )
    tokenizer = tokenizer_of(model)
    inspections = []
    with eval_mode(model):
        for first in range(0, len(texts), batch_size):
            chunk = texts[first : first + batch_size]
            encoded = [tokenizer.offsets(text) for text in chunk]
            framed = [tokenizer.framing.frame(ids) for ids, _, _ in encoded]
            for frame in framed:
                if model.positions is not None and len(frame.ids) > model.positions:
                    raise EtymonError(
                        f"a text has {len(frame.ids)} tokens, but the model reads {model.positions}: "
                        "shorten it",
                        code="too-long",
                    )
            batch = Batch.of(
                [frame.ids for frame in framed],
                segments=[frame.segments for frame in framed],
                device=model.device,
            )
            hidden, _ = model.hidden(batch)
            # By rows, special tokens included; below they are left out,
            # since nobody could have replaced them.
            rows = model.read("replaced", hidden, batch).sigmoid().split(batch.layout.lengths)
            for text, (_, starts, stops), frame, row in zip(chunk, encoded, framed, rows, strict=True):
                probabilities = row.cpu().numpy()[~frame.special].tolist()
                places = zip(starts.tolist(), stops.tolist(), probabilities, strict=True)
                suspects = [Suspect(text[start:stop], start, stop, p) for start, stop, p in places]
                inspections.append(Inspection(text, suspects))
    return inspections
