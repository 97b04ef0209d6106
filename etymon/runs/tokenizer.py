"""How a run's tokenizer is trained: by its kind, its family and its size."""

from __future__ import annotations

import sys
from typing import Any

from etymon.errors import EtymonError

DEFAULT_SIZE = 8000
PLAIN_SPECIALS = {"pad": "<pad>", "unknown": "<unk>", "begin": "<s>", "end": "</s>", "mask": "<mask>"}
HOMES = {"byte-bpe": "gpt2", "word-bpe": "gpt1", "wordpiece": "bert", "unigram": "t5"}
"""The family whose special tokens a kind has, unless another is named."""


def training_choice(
    kind: str | None,
    family: str | None,
    size: int | None,
    lowercase: bool | None = None,
    strip_accents: bool | None = None,
    form: str | None = None,
) -> dict[str, Any]:
    """Returns the arguments of `train_tokenizer`: the family's recipe, as far as it is not overridden.

    `kind` or `family` must be given; without a `size` it is 8,000, or all bytes or characters of those kinds.
    """
    from etymon.text.tokenizer_training import LOSSLESS

    if kind is None and family is None:
        raise EtymonError(
            "say which tokenizer: --kind byte-bpe, unigram, wordpiece, ..., or --family gpt2, bert, t5, ..."
        )
    home = family or HOMES.get(kind or "")
    specials, sentinels, framing, min_frequency = dict(PLAIN_SPECIALS), 0, None, 2
    if home is not None:
        from etymon.families import get_family  # which imports torch

        recipe, framing = get_family(home).tokenizer, get_family(home).framing
        specials = dict(recipe.specials)
        sentinels = recipe.sentinels if family is not None or kind == recipe.kind else 0
        kind = kind or recipe.kind
        if family is not None:
            min_frequency = recipe.min_frequency
        if family is not None and kind not in LOSSLESS:  # case and accents go only where a family was named
            lowercase = recipe.lowercase if lowercase is None else lowercase
            strip_accents = recipe.strip_accents if strip_accents is None else strip_accents
    if kind not in LOSSLESS:
        specials.setdefault("unknown", PLAIN_SPECIALS["unknown"])
    elif home is None:
        del specials["unknown"]
    usual = {"byte": 256 + len(set(specials.values())) + sentinels, "character": sys.maxunicode}
    return {
        "kind": kind,
        "size": size or usual.get(kind or "", DEFAULT_SIZE),
        "lowercase": bool(lowercase),
        "strip_accents": bool(strip_accents),
        "normalise": form,
        "specials": specials,
        "sentinels": sentinels,
        "framing": framing,
        "min_frequency": min_frequency,
    }
