"""The models of a server, by name: opened when they are first asked for, and what each can do."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etymon.checkpoints.folder import read_config
from etymon.checkpoints.weights import open_weights
from etymon.config import did_you_mean
from etymon.errors import EtymonError
from etymon.families.checkpoint import stored_heads
from etymon.families.family import Family
from etymon.families.loading import model_folder, read_note, read_shape
from etymon.families.model import Model
from etymon.lab.sentence_vectors import SentenceEncoder
from etymon.server.decoder import Decoder
from etymon.server.errors import ApiError
from etymon.tasks import HEADS

OpenModel = Callable[[Path], Model]
# What looks like the place of a file.
PATHS = re.compile(r"(?:~|[A-Za-z]:)?(?:[/\\][^\s/\\:;,'\"]+){2,}[/\\]?")


def named_folders(models: Sequence[str]) -> dict[str, str]:
    """Folders or hub ids by name, from `NAME=FOLDER` or a folder alone, whose name is then the model's."""
    folders: dict[str, str] = {}
    for given in models:
        name, equals, place = given.partition("=")
        # A folder may have the sign in its name.
        if not equals or "/" in name or Path(given).exists():
            name, place = Path(given).expanduser().name or given, given
        if not name.strip() or not place:
            raise EtymonError(f"{given!r} names no model: write NAME=FOLDER, or a folder alone")
        if name in folders:
            raise EtymonError(
                f"{place} and {folders[name]} would both be called {name}: give one another name "
                f"(NAME={place})"
            )
        folders[name] = place
    return folders


def abilities_of(family: Family, heads: frozenset[str], tasks: Sequence[str] = ()) -> list[str]:
    """What a model of such heads can be asked for; `tasks` are those that it was fine-tuned for."""
    capabilities = family.capabilities
    has_words = "vocabulary" in heads
    writes = has_words and "state" in capabilities
    reads_both = bool({"encoder-decoder", "bidirectional"} & capabilities)
    rewrites = writes and ("encoder-decoder" in capabilities or "text2text" in tasks)
    able = {
        "completions": writes,
        "fill": has_words and reads_both,
        "score": has_words and (reads_both or "causal" in capabilities),
        "replaced": "replaced" in heads,
        "predict": bool(heads & HEADS.keys() or tasks),
        "translate": rewrites,
        "summarize": rewrites,
        "embeddings": True,
        "rerank": True,
        "attention": "two directions" not in capabilities,
        "lens": has_words and not {"encoder-decoder", "two directions", "two-stream"} & capabilities,
        "explain": has_words or "replaced" in heads,
        "tokenize": True,
    }
    return [name for name, is_able in able.items() if is_able]


class ServedModel:
    """A model that is open, and what is made of it once."""

    def __init__(self, name: str, model: Model, rows: int, memory: float) -> None:
        self.name, self.model = name, model
        self._rows, self._memory = rows, memory
        self.decoder: Decoder | None = None
        self._lock = threading.Lock()
        self._encoders: dict[tuple[str | None, bool | None], SentenceEncoder] = {}

    def build_decoder(self) -> Decoder:
        """The decoder, made if there is none: by the thread that computes, since that runs the model."""
        self.decoder = self.decoder or Decoder(self.model, self._rows, self._memory)
        return self.decoder

    def encoder(self, pooling: str | None = None, normalise: bool | None = None) -> SentenceEncoder:
        with self._lock:
            if (pooling, normalise) not in self._encoders:
                encoder = SentenceEncoder(self.model, pooling=pooling, normalise=normalise)
                self._encoders[pooling, normalise] = encoder
            return self._encoders[pooling, normalise]


@dataclass(frozen=True)
class FolderSummary:
    """What a model's folders say of it without being opened."""

    family: str
    abilities: list[str]
    positions: int | None
    has_generator: bool
    """Whether a discriminator and a generator lie side by side."""


class ModelStore:
    """Models by name. A folder of a run may hold several: the one with the head that is needed is taken."""

    def __init__(self, folders: Mapping[str, str], open_model: OpenModel, rows: int, memory: float) -> None:
        """`rows` texts of each are written at a time, with caches of `memory` bytes in all."""
        self.folders, self.open_model, self.rows = dict(folders), open_model, rows
        # Evenly, whoever is asked most: no model can take all of it.
        self.memory = memory / max(1, len(folders))
        self.created = int(time.time())
        self.opened: dict[Path, ServedModel] = {}
        # At the start, so that a folder that is no model is refused before anybody asks.
        self.summaries = {name: self._summarise(place) for name, place in folders.items()}
        self._lock = threading.Lock()

    def get(self, name: str, head: str | None = None) -> ServedModel:
        """The model of that name, opened if it is not; that takes a while, and may be refused for want of
        memory."""
        folder = self._folder(name, head)
        # One at a time: two requests would open it twice.
        with self._lock:
            if folder not in self.opened:
                try:
                    model = self.open_model(folder)
                except (EtymonError, OSError, MemoryError) as error:
                    # The folder in it is the operator's business; what is wrong is also the client's.
                    reason = self.without_paths(str(error)) or type(error).__name__
                    raise ApiError(503, f"the model {name!r} cannot be opened: {reason}") from error
                self.opened[folder] = ServedModel(name, model, self.rows, self.memory)
            return self.opened[folder]

    def find(self, name: str, head: str | None = None) -> ServedModel | None:
        """The same if it is open, at once, also while another one is being opened."""
        return self.opened.get(self._folder(name, head))

    def _folder(self, name: str, head: str | None) -> Path:
        self.require(name)
        return model_folder(self.folders[name], head=head).resolve()

    def require(self, name: str) -> None:
        if name not in self.folders:
            near = did_you_mean(name, self.folders)
            raise ApiError(404, f"there is no model {name!r}: {near}", code="model_not_found", param="model")

    def is_open(self, name: str) -> bool:
        return any(served.name == name for served in list(self.opened.values()))

    def without_paths(self, message: str) -> str:
        """A message without the places of files: folders of models are called by their names."""
        # By name first, which says more than dots.
        for name, place in self.folders.items():
            for path in {place, str(Path(place).expanduser().resolve())}:
                if "/" in path:
                    message = message.replace(path, name)
        return PATHS.sub("...", message)

    def _summarise(self, place: str) -> FolderSummary:
        abilities: list[str] = []
        # An ELECTRA run has a discriminator and a generator, each with abilities of its own.
        folders = dict.fromkeys(model_folder(place, head=head) for head in (None, "vocabulary"))
        for folder in folders:
            family, shape = read_shape(folder)
            note = read_note(folder)
            entry: dict[str, Any] = next(
                (each for each in reversed(note.get("history", [])) if "task" in each or "tasks" in each), {}
            )
            tasks = [entry["task"]] if entry.get("task") else list(entry.get("tasks", {}).values())
            try:
                heads = stored_heads(family, read_config(folder), note, open_weights(folder))
            except EtymonError:  # adapters, or a family's own files
                heads = frozenset(note.get("heads", family.architectures[0].heads))
            abilities += abilities_of(family, heads, [task["name"] for task in tasks])
        positions, has_generator = getattr(shape, "positions", None), len(folders) > 1
        return FolderSummary(family.title, list(dict.fromkeys(abilities)), positions, has_generator)
