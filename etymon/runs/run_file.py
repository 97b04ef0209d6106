"""What a run was asked to do: the file that describes it, from YAML, options and overrides."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Self, TypeVar

import yaml

from etymon.config import load_yaml, override, read_yaml, strict
from etymon.errors import EtymonError
from etymon.files import atomic_write
from etymon.plugin_settings import note_records, read_records, records_in, require_records
from etymon.plugins import PluginRecord
from etymon.registry import TOKENIZERS
from etymon.settings import option, settings
from etymon.settings.training import SHORT_FORMS, CardSettings, PhaseFile, PretrainSettings, RunSettings
from etymon.training.budgets import parse_budget, parse_milestones
from etymon.training.settings import TrainingSettings


class _RunDumper(yaml.SafeDumper):
    """Quotes texts that our reader takes for numbers: one digest in 1,200 looks like 12e34."""


_RunDumper.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+$"), list("-+0123456789")
)


@settings
class CommonFile(RunSettings):
    """What any training run was asked for. `training` is what it came to, fixed before the first step so
    that a resumed run is exact."""

    training: TrainingSettings | None = None
    settled: str | None = None
    """A digest of the keys that `training` came of, by which an edited file is known."""
    plugins: tuple[PluginRecord, ...] = ()
    """What the run has from plugins, to be recognised; no code is found by it."""

    @property
    def kind(self) -> str | None:
        """The kind of tokenizer to train, if that is what was named."""
        named = "character" if self.tokenizer == "char" else self.tokenizer
        return named if named in TOKENIZERS else None

    def grows(self, usual: float) -> bool:
        """Whether the batch grows in the course of the run; `usual` is the recipe's share of samples for
        that."""
        return False

    def check(self) -> Self:
        """Refuses what cannot work, before any work."""
        if self.budget is not None:
            parse_budget(self.budget)
        if self.start is not None and self.shape:
            raise EtymonError("a model to go on from has its shape: leave that out")
        if self.tokenizer is not None and self.vocabulary is not None and self.kind in (None, "byte"):
            raise EtymonError("give a tokenizer or the size of a vocabulary to train, not both")
        parse_milestones(self.save_at)
        return self

    def card_statements(self) -> dict[str, Any]:
        """What the model card is to say, as far as it was given."""
        statements = {part.name: plain(getattr(self, part.name)) for part in fields(CardSettings)}
        return {name: value for name, value in statements.items() if value}

    @property
    def logger_names(self) -> list[str]:
        """Where the curves are shown beside `metrics.jsonl`."""
        return list(dict.fromkeys([*self.loggers, *(["tensorboard"] if self.tensorboard else [])]))

    def write(self, path: Path) -> None:
        """Writes the file, with the plugins that its names stand for."""
        tree = plain(asdict(self))
        # Of the names as they are now: the file of another run may have had other plugins.
        tree["plugins"] = [asdict(record) for record in records_in(tree)]
        with atomic_write(path) as file:
            yaml.dump(
                tree | {"settled": _digest(tree)}, file, _RunDumper, sort_keys=False, allow_unicode=True
            )


@settings
class RunFile(CommonFile, PretrainSettings):
    """What a run of `etymon pretrain` was asked for."""

    sizing: dict[str, Any] = option(dict, "what `--size auto` has chosen, and why", seen_by="file")

    def grows(self, usual: float) -> bool:
        return bool(usual if self.ramp is None else self.ramp) and not self.phases

    def check(self) -> Self:
        super().check()
        if self.replace_tokenizer and self.start is None:
            raise EtymonError(
                "there is no tokenizer to replace without a model to go on from: give --from MODEL"
            )
        for batch in (self.batch, *(phase.batch for phase in self.phases)):
            if batch is not None and batch % self.slices:
                raise EtymonError(f"a batch of {batch} samples cannot be cut into {self.slices} equal slices")
        if self.ramp and self.phases:
            raise EtymonError("phases have batches of their own: leave ramp out, or the phases")
        total = sum(phase.share for phase in self.phases)
        if self.phases and abs(total - 1) > 1e-6:
            raise EtymonError(f"the shares of the phases must add up to 1, not {total:g}")
        return self


File = TypeVar("File", bound=CommonFile)
TEXTS = ("data", "train")
"""What a run may have otherwise than the one whose file it repeats."""


def assemble(
    kind: type[File],
    given: Mapping[str, Any],
    config: str | Path | None = None,
    overrides: Sequence[str] = (),
) -> File:
    """A run file from YAML, then options that were given (not None), then dotted overrides; each beats the
    one before."""
    tree: dict[str, Any] = {} if config is None else read_yaml(config)
    if "plugins" in tree:
        note_records(read_records(tree.pop("plugins"), str(config)), str(config))
    options = {name: value for name, value in given.items() if value is not None}
    # `--lora 8` beats the whole section of a file, as any option does, and is not mixed into it.
    for name, key in SHORT_FORMS.items():
        if isinstance(options.get(name), str | int):
            options[name] = {key: options[name]}
    family = options.get("family")
    if family is not None and tree.get("family", family) != family:
        raise EtymonError(f"{config} is for {tree['family']}, not {family}")
    if tree.get("training") and options.get("recipe") not in (None, tree.get("recipe")):
        raise EtymonError(
            f"{config} is a run's own file, with all that its recipe {tree.get('recipe')} came to: begin with "
            "another file, or leave --recipe out"
        )
    if (
        set(options) - {"family", *TEXTS}
        or any(not each.startswith("training.") for each in overrides)
        or is_edited(tree)
    ):
        # The run file of another run says what its settings came to;
        # with other settings they come to something else.
        tree.pop("training", None)
    tree = override(tree | options, overrides)
    if family is not None and tree["family"] != family:
        raise EtymonError(f"the run is for {family}, and --set family={tree['family']} is not")
    where = "the run's settings" if config is None else str(config)
    return strict(kind, plain(tree), where).check()


def is_edited(tree: Mapping[str, Any]) -> bool:
    """Whether a run's file asks for something else now than what its `training` came of."""
    return tree.get("settled") not in (None, _digest(tree))


