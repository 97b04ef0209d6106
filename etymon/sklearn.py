"""Etymon's models as estimators of scikit-learn: `fit`, `predict`, `predict_proba`, `transform`.

    from sklearn.pipeline import make_pipeline
    from etymon.sklearn import TextClassifier, TextEmbedder

    classifier = TextClassifier("runs/bert-pocket", epochs=3).fit(texts, labels)
    pipeline = make_pipeline(TextEmbedder("runs/bert-pocket"), LogisticRegression())

They work in pipelines and searches, can be cloned, and pickle with their weights. Needs the extra `evaluate`.
"""

from __future__ import annotations

import io
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

import etymon
from etymon.errors import EtymonError

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
    from sklearn.utils.validation import check_is_fitted
except ImportError as error:
    raise EtymonError('scikit-learn is not installed: pip install "etymon[evaluate]"') from error

TEXT, LABEL = "text", "label"


class ModelEstimator(BaseEstimator):
    """An estimator with a fitted `model_`, which a pickle holds as the files of its folder: families are made
    of functions, and those do not pickle."""

    model_: Any

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        if (model := state.pop("model_", None)) is not None:
            state["model_files"] = _pack(model)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        files = state.pop("model_files", None)
        super().__setstate__(state)
        if files is not None:
            self.model_ = _unpack(files)


class TextClassifier(ClassifierMixin, ModelEstimator):
    """A classifier of texts: a model that is fine-tuned by `fit`.

    `model` is a folder or hub id to go on from, or a family (`bert`) to train from first values. `settings`
    are any others of `etymon.finetune`: `{"learning_rate": 1e-3, "lora": 8}`.
    """

    def __init__(
        self,
        model: str | Path = "bert",
        *,
        epochs: float | None = 3.0,
        budget: str | None = None,
        batch: int | None = None,
        length: int | None = None,
        size: str | None = None,
        seed: int = 0,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        # scikit-learn clones by these arguments: they are kept as they are, and looked at in `fit`.
        self.model, self.epochs, self.budget = model, epochs, budget
        self.batch, self.length, self.size = batch, length, size
        self.seed, self.settings = seed, settings

    def fit(self, X: Iterable[str], y: Iterable[Any]) -> Self:
        """Fine-tunes the model on texts and their labels, which may be of any type."""
        texts = as_texts(X)
        labels = np.asarray(list(y))
        if len(texts) != len(labels):
            raise EtymonError(f"there are {len(texts):,} texts and {len(labels):,} labels")
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise EtymonError(f"all labels are {self.classes_.tolist()[0]!r}: a classifier needs two or more")
        given = {"epochs": None if self.budget else self.epochs, "budget": self.budget}
        given |= {"batch": self.batch, "length": self.length, "size": self.size, "seed": self.seed}
        # The model is held in memory: an estimator has no folder of its own.
        with tempfile.TemporaryDirectory() as folder:
            etymon.finetune(
                str(self.model),
                from_scratch=_is_family(self.model),
                task="classify",
                # A label's number stands for it: labels may be numbers, truth values or anything else.
                train=[{TEXT: text, LABEL: f"class {number}"} for text, number in zip(texts, numbers)],
                text=TEXT,
                label=LABEL,
                out=Path(folder) / "run",
                **{"baselines": False, "progress": "silent", **given, **dict(self.settings or {})},
            )
            self.model_ = etymon.load(Path(folder) / "run" / "model")
        return self

    def predict_proba(self, X: Iterable[str]) -> np.ndarray:
        """`[texts, classes]`, in the order of `classes_`."""
        check_is_fitted(self, "model_")
        answers = etymon.predict(self.model_, as_texts(X))
        names = [f"class {number}" for number in range(len(self.classes_))]
        shares = (answer.answer["probabilities"] for answer in answers)
        return np.array([[share[name] for name in names] for share in shares])

    def predict(self, X: Iterable[str]) -> np.ndarray:
        """The likeliest class of every text."""
        shares = self.predict_proba(X)  # which complains if nothing was fitted
        return self.classes_[shares.argmax(1)]


class TextEmbedder(TransformerMixin, ModelEstimator):
    """Texts as vectors of a model, for whatever scikit-learn puts behind it. It learns nothing in `fit`."""

    def __init__(
        self,
        model: str | Path = "",
        *,
        pooling: Literal["mean", "cls", "max", "last"] | None = None,
        layer: int | None = None,
        normalise: bool | None = None,
        batch_size: int = 32,
    ) -> None:
        self.model, self.pooling, self.layer = model, pooling, layer
        self.normalise, self.batch_size = normalise, batch_size

    def fit(self, X: Iterable[str], y: Any = None) -> Self:
        """Opens the model, so that what is wrong with it is told before anything waits for it."""
        # Not in __init__: a clone must cost nothing.
        self.model_ = etymon.load(self.model)
        return self

    def transform(self, X: Iterable[str]) -> np.ndarray:
        """`[texts, width]`."""
        check_is_fitted(self, "model_")
        vectors = etymon.embed(
            self.model_,
            as_texts(X),
            pooling=self.pooling,
            layer=self.layer,
            normalise=self.normalise,
            batch_size=self.batch_size,
        )
        return np.asarray(vectors)


def as_texts(X: Any) -> list[str]:
    """The texts of a list, an array or a column of one; refuses what is no text."""
    values = X.ravel().tolist() if isinstance(X, np.ndarray) else list(X)
    if isinstance(X, str) or hasattr(X, "columns"):
        raise EtymonError("texts are given as a list or a column of them, not as one text or a whole frame")
    for number, value in enumerate(values):
        if not isinstance(value, str):
            raise EtymonError(f"text {number + 1} is a {type(value).__name__}, not a text")
    if not values:
        raise EtymonError("there are no texts")
    return values


def _is_family(model: str | Path) -> bool:
    from etymon.families import REGISTRY

    return str(model) in REGISTRY and not Path(model).exists()


def _pack(model: Any) -> bytes:
    """A model's folder as one string of bytes."""
    buffer = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder:
        etymon.save(model, Path(folder) / "model")
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            archive.add(Path(folder) / "model", "model")
    return buffer.getvalue()


def _unpack(files: bytes) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(files)) as archive:
            # "data" refuses paths that lead out of the folder.
            archive.extractall(folder, filter="data")
        return etymon.load(Path(folder) / "model")
