"""What a run takes over from the model that it goes on from: its tokenizer, and with a larger one room for new words."""

from __future__ import annotations

from collections.abc import Callable

from etymon.errors import EtymonError
from etymon.families.family import Family
from etymon.families.model import Model
from etymon.families.surgery import grow
from etymon.runs.run_file import CommonFile
from etymon.text.tokenizer import Tokenizer
from etymon.text.tokenizer_growing import extends, require_room, spellings, with_roles


def start_tokenizer(file: CommonFile, started: Model, tell: Callable[[str], None]) -> Tokenizer:
    """The model's own tokenizer, or the one that was given if it is an extension of it; with the special tokens that its
    family reads texts by, which `tell` hears of if some were not there (GPT-1's were not published)."""
    if started.int8:
        raise EtymonError(
            f"{file.start} has weights of eight bits and cannot be trained: go on from the whole model"
        )
    asked = None if file.tokenizer is None or file.kind else Tokenizer.load(file.tokenizer)
    given = asked or started.tokenizer
    if given is None:
        raise EtymonError(f"{file.start} has no tokenizer: give its own with --tokenizer")
    if started.tokenizer is None:
        if given.size > started.shape.vocabulary:
            raise EtymonError(
                f"the tokenizer {file.tokenizer} has {given.size:,} tokens, and {file.start} only "
                f"{started.shape.vocabulary:,} word vectors: it is not its own"
            )
        started.tokenizer = given
    if not extends(given, started.tokenizer):
        raise EtymonError(
            f"{file.start} has a tokenizer of its own, and {file.tokenizer} is another: leave --tokenizer out"
        )
    if file.vocabulary is not None:
        require_room(given, file.vocabulary)
    if missing := _missing_specials(given, started.family):
        given = with_roles(given, missing)
        tell(
            f"{file.start} has no {' and no '.join(dict.fromkeys(missing.values()))}, which texts are framed by: added to its tokenizer, "
            "with new word vectors"
        )
    return given


def _missing_specials(tokenizer: Tokenizer, family: Family) -> dict[str, str]:
    """The family's special tokens by role, of those that its framing needs and the tokenizer lacks. What begins a text may also
    end it."""
    specials = family.tokenizer.specials
    lacking = {specials[role] for role in family.framing.roles if role not in tokenizer.roles}
    return {
        role: token for role, token in specials.items() if token in lacking and role not in tokenizer.roles
    }


def grown(model: Model, tokenizer: Tokenizer, seed: int = 0) -> tuple[Model, dict[str, int]] | None:
    """The model with a row for every token of a tokenizer that extends its own, and what it grew from and to."""
    old = model.tokenizer
    if old is None or old.size == tokenizer.size:
        return None
    return grow(model, old.size, spellings(tokenizer, old), seed), {"from": old.size, "to": tokenizer.size}
