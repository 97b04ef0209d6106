"""`etymon distill`: a smaller model learns from a larger one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from etymon.errors import EtymonError
from etymon.runs.result import Pretrained
from etymon.verbs.options import Documents, IgnoreConfigKey, Resume, opens_models
from etymon.verbs.pretrain import present, started, texts

__all__ = ["distill", "present"]

COMMON = {
    *"vocabulary positions position_kind dim heads inner_dim activation dropout attention_dropout".split()
}
"""What a student of another family takes over from its teacher's shape, as far as it has it."""

OBJECTIVE = ("temperature", "soft", "hard", "cosine", "attention", "everywhere")
"""Options of the objective's own."""


@opens_models
def distill(
    teacher: Annotated[str | Path, "folder or hub id of the model to learn from: an encoder or a decoder"],
    *,
    data: Annotated[
        Sequence[str | Path] | Path | None,
        "text files, folders or globs, or a store prepared with its tokenizer",
    ] = None,
    family: Annotated[str | None, "the student's family, e.g. distilbert (the teacher's)"] = None,
    layers: Annotated[int | None, "the student's layers (half of the teacher's)"] = None,
    size: Annotated[str | None, "a size of the student's family, instead of the teacher's width"] = None,
    teacher_layers: Annotated[
        str | None, "the teacher's layers to begin with, e.g. 0,2,4,7,9,11 (evenly spread), or none"
    ] = None,
    out: Annotated[str | Path | None, "the run's folder (runs/distilled-FAMILY)"] = None,
    budget: Annotated[str | None, "how long: 90s, 10m, 2h; 5000steps, 20Mtokens, 3epochs (10m)"] = None,
    temperature: Annotated[float | None, "at which distributions are compared (2)"] = None,
    soft: Annotated[float | None, "weight of the teacher's distributions (5)"] = None,
    hard: Annotated[float | None, "weight of the text itself (2)"] = None,
    cosine: Annotated[float | None, "weight of the direction of hidden states (1)"] = None,
    attention: Annotated[
        float | None, "weight of the last layer's attention, as MiniLM learns it (0)"
    ] = None,
    everywhere: Annotated[
        bool | None, "an encoder's distributions at every token, not only at masked ones (yes)"
    ] = None,
    batch: Annotated[int | None, "samples a step (about 2,048 tokens unless told)"] = None,
    length: Annotated[int | None, "tokens a sample (up to 256, as the models allow)"] = None,
    documents: Documents = None,
    learning_rate: Annotated[float | None, "peak rate (the family's own)"] = None,
    seed: Annotated[int | None, "the same seed gives the same run (0)"] = None,
    ignore_config_key: IgnoreConfigKey = None,
    device: Annotated[str | None, "cpu or cuda (cuda where there is one)"] = None,
    workers: Annotated[int, "processes that prepare samples (0: a thread does)"] = 0,
    config: Annotated[Path | None, "a YAML file with any setting of a run; options beat it"] = None,
    set: Annotated[Sequence[str] | None, "override a setting by its dotted name: shape.dim=128"] = None,
    resume: Resume = False,
    dry_run: Annotated[bool, "try everything once, train nothing, and say what would be done"] = False,
    progress: Annotated[Literal["auto", "rich", "plain", "silent"], "how to show progress"] = "auto",
) -> Pretrained:
    """Train a smaller model to do what a larger one does.

    The student learns the teacher's distributions and hidden states beside the ordinary objective, with DistilBERT's
    weights, and begins with evenly spread layers of the teacher. It reads with the teacher's tokenizer. Where the widths
    differ, hidden states are compared through a projection that is trained along. Everything else is as in
    `etymon pretrain`, whose settings --config and --set take.
    """
    asked = dict(locals())
    from dataclasses import asdict, fields

    from etymon.config import read_yaml, strict
    from etymon.families import get_family
    from etymon.families.loading import read_shape
    from etymon.runs.run_file import RunFile, settings_of

    taught_family, taught = read_shape(teacher)
    if "encoder-decoder" in taught_family.capabilities:
        raise EtymonError(f"{taught_family.title} has an encoder and a decoder: it cannot be distilled")
    student = taught_family if family is None else get_family(family)
    told: dict[str, Any] = {} if config is None else read_yaml(config)
    shape: dict[str, Any] = {**told.get("shape", {}), **({} if layers is None else {"layers": layers})}
    if size is None and "size" not in told:
        known = {part.name for part in fields(student.shape)}
        # What a pointer or an adaptive softmax does cannot be learnt from distributions: a student has none.
        same = (
            known - {"pointer", "cutoffs", "divisor"}
            if student.name == taught_family.name
            else known & COMMON
        )
        taken = {name: value for name, value in asdict(taught).items() if name in same}
        shape = {**taken, "layers": max(1, taught.layers // 2), **shape}
        strict(student.shape, shape, f"the student's shape, after {teacher}")
    options = {name: asked[name] for name in OBJECTIVE if asked[name] is not None}
    given = settings_of(
        RunFile, asked, family=student.name, shape=shape, data=texts(data)[0],
        teacher_layers=None if teacher_layers is None else _numbers(teacher_layers),
        objective="distilled-causal" if "causal" in student.capabilities else "distilled-masked",
        options={**told.get("options", {}), **options},
    )  # fmt: skip
    return started(
        given, out=out or Path("runs") / f"distilled-{student.name}", config=config, set=set, resume=resume,
        dry_run=dry_run, progress=progress, device=device, workers=workers,
    )  # fmt: skip


def _numbers(text: str) -> list[int]:
    if text.strip() in ("", "none"):
        return []
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise EtymonError(f"teacher_layers are numbers such as 0,2,4, or none, not {text!r}") from None
