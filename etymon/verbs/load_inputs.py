"""What verbs read, a model, texts or text files, and whether there is a place for what they write."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from etymon.config import parse_count
from etymon.errors import EtymonError
from etymon.settings import ComputeOptions, DeviceOptions, PrecisionName, WeightOptions
from etymon.settings.reading import EncodingSettings, FileOptions
from etymon.text.charsets import MARK, decode_stream, read_whole
from etymon.text.reading import SURROGATE, Reading
from etymon.text.sources import TextFiles

if TYPE_CHECKING:
    from etymon.families.model import Model

OnNote = Callable[[str], None]
NO_TEXT = "there is no text: give some, or - to read lines from standard input"
FILE_ENDINGS = (".csv", ".tsv", ".jsonl", ".json", ".parquet", ".txt", ".gz")


def load_model(model: str | Path | Model, options: DeviceOptions, head: str | None = None) -> Model:
    """A model with its tokenizer, on the device and with the weights that the options say: loaded from a
    folder or hub id, or the one that was given. Of the models in a run's folder it is the one with the
    `head`, if that is needed."""
    import torch

    from etymon.families.loading import load, model_folder
    from etymon.nn.products import choose_products
    from etymon.training.distributed import usable_device

    quantize = options.quantize if isinstance(options, WeightOptions) else None
    target = None if options.device is None else usable_device(options.device)
    if isinstance(model, str | Path):
        where = str(model)
        # Weights of eight bits are multiplied by a processor's kernels.
        default = "cuda" if torch.cuda.is_available() and quantize is None else "cpu"
        loaded = load(model_folder(model, head=head), device=target or default, quantize=quantize)
    else:
        where = f"this {model.family.title}"
        if quantize is not None and not model.int8:
            raise EtymonError("weights are rounded as a model is read: give its folder, or model.quantize()")
        if isinstance(options, ComputeOptions) and options.precision != "float32":
            raise EtymonError("a precision is chosen as a model is read: give its folder")
        loaded = model if target is None else model.to(target)
    if isinstance(options, ComputeOptions):
        compute_in(loaded, options.precision)
    if loaded.tokenizer is None:
        raise EtymonError(f"{where} has no tokenizer, so it cannot read text: put its tokenizer.json there")
    # Measured once a machine; a model that is only read from may keep its matrices in another layout.
    choose_products(loaded)
    return loaded


def compute_in(model: Model, precision: PrecisionName) -> None:
    """Rounds a model's matrices to a precision, which is chosen by measuring if it is `auto`."""
    from etymon.nn.precision import choose_precision, require_precision, round_weights

    chosen = choose_precision(model, model.device)[0] if precision == "auto" else precision
    if chosen != "float32":
        require_precision(chosen, model.device)
        if model.int8:
            raise EtymonError(f"weights of eight bits are not rounded to {chosen}: leave --precision out")
        round_weights(model, chosen)


def read_texts(
    texts: str | Sequence[str],
    file: str | Path | None = None,
    *,
    lines: bool = True,
    blank: bool = False,
    on_note: OnNote | None = None,
    how: EncodingSettings | None = None,
) -> list[str]:
    """Texts as given; "-" alone stands for the lines of standard input. `file` adds its lines, or itself as
    one; `how` says what bytes mean. Blank lines are left out with a note, or with `blank` stay in their
    places."""
    all_texts = list(iterate_texts(texts, file, lines=lines, blank=blank, on_note=on_note, how=how))
    if not all_texts:
        raise EtymonError(NO_TEXT)
    return all_texts


def iterate_texts(
    texts: str | Iterable[str],
    file: str | Path | None = None,
    *,
    lines: bool = True,
    blank: bool = False,
    on_note: OnNote | None = None,
    how: EncodingSettings | None = None,
) -> Iterator[str]:
    """The same as they come: of a file, and of standard input, a line at a time."""
    given = [texts] if isinstance(texts, str) else texts
    reading = Reading(**(how or EncodingSettings()).reader_options)
    if not isinstance(given, Iterable) or isinstance(given, Mapping) or hasattr(given, "columns"):
        raise EtymonError(f"texts are given as a list of them, not as a {type(given).__name__}")
    # Alone: a text that is a dash, among others, is a text.
    if isinstance(given, Sequence) and list(given) == ["-"]:
        yield from _lines(None, blank, on_note, reading)
    else:
        for number, text in enumerate(given, 1):
            if not isinstance(text, str):
                raise EtymonError(f"text {number} is a {type(text).__name__}, not a text")
            if SURROGATE.search(text):  # bytes of a command line that are no UTF-8
                raise EtymonError(f"{text[:40]!r} holds bytes that are no UTF-8 text: convert it first")
            # An answer to the name of a table looks like one to its rows.
            if on_note is not None and text.endswith(FILE_ENDINGS) and Path(text).is_file():
                on_note(
                    f"{text} is read as a text, and not the file of that name: give that with --data or "
                    "--file"
                )
            yield text
    if file is not None:
        yield from _lines(Path(file), blank, on_note, reading) if lines else [read_whole(Path(file), reading)]


