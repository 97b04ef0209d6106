"""Bytes to text in any of Python's encodings, chunk by chunk, and what the encoding of some bytes may be."""

from __future__ import annotations

import codecs
import logging
import re
from collections.abc import Callable, Iterator
from typing import Literal, Protocol

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
KOREAN = ("cp949", "euc_kr", "johab")
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
            if name in KOREAN and _has_ideographs(sample, name) and _decodes(sample, "gb18030"):
                return "gb18030"
            return name.replace("_", "-") if name.startswith("utf") else name
    return None


def _has_ideographs(data: bytes, encoding: str) -> bool:
    """Whether a good part of the letters are ideographs, which Korean hardly has: short Chinese texts look
    like Korean ones."""
    letters = [letter for letter in data.decode(encoding, "ignore") if letter.isalpha() and letter > "\x7f"]
    return sum("\u4e00" <= letter <= "\u9fff" for letter in letters) > 0.1 * len(letters)


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
    text = data[: 8 * EXCERPT].decode(encoding, "replace").removeprefix("\ufeff")
    words = " ".join(text.split())
    return f"“{words[:EXCERPT]}{'…' if len(words) > EXCERPT else ''}”"


def _title(encoding: str) -> str:
    return "UTF-8" if encoding == "utf-8" else encoding
