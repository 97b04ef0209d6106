"""The report of a run: its curves, figures and samples."""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from etymon.families.model import Model
from etymon.report.page import (
    Code,
    Curve,
    Figures,
    Paragraph,
    ReportSamples,
    ReportTable,
    Section,
    write_report,
)
from etymon.text.languages import LanguageStore
from etymon.text.store import Split, TokenStore
from etymon.text.tokenizer import Tokenizer
from etymon.training.progress import format_bytes, format_seconds
from etymon.training.state import VALIDATION_PREFIX

XZ_LIMIT = 32 << 20
"""Bytes of text up to which xz is run for comparison: beyond, it would take longer than it is worth."""
Records = Sequence[Mapping[str, Any]]
"""The lines of a run's metrics."""

_XZ_BITS: dict[str, float] = {}
"""By the description of a store: the runs of a sweep share one."""


def xz_bits_per_byte(store: TokenStore, tokenizer: Tokenizer) -> float | None:
    """Returns the bits per byte that xz needs for the validation text when it has seen the training text:
    xz(both) - xz(training). None if the text is too long, or its tokens do not tell their bytes."""
    total = int(store.train.bytes.sum() + store.validation.bytes.sum())
    if tokenizer.byte_lengths is None or total > XZ_LIMIT or not len(store.validation):
        return None
    if (key := json.dumps(store.description, sort_keys=True)) not in _XZ_BITS:
        _XZ_BITS[key] = xz_bits(_text(store.train, tokenizer), _text(store.validation, tokenizer))
    return _XZ_BITS[key]


def xz_bits(training: bytes, text: bytes) -> float:
    """Returns the bits per byte that xz needs for a text when it has seen the training text."""
    # xz, too, may learn from the training text: what it needs beyond that compares with a model's bits.
    # The strongest setting: its window of 64 MB sees all of a text up to the limit.
    strongest = 9 | lzma.PRESET_EXTREME
    both, alone = (len(lzma.compress(each, preset=strongest)) for each in (training + text, training))
    return 8 * (both - alone) / len(text)


def _text(split: Split, tokenizer: Tokenizer) -> bytes:
    return "\n".join(tokenizer.decode(split.document(i)) for i in range(len(split))).encode()


def size_table(sizing: Mapping[str, Any]) -> Section:
    """Returns what `--size auto` chose between."""
    rows = [
        (
            f"{each['dim']} wide, {each['layers']} layers{' (chosen)' if each['chosen'] else ''}",
            f"{each['parameters']:,}",
            f"{each['tokens']:,}",
            f"{each['expected_loss']:.3f}",
        )
        for each in sizing["candidates"]
    ]
    header = ["shape", "parameters beside words", "tokens it would read", "loss expected"]
    relative = ", a relative" if sizing["borrowed"] else ""
    return ReportTable(header, rows, title=f"The size, by the curve of {sizing['curve']}{relative}")


def language_table(
    store: LanguageStore,
    tokenizer: Tokenizer,
    quotas: Mapping[str, Mapping[str, Any]],
    metrics: Mapping[str, Any],
) -> Section:
    """Returns what every language has of the text, the samples and the vocabulary, and its validation."""
    counts = {code: part.train.token_counts for code, part in store.stores.items()}
    used = {
        code: set(np.flatnonzero(count).tolist()) - tokenizer.special_ids for code, count in counts.items()
    }
    rows = []
    for code, part in store.stores.items():
        others = set().union(*(tokens for other, tokens in used.items() if other != code))
        quota = quotas.get(code, {})
        train = part.summary.train
        unit = next(
            (name for name in ("bits_per_byte", "bits_per_target") if f"{code}/{name}" in metrics), None
        )
        rows.append(
            (
                code,
                format_bytes(train.bytes),
                f"{train.tokens:,}",
                f"{train.bytes / max(1, train.tokens):.2f}",
                f"{quota.get('share', 0):.1%}",
                f"{quota.get('passes', 0):.2f}",
                f"{len(used[code]):,}",
                f"{len(used[code] - others):,}",
                "" if unit is None else f"{metrics[f'{code}/{unit}']:.3f} {unit.replace('_', ' ')}",
            )
        )
    header = ["language", "text", "tokens", "bytes a token", "share of the samples", "passes an epoch"]
    header += ["tokens of the vocabulary that it uses", "that no other uses", "validation"]
    return ReportTable(header, rows, title="Languages")


