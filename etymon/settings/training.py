"""What a training run can be asked for: the keys of run files, most of which are options of verbs too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from etymon.registry import LOGGERS, OPTIMISERS, SCHEDULES
from etymon.settings import (
    DeviceOptions,
    LanguageCode,
    PassedOverKeys,
    PathText,
    PrecisionName,
    ProgressOptions,
    Spelling,
    Words,
    comma_separated,
    in_table,
    one_or_several,
    option,
    settings,
)
from etymon.settings.adapters import FeatureSettings, LoraSettings
from etymon.settings.adversarial import AdversarialSettings
from etymon.settings.reading import EncodingSettings, LanguageSettings, NormaliseSettings, TextSettings
from etymon.settings.tasks import TASK_OPTIONS

OptimiserName = Annotated[str, in_table(OPTIMISERS)]
ScheduleName = Annotated[str, in_table(SCHEDULES)]
LoggerName = Annotated[str, in_table(LOGGERS)]
RecipeName = Literal["published", "pocket", "muon", "hybrid", "causal-first"]


# ------------------------------------------------------------ sections of their own


@settings
class PhaseFile:
    """A part of a run. What is not given is as in the run itself."""

    share: float = option(..., "of the run's steps; the shares of all phases add up to 1", gt=0)
    length: int | None = option(None, "tokens a sample", ge=1)
    batch: int | None = option(None, "samples a step", ge=1)
    objective: str | None = option(None, "what to learn from the text")
    options: dict[str, Any] | None = option(None, "of the objective")
    data: tuple[str, ...] = option((), "text files, folders or globs")


# ------------------------------------------------------------ what verbs spell more shortly than run files


def _layer_numbers(value: Any) -> Any:
    """`0,2,4` as numbers, `none` as none of them."""
    if not isinstance(value, str):
        return tuple(value) if isinstance(value, list) else value
    if value.strip() in ("", "none"):
        return ()
    try:
        return tuple(int(part) for part in value.split(","))
    except ValueError:
        raise ValueError("expected numbers such as 0,2,4, or none") from None


SHORT_FORMS = {"lora": "rank", "features": "source", "adversarial": "name"}
"""Sections of which verbs take but one key: `--lora 8` is `lora: {rank: 8}`."""


# ------------------------------------------------------------ groups


@settings
class LoopSettings:
    """What reaches the training loop as it was asked for: `training.settings.TrainingSettings` inherits it."""

    # A fixed number and not the clock's: a run without options can be repeated.
    seed: int = option(0, "random seed; the same seed gives the same run")
    patience: int | None = option(None, "stop after this many validations without a better one", ge=1)
    keep: int = option(2, "how many of the newest checkpoints to keep, besides the best", ge=1)
    unfreeze: float | None = option(
        None,
        "train only the top at first, then layer by layer downwards; all layers after this share of "
        "the steps",
        gt=0,
        lt=1,
    )
    adversarial: Annotated[
        AdversarialSettings | None,
        BeforeValidator(AdversarialSettings.of),
        Spelling("Literal['fgm', 'pgd', 'freelb'] | None", Literal["fgm", "pgd", "freelb"]),
    ] = option(None, "also train on word vectors moved to where the loss is larger (adversarial training)")


@dataclass(frozen=True, kw_only=True)
class Hyperparameters:
    """What `families.family.Recipe` says of an optimiser and `training.optimisers.OptimiserChoice` goes
    by."""

    learning_rate: float
    """The peak, which the schedule scales at every step."""
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.01
    undecayed: tuple[str, ...] = ("*bias", "*bias_?h_l*", "*norm.weight", "*.gamma", "*.scalars.*")
    """Patterns of parameters: biases (of recurrent layers, too), norms, and what mixes layers."""
    layer_decay: float | None = None
    """Every section trains at this share of the rate of the one above it."""
    matrix_share: float = 1.0
    """Muon's rate for matrices as a multiple of the rate for the rest. At 1, matrices move as far as AdamW
    would move them; they bear more: at a rate of 0.002, 3 gives 256 wide layers the 0.02 that is usual in
    Muon's own measure. What is large from the start, as T5's word vectors are, wants less than 1: the rest
    then moves farther."""
    ema: float | None = None
    """The decay of the average of the weights that is validated and kept; none: the weights themselves."""


# Some of the hyperparameters again, as users see them: with help and range, and None for the family's own.
# What they come to with the recipe (`runs.training_settings`) is checked against these ranges, too.
@settings
class OptimiserSettings:
    optimiser: OptimiserName | None = option(
        None, f"{', '.join(OPTIMISERS.places)}, or FILE.py:CLASS (the family's own)"
    )
    learning_rate: float | None = option(
        None, "peak learning rate (the size's own; in a task, the family's)", gt=0
    )
    weight_decay: float | None = option(None, "decoupled weight decay (the family's own)", ge=0)
    layer_decay: float | None = option(
        None, "learning rate of each layer as a share of that of the layer above", gt=0, le=1
    )
    frozen: Words = option((), "parameters that are not trained, by pattern: 'body.embeddings.*'")
    schedule: ScheduleName | None = option(
        None,
        f"how the learning rate changes: {', '.join(SCHEDULES.places)}, "
        "or FILE.py:FUNCTION (the family's own)",
    )
    warmup: float | None = option(
        None, "share of the steps, from 0 to 1, in which the learning rate rises", ge=0, le=1
    )
    clip: float | None = option(None, "largest norm of the gradient, 0 for no limit (the family's own)", ge=0)
    ema: float | None = option(
        None,
        "validate and keep the moving average of the weights, with a decay such as 0.999; 0 for none (the "
        "recipe's own)",
        ge=0,
        lt=1,
    )


@settings
class CheckpointSettings:
    validate_every: int | None = option(None, "steps between validations (about ten per run)", ge=1)
    # With every validation, so that the best model is always one that was saved.
    save_every: int | None = option(None, "steps between checkpoints (with every validation)", ge=1)
    save_at: Annotated[
        tuple[str, ...], BeforeValidator(comma_separated), Spelling("Sequence[str] | str", list[str])
    ] = option(
        (),
        "also keep the model at these points: words (1M 2M 5M), 500steps, 20Mtokens, 3epochs, or "
        "babylm (every 1M words up to 10M, every 10M up to 100M, every 100M up to 1000M)",
    )
    loggers: Annotated[
        tuple[LoggerName, ...], BeforeValidator(comma_separated), Spelling("Sequence[str] | str", list[str])
    ] = option(
        (),
        "also send the curves to tensorboard, trackio, wandb, mlflow, or FILE.py:CLASS; may be repeated",
        name="logger",
    )
    tensorboard: bool = option(False, "the same as --logger tensorboard")


DatasetName = Annotated[str, Field(pattern=r"^[\w.-]+(/[\w.-]+)?$")]


@settings
class CardSettings:
    """What is stated for the model card."""

    license: str | None = option(
        None,
        "a licence as the hub writes it, such as apache-2.0 or cc-by-4.0",
        seen_by="file",
        pattern=r"^[a-z0-9][a-z0-9.+-]*$",
    )
    language: Annotated[tuple[LanguageCode, ...], BeforeValidator(one_or_several)] = option(
        (), "the code of a language, such as de or zh, or several", seen_by="file"
    )
    datasets: Annotated[tuple[DatasetName, ...], BeforeValidator(one_or_several)] = option(
        (), "the name of a data set of the hub, such as wikitext or owner/name, or several", seen_by="file"
    )


@settings
class RunSettings(
    LoopSettings, OptimiserSettings, CheckpointSettings, CardSettings, NormaliseSettings, PassedOverKeys
):
    """What any training run can be asked for."""

    family: str = option(..., "the family of the model", seen_by="file")
    # Small enough for a laptop: nobody should begin with a model that takes days by mistake.
    size: str | None = option(
        "pocket",
        "size of the model: pocket, or a published one such as base; auto: the best for budget and "
        "text (pretrain, compare)",
    )
    recipe: RecipeName | None = option(
        None,
        "a ready choice of shape, objective, optimiser and the like (pocket sizes: pocket; others: "
        "published)",
    )
    start: PathText = option(None, "go on from this model: its folder or hub id", name="from_")
    shape: dict[str, Any] = option(dict, "fields of the shape that differ from the size's", seen_by="file")
    text: str | None = option(None, "what the data are, in words", seen_by="file")
    tokenizer: PathText = option(
        None, "folder of a tokenizer, or the kind to train: char, byte, ... (the family's)"
    )
    vocabulary: int | None = option(
        None,
        "tokens of the tokenizer to train (the model size's own); with --from: let the model's "
        "tokenizer grow to this",
        ge=1,
    )
    sentinels: int | None = option(
        None,
        "tokens that stand for missing spans, in the tokenizer to train (100 for objectives that write behind "
        "them, as in T5; else the family's own)",
        ge=0,
    )
    options: dict[str, Any] = option(
        dict,
        "of the objective, e.g. masking; of a mixture, those of each by its name; of a task, "
        "its columns and the like",
        seen_by="file",
    )
    length: int | None = option(
        None,
        "tokens per sample (up to 256) or, in a task, per text (512; longer ones are cut), as the "
        "model allows",
        ge=1,
    )
    # Not `auto`: what a run computes is not to depend on the machine unless somebody asks for that.
    precision: PrecisionName = option(
        "float32",
        "number format of matrix products and activations; weights stay float32; auto: half precision "
        "where it is measured to be faster; fp16 and devices other than cpu are not yet tested on a GPU",
    )
    slices: int = option(1, "cut every step into this many parts: less memory, or one part per process", ge=1)
    budget: str | None = option(
        None, "how long to train: 90s, 10m, 2h; 5000steps, 20Mtokens, 3epochs, 100Mwords, 20Tflops (10m)"
    )


@settings
class PretrainSettings(RunSettings, TextSettings, LanguageSettings):
    """What `etymon pretrain` can be asked for."""

    data: tuple[str, ...] = option(
        (), "text files, folders or globs, or a prepared store; several languages: zh=a.txt", seen_by="file"
    )
    batch: int | None = option(None, "samples per step (as many as make about 2,048 tokens)", ge=1)
    objective: str | None = option(
        None,
        "what to learn from the text: causal, masked, ..., a mixture, or FILE.py:CLASS (the family's own)",
    )
    validation: float = option(0.05, "share of the text held out to validate on", ge=0, lt=1)
    replace_tokenizer: bool = option(
        False,
        "with --from: give the model another tokenizer, --tokenizer's or one trained on the text; "
        "tokens that both have keep their vectors, new ones start from the tokens that spell them",
    )
    teacher: str | None = option(None, "folder or hub id of the model to learn from", seen_by="file")
    teacher_layers: Annotated[tuple[int, ...] | None, BeforeValidator(_layer_numbers)] = option(
        None,
        "layers of the teacher that the student starts from: 0,2,4 (evenly spread); none: it starts "
        "from random weights",
        seen_by="file",
    )
    generator: dict[str, Any] = option(
        dict,
        "fields of the generator's shape that differ from what the model's size gives (replaced-token "
        "detection)",
        seen_by="file",
    )
    phases: tuple[PhaseFile, ...] = option((), "parts of the run, one after the other", seen_by="file")
    ramp: float | None = option(
        None,
        "share of the samples over which the batch grows from a sixteenth to its full size",
        seen_by="file",
        ge=0,
        lt=1,
    )


@settings
class FinetuneSettings(RunSettings, EncodingSettings):
    """What `etymon finetune` can be asked for."""

    task: str = option("text2text", f"what to learn: {', '.join(TASK_OPTIONS)}")
    train: tuple[str, ...] = option((), "tables, or parallel text files", seen_by="file")
    validation: tuple[str, ...] = option((), "the same, to validate on", seen_by="file")
    columns: Annotated[
        tuple[str, ...], BeforeValidator(comma_separated), Spelling("Sequence[str] | str", str)
    ] = option((), "names of the columns of files without a header: en,zh")
    metrics: Words = option(
        (),
        "accuracy, f1, matthews, pearson, bleu, rougeL, loss ...; the first decides which model is kept (the "
        "task's own)",
        name="metric",
    )
    batch: int | None = option(None, "rows per step (32; text2text counts tokens)", ge=1)
    batch_tokens: int | None = option(
        None, "tokens per step, all texts together (4096; fewer with a small table)", ge=1
    )
    hold_out: float | None = option(
        None,
        "share of the rows to validate on, without --validation (0.05; small tables: up to 0.2)",
        ge=0,
        lt=1,
    )
    baselines: bool = option(
        True,
        "classify, regress: also score simple baselines: the commonest answer, TF-IDF, and one for typos",
    )
    # Greedy on the way: every beam is a row to decode, at every validation.
    beams: int = option(1, "number of beams in the last validation; earlier ones are greedy", ge=1)
    lora: Annotated[LoraSettings | None, Spelling("int | None", int)] = option(
        None, "train LoRA adapters of this rank instead of the weights; they are saved as PEFT does"
    )
    merge: bool = option(
        False, "with --lora: save the whole model with its adapters added in, not the adapters alone"
    )
    features: Annotated[
        FeatureSettings | None,
        Spelling("Literal['mix', 'last-four', 'last'] | None", Literal["mix", "last-four", "last"]),
    ] = option(None, "feed the model's layers to a BiLSTM instead of a head (ELMo: mix)")
    tune_body: bool = option(False, "with --features: train the model's body too; it is frozen otherwise")
    teacher: PathText = option(
        None, "a model that was fine-tuned for the task; its answers are learnt too (distillation)"
    )
    source_tokenizer: PathText = option(
        None, "as --tokenizer, for the source texts, if they need one of their own"
    )
    source_vocabulary: int | None = option(None, "size of the source's own tokenizer", ge=1)


# ------------------------------------------------------------ options of verbs that train


@settings
class StartOptions(ProgressOptions, DeviceOptions):
    """How a run is started; nothing of it is a key of the run's file."""

    config: PathText = option(None, "YAML file with any of these settings; options given here win")
    set: Words = option((), "give any setting a value by its dotted name: shape.layers=6")
    resume: bool | Literal["auto"] = option(
        False, "go on with the stopped run in OUT, exactly; auto: start one if there is none"
    )
    # A thread is enough where samples are cheap; processes cost their start and memory.
    workers: int = option(0, "number of processes that prepare samples (0: a thread does it)", ge=0)
    changed_plugins: bool = option(False, "go on with a run even if a plugin of it has changed")


@settings
class TrainOptions(StartOptions):
    steps: int | None = option(None, "number of training steps, instead of --budget", ge=1)
    dry_run: bool = option(False, "try everything once, train nothing, and say what would be done")
    # Not keys of the run's file: a run may go on in another place, with the same results but for rounding.
    shard: Literal["none", "full", "hybrid"] = option(
        "none",
        "under torchrun: split weights and optimiser over all processes (full) or within each machine "
        "(hybrid)",
    )
    recompute: bool = option(
        False, "compute layers twice instead of keeping their results: less memory, more time"
    )
    compile: bool = option(False, "compile feed-forward parts with torch.compile; needs a C++ compiler")

    def placement(self) -> dict[str, Any]:
        """Where and how it is computed, as fields of a `Job`."""
        names = ("device", "workers", "shard", "recompute", "compile", "changed_plugins")
        return {name: getattr(self, name) for name in names}
