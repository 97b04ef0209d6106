"""`etymon plan`: a run on paper has the memory, operations and steps of the run itself."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import etymon
from etymon import cli
from etymon.nn.footprint import Footprint
from etymon.runs import planning
from etymon.runs.device_memory import Cluster
from etymon.runs.devices import PUBLISHED, Device, read_devices
from etymon.verbs.pretrain import pretrain
from tests.verbs.small_runs import with_test_sizes


@pytest.fixture(scope="module", autouse=True)
def sizes() -> Iterator[None]:
    with with_test_sizes():
        yield


@pytest.fixture(autouse=True)
def processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is the same everywhere."""
    device = Device("cpu", 8e9, {"float32": 1e11, "bf16": 1e11}, None, "measured here")
    monkeypatch.setattr("etymon.runs.devices.this_processor", lambda processes=1: device)


def plan(family: str = "gpt2", **changes: Any) -> Any:
    arguments: dict[str, Any] = {"size": "test", "length": 32, "batch": 8, "budget": "20steps"}
    return etymon.plan(family, **{**arguments, **changes})


def test_a_plan_of_this_machine_is_what_a_dry_run_says() -> None:
    planned = plan(precision="float32")
    (row,) = planned.memory
    assert planned.chosen is not None and row.total == planned.chosen.total
    assert row.fits and row.largest_rows > 8 and planned.steps == 20
    assert planned.utilisation_source == "measured here" and planned.utilisation > 0
    assert planned.tokens == 20 * 8 * 32
    assert repr(planned).startswith("TrainingPlan(GPT-2 test, ")


def test_nothing_is_allocated_for_gpt3_and_its_published_figures_come_out() -> None:
    planned = etymon.plan(
        "gpt3", size="175B", devices="8xA100-80", nodes=96, length=2048, batch=1536, budget="300Btokens",
        precision="bf16", shard="full",
    )  # fmt: skip
    assert planned.parameters == pytest.approx(175e9, rel=0.01)
    assert planned.operations == pytest.approx(3.14e23, rel=0.05)
    assert planned.steps == pytest.approx(300e9 / 1536 / 2048, rel=0.001)


def test_sharding_cuts_what_is_kept_and_gathers_what_is_computed() -> None:
    footprint = Footprint(weights=80.0, gradients=80.0, optimiser=160.0, activations=20.0, logits=5.0)
    assert footprint.of_processes(1).total == 80 + 80 + 160 + 20 + 5
    assert footprint.of_processes(4, root=8.0, block=6.0).total == 320 / 4 + 25 + 2 * 8 + 3 * 6
    cluster = Cluster(read_devices("4xT4")[1], 4, 2)
    assert [cluster.parts(each) for each in ("none", "hybrid", "full")] == [1, 4, 8]


@pytest.mark.parametrize(("family", "has_blocks"), [("gpt2", True), ("albert", False), ("t5", True)])
def test_weights_are_in_blocks_or_in_the_root(family: str, has_blocks: bool) -> None:
    rows = plan(family, devices="4xA100-80", batch=4, precision="float32").memory
    whole, cut = rows
    assert (whole.shard, cut.shard) == ("none", "full")
    assert cut.weights == whole.weights / 4 and cut.optimiser == whole.optimiser / 4
    # ALBERT uses its one layer many times: all of it is gathered for a whole pass.
    assert (cut.gathered < 2 * whole.weights) is has_blocks


def test_recomputing_keeps_less_and_computes_more() -> None:
    size = {"size": "125M", "length": 1024, "batch": 4, "devices": "A100-80", "precision": "bf16"}
    kept, again = (plan("gpt3", **size, recompute=each) for each in (False, True))
    assert again.memory[0].activations < 0.3 * kept.memory[0].activations
    assert again.memory[0].weights == kept.memory[0].weights
    assert 1.1 < again.operations_a_token / kept.operations_a_token < 1.34
    assert "--recompute" in again.command and "--recompute" not in kept.command


def test_half_precision_halves_activations_and_nothing_that_is_kept() -> None:
    rows = {row.precision: row for row in plan(devices="A100-80", batch=64).memory}
    assert rows["bf16"].weights == rows["float32"].weights
    assert rows["bf16"].optimiser == rows["float32"].optimiser
    assert rows["bf16"].activations < 0.75 * rows["float32"].activations
    assert rows["fp16"].total == rows["bf16"].total


