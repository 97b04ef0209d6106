"""The model card: README.md with front matter for the Hugging Face hub."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from etymon.families.model import PREFIX_KEY, Model

CARD_TEMPLATE = Path(__file__).with_name("model_card.md")
# The hub's names for what a task head does.
PIPELINES = {
    "classification": "text-classification",
    "tagging": "token-classification",
    "span": "question-answering",
    "choice": "multiple-choice",
}


@dataclass(frozen=True)
class HubResult:
    """A figure of an evaluation that was kept."""

    dataset: str
    metric: str
    value: float
    interval: tuple[float, float] | None = None
    """Ends of the 95% interval."""

    def text(self) -> str:
        ends = (
            "" if self.interval is None else f" ({_format(self.interval[0])} to {_format(self.interval[1])})"
        )
        return f"{_format(self.value)}{ends}, {self.metric}"


@dataclass(frozen=True)
class HubStatements:
    """What the card of a repository says beyond that of a folder."""

    repository: str
    license: str
    revision: str = "main"
    language: Sequence[str] = ()
    datasets: Sequence[str] = ()
    run: Mapping[str, Any] = field(default_factory=dict)
    """Budget, precision, time and the like."""
    curves: str = ""
    """The name of a picture beside it; empty if there is none."""
    milestones: Sequence[tuple[str, str]] = ()
    """Revisions with the model as it was on the way, and what it had read by then."""
    results: Sequence[HubResult] = ()
    """Of evaluations after training."""


def model_card(
    model: Model,
    shape: Mapping[str, Any],
    architecture: str | None,
    history: Sequence[Mapping[str, Any]],
    base: str,
    hub: HubStatements | None = None,
) -> str:
    """README.md with front matter for the Hugging Face hub.

    `architecture` is the class that opens the same folder, or None where Transformers has none. Of adapters,
    `base` is the model that they belong to, and the class is its. Whatever is not known is said to be
    missing. With `hub`, it is the card of a repository, with evaluation results in the hub's own form.
    """
    from huggingface_hub import ModelCard, ModelCardData  # here: it costs a fifth of a second

    last: Mapping[str, Any] = history[-1] if history else {}

    def values_of(name: str) -> list[str] | None:
        """What the author stated, of all trainings."""
        return list(dict.fromkeys(value for entry in history for value in entry.get(name) or ())) or None

    pipeline = _pipeline(model)
    results = [] if hub is None else _eval_results(last, pipeline, hub)
    # The hub shows its button and its snippets for a library that it knows.
    library = "transformers" if hub is not None and architecture else "etymon"
    data = ModelCardData(
        library_name="peft" if base else library,
        tags=["etymon", model.family.name],
        license=(hub.license if hub is not None else "")
        or last.get("license")
        or "unknown",  # of this model, and not what an earlier one in its history had
        language=list(hub.language) if hub is not None and hub.language else values_of("language"),
        datasets=list(hub.datasets) if hub is not None and hub.datasets else values_of("datasets"),
        pipeline_tag=pipeline,
        base_model=base if base and hub is not None else None,
        model_name=hub.repository.rpartition("/")[2] if hub is not None and results else None,
        eval_results=results or None,
    )
    objective = _line(str(last.get("objective", "")))
    if model.carried.get(PREFIX_KEY):
        objective += " (it reads a prompt in both directions, which Transformers does not)"
    if model.predicts_shifted:
        objective += " (it predicts a masked token at the place before it, where Transformers does not look)"
    tokenizer = {}
    if model.tokenizer is not None:
        tokenizer = {"kind": model.tokenizer.kind, "size": model.tokenizer.size}
        growths = [
            f"from {entry['grown']['from']:,} to {entry['grown']['to']:,} tokens on {entry['data']}"
            for entry in history
            if "grown" in entry
        ]
        tokenizer |= {"grown": ", then ".join(growths)} if growths else {}
        if steps := model.tokenizer.normalise.steps:
            tokenizer["normalised first"] = f"{', '.join(steps)}; Transformers does not: give it such text"
    training = {k: v for k, v in (last.get("training") or {}).items() if v not in (None, [])}
    card = ModelCard.from_template(
        data,
        template_path=str(CARD_TEMPLATE),
        family=model.family,
        parameters=f"{model.parameter_count():,}",
        objective=objective,
        base=_line(base),
        quoted_base=json.dumps(base),
        architecture=architecture,
        data=str(last.get("data", "")).strip(),
        seen=_rows({k: v for k, v in last.get("seen", {}).items() if k != "ended"}),
        metrics=_rows(last.get("metrics")),
        results=[] if hub is None else _cells((result.dataset, result.text()) for result in hub.results),
        training=_rows(training),
        shape=_rows(shape),
        tokenizer=_rows(tokenizer),
        licence=(hub.license if hub is not None else "") or last.get("license"),
        hub=hub,
        quoted_place=json.dumps("path/to/this/folder") if hub is None else _quoted_place(hub),
        run=_rows({} if hub is None else hub.run),
        commands=[] if hub is None else _commands(model, hub),
    )
    return f"{str(card).rstrip()}\n"


def _pipeline(model: Model) -> str | None:
    """What the hub calls the model's use; None where it has no word for it, as for a discriminator."""
    if model.sentences.files:
        return "sentence-similarity"
    for head, name in PIPELINES.items():
        if head in model.head_names:
            return name
    if "vocabulary" not in model.head_names:
        return None if "replaced" in model.head_names else "feature-extraction"
    if model.encoder_decoder:
        return "text2text-generation"
    return "text-generation" if "causal" in model.capabilities else "fill-mask"


