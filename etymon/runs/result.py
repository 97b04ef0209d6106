"""What a run returns to its caller."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from etymon.report.inline import Inline
from etymon.report.page import Code, Figures, Paragraph, ReportSamples, ReportTable, score_table
from etymon.training.state import RunFolder

if TYPE_CHECKING:
    from etymon.families.model import Model
    from etymon.report.page import Cell, Section
    from etymon.tasks.scores import MetricScore


@dataclass
class Pretrained(Inline):
    """The trained model, its folder and its last validation."""

    folder: Path
    model_folder: Path
    report: Path | None
    model: Model
    metrics: dict[str, float]
    steps: int
    stopped: bool
    command: str = ""
    """Resumes the run, when it was stopped."""
    samples: list[tuple[int, str]] = field(default_factory=list)
    """(step, text) of what the model wrote or answered at the validations."""
    references: dict[str, float] = field(default_factory=dict)
    """Bits per byte that others need for the same text: a compressor (xz)."""
    plan: dict[str, str] = field(default_factory=dict)
    """Of a dry run: what would be done, by name."""
    quiet: bool = False
    """Of several processes, only the first presents its result."""
    signal: int | None = None
    """The signal that stopped it."""

    @property
    def exit_code(self) -> int:
        """The command's exit code: 128 + signal, as of a shell (130: Ctrl-C, 143: SIGTERM), or 0."""
        # So that scripts and schedulers see that it was stopped and can be resumed.
        return 128 + self.signal if self.stopped and self.signal else 0

    @property
    def samples_title(self) -> str:
        return "What it writes"

    def label_metric(self, name: str) -> str:
        """Returns a metric's name for people: parts of the objective's loss, such as `masked`, are "loss (masked)"."""
        label = name.replace("_", " ")
        is_figure = any(word in label for word in ("loss", "bits", "accuracy", "perplexity"))
        return label if is_figure else f"loss ({label})"

    def inline_sections(self) -> Iterator[Section]:
        from etymon.runs.report import learning_curve

        if self.plan:
            yield ReportTable(["part", "what would be done"], list(self.plan.items()))
            return
        figures: dict[str, Cell] = {"steps": f"{self.steps:,}"}
        figures["parameters"] = f"{self.model.parameter_count():,}"
        figures |= {f"validation {self.label_metric(name)}": value for name, value in self.metrics.items()}
        figures |= {f"{name} on the same bytes": value for name, value in self.references.items()}
        yield Figures(figures)
        if self.folder.is_dir():
            yield learning_curve(RunFolder(self.folder).metrics())
        if self.samples:
            yield ReportSamples(self.samples[-1:], title=self.samples_title)
        if self.stopped:
            yield Code(self.command, title="Go on")
        else:
            yield Paragraph(f"model {self.model_folder}, report {self.report}")


@dataclass
class Finetuned(Pretrained):
    """The same of a fine-tuning run; `metrics` are those of the kept model over all validation rows."""

    best_step: int | None = None
    """Of the model that was kept; None if no rows were held out."""
    scores: dict[str, MetricScore] = field(default_factory=dict)
    """By metric, with their confidence intervals."""
    beside: dict[str, dict[str, MetricScore]] = field(default_factory=dict)
    """The same scores of the baselines, and of the model on texts with typos."""
    seeds: dict[int, dict[str, float]] = field(default_factory=dict)
    """With several seeds, the metrics of each."""

    @property
    def samples_title(self) -> str:
        return "What it answers (and the right answer)"

    def label_metric(self, name: str) -> str:
        return name.replace("_", " ")

    def inline_sections(self) -> Iterator[Section]:
        if self.scores:
            yield score_table({"this model": self.scores, **self.beside})
        yield from super().inline_sections()