def _digest(tree: Mapping[str, Any]) -> str:
    # Where the text lies and what it is called may change: only what decides about training counts.
    keys = {
        name: value
        for name, value in tree.items()
        if name not in (*TEXTS, "text", "training", "settled", "plugins")
    }
    return hashlib.sha256(json.dumps(keys, sort_keys=True, default=str).encode()).hexdigest()[:16]


def read_run_file(folder: Path, kind: type[File]) -> File:
    """The settings of the run in a folder, which was edited by nobody since. Raises an EtymonError
    otherwise."""
    if not (folder / "run.yaml").is_file():
        raise EtymonError(f"there is no run in {folder} to resume: it has no run.yaml", code="no-run")
    file = load_yaml(folder / "run.yaml", kind)
    if file.training is None:  # every run writes it before its first step
        raise EtymonError(f"{folder / 'run.yaml'} is not whole, it has no training: bring it back")
    if is_edited(read_yaml(folder / "run.yaml")):
        raise EtymonError(
            f"{folder / 'run.yaml'} was edited since, and a run goes on as it began: undo that, or begin a "
            "new run with --config and another --out",
            code="run-changed",
        )
    return file


def require_plugins(folder: Path, *, changed: bool) -> None:
    """Refuses to go on with a run whose plugins are not here, or are others than they were."""
    if (folder / "run.yaml").is_file():
        records = read_yaml(folder / "run.yaml").get("plugins", [])
        require_records(read_records(records, str(folder / "run.yaml")), str(folder), changed=changed)


def find_difference(given: CommonFile, before: CommonFile) -> tuple[str, Any, Any] | None:
    """The first setting that a resumed run was asked to have otherwise than it began; defaults ask for
    nothing."""
    usual = type(before)(family=before.family)
    for name in (part.name for part in fields(usual) if part.name not in ("family", "phases", "plugins")):
        now, then = getattr(given, name), getattr(before, name)
        if isinstance(now, dict) and isinstance(then, dict):
            # The run has filled in what was left open: compare the keys that are given now.
            then = {key: then.get(key) for key in now}
        # What was left to measurement (`auto`) is by now what the run began with.
        if now not in (getattr(usual, name), then, "auto"):
            return name, now, then
    if not isinstance(given, RunFile) or not isinstance(before, RunFile):
        return None
    if given.phases and len(given.phases) != len(before.phases):
        return "phases", len(given.phases), len(before.phases)
    for number, (phase, phase_before) in enumerate(zip(given.phases, before.phases), 1):
        for part in fields(PhaseFile):
            now, then = getattr(phase, part.name), getattr(phase_before, part.name)
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


def shown(value: Any) -> str:
    """A setting, for people."""
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
