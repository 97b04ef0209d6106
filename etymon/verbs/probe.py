"""`etymon probe`: what every layer of a frozen model knows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from etymon.settings import (
    ComputeOptions,
    JsonOptions,
    ModelLike,
    Notify,
    PathText,
    Spelling,
    Words,
    argument,
    option,
    settings,
)
from etymon.settings.reading import EncodingSettings
from etymon.verbs.terminal import clear_line, print_json, result_text, say
from etymon.verbs.verb import verb

if TYPE_CHECKING:
    from etymon.lab.probe import Probes


@settings
class ProbeOptions(ComputeOptions, EncodingSettings, JsonOptions):
    model: ModelLike = argument("a model's folder or hub id")
    data: Annotated[Any, Spelling("Sequence[str | Path | ProbeTask] | str | Path", list[str])] = option(
        (), "a file or folder of tasks; may be repeated (docs/probing.md)"
    )
    text: str = option("text", "the column of a table that holds the text")
    label: str = option("label", "the column that holds the label; also one of CoNLL-U, e.g. xpos (upos)")
    split: str = option("split", "the column that holds train, validation or test, if there is one")
    format: Literal["senteval", "table", "tags", "conllu", "raw"] | None = option(
        None, "format of the files, if they do not show it"
    )
    pooling: Words = option(
        ("mean",), "the vector of a sentence: mean (of its tokens), cls or last; may be repeated"
    )
    pieces: Literal["first", "mean"] = option(
        "first", "the vector of a word of several pieces: of the first, or their mean"
    )
    examples: int = option(5000, "most training examples per task; half as many each for validation and test")
    pseudo_words: int = option(10, "raw text: how many pseudo-words to make, each of a pair of words")
    twin: bool = option(True, "also probe an untrained model of the same shape")
    seed: int = option(0, "random seed of the control labels, the untrained twin and the pseudo-words")
    batch_size: int = option(32, "texts that are computed together", ge=1)
    out: PathText = option(None, "a folder for results.json, results.csv and report.html")
    on_note: Notify | None = option(None, "is told what was left out", seen_by="python")
    on_progress: Notify | None = option(None, "is told what is being probed", seen_by="python")


@verb(ProbeOptions)
def probe(options: ProbeOptions) -> Probes:
    """Trains a linear classifier for every layer and task, beside a control task with random labels and an
    untrained twin; selectivity is accuracy minus control accuracy. Tasks are SentEval files, tables with a
    text and a label, token and tag tables, CoNLL-U, or raw text, of which pseudo-words are made.
    """
    from etymon.lab.probe import probe_model, write_results
    from etymon.lab.probe_files import ProbeColumns, read_tasks
    from etymon.lab.probe_tasks import ProbeTask
    from etymon.verbs.load_inputs import load_model, require_writable

    require_writable(None if options.out is None else Path(options.out) / "report.html")
    data = [options.data] if isinstance(options.data, str | Path) else list(options.data)
    tasks = [task for task in data if isinstance(task, ProbeTask)]
    for task in tasks:
        # Those of files are checked as they are read; a program's may be anything.
        task.check()
    paths = [path for path in data if not isinstance(path, ProbeTask)]
    # Without any data it is called all the same, for its message.
    if paths or not tasks:
        tasks += read_tasks(
            paths,
            ProbeColumns(options.text, options.label, options.split),
            format=options.format,
            examples=options.examples,
            pseudo_words=options.pseudo_words,
            seed=options.seed,
            how=options,
        )
    # A pooling that is named twice is probed once.
    probes = probe_model(
        load_model(options.model, options),
        tasks,
        name=str(options.model) if isinstance(options.model, str | Path) else "",
        poolings=list(dict.fromkeys(options.pooling)),
        pieces=options.pieces,
        twin=options.twin,
        batch_size=options.batch_size,
        seed=options.seed,
        on_progress=options.on_progress or (lambda message: None),
    )
    if options.on_note is not None:
        for note in probes.notes:
            options.on_note(note)
    if options.out is not None:
        write_results(probes, Path(options.out))
    return probes


def present(result: Probes, options: ProbeOptions) -> None:
    from etymon.lab.probe import as_record, report_lines

    clear_line()
    if options.json:
        return print_json(as_record(result))
    for score in result.tasks:
        print(*report_lines(score, result_text), "", sep="\n")
    if options.out is not None:
        place = Path(options.out) / "report.html"
        say(f"{place} has the curves; results.json and results.csv are beside it")
