"""What a run was asked to do: the file that describes it, from YAML, options and overrides."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import yaml
from pydantic import BeforeValidator, ConfigDict
from pydantic.dataclasses import dataclass

from etymon.config import load_yaml, override, read_yaml, strict
from etymon.errors import EtymonError
from etymon.files import atomic_write
from etymon.text.tokenizer_training import KINDS
from etymon.training.adversarial import AdversarialSettings
from etymon.training.budgets import parse_budget
from etymon.training.loop import TrainingSettings

COUNTS = (
    "batch", "batch_tokens", "slices", "length", "vocabulary", "source_vocabulary", "validate_every", "patience",
    "save_every", "keep", "beams",
)  # fmt: skip
"""Settings that are whole numbers from 1 on."""
RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    **{name: (lambda value: value >= 1, f"{name} must be at least 1") for name in COUNTS},
    "learning_rate": (lambda value: value > 0, "the learning rate must be above 0"),
    "warmup": (lambda value: 0 <= value <= 1, "warmup is a share of the steps, from 0 to 1"),
    "clip": (lambda value: value >= 0, "clip is the largest norm of the gradient, or 0 for none"),
    "unfreeze": (lambda value: 0 < value < 1, "unfreeze is a share of the steps, above 0 and below 1"),
    "ramp": (lambda value: 0 <= value < 1, "ramp is a share of the samples, from 0 to below 1"),
    "hold_out": (lambda value: 0 <= value < 1, "hold_out is a share of the rows, from 0 to below 1"),
}
"""What numbers may be, as far as a file has them, and what to say of others."""


STATED = {
    "license": (r"[a-z0-9][a-z0-9.+-]*", "a licence as the hub writes it, such as apache-2.0 or cc-by-4.0"),
    "language": (r"[a-z]{2,3}(-[A-Za-z0-9]+)*", "the code of a language, such as de or zh"),
    "datasets": (r"[\w.-]+(/[\w.-]+)?", "the name of a data set of the hub, such as wikitext or owner/name"),
}
"""What is stated for the model card, how it is written, and what to say of others."""


def _several(value: Any) -> Any:
    """One or several, as a tuple."""
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class PhaseFile:
    """A part of a run. What is not given is as in the run itself."""

    share: float
    """Of the run's steps; the shares of all phases add up to 1."""
    length: int | None = None
    batch: int | None = None
    objective: str | None = None
    options: dict[str, Any] | None = None
    data: tuple[str, ...] = ()


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class CommonFile:
    """What any training run can be asked for. `training` is what it came to, fixed before the first step so that a resumed
    run is exact."""

    family: str
    size: str | None = "pocket"
    """None: that of the model to go on from, if it is none of the family's own."""
    shape: dict[str, Any] = field(default_factory=dict)
    """Fields of the family's shape that differ from the size's."""
    start: str | None = None
    """Folder or hub id of a model to go on from."""
    ignore_config_key: tuple[str, ...] = ()
    """Keys of `config.json` to pass over in the models that the run opens."""
    text: str | None = None
    """What the data are, in words."""
    tokenizer: str | None = None
    """The folder of one, or the kind of one to train: `char`, `byte`, `unigram` ... (a folder of that name is `./char`)."""
    vocabulary: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    """Of the objective, e.g. `masking`; of a mixture, those of each by its name. Of a task, its columns and the like."""
    length: int | None = None
    slices: int = 1
    budget: str | None = None
    """A time (10m), or 5000steps, 20Mtokens, 3epochs, 100Mwords, 20Tflops."""
    optimiser: Literal["adamw", "adam-bert", "adafactor", "lamb", "muon", "adagrad"] | None = None
    learning_rate: float | None = None
    weight_decay: float | None = None
    layer_decay: float | None = None
    frozen: tuple[str, ...] = ()
    """Patterns of parameters' names that are not trained."""
    unfreeze: float | None = None
    """Share of the steps after which everything trains: at first it is the top alone, then layer by layer from above."""
    adversarial: Annotated[AdversarialSettings | None, BeforeValidator(AdversarialSettings.of)] = None
    """Noise on word vectors: `fgm`, `pgd` or `freelb`, or a section with its `name` and what is not as usual."""
    schedule: str | None = None
    warmup: float | None = None
    """Share of the steps."""
    clip: float | None = None
    """Largest norm of the gradient; 0 for no limit."""
    validate_every: int | None = None
    patience: int | None = None
    """Validations without a better one after which the run ends."""
    save_every: int | None = None
    save_at: tuple[str, ...] = ()
    """Amounts, in a budget's notation, after which the model is kept as a milestone."""
    keep: int = 2
    tensorboard: bool = False
    seed: int = 0
    license: str | None = None
    """Of the model, as the hub writes it (`apache-2.0`), for its card."""
    language: Annotated[tuple[str, ...], BeforeValidator(_several)] = ()
    """Of the text, as codes (`de`, `zh`), for the card."""
    datasets: Annotated[tuple[str, ...], BeforeValidator(_several)] = ()
    """The text as data sets of the hub, for the card."""
    training: TrainingSettings | None = None
    settled: str | None = None
    """A digest of the keys that `training` came of, by which an edited file is known."""

    @property
    def kind(self) -> str | None:
        """The kind of tokenizer to train, if that is what was named."""
        named = "character" if self.tokenizer == "char" else self.tokenizer
        return named if named in KINDS else None

    def grows(self, usual: float) -> bool:
        """Whether the batch grows in the course of the run; `usual` is the recipe's share of samples for that."""
        return False

    def check(self) -> Self:
        """Refuses what cannot work, before any work."""
        for name, (fits, what) in RANGES.items():
            if (value := getattr(self, name, None)) is not None and not fits(value):
                raise EtymonError(f"{what}, not {value:g}")
        if not -(2**63) <= self.seed < 2**63:
            raise EtymonError(f"the seed must fit into 64 bits, and {self.seed} does not")
        for name, (pattern, what) in STATED.items():
            for value in _several(getattr(self, name)) or ():
                if not re.fullmatch(pattern, value):
                    raise EtymonError(f"{name} {value!r} is not {what}")
        if self.budget is not None:
            parse_budget(self.budget)
        if self.start is not None and self.shape:
            raise EtymonError("a model to go on from has its shape: leave that out")
        if self.tokenizer is not None and self.vocabulary is not None and self.kind in (None, "byte"):
            raise EtymonError("give a tokenizer or the size of a vocabulary to train, not both")
        if any(parse_budget(amount).unit in ("seconds", "flops") for amount in self.save_at):
            raise EtymonError("save-at takes amounts such as 1Mwords or 500steps, not times or operations")
        return self

    def stated(self) -> dict[str, Any]:
        """What the model card is to say, as far as it was given."""
        return {name: plain(value) for name in STATED if (value := getattr(self, name))}

    def write(self, path: Path) -> None:
        tree = plain(asdict(self))
        with atomic_write(path) as file:
            yaml.safe_dump(tree | {"settled": _digest(tree)}, file, sort_keys=False, allow_unicode=True)


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class RunFile(CommonFile):
    """What `etymon pretrain` can be asked for."""

    data: tuple[str, ...] = ()
    documents: Literal["file", "blank", "line"] = "file"
    column: str = "text"
    errors: Literal["strict", "replace", "skip"] = "strict"
    """What becomes of bytes that are no UTF-8."""
    validation: float = 0.05
    objective: str | None = None
    teacher: str | None = None
    """Folder or hub id of the model to learn from (distillation)."""
    teacher_layers: tuple[int, ...] | None = None
    """The teacher's layers that the student begins with; evenly spread ones unless told, none at all if empty."""
    generator: dict[str, Any] = field(default_factory=dict)
    """Fields of the generator's shape that differ from what the model's size gives (replaced-token detection)."""
    batch: int | None = None
    phases: tuple[PhaseFile, ...] = ()
    ramp: float | None = None
    """Share of the samples over which the batch grows from a sixteenth to its full size."""

    def grows(self, usual: float) -> bool:
        return bool(usual if self.ramp is None else self.ramp) and not self.phases

    def check(self) -> Self:
        super().check()
        if not 0 <= self.validation < 1:
            raise EtymonError(
                f"validation is a share of the text, from 0 to below 1, not {self.validation:g}"
            )
        for batch in (self.batch, *(phase.batch for phase in self.phases)):
            if batch is not None and batch % self.slices:
                raise EtymonError(f"a batch of {batch} samples cannot be cut into {self.slices} equal slices")
        if self.ramp and self.phases:
            raise EtymonError("phases have batches of their own: leave ramp out, or the phases")
        for phase in self.phases:
            for name in ("batch", "length"):
                value = getattr(phase, name)
                if value is not None and value < 1:
                    raise EtymonError(f"a phase's {name} must be at least 1, not {value}")
        total = sum(phase.share for phase in self.phases)
        if self.phases and (abs(total - 1) > 1e-6 or min(phase.share for phase in self.phases) <= 0):
            raise EtymonError(f"the shares of the phases must be above 0 and add up to 1, not {total:g}")
        return self


