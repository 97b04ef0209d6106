"""llama.cpp for a GGUF file, a line of JSON a question: run by an interpreter that has llama-cpp-python, and
that need not have etymon.

The first line of input names the file and the number of threads. Every answer is a line of JSON; arrays
follow it as their bytes, in the order of their shapes (`{"shapes": [[7, 100]]}`).
"""

import ctypes
import json
import os
import sys
from typing import Any

import numpy as np


class LlamaFile:
    """A file, opened by llama.cpp. Contexts are made for each question, as long as its rows."""

    def __init__(self, path: str, threads: int) -> None:
        import llama_cpp

        self.engine: Any = llama_cpp
        # Its log goes to the standard error, a line a tensor.
        self.silent = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self.silent, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        settings = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), settings)
        if not self.model:
            raise SystemExit(f"llama.cpp does not open {path}")
        self.vocabulary = llama_cpp.llama_model_get_vocab(self.model)
        self.words = llama_cpp.llama_vocab_n_tokens(self.vocabulary)
        self.threads = threads

    def describe(self) -> dict[str, Any]:
        architecture = ctypes.create_string_buffer(64)
        self.engine.llama_model_meta_val_str(
            self.model, b"general.architecture", architecture, len(architecture)
        )
        return {
            "architecture": architecture.value.decode(),
            "classes": self.engine.llama_model_cls_label(self.model, 0) is not None,
            "version": self.engine.__version__,
        }

    def tokenize(self, texts: list[str], add_special: bool) -> list[list[int]]:
        rows = []
        for text in texts:
            data = text.encode()
            # No token is shorter than a byte; special ones may be added.
            room = len(data) + 16
            ids = (ctypes.c_int32 * room)()
            count = self.engine.llama_tokenize(self.vocabulary, data, len(data), ids, room, add_special, True)
            rows.append(list(ids[:count]))
        return rows

    def open_context(self, tokens: int, rows: int, pooling: int | None = None) -> Any:
        settings = self.engine.llama_context_default_params()
        settings.n_ctx = settings.n_batch = settings.n_ubatch = max(tokens, 32)
        settings.n_seq_max = rows
        settings.n_threads = settings.n_threads_batch = self.threads
        # One cache for all rows: each may then be as long as all of them together.
        settings.kv_unified = True
        # Whole caches, and the plain path of attention: rounding would be the runtime's, and not the file's.
        settings.type_k = settings.type_v = self.engine.GGML_TYPE_F32
        settings.flash_attn_type = self.engine.LLAMA_FLASH_ATTN_TYPE_DISABLED
        settings.op_offload = False
        if pooling is not None:
            settings.embeddings, settings.pooling_type = True, pooling
        context = self.engine.llama_init_from_model(self.model, settings)
        if not context:
            raise SystemExit("llama.cpp makes no context for this model")
        return context

    def fill_batch(self, rows: list[list[int]], start: int = 0, last_only: bool = False) -> Any:
        batch = self.engine.llama_batch_init(sum(map(len, rows)), 0, 1)
        # The library has no function for this: fields are filled one by one.
        for number, row in enumerate(rows):
            for place, token in enumerate(row):
                index = batch.n_tokens
                batch.token[index], batch.pos[index] = token, start + place
                batch.n_seq_id[index], batch.seq_id[index][0] = 1, number
                batch.logits[index] = not last_only or place == len(row) - 1
                batch.n_tokens += 1
        return batch

    def run(self, function: Any, context: Any, batch: Any) -> None:
        if (status := function(context, batch)) != 0:
            raise SystemExit(f"llama.cpp ended with the status {status}")

    def logits(self, rows: list[list[int]], targets: list[list[int]] | None) -> list[np.ndarray]:
        """Logits of every token; of an encoder and a decoder those of what the decoder reads."""
        engine = self.engine
        # Behind an encoder a row at a time: a context holds one source.
        if targets is not None:
            return [self._decode(row, target) for row, target in zip(rows, targets, strict=True)]
        context = self.open_context(sum(map(len, rows)), len(rows))
        batch = self.fill_batch(rows)
        self.run(engine.llama_decode, context, batch)
        flat = _array(engine.llama_get_logits(context), (batch.n_tokens, self.words))
        engine.llama_batch_free(batch)
        engine.llama_free(context)
        return _split(flat, rows)

    def _decode(self, row: list[int], target: list[int]) -> np.ndarray:
        engine = self.engine
        context = self.open_context(max(len(row), len(target)), 1)
        source, written = self.fill_batch([row]), self.fill_batch([target])
        self.run(engine.llama_encode, context, source)
        self.run(engine.llama_decode, context, written)
        flat = _array(engine.llama_get_logits(context), (len(target), self.words))
        engine.llama_batch_free(source)
        engine.llama_batch_free(written)
        engine.llama_free(context)
        return flat

    def states(self, rows: list[list[int]]) -> list[np.ndarray]:
        """Hidden states of every token of an encoder."""
        engine = self.engine
        context = self.open_context(sum(map(len, rows)), len(rows), engine.LLAMA_POOLING_TYPE_NONE)
        batch = self.fill_batch(rows)
        self.run(engine.llama_encode, context, batch)
        flat = _array(
            engine.llama_get_embeddings(context), (batch.n_tokens, engine.llama_model_n_embd(self.model))
        )
        engine.llama_batch_free(batch)
        engine.llama_free(context)
        return _split(flat, rows)

    def classes(self, rows: list[list[int]]) -> list[np.ndarray]:
        """Logits of every row's classes."""
        engine = self.engine
        context = self.open_context(sum(map(len, rows)), len(rows), engine.LLAMA_POOLING_TYPE_RANK)
        batch = self.fill_batch(rows)
        self.run(engine.llama_encode, context, batch)
        labels = engine.llama_model_n_cls_out(self.model)
        answers = [
            _array(engine.llama_get_embeddings_seq(context, number), (labels,)) for number in range(len(rows))
        ]
        engine.llama_batch_free(batch)
        engine.llama_free(context)
        return answers

    def generate(self, rows: list[list[int]], new: int, start: int | None) -> list[list[int]]:
        """The likeliest next tokens, `new` of each row. Behind an encoder a text begins with `start`."""
        engine, written = self.engine, []
        for row in rows:
            context = self.open_context(max(len(row), new + 1) + new, 1)
            text, place = row, 0
            if start is not None:
                batch = self.fill_batch([row])
                self.run(engine.llama_encode, context, batch)
                engine.llama_batch_free(batch)
                text = [start]
            tokens: list[int] = []
            for _ in range(new):
                batch = self.fill_batch([text], place, last_only=True)
                self.run(engine.llama_decode, context, batch)
                engine.llama_batch_free(batch)
                best = int(_array(engine.llama_get_logits_ith(context, -1), (self.words,)).argmax())
                place, text = place + len(text), [best]
                tokens.append(best)
            engine.llama_free(context)
            written.append(tokens)
        return written


