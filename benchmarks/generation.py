"""Greedy generation beside Transformers and CTranslate2: a GPT-2 of 124M parameters, random weights, prompt 32, 64 new tokens.

All sides have the same weights and two threads, each in a process of its own, and the float32 sides must write the same tokens. The
memory bus is the limit at batch 1: every token reads every weight once.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import etymon
from benchmarks.harness import THREADS, Comparison, answer, in_turn, peers, sized
from etymon.generation.decoding import decode
from etymon.settings.decoding import DecodingSettings

PROMPT, NEW, VOCABULARY = sized((32, 64, 50257), (4, 6, 400))
BATCHES = sized((1, 8), (2,))
SHAPE = sized({}, {"dim": 32, "layers": 1, "heads": 2, "vocabulary": VOCABULARY, "positions": 64})
ROUNDS, WARMUP = sized((5, 1), (1, 0))
TARGETS: dict[tuple[str, str], dict[int, float]] = {
    ("float32", "ctranslate2-float32"): {1: 0.8, 8: 0.75},
    ("float32", "transformers"): {1: 1.0, 8: 1.0},
    ("int8", "ctranslate2-int8"): {1: 1.7, 8: 1.4},
    ("int8", "float32"): {},
}
"""Our side, the peer, and what is wanted at each batch size."""


def translator(reference: Any, folder: Path, compute: str) -> Any:
    """The weights in CTranslate2's own layout. Its command-line converter wants a tokenizer beside them; we need none."""
    import ctranslate2
    from ctranslate2.converters.transformers import _MODEL_LOADERS

    spec = _MODEL_LOADERS["GPT2Config"].get_model_spec(reference)
    spec.register_vocabulary([str(number) for number in range(reference.config.vocab_size)])
    spec.config.bos_token = spec.config.eos_token = spec.config.unk_token = "0"
    spec.validate()
    spec.optimize(quantization=compute)
    folder.mkdir(exist_ok=True)
    spec.save(str(folder))
    return ctranslate2.Generator(
        str(folder), device="cpu", compute_type=compute, inter_threads=1, intra_threads=THREADS
    )


def side(name: str, place: str, rows: str) -> Callable[[], list[list[int]]]:
    """What one side does in a round: the new tokens of every row. The engines' threads wait for work by spinning, so each side has
    a process of its own."""
    folder, batch = Path(place), int(rows)
    generator = torch.Generator().manual_seed(batch)
    prompts = torch.randint(1, VOCABULARY, (batch, PROMPT), generator=generator)
    if name in ("float32", "int8"):
        model = etymon.load(folder / "gpt2", quantize="int8" if name == "int8" else None).eval()
        settings = DecodingSettings(max_new_tokens=NEW, min_new_tokens=NEW, end_ids=(0,))
        return lambda: [row[0].ids for row in decode(model, prompts.tolist(), settings)]
    from transformers import GPT2LMHeadModel

    reference = GPT2LMHeadModel.from_pretrained(folder / "gpt2", attn_implementation="sdpa").eval()
    if name == "transformers":
        asked: dict[str, Any] = {
            "attention_mask": torch.ones_like(prompts), "do_sample": False, "max_new_tokens": NEW,
            "min_new_tokens": NEW, "eos_token_id": 0, "pad_token_id": 0,
        }  # fmt: skip
        return lambda: reference.generate(prompts, **asked)[:, PROMPT:].tolist()
    compute = name.removeprefix("ctranslate2-")
    engine = translator(reference, folder / f"{compute}-{batch}", compute)
    tokens = [[str(number) for number in row] for row in prompts.tolist()]

    def generate() -> list[list[int]]:
        found = engine.generate_batch(
            tokens, max_length=NEW, min_length=NEW, sampling_topk=1, include_prompt_in_result=False
        )
        return [[int(number) for number in one.sequences[0]] for one in found]

    return generate


def generation(batch: int) -> Iterable[Comparison]:
    names = list(dict.fromkeys(name for pair in TARGETS for name in pair))
    with tempfile.TemporaryDirectory() as place:
        etymon.save(etymon.build("gpt2", "small", heads=("vocabulary",), shape=SHAPE), Path(place) / "gpt2")
        with peers("benchmarks.generation", {name: (name, place, batch) for name in names}) as sides:
            same = [side.first for name, side in sides.items() if "int8" not in name]
            assert all(text == same[0] for text in same), "the same weights wrote other tokens"
            times = in_turn({name: side.ask for name, side in sides.items()}, ROUNDS, WARMUP)
    speeds = {name: [round(batch * NEW / seconds, 1) for seconds in each] for name, each in times.items()}
    for (ours, theirs), wanted in TARGETS.items():
        yield Comparison(
            f"generation-{ours}-{theirs}-batch-{batch}", times[ours], times[theirs],
            peer=f"{theirs} at batch {batch}",
            what=f"GPT-2 124M, random weights, prompt {PROMPT}, {NEW} new tokens, batch {batch}, greedy",
            target=wanted.get(batch), details={"tokens_a_second": speeds},
        )  # fmt: skip


RUNS = [partial(generation, batch) for batch in BATCHES]

if __name__ == "__main__":
    torch.set_num_threads(THREADS)
    with torch.inference_mode():
        answer(side(*sys.argv[1:]))