File = TypeVar("File", bound=CommonFile)
TEXTS = ("data", "train")
"""What a run may have otherwise than the one whose file it repeats."""


def settings_of(kind: type[CommonFile], asked: Mapping[str, Any], **others: Any) -> dict[str, Any]:
    """Of a verb's options, those that are settings of its run file, and `others`, which the verb calls or writes otherwise."""
    own = {name: value for name, value in asked.items() if value not in ((), [])}
    return {name: value for name, value in {**own, **others}.items() if name in kind.__dataclass_fields__}


def assemble(
    kind: type[File],
    given: Mapping[str, Any],
    config: str | Path | None = None,
    overrides: Sequence[str] = (),
) -> File:
    """A run file from YAML, then options that were given (not None), then dotted overrides; each beats the one before."""
    tree: dict[str, Any] = {} if config is None else read_yaml(config)
    options = {name: value for name, value in given.items() if value is not None}
    family = options.get("family")
    if family is not None and tree.get("family", family) != family:
        raise EtymonError(f"{config} is for {tree['family']}, not {family}")
    if (
        set(options) - {"family", *TEXTS}
        or any(not each.startswith("training.") for each in overrides)
        or edited(tree)
    ):
        # The run file of another run says what its settings came to; with other settings they come to something else.
        tree.pop("training", None)
    tree = override(tree | options, overrides)
    if family is not None and tree["family"] != family:
        raise EtymonError(f"the run is for {family}, and --set family={tree['family']} is not")
    where = "the run's settings" if config is None else str(config)
    return strict(kind, plain(tree), where).check()


