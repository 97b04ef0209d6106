"""The model of a run: which one it is, where its weights come from, and what is trained beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from etymon.checkpoints.settings import pass_over
from etymon.checkpoints.sharded import is_sharded
from etymon.errors import EtymonError
from etymon.families import get_family
from etymon.families.family import Family, Recipe
from etymon.families.loading import build, load, model_folder, read_history, read_shape, shape_of
from etymon.families.model import Model
from etymon.families.saving import save
from etymon.families.surgery import (
    copy_layers,
    generator_for,
    grow,
    replace_words,
    share_embeddings,
    spread_layers,
)
from etymon.nn.initialise import initialise, normal
from etymon.objectives.objective import Objective, check_fit
from etymon.runs.run_file import CommonFile, RunFile
from etymon.runs.task_file import TaskFile
from etymon.text.tokenizer import Tokenizer
from etymon.text.tokenizer_growing import extends, require_room, spellings, with_roles
from etymon.text.tokenizer_transfer import transfer_tokens
from etymon.training.checkpoint_writer import restore_weights
from etymon.training.shards import copy_values, is_cut
from etymon.training.unit import TrainingUnit

Note = Callable[[str], None]


@dataclass
class ModelPlan:
    """Which model a run trains and by which recipe, decided before anything is built."""

    family: Family
    size: str | None
    shape: Any
    """But for its vocabulary, which the text decides where no tokenizer is given."""
    recipe: Recipe
    vocabulary: int
    """Tokens of a tokenizer that has to be trained."""
    title: str
    heads: frozenset[str] = frozenset()
    labels: Sequence[str] = ()
    folder: str = "model"
    """Its name in the run's folder and in checkpoints."""
    fields: dict[str, int] = field(default_factory=dict)
    """Fields of the shape that only a tokenizer or a teacher decides."""

    def choices(self, file: CommonFile) -> dict[str, Any]:
        """What a run's file is to say of the recipe, so that the run goes on as it began whatever the recipe
        of that name is by then."""
        # A model to go on from has its shape.
        shape = file.shape if file.start is not None else {**self.recipe.shape, **file.shape}
        return {"recipe": self.recipe.name, "shape": shape}


def plan_model(file: CommonFile, resuming: bool) -> ModelPlan:
    """Returns the model that a run file asks for: of a size, or of the shape of the model to go on from."""
    family = get_family(file.family)
    if isinstance(file, TaskFile) and file.features is not None:
        family = family.with_features(file.features)
    size, name = file.size, file.recipe
    if size == "auto":
        raise EtymonError("--size auto is for etymon pretrain and etymon compare: name a size of the family")
    if resuming and name is None and family.recipe_for(size).name == "pocket":
        # A run from before recipes had names: as the paper's, with another optimiser.
        name = "muon" if "muon" in family.recipe_names else None
    recipe = family.recipe_for(size, name)
    shape = shape_of(family, size, **{**recipe.shape, **file.shape})
    # A resumed run has its size in its file: the model that it began with may be gone.
    if file.start is not None and not resuming:
        with pass_over(file.ignore_config_key):
            start_family, shape = read_shape(file.start)
        if start_family.name != family.name:
            raise EtymonError(
                f"{file.start} is {start_family.title}, not {family.title}: go on with the family "
                f"{start_family.name}"
            )
        size = family.size_of(shape)
        if size is None and name is None:
            # A pocket model with some field otherwise: it says itself how it was trained.
            history = read_history(model_folder(file.start))
            name = next(
                (entry["recipe"] for entry in history if entry.get("recipe") in family.recipe_names), None
            )
        recipe = family.recipe_for(size, name)
    if isinstance(file, TaskFile) and file.start is not None:
        recipe = family.tuning_for(size, name)
    elif isinstance(file, RunFile) and file.teacher is not None:
        # A student's shape may be that of another size than the one it was made from.
        recipe = family.recipe_for(family.size_of(shape), name)
    title = f"{family.title} {size if file.start is None else f'from {file.start}'}"
    return ModelPlan(family, size, shape, recipe, file.vocabulary or int(shape.vocabulary), title)


