"""Text in any encoding: read whole and in pieces, and named where it was not expected."""

from __future__ import annotations

import io
import logging
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etymon.errors import EtymonError
from etymon.settings.reading import EncodingSettings
from etymon.tables.formats import write_table
from etymon.tables.table import read_table
from etymon.text.charsets import _guess_east_asian, decode_stream, guess_encoding
from etymon.text.reading import Reading, find_separator
from etymon.text.sources import TextFiles, text_source

CHINESE = "酒店的位置很好，服务周到，房间也干净。早餐种类不多，但是味道不错，下次还会再来。"
TEXTS = {
    "gb18030": CHINESE,
    "big5": "人人生而自由，在尊嚴和權利上一律平等。他們賦有理性和良心，並應以兄弟關係的精神互相對待。",
    "shift_jis": "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "euc_jp": "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "euc_kr": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "utf-16": CHINESE,
    "utf-8": CHINESE,
    "cp1251": "Все люди рождаются свободными и равными в своём достоинстве и правах.",
    "cp1252": "Tous les êtres humains naissent libres et égaux en dignité et en droits.",
}


def decoded(data: bytes, step: int = 1 << 20, **options: Any) -> str:
    stream = io.BytesIO(data)
    return "".join(decode_stream(lambda _: stream.read(step), "a.txt", Reading(**options)))


@pytest.mark.parametrize("encoding", TEXTS)
def test_every_encoding_is_read_by_name_and_by_guess(encoding: str, tmp_path: Path) -> None:
    text = f"{TEXTS[encoding]}\n" * 5
    (tmp_path / "a.txt").write_bytes(text.encode(encoding))
    for name in (encoding, "auto"):
        files = TextFiles([tmp_path / "a.txt"], encoding=name)
        assert "".join(part.text for part in files.documents()) == text
    if encoding != "utf-8":
        with pytest.raises(EtymonError, match="is not UTF-8") as refusal:
            list(TextFiles([tmp_path / "a.txt"]).documents())
        assert TEXTS[encoding][:12] in str(refusal.value), "what it says, decoded"
        assert "latin" not in str(refusal.value).lower()


@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_characters_are_whole_wherever_the_bytes_are_cut(data: st.DataObject) -> None:
    encoding = data.draw(st.sampled_from(["gb18030", "big5", "shift_jis", "utf-16", "utf-8", "iso2022_jp"]))
    letters = "".join(TEXTS.get(encoding, "自由である")) + "ab\n\r"
    text = data.draw(st.text(letters, max_size=40))
    spelled = text.encode(encoding)
    assert decoded(spelled, data.draw(st.integers(1, 9)), encoding=encoding) == text


def test_ascii_is_read_on_until_the_encoding_shows() -> None:
    start, end = "plain\n" * 20, CHINESE * 2
    data = (start + end).encode("gb18030")
    assert decoded(data, 50, encoding="auto") == start + end
    assert decoded(b"plain", encoding="auto") == "plain"
    assert decoded("plain".encode("utf-16-le"), encoding="auto") == "plain"


def test_a_byte_order_mark_is_dropped_and_believed() -> None:
    for encoding in ("utf-8-sig", "utf-16", "utf-32", "gb18030"):
        text = "\ufeff" + CHINESE if encoding == "gb18030" else CHINESE
        assert decoded(text.encode(encoding), encoding="auto") == CHINESE
        assert (
            decoded(text.encode(encoding), encoding=EncodingSettings(encoding=encoding).encoding) == CHINESE
        )
    with pytest.raises(
        EtymonError, match=r"begins with the byte-order mark of UTF-8, .*酒店的位置.*--encoding utf-8"
    ):
        decoded(CHINESE.encode("utf-8-sig"), encoding="gb18030")


def test_a_file_in_two_encodings_is_refused_where_the_second_begins() -> None:
    data = f"{CHINESE}\n".encode() * 3 + CHINESE.encode("gb18030")
    for encoding in ("utf-8", "auto"):
        with pytest.raises(
            EtymonError, match=r"\(line 4\): what follows reads as gb18030, “酒店的位置.*divide the file"
        ):
            decoded(data, encoding=encoding)
    with pytest.raises(EtymonError, match=r"is not gb2312 at byte \d+ \(line 1\): it reads as gb18030"):
        decoded((CHINESE + "镕" + CHINESE).encode("gb18030"), encoding="gb2312")