def edited(tree: Mapping[str, Any]) -> bool:
    """Whether a run's file asks for something else now than what its `training` came of."""
    return tree.get("settled") not in (None, _digest(tree))


def _digest(tree: Mapping[str, Any]) -> str:
    asked = {
        name: value for name, value in tree.items() if name not in (*TEXTS, "text", "training", "settled")
    }
    return hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()[:16]


def begun(folder: Path, kind: type[File]) -> File:
    """What the run in a folder was asked for."""
    if not (folder / "run.yaml").is_file():
        raise EtymonError(f"there is no run in {folder} to resume: it has no run.yaml")
    file = load_yaml(folder / "run.yaml", kind)
    if file.training is None:  # every run writes it before its first step
        raise EtymonError(f"{folder / 'run.yaml'} is not whole, it has no training: bring it back")
    if edited(read_yaml(folder / "run.yaml")):
        raise EtymonError(
            f"{folder / 'run.yaml'} was edited since, and a run goes on as it began: undo that, or begin a new run with "
            "--config and another --out"
        )
    return file


def differing(asked: CommonFile, begun: CommonFile) -> tuple[str, Any, Any] | None:
    """The first setting that a resumed run was asked to have otherwise than it began; defaults ask for nothing."""
    usual = type(begun)(family=begun.family)
    for name in (part.name for part in fields(usual) if part.name not in ("family", "phases")):
        now, then = getattr(asked, name), getattr(begun, name)
        if isinstance(now, dict) and isinstance(
            then, dict
        ):  # which tells more: what was left open is filled in
            then = {key: then.get(key) for key in now}
        if now not in (getattr(usual, name), then):
            return name, now, then
    if not isinstance(asked, RunFile) or not isinstance(begun, RunFile):
        return None
    if asked.phases and len(asked.phases) != len(begun.phases):
        return "phases", len(asked.phases), len(begun.phases)
    for number, (phase, known) in enumerate(zip(asked.phases, begun.phases), 1):
        for part in fields(PhaseFile):
            now, then = getattr(phase, part.name), getattr(known, part.name)
            if now not in (None, (), then):
                return f"{part.name} of phase {number}", now, then
    return None


def plain(value: Any) -> Any:
    """Tuples as lists, so that YAML and JSON read back what was written."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return value


def same_but_vocabulary(one: Any, two: Any) -> bool:
    """Whether two shapes differ in their number of words alone, if at all."""
    return {**asdict(one), "vocabulary": 0} == {**asdict(two), "vocabulary": 0}


def shown(value: Any) -> str:
    """A setting, for people."""
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
