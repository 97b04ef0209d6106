"""`etymon show`: what a model folder holds, or what a family's size would be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etymon.display import align_left, cut
from etymon.files import some
from etymon.plugins import PluginRecord
from etymon.report.inline import Inline
from etymon.settings import JsonOptions, OpeningOptions, argument, option, settings
from etymon.verbs.terminal import print_json, result_text, say
from etymon.verbs.verb import verb

if TYPE_CHECKING:
    from etymon.report.page import Section
    from etymon.text.tokenizer import Tokenizer


@dataclass
class Shown(Inline):
    folder: Path | None
    """None of a family's size."""
    family: str
    architecture: str
    parameters: int
    heads: tuple[str, ...]
    shape: dict[str, Any]
    tokenizer: dict[str, Any]
    weights: dict[str, Any]
    history: list[dict[str, Any]] = field(default_factory=list)
    plugins: list[dict[str, str]] = field(default_factory=list)
    """What it was made with beside what is built in: kind, name, source and digest."""
    milestones: list[dict[str, Any]] = field(default_factory=list)
    """Of a run: the models that it kept on its way, with what each had read."""
    memory: dict[str, Any] = field(default_factory=dict)
    """Bytes: what opening it takes (`opening`), and a run of `etymon pretrain` with usual settings
    (`training`), part by part."""
    recipes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Of a family's size: what `--recipe` takes, the size's own first, and the values of each that are not as
    usual."""

    def inline_sections(self) -> Iterator[Section]:
        from etymon.report.page import Figures, ReportTable

        heads = ", ".join(self.heads) or "none"
        yield Figures({"family": self.family, "parameters": f"{self.parameters:,}", "heads": heads})
        parts = {"shape": self.shape, "tokenizer": self.tokenizer}
        yield ReportTable(["part", "what it is"], [[name, _row(values)] for name, values in parts.items()])
        if self.history:
            rows = [[entry.get("objective", "?"), _row(entry.get("metrics") or {})] for entry in self.history]
            yield ReportTable(["trained by", "validation"], rows)


@dataclass
class ShownStore(Inline):
    """A token store that `etymon prepare` or a run made."""

    folder: Path
    splits: dict[str, dict[str, int]]
    tokenizer: dict[str, Any]
    inputs: dict[str, dict[str, Any]]
    """The files that it was made of, as far as they are recognised again."""
    filtering: dict[str, Any] | None
    """What was left out of the text, and why; None of a text that was not filtered."""

    def inline_sections(self) -> Iterator[Section]:
        from etymon.report.page import ReportTable

        names = list(next(iter(self.splits.values()), {}))
        yield ReportTable(
            ["part", *names], [[name, *counts.values()] for name, counts in self.splits.items()]
        )


@settings
class ShowOptions(OpeningOptions, JsonOptions):
    folder: str | Path = argument(
        "model folder, run folder or hub id; a store that prepare made; or a family, such as gpt2"
    )
    size: str | None = option(None, "for a family: which size (the first)")


@verb(ShowOptions)
def show(options: ShowOptions) -> Shown | ShownStore:
    """Given the name of a family, such as gpt2, it says the same of one of its sizes, without weights."""
    from etymon.checkpoints.folder import read_config, saved_plugins
    from etymon.checkpoints.weights import ADAPTER_FILES, MODEL_FILES, open_weights
    from etymon.families import REGISTRY
    from etymon.families.checkpoint import class_names
    from etymon.families.imports import find_foreign
    from etymon.families.loading import load, model_folder, read_history
    from etymon.plugin_settings import resolve
    from etymon.runs.milestones import list_milestones
    from etymon.text.store import is_store

    folder = resolve("family", str(options.folder))
    # A folder that is called gpt2 goes before the family of that name.
    if options.size is not None or (str(folder) in REGISTRY and not Path(folder).exists()):
        return _show_size(str(folder), options.size)
    if is_store(folder):
        return _show_store(Path(folder))
    place = model_folder(folder)
    model = load(place)
    tokenizer = model.tokenizer
    adapted = model.lora is not None
    # Adapters have no class of their own in config.json: they say what they were put on.
    if (foreign := find_foreign(place)) is not None:
        architecture, files = foreign.kind, list(foreign.weight_files)
    else:
        architecture = (
            f"LoRA on {model.lora_base}" if adapted else (class_names(read_config(place)) or ["?"])[0]
        )
        files = open_weights(place, ADAPTER_FILES if adapted else MODEL_FILES).files
    return Shown(
        folder=place,
        family=model.family.title,
        architecture=architecture,
        parameters=model.parameter_count(),
        heads=tuple(sorted(model.head_names)),
        shape=asdict(model.shape),
        tokenizer={} if tokenizer is None else _describe(tokenizer),
        weights={"files": [file.name for file in files], "bytes": sum(file.stat().st_size for file in files)},
        history=read_history(place),
        plugins=[asdict(record) for record in saved_plugins(place)],
        milestones=[asdict(kept) | {"folder": str(kept.folder)} for kept in list_milestones(folder)],
        memory=_memory(model.family, model.shape, model.head_names),
    )


def _describe(tokenizer: Tokenizer) -> dict[str, Any]:
    steps = {"normalise": ",".join(tokenizer.normalise.steps)} if tokenizer.normalise else {}
    return {"kind": tokenizer.kind, "tokens": tokenizer.size, **steps, **tokenizer.roles}


def _show_store(folder: Path) -> ShownStore:
    from etymon.text.filtering import read_report
    from etymon.text.store import TokenStore
    from etymon.text.tokenizer import Tokenizer

    store = TokenStore.open(folder)
    tokenizer, report = Tokenizer.load(store.folder / "tokenizer"), read_report(store.folder)
    return ShownStore(
        folder=store.folder,
        splits=store.description["splits"],
        tokenizer=_describe(tokenizer),
        inputs=store.description.get("inputs", {}),
        filtering=None if report is None else asdict(report),
    )


def _show_size(name: str, size: str | None) -> Shown:

    from etymon.families import get_family
    from etymon.families.loading import shape_of
    from etymon.families.memory import count_parameters

    family = get_family(name)
    # The first one is what `pretrain` makes: the heads of others would be counted as well.
    size = size or next(iter(family.sizes))
    shape, architecture = shape_of(family, size), family.architectures[0]
    names = dict.fromkeys([family.recipe_for(size).name, *family.recipe_names])
    return Shown(
        folder=None,
        family=f"{family.title} {size}",
        architecture=architecture.name,
        parameters=count_parameters(family, shape, architecture.heads),
        heads=tuple(sorted(architecture.heads)),
        shape=asdict(shape),
        tokenizer={"kind": family.tokenizer.kind, "tokens": shape.vocabulary},
        weights={},
        memory=_memory(family, shape, architecture.heads),
        recipes={name: family.recipe_for(size, name).values() for name in names},
    )


def _memory(family: Any, shape: Any, heads: Any) -> dict[str, Any]:
    """Bytes for opening a model and for training it as `etymon pretrain` does if it is told nothing else."""

    from etymon.families.memory import outline
    from etymon.runs.memory import usual_plan

    # Counted without a value being allocated: GPT-3's 700 GB are told on a laptop, too.
    opening = outline(family, shape, heads).weights
    training = usual_plan(family, shape).footprint()
    return {"opening": opening, "training": {**asdict(training), "total": training.total}}


def present(result: Shown | ShownStore, options: ShowOptions) -> None:
    if options.json:
        return print_json(result, indent=2, ascii=True)
    if isinstance(result, ShownStore):
        return _present_store(result)
    from etymon.files import format_bytes
    from etymon.nn.footprint import Footprint

    say(f"{result.family} ({result.architecture}), {result.parameters:,} parameters")
    if result.folder is not None:
        say(f"folder     {result.folder}")
    say(f"heads      {', '.join(result.heads) or 'none'}")
    say(f"shape      {_row(result.shape)}")
    say(f"tokenizer  {_row(result.tokenizer) or 'none in the folder'}")
    if result.folder is not None:
        say(f"weights    {', '.join(result.weights['files'])}, {result.weights['bytes'] / 1e6:,.1f} MB")
    # A footprint adds its parts up itself.
    training = {name: size for name, size in result.memory["training"].items() if name != "total"}
    say(f"memory     {format_bytes(result.memory['opening'])} to open, {Footprint(**training)} to pretrain")
    for name, values in result.recipes.items():
        say(f"recipe     {name}: {_row(values)}")
    if not result.history and result.folder is not None:
        say("history    not known")
    for plugin in result.plugins:
        say(f"plugin     {PluginRecord(**plugin)}")
    for entry in result.history:
        say(f"trained    {entry.get('objective', '?')} on {entry.get('data', '?')}")
        if settings := entry.get("training"):
            say(f"settings   {_row(settings)}")
        if metrics := entry.get("metrics"):
            say(f"validation {_row(metrics)}")
    if result.milestones:
        say("milestones       steps          words     words read")
    for kept in result.milestones:
        counts = f"{kept['steps']:>12,} {kept['words']:>15,} {kept['words_read']:>15,}"
        print(f"{align_left(kept['name'], 10)}{counts}  {kept['folder']}")


def _present_store(result: ShownStore) -> None:
    from etymon.text.filtering import FilterReport

    say(f"token store in {result.folder}")
    for name, counts in result.splits.items():
        listed = ", ".join(f"{count:,} {result_text(unit)}" for unit, count in counts.items())
        print(f"{align_left(result_text(name), 11)}{listed}")
    say(f"tokenizer  {_row(result.tokenizer)}")
    say(f"made of    {some(list(result.inputs), 5) or 'text that is not recognised again'}")
    if result.filtering is None:
        return
    report = FilterReport(**result.filtering)
    say(f"filters    {_row(report.settings)}")
    say(f"filtered   {report}")
    for reason, examples in report.examples.items():
        print(f"{reason}:")
        for example in examples:
            details = {name: value for name, value in example.items() if name != "text"}
            print(f"           {cut(repr(example['text']), 80)} ({_row(details)})")


def _row(values: dict[str, Any]) -> str:
    """Returns names and values in one line, without those that are empty."""
    shown = ((name, value) for name, value in values.items() if value not in (None, "", (), [], {}))
    return ", ".join(f"{name} {_value(value)}" for name, value in shown)


def _value(value: Any) -> str:
    if isinstance(value, dict):  # an optimiser, a schedule: its name, and its own values behind it
        rest = _row({name: inner for name, inner in value.items() if name != "name"})
        return f"{value['name']} ({rest})" if "name" in value else f"({rest})"
    if isinstance(value, list | tuple):
        return " ".join(map(_value, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