def test_replaced_characters_are_counted_and_too_many_refused(caplog: pytest.LogCaptureFixture) -> None:
    spelled = (CHINESE * 20).encode()
    bad = spelled[:300] + b"\xff" + spelled[300:]
    with caplog.at_level(logging.WARNING, "etymon"):
        assert decoded(bad, errors="replace").count("\ufffd") == 1
    assert "a.txt: 1 of 801 characters (0.12%) were no utf-8 and are U+FFFD now" in caplog.text
    gb = CHINESE.encode("gb18030")
    with pytest.raises(
        EtymonError, match=r"at most 1% may be replaced: name the right --encoding.*--max-replaced 1"
    ):
        decoded(gb, errors="replace")
    assert "\ufffd" in decoded(gb, errors="replace", max_replaced=1)
    assert decoded(bad, errors="replace") == bad.decode("utf-8", "replace"), "as Python replaces"


def test_what_is_skipped_is_a_document_a_row_or_a_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(
        f"{CHINESE}\n".encode("gb18030") * 2 + b"\x81\x20\n" + CHINESE.encode("gb18030")
    )
    files = TextFiles([tmp_path / "a.txt"], boundary="line", errors="skip", encoding="gb18030")
    assert [part.text for part in files.documents()] == [CHINESE] * 3 and files.skipped == 1
    how = EncodingSettings(encoding="gb18030", errors="skip")
    for name, row in (("a.csv", "{},1"), ("a.jsonl", '{{"text": "{}"}}')):
        header = "text,label\n" if name == "a.csv" else ""
        rows = "\n".join(row.format(text) for text in (CHINESE, "X", CHINESE))
        (tmp_path / name).write_bytes((header + rows).encode("gb18030").replace(b"X", b"\xff"))
        assert [found["text"] for found in read_table(tmp_path / name, how=how).rows] == [CHINESE] * 2
    (tmp_path / "p.de").write_bytes(b"eins\nzwei\xff\ndrei\n")
    (tmp_path / "p.en").write_bytes(b"one\ntwo\nthree\n")
    pairs = read_table([tmp_path / "p.de", tmp_path / "p.en"], how=EncodingSettings(errors="skip")).rows
    assert pairs == [{"de": "eins", "en": "one"}, {"de": "drei", "en": "three"}], "both sides of a pair"


def test_guesses_hold_for_short_and_for_mostly_plain_text() -> None:
    draw = random.Random(0)
    for size in (15, 25, 40):
        at = draw.randrange(len(CHINESE) - size + 1)
        assert guess_encoding(CHINESE[at : at + size].encode("gb18030")) in ("gb18030", "gbk", "gb2312")
    assert guess_encoding(b"plain text\n" * 5000 + CHINESE.encode("gb18030")) == "gb18030"
    assert guess_encoding("Nous l'avons déjà vue à la gare en été.".encode("latin-1")) == "cp1252"
    assert guess_encoding(b"plain") is None


@pytest.mark.parametrize("encoding", ["gb18030", "big5", "shift_jis", "euc_jp", "euc_kr"])
def test_a_cell_of_a_table_is_enough_for_a_guess(encoding: str) -> None:
    """Of ten characters nine guesses in ten read as what they are, and none as Latin letters."""
    text = TEXTS[encoding]
    guesses = []
    for start in range(len(text) - 10):
        cell = f"id,text\r\n{start},{text[start : start + 10]}\r\n".encode(encoding)
        guess = guess_encoding(cell)
        guesses.append(guess is not None and cell.decode(guess, "replace") == cell.decode(encoding))
        assert guess not in ("cp1252", "latin-1")
    assert sum(guesses) >= 0.9 * len(guesses)


def test_an_excerpt_shows_letters_that_were_decoded() -> None:
    record = b'{"id": "2024-03-01/000017", "source": "hotel", "text": "' + CHINESE.encode("gb18030") + b'"}'
    with pytest.raises(
        EtymonError, match='it reads as gb18030, “…xt": "酒店的位置很好，服务周到，房间也干净…”'
    ):
        decoded(record)


