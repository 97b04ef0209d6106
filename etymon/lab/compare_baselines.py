"""What is reached without a network: by a compressor, by counting n-grams, by the commonest label, by words.
And what a network and counts reach together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from etymon.families.loading import model_folder
from etymon.files import read_json, write_json
from etymon.lab.compare_jobs import label_items
from etymon.lab.compare_text import TaskTable, read_passages
from etymon.lab.ngrams import NgramModel, fit_weight, mix, texts_log_probs, training_stream
from etymon.runs.report import XZ_LIMIT, xz_bits
from etymon.tables.table import read_table
from etymon.tasks import task_class
from etymon.tasks.baselines import baselines
from etymon.tasks.classify import Classify
from etymon.text.store import TokenStore
from etymon.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class TextBaselines:
    """Bits per byte of the test part."""

    bits: dict[str, float]
    mixed: dict[str, float]
    """By arm: the mean over its seeds of the network mixed with n-gram counts of the same tokens."""


def text_baselines(folder: Path, runs: Mapping[str, Sequence[Path]], order: int) -> TextBaselines:
    """Baselines of arms with a likelihood; `runs` are the folders of their finals. Kept in
    `baselines.json`."""
    kept = folder / "baselines.json"
    if kept.is_file():
        return TextBaselines(**read_json(kept))
    passages = {part: read_passages(folder / "text" / f"{part}.jsonl") for part in ("validation", "test")}
    bits: dict[str, float] = {}
    # Passages, and not the whole part: the same bytes that the arms are scored on.
    if (xz := _xz(folder, passages["test"])) is not None:
        bits["xz"] = xz
    mixed: dict[str, float] = {}
    ngrams: list[float] = []
    for name, folders in runs.items() if order else ():
        alone, together = mix_with_ngrams(folders, passages, order)
        ngrams.append(alone)
        mixed[name] = together
    if ngrams:
        # Of several tokenizers, the one that counts do best with.
        bits[f"{order}-grams, Kneser-Ney"] = min(ngrams)
    result = TextBaselines(bits, mixed)
    write_json(kept, asdict(result))
    return result


def _xz(folder: Path, passages: list[str]) -> float | None:
    path = folder / "text" / "train.jsonl"
    if path.stat().st_size > XZ_LIMIT:
        return None
    # Documents whole: no passage is that long.
    training = "\n".join(read_passages(path, size=1 << 30, most=1 << 40))
    return xz_bits(training.encode(), "\n".join(passages).encode())


def mix_with_ngrams(
    folders: Sequence[Path], passages: Mapping[str, list[str]], order: int
) -> tuple[float, float]:
    """Bits per byte of the test passages by n-gram counts of an arm's training tokens, and by its networks
    mixed with them (the mean over its runs). The weight is fitted on the validation passages."""
    store = TokenStore.open(folders[0] / "store")
    tokenizer = Tokenizer.load(model_folder(folders[0]))
    # A token of its own, which no tokenizer has: the first id behind the vocabulary.
    separator = int(store.description["vocabulary_size"])
    model = NgramModel.train(training_stream(store.train, separator), separator + 1, order)
    counted = {
        part: texts_log_probs(model, list(tokenizer.encode_batch(texts)), separator)
        for part, texts in passages.items()
    }
    size = sum(len(text.encode()) for text in passages["test"])
    alone = -sum(float(each.sum()) for each in counted["test"]) / math.log(2) / size
    together = []
    for folder in folders:
        pairs = {part: _aligned(folder, part, counted[part]) for part in passages}
        # For every seed anew: a network that has learnt more deserves more weight.
        weight = fit_weight(*pairs["validation"])
        together.append(-float(mix(*pairs["test"], weight).sum()) / math.log(2) / size)
    return alone, float(np.mean(together))


def _aligned(folder: Path, part: str, counted: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The log-probabilities of the same tokens by the network of a run and by counts."""
    network = np.load(folder / f"log-probs-{part}.npy", allow_pickle=False)
    # A model without a token to begin from does not score the first one of a passage.
    lengths: list[int] = read_json(folder / f"scores-{part}.json")["text"]["tokens"]
    kept = [each[len(each) - length :] for each, length in zip(counted, lengths, strict=True)]
    return network, np.concatenate(kept)


def task_baselines(table: TaskTable) -> dict[str, float]:
    """Accuracy on the test rows of the commonest label and of a linear model of words, in percent; nothing
    for tasks that have no labels."""
    kind = task_class(table.task)
    if not issubclass(kind, Classify):
        return {}
    task: Any = kind(kind.Options(**table.options))
    train, test = (read_table([table.part(part)]) for part in ("train", "test"))
    # Of rows with several labels a baseline predicts sets, else names.
    labels = task.row_labels(train)
    if not task.options.multi_label:
        labels = [names[0] for names in labels]
    train_texts, texts = (
        [tuple(part for part in rows[0] if part is not None) for rows in task.pairs(each)]
        for each in (train, test)
    )
    answers = baselines(train_texts, labels, texts)
    return {name: float(np.mean(label_items(task, test, guesses))) for name, guesses in answers.items()}
