"""The members of a run's training unit: the model, who trains beside it, who teaches it; and their folders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from etymon.errors import EtymonError
from etymon.families.family import Family
from etymon.families.loading import load, model_folder
from etymon.families.model import Model
from etymon.families.saving import save
from etymon.families.surgery import copy_layers, generator_for, share_embeddings, spread_layers
from etymon.nn.initialise import initialise, normal
from etymon.objectives.objective import Objective, check_fit
from etymon.runs.run_file import RunFile
from etymon.runs.start import grown
from etymon.training.unit import TrainingUnit


def member_of(objectives: Sequence[Objective | type[Objective]]) -> str:
    """What the trained model is called: `model`, unless an objective has a name for it."""
    return next((each.folder for each in objectives if each.folder != "model"), "model")


def opened_teacher(
    file: RunFile, family: Family, objectives: Sequence[type[Objective]], device: Any
) -> Model | None:
    """The run's teacher, if it has one; what cannot teach is refused with the reason."""
    wanting = next((each.name for each in objectives if each.needs_teacher), None)
    if file.teacher is None:
        if wanting is not None:
            raise EtymonError(f"the objective {wanting!r} needs a teacher: use `etymon distill TEACHER`")
        return None
    if wanting is None:
        raise EtymonError(f"no objective of this run learns from a teacher: leave {file.teacher} out")
    teacher = load(file.teacher, device=device, heads=("vocabulary",))
    if teacher.new_heads:
        raise EtymonError(f"{file.teacher} has no vocabulary head, so it has no distributions to teach")
    if teacher.tokenizer is None:
        raise EtymonError(f"{file.teacher} has no tokenizer, which its student would read the text with")
    one, other = (each.framing for each in (teacher.family, family))
    if (one.single, one.pair) != (other.single, other.pair):
        raise EtymonError(
            f"{teacher.family.title} puts other tokens around a text than {family.title}: "
            f"a student of the family {teacher.family.name} reads as it does"
        )
    for each in objectives:
        check_fit(each, teacher.family)
    return teacher.requires_grad_(False)


def begun(model: Model, teacher: Model, file: RunFile, tell: Callable[[str], None]) -> None:
    """The student begins as a part of its teacher where their widths allow it and nobody said otherwise."""
    layers = file.teacher_layers
    if layers is None and model.shape.dim != teacher.shape.dim:
        tell("the student is of another width than its teacher: it begins anew")
        return
    depths = (len(each.body.stack.schedule) for each in (model, teacher))
    chosen = spread_layers(*depths) if layers is None else list(layers)
    if chosen:
        anew = copy_layers(model, teacher, chosen)
        tell(f"the student begins with layers {', '.join(map(str, chosen))} of its teacher")
        if anew:
            tell(f"what the teacher does not have begins anew: {', '.join(anew)}")


def assembled(
    model: Model,
    objectives: Sequence[Objective],
    file: RunFile,
    checkpoint: Path | None,
    teacher: Model | None = None,
) -> TrainingUnit:
    """The unit of a run: built anew, or as a checkpoint holds it."""
    companions: dict[str, nn.Module] = {}
    bridges: dict[str, nn.Module] = {}
    attended = any(getattr(getattr(each, "teaching", None), "attention", 0) for each in objectives)
    if teacher is not None and attended and teacher.shape.heads != model.shape.heads:
        raise EtymonError(
            f"attention is followed head by head, and the teacher has {teacher.shape.heads} of them, the student "
            f"{model.shape.heads}: leave --attention out, or give the student as many"
        )
    if teacher is not None and teacher.shape.dim != model.shape.dim:
        # Hidden states of different widths are compared through a map that is trained with the student.
        projection = nn.utils.skip_init(nn.Linear, model.shape.dim, teacher.shape.dim, bias=False)
        initialise(projection, [("*", normal(model.shape.dim**-0.5))], file.seed)
        bridges["projection"] = projection
    if any("generator" in objective.companions for objective in objectives):
        place = checkpoint or (None if file.start is None else model_folder(file.start).parent)
        if place is not None and (place / "generator" / "config.json").is_file():
            generator = load(place / "generator")
            assert model.tokenizer is not None
            # Whose words it shares, with that it grows.
            larger = grown(generator, model.tokenizer)
            generator = generator if larger is None else larger[0]
            generator.tokenizer = model.tokenizer
            companions["generator"] = share_embeddings(generator, model)
        else:
            companions["generator"] = generator_for(model, file.generator, file.seed)
    model.reads_prefix = "prefix" in objectives[-1].requires
    return TrainingUnit(model, objectives[0], companions, bridges, teacher)


def save_members(
    unit: TrainingUnit, member: str, folder: Path, *, history: Sequence[Mapping[str, Any]], fold: bool = True
) -> None:
    """One model folder a member that is one."""
    for name, model in members(unit, member).items():
        save(model, folder / name, history=history, fold=fold)


def members(unit: TrainingUnit, member: str) -> dict[str, Model]:
    """The models of a unit by the names of their folders."""
    parts = {member: unit.model, **unit.companions}
    return {name: part for name, part in parts.items() if isinstance(part, Model)}
