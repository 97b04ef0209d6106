"""The tokenizer: text to ids and back, over the `tokenizers` library. `tokenizer_folders` has its files."""

from __future__ import annotations

import codecs
import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import tokenizers

from etymon.errors import EtymonError
from etymon.text.framing import CLASS_FIRST, GUESSES, PLAIN, TEXT_END, Framing, ReadingSettings
from etymon.text.normalising import Normalisation

if TYPE_CHECKING:
    from etymon.text.token_stream import TokenStream
    from etymon.text.words import Lexicon

logger = logging.getLogger("etymon.text")

BYTE_KINDS = ("byte-bpe", "byte")
"""Kinds of tokenizers whose tokens are bytes, and may begin or end inside a character."""
BYTE_PIECE = re.compile(r"<0x[0-9A-F]{2}>")
# Byte-level BPE writes bytes as printable characters: this is the byte behind each of the 256.
PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
OTHERS = sorted(set(range(256)) - set(PRINTABLE))
BYTE_OF = {chr(byte): byte for byte in PRINTABLE} | {chr(256 + n): byte for n, byte in enumerate(OTHERS)}
MANY_UNKNOWN = 0.1
"""The share of a text's tokens above which there is a warning that they are unknown."""
UNKNOWN_ADVICE = (
    "it was made for other words, another script or other case; take one, or a model, that fits the text"
)
# Our roles and the names Transformers gives them in tokenizer_config.json.
ROLE_KEYS = {
    "pad": "pad_token",
    "unknown": "unk_token",
    "begin": "bos_token",
    "end": "eos_token",
    "class": "cls_token",
    "separator": "sep_token",
    "mask": "mask_token",
}
SENTINEL = re.compile(r"<extra_id_(\d+)>")


