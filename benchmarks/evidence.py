"""What papers claim and what pocket models show: `python -m benchmarks.evidence` writes docs/evidence.md from `benchmarks/results/`.

Nothing is trained here: `make bench-encoders`, `bench-memory` and `bench-tasks` do that. A claim is a difference of two arms, seed by seed;
its interval is Student's over seeds, and the verdict follows from the interval alone.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy import stats

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "evidence.md"
PICTURE = ROOT / "docs" / "pictures" / "evidence.svg"
MARKS = ("<!-- claims: written by benchmarks/evidence.py -->", "<!-- /claims -->")


@dataclass(frozen=True)
class Claim:
    label: str
    """For the picture."""
    paper: str
    says: str
    measured: str
    """What the figures are, and between which arms."""
    results: str
    differences: Callable[[dict[str, Any]], list[float]]
    """Of the two arms, by seed, in points or percent; above 0 as the paper says."""
    note: str


@dataclass(frozen=True)
class Finding:
    claim: Claim
    differences: Sequence[float]
    operations: str

    @property
    def mean(self) -> float:
        return statistics.mean(self.differences)

    @property
    def half(self) -> float:
        """Half of the 95% interval of the mean."""
        count = len(self.differences)
        return float(stats.t.ppf(0.975, count - 1)) * statistics.stdev(self.differences) / math.sqrt(count)

    @property
    def verdict(self) -> str:
        if self.mean - self.half > 0:
            return "**seen**"
        return "**the opposite**" if self.mean + self.half < 0 else "not seen at this scale"


def pair(minuend: str, subtrahend: str) -> Callable[[dict[str, Any]], list[float]]:
    """Points between two arms of the encoders' experiment."""
    return lambda kept: list(kept["differences"][f"{minuend} - {subtrahend}"])


def cells(arm: str, other: str) -> Callable[[dict[str, Any]], list[float]]:
    """Points between two cells of the table of tasks."""

    def differences(kept: dict[str, Any]) -> list[float]:
        # The first seed has no number in its name.
        one, two = (
            [kept["cells"][f"{name}{seed}"]["value"] for seed in ("", "-1", "-2")] for name in (arm, other)
        )
        return [mine - theirs for mine, theirs in zip(one, two, strict=True)]

    return differences


def saved(arm: str, other: str) -> Callable[[dict[str, Any]], list[float]]:
    """Percent of the bits per byte of `other` that `arm` saves."""
    return lambda kept: [
        100 * (1 - mine / theirs) for mine, theirs in zip(kept[arm], kept[other], strict=True)
    ]


def probes(kept: dict[str, Any]) -> list[float]:
    def mean(scores: dict[str, Any]) -> float:
        return 100 * statistics.mean(task["best"] for task in scores.values())

    return [mean(one) - mean(other) for one, other in zip(kept["xlnet"], kept["xlnet-masked"], strict=True)]


def layers(kept: dict[str, Any]) -> list[float]:
    return [100 * (seed["en_ewt-ud"]["mix"] - seed["en_ewt-ud"]["last"]) for seed in kept["elmo"]]


