"""What an objective does to a text: what the model reads, what is hidden or changed, what is asked where, and
who may see whom.

The text goes through the real pipeline (plan, prepare, collate, loss), and the calls of that one loss are
followed (`call_recorder.py`). So what is shown is what a training step computes.

Legend: N tokens, n questions, Q queries, T keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from etymon.errors import EtymonError
from etymon.explaining.call_recorder import CallRecord, ReadCall, recorded_calls
from etymon.explaining.descriptions import about, other_texts
from etymon.explaining.explanation import (
    ExplainedReader,
    ExplainedSample,
    ExplainedToken,
    Explanation,
    TextQuestion,
    TokenGuess,
    TokenQuestion,
    VisibilityMap,
)
from etymon.families.model import Model
from etymon.nn.vocabulary import Context
from etymon.objectives import REGISTRY, objective_class
from etymon.objectives.history import last_pretraining
from etymon.objectives.objective import Objective, check_fit
from etymon.sampling.plans import key
from etymon.text.readable import readable_tokens
from etymon.text.store import Split
from etymon.text.tokenizer import Tokenizer
from etymon.training.unit import TrainingUnit

MOST_GUESSES = 5
MOST_SAMPLES = 3
SHORTEST_SEGMENT = 8
"""Tokens of a segment of a stream, so that even a short text shows what is remembered."""


def explain_text(
    unit: TrainingUnit,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    seed: int = 0,
    trained: bool = False,
    most: int = MOST_SAMPLES,
    words: str | None = None,
) -> Explanation:
    """Sends texts, each a document, through the objective of a unit, and says what became of them. The
    segmenter of that name finds their `words`."""
    objective: Any = unit.objective
    model: Any = unit.model
    split, plan = plan_text(objective, tokenizer, texts, seed, words)
    samples = []
    with unit.isolated_memory():
        # Streams go on from sample to sample, so they are read in order.
        for number, row in enumerate(plan[:most]):
            example = objective.prepare(split, row, key(seed, "sample", 0, number))
            parts = explain_example(unit, tokenizer, example, trained=trained)
            samples.append(ExplainedSample(number + 1, " ".join(texts), *parts))
    return Explanation(
        model.family.title, objective.name, about(objective), seed, trained, samples, len(plan)
    )


@torch.no_grad()
def explain_example(
    unit: TrainingUnit,
    tokenizer: Tokenizer,
    example: Any,
    *,
    trained: bool,
    most_tokens: int | None = None,
    pictures: bool = True,
) -> tuple[list[ExplainedReader], list[TextQuestion], dict[str, float]]:
    """Who reads what of a prepared sample, the questions about all of it, and the terms of its loss.

    With `most_tokens`, only so many of every reader's are told of, from about the first question on. Without
    `pictures` no attention weights are held, which take much memory where samples are long.
    """
    objective: Any = unit.objective
    unit.eval()
    micro = objective.collate([example]).to(next(unit.parameters()).device)
    with recorded_calls(unit, traces=pictures) as record:
        terms = objective.loss(unit, micro)
    losses = {}
    if trained:
        counts = {name: float(term.count) for name, term in terms.items() if term.count is not None}
        losses = {
            name: float(term.sum) / max(1.0, {**micro.counts, **counts}[name]) for name, term in terms.items()
        }
    readers = _readers(record, tokenizer, example, trained, most_tokens, bool(objective.shifted))
    return readers, _text_questions(record, micro, trained), losses


def plan_text(
    objective: Any, tokenizer: Tokenizer, texts: Sequence[str], seed: int, words: str | None = None
) -> tuple[Split, np.ndarray]:
    """The texts as a split, and the samples that the objective makes of them, in the order of the text.

    An objective that asks about two documents gets others beside a single one, and only samples that begin
    with the given one are kept.
    """
    documents = list(texts)
    if "pairs" in objective.requires and len(documents) == 1:
        documents += other_texts(documents[0], tokenizer)
    split = Split.of_texts(documents, tokenizer, words)
    if not len(split.tokens):
        raise EtymonError("the text has no tokens: give a sentence or two")
    plan = objective.plan(split, seed, 0, shuffle=False)
    if len(documents) > len(texts):
        plan = plan[plan[:, 0] < split.documents[len(texts)]]
        if plan.shape[1] > 4:  # rows whose first text was swapped with the second begin there
            plan = plan[np.minimum(plan[:, 0], plan[:, 2]) < split.documents[len(texts)]]
    if not len(plan):
        raise EtymonError(
            f"the objective {objective.name!r} makes no sample of this text: give a longer one, or two texts"
        )
    return split, plan


def fitting_length(objective: type[Objective], tokenizer: Tokenizer, texts: Sequence[str]) -> int:
    """A length of samples that shows the whole text at once; of streams, in two segments."""
    tokens = sum(len(tokenizer.encode(text, quiet=True)) + 1 for text in texts)
    if getattr(objective, "streaming", False):
        if "two-stream" in objective.requires:
            # Half is running text and half are two pieces of it, with their special tokens.
            return max(2 * SHORTEST_SEGMENT, tokens + tokens % 2) * 2
        if "memory" in objective.requires:
            return max(SHORTEST_SEGMENT, -(-tokens // 2))
        return max(SHORTEST_SEGMENT, tokens + 1)
    # Room for special tokens, and for T5's arithmetic, which makes inputs shorter than the text.
    return tokens + 16


# --- from calls to what is shown


def _readers(
    record: CallRecord,
    tokenizer: Tokenizer,
    example: Any,
    trained: bool,
    most_tokens: int | None,
    is_shifted: bool,
) -> list[ExplainedReader]:
    """A reader for every call that read something, in the order of the calls. `is_shifted`: a token is
    predicted from the place before it."""
    readers = []
    for read in record.reads:
        calls: list[Any] = [call for call in record.vocabulary if record.read_of(call.hidden) is read]
        is_two_way = hasattr(example, "back_ids")
        flags = [call for call in record.heads if call.batch is read.batch and call.name == "replaced"]
        # ELMo asks twice of one pass: ahead, then back, each with words of its own. Others may ask in parts.
        for direction, asking in enumerate([[call] for call in calls] if is_two_way else [calls]):
            ids = example.back_ids.tolist() if direction else read.batch.ids.tolist()
            name = ("ahead", "back")[direction] if is_two_way else read.who
            if name == "model" and "teacher" in record.names:
                name = "student"
            elif flags:
                name = "discriminator"
            originals: dict[int, int] = {}
            places = [_places(read, call.at, len(call.targets)) for call in asking]
            if asking and _stands_in_place(read, name):
                for call, at in zip(asking, places, strict=True):
                    standing = [place + is_shifted for place in at]
                    originals |= dict(zip(standing, call.targets.tolist(), strict=True))
            elif not asking and flags and (generator := record.vocabulary):
                hidden_places = generator[0].at.tolist() if generator[0].at is not None else []
                originals = dict(zip(hidden_places, generator[0].targets.tolist()))
            shown = _window(len(ids), [*(place for at in places for place in at), *originals], most_tokens)
            questions = [
                question
                for call, at in zip(asking, places, strict=True)
                for question in _questions(read, call, at, tokenizer, trained, shown)
            ]
            chances = flags[0].logits.sigmoid().tolist() if flags and trained else None
            tokens = _tokens(read, ids, tokenizer, originals, chances, shown)
            sees = _visibility(record, read, tokenizer, tokens)
            readers.append(ExplainedReader(name, tokens, questions, sees, shown.start, len(ids)))
    return readers


def _window(count: int, questions: Sequence[int], most: int | None) -> range:
    """The places that are told of: all, or `most` with the first question among them."""
    if most is None or count <= most:
        return range(count)
    first = min(questions, default=0)
    # From the beginning, if there are questions as well.
    first = 0 if first < most // 2 else min(first - most // 4, count - most)
    return range(first, first + most)


def _stands_in_place(read: ReadCall, name: str) -> bool:
    """Whether the places of targets may hold something else, and not what a decoder reads next."""
    capabilities = read.model.capabilities
    return name in ("model", "student", "generator") and "bidirectional" in capabilities


def _places(read: ReadCall, at: Tensor | None, count: int) -> list[int]:
    """The positions in the batch where a head was asked."""
    rows = range(count) if at is None else at.tolist()
    return list(rows) if read.at is None else [int(read.at[row]) for row in rows]


def _questions(
    read: ReadCall, call: Any, places: Sequence[int], tokenizer: Tokenizer, trained: bool, shown: range
) -> list[TokenQuestion]:
    rows = [row for row, place in enumerate(places) if place in shown]
    numbers = [places[row] - shown.start for row in rows]
    # Scores of all words are held of these rows only.
    rows_n = torch.tensor(rows, dtype=torch.long, device=call.targets.device)
    words = readable_tokens(tokenizer, call.targets[rows_n].tolist())
    drawn: Sequence[str | None] = [None] * len(words)
    if call.drawn is not None:
        drawn = readable_tokens(tokenizer, call.drawn[rows_n].tolist())
    if not trained or not rows:
        return [TokenQuestion(*each) for each in zip(numbers, words)]
    # Of words that only their letters tell apart, the vocabulary knows the frequent ones.
    targets = call.targets[rows_n].clamp(max=call.head.size - 1)
    at_n = rows_n if call.at is None else call.at[rows_n]
    log_probs_nV = call.head.log_probs(call.hidden, at_n, Context(read.batch))
    losses = -log_probs_nV.gather(1, targets[:, None])[:, 0]
    ranks = (log_probs_nV > -losses[:, None]).sum(1) + 1
    best = log_probs_nV.topk(min(MOST_GUESSES, log_probs_nV.shape[1]), 1)
    questions = []
    for number, (place, word, put) in enumerate(zip(numbers, words, drawn, strict=True)):
        names = readable_tokens(tokenizer, best.indices[number].tolist())
        chances = best.values[number].exp().tolist()
        guesses = tuple(TokenGuess(*each) for each in zip(names, chances, strict=True))
        questions.append(TokenQuestion(place, word, float(losses[number]), int(ranks[number]), guesses, put))
    return questions


def _tokens(
    read: ReadCall,
    ids: Sequence[int],
    tokenizer: Tokenizer,
    originals: Mapping[int, int],
    chances: Sequence[float] | None,
    shown: range,
) -> list[ExplainedToken]:
    batch = read.batch
    texts = readable_tokens(tokenizer, [ids[place] for place in shown])
    special, sentinels, mask = tokenizer.special_ids, set(tokenizer.sentinels), tokenizer.id("mask")
    order = None if batch.order is None else batch.order.tolist()
    segments = None
    if batch.segments is not None and int(batch.segments.max()) > 0:
        segments = batch.segments.tolist()
    tokens = []
    for place, text in zip(shown, texts, strict=True):
        number, original = ids[place], originals.get(place)
        kind = "text"
        if number in sentinels:
            kind = "sentinel"
        elif number == mask:
            kind = "mask"
        elif number in special:
            kind = "special"
        elif original is not None:
            kind = "asked" if original == number else "changed"
        was = None
        if original is not None and original != number:
            (was,) = readable_tokens(tokenizer, [original])
        tokens.append(
            ExplainedToken(
                text,
                int(batch.positions[place]),
                kind,
                was,
                None if segments is None else segments[place],
                None if order is None else order[place],
                None if chances is None else chances[place],
            )
        )
    return tokens


def _text_questions(record: CallRecord, micro: Any, trained: bool) -> list[TextQuestion]:
    """Of heads with one answer a text: next sentence, sentence order."""
    questions = []
    for call in record.heads:
        if call.logits.ndim == 2 and len(call.logits) == 1 and hasattr(micro, "labels"):
            chances = tuple(call.logits[0].softmax(0).tolist()) if trained else ()
            questions.append(TextQuestion(call.name, int(micro.labels[0]), chances))
    return questions


def _visibility(
    record: CallRecord, read: ReadCall, tokenizer: Tokenizer, tokens: Sequence[ExplainedToken]
) -> list[VisibilityMap]:
    """From the attention weights of this very pass: what has weight is seen."""
    who = read.who if read.who in record.traces else "model"
    if who not in record.traces:  # nobody wanted pictures
        return []
    names = [token.text for token in tokens]
    maps: list[VisibilityMap] = []
    for stack, shown in record.traces[who].items():
        if read.who in ("encoder", "decoder") and read.who not in stack:
            continue
        patterns = [weights[0].amax(0) > 0 for weights in shown.attention]
        contents = [allowed for allowed in patterns if len(allowed) == len(names)]
        queries = [allowed for allowed in patterns if len(allowed) != len(names)]
        if read.at is not None and queries:  # two streams: what stands in a place, and what is asked there
            places = [names[place] for place in read.at.tolist()]
            maps += _layer_maps(queries, places, names, "query stream")
            maps += _layer_maps(contents, names, names, "content stream")
        else:
            maps += _layer_maps(contents, names, names, "")
        cross = [weights[0].amax(0) > 0 for weights in shown.cross]
        if cross and read.source is not None:
            sources = readable_tokens(tokenizer, read.source.ids.tolist())
            maps += _layer_maps(cross, names, sources, "decoder sees encoder")
    return maps


def _layer_maps(
    layers: Sequence[Tensor], queries: list[str], keys: list[str], label: str
) -> list[VisibilityMap]:
    """One map for all layers that see alike; keys beyond those of the row are what is remembered."""
    groups: list[tuple[list[int], np.ndarray]] = []
    for number, allowed in enumerate(layers, 1):
        picture = allowed.cpu().numpy()
        same = next((group for group in groups if np.array_equal(group[1], picture)), None)
        if same is None:
            groups.append(([number], picture))
        else:
            same[0].append(number)
    maps = []
    for numbers, picture in groups:
        remembered = picture.shape[1] - len(keys)
        names = [f"memory {place - remembered}" for place in range(remembered)] + keys
        layer_names = "" if len(groups) == 1 else f"layers {', '.join(map(str, numbers))}"
        title = ", ".join(part for part in (label, layer_names) if part) or "all layers"
        maps.append(VisibilityMap(title, queries, names, picture))
    return maps


def unit_for(model: Model, objective: Any, teacher: Model | None, generator: Model | None) -> TrainingUnit:
    """The model with what the objective needs beside it: a generator (a new one unless given), a teacher."""
    from torch import nn

    from etymon.families.surgery import generator_for

    companions: dict[str, nn.Module] = {}
    bridges: dict[str, nn.Module] = {}
    if "generator" in objective.companions:
        companions["generator"] = generator or generator_for(model, {}, 0)
    if teacher is not None and teacher.shape.dim != model.shape.dim:
        bridges["projection"] = nn.Linear(model.shape.dim, teacher.shape.dim, bias=False)
    return TrainingUnit(model, objective, companions, bridges, teacher)


def objective_of(model: Model | None) -> str | None:
    """What a model was last pretrained on, unless that was a mixture."""
    return last_pretraining(model.history).objective if model else None


def explainable_objectives(model: Model) -> list[str]:
    """The objectives that a model can be asked about with the heads that it has."""
    names = []
    for name in REGISTRY:
        kind: Any = objective_class(name)
        # Mixtures are explained one by one, and a teacher would be another model.
        if (
            getattr(kind, "weights", None) is not None
            or kind.needs_teacher
            or kind.heads - model.heads.keys()
        ):
            continue
        try:
            check_fit(kind, model.family)
        except EtymonError:
            continue
        names.append(name)
    return names
