"""Tiny models of Transformers with lively weights, and their generate() in our words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from etymon.families.loading import load
from etymon.families.model import Model
from etymon.generation import DecodingSettings, Sequence

VOCABULARY = 60
PAD = 0
KEYWORDS = {
    "max_new_tokens": "max_new_tokens",
    "min_new_tokens": "min_new_tokens",
    "beams": "num_beams",
    "length_penalty": "length_penalty",
    "early_stopping": "early_stopping",
    "returns": "num_return_sequences",
    "no_repeat_ngram": "no_repeat_ngram_size",
    "repetition_penalty": "repetition_penalty",
}


SEEDS = {"gpt1": 3, "gpt2": 0, "gpt3": 1, "gptj": 9, "bart": 4, "t5": 5}
"""With texts that vary, some of which come to an end."""

SIZES = {"n_positions": 48, "n_embd": 24, "n_layer": 2, "n_head": 3}
DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt1": ("OpenAIGPTLMHeadModel", SIZES),
    "gpt2": ("GPT2LMHeadModel", SIZES),
    "gpt3": (
        "GPTNeoForCausalLM",
        {
            "max_position_embeddings": 48, "hidden_size": 24, "num_layers": 2, "num_heads": 3, "window_size": 4,
            "attention_types": [[["global", "local"], 1]],
        },
    ),
    "gptj": ("GPTJForCausalLM", {**SIZES, "rotary_dim": 4}),
}  # fmt: skip


def reference_model(family: str, seed: int | None = None, **changed: Any) -> Any:
    """A decoder may have `changed` settings. Weights so large that texts vary and end: the first values would repeat one token for ever."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(SEEDS[family] if seed is None else seed)
    if family == "bart":
        config = transformers.BartConfig(
            vocab_size=VOCABULARY, max_position_embeddings=48, d_model=24, encoder_layers=2, decoder_layers=2,
            encoder_attention_heads=3, decoder_attention_heads=3, encoder_ffn_dim=40, decoder_ffn_dim=40,
            bos_token_id=2, pad_token_id=PAD, eos_token_id=1, decoder_start_token_id=1, forced_bos_token_id=2,
            forced_eos_token_id=1,
        )  # fmt: skip
        model = transformers.BartForConditionalGeneration(config)
        model.generation_config.forced_bos_token_id = 2
    elif family != "t5":
        name, sizes = DECODERS[family]
        cls = getattr(transformers, name)
        model = cls(
            cls.config_class(
                vocab_size=VOCABULARY, bos_token_id=1, eos_token_id=1, pad_token_id=PAD, **sizes, **changed
            )
        )
    else:
        config = transformers.T5Config(
            vocab_size=VOCABULARY, d_model=24, d_kv=8, d_ff=40, num_layers=2, num_heads=3,
            decoder_start_token_id=PAD, pad_token_id=PAD, eos_token_id=1,
        )  # fmt: skip
        model = transformers.T5ForConditionalGeneration(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name == "shared.weight":
                # Small beside what the layers add, else every token would be followed by itself ...
                parameter.normal_(0, 0.25)
            elif parameter.dim() > 1:
                quiet = (
                    "EncDecAttention.o" in name or "encoder_attn.out" in name
                )  # the source is the same at every step
                parameter.normal_(
                    0,
                    0.1 if quiet else 0.6 if "wpe" in name or "positions" in name or family == "t5" else 0.35,
                )
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            if name == "decoder.final_layer_norm.weight":
                parameter.mul_(12)  # ... and loud again before the vocabulary.
    return model.eval()


def our_model(reference: Any, folder: Any) -> Model:
    reference.save_pretrained(folder)
    return load(folder)


def their_texts(
    reference: Any, prompts: list[list[int]], settings: DecodingSettings, *, padded: bool = False
) -> list[list[tuple[list[int], float | None]]]:
    """New tokens up to the end token, and the score of beams; row by row, or padded on the left."""
    if not padded:
        return [_generate(reference, [prompt], settings)[0] for prompt in prompts]
    return _generate(reference, prompts, settings)


def _generate(
    reference: Any, prompts: list[list[int]], settings: DecodingSettings
) -> list[list[tuple[list[int], float | None]]]:
    longest = max(map(len, prompts))
    padding = [[PAD] * (longest - len(prompt)) for prompt in prompts]
    right = reference.config.is_encoder_decoder
    ids = torch.tensor([p + b if right else b + p for p, b in zip(prompts, padding)])
    mask = torch.tensor([
        [1] * len(p) + [0] * len(b) if right else [0] * len(b) + [1] * len(p) for p, b in zip(prompts, padding)
    ])  # fmt: skip
    given = {theirs: getattr(settings, ours) for ours, theirs in KEYWORDS.items()}
    out = reference.generate(
        ids,
        attention_mask=mask,
        do_sample=False,
        eos_token_id=list(settings.end_ids),
        pad_token_id=PAD,
        return_dict_in_generate=True,
        output_scores=True,
        **given,
    )
    new = out.sequences[:, 1:] if right else out.sequences[:, longest:]
    rows = [_cut(row, settings.end_ids) for row in new.tolist()]
    scores = out.sequences_scores.tolist() if settings.beams > 1 else [None] * len(rows)
    pairs = list(zip(rows, scores))
    return [pairs[at : at + settings.returns] for at in range(0, len(pairs), settings.returns)]


def _cut(ids: list[int], ends: tuple[int, ...]) -> list[int]:
    found = [place for place, number in enumerate(ids) if number in ends]
    return ids[: found[0] + 1] if found else ids


def assert_same(ours: list[list[Sequence]], theirs: list[list[tuple[list[int], float | None]]]) -> None:
    assert [[one.ids for one in row] for row in ours] == [[ids for ids, _ in row] for row in theirs]
    for row, expected in zip(ours, theirs):
        for one, (_, score) in zip(row, expected):
            if score is not None:
                assert one.score == pytest.approx(score, rel=2e-5, abs=2e-5)


def fit(counts: Any, share: Any) -> float:
    """The p-value of counts against exact probabilities; what is expected fewer than five times is one cell."""
    stats = pytest.importorskip("scipy.stats")
    counts, expected = np.ravel(counts), np.ravel(share) / np.sum(share) * np.sum(counts)
    assert not counts[expected == 0].any(), "what cannot be has come out"
    rare = expected < 5
    cells = [
        np.append(column[~rare], column[rare].sum() if expected[rare].sum() else []).astype(float)
        for column in (counts, expected)
    ]
    assert len(cells[0]) > 1, "there is nothing to choose"
    return float(stats.chisquare(*cells).pvalue)
