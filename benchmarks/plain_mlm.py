"""A plain loop over Transformers' BertForMaskedLM, as its `run_mlm` example trains: the peer of a pocket BERT.

Blocks of one long stream, 15% of the tokens masked anew every time (80/10/10), AdamW with a linear schedule, float32 or autocast. It has
the shape, tokenizer, text, batch and number of operations of the run that it stands beside, and learned positions, as the class has them.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from etymon.config import load_yaml
from etymon.families import get_family
from etymon.families.loading import shape_of
from etymon.runs.run_file import RunFile
from etymon.text.store import TokenStore
from etymon.text.tokenizer import Tokenizer
from etymon.training.budgets import parse_budget

WARMUP, DECAY, MASKED = 0.1, 0.01, 0.15
VALIDATION_BLOCKS = 256


def mask_tokens(ids: np.ndarray, tokenizer: Tokenizer, rng: np.random.Generator) -> tuple[Any, Any]:
    """What the model reads and its labels, -100 where nothing is asked."""
    mask, special = tokenizer.id("mask"), np.fromiter(tokenizer.special_ids, np.int64)
    chosen = (rng.random(ids.shape) < MASKED) & ~np.isin(ids, special)
    draw, shown = rng.random(ids.shape), ids.copy()
    shown[chosen & (draw < 0.8)] = mask
    random = chosen & (draw >= 0.9)
    shown[random] = rng.integers(0, tokenizer.size, int(random.sum()))
    return torch.from_numpy(shown), torch.from_numpy(np.where(chosen, ids, -100))


def blocks_of(tokens: np.ndarray, length: int) -> np.ndarray:
    count = len(tokens) // length
    return np.asarray(tokens[: count * length], np.int64).reshape(count, length)


def build(run: Path, tokenizer: Tokenizer, seed: int, attention: str = "sdpa") -> Any:
    """Transformers' class in the shape of the run's size."""
    from transformers import BertConfig, BertForMaskedLM

    file = load_yaml(run / "run.yaml", RunFile)
    shape = shape_of(get_family("bert"), file.size, **{**file.shape, "vocabulary": tokenizer.size})
    config = BertConfig(
        vocab_size=tokenizer.size,
        hidden_size=shape.dim,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.inner_dim,
        max_position_embeddings=shape.positions,
        hidden_dropout_prob=shape.dropout,
        attention_probs_dropout_prob=shape.attention_dropout,
        pad_token_id=tokenizer.id("pad"),
    )
    torch.manual_seed(seed)
    return BertForMaskedLM._from_config(config, attn_implementation=attention)


def operations_a_step(run: Path, tokenizer: Tokenizer, batch: int, length: int) -> float:
    """Counted with plain products: the counter passes over fused attention."""
    model = build(run, tokenizer, 0, "eager")
    ids = torch.zeros(batch, length, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        model(ids, labels=ids).loss.backward()
    return float(counter.get_total_flops())


def train(run: Path, out: Path, *, budget: str, rate: float, seed: int, half: bool) -> dict[str, float]:
    """Trains beside `run`, writes a model folder `out` with its tokenizer; returns steps and validation loss in nats."""
    kept = out / "plain.json"
    if kept.is_file():
        done: dict[str, float] = json.loads(kept.read_text(encoding="utf-8"))
        return done
    file, tokenizer = load_yaml(run / "run.yaml", RunFile), Tokenizer.load(run / "tokenizer")
    store = TokenStore.open(run / "store", tokenizer)
    assert file.length is not None and file.batch is not None
    length, batch = file.length, file.batch
    model = build(run, tokenizer, seed)
    parsed = parse_budget(budget)
    steps = int(parsed.amount)
    if parsed.unit == "flops":
        steps = max(1, round(parsed.amount / operations_a_step(run, tokenizer, batch, length)))
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=DECAY)
    rising = max(1, round(WARMUP * steps))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min((step + 1) / rising, (steps - step) / max(1, steps - rising))
    )
    rng, blocks = np.random.default_rng(seed), blocks_of(store.train.tokens, length)
    for step in range(steps):
        ids, labels = mask_tokens(blocks[rng.integers(0, len(blocks), batch)], tokenizer, rng)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = model(ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        optimiser.zero_grad()
        if step % 200 == 0:
            print(f"{out.name}: step {step:,} of {steps:,}, loss {loss.item():.3f}", flush=True)
    found = {"steps": steps, "rate": rate, "masked": validation_loss(model.eval(), store, tokenizer, length)}
    model.save_pretrained(out)
    for path in (run / "tokenizer").iterdir():
        shutil.copy(path, out)
    kept.write_text(json.dumps(found), encoding="utf-8")
    return found


@torch.inference_mode()
def validation_loss(model: Any, store: TokenStore, tokenizer: Tokenizer, length: int) -> float:
    rng, losses = np.random.default_rng(0), []
    for block in blocks_of(store.validation.tokens, length)[:VALIDATION_BLOCKS]:
        ids, labels = mask_tokens(block[None], tokenizer, rng)
        if (labels >= 0).any():
            losses.append(float(model(ids, labels=labels).loss))
    return float(np.mean(losses))