# --- where its weights come from


@dataclass
class StartModel:
    """The model that a run goes on from, or a new one, and what is known of its past."""

    model: Model | None = None
    """None until it is built, if it is new."""
    is_new: bool = True
    tokenizer: Tokenizer | None = None
    """Of a model to go on from; a resumed run has its own."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """The runs before this one."""
    grown: dict[str, int] | None = None
    """The sizes that its vocabulary grew `from` and `to` in this run."""
    replaced_tokenizer: dict[str, int] | None = None
    """Where its tokenizer was replaced: the sizes, and how many word vectors were `copied`, `composed` and
    are `new`."""


def open_start(plan: ModelPlan, file: CommonFile, checkpoint: Path | None, note: Note) -> StartModel:
    """Opens the model of a checkpoint, or the one to go on from; nothing if the run begins from scratch."""
    if checkpoint is not None:
        model = load(checkpoint / plan.folder)
        # The last entry of a checkpoint's history is this run's own, which is written anew.
        past, entry = model.history[:-1], model.history[-1]
        return StartModel(model, False, None, past, entry.get("grown"), entry.get("replaced_tokenizer"))
    if file.start is None:
        return StartModel()
    model = load(
        file.start,
        heads=plan.heads,
        labels=plan.labels or None,
        features=file.features if isinstance(file, TaskFile) else None,
        seed=file.seed,
    )
    if model.new_heads:
        kinds = " and no ".join(model.new_heads) + " head" + (" for these labels" if plan.labels else "")
        note(f"{file.start} has no {kinds}: starting anew there")
    return StartModel(model, False, start_tokenizer(file, model, note), model.history)


def start_tokenizer(file: CommonFile, model: Model, note: Note) -> Tokenizer | None:
    """Returns the tokenizer of the model to go on from, or the given one if that extends it; None if another
    one is to take its place.

    Special tokens that the family frames texts by are added where they are missing: GPT-1's were never
    published.
    """
    if model.int8:
        raise EtymonError(
            f"{file.start} has weights of eight bits and cannot be trained: go on from the whole model"
        )
    if isinstance(file, RunFile) and file.replace_tokenizer:
        if model.tokenizer is None:
            raise EtymonError(f"{file.start} has no tokenizer, so nothing is known of its words to replace")
        return None
    given = None if file.tokenizer is None or file.kind else Tokenizer.load(file.tokenizer)
    tokenizer = given or model.tokenizer
    if tokenizer is None:
        raise EtymonError(f"{file.start} has no tokenizer: give its own with --tokenizer")
    if model.tokenizer is None:
        # Vocabularies are often padded to a round number: fewer tokens than word vectors are fine.
        if tokenizer.size > model.shape.vocabulary:
            raise EtymonError(
                f"the tokenizer {file.tokenizer} has {tokenizer.size:,} tokens, and {file.start} only "
                f"{model.shape.vocabulary:,} word vectors: it is not its own",
                code="other-tokenizer",
            )
        model.tokenizer = tokenizer
    if not extends(tokenizer, model.tokenizer):
        raise EtymonError(
            f"{file.start} has a tokenizer of its own, and {file.tokenizer} is another: leave --tokenizer "
            "out, or say --replace-tokenizer",
            code="other-tokenizer",
        )
    # The tokenizer is to grow: what cannot is refused before the text is read.
    if file.vocabulary is not None:
        require_room(tokenizer, file.vocabulary)
    specials, framing = model.family.tokenizer.specials, model.family.framing
    lacking = {specials[role] for role in framing.roles if role not in tokenizer.roles}
    # By token, not by role: what begins a text may also end it.
    missing = {
        role: token for role, token in specials.items() if token in lacking and role not in tokenizer.roles
    }
    if missing:
        tokenizer = with_roles(tokenizer, missing)
        note(
            f"{file.start} has no {' and no '.join(dict.fromkeys(missing.values()))}, which texts are framed "
            "by: added to its tokenizer, with new word vectors"
        )
    return tokenizer


def complete_model(plan: ModelPlan, file: CommonFile, start: StartModel, tokenizer: Tokenizer) -> Model:
    """Returns the model with its tokenizer and a word vector for each token: the start's, or a new one."""
    if start.model is None:
        suggested = plan.family.suggest_cutoffs(tokenizer, file.size, file.shape)
        shape = {
            **plan.recipe.shape,
            **suggested,
            **file.shape,
            **plan.family.tokenizer_fields(tokenizer),
            "vocabulary": tokenizer.size,
        }
        labels: Any = {"labels": plan.labels} if plan.labels else {}
        model = build(
            plan.family, file.size, heads=plan.heads, seed=file.seed, shape={**shape, **plan.fields}, **labels
        )
    else:
        model, counts = adapt_vocabulary(start.model, tokenizer, file.seed)
        if counts is not None and "copied" in counts:
            start.replaced_tokenizer = counts
        elif counts is not None:
            start.grown = counts
    model.tokenizer = tokenizer
    start.model = model  # a model that has grown is not needed as it was
    return model


