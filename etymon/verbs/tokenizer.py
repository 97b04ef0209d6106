"""`etymon tokenizer`: learn a tokenizer from your own text, or see how one fits it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

if TYPE_CHECKING:
    from etymon.data.sampling import Sample
    from etymon.data.sources import TextFiles
    from etymon.data.tokenizer import Tokenizer
    from etymon.data.tokenizer_report import TokenizerReport

DEFAULT_SIZE = 8000
PLAIN = {"pad": "<pad>", "unknown": "<unk>", "begin": "<s>", "end": "</s>", "mask": "<mask>"}
HOMES = {"byte-bpe": "gpt2", "wordpiece": "bert", "unigram": "t5"}
"""The family whose special tokens a kind has, unless another is named."""
MANY_UNKNOWN = 0.01


@dataclass
class Tokenized:
    """A tokenizer, its folder, and how it fits the text (None: there was no text)."""

    folder: Path
    tokenizer: Tokenizer
    report: TokenizerReport | None
    judged_by: str
    skipped: int = 0


def tokenizer(
    *,
    kind: Annotated[
        Literal["byte-bpe", "bpe", "wordpiece", "unigram", "word", "character", "byte"] | None,
        "what tokens are (the family's own)",
    ] = None,
    data: Annotated[
        Sequence[str | Path] | Path,
        "text files, folders or globs (.txt .md .jsonl .csv .tsv .parquet, also .gz .bz2 .xz .zst), or - for standard input",
    ] = (),
    size: Annotated[int | None, "tokens to learn at most, special ones included (8000)"] = None,
    out: Annotated[str | Path | None, "folder to write"] = None,
    family: Annotated[str | None, "gpt2, bert or t5: take its kind, special tokens and framing"] = None,
    lowercase: Annotated[bool, "ignore case"] = False,
    strip_accents: Annotated[bool, "remove accents and all other combining marks, vowel signs too"] = False,
    normalise: Annotated[
        Literal["nfc", "nfkc", "none"] | None,
        "Unicode form of the text (nfkc for unigram and bpe, else none)",
    ] = None,
    limit: Annotated[str, "text to learn from at most, spread evenly over all of it"] = "200MB",
    from_: Annotated[
        str | Path | None, "folder or hub id of a tokenizer or model: add tokens to it, up to --size"
    ] = None,
    show: Annotated[str | Path | None, "report on the tokenizer in this folder instead"] = None,
    documents: Annotated[Literal["file", "blank", "line"], "what ends a document in a text file"] = "file",
    column: Annotated[str, "the field of records that holds the text"] = "text",
    errors: Annotated[
        Literal["strict", "replace", "skip"],
        "bytes that are no UTF-8: refuse, put U+FFFD, or drop the document",
    ] = "strict",
    max_document: Annotated[str, "the longest record of .jsonl, .csv, .tsv and .parquet to accept"] = "32MB",
    format: Annotated[
        Literal["txt", "jsonl", "csv", "tsv", "parquet"] | None, "what the files are, whatever their names"
    ] = None,
    progress: Annotated[Literal["auto", "rich", "plain", "silent"], "how to show progress"] = "auto",
) -> Tokenized:
    """Learn a tokenizer from text, and report how it fits text that it has not seen.

    The folder opens in Transformers too. Accents and case stay unless you say otherwise, or the family's published
    recipe does (bert is uncased). With --from, a tokenizer that there is learns more tokens, and no id changes.
    """
    from etymon.data.sampling import Sample
    from etymon.data.tokenizer import Tokenizer
    from etymon.data.tokenizer_growing import grow_tokenizer
    from etymon.data.tokenizer_report import measure_tokenizer
    from etymon.errors import EtymonError
    from etymon.verbs.reading import parse_size, text_files

    given = [data] if isinstance(data, str | Path) else list(data)
    if show is not None:
        if any((kind, size, out, family, from_, lowercase, strip_accents, normalise)):
            raise EtymonError("--show reports on a tokenizer as it is: leave out what says how to train one")
        source = text_files(given, documents, column, errors, max_document, format)
        found = Tokenizer.load(show)
        with Sample(parse_size(limit)) as sample:
            _read(sample, source, progress)
            texts = _all(sample)
            return Tokenized(
                Path(show), found, measure_tokenizer(found, texts), "the text", source.tally.skipped
            )
    if out is None:
        raise EtymonError("say where the tokenizer goes: --out FOLDER")
    if size is not None and size < 1:
        raise EtymonError(f"size must be at least 1, not {size}")
    if from_ is not None and any((kind, family, lowercase, strip_accents, normalise)):
        raise EtymonError(f"{from_} has its own kind and ways: leave out what says how to train a new one")
    old = None if from_ is None else _old(from_, size)
    choice = {} if old else _choice(kind, family, lowercase, strip_accents, normalise)
    _check_free(Path(out))
    if choice.get("kind") == "byte" and not given:
        made = _train(iter(()), size, choice)
        made.save(out)
        return Tokenized(Path(out), made, None, "")
    source = text_files(given, documents, column, errors, max_document, format)
    with Sample(parse_size(limit)) as sample:
        _read(sample, source, progress)
        made = (
            grow_tokenizer(old, sample.learning, size or 0)
            if old
            else _train(sample.learning(), size, choice)
        )
        made.save(out)
        held_out = next(sample.held_out(), None) is not None
        report = measure_tokenizer(made, sample.held_out() if held_out else sample.learning())
    judged_by = "held-out text" if held_out else "the text it was trained on (too little to hold some out)"
    return Tokenized(Path(out), made, report, judged_by, source.tally.skipped)


def _choice(
    kind: str | None, family: str | None, lowercase: bool, strip_accents: bool, normalise: str | None
) -> dict[str, Any]:
    """What `train_tokenizer` is told: the family's recipe, as far as it is not overridden."""
    from etymon.data.tokenizer_training import LOSSLESS
    from etymon.errors import EtymonError

    if kind is None and family is None:
        raise EtymonError(
            "say which tokenizer: --kind byte-bpe, unigram, wordpiece, ..., or --family gpt2, bert or t5"
        )
    home = family or HOMES.get(kind or "")
    if home is None:
        specials = {role: token for role, token in PLAIN.items() if kind != "byte" or role != "unknown"}
        return {
            "kind": kind, "specials": specials, "lowercase": lowercase, "strip_accents": strip_accents,
            "normalise": normalise,
        }  # fmt: skip
    from etymon.families import get_family

    known = get_family(home)
    own = known.tokenizer
    chosen = kind or own.kind
    recipe = (
        family is not None and chosen not in LOSSLESS
    )  # case and accents go only where a family was named
    specials = dict(own.specials)
    if chosen not in LOSSLESS and "unknown" not in specials:
        specials["unknown"] = PLAIN["unknown"]
    return {
        "kind": chosen,
        "specials": specials,
        "sentinels": own.sentinels if family is not None or chosen == own.kind else 0,
        "framing": known.framing,
        "lowercase": lowercase or (recipe and own.lowercase),
        "strip_accents": strip_accents or (recipe and own.strip_accents),
        "normalise": normalise,
    }


