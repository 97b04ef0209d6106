"""Values as a page shows them."""

from __future__ import annotations

from typing import Any

from etymon.display import display_width

Cell = str | float | None


def as_html(text: str) -> Any:
    """Text that a template takes over as it is."""
    from markupsafe import Markup

    return Markup(text)


def is_short(text: str) -> bool:
    """Whether a cell of a table is a name, such as a label, that is not to be broken: Chinese ones break
    anywhere."""
    return display_width(text) <= 12


def shown(value: Cell) -> str:
    """A number with four digits (or all those before the point); text as it is; nothing as a dash."""
    if value is None:
        return "–"
    if isinstance(value, str | bool):
        return str(value)
    if isinstance(value, int) or value == 0 or 1000 <= abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:.4g}" if 1e-4 <= abs(value) < 1000 else f"{value:.3e}"
