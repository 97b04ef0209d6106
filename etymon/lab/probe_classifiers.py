"""The classifiers of probes: deliberately small, deterministic, judged on the test split.

Legend: L layers, N examples (n of the training split), D width, K labels, G groups, U units.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from etymon.errors import EtymonError
from etymon.lab.probe_tasks import SPLITS, ProbeTask, Split

# Of the L2 penalty beside the mean loss, the strongest first; each layer's is chosen by the validation split.
STRENGTHS = (1.0, 1e-1, 1e-2, 1e-3)
# The same for the scores of layers in the mix: without a reason to differ, their weights are even.
EVEN = 1e-3
ITERATIONS = 200


@dataclass(frozen=True)
class Problem:
    """A task as arrays: which unit every example is, its label and control label as numbers, its group and
    split."""

    task: ProbeTask
    reading: str
    units: np.ndarray
    labels: np.ndarray
    control: np.ndarray
    groups: np.ndarray
    splits: np.ndarray

    def rows_of(self, split: Split) -> np.ndarray:
        """Whether each example is of the split, `[N]`."""
        return self.splits == SPLITS.index(split)

    @cached_property
    def fitted(self) -> np.ndarray:
        return self.rows_of("train")

    def accuracy(self, predicted: np.ndarray, split: Split = "test", control: bool = False) -> float:
        right = predicted == (self.control if control else self.labels)
        return float(right[self.rows_of(split)].mean())


def logistic_regression() -> Any:
    """scikit-learn's class, or one line that says how to get it."""
    try:
        from sklearn.linear_model import LogisticRegression
    except ImportError as error:
        raise EtymonError(
            "probing needs scikit-learn: pip install 'etymon[evaluate]'", code="missing-package"
        ) from error
    return LogisticRegression


def majority_labels(problem: Problem) -> np.ndarray:
    """For every example the most frequent label of its group in training."""
    answers = np.zeros_like(problem.labels)
    for group in np.unique(problem.groups):
        here = problem.groups == group
        answers[here] = np.bincount(problem.labels[here & problem.fitted], minlength=1).argmax()
    return answers


def standardise(x_UD: np.ndarray, problem: Problem) -> np.ndarray:
    """The features of the examples with mean 0 and deviation 1 over the training split."""
    x_ND = x_UD[problem.units]
    mean, deviation = x_ND[problem.fitted].mean(0), x_ND[problem.fitted].std(0)
    # In place: the indexing above has made a copy, and a second one would double the memory.
    x_ND -= mean
    x_ND /= np.where(deviation > 1e-8, deviation, 1)
    return x_ND


def best_strength(problem: Problem, x_ND: np.ndarray) -> tuple[float, float, float]:
    """Validation accuracy, test accuracy and strength of the penalty that is best on the validation split."""
    tried = [
        (problem.accuracy(predicted, "validation"), problem.accuracy(predicted), strength)
        for strength, predicted in zip(
            STRENGTHS, predict_labels(x_ND, problem.labels, problem, STRENGTHS), strict=True
        )
    ]
    return max(tried, key=lambda each: each[0])  # of equals the first, which is the strongest


def predict_labels(
    x_ND: np.ndarray, labels: np.ndarray, problem: Problem, strengths: Sequence[float]
) -> list[np.ndarray]:
    """What logistic regression says of all examples, for every strength of the penalty."""
    predicted = [np.zeros_like(labels) for _ in strengths]
    for group in np.unique(problem.groups):
        here = problem.groups == group
        x_nD, y_n = x_ND[here & problem.fitted], labels[here & problem.fitted]
        if len(np.unique(y_n)) < 2:
            for answers in predicted:
                answers[here] = y_n[0] if len(y_n) else -1
            continue
        # With a warm start each fit goes on from the stronger penalty's, which is near and cheap.
        classifier = logistic_regression()(warm_start=True, max_iter=ITERATIONS)
        for strength, answers in zip(strengths, predicted):
            # scikit-learn's C weighs the sum of the losses; our penalty stands beside their mean.
            classifier.set_params(C=1 / (strength * len(y_n)))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a probe that needs more iterations is no simple one
                answers[here] = classifier.fit(x_nD, y_n).predict(x_ND[here])
    return predicted


def scalar_mix(states_LUD: np.ndarray, problem: Problem, strength: float) -> tuple[np.ndarray, np.ndarray]:
    """Weights of the layers, softmax-normalised and learnt together with one linear probe of their weighted
    sum (Peters et al. 2018; Tenney et al. 2019), and what that probe predicts.

    The groups' classifiers are one matrix, in which an example sees only the labels of its group.
    """
    x_LND = torch.empty(len(states_LUD), len(problem.units), states_LUD.shape[2])
    for x_ND, x_UD in zip(x_LND, states_LUD, strict=True):
        x_ND.copy_(torch.from_numpy(standardise(x_UD, problem)))
    labels, groups, fitted = (
        torch.from_numpy(part) for part in (problem.labels, problem.groups, problem.fitted)
    )
    classes = int(labels.max()) + 1
    known_GK = torch.zeros(int(groups.max()) + 1, classes, dtype=torch.bool)
    known_GK[groups[fitted], labels[fitted]] = True
    # Every group counts the same, however many examples it has.
    share_n = 1 / torch.bincount(groups[fitted]).float()[groups[fitted]]
    scores_L = torch.zeros(len(x_LND), requires_grad=True)
    weight_DK = torch.zeros(x_LND.shape[2], classes, requires_grad=True)
    bias_K = torch.zeros(classes, requires_grad=True)

    def mixed(x_LmD: torch.Tensor) -> torch.Tensor:
        return torch.tensordot(scores_L.softmax(0), x_LmD, 1)

    def logits(x_mD: torch.Tensor, groups_m: torch.Tensor, deviation_D: torch.Tensor) -> torch.Tensor:
        # Like a layer, the sum has deviation 1: else the penalty would favour a single layer, since sums of
        # many are small.
        scaled_mD = x_mD / deviation_D.clamp(min=1e-6)
        return (scaled_mD @ weight_DK + bias_K).masked_fill(~known_GK[groups_m], -1e9)

    x_LnD, groups_n, labels_n = x_LND[:, fitted], groups[fitted], labels[fitted]
    # L-BFGS, as scikit-learn has for the layers: deterministic, and no learning rate to choose.
    solver = torch.optim.LBFGS(
        [scores_L, weight_DK, bias_K],
        max_iter=ITERATIONS // 2,
        tolerance_grad=1e-5,
        tolerance_change=1e-6,
        line_search_fn="strong_wolfe",
    )

    def loss() -> torch.Tensor:
        solver.zero_grad()
        x_nD = mixed(x_LnD)
        each_n = F.cross_entropy(logits(x_nD, groups_n, x_nD.std(0)), labels_n, reduction="none")
        penalty = strength * weight_DK.square().sum() + EVEN * scores_L.square().sum()
        value = (share_n * each_n).sum() + 0.5 * penalty
        value.backward()
        return value

    solver.step(loss)
    with torch.no_grad():
        predicted = logits(mixed(x_LND), groups, mixed(x_LnD).std(0)).argmax(1)
    return scores_L.detach().softmax(0).numpy(), predicted.numpy()
