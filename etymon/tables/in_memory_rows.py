"""Rows that a program holds: a list of them, columns by their names, or a data frame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from etymon.errors import EtymonError

MISSING = ("NAType", "NaTType")
"""What pandas puts where there is no value."""


def listed(given: Any) -> list[Any]:
    """Files as they are, or rows as values that JSON knows, whatever a program holds them in."""
    if isinstance(given, str | Path):
        return [given]
    if isinstance(given, Mapping):
        given = _rows_of_columns(given)
    elif hasattr(given, "to_dicts"):  # polars, which need not be there
        given = given.to_dicts()
    elif hasattr(given, "to_pylist"):  # an Arrow table
        given = given.to_pylist()
    elif hasattr(given, "to_dict") and hasattr(given, "columns"):  # pandas
        given = given.to_dict("records")
    if not isinstance(given, Iterable):
        raise EtymonError(
            f"a {type(given).__name__} is no table: give files, rows (a list of dicts), columns (a dict of lists) or a data frame"
        )
    found = list(given)
    held = any(isinstance(each, Mapping) for each in found)
    wanted, what = (Mapping, "a row (a dict)") if held else (str | Path, "a file, or a row (a dict)")
    for number, each in enumerate(found, 1):
        if not isinstance(each, wanted):
            raise EtymonError(f"row {number} of the table is a {type(each).__name__}, not {what}")
    return [_plain(row) for row in found] if held else found


def _rows_of_columns(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    for name, values in columns.items():
        if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
            raise EtymonError(
                f"column {name!r} is a {type(values).__name__}, not a list of values; one row alone is a list of one dict"
            )
    lists = {name: list(values) for name, values in columns.items()}
    if len({len(values) for values in lists.values()}) > 1:
        told = ", ".join(f"{name!r} has {len(values):,}" for name, values in lists.items())
        raise EtymonError(f"columns need as many values each: {told}")
    return [dict(zip(lists, row)) for row in zip(*lists.values())]


def _plain(value: Any) -> Any:
    """Without numpy's kinds of numbers and lists."""
    if isinstance(value, np.generic | np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if type(value).__name__ in MISSING else value
