"""The report of a training run: curve, yardstick, samples."""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from etymon.families.model import Model
from etymon.report.page import Code, Curve, Figures, Paragraph, ReportSamples, Section, write_report
from etymon.text.store import Split, TokenStore
from etymon.text.tokenizer import Tokenizer
from etymon.training.progress import format_bytes, format_seconds
from etymon.training.state import VALIDATION_PREFIX, RunFolder

XZ_LIMIT = 32 << 20
"""Bytes of text up to which xz is run as a yardstick: beyond, it would take longer than it is worth."""
SAMPLED = 60
"""Tokens of a text that the model writes to show itself."""
_MEASURED: dict[str, float] = {}
"""By what a store holds: the runs of a sweep share one."""


def sample_text(model: Model, seed: int) -> str | None:
    """A short text that the model writes out of nothing, always with the same draws; None if it cannot write."""
    if "causal" not in model.capabilities or model.tokenizer is None or "vocabulary" not in model.heads:
        return None
    from etymon.generation import DecodingSettings
    from etymon.generation.text import generate_texts

    room = min(SAMPLED, (model.positions or SAMPLED) - 1)
    settings = DecodingSettings(max_new_tokens=room, sample=True, temperature=0.8, top_k=40, seed=seed)
    return generate_texts(model, [""], settings)[0].text


def xz_bits_per_byte(store: TokenStore, tokenizer: Tokenizer) -> float | None:
    """What xz needs for the validation text when it has seen the training text: xz(both) - xz(training)."""
    total = int(store.train.bytes.sum() + store.validation.bytes.sum())
    if tokenizer.byte_lengths is None or total > XZ_LIMIT or not len(store.validation):
        return None
    if (key := json.dumps(store.description, sort_keys=True)) in _MEASURED:
        return _MEASURED[key]
    training, validation = _text(store.train, tokenizer), _text(store.validation, tokenizer)
    strongest = 9 | lzma.PRESET_EXTREME
    extra = len(lzma.compress(training + validation, preset=strongest)) - len(
        lzma.compress(training, preset=strongest)
    )
    _MEASURED[key] = 8 * extra / len(validation)
    return _MEASURED[key]


def _text(split: Split, tokenizer: Tokenizer) -> bytes:
    return "\n".join(tokenizer.decode(split.document(i)) for i in range(len(split))).encode()


def write_run_report(
    path: Path,
    model: Model,
    store: TokenStore | None,
    run: RunFolder,
    samples: Sequence[tuple[int, str]],
    *,
    figures: Mapping[str, str] | None = None,
    more: Sequence[Section] = (),
    command: str | None = None,
    subtitle: str = "",
    shown: str = "What it writes, as it learns",
) -> None:
    """Writes the page out of the run's own metrics; with a `store` also what xz makes of its text, which costs a run of xz.
    `figures` come first, `more` after the curve, `shown` is the heading of the samples, and `command` is what to try."""
    records = run.metrics()
    trained = [record for record in records if "tokens_per_second" in record]
    likelihood = any("bits_per_byte" in record for record in trained)
    unit = "bits_per_byte" if likelihood else "bits_per_target"
    label = unit.replace("_", " ")
    judged = [record for record in records if VALIDATION_PREFIX + unit in record]
    curve = {"training": [(record["step"], record[unit]) for record in trained if unit in record]}
    if judged:
        curve["validation"] = [(record["step"], record[VALIDATION_PREFIX + unit]) for record in judged]
    references = {}
    if store is not None and likelihood and model.tokenizer is not None:
        xz = xz_bits_per_byte(store, model.tokenizer)
        references = {} if xz is None else {"xz": xz}
    figures = {**(figures or {}), "parameters": f"{model.parameter_count():,}"}
    if judged:
        figures.setdefault(f"validation {label}", f"{judged[-1][VALIDATION_PREFIX + unit]:.3f}")
        if (by_character := judged[-1].get(f"{VALIDATION_PREFIX}bits_per_character")) is not None:
            figures["validation bits per character"] = f"{by_character:.3f}"
    if references:
        figures["xz on the same bytes"] = f"{references['xz']:.3f}"
    if trained:
        speeds = sorted(record["tokens_per_second"] for record in trained)
        shares = sorted(record["utilisation"] for record in trained)
        figures |= {
            "steps": f"{trained[-1]['step']:,}",
            "tokens seen": f"{trained[-1]['tokens']:,}",
            **{
                name.replace("_", " "): f"{trained[-1][name]:,}"
                for name in ("words", "words_read")
                if name in trained[-1]
            },
            "tokens a second": f"{speeds[len(speeds) // 2]:,.0f}",
            "share of the machine's peak": f"{shares[len(shares) // 2]:.0%}",
            "peak memory": format_bytes(max(record["memory"] for record in trained)),
            "time": format_seconds(trained[-1]["seconds"]),
        }
    sections: list[Section] = [Figures(figures)]
    caption = (
        "The yardstick is xz: xz(training + validation) - xz(training), in bits per byte of validation text."
    )
    sections.append(
        Curve(curve, references, y_label=label, title="Learning", caption=caption if references else "")
    )
    sections += more
    if samples:
        few = samples if len(samples) <= 6 else [samples[round(i * (len(samples) - 1) / 5)] for i in range(6)]
        sections.append(ReportSamples(few, title=shown))
    shape = ", ".join(f"{name} {value}" for name, value in asdict(model.shape).items())
    sections.append(Paragraph(f"{model.family.title}: {shape}.", title="Shape"))
    if command is None and "causal" in model.capabilities:
        command = f'etymon generate {path.parent} "The" --temperature 0.8'
    if command is not None:
        sections.append(Code(command, title="Try it"))
    write_report(path, f"{model.family.title}, trained by etymon", sections, subtitle)
