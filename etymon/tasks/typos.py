"""Texts with slips of the finger, to see how much of a score hangs on clean spelling."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from string import ascii_lowercase

import numpy as np

from etymon.errors import EtymonError


def with_typos(texts: Sequence[str], share: float = 0.1, seed: int = 0) -> list[str]:
    """The texts with typos in about this share of their letters; the same for the same seed and text.

    A letter changes places with the next one, is lost, is followed by another one, or is another one, as
    often each (letters of ASCII, or else those of the text). Anything but letters stays as it is, and no text
    becomes empty.
    """
    if not 0 <= share <= 1:
        raise EtymonError(f"a share of letters is between 0 and 1, not {share}")
    return [_mistyped(text, share, seed) for text in texts]


def _mistyped(text: str, share: float, seed: int) -> str:
    digest = hashlib.sha256(f"{seed}/{text}".encode(errors="surrogatepass")).digest()
    draw = np.random.default_rng(int.from_bytes(digest[:8], "little"))
    letters = [place for place, sign in enumerate(text) if sign.isalpha()]
    # Short texts have a typo now and then, so that the share is right over many.
    count = int(share * len(letters) + draw.random())
    own = sorted({text[place].lower() for place in letters})
    signs = list(text)
    for place in sorted(draw.permutation(letters)[:count].tolist()):
        sign, slip = signs[place], int(draw.integers(4))
        others = [each for each in (ascii_lowercase if sign.isascii() else own) if each != sign.lower()]
        other = others[int(draw.integers(len(others)))] if others else sign
        other = other.upper() if sign.isupper() else other
        if slip == 0 and place + 1 < len(text) and text[place + 1].isalpha():
            signs[place], signs[place + 1] = signs[place + 1], sign
        else:
            signs[place] = (other, "", sign + other, other)[slip]
    changed = "".join(signs)
    return changed if changed.strip() else text
