"""The stored values of the reference implementations, and a judge that can say no."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.oracle.__main__ import main
from tests.oracle.case import MANIFEST, Case
from tests.oracle.runner import check, is_built


def built_cases() -> list[Path | None]:
    """Found while tests are collected; a lone None, skipped with its reason, where there are no cases."""
    default = Path(__file__).resolve().parents[2] / "shared"
    folder = Path(os.environ.get("ETYMON_SHARED", default)) / "oracle" / "cases"
    found = [path.parent for path in sorted(folder.rglob(MANIFEST))] if folder.is_dir() else []
    return [path for path in found if is_built(Case(path))] or [None]


@pytest.mark.parametrize(
    "folder", built_cases(), ids=lambda folder: "none" if folder is None else folder.name
)
def test_case(shared: Path, folder: Path | None) -> None:
    if folder is None:
        pytest.skip(f"no cases of built families below {shared}")
    report = check(Case(folder))
    assert report.status == "ok"
    assert report.problems == []
    assert {"outputs", "ragged"} <= set(report.worst)


# --- the judge itself


@pytest.fixture
def copied(shared: Path, tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a case that may be spoiled."""

    def copy(name: str) -> Path:
        source = shared / "oracle" / "cases" / name
        if not source.is_dir():
            pytest.skip(f"there is no case {name}")
        return Path(shutil.copytree(source, tmp_path / name))

    return copy


