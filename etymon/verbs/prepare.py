"""`etymon prepare`: text of any size into a token store, once, for many runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from etymon.display import align_left
from etymon.errors import EtymonError
from etymon.report.inline import Inline
from etymon.settings import ClusterOptions, PathText, option, settings
from etymon.settings.reading import FileOptions
from etymon.verbs.terminal import say
from etymon.verbs.verb import verb

if TYPE_CHECKING:
    from etymon.report.page import Cell, Section
    from etymon.text.filtering import FilterReport
    from etymon.text.store import StoreSummary


@dataclass
class Prepared(Inline):
    """What was stored, where, and how many documents could not be read."""

    folder: Path
    summary: StoreSummary
    skipped: int
    filtering: FilterReport | None = None
    """What the filters left out, where there are some."""
    languages: dict[str, Prepared] = field(default_factory=dict)
    """The same of every language, where there are several."""

    def inline_sections(self) -> Iterator[Section]:
        from etymon.report.page import ReportTable

        parts = {"train": self.summary.train, "validation": self.summary.validation}
        rows: list[list[Cell]] = [
            [name, each.documents, each.sentences, each.words, each.tokens, each.bytes]
            for name, each in parts.items()
        ]
        yield ReportTable(["part", "documents", "sentences", "words", "tokens", "bytes"], rows)


@settings
class PrepareOptions(FileOptions, ClusterOptions):
    tokenizer: PathText = option(None, "folder or hub id of a tokenizer, a model or a run")
    out: PathText = option(None, "folder of the store")
    validation: float = option(0.05, "share of the documents held out to validate on")
    seed: int = option(0, "random seed that picks the held-out documents")
    workers: int | None = option(None, "number of processes (one per core); the result is the same", ge=1)


@verb(PrepareOptions)
def prepare(options: PrepareOptions) -> Prepared:
    """Reads any amount of text in constant memory and encodes it on all cores. A store whose text and
    tokenizer have not changed is left as it is. After an interruption, even kill -9, the same command goes
    on where it was.
    """
    from etymon.executors import open_executor
    from etymon.text.filtering import filter_text, read_report
    from etymon.text.languages import join_summaries, put_together, require_language_folder
    from etymon.text.segmenters import way_for
    from etymon.text.store import TokenStore, is_store
    from etymon.text.store_building import ensure_store
    from etymon.verbs.load_inputs import files_by_language
    from etymon.verbs.terminal import byte_progress
    from etymon.verbs.tokenizer import tokenizer_at

    if options.tokenizer is None or options.out is None:
        missing = "--tokenizer FOLDER" if options.tokenizer is None else "--out FOLDER"
        raise EtymonError(f"{missing} is missing: preparing needs a tokenizer and a place for the store")
    folder = Path(options.out)
    # A store takes the place of the folder: what somebody else keeps there must not go with it.
    if folder.is_dir() and any(folder.iterdir()) and not is_store(folder):
        raise EtymonError(
            f"{folder} holds something that is not a token store: give another --out", code="folder-taken"
        )
    tokenizer = tokenizer_at(options.tokenizer)
    groups = files_by_language(options)
    # Files without a language stand under the empty name.
    is_single = "" in groups
    if not is_single:
        require_language_folder(folder)
    elif is_store(folder) and "languages" in TokenStore.open(folder).description:
        raise EtymonError(f"{folder} holds a store of several languages: give another --out")
    sizes = [files.size() for files in groups.values()]
    # Standard input and some remote files do not say how long they are: then progress has no end.
    total = None if None in sizes else sum(size or 0 for size in sizes)
    made: dict[str, Prepared] = {}
    with (
        open_executor(options.on, options.workers) as executor,
        byte_progress("preparing", total, options.progress) as done,
    ):

        def report_progress(_: int = 0) -> None:
            done(sum(files.bytes_read for files in groups.values()))

        for code, files in groups.items():
            place = folder / code
            # Resumable, unlike the store that a run makes for itself: this may take hours.
            summary = ensure_store(
                filter_text(files, options),
                tokenizer,
                place,
                validation=options.validation,
                seed=options.seed,
                executor=executor,
                resumable=True,
                words=way_for(options.words, code),
                progress=report_progress,
            )
            report_progress()
            made[code] = Prepared(place, summary, files.skipped, read_report(place))
    if is_single:
        return made[""]
    put_together(folder, groups, tokenizer)
    joined = join_summaries(folder, [each.summary for each in made.values()])
    return Prepared(folder, joined, sum(each.skipped for each in made.values()), languages=made)


def present(result: Prepared, options: PrepareOptions) -> None:
    from etymon.files import format_bytes

    for code, part in result.languages.items():
        print(f"{code}:")
        present(part, options)
    if result.languages:
        say(f"store      {result.folder}")
        return
    summary = result.summary
    if result.skipped:
        say(f"left out {result.skipped:,} documents that could not be read")
    if result.filtering is not None:
        say(f"filtered   {result.filtering}")
    if summary.reused:
        say("nothing has changed: the store is used as it is")
    if summary.resumed_bytes:
        say(f"{format_bytes(summary.resumed_bytes)} of text were encoded before: they were taken over")
    for name, counts in (("train", summary.train), ("validation", summary.validation)):
        say(
            f"{align_left(name, 11)}{counts.documents:,} documents, {counts.sentences:,} sentences, "
            f"{counts.words:,} words, {counts.tokens:,} tokens, {counts.bytes:,} bytes"
        )
    if summary.words:
        say(f"words      found by {summary.words['way']} {summary.words['version']}")
    if summary.held_out == "tail":
        say("           too few documents to hold some out: validation is the end of the text")
    if summary.warning:
        say(f"warning: {summary.warning}")
    say(f"store      {result.folder}")
