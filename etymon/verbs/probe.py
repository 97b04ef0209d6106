"""`etymon probe`: what every layer of a frozen model knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from etymon.errors import EtymonError
from etymon.verbs.options import opens_models
from etymon.verbs.terminal import clear_line, print_json

if TYPE_CHECKING:
    from etymon.families.model import Model
    from etymon.lab.probe import Probes
    from etymon.lab.probe_tasks import ProbeTask


@opens_models
def probe(
    model: Annotated[str | Path | Model, "a model's folder or hub id"],
    *,
    data: Annotated[
        Sequence[str | Path | ProbeTask] | str | Path,
        "a file or folder of tasks, repeatable (docs/probing.md)",
    ] = (),
    text: Annotated[str, "the column of a table that holds the text"] = "text",
    label: Annotated[str, "the column that holds the label; also one of CoNLL-U, e.g. xpos (upos)"] = "label",
    split: Annotated[str, "the column that holds train, validation or test, if there is one"] = "split",
    format: Annotated[
        Literal["senteval", "table", "tags", "conllu", "raw"] | None, "what the files are, if it is not plain"
    ] = None,
    pooling: Annotated[
        Sequence[str] | str, "the vector of a sentence: mean (of its tokens), cls or last; repeatable"
    ] = ("mean",),
    pieces: Annotated[
        Literal["first", "mean"], "the vector of a word of several pieces: of the first, or their mean"
    ] = "first",
    examples: Annotated[
        int, "training examples a task at most; half as many each for validation and test"
    ] = 5000,
    pseudo_words: Annotated[int, "pairs of words that are made of a raw text"] = 10,
    twin: Annotated[bool, "also probe an untrained model of the same shape"] = True,
    seed: Annotated[int, "of the control labels, the untrained twin and the choice of pseudo-words"] = 0,
    batch_size: Annotated[int, "texts that are computed together"] = 32,
    device: Annotated[str | None, "cpu or cuda (cuda where there is one)"] = None,
    out: Annotated[Path | None, "a folder for results.json, results.csv and report.html"] = None,
    on_note: Callable[[str], None] | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> Probes:
    """Probe every layer of a frozen model for what it knows.

    A linear classifier a layer and task, beside a control task with random labels and an untrained twin; selectivity is
    accuracy minus control accuracy. Tasks are SentEval files, tables with a text and a label, token and tag tables, CoNLL-U,
    or raw text, of which pseudo-words are made.
    """
    from etymon.lab.probe import probe_model, write_results
    from etymon.lab.probe_tasks import ProbeColumns, ProbeTask, read_tasks
    from etymon.verbs.opening import opened, writable

    if batch_size < 1:
        raise EtymonError(f"batch_size is {batch_size}: it must be 1 or more")
    writable(None if out is None else Path(out) / "report.html")
    given = [data] if isinstance(data, str | Path) else list(data)
    tasks = [one for one in given if isinstance(one, ProbeTask)]
    for task in tasks:
        task.check()
    paths = [one for one in given if not isinstance(one, ProbeTask)]
    if paths or not tasks:
        columns = ProbeColumns(text, label, split)
        tasks += read_tasks(
            paths, columns, format=format, examples=examples, pseudo_words=pseudo_words, seed=seed
        )
    probes = probe_model(
        opened(model, device),
        tasks,
        name=str(model) if isinstance(model, str | Path) else "",
        poolings=[pooling] if isinstance(pooling, str) else list(dict.fromkeys(pooling)),
        pieces=pieces,
        twin=twin,
        batch_size=batch_size,
        seed=seed,
        on_progress=on_progress or (lambda what: None),
    )
    for note in probes.notes if on_note else ():
        on_note(note)  # type: ignore[misc]
    if out is not None:
        write_results(probes, Path(out))
    return probes


def present(
    result: Probes, out: Path | None, json: Annotated[bool, "print the results as JSON"] = False
) -> None:
    from etymon.lab.probe import as_record, report_lines

    clear_line()
    if json:
        return print_json(as_record(result))
    for score in result.tasks:
        print(*report_lines(score), "", sep="\n")
    if out is not None:
        print(f"{Path(out) / 'report.html'} has the curves; results.json and results.csv are beside it")
