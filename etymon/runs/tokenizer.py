"""The tokenizer of a run: kept from before, given, or trained on its text."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etymon.errors import EtymonError
from etymon.files import read_json, write_json
from etymon.text.alphabets import CharacterCounts
from etymon.text.languages import LanguageText, sample_languages
from etymon.text.sources import PreparedText, TextSource
from etymon.text.text_sample import sample_texts
from etymon.text.tokenizer import Tokenizer
from etymon.text.tokenizer_growing import covering_size, extends, grow_tokenizer
from etymon.text.tokenizer_pipelines import strips_accents
from etymon.text.tokenizer_training import LOSSLESS, train_tokenizer

if TYPE_CHECKING:
    from etymon.families.family import Family
    from etymon.runs.run_file import CommonFile

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
    normalise: Sequence[str] | None = None,
    sentinels: int | None = None,
) -> dict[str, Any]:
    """Returns the arguments of `train_tokenizer`: the family's recipe, as far as it is not overridden.

    `kind` or `family` must be given; without a `size` it is 8,000, or all bytes or characters of those kinds.
    """
    if kind is None and family is None:
        raise EtymonError(
            "say which tokenizer: --kind byte-bpe, unigram, wordpiece, ..., or --family gpt2, bert, t5, ..."
        )
    home = family or HOMES.get(kind or "")
    specials, usual_sentinels, framing, min_frequency = dict(PLAIN_SPECIALS), 0, None, 2
    if home is not None:
        from etymon.families import get_family  # which imports torch

        recipe, framing = get_family(home).tokenizer, get_family(home).framing
        specials = dict(recipe.specials)
        # Sentinels are for corrupted spans: a kind that only borrows the special tokens has none.
        usual_sentinels = recipe.sentinels if family is not None or kind == recipe.kind else 0
        kind = kind or recipe.kind
        if family is not None:
            min_frequency = recipe.min_frequency
        if family is not None and kind not in LOSSLESS:  # case and accents go only where a family was named
            lowercase = recipe.lowercase if lowercase is None else lowercase
            if not recipe.strip_accents:
                strip_accents = bool(strip_accents)
    if kind not in LOSSLESS:
        specials.setdefault("unknown", PLAIN_SPECIALS["unknown"])
    elif home is None:
        del specials["unknown"]
    if sentinels is None:
        sentinels = usual_sentinels
    usual = {"byte": 256 + len(set(specials.values())) + sentinels, "character": sys.maxunicode}
    return {
        "kind": kind,
        "size": size or usual.get(kind or "", DEFAULT_SIZE),
        "lowercase": bool(lowercase),
        # None: as the family does, unless that would spoil the text.
        "strip_accents": strip_accents
        if family is not None and kind not in LOSSLESS
        else bool(strip_accents),
        "normalise": None if normalise is None else list(normalise),
        "specials": specials,
        "sentinels": sentinels,
        "framing": framing,
        "min_frequency": min_frequency,
    }


ACCENTS_STAY = (
    "accents stay, though the family's recipe strips them: in this script that would change or drop letters "
    "(etymon tokenizer --strip-accents does it all the same)"
)


def keeps_accents_after_all(choice: Mapping[str, Any], tokenizer: Tokenizer) -> bool:
    """Whether the family strips accents and this tokenizer does not, since its text would be spoilt."""
    return choice.get("strip_accents", False) is None and not strips_accents(tokenizer)


def advise_on_unknown(
    tokenizer: Tokenizer, family: str | None, counts: CharacterCounts, place: str | None = None
) -> str:
    """What to do about unknown characters, where these are the `counts` of the text that it was trained on,
    or read if it was there already, in a `place`. A family's own kind comes first; of another it is said what
    follows."""
    grown = covering_size(tokenizer, counts, new=False)
    if grown == tokenizer.size:
        advice = "it was trained on text without the characters that are unknown: give it more"
    elif place is not None:
        return f"it would know nearly all characters after etymon tokenizer --from {place} --size {grown}"
    else:
        size = covering_size(tokenizer, counts, new=True)
        advice = f"--size {size} has room for nearly all characters of the text"
    kind, published = tokenizer.kind, None
    if family is not None:
        from etymon.families import get_family  # which imports torch

        published = get_family(family).tokenizer.kind
    if published != kind:
        return f"{advice}; --kind byte-bpe has nothing unknown"
    return (
        f"{advice}; --kind byte-bpe has nothing unknown, but {family} was published with {kind}: tokens may "
        "then be parts of characters, case and accents stay, and Transformers opens it as a generic tokenizer"
    )


def build_tokenizer(
    folder: Path,
    file: CommonFile,
    family: Family,
    text: TextSource | None,
    vocabulary: int,
    given: Tokenizer | None = None,
    *,
    sentinels: int,
    is_kept: bool,
    note: Callable[[str], None],
) -> Tokenizer:
    """Returns the run's tokenizer, which `folder/tokenizer` keeps for resumed runs and for other processes.

    If it `is_kept` there, it is read, and no `text` is needed. Otherwise it is the `given` one (of the model
    to go on from, or of a teacher), that of the run file or of a prepared text, or one of `vocabulary` tokens
    that is trained on the text, or grown from the given one. A new one has so many `sentinels`.
    """
    place = folder / "tokenizer"
    ready = None if is_kept else _ready_tokenizer(file, text, given)
    present = ready or given
    if present is not None and file.kind not in (None, present.kind):
        raise EtymonError(
            f"the tokenizer that is there already is of the kind {present.kind!r}: leave --tokenizer "
            f"{file.tokenizer} out"
        )
    if present is not None and file.sentinels not in (None, len(present.sentinels)):
        raise EtymonError(
            f"the tokenizer that is there already has {len(present.sentinels)} sentinels: leave --sentinels "
            f"{file.sentinels} out, or train another tokenizer"
        )
    # Its tokens were learnt from text in its own form.
    if present is not None and file.normalise is not None:
        raise EtymonError(
            "the tokenizer that is there already says what is made the same in a text: leave --normalise "
            f"{','.join(file.normalise)} out, or train another tokenizer"
        )
    if is_kept:
        tokenizer = Tokenizer.load(place)
    elif ready is not None:
        tokenizer = ready
        (place / "origin.json").unlink(missing_ok=True)
        tokenizer.save(place)  # a copy: the given one may be gone when the run is resumed
    else:
        assert text is not None, "only a resumed run does without its text"
        tokenizer = _train_on_text(place, file, family, text, vocabulary, sentinels, given, note)
    # Whatever it framed texts by before: from now on it reads for this family.
    tokenizer.framing = family.framing
    return tokenizer


def _ready_tokenizer(file: CommonFile, text: TextSource | None, given: Tokenizer | None) -> Tokenizer | None:
    """Returns a tokenizer that exists already; None if one has to be trained on the text."""
    if given is None and file.tokenizer is not None and file.kind is None:
        given = Tokenizer.load(file.tokenizer)
        given.forget_reading()  # by the model that it was made for
    if isinstance(text, PreparedText):
        if file.vocabulary is not None and not text.text:
            raise EtymonError(f"{text.folder} was prepared with its tokenizer: leave out the vocabulary")
        stored = Tokenizer.load(text.folder / "tokenizer")
        stored.forget_reading()
        return stored if given is None or extends(stored, given) else given
    return None if file.start is not None and file.vocabulary is not None else given


def _train_on_text(
    place: Path,
    file: CommonFile,
    family: Family,
    text: TextSource,
    vocabulary: int,
    sentinels: int,
    old: Tokenizer | None,
    note: Callable[[str], None],
) -> Tokenizer:
    """Trains a tokenizer on the text, or grows `old` by it, unless an earlier attempt has done the same."""
    # There are 256 bytes, and all characters are taken: the room that the shape has does not matter.
    size = file.vocabulary if file.kind in ("byte", "character") else vocabulary
    choice = training_choice(file.kind, family.name, size, normalise=file.normalise, sentinels=sentinels)
    origin = {name: value for name, value in choice.items() if name != "framing"}
    if old is not None:
        origin = {"size": size, "grown_from": old.fingerprint}
    if isinstance(text, LanguageText):
        origin["language_temperature"] = text.temperature
    if (place / "origin.json").is_file():
        if read_json(place / "origin.json") == origin | {"text": text.fingerprint()}:
            return Tokenizer.load(place)
        (place / "origin.json").unlink()
    if file.kind == "byte":  # there is nothing to learn
        tokenizer = train_tokenizer(texts=(), **choice)
        tokenizer.save(place)
        return tokenizer
    amount = f"{size:,} tokens" if size else "all characters"
    note(f"{'training' if old is None else 'growing'} a tokenizer of {amount} on the text")
    sampling: Any = sample_texts(text.documents(), hold_out=False)
    if isinstance(text, LanguageText):
        sampling = sample_languages(text, hold_out=False)
    with sampling as (texts, _):
        if old is None:
            tokenizer = train_tokenizer(texts=texts, **choice)
            if keeps_accents_after_all(choice, tokenizer):
                note(ACCENTS_STAY)
        else:
            tokenizer = grow_tokenizer(old, lambda: texts, size or 0)
            note(f"the tokenizer has grown from {old.size:,} to {tokenizer.size:,} tokens")
    tokenizer.save(place)
    # The fingerprint comes last: files that were just read need not be read once more for it.
    write_json(place / "origin.json", origin | {"text": text.fingerprint()})
    return tokenizer
