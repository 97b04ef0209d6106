"""`etymon plan`: what a training run would take of memory, operations, time and money,
before it is started."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, Literal

from etymon.display import align_left, align_right, display_width
from etymon.language import translated
from etymon.settings import (
    JsonOptions,
    PathText,
    PluginOptions,
    Words,
    argument,
    group,
    option,
    options_of,
    settings,
)
from etymon.settings.training import PretrainSettings
from etymon.verbs.terminal import print_json, say
from etymon.verbs.verb import verb

if TYPE_CHECKING:
    from etymon.runs.device_memory import Cluster
    from etymon.runs.planning import TrainingPlan

PARTS = ("weights", "gradients", "optimiser", "activations", "logits", "gathered", "other", "total")


@settings
class PlanOptions(PluginOptions, JsonOptions):
    family: str = argument("as for pretrain: gpt2, bert, t5, ...")
    devices: str = option(
        "cpu",
        "devices of one machine: 8xA100-80, T4, RTX4090 ..., cpu (measured here), or your own: "
        "2x24GB@71TFLOPS",
    )
    nodes: int = option(1, "number of such machines", ge=1, le=100_000)
    precision: Literal["float32", "bf16", "fp16"] | None = option(
        None, "number format of matrix products and activations (the device's fastest)"
    )
    shard: Literal["none", "hybrid", "full"] | None = option(
        None,
        "none: every device has all weights; full: a part of them; hybrid: a part within each machine "
        "(what fits)",
    )
    recompute: bool = option(
        False, "compute layers twice instead of keeping their results: less memory, more time"
    )
    utilisation: float | None = option(
        None, "share of the devices' peak speed that is reached (measured on cpu, 0.4 elsewhere)", gt=0, le=1
    )
    words: str | None = option(None, "size of the text in words, for a budget in epochs: 100M")
    price: float | None = option(None, "price of one device for one hour, in any currency", ge=0)
    watts: float | None = option(
        None,
        "power that one device draws, with its share of the machine (the maker's figure for the "
        "device alone)",
        ge=0,
    )
    data: Words = option((), "text files, folders or globs, to be named in the command that is printed")
    config: PathText = option(None, "YAML file with settings of a run; options given here win")
    set: Words = option((), "give any setting a value by its dotted name: shape.layers=6")
    run: dict[str, Any] = group(
        PretrainSettings, "size vocabulary length batch slices budget objective optimiser learning_rate"
    )


@verb(PlanOptions)
def plan(options: PlanOptions) -> TrainingPlan:
    """The model is built without values and its operations are counted, so no memory is taken. `etymon
    pretrain` refuses runs that do not fit by the same estimate. On cpu a few real steps are timed; elsewhere
    the time follows from an assumed share of the devices' peak speed. Devices: A100-40, A100-80, H100, H200,
    V100-16, V100-32, T4, L4, L40S, A10, A6000, RTX3090, RTX4090, M1, M1-Max, M2, M2-Ultra, with what their
    makers publish.
    """
    from etymon.runs.device_memory import Cluster
    from etymon.runs.devices import read_devices
    from etymon.runs.planning import plan_run
    from etymon.runs.run_file import RunFile, assemble

    file = assemble(RunFile, options.run | {"family": options.family}, options.config, options.set)
    per_node, device = read_devices(options.devices)
    cluster = Cluster(device, per_node, options.nodes)
    planned = plan_run(
        file,
        cluster,
        precision=options.precision,
        shard=options.shard,
        recompute=options.recompute,
        utilisation=options.utilisation,
        words=options.words,
    )
    if options.price is not None:
        planned.price = options.price * planned.device_hours
    planned.watts = device.watts if options.watts is None else options.watts
    if planned.watts is not None:
        planned.kilowatt_hours = planned.watts / 1000 * planned.device_hours
    # Where nothing fits there is nothing to run: a note says what would fit.
    if planned.chosen is not None:
        planned.command = _command(options, file.budget, cluster, planned)
    return planned


def _command(options: PlanOptions, budget: str | None, cluster: Cluster, planned: TrainingPlan) -> str:
    """The run that was planned, with the options that `etymon pretrain` has."""
    from etymon.verbs.pretrain import PretrainOptions

    chosen = planned.chosen
    assert chosen is not None
    # What a run does by itself is left out, so that the command says what is special about it.
    values: dict[str, Any] = {
        **options.run,
        "data": list(options.data) or ["TEXT"],
        "budget": budget,
        "batch": planned.batch,
        "slices": planned.slices if planned.slices > 1 else None,
        "precision": chosen.precision if chosen.precision != "float32" else None,
        "shard": chosen.shard if chosen.shard != "none" else None,
        "recompute": options.recompute or None,
        "config": options.config,
        "set": list(options.set) or None,
    }
    words = ["etymon", "pretrain", options.family]
    if cluster.size > 1:
        place = ["--nproc-per-node", str(cluster.per_node)]
        if cluster.nodes > 1:
            place = ["--nnodes", str(cluster.nodes), *place, "--rdzv-backend", "c10d"]
            # A name to be filled in: how the machines are called is not known here.
            place += ["--rdzv-endpoint", "FIRST_NODE:29500"]
        words = ["torchrun", *place, "-m", *words]
    # Flags and their order are those that `pretrain` declares: nothing is spelled a second time.
    for each in options_of(PretrainOptions):
        value = values.get(each.name)
        if value is True:
            words.append(each.flag)
        elif value is not None:
            words += [each.flag, *map(str, value if isinstance(value, list) else [value])]
    return shlex.join(words)


def present(result: TrainingPlan, options: PlanOptions) -> None:
    if options.json:
        return print_json(result, indent=2, ascii=True)
    from etymon.files import format_bytes
    from etymon.training.progress import format_count, format_seconds

    say(f"{result.model}, {result.parameters:,} parameters, samples of {result.length:,} tokens")
    say(f"on {result.devices}, with {format_bytes(result.device_memory)} each for a run")
    print()
    say(f"memory of a device that computes {result.memory[0].rows:,} of a step's {result.batch:,} samples")
    print_table(
        ["precision", "shard", *PARTS, "fits", "largest"],
        [
            [
                row.precision,
                row.shard,
                *(format_bytes(getattr(row, part)) if getattr(row, part) else "-" for part in PARTS),
                "yes" if row.fits else "in slices" if row.largest_rows else "no",
                f"{row.largest_rows:,}",
            ]
            for row in result.memory
        ],
    )
    print()
    hours = f"{result.device_hours:,.1f} device-hours"
    reached = f"{result.utilisation:.0%} ({result.utilisation_source}) of {result.peak / 1e12:.3g} Tflop/s"
    energy = None
    if result.kilowatt_hours is not None:
        energy = f"{result.kilowatt_hours:,.3g} kWh, at {result.watts:g} W a device"
        if options.watts is None:
            energy += " (without the machine around it: say --watts)"
    lines = {
        "chosen": "nothing" if result.chosen is None else str(result.chosen),
        "operations": f"{result.operations_a_token:.3g} a token, {result.operations:.3g} in all",
        "amount": f"{format_count(result.tokens)} tokens, {result.steps:,} steps of {result.batch:,} samples",
        "time": f"{format_seconds(result.seconds)}, {hours}, at {reached}",
        "price": None if result.price is None else f"{result.price:,.2f}",
        "energy": energy,
        "note": "; ".join(result.notes) or None,
        "command": result.command,
    }
    for name, text in lines.items():
        if text is not None:
            print(f"{align_left(translated(name, 'result'), 11)} {translated(text, 'result')}")


def print_table(names: list[str], rows: list[list[str]]) -> None:
    shown = [[translated(cell, "result") for cell in line] for line in (names, *rows)]
    widths = [max(map(display_width, column)) for column in zip(*shown, strict=True)]
    for line in shown:
        print("  " + "  ".join(map(align_right, line, widths)))