def _array(pointer: Any, shape: tuple[int, ...]) -> np.ndarray:
    if not pointer:
        raise SystemExit("llama.cpp has no answer")
    floats = ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float))
    return np.ctypeslib.as_array(floats, shape).copy()


def _split(flat: np.ndarray, rows: list[list[int]]) -> list[np.ndarray]:
    return np.split(flat, np.cumsum([len(row) for row in rows])[:-1])


def main() -> None:
    # What llama.cpp itself writes to the standard output must not stand between answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    first = json.loads(sys.stdin.readline())
    file = LlamaFile(first["path"], first["threads"])

    def say(record: dict[str, Any], arrays: list[np.ndarray] | None = None) -> None:
        answers.write(json.dumps(record).encode() + b"\n")
        for array in arrays or []:
            answers.write(np.ascontiguousarray(array, np.float32).tobytes())
        answers.flush()

    say(file.describe())
    for line in sys.stdin:
        question = json.loads(line)
        if question["do"] == "tokenize":
            say({"rows": file.tokenize(question["texts"], question["add_special"])})
            continue
        if question["do"] == "generate":
            say({"rows": file.generate(question["rows"], question["new"], question["start"])})
            continue
        if question["do"] == "logits":
            arrays = file.logits(question["rows"], question["targets"])
        elif question["do"] == "states":
            arrays = file.states(question["rows"])
        else:
            arrays = file.classes(question["rows"])
        say({"shapes": [array.shape for array in arrays]}, arrays)


if __name__ == "__main__":
    main()