def adapt_vocabulary(
    model: Model, tokenizer: Tokenizer, seed: int = 0
) -> tuple[Model, dict[str, int] | None]:
    """Returns the model with a word vector for each token of a tokenizer that extends its own,
    or replaces it.

    Also the sizes that its vocabulary changed `from` and `to`, and of another tokenizer how many vectors were
    copied and composed and are new; None if nothing changed.
    """
    old = model.tokenizer
    # By tokens, not by roles: a tokenizer that was given special tokens still means the same by its old ids.
    if old is not None and tokenizer.tokens[: old.size] != old.tokens:
        transfer = transfer_tokens(tokenizer, old)
        return replace_words(model, transfer.spellings, seed), transfer.describe(old)
    if old is None or old.size == tokenizer.size:
        return model, None
    return grow(model, old.size, spellings(tokenizer, old), seed), {"from": old.size, "to": tokenizer.size}


# --- distillation: the teacher


def load_teacher(
    file: RunFile, family: Family, objectives: Sequence[type[Objective]], device: torch.device
) -> Model | None:
    """Returns the frozen teacher, or None if no objective learns from one; refuses what cannot teach."""
    distilling = next((each.name for each in objectives if each.needs_teacher), None)
    if file.teacher is None:
        if distilling is not None:
            raise EtymonError(f"the objective {distilling!r} needs a teacher: use `etymon distill TEACHER`")
        return None
    if distilling is None:
        raise EtymonError(f"no objective of this run learns from a teacher: leave {file.teacher} out")
    teacher = load(file.teacher, device=device, heads=("vocabulary",))
    if teacher.new_heads:
        raise EtymonError(f"{file.teacher} has no vocabulary head, so it has no distributions to teach")
    if teacher.tokenizer is None:
        raise EtymonError(f"{file.teacher} has no tokenizer, which its student would read the text with")
    theirs, ours = teacher.family.framing, family.framing
    # Both read the same batch, so special tokens must stand in the same places.
    if (theirs.single, theirs.pair) != (ours.single, ours.pair):
        raise EtymonError(
            f"{teacher.family.title} puts other tokens around a text than {family.title}: "
            f"a student of the family {teacher.family.name} reads as it does"
        )
    for each in objectives:
        check_fit(each, teacher.family)
    return teacher.requires_grad_(False)


def init_from_teacher(model: Model, teacher: Model, layers: Sequence[int] | None, note: Note) -> None:
    """Copies `layers` of the teacher into the student; None: evenly spread ones, if the widths are equal."""
    if layers is None and model.shape.dim != teacher.shape.dim:
        note("the student is of another width than its teacher: it begins anew")
        return
    # Copied layers need the teacher's width. Every second one or so, as DistilBERT does (Sanh et al. 2019,
    # section 3).
    depths = (len(each.body.stack.schedule) for each in (model, teacher))
    chosen = spread_layers(*depths) if layers is None else list(layers)
    if chosen:
        missing = copy_layers(model, teacher, chosen)
        note(f"the student begins with layers {', '.join(map(str, chosen))} of its teacher")
        if missing:
            note(f"what the teacher does not have begins anew: {', '.join(missing)}")