@dataclass
class ReportParts:
    """What a report says beside what every run has."""

    store: TokenStore | None = None
    """A text to compare with xz, which costs a run of it."""
    figures: Mapping[str, str] = field(default_factory=dict)
    """Come first."""
    sections: Sequence[Section] = ()
    """Come after the training curve."""
    samples_title: str = "What it writes, as it learns"
    command: str | None = None
    """A command to try the model with; None: `etymon generate`, if the model can."""
    subtitle: str = ""


def compare_with_xz(store: TokenStore | None, model: Model, records: Records) -> dict[str, float]:
    """Returns what xz needs for the validation text, by its name; nothing where bits per byte were not measured."""
    if store is None or model.tokenizer is None or not _is_likelihood(records):
        return {}
    bits = xz_bits_per_byte(store, model.tokenizer)
    return {} if bits is None else {"xz": bits}


def _is_likelihood(records: Records) -> bool:
    return any("bits_per_byte" in record for record in records if "tokens_per_second" in record)


def learning_curve(
    records: Records, references: Mapping[str, float] | None = None, caption: str = ""
) -> Curve:
    """Training and validation by steps, in bits per byte, or per target where the loss is no likelihood."""
    trained = [record for record in records if "tokens_per_second" in record]
    unit = "bits_per_byte" if any("bits_per_byte" in record for record in trained) else "bits_per_target"
    series = {"training": [(record["step"], record[unit]) for record in trained if unit in record]}
    name = VALIDATION_PREFIX + unit
    if validated := [(record["step"], record[name]) for record in records if name in record]:
        series["validation"] = validated
    label = unit.replace("_", " ")
    return Curve(series, references or {}, y_label=label, title="Learning", caption=caption)


def write_run_report(
    path: Path,
    model: Model,
    records: Records,
    samples: Sequence[tuple[int, str]],
    parts: ReportParts,
    references: Mapping[str, float],
) -> None:
    """Writes the page of a run from the `records` of its metrics and (step, text) `samples`; `references` are
    what others need for the same text (`compare_with_xz`)."""
    trained = [record for record in records if "tokens_per_second" in record]
    is_likelihood = _is_likelihood(records)
    unit = "bits_per_byte" if is_likelihood else "bits_per_target"
    label = unit.replace("_", " ")
    validated = [record for record in records if VALIDATION_PREFIX + unit in record]
    caption = ""
    if references:
        caption = (
            "The dashed line is what xz, a compressor, needs for the validation text when it has read the "
            "training text. Lower is better."
        )
    figures = {**parts.figures, "parameters": f"{model.parameter_count():,}"}
    if validated:
        # A task has scored all rows in the end, which counts more than the last validation of a few.
        figures.setdefault(f"validation {label}", f"{validated[-1][VALIDATION_PREFIX + unit]:.3f}")
        if (by_character := validated[-1].get(f"{VALIDATION_PREFIX}bits_per_character")) is not None:
            figures["validation bits per character"] = f"{by_character:.3f}"
    if references:
        figures["xz on the same bytes"] = f"{references['xz']:.3f}"
    if trained:
        last = trained[-1]
        # Medians: the first steps are slow, and a busy moment is no speed.
        speeds = sorted(record["tokens_per_second"] for record in trained)
        shares = sorted(record["utilisation"] for record in trained)
        figures |= {
            "steps": f"{last['step']:,}",
            "tokens seen": f"{last['tokens']:,}",
            **{name.replace("_", " "): f"{last[name]:,}" for name in ("words", "words_read") if name in last},
            "tokens a second": f"{speeds[len(speeds) // 2]:,.0f}",
            "share of the machine's peak": f"{shares[len(shares) // 2]:.0%}",
            "peak memory": format_bytes(max(record["memory"] for record in trained)),
            "time": format_seconds(last["seconds"]),
        }
    sections: list[Section] = [
        Figures(figures),
        learning_curve(records, references, caption),
        *parts.sections,
    ]
    if samples:
        # From the first to the last, evenly.
        few = samples if len(samples) <= 6 else [samples[round(i * (len(samples) - 1) / 5)] for i in range(6)]
        sections.append(ReportSamples(few, title=parts.samples_title))
    shape = ", ".join(
        f"{name} {value}" for name, value in asdict(model.shape).items() if value not in (None, ())
    )
    sections.append(Paragraph(f"{model.family.title}: {shape}.", title="Shape"))
    command = parts.command
    if command is None and "causal" in model.capabilities:
        command = f'etymon generate {path.parent} "The" --temperature 0.8'
    if command is not None:
        sections.append(Code(command, title="Try it"))
    write_report(path, f"{model.family.title}, trained by etymon", sections, parts.subtitle)
