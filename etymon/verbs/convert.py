"""`etymon convert`: any checkpoint that can be read, written as a folder of today's layout."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from etymon.errors import EtymonError
from etymon.settings import OpeningOptions, Spelling, argument, option, settings
from etymon.settings.reading import EncodingSettings
from etymon.verbs.terminal import say
from etymon.verbs.verb import verb

if TYPE_CHECKING:
    from etymon.families.model import Model


@dataclass
class Converted:
    folder: Path
    family: str
    parameters: int
    heads: tuple[str, ...]
    new_heads: tuple[str, ...]
    changes: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Of rounding: figures before and after."""
    left_out: tuple[str, ...] = ()
    """Heads that the layout has no place for."""
    averaged: tuple[int, ...] = ()
    """The steps of the checkpoints that it is the mean of."""


@settings
class ConvertOptions(OpeningOptions, EncodingSettings):
    source: str | Path = argument("folder or hub id")
    target: str | Path = argument("folder to write")
    heads: Annotated[tuple[str, ...] | None, Spelling("Sequence[str] | None", list[str])] = option(
        None, "heads (output layers) to keep or add (those of the checkpoint)"
    )
    dtype: Literal["float32", "float16", "bfloat16"] = option("float32", "precision of the written weights")
    revision: str | None = option(None, "branch, tag or commit of a hub id")
    family: str | None = option(
        None, "family of the source, such as bert, if it does not say (told by the names of its weights)"
    )
    partial: bool = option(False, "tolerate unexpected weights and missing heads")
    average: int | None = option(None, "for a run: write the mean of its last N checkpoints")
    layout: Literal["folder", "bilm"] = option(
        "folder", "layout to write; bilm: ELMo's published options.json and HDF5 file"
    )
    quantize: Literal["int8"] | None = option(
        None, "round the weights to eight bits: faster and smaller, on a processor"
    )
    data: Path | None = option(
        None,
        "with --quantize: a text that shows what rounding costs a decoder: bits per byte before and after",
    )


@verb(ConvertOptions)
def convert(options: ConvertOptions) -> Converted:
    """Old layouts (pickled weights, missing prefixes, gamma and beta, stored copies) come out in today's
    layout. For a run that has not ended, the newest checkpoint is taken. `--average 5` writes the mean of
    a run's last five checkpoints. `--quantize int8` writes weights of eight bits, which etymon alone can
    read, and says what that changed. Adapters are merged into their base.
    """
    import torch

    from etymon.checkpoints.folder import ensure_replaceable
    from etymon.families.loading import load
    from etymon.families.saving import save, save_published
    from etymon.nn.lora import merge
    from etymon.verbs.load_inputs import read_texts

    source, target = _newest_model(options.source), options.target
    dtype, quantize = options.dtype, options.quantize
    # First of all, since a large model takes minutes to read.
    ensure_replaceable(target)
    if quantize is not None and dtype != "float32":
        raise EtymonError(f"weights have eight bits or are {dtype}: give --quantize or --dtype, not both")
    if options.layout == "bilm" and (quantize is not None or dtype != "float32"):
        raise EtymonError("ELMo's published files hold float32: leave out --quantize and --dtype")
    if options.data is not None and quantize is None:
        raise EtymonError("a text is only read to measure rounding: give --quantize int8 with --data")
    text = None if options.data is None else read_texts((), options.data, lines=False, how=options)[0]
    choice: dict[str, Any] = {
        "heads": options.heads,
        "revision": options.revision,
        "family": options.family,
        "partial": options.partial,
    }
    steps: tuple[int, ...] = ()
    if options.average is None:
        model = load(source, **choice)
    # Checkpoints are of one run, and whole: there is nothing to choose.
    elif any(value not in (None, False) for value in choice.values()):
        raise EtymonError("checkpoints of a run are averaged as they are: give --average alone")
    else:
        steps, model = _average(Path(options.source), options.average)
    if model.int8:
        raise EtymonError(f"{source} holds weights of eight bits: convert the model that they were made of")
    if text is not None and "causal" not in model.capabilities:
        raise EtymonError(
            f"{model.family.title} writes no text from left to right, on which rounding could be measured: "
            "leave out --data"
        )
    merge(model)
    count, heads = model.parameter_count(), tuple(sorted(model.head_names))
    result = Converted(Path(target), model.family.title, count, heads, model.new_heads, averaged=steps)
    if options.layout == "bilm":
        save_published(model, target)
        return replace(result, heads=(), new_heads=(), left_out=heads)
    if quantize is None:
        save(model.to(getattr(torch, dtype)), target)
        return result
    # In this order: rounding changes the model in place.
    before, after = _figures(model, text), _figures(model.quantize(), text)
    save(model, target)
    written = sum(path.stat().st_size for path in Path(target).glob("*.safetensors"))
    # Of float32, which has four bytes a parameter, against what really lies there.
    result.changes["megabytes"] = (4 * count / 1e6, written / 1e6)
    result.changes |= {name: (before[name], after[name]) for name in before}
    return result


