"""Fonts for pictures: matplotlib's own, and those of the system for what it lacks.

matplotlib shapes text (libraqm: joined Arabic letters, right to left, Devanagari conjuncts, Thai marks) and
takes each character from the first family of a list that has it; finding that list is what is done here.
"""

from __future__ import annotations

import logging
import re
import unicodedata
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

logger = logging.getLogger(__name__)

OWN = "DejaVu Sans"
"""It comes with matplotlib: Latin, Greek, Cyrillic, Hebrew, Arabic, Georgian, Armenian."""

# What to install on Debian and Ubuntu; the first row that fits a character.
PACKAGES = {
    "fonts-noto-cjk": re.compile(
        "[\u1100-\u11ff\u2e80-\u31ff\u3200-\ua4cf\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\ufe30-\ufe4f"
        "\uff00-\uffef\U0001b000-\U0001b16f]"
    ),
    "fonts-hanazono": re.compile("[\U00020000-\U0003ffff]"),
    "fonts-symbola": re.compile("[\u2190-\u2bff\U0001f000-\U0001faff]"),
    "fonts-noto-core": re.compile(""),
}
# Fonts of pictures (emoji in colours) are of no use to matplotlib; those of boxes would pass for any script.
_USELESS = re.compile("color|lastresort|adobeblank", re.IGNORECASE)
# Crude or fancy fonts that have many scripts; they are taken where nothing else has a character.
_LAST = re.compile("unifont|unsmoothed|fallback|kufi|nastaliq|rashi", re.IGNORECASE)


def families_for(text: str, picture: str = "") -> list[str]:
    """The families to draw the text with, matplotlib's own first.

    If `picture` is the name of a picture that holds its letters as shapes, what no font has is noted; an SVG
    that keeps text as text is shown in the fonts of whoever looks at it.
    """
    wanted = frozenset(
        letter
        for letter in text
        # Joiners, direction marks and variation selectors have no shape; unassigned characters no font.
        if not letter.isascii() and unicodedata.category(letter) not in ("Cc", "Cf", "Cn", "Cs", "Co", "Zs")
    )
    fonts = _search(wanted - frozenset("\ufe0e\ufe0f"), _region(text))
    if fonts.missing and picture:
        logger.warning(_missing(fonts.missing, picture))
    return [OWN, *fonts.families]


class FoundFonts(NamedTuple):
    """Families of the system, and the characters that none of them has."""

    families: tuple[str, ...]
    missing: str


@lru_cache(maxsize=64)
def _search(wanted: frozenset[str], region: str) -> FoundFonts:
    """Chooses fonts that have the most of what is still lacking, one after the other.

    Looking through 294 fonts took 0.12 s on one core of an AMD EPYC; text that matplotlib's own font has
    costs nothing."""
    from matplotlib import font_manager

    manager = font_manager.fontManager
    charmap = font_manager.get_font(manager.findfont(OWN)).get_charmap()
    missing = {ord(letter) for letter in wanted} - charmap.keys()
    families: list[str] = []
    candidates = _system_fonts(missing, region) if missing else []
    while missing and candidates:
        best = min(candidates, key=lambda font: (font.is_last, -len(font.has & missing), font.rank))
        if not best.has & missing:
            break
        candidates.remove(best)
        missing -= best.has
        manager.addfont(best.path)  # matplotlib's list of fonts may be older than the font
        families.append(best.family)
    return FoundFonts(tuple(families), "".join(map(chr, sorted(missing))))


class SystemFont(NamedTuple):
    path: str
    family: str
    has: frozenset[int]
    """Which of the wanted characters it has."""
    is_last: bool
    rank: tuple[Any, ...]
    """Smaller is better: upright and regular, sans serif, the region's forms, and then by name."""


def _system_fonts(wanted: set[int], region: str) -> list[SystemFont]:
    from matplotlib import font_manager
    from matplotlib.ft2font import FT2Font

    fonts = []
    for path in sorted(font_manager.findSystemFonts()):
        if _USELESS.search(path):
            continue
        try:
            font = FT2Font(path)
            has = frozenset(wanted & font.get_charmap().keys())
            if not has:
                continue
            faces = [FT2Font(path, face_index=index) for index in range(1, font.num_faces)]
            names = [face.family_name for face in (font, *faces)]
        except (OSError, RuntimeError):  # damaged, or of a kind that matplotlib cannot draw
            continue
        # A collection has a face a region: Chinese and Japanese write some characters differently.
        family = next((name for name in names if name.endswith(region) and "Mono" not in name), names[0])
        is_plain = font.style_name in ("Regular", "Book", "Normal", "Roman", "")
        rank = (not is_plain, "Sans" not in family, "Mono" in family, not family.endswith(region), family)
        fonts.append(SystemFont(path, family, has, bool(_LAST.search(path)), rank))
    return fonts


def _region(text: str) -> str:
    """How fonts for Chinese, Japanese and Korean name the forms that suit the text."""
    return (
        "JP" if re.search("[\u3040-\u30ff]", text) else "KR" if re.search("[\uac00-\ud7af]", text) else "SC"
    )


def _missing(letters: str, picture: str) -> str:
    packages = dict.fromkeys(
        next(name for name, script in PACKAGES.items() if script.match(letter)) for letter in letters
    )
    shown = " ".join(letters[:8]) + (" ..." if len(letters) > 8 else "")
    return (
        f"no font of this system has {shown}, which {picture} shows as boxes: install one (Debian, Ubuntu: "
        f"apt install {' '.join(packages)}), or draw an .svg or .html, which is shown with its reader's fonts"
    )


@contextmanager
def drawing_with(text: str, settings: dict[Any, Any], picture: str = "") -> Iterator[None]:
    """Within it, matplotlib draws with these settings and fonts that have the text (`families_for`)."""
    import matplotlib

    search = logging.getLogger("matplotlib.font_manager")
    level = search.level
    with (
        matplotlib.rc_context({**settings, "font.family": families_for(text, picture)}),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", r"(?s)Glyph .* missing from font")  # a note has said so, once
        search.setLevel(logging.ERROR)  # fonts for Chinese are rarely bold, which nobody needs to know
        try:
            yield
        finally:
            search.setLevel(level)
