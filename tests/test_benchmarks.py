"""Every benchmark runs, at toy size: the same code with smaller numbers, on made-up text, and results that go elsewhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

import etymon

FOLDER = Path(__file__).parents[1] / "benchmarks"
PARTS = {
    "__init__",
    "__main__",
    "harness",
    "arms",
    "toy_data",
    "plain_mlm",
    "recipe_arms",
    "servers",
    "evidence",
}
EXPERIMENTS = (
    "attention",
    "encoders",
    "recipes",
    "memory",
    "tasks",
    "plan",
    "low_resource",
    "chinese",
    "demo",
    "comparing",
    "scaling",
)
COMPARISONS = {
    "preparing": ["preparing", "deduplicating"],
    "sentence-encoding": ["sentence-encoding", "sentence-encoding-float32", "sentence-encoding-rounded"],
    "prompting": ["prompting"],
    "pairs": [f"pairs-{family}-{shape}" for family in ("gpt2", "bert") for shape in ("6x384", "12x768")],
    "generation": [
        "generation-float32-ctranslate2-float32-batch-2", "generation-float32-transformers-batch-2",
        "generation-int8-ctranslate2-int8-batch-2", "generation-int8-float32-batch-2",
        "generation-float32-llama.cpp-F32-batch-2", "generation-int8-llama.cpp-Q8_0-batch-2",
        "generation-bf16-llama.cpp-F16-batch-2", "generation-bf16-float32-batch-2",
    ],
    "recurrent": ["recurrent-evaluation", "training-step-transformer-xl", "adaptive-softmax", "training-step-xlnet"],
    "seq2seq": [f"training-step-{family}{side}" for family in ("bart", "t5") for side in ("", "-best", "-bf16")],
    "translation": [f"translation-{mode}-{peer}" for mode in ("fixed", "ended") for peer in ("transformers", "ctranslate2")],
    "finetuning": ["finetuning-train", "finetuning-predict"],
    "training-steps": [
        f"training-step-{family}{side}"
        for family in ("bert", "roberta", "albert", "electra", "gpt2") for side in ("", "-best", "-bf16")
    ],
    "shakespeare": ["shakespeare"],
    "sharding": ["sharding"],
    "serving": ["serving-2", "serving-3", "serving-offline-2", "serving-offline-3", "serving-embeddings"],
}  # fmt: skip
"""What each benchmark leaves."""


@pytest.fixture(scope="module", autouse=True)
def toy_size(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Benchmarks read their size when they are imported; what that changes in this process is put back."""
    import torch

    from etymon.tasks import head_task

    threads, runs = torch.get_num_threads(), tmp_path_factory.mktemp("benchmarks")
    loaded = [name for name in sys.modules if name.split(".")[0] == "benchmarks"]
    assert not loaded, "nothing else imports the benchmarks"
    with pytest.MonkeyPatch.context() as patch:
        for name in ("OMP_NUM_THREADS", "HF_HUB_OFFLINE", "TOKENIZERS_PARALLELISM"):
            patch.setenv(name, os.environ.get(name, "1"))
        patch.setenv("ETYMON_BENCH_TOY", "1")
        patch.setenv("ETYMON_BENCH_RUNS", str(runs))
        patch.setattr(head_task, "PREDICTED_TOKENS", head_task.PREDICTED_TOKENS)
        yield runs
    torch.set_num_threads(threads)
    for name in [name for name in sys.modules if name.split(".")[0] == "benchmarks"]:
        del sys.modules[name]


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ETYMON_BENCH_RESULTS", str(tmp_path))
    return tmp_path


def real_results() -> dict[str, float]:
    return {path.name: path.stat().st_mtime for path in (FOLDER / "results").iterdir()}


def test_every_module_is_tried_here() -> None:
    modules = {path.stem for path in FOLDER.glob("*.py")} - PARTS
    assert modules == {name.replace("-", "_") for name in COMPARISONS} | {*EXPERIMENTS, "panel", "widths"}
    assert list(COMPARISONS) == list(import_module("benchmarks.__main__").BENCHMARKS)


@pytest.mark.parametrize("name", COMPARISONS)
def test_a_benchmark_runs_and_keeps_its_figures(name: str, results: Path) -> None:
    before = real_results()
    assert import_module("benchmarks.__main__").main([name]) == 0
    kept = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in results.glob("*.json")}
    assert sorted(kept) == sorted(COMPARISONS[name])
    for record in kept.values():
        (figures,) = record["machines"]
        assert figures["ratio"] > 0 and figures["ours"] and figures["theirs"]
        assert figures["machine"]["processor"] and figures["machine"]["instructions"]
    assert real_results() == before, "toy figures never touch the real ones"


