"""Ways to train, as values. A family has a published recipe, its sizes may have others, and some go by a name
(docs/recipes.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from etymon.settings.training import Hyperparameters, PhaseFile, RecipeName


@dataclass(frozen=True)
class Recipe(Hyperparameters):
    """A way to train, as values: those of the settings that a run leaves open. The published one, as far as
    it carries over to any size, unless it has another `name`."""

    name: RecipeName = "published"
    why: str = ""
    """What it does otherwise than the published one, and for what reason, for reports."""
    shape: Mapping[str, Any] = field(default_factory=dict)
    """Fields of a new model's shape that differ from the size's."""
    objective: str | None = None
    """None: the family's."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of that objective, where they differ from its usual ones. Of `tuning`, those of any task that has them,
    and under its name those of one task alone."""
    phases: tuple[PhaseFile, ...] = ()
    """Parts of the run with a length, a batch or an objective of their own."""
    length: int | None = None
    """Of samples, where one was published that is not the number of positions."""
    batch_tokens: int | None = None
    """Tokens a step, where 2,048 are not the best."""
    ramp: float = 0.0
    """The share of the samples over which the batch grows from a sixteenth to its full size."""
    optimiser: str = "adamw"
    clip: float | None = 1.0
    schedule: str = "linear"
    warmup: float = 0.1
    """Share of the steps."""
    warmup_steps: int | None = None
    """Instead of the share, where the number itself was published; half of a shorter run."""
    final: float = 0.0
    """Learning rate at the end, as a share of the peak."""
    decay_end: float = 1.0
    """The share of the steps after which a linear or cosine schedule has fallen."""
    tuning_share: float = 0.5
    """What models that were pretrained by it are fine-tuned at, as a share of the rate."""

    def values(self) -> dict[str, Any]:
        """What it has otherwise than usual, as plain values."""
        usual = {part.name: getattr(Recipe(learning_rate=0.0), part.name) for part in fields(Recipe)}
        phases = [{name: value for name, value in asdict(phase).items() if value} for phase in self.phases]
        changed = {name: getattr(self, name) for name in usual if getattr(self, name) != usual[name]}
        changed |= {"phases": phases} if phases else {}
        return {name: value for name, value in changed.items() if name not in ("name", "why")}


USUAL_TUNING = Recipe(learning_rate=5e-5)

# --- of encoders

# A pocket model trains for minutes, in which Adam does not get beyond the frequencies of words; Muon does
# (docs/lab-notes.md).
MUON = Recipe(
    name="muon",
    why="As published, with Muon: in minutes, Adam does not get beyond the frequencies of words.",
    learning_rate=4e-3,
    optimiser="muon",
    betas=(0.9, 0.95),
    epsilon=1e-6,
    weight_decay=0.01,
    warmup=0.1,
)
# Why masked models stall (docs/lab-notes.md): attention begins uniform, and nothing but words tells a place
# from another. Rotary positions, larger first weights, more masks and smaller steps each bring the neighbours
# into sight sooner; together they are worth 1.1 nats after 10 Tflop. Heads that begin at neighbours need not
# find them at all.
POCKET_RECIPE = replace(
    MUON,
    name="pocket",
    why="Rotary positions, attention that begins at neighbours, larger first weights, no dropout, two words "
    "in five masked and asked of the first token, too, 1,024 tokens a step, Muon: with the paper's own "
    "recipe, a model of minutes does not get beyond the frequencies of words.",
    shape={
        "position_kind": "rotary",
        # Stronger than biases have to be: rotation makes waves, and these do not fall as steeply.
        "neighbours": 2.0,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "deviation": 0.06,
    },
    objective="masked",
    # Of a first token that was never asked for anything, a classifier learns less than of a new one's.
    options={"density": 0.4, "summary": 1.0},
    batch_tokens=1024,
    # New weights are tuned at the whole rate. At half of it, tags after pretraining were below theirs.
    tuning_share=1.0,
)

XLNET_POCKET = replace(
    MUON,
    name="pocket",
    why="Attention that begins at neighbours, larger first weights, no dropout, one token in three "
    "predicted, 1,024 tokens a step, Muon: otherwise a model of minutes hardly leaves the frequencies.",
    shape={"dropout": 0.0, "deviation": 0.06, "neighbours": 1.0},
    options={"predict": 3},
    length=128,
    batch_tokens=1024,
    tuning_share=1.0,
)


def encoder_recipes(muon: Recipe, pocket: Recipe) -> list[Recipe]:
    """What can be asked for beside the recipes of the sizes."""
    hybrid = replace(
        pocket,
        name="hybrid",
        why="GPT-BERT: half of the rows are masked, half are read from left to right, in one run.",
        objective="hybrid",
        # A first token that sees nothing behind it has nothing to tell.
        options={name: value for name, value in pocket.options.items() if name != "summary"},
    )
    # Shifted, so that the second half reads its head where the first half trained it.
    causal_first = replace(
        pocket,
        name="causal-first",
        why="The first half of the run reads from left to right, where every token is a target; then masks.",
        objective="masked",
        options={**pocket.options, "shifted": True},
        phases=(
            PhaseFile(share=0.5, objective="hybrid", options={"causal": 1.0}),
            PhaseFile(share=0.5),
        ),
    )
    return [muon, hybrid, causal_first]
