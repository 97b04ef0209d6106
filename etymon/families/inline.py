"""What a notebook shows of a model."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from etymon.report.inline import render_inline
from etymon.report.page import Figures, ReportTable

if TYPE_CHECKING:
    from etymon.families.model import Model


def model_html(model: Model) -> str:
    """Its family, size, shape and heads, and what it was trained by."""
    figures = {"family": model.family.title, "parameters": f"{model.parameter_count():,}"}
    if model.tokenizer is not None:
        figures["tokens of the vocabulary"] = f"{model.tokenizer.size:,}"
    rows = [[name, str(value)] for name, value in asdict(model.shape).items()]
    rows.append(["heads", ", ".join(model.heads) or "none"])
    rows += [["trained by", str(entry.get("objective", "?"))] for entry in model.history]
    return render_inline([Figures(figures), ReportTable(["shape", ""], rows)])
