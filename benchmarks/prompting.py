"""Few-shot scoring with 16 shared examples beside our own scoring without sharing.

200 queries with two choices each behind the same 16 examples. The peer is `score_texts`: ragged batches without padding, but every
prompt is read whole, once a choice. The model is a GPT-2 of four layers, 256 wide, with random weights: at GPT-2's own
size the peer would need minutes a round on two cores.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import etymon
from benchmarks.harness import Comparison, alternate, sized
from benchmarks.sentence_encoding import sentences
from etymon.families.decoders import BYTE_BPE
from etymon.generation.likelihood import score_texts
from etymon.text.tokenizer_training import train_tokenizer

SHOTS, LABELS = sized(16, 2), ("negative", "positive")
QUERIES, ROUNDS, WARMUP, VOCABULARY = sized((200, 5, 1, 4096), (4, 1, 0, 400))
SHAPE = sized(
    {"dim": 256, "layers": 4, "heads": 4, "positions": 1536},
    {"dim": 32, "layers": 1, "heads": 2, "positions": 256},
)


def prompting() -> Iterable[Comparison]:
    texts, corpus = sentences()
    tokenizer = train_tokenizer(BYTE_BPE.kind, texts, VOCABULARY, specials=BYTE_BPE.specials)
    model = etymon.build("gpt2", shape={**SHAPE, "vocabulary": tokenizer.size}, heads=("vocabulary",)).eval()
    model.tokenizer = tokenizer
    records = [{"text": text, "label": number % 2} for number, text in enumerate(texts)]
    task: dict[str, Any] = {
        "instruction": "Say whether the review is positive or negative.",
        "template": "Review: {text}\nSentiment: {label}", "label": "label", "choices": list(LABELS), "shots": SHOTS,
        "examples": records[:SHOTS], "queries": records[SHOTS : SHOTS + QUERIES],
    }  # fmt: skip

    def ours() -> list[float]:
        (outcome,) = etymon.prompt(model, task).outcomes
        assert not outcome.shortened, "the model has too few positions for a fair comparison"
        return [choice.log_prob for answer in outcome.answers for choice in answer.choices]

    prompts = [answer.prompt for answer in etymon.prompt(model, task).outcomes[0].answers]
    pairs = [(prompt, f" {label}") for prompt in prompts for label in LABELS]

    def theirs() -> list[float]:
        contexts, targets = zip(*pairs, strict=True)
        return [score.log_likelihood for score in score_texts(model, contexts, targets)]

    difference = max(abs(one - other) for one, other in zip(ours(), theirs(), strict=True))
    assert difference < 1e-4, f"the scores differ by {difference}"
    tokens = [len(ids) for ids in tokenizer.encode_batch(prompts)]
    yield Comparison(
        "prompting",
        *alternate(ours, theirs, ROUNDS, WARMUP),
        peer="scoring without shared prefixes",
        what=f"{len(prompts)} queries of {corpus}, {SHOTS} shared examples, {len(LABELS)} choices, GPT-2 of 4 layers x 256",
        target=5.0,
        details={
            "mean_prompt_tokens": round(sum(tokens) / len(tokens), 1),
            "largest_difference": difference,
        },
    )


RUNS = [prompting]
