"""Everything that has a name and may come from a plugin: objectives, families, tasks, masking schemes,
tokenizers, metrics, optimisers, schedules and loggers, each kind in one table.

What is built in stands here as the place of its definition, and nothing is imported until it is asked for. A
plugin adds to a table by `etymon.register`, by an entry point, or by being named as `file.py:Class`.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from types import ModuleType
from typing import Any

from etymon import plugins
from etymon.config import did_you_mean
from etymon.errors import EtymonError
from etymon.files import first_line
from etymon.plugins import Origin, PluginRecord

NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
"""No comma, equals sign or colon, which mean something in mixtures and references."""


@dataclass(frozen=True)
class Registered:
    """Something that a plugin has added."""

    kind: str
    name: str
    value: Any
    origin: Origin

    @property
    def record(self) -> PluginRecord:
        return PluginRecord(self.kind, self.name, self.origin.source, self.origin.digest)


registered_plugins: dict[tuple[str, str], Registered] = {}
"""By kind and name."""
recorded_plugins: dict[tuple[str, str], tuple[PluginRecord, str]] = {}
"""What folders that were opened say of plugins, and which folder: for messages alone."""
_is_named_open = False
"""Whether the plugins of the environment and of the user's config were opened."""


class Registry(Mapping[str, Any]):
    """The names of one kind, and what they stand for.

    `built_in` maps names to places (`module:attribute`); or it has names alone, and `home` is the place of a
    dictionary that has them. A plugin's object must have the members that it `needs`, if it is a `base` class
    not those that it inherits from there.
    """

    def __init__(
        self,
        kind: str,
        group: str,
        built_in: Mapping[str, str] | Iterable[str],
        *,
        home: str = "",
        base: str = "",
        needs: str = "",
    ) -> None:
        self.kind, self.group, self.home, self.base, self.needs = kind, group, home, base, needs.split()
        self.places = dict(built_in) if isinstance(built_in, Mapping) else dict.fromkeys(built_in, "")
        TABLES[kind] = self

    def __iter__(self) -> Iterator[str]:
        yield from self.places
        yield from (name for kind, name in list(registered_plugins) if kind == self.kind)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        # What is built in is never looked for among plugins: a broken one cannot get in its way.
        return name in self.places or self._plugin(name) is not None

    def __getitem__(self, name: str) -> Any:
        if name in self.places:
            return _attribute(self.places[name]) if self.places[name] else _attribute(self.home)[name]
        if (added := self._plugin(name)) is None:
            raise KeyError(name)
        self._check(added)
        return added.value

    def find(self, name: str) -> Any:
        """What the name stands for; an EtymonError with what to do if nothing has it."""
        if name not in self:
            raise EtymonError(f"there is no {self.kind} {name!r}: {self.advise(name)}", code="unknown-name")
        return self[name]

    def advise(self, name: str) -> str:
        """What to do about a name that is not there."""
        # A folder that was opened has told where the name came from.
        if (recorded := recorded_plugins.get((self.kind, name))) is not None:
            record, where = recorded
            return f"{where} was made with the plugin {record.source}: {record.advice}"
        if reference := plugins.REFERENCE.fullmatch(name):
            return (
                "code is named on the command line, never in a file: say "
                f"--plugin {reference['source']}, and here the name that it has there"
            )
        return did_you_mean(name, [*self, *(entry.name for entry in self.entry_points)])

    @cached_property
    def entry_points(self) -> list[importlib.metadata.EntryPoint]:
        """What installed packages declare under `etymon.<group>`."""
        return [*importlib.metadata.entry_points(group=f"etymon.{self.group}")]

    def _plugin(self, name: object) -> Registered | None:
        """What a plugin has registered under the name, or an installed package declares."""
        if not isinstance(name, str):
            return None
        if (self.kind, name) not in registered_plugins:
            open_named_plugins()
        if (self.kind, name) not in registered_plugins:
            self._adopt(name)
        if (self.kind, name) not in registered_plugins:
            self._open_entry_point(name)
        return registered_plugins.get((self.kind, name))

    def _adopt(self, name: str) -> None:
        """Registers what an opened plugin has under the name, whether it says `register` or not."""
        for module in plugins.opened_plugins():
            for attribute, value in list(vars(module).items()):
                if self.base and not self.needs:
                    is_meant = isinstance(value, _attribute(self.base)) and value.name == name
                elif self.needs:
                    is_meant = isinstance(value, type) and getattr(value, "name", None) == name
                else:
                    is_own = getattr(value, "__module__", None) == module.__name__
                    is_meant = is_own and callable(value) and attribute == name.replace("-", "_")
                if is_meant and not attribute.startswith("_"):
                    add_value(self.kind, value, plugins.origin_of(vars(module)), name)

    def _open_entry_point(self, name: str) -> None:
        # Two releases of one package on the path declare the same twice, which is no contradiction.
        entries = [entry for entry in self.entry_points if entry.name == name]
        if len({entry.value for entry in entries}) > 1:
            packages = " and ".join(entry.dist.name for entry in entries if entry.dist)
            raise EtymonError(f"{packages} both install the {self.kind} {name!r}: uninstall one of them")
        for entry in entries[:1]:
            package = entry.dist.name if entry.dist else entry.module
            try:
                value = entry.load()
            except (Exception, SystemExit) as error:
                raise EtymonError(
                    f"the {self.kind} {name!r} of the package {package} cannot be imported: "
                    f"{type(error).__name__}, {first_line(error)}; upgrade or uninstall it"
                ) from error
            digest = plugins.origin_of(vars(import_module(entry.module))).digest
            _add(Registered(self.kind, name, value, Origin(package, digest)))

    def _check(self, added: Registered) -> None:
        """Refuses a plugin's object that cannot be what it was registered as."""
        described = f"the {self.kind} {added.name!r} of {added.origin.source}"
        base = _attribute(self.base) if self.base else None
        # Values and functions are what they are; of classes, every method is looked for.
        if not self.needs:
            is_right = callable(added.value) if base is None else isinstance(added.value, base)
            if not is_right and not (self.kind == "masking" and hasattr(added.value, "choose")):
                wanted = "a function" if base is None else f"a {base.__name__}"
                raise EtymonError(
                    f"{described} is no {wanted.partition(' ')[2]}, but {type(added.value).__name__}"
                )
            return
        if not isinstance(added.value, type):
            raise EtymonError(f"{described} is {type(added.value).__name__}, and a class is needed")
        # `Objective` is a protocol whose methods do nothing: inherited from there, they are missing.
        missing = [
            need
            for need in self.needs
            if getattr(added.value, need, None) is None
            or (callable(getattr(base, need, None)) and getattr(added.value, need) is getattr(base, need))
        ]
        missing += sorted(set(getattr(added.value, "__abstractmethods__", ())) - set(missing))
        if missing:
            raise EtymonError(f"{described} lacks {', '.join(missing)}: add that to its class ({self.guide})")

    @property
    def guide(self) -> str:
        return "docs/extending.md" if not self.base else f"see {self.base.replace(':', '.')}"