def _eval_results(last: Mapping[str, Any], pipeline: str | None, hub: HubStatements) -> list[Any]:
    """What was measured in the last training and after it, in the form that the hub shows beside a model."""
    from huggingface_hub import EvalResult

    data = _line(str(last.get("data") or "not stated"))
    datasets = [*hub.datasets, *(last.get("datasets") or ())]
    return [
        EvalResult(
            task_type=pipeline or "other",
            dataset_type=datasets[0] if datasets else "custom",
            dataset_name=data[:200],
            dataset_split="validation",
            metric_type=str(name),
            metric_name=str(name).replace("_", " "),
            metric_value=value,
        )
        for name, value in (last.get("metrics") or {}).items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    ] + [
        EvalResult(
            task_type=pipeline or "other",
            dataset_type="custom",
            dataset_name=_line(result.dataset)[:200],
            # Results of one data set and split are one entry there, whatever their names.
            dataset_config=_line(result.dataset)[:200],
            dataset_split="test",
            metric_type=result.metric.replace(" ", "_"),
            metric_name=result.metric,
            metric_value=result.value,
        )
        for result in hub.results
    ]


def _quoted_place(hub: HubStatements) -> str:
    """The arguments with which the model of this card is loaded."""
    branch = "" if hub.revision == "main" else f", revision={json.dumps(hub.revision)}"
    return json.dumps(hub.repository) + branch


def _commands(model: Model, hub: HubStatements) -> list[str]:
    """What to do with it on the command line."""
    name, heads = hub.repository, model.head_names
    commands = [f"etymon show {name}"]
    if "vocabulary" in heads and "state" in model.capabilities:
        commands.append(f'etymon generate {name} "..."')
    elif "vocabulary" in heads:
        commands.append(f'etymon fill {name} "... ___ ..."')
    if "replaced" in heads:
        commands.append(f'etymon replaced {name} "..."')
    if heads & PIPELINES.keys():
        commands.append(f"etymon predict {name} --data rows.csv")
    return commands


def _rows(table: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """The rows of a table, by name and value."""
    return _cells((str(name).replace("_", " "), _format(value)) for name, value in (table or {}).items())


def _cells(rows: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Rows of a table in Markdown, in which a bar would end a cell."""
    return [(_line(name).replace("|", "\\|"), _line(text).replace("|", "\\|")) for name, text in rows]


def _format(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(_format, value))
    if isinstance(value, Mapping):
        # What is empty was not asked for.
        parts = {name: part for name, part in value.items() if part is not None and part != []}
        return "; ".join(f"{str(name).replace('_', ' ')} {_format(part)}" for name, part in parts.items())
    return "none" if value is None else str(value)


def _line(text: str) -> str:
    return " ".join(text.split())
