"""`etymon push`: a run or a model to the Hugging Face hub, with its card, its curves and its milestones."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator

from etymon.display import align_left
from etymon.files import format_bytes, some
from etymon.settings import (
    Files,
    JsonOptions,
    OpeningOptions,
    Spelling,
    argument,
    one_or_several,
    option,
    settings,
)
from etymon.settings.training import DatasetName, LanguageCode
from etymon.verbs.terminal import on_note, on_progress, print_json, say
from etymon.verbs.verb import verb

SEVERAL = Spelling("str | Sequence[str]", list[str])


@dataclass
class PushedRevision:
    """A branch of the repository."""

    name: str
    files: dict[str, int]
    """Bytes by name."""
    commit: str | None = None
    """None: nothing was sent, since all was there already, or for a dry run."""


@dataclass
class Pushed:
    repository: str
    dry_run: bool
    private: bool
    url: str = ""
    revisions: list[PushedRevision] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


@settings
class PushOptions(OpeningOptions, JsonOptions):
    model: str | Path = argument("a run's or a model's folder")
    name: str = argument("the repository: owner/name")
    private: bool = option(False, "make a new repository private: only you see it")
    dry_run: bool = option(False, "show every file with its size, and send nothing")
    revision: str = option("main", "the branch to send the model to")
    milestones: bool = option(True, "send a run's milestones too, each as a branch (chck_1M)")
    license: str | None = option(
        None,
        "a licence as the hub writes it, such as apache-2.0 or cc-by-4.0 (the run's own)",
        pattern=r"^[a-z0-9][a-z0-9.+-]*$",
    )
    language: Annotated[tuple[LanguageCode, ...], BeforeValidator(one_or_several), SEVERAL] = option(
        (), "the code of a language, such as de or zh, or several (the run's own)"
    )
    datasets: Annotated[tuple[DatasetName, ...], BeforeValidator(one_or_several), SEVERAL] = option(
        (), "data sets of the hub that it was trained on (the run's own)"
    )
    results: Files = option(
        (),
        "results.json of evaluate --suite, pairs, probe or context, or its folder, for the card; repeatable "
        "(those in the run's folder)",
    )
    keep_card: bool = option(
        False, "leave the text of README.md as it is, and complete its front matter alone"
    )
    message: str = option("Upload by etymon", "message of the commits")


@verb(PushOptions)
def push(options: PushOptions) -> Pushed:
    """Safetensors, settings, tokenizer, history.json, run.yaml, a picture of the curves and a card with
    evaluation results in the hub's form are sent. Absolute paths are shortened to their last part, and every
    file is searched for secrets first. The token is HF_TOKEN's, or that of `hf auth login`. An existing
    repository is updated. After an interruption the same command goes on, and nothing is sent twice.
    """
    from etymon.checkpoints.upload import (
        UploadedRevision,
        hub_token,
        require_repository_name,
        require_revision_name,
        upload,
    )
    from etymon.runs.publication import CardStatements, prepare_publication

    # Before the models are opened, which may take minutes.
    require_repository_name(options.name)
    require_revision_name(options.revision)
    statements = CardStatements(options.license, options.language, options.datasets)
    prepared = prepare_publication(
        options.model,
        options.name,
        statements,
        revision=options.revision,
        milestones=options.milestones,
        keep_card=options.keep_card,
        token=hub_token(),
        results=options.results,
    )
    revisions = [PushedRevision(each.name, each.sizes()) for each in prepared.revisions]
    result = Pushed(
        options.name, options.dry_run, options.private, revisions=revisions, left_out=prepared.left_out
    )
    if options.dry_run:
        return result

    def note(done: UploadedRevision) -> None:
        next(each for each in revisions if each.name == done.name).commit = done.commit
        on_progress(f"{done.name} is on the hub")

    result.url = upload(
        options.name,
        prepared.revisions,
        private=options.private,
        message=options.message,
        on_revision=note,
    )
    return result


def present(result: Pushed, options: PushOptions) -> None:
    if options.json:
        return print_json(result)
    for revision in result.revisions:
        size = format_bytes(sum(revision.files.values()))
        if result.dry_run:
            say(f"{result.repository}, revision {revision.name}: {len(revision.files)} files, {size}")
            for name, count in revision.files.items():
                print(f"  {align_left(name, 40)} {format_bytes(count)}")
        elif revision.commit is None:
            say(f"revision {revision.name}: all {len(revision.files)} files were there already")
        else:
            say(f"revision {revision.name}: {len(revision.files)} files, {size}")
    if result.left_out:
        on_note(f"files that nobody reads stay here: {some(result.left_out, 5)}")
    say("nothing was sent" if result.dry_run else f"the model is at {result.url}")