def _attribute(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


# ------------------------------------------------------------ adding


def register(kind: str, value: Any = None, *, name: str | None = None) -> Any:
    """Adds an objective, family, task, masking scheme, tokenizer, metric, optimiser, schedule or logger.

    As a decorator (`@etymon.register("objective")`) or as a function. What has a `name` goes by it; a
    function goes by its own, with hyphens. Returns the value. Names that are built in, or another plugin's,
    are refused.
    """
    # Of the caller: a value need not know where it was made (a family is an instance of our class).
    namespace = sys._getframe(1).f_globals

    def add(value: Any) -> Any:
        add_value(kind, value, plugins.origin_of(namespace), name)
        return value

    return add if value is None else add(value)


def add_value(kind: str, value: Any, origin: Origin, name: str | None = None) -> str:
    """Adds a value to the table of its kind; returns the name."""
    if kind not in TABLES:
        raise EtymonError(f"there is no kind of plugin {kind!r}: {did_you_mean(kind, TABLES)}")
    given = name or getattr(value, "name", None)
    if not isinstance(given, str):
        given = getattr(value, "__name__", "").replace("_", "-")
    if not NAME.fullmatch(given):
        raise EtymonError(
            f"the {kind} of {origin.source} needs a name of letters, digits and hyphens, not {given!r}: "
            "give it as name"
        )
    # Most often a class that inherits from a built-in one and forgot its own name.
    if given in TABLES[kind].places:
        raise EtymonError(
            f"{getattr(value, '__name__', given)} of {origin.source} has the name of the built-in {kind} "
            f"{given!r}: give it another (name = ...)"
        )
    _add(Registered(kind, given, value, origin))
    return given


def _add(new: Registered) -> None:
    # The same file again is a new state of it; another one would change what earlier runs meant.
    before = registered_plugins.get((new.kind, new.name))
    if before is not None and before.origin.source != new.origin.source:
        raise EtymonError(
            f"{new.origin.source} and {before.origin.source} both have the {new.kind} {new.name!r}: rename "
            "one of them"
        )
    registered_plugins[new.kind, new.name] = new


def load_plugin(source: Any) -> ModuleType:
    """Opens a plugin file, folder or module, so that what it registers can be named. Returns its module."""
    before = dict(registered_plugins)
    try:
        module = plugins.open_plugin(source)
    except EtymonError:
        # What a half-read file has registered is not to be used.
        registered_plugins.clear()
        registered_plugins.update(before)
        raise
    origin = plugins.origin_of(vars(module))
    for key, registered in list(registered_plugins.items()):
        # Of a file that was opened anew, only what it has now.
        if registered.origin.source == origin.source and registered.origin != origin:
            del registered_plugins[key]
    return module


def open_named_plugins() -> None:
    """Opens what the environment and the user's config name, once."""
    global _is_named_open
    if _is_named_open:
        return
    # First of all, since opening one may ask for names itself.
    _is_named_open = True
    for source in plugins.named_plugins():
        load_plugin(source)


# ------------------------------------------------------------ what is built in

TABLES: dict[str, Registry] = {}
OBJECTIVES = Registry(
    "objective",
    "objectives",
    {
        "causal": "etymon.objectives.causal:CausalLM",
        "recurrent": "etymon.objectives.recurrent:Recurrent",
        "prefix": "etymon.objectives.prefix:PrefixLM",
        "masked": "etymon.objectives.masked:MaskedLM",
        "masked-next-sentence": "etymon.objectives.masked:MaskedNextSentence",
        "masked-sentence-order": "etymon.objectives.masked:MaskedSentenceOrder",
        "hybrid": "etymon.objectives.hybrid:Hybrid",
        "permutation": "etymon.objectives.permutation:Permutation",
        "bidirectional": "etymon.objectives.bidirectional:Bidirectional",
        "replaced": "etymon.objectives.replaced:Replaced",
        "distilled-masked": "etymon.objectives.distillation:DistilledMasked",
        "distilled-causal": "etymon.objectives.distillation:DistilledCausal",
        "denoising": "etymon.objectives.denoising:Denoising",
        "span-corruption": "etymon.objectives.denoising:SpanCorruption",
    },
    base="etymon.objectives.objective:Objective",
    needs="name heads requires plan prepare collate loss",
)
FAMILIES = Registry(
    "family",
    "families",
    {
        "gpt1": "etymon.families.gpt1:FAMILY",
        "gpt2": "etymon.families.gpt2:FAMILY",
        "gpt3": "etymon.families.gpt3:FAMILY",
        "gptj": "etymon.families.gptj:FAMILY",
        "bert": "etymon.families.bert:FAMILY",
        "t5": "etymon.families.t5:FAMILY",
        "roberta": "etymon.families.roberta:FAMILY",
        "albert": "etymon.families.albert:FAMILY",
        "distilbert": "etymon.families.distilbert:FAMILY",
        "electra": "etymon.families.electra:FAMILY",
        "bart": "etymon.families.bart:FAMILY",
        "elmo": "etymon.families.elmo:FAMILY",
        "transformer": "etymon.families.transformer:FAMILY",
        "rnn": "etymon.families.rnn:FAMILY",
        "xlnet": "etymon.families.xlnet:FAMILY",
        "transformer-xl": "etymon.families.transformer_xl:FAMILY",
    },
    base="etymon.families.family:Family",
)
TASKS = Registry(
    "task",
    "tasks",
    {
        "classify": "etymon.tasks.classify:Classify",
        "regress": "etymon.tasks.regress:Regress",
        "choose": "etymon.tasks.choose:Choose",
        "tag": "etymon.tasks.tag:Tag",
        "answer": "etymon.tasks.answer:AnswerQuestion",
        "text2text": "etymon.tasks.text2text:Text2Text",
        "language-model": "etymon.tasks.language_model:LanguageModel",
    },
    base="etymon.tasks.task:Task",
    needs="name Options metrics fit bind encode predict score format_row",
)
MASKING = Registry(
    "masking",
    "masking",
    ("bert", "whole-words", "roberta", "ngram", "rare", "electra"),
    home="etymon.objectives.masking:PUBLISHED",
)
TOKENIZERS = Registry(
    "tokenizer",
    "tokenizers",
    ("byte-bpe", "bpe", "word-bpe", "wordpiece", "unigram", "word", "character", "byte"),
    home="etymon.text.tokenizer_training:TRAINERS",
)
METRICS = Registry(
    "metric",
    "metrics",
    # Each belongs to its tasks, which compute them; plugins may not take their names.
    "loss accuracy f1 micro_f1 macro_f1 matthews precision recall pearson spearman mse exact bleu chrf "
    "rouge1 rouge2 rougeL bits_per_byte bits_per_character".split(),
)
OPTIMISERS = Registry(
    "optimiser",
    "optimisers",
    ("adamw", "adam-bert", "adafactor", "lamb", "muon", "adagrad"),
    home="etymon.training.optimisers:PUBLISHED",
)
SCHEDULES = Registry(
    "schedule",
    "schedules",
    ("constant", "linear", "cosine", "inverse-square-root", "noam", "wsd", "wsd-sqrt"),
    home="etymon.training.schedules:PUBLISHED",
)
LOGGERS = Registry(
    "logger",
    "loggers",
    {
        "tensorboard": "etymon.training.loggers:TensorBoard",
        "trackio": "etymon.training.loggers:Trackio",
        "wandb": "etymon.training.loggers:WeightsAndBiases",
        "mlflow": "etymon.training.loggers:MLflow",
    },
    base="etymon.training.loggers:Logger",
    needs="start log finish",
)
