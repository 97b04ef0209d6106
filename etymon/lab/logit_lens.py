"""What every layer would predict: the vocabulary head over the hidden states of each ("logit lens").

Legend: N tokens, L layers with the input of the first as number 0, D width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from etymon.errors import EtymonError
from etymon.families.model import Model
from etymon.generation.text import tokenizer_of
from etymon.nn.batch import Batch
from etymon.nn.layers import eval_mode
from etymon.nn.trace import trace
from etymon.nn.vocabulary import Context
from etymon.text.readable import readable_tokens


@dataclass(frozen=True)
class LayerGuess:
    token: str
    probability: float


@dataclass(frozen=True)
class LayerPredictions:
    """`layers[l][n]` are the likeliest tokens after layer `l` at token `n`, the best first; layer 0 is what
    the first layer reads."""

    tokens: list[str]
    predicts_next: bool
    """Whether a guess is about the token behind it (a decoder), or about the place itself."""
    layers: list[list[list[LayerGuess]]]


@torch.inference_mode()
def logit_lens(model: Model, text: str, top: int = 5) -> LayerPredictions:
    """Every layer's predictions for a text. The last layer's are those of the model."""
    if model.encoder_decoder or "vocabulary" not in model.heads:
        raise EtymonError(f"this {model.family.title} has no layers that end in a vocabulary")
    tokenizer = tokenizer_of(model)
    predicts_next = "causal" in model.capabilities and "bidirectional" not in model.capabilities
    ids = tokenizer.encode(text)
    segments = np.zeros(len(ids), np.int64)
    if not predicts_next:
        framed = tokenizer.framing.frame(ids)
        ids, segments = framed.ids, framed.segments
    if not len(ids):
        raise EtymonError("the text has no tokens: there is nothing to predict")
    if model.positions is not None and len(ids) > model.positions:
        raise EtymonError(
            f"the text has {len(ids)} tokens, but the model reads {model.positions}: shorten it",
            code="too-long",
        )
    batch = Batch.of([ids], segments=[segments], device=model.device)
    with eval_mode(model), trace(model, attention=False) as seen:
        final_ND, _ = model.hidden(batch)
    head: Any = model.heads["vocabulary"]
    norm = _last_norm(model)
    layers = []
    # The last one is taken from the model itself, whatever stands behind its layers.
    for state_ND in [*(each if norm is None else norm(each) for each in seen.hidden[:-1]), final_ND]:
        log_probs_NV = head.log_probs(state_ND, None, Context(batch))
        best = log_probs_NV.topk(min(top, log_probs_NV.shape[1]), 1)
        names = [readable_tokens(tokenizer, row) for row in best.indices.tolist()]
        chances = best.values.exp().tolist()
        layers.append(
            [
                [LayerGuess(*each) for each in zip(*row, strict=True)]
                for row in zip(names, chances, strict=True)
            ]
        )
    return LayerPredictions(readable_tokens(tokenizer, ids), predicts_next, layers)


def _last_norm(model: Model) -> Any:
    """The norm behind the last layer, where layers norm what they read and not what they give."""
    stacks = [part for part in model.modules() if hasattr(part, "seen") and hasattr(part, "layers")]
    return getattr(stacks[0], "norm", None)