def test_the_largest_batch_fits_and_one_more_does_not() -> None:
    planned = plan(devices="0.12GB@10TFLOPS", precision="float32")
    (row,) = planned.memory
    room, family = planned.device_memory, {"devices": "0.12GB@10TFLOPS", "precision": "float32"}
    assert plan(**family, batch=row.largest_rows).memory[0].total <= 1.02 * room
    assert plan(**family, batch=row.largest_rows + 8).memory[0].total >= 0.98 * room


def test_a_batch_that_does_not_fit_at_once_is_cut_into_slices() -> None:
    largest = plan(devices="2x0.12GB@10TFLOPS", precision="float32").memory[0].largest_rows
    planned = plan(devices="2x0.12GB@10TFLOPS", precision="float32", batch=16 * largest)
    assert planned.chosen is not None and planned.chosen.rows <= largest
    assert planned.slices % 2 == 0 and planned.batch % planned.slices == 0
    assert f"--slices {planned.slices}" in planned.command


def test_what_cannot_fit_has_no_command_but_a_note() -> None:
    planned = etymon.plan("gpt3", size="175B", devices="T4", budget="1Mtokens", precision="fp16")
    assert planned.chosen is None and planned.command is None
    assert "nothing fits" in planned.notes[0] and "nothing fits" in repr(planned)
    planned = etymon.plan("gpt3", size="6.7B", devices="A100-80", budget="1Mtokens", precision="float32")
    assert re.search(r"it takes [2-9] such devices", planned.notes[0])


@pytest.mark.parametrize(
    ("budget", "tokens"),
    [("10steps", 10 * 8 * 32), ("5ktokens", 5000), ("3epochs", 3 * 1.33 * 1000), ("2kwords", 2000 * 1.33)],
)
def test_budgets_of_all_kinds_come_to_tokens(budget: str, tokens: float) -> None:
    planned = plan(devices="T4", budget=budget, words="1000")
    assert planned.tokens == pytest.approx(tokens)


def test_time_price_and_energy_follow_from_operations() -> None:
    planned = plan(
        devices="4xT4", budget="1Mtokens", precision="float32", utilisation=0.5, price=2.0, watts=100.0
    )
    assert planned.operations == pytest.approx(1e6 * planned.operations_a_token)
    assert planned.seconds == pytest.approx(planned.operations / (4 * 8.1e12 * 0.5))
    assert planned.device_hours == pytest.approx(4 * planned.seconds / 3600)
    assert planned.price == pytest.approx(2 * planned.device_hours)
    assert planned.kilowatt_hours == pytest.approx(0.1 * planned.device_hours)
    published = plan(devices="4xT4", budget="60s")
    assert published.kilowatt_hours == pytest.approx(0.07 * 4 / 60), "70 W each, for a minute"
    assert plan(devices="M2", budget="60s").kilowatt_hours is None, "Apple does not say"
    assert plan(devices="4xT4", budget="60s").seconds == pytest.approx(60)
    assert plan(devices="4xT4", budget="1Tflops").operations == pytest.approx(1e12)


def test_operations_are_those_that_a_run_counts(tmp_path: Any) -> None:
    from etymon.training import loop
    from tests.verbs.small_runs import pretrain as small_run

    counted: list[float] = []
    with pytest.MonkeyPatch.context() as patch:
        real = loop.flops_per_token
        patch.setattr(loop, "flops_per_token", lambda *words: counted.append(real(*words)) or counted[-1])
        run = small_run("gpt2", tmp_path / "run", steps=1, slices=1, batch=8)
    planned = plan(vocabulary=run.model.shape.vocabulary, devices="T4", precision="float32")
    assert planned.operations_a_token == pytest.approx(counted[0], rel=0.05)


