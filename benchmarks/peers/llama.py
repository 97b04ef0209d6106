"""Greedy generation by llama.cpp, a round for every line read: run by the interpreter of .venv-llama.

With the word `version` it says what was built. Otherwise the first line of input is a JSON record: the folder
of a GPT-2 in Hugging Face's layout, the type of its weights (F32, F16, BF16 or Q8_0), prompts, new tokens and
threads. The weights are written as a GGUF file beside the folder. The answer is a line with the new tokens of
every row; then each line that is read asks for a round, whose seconds are printed. They are llama.cpp's own
counters of its evaluations: neither Python nor the choice of a token is in them.
"""

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import gguf
import llama_cpp as engine
import numpy as np

LAYER_NAMES = {
    "ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
}  # fmt: skip
NAMES = {"wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm"}


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """All tensors of a file of float32: a length, a JSON header with places, and the values."""
    whole = np.memmap(path, np.uint8, "r")
    start = 8 + int(whole[:8].view("<u8")[0])
    header = json.loads(whole[8:start].tobytes())
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            assert entry["dtype"] == "F32", f"{name} is {entry['dtype']}"
            first, last = entry["data_offsets"]
            tensors[name] = whole[start + first : start + last].view("<f4").reshape(entry["shape"])
    return tensors


def gguf_name(name: str) -> str:
    """`transformer.h.3.mlp.c_fc.weight` is `blk.3.ffn_up.weight` there."""
    place, _, kind = name.removeprefix("transformer.").rpartition(".")
    if place.startswith("h."):
        _, number, part = place.split(".", 2)
        return f"blk.{number}.{LAYER_NAMES[part]}.{kind}"
    return f"{NAMES[place]}.{kind}"


def write_gguf(folder: Path, path: Path, kind: str) -> None:
    """A file without a tokenizer; matrices are of the given type, all else is float32."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_context_length(config["n_positions"])
    writer.add_embedding_length(config["n_embd"])
    writer.add_block_count(config["n_layer"])
    writer.add_feed_forward_length(config.get("n_inner") or 4 * config["n_embd"])
    writer.add_head_count(config["n_head"])
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    matrices = gguf.GGMLQuantizationType[kind]
    for name, tensor in read_safetensors(folder / "model.safetensors").items():
        if name.endswith((".attn.bias", "lm_head.weight")):  # a mask, and the tied matrix
            continue
        # The published matrices of GPT-2 are [inputs, outputs].
        values = np.ascontiguousarray(tensor.T if ".c_" in name and tensor.ndim == 2 else tensor)
        is_matrix = values.ndim == 2 and "wpe" not in name
        if is_matrix:
            writer.add_tensor(gguf_name(name), gguf.quants.quantize(values, matrices), raw_dtype=matrices)
        else:
            writer.add_tensor(gguf_name(name), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Generator:
    def __init__(self, path: Path, kind: str, rows: int, room: int, threads: int) -> None:
        engine.llama_backend_init()
        model = engine.llama_model_load_from_file(str(path).encode(), engine.llama_model_default_params())
        assert model, f"llama.cpp does not open {path}"
        settings = engine.llama_context_default_params()
        settings.n_ctx, settings.n_batch, settings.n_ubatch = rows * room, rows * room, rows * room
        settings.n_seq_max = rows
        settings.n_threads = settings.n_threads_batch = threads
        settings.no_perf = False
        if kind == "F32":  # its caches are of 16 bits otherwise, and other tokens might be written
            settings.type_k = settings.type_v = engine.GGML_TYPE_F32
        # One context with the rows as its sequences: every step reads the weights once for all of them.
        settings.kv_unified = True
        context = engine.llama_init_from_model(model, settings)
        assert context, "llama.cpp makes no context"
        self.context: Any = context
        self.words = engine.llama_vocab_n_tokens(engine.llama_model_get_vocab(model))
        self.batch = engine.llama_batch_init(rows * room, 0, 1)

    def evaluate(self, tokens: list[list[int]], start: int) -> list[int]:
        """Feeds tokens to every row; the most likely next one of each."""
        batch, ends = self.batch, []
        batch.n_tokens = 0
        for row, new in enumerate(tokens):
            for place, token in enumerate(new):
                index = batch.n_tokens
                batch.token[index], batch.pos[index] = token, start + place
                batch.n_seq_id[index], batch.seq_id[index][0] = 1, row
                batch.logits[index] = place == len(new) - 1
                batch.n_tokens += 1
            ends.append(batch.n_tokens - 1)
        status = engine.llama_decode(self.context, batch)
        assert status == 0, f"llama_decode ended with {status}"
        return [self._best(end) for end in ends]

    def _best(self, place: int) -> int:
        logits = engine.llama_get_logits_ith(self.context, place)
        values = np.ctypeslib.as_array(ctypes.cast(logits, ctypes.POINTER(ctypes.c_float)), (self.words,))
        return 1 + int(values[1:].argmax())  # word 0 is the end of a text, and forbidden

    def generate(self, prompts: list[list[int]], new_tokens: int) -> tuple[list[list[int]], float]:
        """New tokens of every row, and the seconds of all evaluations."""
        engine.llama_memory_clear(engine.llama_get_memory(self.context), True)
        engine.llama_perf_context_reset(self.context)
        written = [[token] for token in self.evaluate(prompts, 0)]
        for step in range(new_tokens - 1):
            best = self.evaluate([row[-1:] for row in written], len(prompts[0]) + step)
            for row, token in zip(written, best, strict=True):
                row.append(token)
        counters = engine.llama_perf_context(self.context)
        # Evaluations of several tokens count as those of prompts.
        return written, (counters.t_p_eval_ms + counters.t_eval_ms) / 1000


def main() -> None:
    if sys.argv[1:] == ["version"]:
        system = engine.llama_print_system_info().decode()
        print(json.dumps({"llama_cpp_python": engine.__version__, "system": system}))
        return
    record = json.loads(sys.stdin.readline())
    folder, kind, prompts, new = Path(record["folder"]), record["type"], record["prompts"], record["new"]
    path = folder.parent / f"{kind}-{len(prompts)}.gguf"
    write_gguf(folder, path, kind)
    generator = Generator(path, kind, len(prompts), len(prompts[0]) + new, record["threads"])
    print(json.dumps(generator.generate(prompts, new)[0]), flush=True)
    for _ in sys.stdin:
        print(generator.generate(prompts, new)[1], flush=True)


if __name__ == "__main__":
    main()