def _newest_model(source: str | Path) -> str | Path:
    """The folder of a run that has no model yet as its newest whole checkpoint,
    of one process or in parts."""
    from etymon.families.loading import MEMBERS
    from etymon.training.state import RunFolder

    run = Path(source)
    if (run / "run.yaml").is_file() and not any((run / name).is_dir() for name in MEMBERS):
        return RunFolder(run).latest() or source
    return source


def _average(run: Path, count: int) -> tuple[tuple[int, ...], Model]:
    from etymon.families.surgery import average_checkpoints
    from etymon.training.state import RunFolder

    steps = RunFolder(run).checkpoints()  # of which the best may be much older than the others
    if not 1 <= count <= len(steps):
        raise EtymonError(
            f"{run} has {len(steps)} checkpoints, of which {count} cannot be averaged: "
            "train with --keep N to have as many"
        )
    last = tuple(steps[-count:])
    return last, average_checkpoints([RunFolder(run).checkpoint(step) for step in last])


def _figures(model: Model, text: str | None) -> dict[str, float]:
    """What rounding may change: the speed of generation where a model generates, and bits per byte of a
    text."""
    import time

    from etymon.generation import DecodingSettings, generate_texts
    from etymon.generation.likelihood import score_texts

    figures = {}
    generates = {"state", "causal"} <= model.capabilities and "vocabulary" in model.heads
    if generates and model.tokenizer is not None:
        room = min(32, (model.positions or 64) - 8)
        # Exactly so many tokens: an early end would make the speed a matter of chance.
        decoding = DecodingSettings(max_new_tokens=room, min_new_tokens=room)
        for _ in range(2):  # the first one warms up
            begin = time.perf_counter()
            generations = generate_texts(model, ["The"], decoding)
            figures["tokens a second"] = len(generations[0].ids) / (time.perf_counter() - begin)
    if text is not None:
        score = score_texts(model, [text], None)[0]
        figures["bits per byte"] = float(score.bits_per_byte or float("nan"))
    return figures


def present(result: Converted, options: ConvertOptions) -> None:
    say(f"{result.family}, {result.parameters:,} parameters, written to {result.folder}")
    if result.averaged:
        say(f"the mean of the checkpoints after steps {', '.join(map(str, result.averaged))}")
    if result.left_out:
        say(f"left out, since such files have no place for them: {', '.join(result.left_out)}")
    if result.new_heads:
        say(f"initialised anew, since the checkpoint has none: {', '.join(result.new_heads)}")
    for name, (before, after) in result.changes.items():
        say(f"{name}: {before:,.4g} before, {after:,.4g} after ({after / before - 1:+.1%})")
    if result.changes:
        say("only etymon opens a folder of eight-bit weights")
