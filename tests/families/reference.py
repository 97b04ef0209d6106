"""Tiny Transformers models of every class of the built families, with weights that leave nothing zero or one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from etymon.families import REGISTRY

VOCABULARY, LENGTH, LENGTHS = 61, 9, (9, 5, 7)
LABELS = 3
PAD, END = 0, 1
"""Unless a configuration tells another padding: the end is then the id behind it."""
GPT2 = {
    "vocab_size": VOCABULARY, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 44,
    "bos_token_id": 2, "eos_token_id": END, "pad_token_id": PAD,
}  # fmt: skip
GPT1 = {name: value for name, value in GPT2.items() if name != "n_inner"}
GPTJ = {**GPT2, "rotary_dim": 4}
# So wide that padding on the right still sees a word: beyond that Transformers gives anything.
GPTNEO = {
    "vocab_size": VOCABULARY, "max_position_embeddings": 16, "hidden_size": 32, "num_layers": 3, "num_heads": 4,
    "intermediate_size": 44, "attention_types": [[["global", "local"], 1], [["local"], 1]], "window_size": 5,
    "bos_token_id": 2, "eos_token_id": END, "pad_token_id": PAD,
}  # fmt: skip
BERT = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 44, "max_position_embeddings": 16, "pad_token_id": PAD,
}  # fmt: skip
ROBERTA = {
    **BERT,
    "max_position_embeddings": 18,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
    "pad_token_id": 1,
}
ALBERT = {**BERT, "embedding_size": 20}
ELECTRA = {**BERT, "embedding_size": 20}
DISTILBERT = {
    "vocab_size": VOCABULARY, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 44, "max_position_embeddings": 16,
    "pad_token_id": PAD,
}  # fmt: skip
T5 = {
    "vocab_size": VOCABULARY, "d_model": 32, "d_kv": 6, "d_ff": 44, "num_layers": 2, "num_decoder_layers": 3,
    "num_heads": 4, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 12,
    "pad_token_id": PAD, "eos_token_id": END, "decoder_start_token_id": PAD,
}  # fmt: skip

# The two sides differ in all that may differ.
BART = {
    "vocab_size": VOCABULARY, "max_position_embeddings": 16, "d_model": 32, "encoder_layers": 2, "decoder_layers": 3,
    "encoder_attention_heads": 4, "decoder_attention_heads": 2, "encoder_ffn_dim": 44, "decoder_ffn_dim": 36,
    "bos_token_id": PAD, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2, "forced_eos_token_id": 2,
}  # fmt: skip


@dataclass(frozen=True)
class Reference:
    """A class of Transformers, how to build it and what to call it with."""

    name: str
    config: dict[str, Any]
    heads: frozenset[str]
    inputs: Callable[[torch.Generator, Tensor], dict[str, Tensor]]
    """Further arguments, from a generator of numbers and the ids."""
    variant: str = ""
    build: dict[str, Any] = field(default_factory=dict)
    choices: int = 1

    def __str__(self) -> str:
        return self.name + self.variant

    @property
    def family(self) -> str:
        plain = self.name.lower().replace("openaigpt", "gpt1").replace("gptneo", "gpt3")
        plain = plain.replace("xlmroberta", "roberta").replace("camembert", "roberta").replace("mt5", "t5")
        plain = plain.replace("roformer", "bert")
        return next(family for family in REGISTRY if plain.startswith(family))

    @property
    def spare_bias(self) -> str | None:
        """Of the two biases of an untied head, the one that Transformers 5 stores and does not use."""
        names = {"bert": "cls.predictions.bias", "roberta": "lm_head.bias", "albert": "predictions.bias"}
        return names.get(self.family) if self.variant == "-untied" else None

    def write(self, folder: Path) -> Any:
        """Saves a random model as Transformers does, and gives it as Transformers opens it."""
        import transformers

        cls = getattr(transformers, self.name)
        config = cls.config_class(**self.config)
        built = cls(config, **self.build)
        generator = torch.Generator().manual_seed(sum(map(ord, str(self))))
        with torch.no_grad():
            for name, parameter in built.named_parameters():
                if not parameter.requires_grad:  # RoFormer's sines
                    continue
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.15)
                if "norm" in name.lower() or "ln_" in name:
                    parameter += 1.0 if name.endswith("weight") else 0.2
            for name, buffer in built.named_buffers():
                if name == "final_logits_bias":
                    buffer.copy_(torch.randn(buffer.shape, generator=generator))
        built.save_pretrained(folder)
        if self.variant == "-1.1":
            untie(folder)
        return self.open(folder)

    def open(self, folder: Path, **options: Any) -> Any:
        import transformers

        cls = getattr(transformers, self.name)
        found = cls.from_pretrained(folder, attn_implementation="eager", **self.build, **options)
        (found[0] if isinstance(found, tuple) else found).eval()
        return found

    def arguments(self, padded: bool) -> dict[str, Tensor]:
        """Ids, a mask where rows are padded on the right, and what the class takes besides."""
        generator = torch.Generator().manual_seed(7)
        ids = torch.randint(3, VOCABULARY, (3 * self.choices, LENGTH), generator=generator)
        lengths = (torch.tensor(LENGTHS) if padded else torch.full((3,), LENGTH)).repeat(self.choices)
        mask = torch.arange(LENGTH) < lengths[:, None]
        pad = self.config["pad_token_id"]
        ids[torch.arange(len(ids)), lengths - 1] = pad + END
        ids = ids.masked_fill(~mask, pad)
        arguments = {"input_ids": ids, **({"attention_mask": mask.long()} if padded else {})}
        arguments |= self.inputs(generator, ids)
        labels = arguments.get("labels")
        if labels is not None and labels.numel() == ids.numel():
            arguments["labels"] = labels.masked_fill(~mask.view(labels.shape), -100)
        if self.choices > 1:
            for name in ("input_ids", "attention_mask", "token_type_ids"):
                # GPT-1 wants its mask flat.
                if name in arguments and (self.family, name) != ("gpt1", "attention_mask"):
                    arguments[name] = arguments[name].view(3, self.choices, LENGTH)
        return arguments


def untie(folder: Path) -> None:
    """Gives a saved T5 1.1 its own output matrix: Transformers 5 reads such a file, but cannot build one."""
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = weights["shared.weight"].flip(0) * 0.7 + 0.01
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == "mt5" or config["scale_decoder_outputs"] is False
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))


def _words(generator: torch.Generator, ids: Tensor) -> dict[str, Tensor]:
    return {"labels": ids.masked_fill(torch.rand(ids.shape, generator=generator) < 0.2, -100)}


def _segments(generator: torch.Generator, ids: Tensor) -> dict[str, Tensor]:
    return {"token_type_ids": torch.randint(0, 2, ids.shape, generator=generator)}


def _classes(generator: torch.Generator, ids: Tensor) -> dict[str, Tensor]:
    return {"labels": torch.tensor([2, 0, 1])}


def _pairs(generator: torch.Generator, ids: Tensor) -> dict[str, Tensor]:
    return {"labels": torch.tensor([1, 0, 1])}


def _tags(generator: torch.Generator, ids: Tensor) -> dict[str, Tensor]:
    return {"labels": torch.randint(0, LABELS, ids.shape, generator=generator)}


def _replaced(generator: torch.Generator, ids: Tensor) -> dict[str, Tensor]:
    return {"labels": torch.randint(0, 2, ids.shape, generator=generator)}


def _spans(generator: torch.Generator, ids: Tensor) -> dict[str, Tensor]:
    # One answer was cut off: its end lies beyond the text.
    return {"start_positions": torch.tensor([1, 0, 4]), "end_positions": torch.tensor([3, 99, 4])}


def _choices(generator: torch.Generator, ids: Tensor) -> dict[str, Tensor]:
    return {
        "mc_token_ids": torch.tensor([[8, 4], [6, 3], [2, 5]]),
        "mc_labels": torch.tensor([1, 0, 1]),
        "labels": _words(generator, ids)["labels"].view(3, 2, LENGTH),
    }


def _texts(generator: torch.Generator, ids: Tensor) -> dict[str, Tensor]:
    return {**_words(generator, ids), "mc_labels": torch.tensor([2])}


def _targets(generator: torch.Generator, ids: Tensor) -> dict[str, Tensor]:
    labels = torch.randint(3, VOCABULARY, (3, 6), generator=generator)
    real = torch.arange(6) < torch.tensor([4, 6, 3])[:, None]
    return {"labels": labels.masked_fill(~real, -100), "decoder_attention_mask": real.long()}


def _decoded(generator: torch.Generator, ids: Tensor) -> dict[str, Tensor]:
    return {"decoder_input_ids": torch.randint(3, VOCABULARY, (3, 6), generator=generator)}


def _none(generator: torch.Generator, ids: Tensor) -> dict[str, Tensor]:
    return {}


def _both(*parts: Callable[[torch.Generator, Tensor], dict[str, Tensor]]) -> Callable[..., dict[str, Tensor]]:
    def joined(generator: torch.Generator, ids: Tensor) -> dict[str, Tensor]:
        return {name: value for part in parts for name, value in part(generator, ids).items()}

    return joined


def _next(generator: torch.Generator, ids: Tensor) -> dict[str, Tensor]:
    return {"next_sentence_label": torch.tensor([1, 0, 1])}


def _order(generator: torch.Generator, ids: Tensor) -> dict[str, Tensor]:
    return {"sentence_order_label": torch.tensor([0, 1, 1])}


LABELLED = {"num_labels": LABELS}
UNTIED = {"tie_word_embeddings": False}


def _tasks(name: str, config: dict[str, Any], extra: Callable[..., dict[str, Tensor]]) -> list[Reference]:
    """The classes for tasks, which BERT and its relatives all have."""
    return [
        Reference(f"{name}ForSequenceClassification", {**config, **LABELLED}, frozenset({"classification"}), _both(_classes, extra)),
        Reference(f"{name}ForMultipleChoice", config, frozenset({"choice"}), _both(_pairs, extra), choices=2),
        Reference(f"{name}ForTokenClassification", {**config, **LABELLED}, frozenset({"tagging"}), _both(_tags, extra)),
        Reference(f"{name}ForQuestionAnswering", config, frozenset({"span"}), _both(_spans, extra)),
    ]  # fmt: skip


def _model(name: str, config: dict[str, Any], extra: Callable[..., dict[str, Tensor]]) -> list[Reference]:
    """The bare model, with its pooler and without."""
    return [
        Reference(f"{name}Model", config, frozenset({"pooler"}), extra),
        Reference(f"{name}Model", config, frozenset(), extra, "-unpooled", {"add_pooling_layer": False}),
    ]


def _words_of(
    name: str, config: dict[str, Any], extra: Callable[..., dict[str, Tensor]], variant: str = ""
) -> Reference:
    return Reference(f"{name}ForMaskedLM", config, frozenset({"vocabulary"}), _both(_words, extra), variant)


ORDERED = frozenset({"vocabulary", "sentence_order"})
GROUPED = {**ALBERT, "num_hidden_layers": 5, "num_hidden_groups": 2, "inner_group_num": 2}
RELATIVES = [
    _words_of("Roberta", ROBERTA, _none),
    _words_of("Roberta", {**ROBERTA, **UNTIED}, _none, "-untied"),
    _words_of("Roberta", {**ROBERTA, "pad_token_id": 3, "max_position_embeddings": 20}, _none, "-padded-by-3"),
    _words_of("Roberta", {**ROBERTA, "type_vocab_size": 2, "hidden_act": "relu"}, _segments, "-segments"),
    *_tasks("Roberta", ROBERTA, _none),
    *_model("Roberta", ROBERTA, _none),
    Reference("AlbertForPreTraining", ALBERT, ORDERED, _both(_words, _segments, _order)),
    Reference("AlbertForPreTraining", GROUPED, ORDERED, _both(_words, _segments, _order), "-grouped"),
    _words_of("Albert", ALBERT, _segments),
    _words_of("Albert", {**ALBERT, **UNTIED}, _segments, "-untied"),
    _words_of("Albert", {**ALBERT, "embedding_size": 32}, _segments, "-as-wide"),
    *_tasks("Albert", ALBERT, _segments),
    *_model("Albert", ALBERT, _segments),
    _words_of("DistilBert", DISTILBERT, _none),
    _words_of("DistilBert", {**DISTILBERT, **UNTIED}, _none, "-untied"),
    *_tasks("DistilBert", DISTILBERT, _none),
    Reference("DistilBertModel", DISTILBERT, frozenset(), _none),
    Reference("ElectraForPreTraining", ELECTRA, frozenset({"replaced"}), _both(_replaced, _segments)),
    Reference("ElectraForPreTraining", {**ELECTRA, "embedding_size": 32, "hidden_act": "relu"}, frozenset({"replaced"}), _both(_replaced, _segments), "-as-wide"),
    _words_of("Electra", {**ELECTRA, "hidden_act": "relu"}, _segments),
    _words_of("Electra", {**ELECTRA, **UNTIED}, _segments, "-untied"),
    *_tasks("Electra", ELECTRA, _segments),
    Reference("ElectraModel", ELECTRA, frozenset(), _segments),
]  # fmt: skip
WORDS = frozenset({"vocabulary"})
DECODERS = [
    Reference("OpenAIGPTLMHeadModel", GPT1, WORDS, _words),
    Reference("OpenAIGPTLMHeadModel", {**GPT1, **UNTIED, "afn": "silu"}, WORDS, _words, "-untied"),
    Reference("OpenAIGPTDoubleHeadsModel", GPT1, frozenset({"vocabulary", "choice"}), _choices, choices=2),
    Reference("OpenAIGPTForSequenceClassification", {**GPT1, **LABELLED}, frozenset({"classification"}), _classes),
    Reference("OpenAIGPTModel", GPT1, frozenset(), _none),
    Reference("GPTNeoForCausalLM", GPTNEO, WORDS, _words),
    Reference("GPTNeoForCausalLM", {**GPTNEO, **UNTIED, "activation_function": "relu"}, WORDS, _words, "-untied"),
    Reference("GPTNeoForSequenceClassification", {**GPTNEO, **LABELLED}, frozenset({"classification"}), _classes),
    Reference("GPTNeoForTokenClassification", {**GPTNEO, **LABELLED}, frozenset({"tagging"}), _tags),
    Reference("GPTNeoForQuestionAnswering", GPTNEO, frozenset({"span"}), _spans),
    Reference("GPTNeoModel", GPTNEO, frozenset(), _none),
    Reference("GPTJForCausalLM", GPTJ, WORDS, _words),
    Reference("GPTJForCausalLM", {**GPTJ, "tie_word_embeddings": True, "rotary_dim": 8}, WORDS, _words, "-tied"),
    Reference("GPTJForSequenceClassification", {**GPTJ, **LABELLED}, frozenset({"classification"}), _classes),
    Reference("GPTJForQuestionAnswering", GPTJ, frozenset({"span"}), _spans),
    Reference("GPTJModel", GPTJ, frozenset(), _none),
]  # fmt: skip


def _scored(name: str, config: dict[str, Any], variant: str, **changed: Any) -> Reference:
    """A class with two heads whose scores of texts are made in another way.

    Its texts are not grouped by choices, but for a variant that shows what Transformers does with those: it takes the first,
    last or mean over the choices of a group, and not over the tokens of a text.
    """
    grouped = variant.endswith("grouped")
    heads, inputs = frozenset({"vocabulary", "choice"}), _choices if grouped else _texts
    return Reference(name, {**config, **changed}, heads, inputs, variant, choices=2 if grouped else 1)


SUMMARIES = [
    _scored("OpenAIGPTDoubleHeadsModel", GPT1, "-mean", summary_type="mean", summary_activation="tanh"),
    _scored("OpenAIGPTDoubleHeadsModel", GPT1, "-last", summary_type="last", summary_last_dropout=0.3),
    _scored("GPT2DoubleHeadsModel", GPT2, "-mean", summary_type="mean", summary_activation="gelu_new"),
    _scored("GPT2DoubleHeadsModel", GPT2, "-grouped", summary_type="mean", summary_activation="tanh"),
    _scored("GPT2DoubleHeadsModel", GPT2, "-first", summary_type="first", summary_activation="relu"),
    *(
        Reference("ElectraForMultipleChoice", {**ELECTRA, **changed}, frozenset({"choice"}), _both(_pairs, _segments), f"-{number}", choices=2)
        for number, changed in enumerate([
            {"summary_type": "mean", "summary_activation": "tanh", "summary_first_dropout": 0.2},
            {"summary_type": "last", "summary_use_proj": False},
        ])
    ),
]  # fmt: skip
ROFORMER = {**BERT, "embedding_size": 32, "summary_type": "first"}
ROFORMERS = [
    _words_of("RoFormer", ROFORMER, _segments),
    _words_of("RoFormer", {**ROFORMER, **UNTIED, "hidden_act": "relu"}, _segments, "-untied"),
    *_tasks("RoFormer", ROFORMER, _segments),
    Reference("RoFormerModel", ROFORMER, frozenset(), _segments),
]
"""BERT with rotary positions."""
V11 = {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
ALIASES = [
    _words_of("XLMRoberta", ROBERTA, _none),
    Reference(
        "XLMRobertaForSequenceClassification",
        {**ROBERTA, **LABELLED},
        frozenset({"classification"}),
        _classes,
    ),
    Reference("XLMRobertaModel", ROBERTA, frozenset({"pooler"}), _none),
    _words_of("Camembert", ROBERTA, _none),
    Reference("CamembertForTokenClassification", {**ROBERTA, **LABELLED}, frozenset({"tagging"}), _tags),
    Reference("MT5ForConditionalGeneration", V11, WORDS, _targets, "-1.1"),
    Reference("MT5ForSequenceClassification", {**V11, **LABELLED}, frozenset({"classification"}), _classes),
    Reference("MT5EncoderModel", V11, frozenset({"encoder"}), _none),
]
"""The maths of a family under the names of another."""
REFERENCES = [
    Reference("GPT2LMHeadModel", GPT2, frozenset({"vocabulary"}), _words),
    Reference("GPT2LMHeadModel", {**GPT2, "tie_word_embeddings": False}, frozenset({"vocabulary"}), _words, "-untied"),
    Reference("GPT2DoubleHeadsModel", GPT2, frozenset({"vocabulary", "choice"}), _choices, choices=2),
    Reference("GPT2ForSequenceClassification", {**GPT2, **LABELLED}, frozenset({"classification"}), _classes),
    Reference("GPT2ForTokenClassification", {**GPT2, **LABELLED}, frozenset({"tagging"}), _tags),
    Reference("GPT2ForQuestionAnswering", GPT2, frozenset({"span"}), _spans),
    Reference("GPT2Model", GPT2, frozenset(), _none),
    Reference("BertForPreTraining", BERT, frozenset({"vocabulary", "next_sentence"}), _both(_words, _segments, _next)),
    Reference("BertForMaskedLM", BERT, frozenset({"vocabulary"}), _both(_words, _segments)),
    Reference("BertForMaskedLM", {**BERT, "tie_word_embeddings": False}, frozenset({"vocabulary"}), _words, "-untied"),
    Reference("BertForNextSentencePrediction", BERT, frozenset({"next_sentence"}), _both(_pairs, _segments)),
    Reference("BertForSequenceClassification", {**BERT, **LABELLED}, frozenset({"classification"}), _classes),
    Reference("BertForMultipleChoice", BERT, frozenset({"choice"}), _both(_pairs, _segments), choices=2),
    Reference("BertForTokenClassification", {**BERT, **LABELLED}, frozenset({"tagging"}), _tags),
    Reference("BertForQuestionAnswering", BERT, frozenset({"span"}), _both(_spans, _segments)),
    Reference("BertModel", BERT, frozenset({"pooler"}), _segments),
    Reference("BertModel", BERT, frozenset(), _segments, "-unpooled", {"add_pooling_layer": False}),
    Reference("T5ForConditionalGeneration", T5, frozenset({"vocabulary"}), _targets),
    Reference("T5ForConditionalGeneration", V11, frozenset({"vocabulary"}), _targets, "-1.1"),
    Reference("T5ForSequenceClassification", {**T5, **LABELLED}, frozenset({"classification"}), _classes),
    Reference("T5ForTokenClassification", {**T5, **LABELLED}, frozenset({"tagging"}), _tags),
    Reference("T5ForQuestionAnswering", T5, frozenset({"span"}), _spans),
    Reference("T5EncoderModel", T5, frozenset({"encoder"}), _none),
    Reference("T5Model", T5, frozenset(), _decoded),
    Reference("BartForConditionalGeneration", BART, WORDS, _targets),
    Reference("BartForConditionalGeneration", {**BART, "scale_embedding": True, "activation_function": "relu"}, WORDS, _targets, "-scaled"),
    Reference("BartForSequenceClassification", {**BART, **LABELLED}, frozenset({"classification"}), _classes),
    Reference("BartForQuestionAnswering", BART, frozenset({"span"}), _spans),
    Reference("BartModel", BART, frozenset(), _decoded),
    *RELATIVES,
    *DECODERS,
    *SUMMARIES,
    *ROFORMERS,
    Reference("GPT2LMHeadModel", {**GPT2, "scale_attn_by_inverse_layer_idx": True}, WORDS, _words, "-by-layer"),
    Reference("GPT2LMHeadModel", {**GPT2, "scale_attn_weights": False}, WORDS, _words, "-unscaled"),
    *ALIASES,
]  # fmt: skip
