"""The file that describes a run of `etymon finetune`."""

from __future__ import annotations

from typing import Any, Literal, Self

from etymon.errors import EtymonError
from etymon.runs.run_file import CommonFile
from etymon.settings import option, settings
from etymon.settings.training import FinetuneSettings


@settings
class MemberFile:
    """A part of a mixture: a task on tables, or an objective on text."""

    name: str = option(..., "of the member")
    task: str | None = option(None, "what to learn from tables; or")
    objective: str | None = option(None, "what to learn from text")
    data: tuple[str, ...] = option((), "tables, or text files")
    validation: tuple[str, ...] = option(
        (), "of a task, tables to validate on; a share is held out otherwise"
    )
    columns: tuple[str, ...] = option((), "names of the columns of files without a header")
    documents: Literal["file", "blank", "line"] = option(
        "file", "what ends a document in a text file: its end, a blank line, or every line"
    )
    length: int | None = option(None, "tokens of a sample or of a text at most")
    options: dict[str, Any] = option(dict, "of the task or objective")


@settings
class MixtureFile:
    """What is learnt together."""

    members: tuple[MemberFile, ...] = option(..., "what the mixture is made of")
    setting: Literal["hybrid", "data-driven", "task-driven"] = option(
        "hybrid", "all members, those that are text, or those that are tasks"
    )
    rates: Literal["proportional", "temperature", "equal"] = option(
        "proportional", "how often each member is drawn"
    )
    limit: int | None = option(None, "examples of a member that count at most", ge=1)
    temperature: float = option(2.0, "of the rates: above 1, small members are drawn more often", gt=0)

    @property
    def active_members(self) -> list[MemberFile]:
        """The members that take part."""
        # The three settings of one mixture that are compared: what do tasks add, what does text?
        kinds = {"hybrid": (True, False), "data-driven": (False,), "task-driven": (True,)}[self.setting]
        return [member for member in self.members if (member.task is not None) in kinds]

    def check(self) -> None:
        names = [member.name for member in self.members]
        # Names are the first parts of metrics' names, name/loss, and folders of the run.
        if len(set(names)) < len(names) or any("/" in name for name in names):
            raise EtymonError(
                f"members of a mixture need different names without a slash, not {', '.join(names)}"
            )
        for member in self.members:
            if (member.task is None) == (member.objective is None) or not member.data:
                raise EtymonError(
                    f"the member {member.name!r} of the mixture needs a task or an objective, and data"
                )
        if not self.active_members:
            raise EtymonError(f"the mixture has no member for the setting {self.setting!r}")


@settings
class TaskFile(CommonFile, FinetuneSettings):
    """What a run of `etymon finetune` was asked for."""

    mixture: MixtureFile | None = option(
        None, "several tasks and objectives, instead of task and train", seen_by="file"
    )
    rows: str | None = None
    """The fingerprint of the rows to train and validate on, by which a resumed run knows them."""

    @property
    def separate(self) -> bool:
        """Whether source and target have words of their own."""
        return self.source_tokenizer is not None or self.source_vocabulary is not None

    def check(self) -> Self:
        super().check()
        if self.batch is not None and self.batch_tokens is not None:
            raise EtymonError("give a batch in rows or in tokens, not both")
        # Equal slices, so that every process has as much to do.
        for batch, what in ((self.batch, "rows"), (self.batch_tokens, "tokens")):
            if batch is not None and batch % self.slices:
                raise EtymonError(f"a batch of {batch} {what} cannot be cut into {self.slices} equal slices")
        # Adapters correct frozen weights: frozen at random they would be noise.
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
            # A mixture's tables stand in its members: here they would belong to none of them.
            self.mixture.check()
            if self.train or self.validation:
                raise EtymonError(
                    "the members of a mixture have their own data: leave train and validation out"
                )
        return self