class Tokenizer:
    """Text to ids and back. `encode` adds no special tokens: that is the business of `framing`.

    Special tokens that are spelled out in a text are recognised, as in Transformers.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        roles: Mapping[str, str],
        *,
        framing: Framing | None = None,
        config: Mapping[str, Any] | None = None,
        normalise: Normalisation | None = None,
    ) -> None:
        backend.no_padding()
        backend.no_truncation()
        missing = [token for token in roles.values() if backend.token_to_id(token) is None]
        if missing:
            raise EtymonError(f"the tokenizer's vocabulary lacks its special tokens {', '.join(missing)}")
        self.backend = backend
        self.roles = {role: roles[role] for role in ROLE_KEYS if role in roles}
        self.config = dict(config or {})
        """The keys of a foreign tokenizer_config.json, which are saved as they were."""
        self.description: dict[str, Any] = json.loads(backend.to_str())
        """What tokenizer.json says."""
        self.normalise = normalise or Normalisation()
        """What is done to every text before `backend` sees it: characters for characters."""
        self.framing = framing or self._guess_framing()
        self._unknown_noted = False
        self.counts: np.ndarray | None = None
        """How often every id occurred in the text that a word tokenizer was trained on."""

    # ------------------------------------------------------------ what it is

    @cached_property
    def kind(self) -> str:
        """ "byte-bpe", "bpe", "word-bpe", "wordpiece", "unigram", "word", "character" or "byte"."""
        model, splitter = self.description["model"], self.description["pre_tokenizer"]
        if (kind := model.get("type", "")) != "BPE":
            return "word" if kind == "WordLevel" else kind.lower()
        if model.get("end_of_word_suffix"):
            return "word-bpe"
        if '"ByteLevel"' in json.dumps([splitter, self.description["decoder"]]):
            is_unsplit = (splitter or {}).get("use_regex") is False
            return "byte" if is_unsplit and not model["merges"] else "byte-bpe"
        return "character" if splitter is None and not model["merges"] else "bpe"

    @property
    def prefix(self) -> str:
        """What WordPiece puts before pieces inside of a word; "" for other kinds."""
        return str(self.description["model"].get("continuing_subword_prefix") or "")

    @cached_property
    def tokens(self) -> list[str]:
        """The token string of every id ("" for an id that no token has)."""
        vocabulary = self.backend.get_vocab(with_added_tokens=True)
        tokens = [""] * (max(vocabulary.values()) + 1)
        for token, number in vocabulary.items():
            tokens[number] = token
        return tokens

    @property
    def size(self) -> int:
        """The number of ids; every id is below it."""
        return len(self.tokens)

    def id(self, role: str) -> int | None:
        """The id of the special token in a role, or None."""
        if role not in ROLE_KEYS:
            raise ValueError(f"unknown role {role!r}; roles are {', '.join(ROLE_KEYS)}")
        return self.backend.token_to_id(self.roles[role]) if role in self.roles else None

    @cached_property
    def sentinels(self) -> list[int]:
        """The ids of <extra_id_0>, <extra_id_1>, ... in that order."""
        matches = ((SENTINEL.fullmatch(token), id_) for id_, token in enumerate(self.tokens))
        # By their numbers, not their ids: T5's stand backwards at the end of the vocabulary.
        return [id_ for _, id_ in sorted((int(match[1]), id_) for match, id_ in matches if match)]

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids of special tokens and sentinels."""
        added = self.backend.get_added_tokens_decoder()
        special = {number for number, token in added.items() if token.special}
        roles = {number for role in self.roles if (number := self.id(role)) is not None}
        return frozenset(special | roles | set(self.sentinels))

    @cached_property
    def hidden_ids(self) -> frozenset[int]:
        """The ids that `decode` leaves out: special ones but for the unknown, which stands for some text."""
        others = {self.id(role) for role in self.roles if role != "unknown"}
        return self.special_ids - ({self.id("unknown")} - others)

    @cached_property
    def spaced(self) -> np.ndarray:
        """For every id, whether white space is before it or it is some: other tokens go on with what is
        there. Special tokens stand by themselves."""
        if self.kind in BYTE_KINDS:
            begins = [token[:1] in ("Ġ", "Ċ", "ĉ", "č") for token in self.tokens]
        elif self.kind == "character":
            begins = [token.isspace() for token in self.tokens]
        elif self.kind == "wordpiece":
            begins = [not token.startswith(self.prefix or "##") for token in self.tokens]
        elif self.kind in ("unigram", "bpe"):
            begins = [token.startswith("▁") for token in self.tokens]
        else:  # of `word-bpe` a token only tells whether it ends a word
            begins = [True] * self.size
        spaced = np.array(begins, bool)
        spaced[list(self.special_ids)] = True
        return spaced

    @cached_property
    def word_starts(self) -> np.ndarray:
        """For every id, whether it begins a word: what is `spaced`, and every token with which a character
        of a script without spaces begins. In unigrams a punctuation mark is a word as well, as for ALBERT
        and XLNet."""
        from etymon.text.words import find_word_starts

        return find_word_starts(self)

    def is_inside_character(self, number: int) -> bool:
        """Whether a token begins inside a character: UTF-8 goes on with bytes from 0x80 to 0xBF."""
        return self.kind in BYTE_KINDS and b"\x80" <= token_bytes(self.tokens[number])[:1] < b"\xc0"

    @cached_property
    def byte_lengths(self) -> np.ndarray | None:
        """For every id, how many bytes of text it stands for (special tokens: 0). None if tokens do not
        spell the text exactly; those of characters do, but for characters that are unknown."""
        splitter = json.dumps(self.description["pre_tokenizer"])
        # Whatever changes the text before it is cut makes its tokens spell another one.
        altered = self.description["normalizer"] or '"add_prefix_space": true' in splitter or self.normalise
        if self.kind not in ("byte-bpe", "byte", "character") or altered:
            return None
        spelled = str.encode if self.kind == "character" else token_bytes
        lengths = np.array([len(spelled(token)) for token in self.tokens], np.int32)
        lengths[list(self.special_ids)] = 0
        return lengths

    @cached_property
    def character_lengths(self) -> np.ndarray | None:
        """For every id, how many characters of text begin in it: over any text these add up exactly. Special
        tokens have none, but one that stands for an unknown character has one. None where there are no
        `byte_lengths`."""
        if self.byte_lengths is None:
            return None
        if self.kind == "character":
            lengths = np.ones(self.size, np.int32)
        else:  # every character has one byte that is none of those that go on
            spelled = map(token_bytes, self.tokens)
            lengths = np.array([sum(byte & 0xC0 != 0x80 for byte in token) for token in spelled], np.int32)
        lengths[list(self.special_ids - {self.id("unknown")})] = 0
        return lengths

    @cached_property
    def lexicon(self) -> Lexicon:
        """The letters of its words, for models that read characters."""
        from etymon.text.words import Lexicon

        return Lexicon(self)

    @property
    def framing(self) -> Framing:
        """How sequences become model inputs; assigning a framing binds it to this tokenizer's ids."""
        return self._framing

    @framing.setter
    def framing(self, framing: Framing) -> None:
        self._framing = framing.resolve(self.id)

    @property
    def task_framing(self) -> Framing:
        """The framing of tasks: two texts that it would only join have the end of a text between them."""
        if "end" not in self.roles:
            return self._framing
        return self._framing.with_separator("end").resolve(self.id)

    def _guess_framing(self) -> Framing:
        if "class" in self.roles and "separator" in self.roles:
            return GUESSES.get(self.roles["class"], CLASS_FIRST)
        return TEXT_END if self.kind == "unigram" and "end" in self.roles else PLAIN

    @cached_property
    def fingerprint(self) -> str:
        """A hex digest that is equal for tokenizers that give the same ids and roles."""
        return self._digest(self.roles)

    @property
    def fingerprints(self) -> list[str]:
        """The fingerprint, and those of earlier releases, where a token that pads and has another role as
        well counted as padding, too."""
        padding = () if "pad" in self.roles else self.roles.values()
        return [self.fingerprint, *(self._digest({**self.roles, "pad": token}) for token in padding)]

    def _digest(self, roles: Mapping[str, str]) -> str:
        encoding = {key: value for key, value in self.description.items() if key != "post_processor"}
        # Added only where there is one: digests of stores that were built before stay as they are.
        normalise = [self.normalise.describe()] if self.normalise else []
        text = json.dumps([encoding, roles, *normalise], sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()

    # ------------------------------------------------------------ text to ids

    def encode(self, text: str, *, quiet: bool = False) -> np.ndarray:
        """The ids of a text (int32), without special tokens around it."""
        return self.encode_batch([text], quiet=quiet)[0]

    def encode_batch(self, texts: Sequence[str], *, quiet: bool = False) -> list[np.ndarray]:
        """The ids of many texts, on all cores. Unless it is `quiet`, many unknown tokens are warned about."""
        encodings = self.encode_texts(self.backend.encode_batch_fast, texts)
        rows = [np.array(encoding.ids, np.int32) for encoding in encodings]
        if not quiet:
            self.note_unknown(rows)
        return rows

    def offsets(self, text: str, *, quiet: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The ids of a text and the characters [start, stop) that each token stands for."""
        (encoding,) = self.encode_texts(self.backend.encode_batch, [text])
        spans = np.array(encoding.offsets, np.int64).reshape(-1, 2)
        ids = np.array(encoding.ids, np.int32)
        if not quiet:
            self.note_unknown([ids])
        self._part_bytes(ids, spans)
        return ids, spans[:, 0], spans[:, 1]

    @cached_property
    def _byte_values(self) -> np.ndarray | None:
        """For every id the byte of its piece (`<0xE4>`), -1 for others; None if there are none."""
        values = [int(token[3:5], 16) if BYTE_PIECE.fullmatch(token) else -1 for token in self.tokens]
        return np.array(values, np.int16) if max(values) >= 0 else None

    def _part_bytes(self, ids: np.ndarray, spans: np.ndarray) -> None:
        """Gives the bytes of characters in a row each their own character: a unigram model says of all of
        them that they stand for the whole row."""
        if self._byte_values is None or not (is_byte := self._byte_values[ids] >= 0).any():
            return
        same = is_byte[1:] & is_byte[:-1] & (spans[1:] == spans[:-1]).all(1)
        for row in np.split(np.arange(len(ids)), np.flatnonzero(~same) + 1):
            start, stop = spans[row[0]].tolist()
            character = np.cumsum(self._byte_values[ids[row]] & 0xC0 != 0x80)
            # NFKC may have made several characters of one: then the row keeps its span.
            if is_byte[row[0]] and character[-1] == stop - start:
                spans[row] = np.stack([start + character - 1, start + character], 1)

    def encode_texts(self, encode: Callable[..., Any], texts: Sequence[str]) -> list[tokenizers.Encoding]:
        """What a method of the backend makes of texts, after they were normalised."""
        try:
            read = list(map(self.normalise, texts)) if self.normalise else texts
            return encode(read, add_special_tokens=False)
        except (TypeError, UnicodeEncodeError) as error:  # what the libraries get are texts for sure
            raise EtymonError(
                "a text holds half of a character (a lone surrogate): convert it to UTF-8"
            ) from error

    def note_unknown(self, rows: Sequence[np.ndarray]) -> None:
        """Warns, once for a tokenizer, if more than a tenth of the tokens of some texts, and more than one,
        are unknown."""
        number = self.id("unknown")
        if number is None or self._unknown_noted or self.kind in BYTE_KINDS:
            return
        tokens, unknown = sum(map(len, rows)), sum(int((row == number).sum()) for row in rows)
        if unknown > max(1, MANY_UNKNOWN * tokens):
            self._unknown_noted = True
            logger.warning(
                f"{unknown:,} of {tokens:,} tokens of the text are unknown to the tokenizer "
                f"({self.roles['unknown']}): {UNKNOWN_ADVICE}"
            )

    # ------------------------------------------------------------ ids to text

    def decode(
        self, ids: Iterable[int] | np.ndarray, skip_special: bool = True, *, whole: bool = False
    ) -> str:
        """The text that ids stand for; bytes that are no UTF-8 become U+FFFD. If only `whole` characters are
        wanted, bytes at the end that merely begin one are left out."""
        numbers = ids.tolist() if isinstance(ids, np.ndarray) else [int(number) for number in ids]
        ends = (min(numbers, default=0), max(numbers, default=0))
        if wrong := [number for number in ends if not 0 <= number < self.size]:
            raise EtymonError(f"token id {wrong[-1]} is outside the vocabulary of {self.size} tokens")
        if skip_special:
            numbers = [number for number in numbers if number not in self.hidden_ids]
        if whole and self.kind in BYTE_KINDS:
            return byte_decoder().decode(b"".join(token_bytes(self.tokens[number]) for number in numbers))
        return self.backend.decode(numbers, skip_special_tokens=False)

    def stream(self, skip_special: bool = True) -> TokenStream:
        """Decode token by token; see TokenStream."""
        from etymon.text.token_stream import TokenStream

        return TokenStream(self, skip_special)

    # ------------------------------------------------------------ files

    @classmethod
    def of_words(cls, specials: Mapping[str, str], framing: Framing | None = None) -> Tokenizer:
        """A tokenizer of words between white space that knows none of them: for models that read letters."""
        words = {token: number for number, token in enumerate(specials.values())}
        backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token=specials["unknown"]))
        backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
        backend.add_special_tokens(list(words))
        return cls(backend, specials, framing=framing)

    def forget_reading(self, reading: ReadingSettings | None = None) -> None:
        """Drops what its files said of how a model reads texts: all of it, or only what follows from these
        settings, so that it follows from those of the model that it is saved with."""
        from etymon.text.tokenizer_folders import reading_config

        for key, value in reading_config(self, reading or ReadingSettings()).items():
            if reading is None or self.config.get(key) == value:
                self.config.pop(key, None)

    @staticmethod
    def load(folder: str | os.PathLike[str]) -> Tokenizer:
        """Read the tokenizer of a checkpoint folder, ours or a foreign one."""
        from etymon.text.tokenizer_folders import load_tokenizer

        return load_tokenizer(folder)

    def save(self, folder: str | os.PathLike[str], reading: ReadingSettings | None = None) -> None:
        """Write tokenizer.json and tokenizer_config.json, with which Transformers reads texts as the model
        of these settings does, or any of its framing."""
        from etymon.text.tokenizer_folders import save_tokenizer

        save_tokenizer(self, folder, reading)


def byte_decoder() -> codecs.IncrementalDecoder:
    """Bytes to text, as far as they are whole characters."""
    return codecs.getincrementaldecoder("utf-8")("replace")


def token_bytes(token: str) -> bytes:
    """The bytes of a byte-level token; one outside the byte alphabet (an added token) stands for itself."""
    try:
        return bytes([BYTE_OF[character] for character in token])
    except KeyError:
        return token.encode()
