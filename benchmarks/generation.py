"""Greedy generation beside Transformers, CTranslate2 and llama.cpp: a GPT-2 of 124M parameters, random weights, prompt 32, 64 new
tokens.

All sides have the same weights and two threads, each in a process of its own, and the float32 sides must write the same tokens. The
memory bus is the limit at batch 1: every token reads every weight once. llama.cpp has an environment of its own (`make .venv-llama`)
and is timed by its own counters, without Python and without the choice of tokens; without that environment its rows are left out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch

import etymon
from benchmarks.harness import THREADS, TOY, Comparison, Process, answer, in_turn, peers, sized
from etymon.generation.decoding import decode
from etymon.nn.precision import round_weights
from etymon.nn.products import choose_products
from etymon.settings.decoding import DecodingSettings

PROMPT, NEW, VOCABULARY = sized((32, 64, 50257), (4, 6, 400))
BATCHES = sized((1, 8), (2,))
SHAPE = sized({}, {"dim": 32, "layers": 1, "heads": 2, "vocabulary": VOCABULARY, "positions": 64})
ROUNDS, WARMUP = sized((5, 1), (1, 0))
TARGETS: dict[tuple[str, str], dict[int, float]] = {
    ("float32", "ctranslate2-float32"): {1: 1.2, 8: 1.2},
    ("float32", "transformers"): {1: 1.0, 8: 1.0},
    ("float32", "llama.cpp-F32"): {},
    ("int8", "ctranslate2-int8"): {1: 2.0, 8: 2.0},
    ("int8", "llama.cpp-Q8_0"): {1: 0.9, 8: 1.2},
    ("bf16", "float32"): {8: 1.3},
    ("bf16", "llama.cpp-F16"): {},
    ("int8", "float32"): {},
}
"""Our side, the peer, and what is wanted at each batch size."""
SAME_TOKENS = ("float32", "ctranslate2-float32", "transformers", "llama.cpp-F32")
LLAMA = "llama.cpp-"
LLAMA_PYTHON = (
    Path(os.environ.get("ETYMON_LLAMA", Path(__file__).parents[1] / ".venv-llama")) / "bin" / "python"
)
LLAMA_SCRIPT = "benchmarks/peers/llama.py"


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


def draw_prompts(batch: int) -> torch.Tensor:
    return torch.randint(1, VOCABULARY, (batch, PROMPT), generator=torch.Generator().manual_seed(batch))


class LlamaPeer:
    """llama.cpp in a process of its own. At toy size it need not be there, and our own side stands in."""

    def __init__(self, name: str, place: str, batch: int) -> None:
        self.process = Process([str(LLAMA_PYTHON), LLAMA_SCRIPT])
        asked = {
            "folder": f"{place}/gpt2", "type": name.removeprefix(LLAMA), "prompts": draw_prompts(batch).tolist(),
            "new": NEW, "threads": THREADS,
        }  # fmt: skip
        self.process.say(json.dumps(asked))
        self.first = json.loads(self.process.hear())
        self.ask = self.process.ask

    @staticmethod
    def version() -> dict[str, Any]:
        command = [str(LLAMA_PYTHON), LLAMA_SCRIPT, "version"]
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[1]
        )
        version: dict[str, Any] = json.loads(done.stdout)
        return version


def side(name: str, place: str, rows: str) -> Callable[[], list[list[int]]]:
    """What one side does in a round: the new tokens of every row. The engines' threads wait for work by spinning, so each side has
    a process of its own."""
    folder, batch = Path(place), int(rows)
    prompts = draw_prompts(batch)
    if name in ("float32", "bf16", "int8"):
        model = etymon.load(folder / "gpt2", quantize="int8" if name == "int8" else None).eval()
        if name == "bf16":
            round_weights(model, name)
        choose_products(model)
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


def pairs() -> Mapping[tuple[str, str], Mapping[int, float]]:
    """What is compared here: without llama.cpp, all else."""
    if TOY or LLAMA_PYTHON.is_file():
        return TARGETS
    print(f"llama.cpp is left out: there is no {LLAMA_PYTHON} (make .venv-llama)")
    return {pair: wanted for pair, wanted in TARGETS.items() if not pair[1].startswith(LLAMA)}


def generation(batch: int) -> Iterable[Comparison]:
    compared = pairs()
    names = list(dict.fromkeys(name for pair in compared for name in pair))
    here = [name for name in names if not name.startswith(LLAMA)]
    with tempfile.TemporaryDirectory() as place, ExitStack() as ending:
        etymon.save(etymon.build("gpt2", "small", heads=("vocabulary",), shape=SHAPE), Path(place) / "gpt2")
        started = ending.enter_context(
            peers("benchmarks.generation", {name: (name, place, batch) for name in here})
        )
        sides: dict[str, Any] = dict(started)
        for name in names:
            if name not in here and TOY:
                sides[name] = sides["float32"]
            elif name not in here:
                sides[name] = LlamaPeer(name, place, batch)
                ending.callback(sides[name].process.end)
        texts = [sides[name].first for name in names if name in SAME_TOKENS]
        assert all(text == texts[0] for text in texts), "the same weights wrote other tokens"
        times = in_turn({name: sides[name].ask for name in names}, ROUNDS, WARMUP)
    speeds = {name: [round(batch * NEW / seconds, 1) for seconds in each] for name, each in times.items()}
    details: dict[str, Any] = {"tokens_a_second": speeds}
    if len(here) < len(names) and not TOY:
        details["llama_cpp"] = LlamaPeer.version()
    for (ours, theirs), wanted in compared.items():
        yield Comparison(
            f"generation-{ours}-{theirs}-batch-{batch}", times[ours], times[theirs],
            peer=f"{theirs} at batch {batch}",
            what=f"GPT-2 124M, random weights, prompt {PROMPT}, {NEW} new tokens, batch {batch}, greedy",
            target=wanted.get(batch), details=details,
        )  # fmt: skip


RUNS = [partial(generation, batch) for batch in BATCHES]

if __name__ == "__main__":
    torch.set_num_threads(THREADS)
    # Read outside of inference mode, as the verbs do: inside, weights could not tell that they have changed.
    run = side(*sys.argv[1:])
    with torch.inference_mode():
        answer(run)
