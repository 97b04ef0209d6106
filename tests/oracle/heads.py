"""What each set of heads gives, under the reference's names for it.

Losses come from the heads themselves (`loss` is a sum over the targets) or, for task heads, from their scores.

Legend: N cells of the rectangle, D width.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from etymon.families.model import Model
from tests.oracle.inputs import Arguments, Text, as_rows

IGNORED_LABEL = -100


def _vocabulary(model: Model, hidden_ND: Tensor, text: Text, arguments: Arguments) -> dict[str, Tensor]:
    head = model.heads["vocabulary"]
    outputs = {"logits": text.shaped(head.logits(hidden_ND))}
    labels = arguments.take("labels")
    if labels is not None:
        labels = as_rows(labels)
        if "causal" in model.capabilities:  # the reference shifts inside: the token before predicts
            labels = F.pad(labels[:, 1:], (0, 1), value=IGNORED_LABEL)
        at = (labels.reshape(-1) != IGNORED_LABEL).nonzero()[:, 0]
        outputs["loss"] = head.loss(hidden_ND, at, labels.reshape(-1)[at]) / len(at)
    return outputs


def _pretraining(head: str, field: str, label_name: str) -> Reader:
    """Words and pairs of texts: BERT's next sentences, ALBERT's order of sentences."""

    def read(model: Model, hidden_ND: Tensor, text: Text, arguments: Arguments) -> dict[str, Tensor]:
        words = _vocabulary(model, hidden_ND, text, arguments)
        pairs = model.read(head, hidden_ND, text.rectangle)
        outputs = {"prediction_logits": words["logits"], field: pairs}
        label = arguments.take(label_name)
        if label is not None and "loss" in words:
            outputs["loss"] = words["loss"] + F.cross_entropy(pairs, label.reshape(-1))
        return outputs

    return read


def _next_sentence(model: Model, hidden_ND: Tensor, text: Text, arguments: Arguments) -> dict[str, Tensor]:
    return _labelled(model, model.read("next_sentence", hidden_ND, text.rectangle), arguments)


def _classification(model: Model, hidden_ND: Tensor, text: Text, arguments: Arguments) -> dict[str, Tensor]:
    at = arguments.get("read_at")
    if at is None and "causal" in model.capabilities:
        pad = model.token("pad")
        at = text.last_where(torch.ones_like(text.ids) if pad is None else text.ids != pad)
    return _labelled(model, model.read("classification", hidden_ND, text.rectangle, at), arguments)


def _choice(model: Model, hidden_ND: Tensor, text: Text, arguments: Arguments) -> dict[str, Tensor]:
    scores = model.read("choice", hidden_ND, text.rectangle)
    return _labelled(model, scores.view(text.leading), arguments)


def _double(model: Model, hidden_ND: Tensor, text: Text, arguments: Arguments) -> dict[str, Tensor]:
    outputs = _vocabulary(model, hidden_ND, text, arguments)
    places, kind = arguments.take("mc_token_ids"), getattr(model.shape, "summary_type", "cls_index")
    if kind != "cls_index" and len(text.leading) > 1:
        # The reference looks along its second axis, which here are the choices of a question, and scores every token.
        x_BCTD = text.shaped(hidden_ND)
        x_BTD = {"first": x_BCTD[:, 0], "last": x_BCTD[:, -1], "mean": x_BCTD.mean(1)}[kind]
        scores = model.read_from("choice", x_BTD.flatten(0, 1)).view(x_BTD.shape[:2])
    else:
        at = text.flat_index(places) if places is not None and kind == "cls_index" else None
        scores = model.read("choice", hidden_ND, text.rectangle, at).view(text.leading)
    outputs["mc_logits"] = scores
    labels = arguments.take("mc_labels")
    if labels is not None:
        outputs["mc_loss"] = F.cross_entropy(scores.reshape(-1, scores.shape[-1]), labels.reshape(-1))
    return outputs


def _replaced(model: Model, hidden_ND: Tensor, text: Text, arguments: Arguments) -> dict[str, Tensor]:
    scores = text.shaped(model.read("replaced", hidden_ND, text.rectangle))
    labels = arguments.take("labels")
    if labels is None:
        return {"logits": scores}
    loss = F.binary_cross_entropy_with_logits(scores[text.real], labels[text.real].to(scores.dtype))
    return {"logits": scores, "loss": loss}


def _tagging(model: Model, hidden_ND: Tensor, text: Text, arguments: Arguments) -> dict[str, Tensor]:
    scores = model.read("tagging", hidden_ND, text.rectangle)
    labels = arguments.take("labels")
    loss = {} if labels is None else {"loss": F.cross_entropy(scores, labels.reshape(-1))}
    return {"logits": text.shaped(scores), **loss}


def _span(model: Model, hidden_ND: Tensor, text: Text, arguments: Arguments) -> dict[str, Tensor]:
    start, end = text.shaped(model.read("span", hidden_ND, text.rectangle)).unbind(-1)
    first, last = arguments.take("start_positions"), arguments.take("end_positions")
    if first is None or last is None:
        return {"start_logits": start, "end_logits": end}
    beyond = start.shape[1]  # an answer that was cut off is no answer
    losses = [
        F.cross_entropy(scores, places.reshape(-1).clamp(0, beyond), ignore_index=beyond)
        for scores, places in ((start, first), (end, last))
    ]
    return {"start_logits": start, "end_logits": end, "loss": sum(losses, torch.zeros(())) / 2}


def _conditional_span(model: Model, hidden_ND: Tensor, text: Text, arguments: Arguments) -> dict[str, Tensor]:
    head, x_BTD = model.heads["conditional_span"], text.shaped(hidden_ND)
    first, last, at, impossible, hidden = (
        arguments.take(name)
        for name in ("start_positions", "end_positions", "cls_index", "is_impossible", "p_mask")
    )
    rows = torch.arange(len(x_BTD))
    class_BD = x_BTD[:, -1] if at is None else x_BTD[rows, at]
    if first is None or last is None:
        nowhere = torch.zeros(x_BTD.shape[:2], dtype=torch.bool)
        found = head.search(x_BTD, class_BD, nowhere if hidden is None else hidden.bool())
        return {
            "start_top_log_probs": found.start_probs_RS,  # the reference calls probabilities so
            "start_top_index": found.starts_RS,
            "end_top_log_probs": found.end_probs_RES.flatten(1),
            "end_top_index": found.ends_RES.flatten(1),
            "cls_logits": found.unanswerable_R,
        }
    start_BD = x_BTD[rows, first]
    start, end = head(x_BTD), head.end(x_BTD, start_BD[:, None].expand_as(x_BTD))
    if hidden is not None:
        start, end = (scores.masked_fill(hidden.bool(), -1e30) for scores in (start, end))
    loss = (F.cross_entropy(start, first) + F.cross_entropy(end, last)) / 2
    if at is not None and impossible is not None:
        scores = head.unanswerable(start_BD, class_BD)
        loss = loss + F.binary_cross_entropy_with_logits(scores, impossible) / 2
    return {"loss": loss}


def _pooled(model: Model, hidden_ND: Tensor, text: Text, arguments: Arguments) -> dict[str, Tensor]:
    return {"pooler_output": model.read("pooler", hidden_ND, text.rectangle)}


def _labelled(model: Model, scores: Tensor, arguments: Arguments) -> dict[str, Tensor]:
    """Scores, and the loss that the reference takes for such labels."""
    labels = arguments.take("labels")
    if labels is None:
        return {"logits": scores}
    kind = model.carried.get("problem_type")
    if kind is None and scores.shape[-1] == 1:
        kind = "regression"
    elif kind is None and labels.is_floating_point():
        kind = "multi_label_classification"
    if kind == "regression":
        loss = F.mse_loss(scores.squeeze(), labels.squeeze())
    elif kind == "multi_label_classification":
        loss = F.binary_cross_entropy_with_logits(scores, labels)
    else:
        loss = F.cross_entropy(scores, labels.reshape(-1))
    return {"logits": scores, "loss": loss}


def _nothing(model: Model, hidden_ND: Tensor, text: Text, arguments: Arguments) -> dict[str, Tensor]:
    return {}


Reader = Callable[[Model, Tensor, Text, Arguments], dict[str, Tensor]]
READERS: dict[frozenset[str], Reader] = {
    frozenset({"vocabulary"}): _vocabulary,
    frozenset({"vocabulary", "next_sentence"}): _pretraining(
        "next_sentence", "seq_relationship_logits", "next_sentence_label"
    ),
    frozenset({"vocabulary", "sentence_order"}): _pretraining(
        "sentence_order", "sop_logits", "sentence_order_label"
    ),
    frozenset({"replaced"}): _replaced,
    frozenset({"vocabulary", "choice"}): _double,
    frozenset({"next_sentence"}): _next_sentence,
    frozenset({"classification"}): _classification,
    frozenset({"choice"}): _choice,
    frozenset({"tagging"}): _tagging,
    frozenset({"span"}): _span,
    frozenset({"conditional_span"}): _conditional_span,
    frozenset({"pooler"}): _pooled,
    frozenset({"encoder"}): _nothing,
    frozenset(): _nothing,
}
"""By the heads of a model. A later family adds its own sets here, and its body to `run`."""


def reader(model: Model) -> Reader:
    if model.head_names not in READERS:
        raise NotImplementedError(
            f"nothing here reads the heads {sorted(model.head_names)} of {model.family.title}"
        )
    return READERS[model.head_names]
