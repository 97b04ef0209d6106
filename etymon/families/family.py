"""What a family is: a shape, a composition of parts, heads, and its names in the published layout."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from torch import Tensor, nn

from etymon.checkpoints.names import NameMap
from etymon.checkpoints.settings import SettingsMap, config_keys
from etymon.config import did_you_mean
from etymon.errors import EtymonError
from etymon.families.recipes import USUAL_TUNING, Recipe
from etymon.families.shape import Sizes
from etymon.nn.adaptive import choose_cutoffs
from etymon.nn.features import FeatureHead, FeatureSettings
from etymon.nn.initialise import Filler
from etymon.text.framing import Framing

if TYPE_CHECKING:
    from etymon.text.tokenizer import Tokenizer

# --- heads, and the published classes that have them

# The states that a head reads: of every token, of the first or last one of a row, or the mean of a row's.
Where = Literal["every", "first", "last", "mean"]


@dataclass(frozen=True)
class Head:
    """How to build a head and where it reads.

    `build(shape, body, labels)` makes the module. `at` chooses the states it sees, or is a function of the
    shape that does. `after` names a head whose output it reads instead of hidden states (BERT's pooler); that
    head is then built as well.
    """

    build: Callable[[Any, nn.Module, int], nn.Module]
    at: Where | Callable[[Any], Where] = "every"
    after: str | None = None


@dataclass(frozen=True)
class FeatureBuild:
    """Builds a head that reads features of a family's `layers`: `outputs` of them, or one for every label."""

    settings: FeatureSettings
    layers: Callable[[Any], tuple[int, int]]
    pooled: bool
    outputs: int | None = None

    def __call__(self, shape: Any, body: nn.Module, labels: int) -> nn.Module:
        # Features are those of the encoder, whose words may not be the decoder's.
        words = getattr(shape, "source_vocabulary", None) or shape.vocabulary
        outputs = self.outputs or labels
        return FeatureHead(self.settings, *self.layers(shape), words, outputs, pooled=self.pooled)


@dataclass(frozen=True)
class Architecture:
    """A class of Transformers: the heads it has, and what it puts before the body's names."""

    name: str
    heads: frozenset[str]
    prefix: str | None = None


# The heads that answer a task; others are those of pretraining.
TASK_HEADS = frozenset({"classification", "choice", "tagging", "span", "conditional_span"})
# The heads with an output for every label.
LABELLED_HEADS = frozenset({"classification", "tagging"})
# The heads of a class by the ending of its name.
ENDINGS = {
    "ForMaskedLM": {"vocabulary"},
    "ForCausalLM": {"vocabulary"},
    "LMHeadModel": {"vocabulary"},
    "ForConditionalGeneration": {"vocabulary"},
    "DoubleHeadsModel": {"vocabulary", "choice"},
    "ForNextSentencePrediction": {"next_sentence"},
    "ForSequenceClassification": {"classification"},
    "ForMultipleChoice": {"choice"},
    "ForTokenClassification": {"tagging"},
    "ForQuestionAnswering": {"span"},
}


def classes(name: str, *endings: str, pooled: bool = False) -> list[Architecture]:
    """Classes by the endings of their names, and the bare body's (if `pooled`, with a pooler first)."""
    bare = [frozenset({"pooler"}), frozenset[str]()] if pooled else [frozenset[str]()]
    return [
        *(Architecture(name + ending, frozenset(ENDINGS[ending])) for ending in endings),
        *(Architecture(f"{name}Model", heads, prefix="") for heads in bare),
    ]


class PublishedLayout(Protocol):
    """Files of another layout than Hugging Face's, in which a family was published, as a module that reads
    and writes them.

    Weights go by the names of the family's map. There is no tokenizer in such files.
    """

    def find_files(self, folder: Path, /) -> tuple[Path, Path] | None: ...
    def read_shape(self, files: tuple[Path, Path], /) -> dict[str, Any]: ...
    def read_weights(self, files: tuple[Path, Path], /) -> dict[str, Tensor]: ...
    def write(
        self, folder: str | Path, shape: Mapping[str, Any], weights: Mapping[str, Tensor], /
    ) -> None: ...


# --- the family


@dataclass(frozen=True)
class TokenizerChoice:
    """The family's own tokenizer: its kind and special tokens by role, in the order of their ids."""

    kind: str
    specials: Mapping[str, str]
    lowercase: bool = False
    strip_accents: bool = False
    sentinels: int = 0
    min_frequency: int = 2
    """What is rarer is not learnt."""


@dataclass(frozen=True)
class Family:
    """All that tells one family from another, as values; no shared module asks for a family by name."""

    name: str
    title: str
    model_type: str
    shape: type
    sizes: Sizes
    body: Callable[[Any, frozenset[str]], nn.Module]
    heads: Mapping[str, Head]
    architectures: Sequence[Architecture]
    names: Callable[[Any], NameMap]
    settings: SettingsMap
    initial: Callable[[Any], Sequence[tuple[str, Filler]]]
    capabilities: frozenset[str]
    objective: str
    recipe: Recipe
    tokenizer: TokenizerChoice
    framing: Framing
    size_recipes: Mapping[str, Recipe] = field(default_factory=dict)
    """What a size is trained by unless somebody asks for another recipe; `recipe` where it has none."""
    recipes: Sequence[Recipe] = ()
    """Others that can be asked for by name."""
    tuning: Recipe = USUAL_TUNING
    """The usual way to fine-tune a published size."""
    size_tunings: Mapping[str, Recipe] = field(default_factory=dict)
    """Of the sizes that have a way of their own."""
    generator: Callable[[Any], tuple[str, dict[str, Any]]] | None = None
    """For replaced-token detection: family and shape of a generator that can share its embeddings."""
    special_ids: Mapping[str, int] = field(default_factory=dict)
    """By role, the ids that Transformers' class takes for granted; of a family without one, those of our own
    tokenizers."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other `model_type`s of the same maths and names of weights, and what their classes begin with:
    XLMRoberta."""
    rotary: Family | None = None
    """As what it is published with rotary positions, where Transformers has classes of that: BERT's are
    RoFormer's, whose task heads are others, too."""
    fits_transformers: Callable[[Any], bool] = lambda shape: True
    """Whether Transformers computes what such a shape does; a folder of any other is for etymon alone."""
    shape_after_loading: Callable[[Any], Any] = lambda shape: shape
    """The shape of a model whose weights are there: without what only said how to read a file."""
    layers: Callable[[Any], tuple[int, int]] = lambda shape: (shape.layers + 1, shape.dim)
    """How many states every token of a text has, with the first layer's input, and how wide they are."""
    features: FeatureSettings | None = None
    """How its task heads read them; None: they read the last alone."""
    layout: PublishedLayout | None = None
    """The files in which it was published, where these are no Hugging Face folder."""

    @property
    def model_types(self) -> tuple[str, ...]:
        """All that folders of it call themselves."""
        return (self.model_type, *self.aliases, *(() if self.rotary is None else (self.rotary.model_type,)))

    def of_shape(self, shape: Any) -> Family:
        """The family as models of such a shape are published."""
        if self.rotary is None or shape.position_kind != "rotary":
            return self
        return self.rotary if self.features is None else self.rotary.with_features(self.features)

    def as_model_type(self, model_type: str) -> Family:
        """The family under another of its `model_type`s, with the names and defaults of those classes."""
        if model_type == self.model_type:
            return self
        if self.rotary is not None and model_type == self.rotary.model_type:
            return self.rotary
        # The last class is the bare body's: RobertaModel.
        begin = self.architectures[-1].name.removesuffix("Model")
        renamed = [
            replace(known_class, name=self.aliases[model_type] + known_class.name.removeprefix(begin))
            for known_class in self.architectures
        ]
        ours, theirs = config_keys(self.model_type), config_keys(model_type)
        assert ours is not None and theirs is not None
        # A key that a folder leaves out means the default of its class, and that may be another one here.
        usual = {
            row.theirs: theirs.defaults[row.theirs]
            for row in self.settings.rows
            if row.theirs in theirs.defaults and ours.defaults.get(row.theirs) != theirs.defaults[row.theirs]
        }
        settings = replace(self.settings, usual={**usual, **self.settings.usual})
        return replace(self, model_type=model_type, architectures=renamed, settings=settings)

    def with_features(self, settings: FeatureSettings) -> Family:
        """The same family with task heads that read features, whether it has such heads of its own or not."""
        build = partial(FeatureBuild, settings, self.layers)
        heads = {
            "classification": Head(build(pooled=True)),
            "choice": Head(build(pooled=True, outputs=1)),
            "tagging": Head(build(pooled=False)),
            "span": Head(build(pooled=False, outputs=2)),
        }
        # No published class has such heads.
        others = [published for published in self.architectures if not published.heads & heads.keys()]
        return replace(self, heads={**self.heads, **heads}, architectures=others, features=settings)

    @property
    def feature_heads(self) -> frozenset[str]:
        """The names of the heads that read features."""
        return frozenset(name for name, head in self.heads.items() if isinstance(head.build, FeatureBuild))

    def tokenizer_fields(self, tokenizer: Tokenizer) -> dict[str, Any]:
        """The fields of a shape that a tokenizer decides beside the vocabulary: RoBERTa's first position."""
        pad = tokenizer.id("pad")
        has_field = any(part.name == "pad" for part in fields(self.shape))
        return {"pad": pad} if has_field and pad is not None else {}

    def suggest_cutoffs(
        self, tokenizer: Tokenizer, size: str | None, changed: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Where to cut a published adaptive softmax for these words, as a field of a shape; none if `changed`
        has it."""
        published = any(row.theirs == "cutoffs" for row in self.settings.rows)
        # Where both directions are trained, a sample of the words is usual (ELMo); cutoffs are a choice.
        if not published or "causal" not in self.capabilities or "cutoffs" in changed:
            return {}
        shape: dict[str, Any] = {part.name: part.default for part in fields(self.shape)}
        shape |= {**self.sizes[size or next(iter(self.sizes))], **changed}
        if tokenizer.counts is not None:
            return {"cutoffs": choose_cutoffs(tokenizer.counts, shape["divisor"])}
        # Nothing was counted: the published places, as far as there are so many words.
        return {"cutoffs": tuple(cut for cut in shape["cutoffs"] if cut < tokenizer.size)}

    def recipe_for(self, size: str | None, name: str | None = None) -> Recipe:
        """The recipe of that name for a size, or (None) the one that the size is trained by: the published
        one, not that of a pocket size, for a shape without a name."""
        usual = self.size_recipes.get(size or "", self.recipe)
        named: dict[str, Recipe] = {recipe.name: recipe for recipe in (*self._all_recipes, usual)}
        if name is not None and name not in named:
            raise EtymonError(f"{self.title} has no recipe {name!r}: {did_you_mean(name, named)}")
        return named[name or usual.name]

    @property
    def _all_recipes(self) -> list[Recipe]:
        """Of the recipes of one name the last is that of any size."""
        pocket = (recipe for recipe in self.size_recipes.values() if recipe.name != "published")
        return [*reversed(list(pocket)), *self.recipes, self.recipe]

    @property
    def recipe_names(self) -> list[str]:
        return list(dict.fromkeys(recipe.name for recipe in reversed(self._all_recipes)))

    def size_of(self, shape: Any) -> str | None:
        """The size of this shape, whatever its vocabulary and with or without what recipes change, if any."""
        wanted = {**asdict(shape), "vocabulary": 0}
        changes = [{}, *(recipe.shape for recipe in self._all_recipes)]
        for size, given in self.sizes.items():
            for changed in changes:
                if {**asdict(self.shape(**{**given, **changed})), "vocabulary": 0} == wanted:
                    return size
        return None

    def tuning_for(self, size: str | None, name: str | None = None) -> Recipe:
        """How a pretrained model is fine-tuned: one of a pocket size by its recipe at a share of the rate
        (docs/lab-notes.md), others, or by the name `published`, as published."""
        recipe = self.recipe_for(size, name)
        if recipe.name != "published":
            return replace(recipe, learning_rate=recipe.learning_rate * recipe.tuning_share)
        return self.tuning if size is None else self.size_tunings.get(size, self.tuning)

    def task_options(self, task: str, names: Container[str]) -> dict[str, Any]:
        """The published options of a task whose options have these `names`."""
        options = self.tuning.options
        common = {name: value for name, value in options.items() if name in names}
        return {**common, **options.get(task, {})}

    def with_required(self, heads: frozenset[str]) -> frozenset[str]:
        """These heads and those they read from."""
        return heads | {after for name in heads if (after := self.heads[name].after) is not None}
