"""Bytes to text in any of Python's encodings, chunk by chunk, and what the encoding of some bytes may be."""

from __future__ import annotations

import codecs
import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from etymon.errors import EtymonError

logger = logging.getLogger("etymon.text")

Errors = Literal["strict", "replace", "skip"]
BUFFER = 1 << 20
"""Bytes that are read at once."""
SAMPLE = 1 << 16
"""Bytes that an encoding is guessed from."""
ENOUGH = 1 << 16
"""Characters after which too many replaced ones are refused, before the end of a file."""
EXCERPT = 24
"""Characters that are shown of a text."""
MARK = "\udc80"
"""Stands for bytes that are no text, and in no good text."""
BOMS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32",  # before that of UTF-16, which it begins with
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    b"\x84\x31\x95\x33": "gb18030",
}
LONGEST_BOM = max(map(len, BOMS))
HIGH = re.compile(rb"[\x80-\xff]+")
EAST_ASIAN: dict[str, list[tuple[str, int, float]]] = {
    "gb18030": [("[\xb0-\xd7][\xa1-\xfe]", 3755, 0.85), ("[\xa1-\xa3][\xa1-\xfe]", 280, 0.13)],
    "big5": [("[\xa4-\xc6].", 5401, 0.85), ("[\xa1-\xa3].", 400, 0.13)],
    "cp949": [("[\xb0-\xc8][\xa1-\xfe]", 2350, 0.9), ("[\xa1-\xa3][\xa1-\xfe]", 280, 0.08)],
    "cp932": [
        ("\x82[\x9f-\xf1]", 83, 0.4),
        ("\x83[\x40-\x96]", 86, 0.15),
        ("[\x88-\x97].", 2965, 0.33),
        ("[\x81\x82].", 240, 0.1),
    ],
    "euc_jp": [
        ("\xa4.", 83, 0.4),
        ("\xa5.", 86, 0.15),
        ("[\xb0-\xcf].", 2965, 0.33),
        ("[\xa1\xa3].", 190, 0.1),
    ],
}
"""By encoding, the bytes of common characters (of level 1 of its standard, kana, punctuation), how many there
are, and their share of a usual text."""
RARE = math.log(0.02 / 15000)
"""The logarithm of a rare character's probability: the rest of the usual text among what else there is."""
CONVINCING = -9.0
"""Of the average character, from which on bytes are text of such an encoding whatever else they may be.
Reviews and messages are above -8.9; what reads so of Russian, Thai or Polish in their old encodings is below
-9.1."""
FEW = 20
"""Characters that are too few to be convincing: some Russian words in KOI8-R are common Chinese
characters."""
WESTERN = "cp1252"
"""What a text of Latin letters is taken for: Latin-1 with quotation marks, dashes and the euro sign."""

codecs.register_error("etymon.mark", lambda error: (MARK, error.end))  # type: ignore[attr-defined]


class DecodingRules(Protocol):
    """How bytes become text, and the files of which it was said how much was replaced."""

    encoding: str
    errors: Errors
    max_replaced: float
    noted: set[str]


def decode_stream(read: Callable[[int], bytes], name: str, how: DecodingRules) -> Iterator[str]:
    """The text of a stream, a chunk for every `read`, without a byte-order mark.

    What is no text in the encoding is refused with its byte and line, or marked, or replaced with a note;
    more than `max_replaced` of it is refused. With the encoding `auto` it is chosen by the first chunk that
    is not plain ASCII.
    """
    decoder, encoding = None, how.encoding
    head, fed, line, characters, replaced = b"", 0, 1, 0, 0
    is_first, final, has_letters = True, False, False
    while not final:
        data = read(BUFFER)
        final = not data
        if is_first:  # a terminal or a pipe may give a byte at a time
            head += data
            if len(head) < LONGEST_BOM and not final:
                continue
            data, is_first = head, False
            _refuse_bom(data, name, encoding)
        if decoder is None:
            if how.encoding == "auto":
                if data.isascii() and not {0, 27} & set(data[:ENOUGH]) and not final:
                    fed, line, characters = fed + len(data), line + data.count(10), characters + len(data)
                    yield data.decode()
                    continue
                encoding = _choose_encoding(data, final)
            mode = "strict" if how.errors == "strict" else "etymon.mark"
            decoder = codecs.getincrementaldecoder(encoding)(mode)
        fed += len(data)
        try:
            text = decoder.decode(data, final)
        except UnicodeDecodeError as error:
            raise EtymonError(
                _failure(name, encoding, error, fed, line, has_letters), code="not-utf8"
            ) from error
        if fed == len(data):
            text = text.removeprefix("\ufeff")
        line, characters = line + text.count("\n"), characters + len(text)
        has_letters = has_letters or not text.isascii()
        if how.errors == "replace" and MARK in text:
            replaced += text.count(MARK)
            text = text.replace(MARK, "\ufffd")
        if (final or characters >= ENOUGH) and replaced > how.max_replaced * characters:
            raise EtymonError(
                f"{name}: {replaced:,} of {characters:,} characters are no {encoding} "
                f"({replaced / characters:.1%}), and at most {how.max_replaced:.0%} may be replaced: name "
                "the right --encoding, or auto, or insist with --max-replaced 1",
                code="too-much-replaced",
            )
        yield text
    if replaced and name not in how.noted:
        how.noted.add(name)
        logger.warning(
            f"{name}: {replaced:,} of {characters:,} characters ({replaced / characters:.2%}) were no "
            f"{encoding} and are U+FFFD now"
        )


