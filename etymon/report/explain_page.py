"""The page of `etymon explain`: one HTML file to step through what an objective does to a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from etymon.files import json_text
from etymon.report.page import as_html, in_language, render_template

WORDS = (
    "reads was predicts guesses position segment order draws loss rank replaced? step of play pause back "
    "next yes no sure mask special sentinel changed asked text memory layers"
).split()
PHRASES = (
    "who sees whom",
    "rows see columns",
    "all see all",
    "all layers",
    "query stream",
    "content stream",
    "decoder sees encoder",
    "point at a token",
    "sample",
    "next sentence",
    "sentence order",
)


def explain_page(record: Mapping[str, Any]) -> str:
    """The page of an explanation as plain data (`explaining.explanation.as_record`)."""
    words = {name: in_language(name) for name in (*WORDS, *PHRASES)}
    names = {reader["name"] for sample in record["samples"] for reader in sample["readers"]}
    words |= {name: in_language(name) for name in names}
    # In a script element only "</" could end the data early.
    data = json_text({"explanation": record, "words": words}, ascii=True).replace("</", "<\\/")
    title, about = f"{record['family']}: {record['objective']}", record["about"]
    return render_template("explain.html", title=title, subtitle=in_language(about), data=as_html(data))