def edit_tensors(path: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def edit_json(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def add(key: str, amount: float, at: tuple[int, ...] = ()) -> Callable[[dict[str, torch.Tensor]], Any]:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[key][at] += amount

    return change


def spoil_weight(case: Path) -> None:
    edit_tensors(case / "model.safetensors", add("transformer.h.0.mlp.c_fc.bias", 0.01, (3,)))


def spoil_output(case: Path) -> None:
    edit_tensors(case / "outputs.safetensors", add("fwd.logits", 1e-3, (0, 2, 5)))


def spoil_attention(case: Path) -> None:
    edit_tensors(case / "outputs.safetensors", add("fwd.attentions.1", float("nan"), (0, 0, 0, 0)))


def spoil_gradient(case: Path) -> None:
    def change(gradients: dict[str, Any]) -> None:
        gradients["params"]["transformer.ln_f.bias"]["proj"] += 0.01

    edit_json(case / "grads.json", change)


def spoil_unused_gradient(case: Path) -> None:
    edit_json(case / "grads.json", lambda stored: stored["params"].update({"transformer.ln_f.bias": None}))


def lose_gradient(case: Path) -> None:
    edit_json(case / "grads.json", lambda stored: stored["params"].pop("transformer.ln_f.bias"))


def spoil_generated(case: Path) -> None:
    edit_tensors(case / "outputs.safetensors", add("gen.beam.sequences", 1, (0, 8)))


def spoil_score(case: Path) -> None:
    edit_tensors(case / "outputs.safetensors", add("gen.beam.sequences_scores", 1e-3, (1,)))


def shorten_generated(case: Path) -> None:
    edit_tensors(case / "outputs.safetensors", add("gen.beam.lengths", -1, (0,)))


def ask_more(case: Path) -> None:
    edit_json(case / MANIFEST, lambda m: m["calls"][0]["tensors"].update(strange_argument="labels"))


def store_more(case: Path) -> None:
    edit_tensors(
        case / "outputs.safetensors", lambda stored: stored.update({"fwd.strange_field": torch.zeros(2)})
    )


def declare_more(case: Path) -> None:
    edit_json(case / MANIFEST, lambda m: m["calls"][0]["fields"].append("declared_field"))


def store_another_layer(case: Path) -> None:
    edit_tensors(
        case / "outputs.safetensors",
        lambda stored: stored.update({"fwd.attentions.7": stored["fwd.attentions.1"].clone()}),
    )


def generate_strangely(case: Path) -> None:
    edit_json(case / MANIFEST, lambda m: m["generate"][0]["const"].update(diversity_penalty=2.0))


def cut_weights(case: Path) -> None:
    path = case / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def cut_manifest(case: Path) -> None:
    (case / MANIFEST).write_text("{")


SPOILERS = {
    spoil_weight: "fwd.logits",
    spoil_output: "fwd.logits: 1 of",
    spoil_attention: "fwd.attentions.1: 1 of",
    spoil_gradient: "gradient of transformer.ln_f.bias: proj",
    spoil_unused_gradient: "the reference never uses it",
    lose_gradient: "the reference has no such parameter",
    spoil_generated: "gen.beam row 0",
    spoil_score: "gen.beam row 1: score",
    shorten_generated: "gen.beam row 0",
    ask_more: "strange_argument",
    store_more: "strange_field",
    declare_more: "declared_field",
    store_another_layer: "fwd.attentions.7",
    generate_strangely: "diversity_penalty",
    cut_weights: "EtymonError",
    cut_manifest: "JSONDecodeError",
}


@pytest.mark.parametrize("spoil", SPOILERS, ids=lambda spoil: spoil.__name__)
def test_spoiled_case_fails(
    spoil: Callable[[Path], None], copied: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    case = copied("gpt2_lm")
    spoil(case)
    assert main([str(case)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("gpt2_lm  FAIL")
    assert any(SPOILERS[spoil] in line for line in lines[1:-1])
    assert all(line.startswith("    ") for line in lines[1:-1])
    assert lines[-1] == "0 ok, 1 failed, 0 not built"


def test_masked_and_version_dependent_values_are_not_judged(copied: Callable[[str], Path]) -> None:
    case = copied("gpt2_lm")
    mask = load_file(case / "inputs.safetensors")["lp_mask"].bool()

    def change(stored: dict[str, torch.Tensor]) -> None:
        stored["leftpad.logits"][~mask] = float("nan")
        stored["fwd.logits"] += 1
        stored["gen.beam.sequences"] += 1
        stored["gen.beam.sequences_scores"] += 1

    edit_tensors(case / "outputs.safetensors", change)
    edit_json(
        case / MANIFEST,
        lambda m: m.update(version_dependent={"outputs": ["fwd.logits"], "grads": [], "generate": ["beam"]}),
    )
    assert check(Case(case)).problems == []


def test_unbuilt_families_are_listed_as_such(
    copied: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    good = copied("bert_cls")
    strange = good.parent / "strange"
    shutil.copytree(good, strange)
    edit_json(strange / "config.json", lambda config: config.update(model_type="unheard-of"))
    recurrent = good.parent / "recurrent"
    shutil.copytree(good, recurrent)
    edit_json(recurrent / MANIFEST, lambda manifest: manifest.update(kind="hopfield"))
    assert main([str(good.parent)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[:2] for line in lines[:-1]] == [
        ["bert_cls", "ok"],
        ["recurrent", "not built"],
        ["strange", "not built"],
    ]
    assert lines[-1] == "1 ok, 0 failed, 2 not built"


def test_nothing_to_judge_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    assert "no case" in capsys.readouterr().err


@pytest.mark.parametrize("normed", [True, False], ids=["told", "not told"])
def test_mixes_of_elmo_are_normed_where_the_case_says_so(copied: Callable[[str], Path], normed: bool) -> None:
    """What the reference's `do_layer_norm` gives, from its stored layers: mean 0 and variance 1 over all words of a batch."""
    folder = copied("elmo_random")
    mix = load_file(folder / "scalar_mix.safetensors")
    scalars = torch.cat([mix[f"scalar_mix_0.scalar_parameters.{layer}"] for layer in range(3)]).softmax(0)

    def norm(tensors: dict[str, torch.Tensor]) -> None:
        for key in [key for key in tensors if ".elmo_representations.0" in key]:
            call = key.split(".")[0]
            real = tensors[f"{call}.bilm_mask"].bool()
            whole = torch.zeros_like(tensors[f"{call}.bilm_activations.0"])
            for layer in range(3):
                x = tensors[f"{call}.bilm_activations.{layer}"]
                mean, variance = x[real].mean(), x[real].var(correction=0)
                whole += scalars[layer] * (x - mean) / (variance + 1e-13).sqrt()
            whole *= mix["scalar_mix_0.gamma"]
            for row, length in enumerate(real.sum(1).tolist()):  # the marks are left out
                tensors[key][row] = 0
                tensors[key][row, : length - 2] = whole[row, 1 : length - 1]

    edit_tensors(folder / "outputs.safetensors", norm)
    if normed:
        edit_json(folder / MANIFEST, lambda found: found["constructor"].update(do_layer_norm=True))
    problems = check(Case(folder)).problems
    assert any("elmo_representations" in problem for problem in problems) is not normed