PROBES = "mean accuracy of linear probes on frozen states, SST-2 and five of SentEval's tasks"
CLAIMS = (
    Claim(
        "ELECTRA - BERT", "ELECTRA (2020)", "At equal operations, telling replaced tokens beats predicting masked ones.",
        f"ELECTRA against BERT; {PROBES}", "encoders", pair("electra", "bert"),
        "The generator of a small run writes words that are wrong at a glance.",
    ),
    Claim(
        "new - fixed masks", "RoBERTa (2019)", "Masks that are drawn anew every epoch are as good as fixed ones, or better.",
        f"BERT, new masks against fixed ones; {PROBES}", "encoders", pair("bert", "bert-static"),
        "The text was not read once, so a fixed mask was not seen twice either.",
    ),
    Claim(
        "taught - alone", "DistilBERT (2019)", "A small model that is taught beats the same one trained alone.",
        f"the student, taught against alone; {PROBES}", "encoders", pair("student-distilled", "student"),
        "Alone, its operations buy it nearly three times as many steps. The teacher's own are not counted.",
    ),
    Claim(
        "memory - none (%)", "Transformer-XL (2019)", "Memory of earlier segments lowers the loss.",
        "with 128 remembered tokens against none, segments of 64, wikitext-2; percent of the bits per byte saved",
        "memory", saved("xl", "xl-forgetful"),
        "To read 128 tokens more costs 27% of the steps. At equal *steps* memory saves 0.6%.",
    ),
    Claim(
        "permuted - masked", "XLNet (2019)", "Predicting in drawn orders beats predicting masked tokens.",
        f"XLNet's body, permutation against masks; {PROBES}", "memory", probes,
        "Ahead in the order of words and in length; masked words know more of tense.",
    ),
    Claim(
        "mix - last layer", "ELMo (2018)", "A learned mix of layers beats the last layer.",
        "tags of UD-EWT by a probe, the mix against the last layer", "memory", layers,
        "Also when fine-tuned: 80.9 against 78.9, in every one of three seeds.",
    ),
    Claim(
        "GPT-1 - new weights", "GPT-1 (2018)", "Pretraining helps a classifier.",
        "SST-2 after 2.7 Tflop of fine-tuning, pretrained against new weights", "tasks",
        cells("gpt1-SST-2-pretrained", "gpt1-SST-2-scratch"),
        "Both are fine-tuned with language modelling beside the task, as published.",
    ),
    Claim(
        "with LM - without", "GPT-1 (2018)", "Language modelling beside the task helps its fine-tuning.",
        "SST-2, with it against without", "tasks",
        cells("gpt1-SST-2-pretrained", "gpt1-SST-2-pretrained-no-lm"),
        "It costs a third of the steps of so short a fine-tuning. The paper's gain is of large tasks and three epochs.",
    ),
    Claim(
        "BERT - GPT-2, SST-2", "BERT (2018)", "Reading in both directions beats reading in one: sentences.",
        "SST-2, BERT against GPT-2, both pretrained", "tasks",
        cells("bert-SST-2-pretrained", "gpt2-SST-2-pretrained"),
        "One pretraining each; seeds are of the fine-tuning.",
    ),
    Claim(
        "BERT - GPT-2, tags", "BERT (2018)", "The same: tags of words.",
        "UD-EWT, BERT against GPT-2, both pretrained", "tasks",
        cells("bert-UD-EWT-pretrained", "gpt2-UD-EWT-pretrained"),
        "With the recipe of that day masked models hardly left the frequencies of words; today's begin elsewhere.",
    ),
)  # fmt: skip


def find(claim: Claim) -> Finding:
    kept = json.loads((RESULTS / f"{claim.results}.json").read_text(encoding="utf-8"))["machines"][0]
    return Finding(claim, claim.differences(kept), kept["operations"].replace("Tflops", " Tflop"))


def table(findings: Sequence[Finding]) -> str:
    lines = [
        "| paper | it says | measured | difference, 95% of three seeds | verdict |",
        "|---|---|---|---|---|",
    ]
    for each in findings:
        interval = f"{each.mean:+.1f} ({each.mean - each.half:+.1f} to {each.mean + each.half:+.1f})"
        claim = each.claim
        lines.append(
            f"| {claim.paper} | {claim.says} | {claim.measured} ({each.operations}) | {interval} | {each.verdict}. {claim.note} |"
        )
    return "\n".join(lines)


def draw(findings: Sequence[Finding], path: Path) -> None:
    """Every claim's seeds and interval on one axis."""
    from matplotlib import pyplot

    with pyplot.rc_context({"svg.hashsalt": "etymon"}):
        figure, axes = pyplot.subplots(figsize=(8, 0.5 * len(findings) + 1.2))
        for row, each in enumerate(reversed(findings)):
            colour = {"**seen**": "#2a7f3f", "**the opposite**": "#b3362b"}.get(each.verdict, "#777777")
            axes.errorbar(each.mean, row, xerr=each.half, fmt="o", color=colour, capsize=4)
            axes.plot(each.differences, [row - 0.2] * len(each.differences), "|", color=colour, markersize=7)
        axes.set_yticks(range(len(findings)), [each.claim.label for each in reversed(findings)])
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set_xlabel("difference in points or percent; right of 0: as the paper says")
        # An interval of three seeds may be very wide; what matters is whether it holds 0.
        axes.set_xlim(-12, 12)
        figure.tight_layout()
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)


def page(findings: Sequence[Finding], text: str) -> str:
    """The page with its table written anew."""
    before, after = text.split(MARKS[0])[0], text.split(MARKS[1])[1]
    return f"{before}{MARKS[0]}\n\n{table(findings)}\n\n{MARKS[1]}{after}"


def main() -> None:
    findings = [find(claim) for claim in CLAIMS]
    PAGE.write_text(page(findings, PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    draw(findings, PICTURE)
    print(table(findings))


if __name__ == "__main__":
    main()
