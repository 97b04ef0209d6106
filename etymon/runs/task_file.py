"""What `etymon finetune` can be asked for."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Literal, Self

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from etymon.errors import EtymonError
from etymon.nn.features import FeatureSettings
from etymon.nn.lora import LoraSettings
from etymon.runs.run_file import CommonFile


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class MemberFile:
    """A part of a mixture: a task on tables, or an objective on text."""

    name: str
    task: str | None = None
    objective: str | None = None
    data: tuple[str, ...] = ()
    """Tables, or text files."""
    validation: tuple[str, ...] = ()
    """Of a task, tables to judge by; a share is held out otherwise."""
    columns: tuple[str, ...] = ()
    documents: Literal["file", "blank", "line"] = "file"
    length: int | None = None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class MixtureFile:
    """What is learnt together."""

    members: tuple[MemberFile, ...]
    setting: Literal["hybrid", "data-driven", "task-driven"] = "hybrid"
    """All members, those that are text, or those that are tasks."""
    rates: Literal["proportional", "temperature", "equal"] = "proportional"
    limit: int | None = None
    """Examples of a member that count at most."""
    temperature: float = 2.0

    @property
    def chosen(self) -> list[MemberFile]:
        """The members that take part."""
        wanted = {"hybrid": (True, False), "data-driven": (False,), "task-driven": (True,)}[self.setting]
        return [member for member in self.members if (member.task is not None) in wanted]

    def check(self) -> None:
        names = [member.name for member in self.members]
        if len(set(names)) < len(names) or any("/" in name for name in names):
            raise EtymonError(
                f"members of a mixture need different names without a slash, not {', '.join(names)}"
            )
        for member in self.members:
            if (member.task is None) == (member.objective is None) or not member.data:
                raise EtymonError(
                    f"the member {member.name!r} of the mixture needs a task or an objective, and data"
                )
        if not self.chosen:
            raise EtymonError(f"the mixture has no member for the setting {self.setting!r}")
        if (self.limit is not None and self.limit < 1) or not self.temperature > 0:
            raise EtymonError("a mixture's limit is at least 1, and its temperature above 0")


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class TaskFile(CommonFile):
    task: str = "text2text"
    train: tuple[str, ...] = ()
    """Tables, or parallel text files."""
    validation: tuple[str, ...] = ()
    hold_out: float | None = None
    """Share of the training rows to judge by, where there is no validation table: a twentieth, or of a small table as many as
    tell something, up to a fifth."""
    columns: tuple[str, ...] = ()
    """Of files without a header."""
    metrics: tuple[str, ...] = ()
    """The first decides which model is kept."""
    baselines: bool = True
    """Whether what a majority, TF-IDF and texts with typos would give stands beside the scores."""
    batch: int | None = None
    """Rows a step; or"""
    batch_tokens: int | None = None
    """tokens a step, of all that is read and written."""
    beams: int = 1
    """Of the last validation; those on the way are greedy."""
    source_tokenizer: str | None = None
    """As `tokenizer`, of a source with words of its own."""
    source_vocabulary: int | None = None
    teacher: str | None = None
    """A model that was fine-tuned for the same task, whose answers are followed."""
    lora: LoraSettings | None = None
    """Adapters are trained, not the weights."""
    merge: bool = False
    """What is kept is the whole model, with its adapters added in."""
    features: FeatureSettings | None = None
    """The layers feed a BiLSTM instead of a head of the family's own."""
    tune_body: bool = False
    """With features: the body is trained as well."""
    mixture: MixtureFile | None = None
    """Several tasks and objectives, instead of `task` and `train`."""
    rows: str | None = None
    """The fingerprint of the rows to train on and to judge by, by which a resumed run knows them."""

    @property
    def separate(self) -> bool:
        """Whether source and target have words of their own."""
        return self.source_tokenizer is not None or self.source_vocabulary is not None

    def check(self) -> Self:
        super().check()
        if self.batch is not None and self.batch_tokens is not None:
            raise EtymonError("give a batch in rows or in tokens, not both")
        for batch, what in ((self.batch, "rows"), (self.batch_tokens, "tokens")):
            if batch is not None and batch % self.slices:
                raise EtymonError(f"a batch of {batch} {what} cannot be cut into {self.slices} equal slices")
        if self.start is None and self.lora is not None:
            raise EtymonError(
                "adapters are for a model that is there already: leave --lora or --from-scratch out"
            )
        if self.lora is not None and self.features is not None and not self.tune_body:
            raise EtymonError(
                "adapters in a body that does not learn have nothing to do: say --tune-body, or leave --lora out"
            )
        if self.merge and self.lora is None:
            raise EtymonError(
                "there is nothing to merge without adapters: say --lora RANK, or leave --merge out"
            )
        if self.start is not None and self.separate:
            raise EtymonError("a model to go on from has its tokenizers: leave those of the source out")
        if self.mixture is not None:
            self.mixture.check()
            if self.train or self.validation:
                raise EtymonError(
                    "the members of a mixture have their own data: leave train and validation out"
                )
        return self