def read_whole(path: Path, how: DecodingRules) -> str:
    """A file as one text, whose lines end with \\n; refused if there is anything to skip."""
    try:
        with path.open("rb") as source:
            text = "".join(decode_stream(source.read, str(path), how))
    except OSError as error:
        raise EtymonError(f"cannot read {path}: {error.strerror}") from error
    if MARK in text:
        raise EtymonError(f"{path} cannot be read whole: --errors skip leaves out lines, not texts")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def guess_encoding(data: bytes) -> str | None:
    """What bytes that are no UTF-8 may be; None if nothing fits."""
    if bom := _bom_encoding(data):
        return bom
    # Lines of plain ASCII say nothing; but where many bytes are zero, lines are none.
    has_lines = data.count(0) <= len(data) // 10
    sample = _sample_lines(data) if has_lines else data[:SAMPLE]
    runs = HIGH.findall(sample)
    if not runs:
        return None
    likely = None if b"\0" in sample else _guess_east_asian(sample)
    if likely and likely.is_convincing:
        return likely.encoding
    letters = sum(map(len, re.findall(rb"[A-Za-z]+", sample)))
    is_single = sum(len(run) == 1 for run in runs) > 0.8 * len(runs)
    # An accented letter and the plain one behind it would do for a character of Big5.
    if is_single and b"\0" not in sample and sum(map(len, runs)) < 0.3 * letters:
        return WESTERN if _decodes(sample, WESTERN) else "latin-1"
    import charset_normalizer  # which takes a moment, and is hardly ever needed

    wide = [] if b"\0" in sample else ["utf_16", "utf_16_le", "utf_16_be", "utf_32", "utf_32_le", "utf_32_be"]
    for cut in range(4):  # the last character may be there in part
        best = charset_normalizer.from_bytes(sample[: len(sample) - cut], cp_exclusion=wide).best()
        if best is not None and _decodes(sample, best.encoding):
            name = best.encoding
            if likely and _is_east_asian(name):
                return likely.encoding
            return name.replace("_", "-") if name.startswith("utf") else name
    return likely.encoding if likely and likely.is_plausible else None


class LikelyEncoding(NamedTuple):
    encoding: str
    is_plausible: bool
    """Whether the characters are mostly common ones."""
    is_convincing: bool
    """Whether that can be no chance."""


def _guess_east_asian(data: bytes) -> LikelyEncoding | None:
    """The most probable of the East Asian encodings that bytes are text in, by how common their characters
    are there. charset-normalizer takes many short texts for another of them (half of the Korean ones of
    eight characters), and one Chinese text in three hundred for none, however long."""
    ranked = []
    for encoding, common in EAST_ASIAN.items():
        if not _decodes(data, encoding):
            continue
        text = codecs.getincrementaldecoder(encoding)("strict").decode(data)
        likelihood, letters = 0.0, 0
        for letter, count in Counter(text).items():
            if letter < "\x80":
                likelihood += count * math.log(1 / 95)
                continue
            spelled = letter.encode(encoding).decode("latin-1")
            classes = (
                math.log(share / size) for form, size, share in common if re.fullmatch(form, spelled, re.S)
            )
            likelihood += count * next(classes, RARE)
            letters += count
        plain = (len(text) - letters) * math.log(1 / 95)
        average = (likelihood - plain) / max(1, letters)
        is_plausible = letters > 0 and average > CONVINCING
        ranked.append((likelihood, LikelyEncoding(encoding, is_plausible, is_plausible and letters >= FEW)))
    return max(ranked)[1] if ranked else None


def _is_east_asian(encoding: str) -> bool:
    return encoding.startswith(("gb", "hz", "big5", "cp932", "cp949", "cp950", "euc", "shift", "johab"))