def test_the_command_is_one_that_pretrain_takes() -> None:
    planned = plan(devices="2xA100-80", nodes=3, batch=12, data=["a.txt", "b c.txt"], set=["shape.layers=3"])
    words = shlex.split(planned.command)
    assert words[:5] == ["torchrun", "--nnodes", "3", "--nproc-per-node", "2"]
    place = words.index("pretrain")
    assert words[place - 2 : place] == ["-m", "etymon"]
    command = cli.command("pretrain")
    context = command.make_context("pretrain", cli.spread(words[place:])[1:])
    assert context.params["batch"] == 12 and context.params["slices"] == planned.slices
    assert context.params["data"] == ("a.txt", "b c.txt") and context.params["set"] == ("shape.layers=3",)
    assert "--precision bf16" in planned.command
    assert all(each in {option.flag for option in pretrain.options} for each in words[place:] if "--" in each)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gtp2"], "gpt2"),
        (["gpt2", "--size", "huge"], "huge"),
        (["gpt2", "--devices", "A1000"], "there is no device 'A1000' in the table: .*or say its memory"),
        (["gpt2", "--devices", "0xT4"], "at least one device"),
        (["gpt2", "--devices", "x"], "there is no device"),
        (["gpt2", "--devices", "0GB@5TFLOPS"], "some memory and some speed"),
        (["gpt2", "--budget", "much"], "cannot read the budget"),
        (["gpt2", "--budget", "3epochs"], "needs the size of the text: give --words"),
        (["gpt2", "--words", "many", "--budget", "3epochs"], "many"),
        (["gpt2", "--devices", "8xT4", "--batch", "12"], "--batch 12 cannot be shared by 8 devices: give a multiple of 8"),
        (["gpt2", "--devices", "8xT4", "--batch", "24", "--slices", "12"], "--slices 12 cannot be shared by 8"),
        (["gpt2", "--devices", "T4", "--precision", "bf16"], "T4 does not compute in bf16"),
        (["gpt2", "--devices", "T4", "--shard", "full"], "--shard full cuts a model over several devices"),
        (["gpt2", "--devices", "8xT4", "--shard", "hybrid"], "several nodes: say --nodes"),
        (["gpt2", "--length", "5000", "--devices", "T4"], r"which has [\d,]+ positions"),
        (["gpt2", "--utilisation", "1.5"], "utilisation"),
        (["gpt2", "--batch", "0"], "batch"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["plan", *arguments])
    told = capsys.readouterr().err
    assert left.value.code == 2 and told.count("\n") == 1
    assert re.search(message, told), told


def test_the_command_line_prints_a_table_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "gpt2", "--size", "test", "--devices", "8xA100-80", "--length", "32", "--price", "2"]
    for extra in ([], ["--json"]):
        with pytest.raises(SystemExit) as left:
            cli.main([*words, *extra])
        assert left.value.code == 0
        told = capsys.readouterr().out
        if extra:
            assert json.loads(told)["devices"] == "8 x A100-80"
    with pytest.raises(SystemExit):
        cli.main(words)
    lines = capsys.readouterr().out.splitlines()
    assert sum(bool(re.match(r" +(float32|bf16|fp16) ", line)) for line in lines) == 6
    assert [line.split()[0] for line in lines[-7:]] == [
        "chosen", "operations", "amount", "time", "price", "energy", "command",
    ]  # fmt: skip


def test_devices_are_read_by_name_whatever_their_spelling() -> None:
    for name in PUBLISHED:
        count, device = read_devices(f"2x{name.lower()}")
        assert (count, device.name) == (2, name) and device.memory > 0
        assert device.peaks[device.best_precision] >= device.peaks["float32"]
    assert read_devices("rtx 4090")[1].name == "RTX4090"
    count, own = read_devices("3x24GB@71TFLOPS")
    assert count == 3 and own.memory == pytest.approx(0.92 * 24e9) and own.peaks["bf16"] == 71e12


def test_a_peak_that_was_measured_at_a_busy_moment_does_not_change_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(planning, "measured_utilisation", lambda *words: 3.0)
    planned = plan(precision="float32")
    assert planned.utilisation == 3 and "faster than the peak" in planned.notes[0]
    assert planned.seconds == pytest.approx(planned.operations / (3 * planned.peak))


def test_timing_leaves_what_is_drawn_next_alone() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    plan()
    assert torch.equal(before, torch.random.get_rng_state())
    assert planning.UTILISATION < 1


def test_earlier_runs_are_in_nobodys_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs" / "gpt2-pocket").mkdir(parents=True)
    (tmp_path / "runs" / "gpt2-pocket" / "run.yaml").write_text("family: gpt2\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert etymon.plan("gpt2", devices="A100-80", budget="10steps").parameters > 0
    assert [path.name for path in tmp_path.iterdir()] == ["runs"], "and nothing is written"
