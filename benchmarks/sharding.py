"""Two processes that share a model's parameters (FSDP2) beside two that each have all of them (DDP).

A GPT-2 of 4 layers, 768 wide, with 50,257 words, trained by AdamW under `torchrun` with gloo, a thread a process. Rounds alternate; a round is a
few steps of the same slices. `ratio` is the tokens a second a process gets, against DDP; `details` has the bytes of weights and
optimiser that a process holds between two steps.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.harness import Comparison, sized

PROCESSES = 2
LAYERS, DIM, WORDS = sized((4, 768, 50_257), (2, 32, 500))
ROWS, LENGTH = sized((4, 256), (2, 16))
STEPS, ROUNDS = sized((4, 5), (1, 1))


def sharding() -> Iterable[Comparison]:
    with TemporaryDirectory() as place:
        file = Path(place) / "figures.json"
        command = [
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(PROCESSES), "--rdzv-backend", "c10d",
            "--rdzv-endpoint", "localhost:0", "-m", "benchmarks.sharding", str(file),
        ]  # fmt: skip
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
        figures = json.loads(file.read_text(encoding="utf-8"))
    ours, theirs = figures["full"], figures["none"]
    yield Comparison(
        "sharding",
        ours["seconds"],
        theirs["seconds"],
        peer="ourselves, with the whole model in both processes (DDP)",
        what=f"{STEPS} steps of GPT-2 {LAYERS}x{DIM}, {ROWS} rows of {LENGTH} tokens a process, two processes of one thread, FSDP2",
        target=0.85,
        details={
            "tokens_per_second_a_process": ROWS * LENGTH * STEPS / statistics.median(ours["seconds"]),
            "bytes_of_parameters_and_optimiser": {"ours": ours["bytes"], "peer": theirs["bytes"]},
            "memory_share": ours["bytes"] / theirs["bytes"],
            "memory_share_wanted": 0.55,
        },
    )


RUNS = [sharding]


def measure(file: Path) -> None:
    """What a process of `torchrun` does; the first one writes the figures."""
    import torch

    from etymon.families.loading import build
    from etymon.nn.batch import Batch
    from etymon.training.distributed import open_world
    from etymon.training.optimisers import OptimiserChoice, build_optimiser, clip_gradients
    from etymon.training.sharding import place
    from etymon.training.shards import local
    from etymon.training.unit import TrainingUnit

    class NextToken:
        """The objective: next tokens of rows that were drawn."""

        def loss(self, unit: Any, rows: Any) -> Any:
            batch = Batch.of([row[:-1] for row in rows])
            hidden_ND, _ = unit.model.hidden(batch)
            targets_N = torch.cat([row[1:] for row in rows])
            return unit.model.heads["vocabulary"].loss(hidden_ND, None, targets_N)

    torch.set_num_threads(1)
    sides: dict[str, Any] = {}
    for shard in ("none", "full"):
        with open_world("cpu", shard) as world:
            shape = {
                "layers": LAYERS,
                "dim": DIM,
                "heads": DIM // 16 if DIM < 64 else 12,
                "vocabulary": WORDS,
            }
            unit = TrainingUnit(build("gpt2", shape=shape), NextToken())  # type: ignore[arg-type]
            place(unit, world)
            unit.train()
            sides[shard] = world, world.wrap(unit), unit, build_optimiser(unit, OptimiserChoice())

    def steps(shard: str) -> float:
        world, wrapped, unit, optimiser = sides[shard]
        generator = torch.Generator().manual_seed(world.rank)
        begin = time.perf_counter()
        for _ in range(STEPS):
            rows = torch.randint(WORDS, (ROWS, LENGTH + 1), generator=generator)
            (wrapped(list(rows)) / (ROWS * LENGTH)).backward()
            clip_gradients(unit, 1.0)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        world.any(False)  # a round ends when both are done
        return time.perf_counter() - begin

    figures: dict[str, Any] = {}
    for shard, (_, _, unit, optimiser) in sides.items():
        steps(shard)  # warms up, and makes the optimiser's state
        held = [*unit.parameters()]
        held += [
            value for state in optimiser.state.values() for value in state.values() if hasattr(value, "numel")
        ]
        figures[shard] = {
            "seconds": [],
            "bytes": sum(local(tensor).numel() * tensor.element_size() for tensor in held),
        }
    for _ in range(ROUNDS):
        for shard in sides:
            figures[shard]["seconds"].append(steps(shard))
    if sides["none"][0].first:
        file.write_text(json.dumps(figures), encoding="utf-8")


if __name__ == "__main__":
    measure(Path(sys.argv[1]))
