"""What is trained on top of a model, or inside it, instead of its weights: sections of a run file."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Literal

from etymon.settings import option, settings

USUAL_TARGETS = ("query", "value")


@settings
class LoraSettings:
    """Low-rank adapters."""

    rank: int = option(8, "of an adapter's two matrices", gt=0)
    alpha: float = option(16.0, "what an adapter adds is multiplied by alpha / rank", gt=0)
    dropout: float = option(0.0, "of what an adapter reads", ge=0, lt=1)
    # Queries and values: what the LoRA paper adapts (section 4.2).
    targets: tuple[str, ...] = option(
        USUAL_TARGETS,
        "names of the body's linear maps, or patterns: query, feed_*, * for all; "
        "cross.query looks at two parts of a name",
        min_length=1,
    )

    def match(self, name: str) -> bool:
        parts = name.split(".")
        return any(fnmatchcase(".".join(parts[-1 - target.count(".") :]), target) for target in self.targets)


@settings
class FeatureSettings:
    """A BiLSTM that reads features: what the layers of a model give."""

    source: Literal["mix", "last-four", "last"] = option(
        "mix",
        "a learnt mix of all layers, the last four side by side (of fewer, all, "
        "the first layer's input included), or the last",
    )
    place: Literal["input", "output", "both"] = option(
        "input", "into the BiLSTM, beside what comes out of it, or both, each with a mix of its own"
    )
    cells: int = option(128, "of the BiLSTM, in each direction", gt=0)
    layers: int = option(1, "of the BiLSTM", gt=0)
    words: int = option(0, "the width of word vectors that are learnt with the task; 0: none", ge=0)
    gate: bool = option(
        False,
        "weigh features and word vectors against each other, dimension by dimension, instead of joining them",
    )
    dropout: float = option(0.5, "on features, wherever they enter", ge=0, lt=1)
    layer_norm: bool = option(False, "norm every layer before it is mixed")
    penalty: float = option(
        0.0,
        "the weight of the mix's squared scalars in the loss: 1 keeps it near the mean, 0.001 leaves it free",
        ge=0,
    )

    def __post_init__(self) -> None:
        if self.place == "output" and not self.words:
            raise ValueError(
                "at the output alone, the BiLSTM reads word vectors of the task's own: set words"
            )
        if self.gate and (self.place == "output" or not self.words):
            raise ValueError("a gate is between features at the input and word vectors: set place and words")
        if self.source != "mix" and (self.layer_norm or self.penalty):
            raise ValueError(f"layer_norm and penalty belong to a mix, and the source is {self.source}")