# --- what is trained together, and its folders


def build_unit(
    model: Model,
    objectives: Sequence[Objective],
    file: RunFile,
    checkpoint: Path | None,
    note: Note,
    teacher: Model | None = None,
) -> TrainingUnit:
    """Returns the model with what is trained beside it: a generator, a projection to the teacher's width."""
    companions: dict[str, nn.Module] = {}
    bridges: dict[str, nn.Module] = {}
    is_attended = any(each.teaching.options.attention for each in objectives if hasattr(each, "teaching"))
    if teacher is not None and is_attended and teacher.shape.heads != model.shape.heads:
        raise EtymonError(
            f"attention is followed head by head, and the teacher has {teacher.shape.heads} of them, the "
            f"student {model.shape.heads}: leave --attention out, or give the student as many"
        )
    if teacher is not None and teacher.shape.dim != model.shape.dim:
        # Hidden states of different widths are compared through a map that is trained with the student.
        projection = nn.utils.skip_init(nn.Linear, model.shape.dim, teacher.shape.dim, bias=False)
        initialise(projection, [("*", normal(model.shape.dim**-0.5))], file.seed)
        bridges["projection"] = projection
    if any("generator" in objective.companions for objective in objectives):
        companions["generator"] = build_generator(model, file, checkpoint, note)
    model.reads_prefix = "prefix" in objectives[-1].requires
    model.predicts_shifted = objectives[-1].shifted
    return TrainingUnit(model, objectives[0], companions, bridges, teacher)


def build_generator(model: Model, file: RunFile, checkpoint: Path | None, note: Note) -> Model:
    """Returns the generator beside a discriminator: that of the checkpoint or the run to go on from; or a new
    one, which begins as the masked model to go on from if it is of its shape."""
    start = None if file.start is None or checkpoint is not None else model_folder(file.start)
    place = checkpoint or (start.parent if start else None)
    folder = None if place is None else place / "generator"
    if folder is None or not (folder / "config.json").is_file():
        new = generator_for(model, file.generator, file.seed)
        if start is None:
            return new
        family, shape = read_shape(start)
        is_alike = (family, replace(shape, vocabulary=new.shape.vocabulary)) == (new.family, new.shape)
        if not is_alike or load(start, heads=("vocabulary",)).new_heads:
            note(f"the generator is new but for its word vectors, and {new.shape.dim} wide")
            return new
        folder = start
    assert model.tokenizer is not None
    # It shares the word vectors of the model, and grows with it.
    generator, _ = adapt_vocabulary(load(folder, heads=("vocabulary",)), model.tokenizer)
    for name, value in file.generator.items():
        if (stored := getattr(generator.shape, name, None)) != value:
            raise EtymonError(
                f"{folder} has a {name} of {stored}, not {value}: leave generator.{name} out, or copy the "
                "model to another folder to begin with a new generator"
            )
    generator.tokenizer = model.tokenizer
    if start is not None:
        note(f"the generator begins with the weights of {folder}")
    return share_embeddings(generator, model)


def models_of(unit: TrainingUnit, name: str) -> dict[str, Model]:
    """Returns the models of a unit by the names of their folders; `name` is that of the trained one."""
    parts = {name: unit.model, **unit.companions}
    return {folder: part for folder, part in parts.items() if isinstance(part, Model)}


def restore_models(unit: TrainingUnit, checkpoint: Path, name: str) -> None:
    """Puts the weights of a checkpoint into the models of a unit."""
    if is_sharded(checkpoint) and any(map(is_cut, unit.parameters())):
        restore_weights(unit, checkpoint)
        return
    for folder, part in models_of(unit, name).items():
        copy_values(part, load(checkpoint / folder).state_dict())


def save_models(
    models: Mapping[str, Model],
    folder: Path,
    *,
    history: Sequence[Mapping[str, Any]],
    fold: bool = True,
    with_weights: bool = True,
) -> None:
    """Writes a model folder for each model of a unit, by its name (`models_of`)."""
    # A generator is a model, too, in a folder beside.
    for name, model in models.items():
        save(model, folder / name, history=history, fold=fold, with_weights=with_weights)
