"""`etymon convert`: any checkpoint that can be read, written as a folder of today's layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from etymon.errors import EtymonError
from etymon.verbs.options import Quantize, opens_models

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


@opens_models
def convert(
    source: Annotated[str | Path, "folder or hub id"],
    target: Annotated[str | Path, "folder to write"],
    *,
    heads: Annotated[Sequence[str] | None, "heads to keep or add (those of the checkpoint)"] = None,
    dtype: Annotated[
        Literal["float32", "float16", "bfloat16"], "precision of the written weights"
    ] = "float32",
    revision: Annotated[str | None, "branch, tag or commit of a hub id"] = None,
    family: Annotated[
        str | None, "what the source is, e.g. bert, where it does not say so (as its weights are called)"
    ] = None,
    partial: Annotated[bool, "tolerate unexpected weights and missing heads"] = False,
    average: Annotated[int | None, "of a run: the mean of its last so many checkpoints"] = None,
    layout: Annotated[
        Literal["folder", "bilm"], "of what is written; bilm: ELMo's published options.json and HDF5 file"
    ] = "folder",
    quantize: Quantize = None,
    data: Annotated[
        Path | None, "a text to judge the rounding of a decoder by: bits per byte before and after"
    ] = None,
) -> Converted:
    """Read a checkpoint and write it as a Hugging Face folder.

    Old layouts (pickled weights, missing prefixes, gamma and beta, stored copies) come out in today's layout.
    `--average 5` writes the mean of a run's last five checkpoints.
    `--quantize int8` writes weights of eight bits, which etymon alone can read, and says what that changed.
    Adapters are merged into their base.
    """
    import torch

    from etymon.checkpoints.folder import ensure_replaceable
    from etymon.families.loading import load
    from etymon.families.saving import save, save_published
    from etymon.nn.lora import merge
    from etymon.verbs.opening import texts_of

    ensure_replaceable(target)
    if quantize is not None and dtype != "float32":
        raise EtymonError(f"weights have eight bits or are {dtype}: give --quantize or --dtype, not both")
    if layout == "bilm" and (quantize is not None or dtype != "float32"):
        raise EtymonError("ELMo's published files hold float32: leave out --quantize and --dtype")
    if data is not None and quantize is None:
        raise EtymonError("a text is only looked at to judge rounding: give --quantize int8 with --data")
    text = None if data is None else texts_of((), data, lines=False)[0]
    steps: tuple[int, ...] = ()
    if average is not None:
        if heads is not None or revision is not None or family is not None or partial:
            raise EtymonError("checkpoints of a run are averaged as they are: give --average alone")
        steps, model = _averaged(Path(source), average)
    else:
        model = load(source, heads=heads, revision=revision, family=family, partial=partial)
    if model.int8:
        raise EtymonError(f"{source} holds weights of eight bits: convert the model that they were made of")
    if text is not None and "causal" not in model.capabilities:
        raise EtymonError(
            f"{model.family.title} writes no text from left to right, by which rounding could be judged: leave out --data"
        )
    merge(model)
    count, heads = model.parameter_count(), tuple(sorted(model.head_names))
    done = Converted(Path(target), model.family.title, count, heads, model.new_heads, averaged=steps)
    if layout == "bilm":
        save_published(model, target)
        return replace(done, heads=(), new_heads=(), left_out=heads)
    if quantize is None:
        save(model.to(getattr(torch, dtype)), target)
        return done
    before, after = _figures(model, text), _figures(model.quantized(), text)
    save(model, target)
    written = sum(path.stat().st_size for path in Path(target).glob("*.safetensors"))
    done.changes["megabytes"] = (4 * count / 1e6, written / 1e6)
    done.changes |= {name: (before[name], after[name]) for name in before}
    return done


def _averaged(run: Path, count: int) -> tuple[tuple[int, ...], Model]:
    from etymon.families.surgery import average_checkpoints
    from etymon.training.state import RunFolder

    steps = RunFolder(run).checkpoints()  # of which the best may be much older than the others
    if not 1 <= count <= len(steps):
        raise EtymonError(
            f"{run} has {len(steps)} checkpoints, of which {count} cannot be averaged: "
            "train with --keep N to have as many"
        )
    chosen = tuple(steps[-count:])
    return chosen, average_checkpoints([RunFolder(run).checkpoint(step) for step in chosen])


def _figures(model: Model, text: str | None) -> dict[str, float]:
    """What rounding may change: the speed of generation where a model generates, and bits per byte of a text."""
    import time

    from etymon.generation import DecodingSettings, generate_texts
    from etymon.generation.likelihood import score_texts

    found = {}
    generates = {"state", "causal"} <= model.capabilities and "vocabulary" in model.heads
    if generates and model.tokenizer is not None:
        room = min(32, (model.positions or 64) - 8)
        settings = DecodingSettings(max_new_tokens=room, min_new_tokens=room)
        for _ in range(2):  # the first one warms up
            begin = time.perf_counter()
            made = generate_texts(model, ["The"], settings)
            found["tokens a second"] = len(made[0].ids) / (time.perf_counter() - begin)
    if text is not None:
        score = score_texts(model, [text], None)[0]
        found["bits per byte"] = float(score.bits_per_byte or float("nan"))
    return found


def present(result: Converted) -> None:
    print(f"{result.family}, {result.parameters:,} parameters, written to {result.folder}")
    if result.averaged:
        print(f"the mean of the checkpoints after steps {', '.join(map(str, result.averaged))}")
    if result.left_out:
        print(f"left out, since such files have no place for them: {', '.join(result.left_out)}")
    if result.new_heads:
        print(f"initialised anew, since the checkpoint has none: {', '.join(result.new_heads)}")
    for name, (before, after) in result.changes.items():
        print(f"{name}: {before:,.4g} before, {after:,.4g} after ({after / before - 1:+.1%})")
    if result.changes:
        print("only etymon opens a folder of eight-bit weights")