def _train(texts: Iterator[str], size: int | None, choice: dict[str, Any]) -> Tokenizer:
    from etymon.data.tokenizer_training import train_tokenizer

    specials = len(set(choice["specials"].values())) + choice.get("sentinels", 0)
    wanted = size or (256 + specials if choice["kind"] == "byte" else DEFAULT_SIZE)
    arguments = {name: value for name, value in choice.items() if name != "kind"}
    return train_tokenizer(choice["kind"], texts, wanted, **arguments)


def _old(name: str | Path, size: int | None) -> Tokenizer:
    """The tokenizer behind a folder of its own, a model's, a run's or a hub id."""
    from etymon.checkpoints.hub import resolve
    from etymon.data.tokenizer import Tokenizer
    from etymon.data.tokenizer_growing import require_room
    from etymon.errors import EtymonError

    folder = resolve(str(name))
    own = folder / "tokenizer"
    old = Tokenizer.load(own if own.is_dir() else folder)
    if size is None:
        raise EtymonError(f"{name} has {old.size:,} tokens: say how many it should have with --size")
    require_room(old, size)
    return old


def _check_free(folder: Path) -> None:
    from etymon.errors import EtymonError

    own = {"tokenizer.json", "tokenizer_config.json"}
    if folder.is_dir() and {path.name for path in folder.iterdir()} - own:
        raise EtymonError(f"{folder} holds something that is not a tokenizer: give another --out")
    if folder.is_file():
        raise EtymonError(f"{folder} is a file, and the tokenizer needs a folder: give another --out")


def _read(sample: Sample, source: TextFiles, progress: Any) -> None:
    from etymon.verbs.reading import byte_progress

    with byte_progress("reading", source.size(), progress) as done:
        sample.add(source.documents(), lambda: done(source.tally.bytes))
        done(source.tally.bytes)


def _all(sample: Sample) -> Iterator[str]:
    yield from sample.learning()
    yield from sample.held_out()


def present(result: Tokenized, json: Annotated[bool, "print JSON"] = False) -> None:
    report, made = result.report, result.tokenizer
    if json:
        import json as encoder

        names = (
            "bytes",
            "words",
            "tokens",
            "unknown",
            "fertility",
            "bytes_per_token",
            "unknown_rate",
            "longest",
        )
        figures = {} if report is None else {name: getattr(report, name) for name in names}
        about = {
            "folder": str(result.folder),
            "kind": made.kind,
            "size": made.size,
            "judged_by": result.judged_by,
        }
        print(encoder.dumps({**about, **figures, "skipped": result.skipped}, indent=2, ensure_ascii=False))
        return
    if result.skipped:
        print(f"{result.skipped:,} documents could not be read and were left out")
    print(f"{made.kind} tokenizer of {made.size:,} tokens in {result.folder}")
    if report is None:
        return
    print(f"on {result.judged_by} ({report.bytes:,} bytes):")
    print(f"  tokens a word    {report.fertility:.3f}")
    print(f"  bytes a token    {report.bytes_per_token:.3f}")
    print(f"  unknown          {report.unknown_rate:.3%} of the tokens")
    print(f"  longest token    {report.longest!r}")
    if report.unknown_rate > MANY_UNKNOWN:
        print("  many unknown: byte-bpe has none; unigram and bpe suit scripts without spaces")
