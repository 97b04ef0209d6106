"""`etymon distill`: a smaller model learns from a larger one."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from etymon.errors import EtymonError
from etymon.runs.result import Pretrained
from etymon.settings import Files, PathText, argument, group, option, settings
from etymon.settings.distillation import EncoderDistillationSettings
from etymon.settings.training import PretrainSettings, TrainOptions
from etymon.verbs.pretrain import present as present
from etymon.verbs.pretrain import start_run
from etymon.verbs.verb import verb

COMMON = {
    *"vocabulary positions position_kind dim heads inner_dim activation dropout attention_dropout".split()
}
"""What a student of another family takes over from its teacher's shape, as far as it has it."""


@settings
class DistillOptions(TrainOptions):
    teacher: str | Path = argument("folder or hub id of the model to learn from: an encoder or a decoder")
    data: Files = option((), "text files, folders or globs, or a store prepared with its tokenizer")
    family: str | None = option(None, "the student's family, e.g. distilbert (the teacher's)")
    layers: int | None = option(None, "the student's layers (half of the teacher's)")
    size: str | None = option(None, "size of the student, from its family's sizes (the teacher's width)")
    out: PathText = option(None, "the run's folder (runs/distilled-FAMILY)")
    objective: dict[str, Any] = group(EncoderDistillationSettings)
    run: dict[str, Any] = group(
        PretrainSettings,
        "teacher_layers budget batch length documents column encoding errors max_replaced learning_rate "
        "precision seed",
    )


@verb(DistillOptions)
def distill(options: DistillOptions) -> Pretrained:
    """The student learns the teacher's predictions and hidden states beside the ordinary objective, weighted
    as in DistilBERT. It starts from evenly spread layers of the teacher, and reads with the teacher's
    tokenizer. Where the widths differ, hidden states are compared through a projection that is learnt too.
    Everything else is as in `etymon pretrain`, whose settings --config and --set take.
    """
    from etymon.config import read_yaml, strict
    from etymon.families import get_family
    from etymon.families.loading import read_shape

    teacher_family, teacher_shape = read_shape(options.teacher)
    if "encoder-decoder" in teacher_family.capabilities:
        raise EtymonError(f"{teacher_family.title} has an encoder and a decoder: it cannot be distilled")
    student = teacher_family if options.family is None else get_family(options.family)
    config: dict[str, Any] = {} if options.config is None else read_yaml(options.config)
    shape: dict[str, Any] = dict(config.get("shape", {}))
    if options.layers is not None:
        shape["layers"] = options.layers
    if options.size is None and "size" not in config:
        names = {part.name for part in fields(student.shape)}
        # What a pointer or an adaptive softmax does cannot be learnt from distributions: a student has none.
        shared = names - {"pointer", "cutoffs", "divisor"}
        if student.name != teacher_family.name:
            shared = names & COMMON
        inherited = {name: value for name, value in asdict(teacher_shape).items() if name in shared}
        shape = {**inherited, "layers": max(1, teacher_shape.layers // 2), **shape}
        # Refused here, before the weights of a large teacher are opened.
        strict(student.shape, shape, f"the student's shape, after {options.teacher}")
    given = options.run | {
        "family": student.name,
        "size": options.size,
        "shape": shape,
        "teacher": options.teacher,
        "data": list(options.data) or None,
        "objective": "distilled-causal" if "causal" in student.capabilities else "distilled-masked",
        # Merged by hand: of a whole section, the option would replace all of the file's.
        "options": config.get("options", {}) | options.objective,
    }
    return start_run(options, given, None, options.out or Path("runs") / f"distilled-{student.name}")