def recover_known_law(module: Any) -> None:
    """Losses that a law gives are fitted by about that law: what it says at a hundred times the budget is right."""
    import numpy as np

    law = module.ScalingLaw(2.0, 4e4, 0.36, 3e6, 0.26)
    cells = [(n, c / (9 * n)) for n in (7e4, 4e5, 3e6, 1e7) for c in (3e11, 9e11, 2.7e12, 8e12)]
    parameters, tokens = np.array(cells).T
    noise = np.exp(np.random.default_rng(0).normal(0, 0.003, len(cells)))
    fitted = module.fit(parameters, tokens, np.array([law.loss(*cell) for cell in cells]) * noise)
    for cell in ((4e5, 1e8), (3e6, 3e7)):
        assert fitted.loss(*cell) == pytest.approx(law.loss(*cell), rel=0.05)


def test_the_panel_measures_every_cell_once_and_again_when_the_recipe_has_changed(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = import_module("benchmarks.panel")
    module.main([])
    kept = json.loads((results / "panel.json").read_text(encoding="utf-8"))
    cells = list(module.cells())
    assert all(0 <= kept[cell.name]["value"] <= 100 for cell in cells)
    assert kept["run-bert-0"]["masked"] > 0 and kept["run-bert-0"]["pairs"]["paradigms"] == 1
    monkeypatch.setattr(module, "RUNS", results / "elsewhere")
    module.done(cells[0])
    assert not (results / "elsewhere" / "pretrained").exists(), "a figure outlives its run"
    usual = module.conditions
    monkeypatch.setattr(module, "conditions", lambda family: {**usual(family), "recipe": {"clip": 0.5}})
    assert not cells[0].result()


def test_narrower_models_are_measured_once(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("benchmarks.widths")
    module.main([])
    kept = json.loads((results / "widths.json").read_text(encoding="utf-8"))
    assert set(kept) == {f"{arm}-0" for arm in module.ARMS}
    assert kept["bert-128x4-0"]["masked"] > 0 and kept["gptj-128x2-0"]["bits_per_byte"] > 0
    assert {f"{task} {start}" for task in module.TASKS for start in ("new", "pretrained")} < set(
        kept["bert-128x4-0"]
    )
    monkeypatch.setattr(module, "RUNS", results / "elsewhere")
    module.main([])
    assert not (results / "elsewhere").exists(), "a figure outlives its run"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_runs_and_keeps_its_figures(name: str, results: Path) -> None:
    module = import_module(f"benchmarks.{name}")
    module.main([])
    kept: dict[str, Any]
    (kept,) = json.loads((results / f"{name}.json").read_text(encoding="utf-8"))["machines"]
    if name == "encoders":
        assert set(kept["scores"]) == set(module.ARMS)
    elif name == "low_resource":
        assert set(kept["scores"]) == set(module.arms())
        assert all(score["bits_per_byte"] > 0 for each in kept["scores"].values() for score in each)
    elif name == "chinese":
        tuned = {f"{arm}-{task}" for arm in module.ARMS for task in module.TASKS}
        assert tuned <= set(kept["scores"]) and kept["scores"]["gpt2-unigram"][0]["bits_per_byte"] > 0
    elif name == "attention":
        assert all(0 <= each["long"] <= 100 for arm in kept["scores"].values() for each in arm)
    elif name == "plan":
        (run,) = kept["runs"]
        assert 0.4 < run["ratios"]["bytes"] < 2.5 and run["ratios"]["step_seconds"] > 0
    elif name == "recipes":
        wanted = {arm for _, arms in module.ROUNDS for arm in arms}
        assert {run["arm"] for run in kept["runs"]} == wanted
        assert all(run["masked"] > 0 and run["tags pretrained"] >= 0 for run in kept["runs"])
    elif name == "demo":
        assert all(each["xz"] > 0 for scores in kept["scores"].values() for each in scores)
    elif name == "comparing":
        decided = [criterion for criterion in kept["criteria"] if criterion["decides"]]
        assert len(decided) == 1 and len(decided[0]["scores"]) == 2 and decided[0]["baselines"]
    elif name == "scaling":
        assert set(kept["curves"]) == set(module.FAMILIES) and kept["batches"]
        for curve in kept["curves"].values():
            assert len(curve["cells"]) == len(curve["residuals"]) == 4 and curve["rms_residual"] < 0.1
        recover_known_law(module)
    elif name == "memory":
        assert set(module.ARMS) <= set(kept) and kept["context"]
    else:
        assert set(kept["cells"]) == {cell.name for cell in module.cells()}, "no cell was refused"


def test_figures_of_another_processor_are_kept_and_those_of_the_same_are_replaced(results: Path) -> None:
    harness = import_module("benchmarks.harness")
    here = harness.machine()
    for ratio, machine in (
        (1, here),
        (2, {**here, "processor": "another"}),
        (3, here),
        (4, {**here, "threads": 99}),
    ):
        harness.write_result("speed", {"ratio": ratio, "machine": machine})
    kept = json.loads((results / "speed.json").read_text(encoding="utf-8"))["machines"]
    assert [record["ratio"] for record in kept] == [4, 3, 2]


def test_recorded_figures_name_their_machine() -> None:
    for path in (FOLDER / "results").glob("*.json"):
        kept = json.loads(path.read_text(encoding="utf-8"))
        for record in kept.get("machines") or kept.values():  # those of single runs stand by their names
            assert record["machine"]["processor"] and record["machine"]["threads"], path.name


def test_one_that_fails_is_told_and_the_others_go_on(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main = import_module("benchmarks.__main__")
    harness, shakespeare = (import_module(f"benchmarks.{name}") for name in ("harness", "shakespeare"))

    def breaks() -> Iterator[Any]:
        yield harness.Comparison("first", [1.0], [2.0], peer="nobody", what="nothing")
        raise RuntimeError("the lights went out")

    def works() -> Iterator[Any]:
        yield harness.Comparison("second", [1.0], [2.0], peer="nobody", what="nothing")

    monkeypatch.setattr(shakespeare, "RUNS", [breaks, works])
    monkeypatch.setitem(main.BENCHMARKS, "preparing", "benchmarks.nowhere")
    assert main.main(["preparing", "shakespeare"]) == 1
    assert {path.stem for path in results.iterdir()} == {"first", "second"}, (
        "figures are kept as they are measured"
    )
    told = capsys.readouterr().err
    assert re.search(r"FAILED preparing: .*nowhere", told)
    assert "FAILED shakespeare: RuntimeError: the lights went out" in told
    assert main.main(["nothing"]) == 2


def test_sides_have_processes_of_their_own_where_it_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As at real size, but that the sides are toys."""
    harness, generation = (import_module(f"benchmarks.{name}") for name in ("harness", "generation"))
    model = etymon.build("gpt2", "small", heads=("vocabulary",), shape=generation.SHAPE)
    etymon.save(model, tmp_path / "gpt2")
    asked = ("float32", tmp_path, 2)
    with harness.peers("benchmarks.generation", {"here": asked}) as here:
        monkeypatch.setattr(harness, "TOY", False)
        with harness.peers("benchmarks.generation", {"there": asked}) as there:
            assert there["there"].first == here["here"].first and there["there"].ask() > 0
    assert harness.peak_memory("benchmarks.recurrent", "ours") >= 1


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_llama_cpp_reads_the_weights_that_are_written_for_it(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where it was built (`make .venv-llama`)."""
    generation = import_module("benchmarks.generation")
    if not generation.LLAMA_PYTHON.is_file():
        pytest.skip("there is no .venv-llama: make .venv-llama")
    model = etymon.build("gpt2", "small", heads=("vocabulary",), shape=generation.SHAPE)
    etymon.save(model, tmp_path / "gpt2")
    peer = generation.LlamaPeer(f"llama.cpp-{kind}", str(tmp_path), 2)
    try:
        assert peer.ask() > 0
        if kind == "F32":
            assert peer.first == generation.side("float32", str(tmp_path), "2")()
    finally:
        peer.process.end()


def test_benchmarks_build_nothing_by_hand() -> None:
    for path in FOLDER.rglob("*.py"):
        assert "__new__" not in path.read_text(encoding="utf-8"), f"{path.name}: use the public constructor"


def test_the_command_runs(tmp_path: Path) -> None:
    """As `make bench` does, in a process of its own."""
    environment = {**os.environ, "ETYMON_BENCH_RESULTS": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks", "shakespeare"]
    done = subprocess.run(command, cwd=FOLDER.parent, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["shakespeare.json"]


def test_the_page_of_evidence_is_what_the_results_say() -> None:
    """Its table is written by `python -m benchmarks.evidence`."""
    from benchmarks import evidence

    findings = [evidence.find(claim) for claim in evidence.CLAIMS]
    text = evidence.PAGE.read_text(encoding="utf-8")
    assert evidence.page(findings, text) == text


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([1.0, 1.1, 0.9], "**seen**"),
        ([-1.0, -1.1, -0.9], "**the opposite**"),
        ([1.0, -1.0, 0.9], "not seen at this scale"),
    ],
)
def test_a_claim_is_judged_by_its_interval(differences: list[float], verdict: str) -> None:
    from benchmarks import evidence

    finding = evidence.Finding(evidence.CLAIMS[0], differences, "1 Tflop")
    assert finding.verdict == verdict
    lower, upper = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    assert finding.mean - finding.half == pytest.approx(
        lower
    ) and finding.mean + finding.half == pytest.approx(upper)
