"""`etymon pairs`: which sentence of a minimal pair a model finds likelier."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from etymon.settings import (
    DeviceOptions,
    JsonOptions,
    Notify,
    PathText,
    Spelling,
    argument,
    option,
    settings,
)
from etymon.settings.reading import EncodingSettings
from etymon.settings.tasks import RowsLike
from etymon.verbs.terminal import clear_line, print_json, result_text, say
from etymon.verbs.verb import verb

if TYPE_CHECKING:
    from etymon.lab.pairs import Pairs

OUT = (".csv", ".tsv", ".jsonl", ".parquet", ".json", ".html", "")


@settings
class PairsOptions(DeviceOptions, EncodingSettings, JsonOptions):
    models: Annotated[Any, Spelling("Sequence[str | Path | Model] | str | Path | Model", list[str])] = (
        argument("folders or hub ids of models")
    )
    data: RowsLike = option(
        None, "BLiMP's folder, tables with good and bad sentences, or two text files (the good ones first)"
    )
    good: str | None = option(None, "the column of good sentences (sentence_good, good)")
    bad: str | None = option(None, "the column of bad sentences (sentence_bad, bad)")
    paradigm: str | None = option(None, "the column of the paradigm (UID, or the file's name)")
    field: str | None = option(None, "the column of the field that a paradigm belongs to (field)")
    examples: int | None = option(None, "most pairs per paradigm, evenly spread (all)", ge=1)
    measure: Literal["sum", "token", "byte"] = option(
        "sum", "what is compared: sums of log-probabilities, or their means by token or by byte"
    )
    pll: Literal["token", "within-word"] = option(
        "token", "encoders: hide one token at a time, or with it the rest of its word"
    )
    seq2seq: Literal["infilling", "target"] | None = option(
        None,
        "T5, BART and relatives: write every word into a blank, or the sentence from nothing (infilling "
        "where there is a token for a blank)",
    )
    milestones: bool = option(False, "also every milestone of a run's folder, as a curve by words read")
    by_paradigm: bool = option(False, "print every paradigm", seen_by="command line")
    out: PathText = option(
        None,
        "a table of all pairs (.csv .tsv .jsonl .parquet), .json, a page (.html), or a folder of all three",
    )
    on_progress: Notify | None = option(None, "is told how far it has come", seen_by="python")


@verb(PairsOptions)
def pairs(options: PairsOptions) -> Pairs:
    """Decoders compare likelihoods, encoders pseudo-likelihoods; T5 and BART fill blanks, XLNet predicts in
    the order of the text. ELECTRA's discriminator says how sure it is that nothing was replaced. Scores are
    computed in float32.
    """
    from etymon.lab.model_rows import list_models
    from etymon.lab.pairs import PairColumns, Pairs, judge_pairs, read_pairs
    from etymon.lab.pairs_report import write_pairs
    from etymon.verbs.load_inputs import load_model, require_writable

    if options.out is not None:
        out = Path(options.out)
        require_writable(out if out.suffix else out / "report.html", *OUT)
    # Data are read before any model: a missing column is told within a second.
    columns = PairColumns(options.good, options.bad, options.paradigm, options.field)
    minimal_pairs = read_pairs(options.data, columns, options, options.examples)
    accuracies = []
    # One model at a time is in memory: a run may have dozens of milestones.
    for row in list_models(options.models, options.milestones):
        model = load_model(row.model, options)
        accuracies.append(
            judge_pairs(
                model,
                minimal_pairs,
                row.name,
                run=row.run,
                pll=options.pll,
                seq2seq=options.seq2seq,
                on_progress=options.on_progress or (lambda message: None),
            )
        )
    result = Pairs(minimal_pairs, accuracies)
    if options.out is not None:
        write_pairs(result, Path(options.out), options.measure)
    return result


def present(result: Pairs, options: PairsOptions) -> None:
    from etymon.lab.pairs_report import as_record, report_lines

    clear_line()
    if options.json:
        return print_json(as_record(result))
    print(*report_lines(result, options.measure, options.by_paradigm, result_text), sep="\n")
    if options.out is not None:
        where = Path(options.out)
        say(f"{where if where.suffix else where / 'report.html'} has all of it")