def _sample_lines(data: bytes) -> bytes:
    """Lines that are not plain ASCII, whole ones as far as possible."""
    lines: list[bytes] = []
    size = 0
    for line in data.split(b"\n"):
        if not line.isascii():
            if lines and size + len(line) > SAMPLE:
                break
            lines.append(line[:SAMPLE])
            size += len(line)
    return b"\n".join(lines)


def _decodes(data: bytes, encoding: str) -> bool:
    """Whether bytes are text in an encoding, as far as they go."""
    try:
        codecs.getincrementaldecoder(encoding)("strict").decode(data)
    except UnicodeDecodeError:
        return False
    return True


def _choose_encoding(data: bytes, is_whole: bool) -> str:
    """The encoding of a file that begins with these bytes: UTF-8 where nothing else fits, or where some lines
    are, and others not, so that they are refused with their place."""
    if bom := _bom_encoding(data):
        return bom
    try:
        codecs.utf_8_decode(data, "strict", is_whole)
        if b"\0" not in data:
            return "utf-8"
    except UnicodeDecodeError:
        pass
    guess = None if any(map(_is_surely_utf8, data.split(b"\n"))) else guess_encoding(data)
    if guess is None and b"\0" in data and len(data) % 2 == 0:  # ASCII in UTF-16 without a mark
        guess = "utf-16-le" if data[1::2].count(0) >= data[::2].count(0) else "utf-16-be"
    return guess or "utf-8"


def _is_surely_utf8(line: bytes) -> bool:
    """Whether a line is UTF-8 and has enough letters beyond ASCII for that to be no chance."""
    if line.isascii():
        return False
    try:
        return sum(letter > "\x7f" for letter in line.decode()) > 3
    except UnicodeDecodeError:
        return False


def _bom_encoding(data: bytes) -> str | None:
    return next((encoding for bom, encoding in BOMS.items() if data.startswith(bom)), None)


def _refuse_bom(data: bytes, name: str, encoding: str) -> None:
    """Refuses a file that says itself that it is in another encoding."""
    bom = _bom_encoding(data)
    if bom is None or encoding == "auto" or codecs.lookup(encoding).name.startswith((bom, f"{bom}-")):
        return
    if bom == "gb18030" and encoding != "utf-8":  # which are letters elsewhere
        return
    raise EtymonError(
        f"{name} is not {_title(encoding)} at byte 0 (line 1): it begins with the byte-order mark of "
        f"{_title(bom)}, as which it reads {_excerpt(data, bom)}; say --encoding {bom} (or auto)",
        code="not-utf8",
    )


def _failure(name: str, encoding: str, error: UnicodeDecodeError, fed: int, line: int, is_mixed: bool) -> str:
    """What is wrong with bytes that are no text, and what they may be."""
    data = bytes(error.object)
    before = data[: error.start].decode(encoding, "replace")
    line += before.count("\n")
    place = f"{name} is not {_title(encoding)} at byte {fed - len(data) + error.start} (line {line})"
    # Of a file in two encodings, what stands before is in the other one.
    whole_lines = data[: error.start].split(b"\n")[:-1]
    is_mixed = encoding == "utf-8" and (is_mixed or any(map(_is_surely_utf8, whole_lines)))
    start = data.rfind(b"\n", 0, error.start) + 1 if is_mixed or error.start > SAMPLE // 2 else 0
    guess = guess_encoding(data[start : start + 2 * SAMPLE])
    if guess is None or codecs.lookup(guess) == codecs.lookup(encoding):
        return f"{place}: mend it, or go on with --errors replace or --errors skip"
    excerpt = _excerpt(
        data[data.rfind(b"\n", 0, error.start) + 1 if start or "16" not in guess else 0 :], guess
    )
    if is_mixed:
        return (
            f"{place}: what follows reads as {guess}, {excerpt}, and what stands before does not; divide the "
            "file, or go on with --errors skip"
        )
    return f"{place}: it reads as {guess}, {excerpt}; say --encoding {guess} (or auto), or --errors skip if it is damaged"


def _excerpt(data: bytes, encoding: str) -> str:
    """The beginning of a text, in quotes; of one that begins with a long run of ASCII, such as the fields of
    a record, where other letters begin: these show whether it is decoded rightly."""
    text = data[:SAMPLE].decode(encoding, "replace").removeprefix("\ufeff")
    first = next((place for place, letter in enumerate(text) if letter > "\x7f"), 0)
    start = max(0, first - EXCERPT // 4) if first > EXCERPT // 2 else 0
    words = " ".join(text[start : start + 8 * EXCERPT].split())
    return f"“{'…' if start else ''}{words[:EXCERPT]}{'…' if len(words) > EXCERPT else ''}”"


def _title(encoding: str) -> str:
    return "UTF-8" if encoding == "utf-8" else encoding