def test_texts_that_charset_normalizer_gives_up_are_named() -> None:
    text = "故事都太长了～～而且有的有点不可理解～～不太喜欢～～读了两本就读不下去了～\n低价位，中性能，因为不需要很高配置"
    assert guess_encoding(text.encode("gb18030")) == "gb18030"


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("предупреждение: избыточные арг", "koi8_r"),
        ("використання інструкції %s пот", "koi8_u"),
        ("ไม่สามารถจองหน่วยความจำสำหรับโพรไฟล์สี", "cp874"),
        ("błąd składni: oczekiwano wyrażenia arytmetycznego\nWłaściwości", "iso8859_2"),
    ],
)
def test_letters_of_other_scripts_are_no_chinese(text: str, encoding: str) -> None:
    found = _guess_east_asian(text.encode(encoding))
    assert found is None or not found.is_convincing


def test_only_encodings_of_text_are_taken() -> None:
    for name in ("klingon", "hex", "idna", "unicode_escape"):
        with pytest.raises(EtymonError, match="encoding"):
            EncodingSettings(encoding=name)
    assert EncodingSettings(encoding="GBK").encoding == "GBK"
    assert (
        EncodingSettings(encoding="utf8").encoding
        == EncodingSettings(encoding="utf-8-sig").encoding
        == "utf-8"
    )


def test_a_fingerprint_knows_the_encoding_and_old_ones_stay(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(CHINESE.encode("gb18030"))
    made = {
        TextFiles([tmp_path / "a.txt"], encoding=name).fingerprint() for name in ("utf-8", "gb18030", "auto")
    }
    assert len(made) == 3
    plain = text_source([str(tmp_path / "a.txt")])
    assert plain.fingerprint() in made


# ---------------------------------------------------------------- tables


@pytest.mark.parametrize("separator", [",", ";", "\t", "|", "，", "；"])
def test_separators_are_seen_and_named(separator: str, tmp_path: Path) -> None:
    cells = [["text", "label"], ['"a, b; c"', "1"], ["很好", "2"]]
    (tmp_path / "a.csv").write_text("\n".join(map(separator.join, cells)), encoding="utf-8")
    if separator in "，":
        assert find_separator(["甲，乙", "1，2"], ",", 0) == "，"
    table = read_table(tmp_path / "a.csv")
    assert table.rows == [{"text": "a, b; c", "label": "1"}, {"text": "很好", "label": "2"}]
    (tmp_path / "a.csv").write_text("\n".join(map(separator.join, [*cells, ["x"]])), encoding="utf-8")
    if separator == ",":
        with pytest.raises(
            EtymonError, match=r"line 4: a row of 1 columns .separated by commas. where the header"
        ):
            read_table(tmp_path / "a.csv")


def test_a_column_of_texts_with_other_marks_stays_one_column(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text\na; b\nc; d\n", encoding="utf-8")
    assert [row["text"] for row in read_table(tmp_path / "a.csv").rows] == ["a; b", "c; d"]
    assert find_separator(["a;b", "1;2"], ",", 3) == ",", "three columns were named"


def test_tables_for_spreadsheets_have_a_mark_where_asked(tmp_path: Path) -> None:
    rows = [{"text": CHINESE, "prediction": "好"}]
    for name in ("a.csv", "a.tsv"):
        write_table(tmp_path / name, rows, bom=True)
        assert (tmp_path / name).read_bytes().startswith(b"\xef\xbb\xbftext")
        assert read_table(tmp_path / name).rows == rows
    write_table(tmp_path / "a.jsonl", rows, bom=True)
    assert (tmp_path / "a.jsonl").read_bytes().startswith(b"{"), "which no reader of JSON expects"


@pytest.mark.parametrize("ending", [".xlsx", ".xls", ".ods", ".et"])
def test_a_spreadsheets_own_file_is_refused_with_the_way_out(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"评论{ending}"
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    for read in (lambda: read_table(path), lambda: list(TextFiles([path]).documents())):
        with pytest.raises(EtymonError, match=r"save it as CSV") as error:
            read()
        assert error.value.code == "broken-table"
