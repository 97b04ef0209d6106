"""Exports to GGUF: one file with weights, sizes and tokenizer, which llama.cpp and what is built on it
open."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from etymon.errors import EtymonError
from etymon.exports.check import TEXTS
from etymon.exports.gguf_reading import ReadBackRunner
from etymon.exports.gguf_tensors import (
    ENCODERS,
    ROTARY_BERT,
    architecture_of,
    export_tensors,
    find_misfit,
    is_kept_whole,
)
from etymon.exports.gguf_tokenizer import describe_tokenizer, find_tokenizer_misfit, special_ids
from etymon.exports.llama_runner import LlamaRunner, find_llama
from etymon.exports.sizes import find_family_misfit
from etymon.exports.target import EIGHT_BITS, ExportTarget, Runner, Tolerance
from etymon.families.model import Model
from etymon.families.special_tokens import start_id
from etymon.text.tokenizer import BYTE_PIECE, Tokenizer

if TYPE_CHECKING:
    from etymon.families.family import Family

FILE = "model.gguf"
READ_BACK = "gguf's reader and etymon's own layers, as llama.cpp is not installed,"
TRICKY_LINES = [
    "I've been told he'll say it's 3.14, 1,000 or 2026-11-18... isn't it?!",
    "naïve café — “quoted” (twice) e\u0301 ﬁne ＡＢＣ",
    "一二三，四五六。「七八」：九十！ 100%",
    "a" * 30 + " " * 5 + "b\n\nc",
]
"""Apostrophes, numbers, marks, wide letters, long words and white space."""
CONTEXT = 512
"""What llama.cpp is told of a model without a limit of its own: as upstream does for T5."""
BLOCK = 32
"""Numbers that share a factor in Q8_0; rows of other lengths stay F16."""


class GgufTarget(ExportTarget):
    name = "gguf"
    packages = ("gguf",)
    extra = "gguf"
    # llama.cpp looks GELU up in a table of 16 bits, and has its approximation by tanh in BERT, too: answers
    # to 1e-3 are what it can do.
    quantizations = {
        "f32": Tolerance(worst=0.02, agreement=0.98, noise=0.01, lost=0.002),
        "f16": Tolerance(worst=0.03, agreement=0.95, noise=0.02, lost=0.002),
        "q8_0": EIGHT_BITS,
    }

    def unsupported(self, family: Family, head: str) -> str | None:
        return find_family_misfit(family, head, find_misfit)

    def unsupported_model(self, model: Model, head: str) -> str | None:
        reason = find_misfit(model, head)
        if reason is None and model.tokenizer is not None:
            reason = find_tokenizer_misfit(model.tokenizer)
        return reason

    def write(self, model: Model, head: str, folder: Path, quantization: str) -> None:
        from gguf import GGUFWriter

        writer = GGUFWriter(folder / FILE, architecture_of(model))
        add_sizes(writer, model, head)
        add_tokenizer(writer, model)
        add_weights(writer, model, head, quantization)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def open(self, folder: Path) -> Runner:
        python = find_llama()
        return ReadBackRunner(folder / FILE) if python is None else LlamaRunner(python, folder / FILE)

    def checker(self) -> str:
        return "llama.cpp" if find_llama() is not None else READ_BACK

    def check_further(self, model: Model, runner: Runner) -> dict[str, Any]:
        """llama.cpp cuts texts itself: what it makes of some has to be what the tokenizer makes of them."""
        if model.tokenizer is None or not isinstance(runner, LlamaRunner):
            return {}
        return compare_tokens(model.tokenizer, runner)


def compare_tokens(tokenizer: Tokenizer, runner: LlamaRunner) -> dict[str, int]:
    """How many lines of text were compared; refuses a line whose ids differ, unless a character of it has no
    token: unigrams spell such in bytes, and llama.cpp does not."""
    lines = [
        part for text in TEXTS for part in (text, text.strip().upper(), f"  {text}\t{text}")
    ] + TRICKY_LINES
    # What a tokenizer does before its file is no part of an export.
    ours = [row.ids for row in tokenizer.backend.encode_batch(lines, add_special_tokens=False)]
    bytes_apart = {number for number, token in enumerate(tokenizer.tokens) if BYTE_PIECE.fullmatch(token)}
    unknown = bytes_apart | ({tokenizer.id("unknown")} if tokenizer.kind == "unigram" else set())
    compared = 0
    # The first line that differs says enough: ids differ from there on in all.
    for line, expected, actual in zip(lines, ours, runner.tokenize(lines), strict=True):
        if unknown & {*expected, *actual}:
            continue
        compared += 1
        if expected != actual:
            raise EtymonError(
                f"llama.cpp cuts texts into other tokens than the model's tokenizer: {line[:40]!r} are "
                f"{actual[:8]} there, and {expected[:8]} here; nothing was written"
            )
    return {"texts_compared": compared}


def add_sizes(writer: Any, model: Model, head: str) -> None:
    """What a model is: its sizes, where it is from, how texts become one vector."""
    from gguf import PoolingType

    shape, kind = model.shape, architecture_of(model)
    writer.add_type("model")
    writer.add_name(model.family.title)
    # Of this model, and not what an earlier one in its history had.
    last = model.history[-1] if model.history else {}
    if last.get("license"):
        writer.add_license(last["license"])
    if last.get("language"):
        writer.add_languages(list(last["language"]))
    side = model.body.encoder if kind == "t5" else model.body
    layer = side.stack.layers[0]
    # llama.cpp knows no default for any of these: a missing key is a file that it does not open.
    writer.add_context_length(model.positions or CONTEXT)
    writer.add_embedding_length(shape.dim)
    writer.add_block_count(len(side.stack.layers))
    writer.add_feed_forward_length(layer.feed_forward.inner.out_features)
    writer.add_head_count(layer.attention.heads)
    if kind == "t5":
        epsilon = layer.attention_norm.epsilon
        # Heads need not be as wide together as the layers are.
        writer.add_decoder_block_count(len(model.body.decoder.stack.layers))
        writer.add_key_length(layer.attention.head_dim)
        writer.add_value_length(layer.attention.head_dim)
        writer.add_relative_attn_buckets_count(side.stack.position_bias.buckets)
        writer.add_layer_norm_eps(epsilon)
        writer.add_layer_norm_rms_eps(epsilon)
        writer.add_decoder_start_token_id(start_id(model, generating=True))
        return
    writer.add_layer_norm_eps(layer.attention_norm.eps)
    if kind == ROTARY_BERT:
        writer.add_rope_freq_base(layer.attention.rotary.base)
    if kind in ENCODERS:
        writer.add_causal_attention(False)
        segments = side.embeddings.segments
        # It wants a number above 0 even where there is no table of them.
        writer.add_token_type_count(1 if segments is None else segments.num_embeddings)
        if head == "classification":
            writer.add_pooling_type(PoolingType.RANK)
            writer.add_classifier_output_labels([str(label) for label in model.labels])
        else:
            poolings = {"mean": PoolingType.MEAN, "cls": PoolingType.CLS, "last": PoolingType.LAST}
            writer.add_pooling_type(poolings.get(model.sentences.pooling, PoolingType.NONE))


def add_tokenizer(writer: Any, model: Model) -> None:
    """Its tokenizer; without one a file says how many tokens there are, and texts have to come as ids."""
    # llama.cpp generates from ids all the same.
    if model.tokenizer is None:
        writer.add_tokenizer_model("none")
        writer.add_vocab_size(model.shape.vocabulary)
        return
    described = describe_tokenizer(model.tokenizer, model.shape.vocabulary)
    writer.add_tokenizer_model(described.model)
    writer.add_tokenizer_pre(described.pre)
    writer.add_token_list(described.tokens)
    writer.add_token_types(described.types)
    if described.scores is not None:
        writer.add_token_scores(described.scores)
    if described.merges:
        writer.add_token_merges(described.merges)
    if described.charsmap:
        writer.add_precompiled_charsmap(described.charsmap)
    # The writer has methods for some of these keys, and not for those that are newer than it.
    for key, value in described.flags.items():
        writer.add_bool(f"tokenizer.ggml.{key}", value)
    for key, number in special_ids(model.tokenizer).items():
        writer.add_uint32(f"tokenizer.ggml.{key}", number)


def add_weights(writer: Any, model: Model, head: str, quantization: str) -> None:
    from gguf import GGMLQuantizationType, LlamaFileType, quantize

    types = {"f32": LlamaFileType.ALL_F32, "f16": LlamaFileType.MOSTLY_F16, "q8_0": LlamaFileType.MOSTLY_Q8_0}
    writer.add_file_type(types[quantization])
    writer.add_quantization_version(2)
    for name, tensor in export_tensors(model, head).items():
        kind = GGMLQuantizationType[quantization.upper()]
        if is_kept_whole(name, tensor):
            kind = GGMLQuantizationType.F32
        # As llama.cpp's own tool does with such rows.
        elif kind == GGMLQuantizationType.Q8_0 and tensor.shape[-1] % BLOCK:
            kind = GGMLQuantizationType.F16
        writer.add_tensor(name, quantize(tensor.contiguous().numpy(), kind), raw_dtype=kind)
