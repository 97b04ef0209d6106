"""Comparing with what a case has stored. Every judgement is a line of text; none means that all is well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tests.oracle.case import Case
from tests.oracle.forward import Reading


@dataclass
class Verdict:
    """Problems, and the worst difference of every kind of value."""

    problems: list[str] = field(default_factory=list)
    worst: dict[str, float] = field(default_factory=dict)

    def note(self, kind: str, difference: float) -> None:
        self.worst[kind] = max(self.worst.get(kind, 0.0), difference)


def judge_outputs(case: Case, call: dict, reading: Reading, verdict: Verdict) -> None:
    """Every stored output of a call, and the agreement of the two layouts."""
    prefix = call["name"] + "."
    stored = {key: value for key, value in case.outputs.items() if key.startswith(prefix)}
    absent = dict.fromkeys(key for key in stored if key.removeprefix(prefix) not in reading.outputs)
    for name in call.get("fields", []):  # a field may be told and have nothing in it
        if not any(_is_part(key, name) for key in [*reading.outputs, *reading.empty]):
            absent.setdefault(prefix + name)
    verdict.problems += [f"{key}: not computed here" for key in absent]
    for key, expected in stored.items():
        if key in absent or case.depends_on_version("outputs", key):
            continue
        got = reading.outputs[key.removeprefix(prefix)]
        got = _with_split_rows(got.detach(), expected)
        if got.shape != expected.shape:
            verdict.problems.append(f"{key}: shape {tuple(got.shape)}, not {tuple(expected.shape)}")
            continue
        _close(case, "outputs", key, got, expected, verdict, case.compared(key, tuple(expected.shape)))
    for name, ragged, rectangle in reading.pairs:
        if ragged.shape != rectangle.shape:
            verdict.problems.append(
                f"{prefix}{name}: ragged rows give {tuple(ragged.shape)}, not {tuple(rectangle.shape)}"
            )
        else:
            _close(case, "ragged", f"{prefix}{name} of ragged rows", ragged, rectangle.detach(), verdict)


def judge_gradients(
    case: Case, gradients: Mapping[str, Tensor], copies: Mapping[str, str], verdict: Verdict
) -> None:
    """All gradients, in the reference's names and layout, by their fingerprints.

    `copies` are parameters the reference keeps twice and uses once (copy -> source): here they are one, and the
    gradient counts for whichever of the two was used.
    """
    limit = case.tolerance("grad_rel")
    groups = {name: group for group in case.tied for name in group}
    doubled = set(copies) | set(copies.values())
    known: set[str] = set()
    for name, expected in case.gradients.items():
        spellings = [name, *groups.get(name, [])]
        known.update(spellings)
        got = next((gradients[spelling] for spelling in spellings if spelling in gradients), None)
        if case.depends_on_version("grads", name):
            continue
        if expected is None:
            if got is not None and name not in doubled and not float(got.norm()) <= limit:
                verdict.problems.append(
                    f"gradient of {name}: the reference never uses it, here its norm is {got.norm():.3g}"
                )
        elif got is None:
            verdict.problems.append(f"gradient of {name}: there is no such parameter here")
        elif list(got.shape) != expected["shape"]:
            verdict.problems.append(f"gradient of {name}: shape {list(got.shape)}, not {expected['shape']}")
        else:
            for kind, value in fingerprint(got).items():
                difference = abs(value - expected[kind])
                allowed = limit * (1.0 + expected["norm"])
                verdict.note("gradients", difference / (1.0 + expected["norm"]))
                if not difference <= allowed:
                    verdict.problems.append(
                        f"gradient of {name}: {kind} {value:.6g}, not {expected[kind]:.6g}"
                    )
    for name in gradients:
        if name not in known:
            verdict.problems.append(f"gradient of {name}: the reference has no such parameter")


def judge_sequences(
    case: Case,
    name: str,
    prompt: int,
    found: list[tuple[list[int], float]],
    verdict: Verdict,
) -> None:
    """Generated ids, exactly, up to the stored lengths; `prompt` is the width of what came before them."""
    if case.depends_on_version("generate", name):
        return
    sequences, lengths = case.outputs[f"gen.{name}.sequences"], case.outputs[f"gen.{name}.lengths"].tolist()
    scores = case.outputs.get(f"gen.{name}.sequences_scores")
    if len(found) != len(sequences):
        verdict.problems.append(f"gen.{name}: {len(found)} sequences, not {len(sequences)}")
        return
    for row, (ids, score) in enumerate(found):
        expected = sequences[row, prompt : lengths[row]].tolist()
        if ids != expected:
            verdict.problems.append(f"gen.{name} row {row}: {ids}, not {expected}")
        if scores is not None:
            difference = abs(score - float(scores[row]))
            verdict.note("scores", difference)
            if not difference <= SCORE_TOLERANCE:
                verdict.problems.append(
                    f"gen.{name} row {row}: score {score:.6g}, not {float(scores[row]):.6g}"
                )


SCORE_TOLERANCE = 1e-4


def fingerprint(gradient: Tensor) -> dict[str, float]:
    """The norm of a gradient and its projection on a fixed wave, in float64."""
    flat = gradient.double().reshape(-1)
    wave = torch.cos(torch.arange(len(flat), dtype=torch.float64) * 0.37 + 1.0)
    return {"norm": float(flat.norm()), "proj": float((flat * wave).sum())}


def _close(
    case: Case,
    kind: str,
    key: str,
    got: Tensor,
    expected: Tensor,
    verdict: Verdict,
    compared: Tensor | None = None,
) -> None:
    difference = (got.double() - expected.double()).abs()
    allowed = case.tolerance("outputs_atol") + case.tolerance("outputs_rtol") * expected.double().abs()
    bad = ~(difference <= allowed)  # so that NaN is bad
    if compared is not None:
        bad, difference = bad & compared, difference[compared]
    if difference.numel():
        verdict.note(kind, float(difference.max()))
    if bad.any():
        verdict.problems.append(
            f"{key}: {int(bad.sum())} of {bad.numel()} entries are off, by up to {float(difference.max()):.2e}"
        )


def _is_part(key: str, field_name: str) -> bool:
    return key == field_name or key.startswith(field_name + ".")


def _with_split_rows(got: Tensor, expected: Tensor) -> Tensor:
    """Rows of several choices are flattened or not, as the reference pleases; the rest of the shape must agree."""
    same_cells = got.dim() >= 2 and got.shape[-2:] == expected.shape[-2:]
    return got.reshape(expected.shape) if same_cells and got.numel() == expected.numel() else got