def _lines(file: Path | None, blank: bool, on_note: OnNote | None, reading: Reading) -> Iterator[str]:
    """Lines end with \\n or \\r\\n and with nothing else, whatever the verb, so that other programs count
    them alike. A line that is skipped stays in its place where blank ones do."""
    name, left_out, damaged, rest = str(file or "standard input"), 0, 0, ""
    for chunk in chain(_decoded(file, name, reading), [None]):
        # Not splitlines(), which also splits at form feeds, U+2028 and the like inside a sentence.
        *whole, rest = (rest + (chunk or "")).split("\n")
        for line in [*whole, rest] if chunk is None and rest else whole:
            is_damaged = MARK in line
            damaged += is_damaged
            line = "" if is_damaged else line.removesuffix("\r")
            if blank or line.strip():
                yield line
            else:
                left_out += not is_damaged
    if left_out and on_note is not None:
        on_note(f"blank lines of {name} that were left out: {left_out:,}")
    if damaged and on_note is not None:
        on_note(f"lines of {name} that cannot be read and were left out: {damaged:,}")


def _decoded(file: Path | None, name: str, reading: Reading) -> Iterator[str]:
    """The text of a file, or of standard input as it comes."""
    try:
        with nullcontext(sys.stdin.buffer) if file is None else open(file, "rb") as source:
            read = source.read1 if hasattr(source, "read1") else source.read
            yield from decode_stream(read, name, reading)
    except OSError as error:
        raise EtymonError(f"cannot read {name}: {error.strerror}") from error


def require_writable(out: str | Path | None, *endings: str, read: Iterable[Any] = ()) -> None:
    """Refuses a file that cannot be written, by its name or its place, or that is one of those that are
    read, before there is anything to lose."""
    if out is None:
        return
    path = Path(out)
    sources = [Path(source).expanduser().resolve() for source in read if isinstance(source, str | Path)]
    if path.resolve() in sources:
        raise EtymonError(f"cannot write {out}: it is the table that is read, give another name")
    if endings and path.suffix.lower() not in endings:
        raise EtymonError(f"cannot write {out}: its name must end in {', '.join(endings)}")
    if path.is_dir():
        raise EtymonError(f"cannot write {out}: it is a folder, give the name of a file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Tried, not asked: permissions tell little of network drives, full disks and root.
        with TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise EtymonError(f"cannot write {out}: {error.strerror}") from error


def text_files(options: FileOptions) -> TextFiles:
    """The text files that a verb's options name; refused if there are none."""
    return next(iter(files_by_language(options, several=False).values()))


def files_by_language(options: FileOptions, *, several: bool = True) -> dict[str, TextFiles]:
    """The same by language if they are named as zh=a.txt en=b.txt, else under ""; refused unless `several`
    may be given."""
    from etymon.text.languages import split_languages

    if not options.data:
        raise EtymonError(
            "there is no text: give --data with files, folders or globs, or - for standard input",
            code="no-data",
        )
    reading: dict[str, Any] = {
        "boundary": options.documents,
        "column": options.column,
        "format": options.format,
        **options.reader_options,
        "max_document": None if options.max_document is None else parse_size(options.max_document),
    }
    # What was left out keeps the readers' own defaults, which stand there and nowhere else.
    reading = {name: value for name, value in reading.items() if value is not None}
    groups = split_languages(options.data)
    if groups is None:
        return {"": TextFiles(options.data, **reading)}
    if not several:
        raise EtymonError("this verb reads one text: give the files without their languages")
    return {code: TextFiles(paths, **reading) for code, paths in groups.items()}


def parse_size(text: str) -> int:
    """Bytes in a size such as "200MB", "1.5 GB" or "4096" (powers of a thousand)."""
    try:
        return parse_count(re.sub(r"\s*[bB]$", "", text.strip()))
    except EtymonError:
        raise EtymonError(f"cannot read {text!r} as a size: write e.g. 500kB, 200MB or 2GB") from None
