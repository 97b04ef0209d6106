"""The variables of the original TensorFlow codes, and the hub's names of the same numbers."""

from __future__ import annotations

from torch import Tensor

from etymon.families.imports.foreign import NameRule, same, transpose

# --- BERT and its relatives


def _tables(theirs: str, hub: str) -> list[NameRule]:
    """Word, position and segment vectors with their norm."""
    parts = ("word_embeddings", "position_embeddings", "token_type_embeddings")
    return [
        *(NameRule(f"{theirs}embeddings/{part}", f"{hub}embeddings.{part}.weight") for part in parts),
        NameRule(f"{theirs}embeddings/LayerNorm/*", f"{hub}embeddings.LayerNorm.*"),
    ]


def _layers(theirs: str, hub: str) -> list[NameRule]:
    """The layers of an encoder, which the hub calls alike."""
    parts = [
        *(f"attention/self/{part}" for part in ("query", "key", "value")),
        "attention/output/dense",
        "attention/output/LayerNorm",
        "intermediate/dense",
        "output/dense",
        "output/LayerNorm",
    ]
    return [
        NameRule(
            f"{theirs}encoder/layer_{{}}/{part}/*", f"{hub}encoder.layer.{{}}.{part.replace('/', '.')}.*"
        )
        for part in parts
    ]


# The heads of fine-tuning, which stand beside the body, hold matrices as the hub does.
TASKS = [
    NameRule("output_weights", "classifier.weight"),
    NameRule("output_bias", "classifier.bias"),
    NameRule("cls/squad/output_weights", "qa_outputs.weight"),
    NameRule("cls/squad/output_bias", "qa_outputs.bias"),
]
BERT = [
    *_tables("bert/", "bert."),
    *_layers("bert/", "bert."),
    NameRule("bert/pooler/dense/*", "bert.pooler.dense.*"),
    NameRule("cls/predictions/transform/dense/*", "cls.predictions.transform.dense.*"),
    NameRule("cls/predictions/transform/LayerNorm/*", "cls.predictions.transform.LayerNorm.*"),
    NameRule("cls/predictions/output_bias", "cls.predictions.bias"),
    NameRule("cls/seq_relationship/output_weights", "cls.seq_relationship.weight"),
    NameRule("cls/seq_relationship/output_bias", "cls.seq_relationship.bias"),
    *TASKS,
]
_GROUP = "bert/encoder/transformer/group_{}/inner_group_{}/"
_ALBERT_LAYER = "albert.encoder.albert_layer_groups.{}.albert_layers.{}."
ALBERT = [
    *_tables("bert/", "albert."),
    NameRule("bert/encoder/embedding_hidden_mapping_in/*", "albert.encoder.embedding_hidden_mapping_in.*"),
    *(
        NameRule(f"{_GROUP}attention_1/self/{part}/*", f"{_ALBERT_LAYER}attention.{part}.*")
        for part in ("query", "key", "value")
    ),
    NameRule(f"{_GROUP}attention_1/output/dense/*", f"{_ALBERT_LAYER}attention.dense.*"),
    NameRule(f"{_GROUP}ffn_1/intermediate/dense/*", f"{_ALBERT_LAYER}ffn.*"),
    NameRule(f"{_GROUP}ffn_1/intermediate/output/dense/*", f"{_ALBERT_LAYER}ffn_output.*"),
    # Two norms of one scope: TensorFlow numbers the second.
    NameRule(f"{_GROUP}LayerNorm/*", f"{_ALBERT_LAYER}attention.LayerNorm.*"),
    NameRule(f"{_GROUP}LayerNorm_1/*", f"{_ALBERT_LAYER}full_layer_layer_norm.*"),
    NameRule("bert/pooler/dense/*", "albert.pooler.*"),
    NameRule("cls/predictions/transform/dense/*", "predictions.dense.*"),
    NameRule("cls/predictions/transform/LayerNorm/*", "predictions.LayerNorm.*"),
    NameRule("cls/predictions/output_bias", "predictions.bias"),
    NameRule("cls/seq_relationship/output_weights", "sop_classifier.classifier.weight"),
    NameRule("cls/seq_relationship/output_bias", "sop_classifier.classifier.bias"),
    *TASKS,
]
ELECTRA = [
    *_tables("electra/", "electra."),
    *_layers("electra/", "electra."),
    NameRule("electra/embeddings_project/*", "electra.embeddings_project.*"),
    NameRule("discriminator_predictions/dense/*", "discriminator_predictions.dense.*"),
    NameRule("discriminator_predictions/dense_1/*", "discriminator_predictions.dense_prediction.*"),
]
ELECTRA_GENERATOR = [
    *_tables("electra/", "electra."),
    *_layers("generator/", "electra."),
    NameRule("generator/embeddings_project/*", "electra.embeddings_project.*"),
    NameRule("generator_predictions/dense/*", "generator_predictions.dense.*"),
    NameRule("generator_predictions/LayerNorm/*", "generator_predictions.LayerNorm.*"),
    NameRule("generator_predictions/output_bias", "generator_lm_head.bias"),
]

# --- XLNet

_XLNET = "model/transformer/layer_{}/"
_XLNET_LAYER = "transformer.layer.{}."
XLNET = [
    NameRule("model/transformer/word_embedding/lookup_table", "transformer.word_embedding.weight"),
    NameRule("model/transformer/mask_emb/mask_emb", "transformer.mask_emb"),
    # Matrices by head, `[D, H, K]`, which the hub keeps as they are.
    *(NameRule(f"{_XLNET}rel_attn/{part}/kernel", f"{_XLNET_LAYER}rel_attn.{part}") for part in "qkvor"),
    NameRule(f"{_XLNET}rel_attn/LayerNorm/*", f"{_XLNET_LAYER}rel_attn.layer_norm.*"),
    NameRule(f"{_XLNET}ff/layer_1/*", f"{_XLNET_LAYER}ff.layer_1.*"),
    NameRule(f"{_XLNET}ff/layer_2/*", f"{_XLNET_LAYER}ff.layer_2.*"),
    NameRule(f"{_XLNET}ff/LayerNorm/*", f"{_XLNET_LAYER}ff.layer_norm.*"),
    # One variable for all layers: the number is filled in where they are taken apart.
    *(
        NameRule(f"model/transformer/{part}", f"{_XLNET_LAYER}rel_attn.{part}")
        for part in ("r_w_bias", "r_r_bias", "r_s_bias", "seg_embed")
    ),
    NameRule("model/lm_loss/bias", "lm_loss.bias"),
    NameRule("model/lm_loss/weight", "lm_loss.weight"),
    NameRule("model/sequnece_summary/summary/*", "sequence_summary.summary.*"),  # spelled like this
    NameRule("model/classification_~/logit/*", "logits_proj.*"),
    NameRule("model/regression_~/logit/*", "logits_proj.*"),
    NameRule("start_logits/dense/*", "start_logits.dense.*"),
    NameRule("end_logits/dense_0/*", "end_logits.dense_0.*"),
    NameRule("end_logits/LayerNorm/*", "end_logits.LayerNorm.*"),
    NameRule("end_logits/dense_1/*", "end_logits.dense_1.*"),
    NameRule("answer_class/dense_0/*", "answer_class.dense_0.*"),
    NameRule("answer_class/dense_1/*", "answer_class.dense_1.*"),
]

# --- T5

_SELF, _CROSS = "SelfAttention", "EncDecAttention"


def _t5_side(side: str, last: int) -> list[NameRule]:
    theirs, hub = f"{side}/block_{{}}/layer_", f"{side}.block.{{}}.layer."
    rules = [
        NameRule(f"{side}/{norm}/scale", f"{side}.final_layer_norm.weight")
        for norm in ("final_layer_norm", "layer_norm", "rms_norm")
    ]
    for layer in range(last + 1):
        rules += [
            NameRule(f"{theirs}{layer:03d}/{norm}/scale", f"{hub}{layer}.layer_norm.weight")
            for norm in ("layer_norm", "rms_norm")
        ]
    for layer, part in ((0, _SELF), (1, _CROSS)):
        place, hub_part = f"{theirs}{layer:03d}/{part}/", f"{hub}{layer}.{part}."
        rules += [NameRule(place + letter, f"{hub_part}{letter}.weight", transpose) for letter in "qkvo"]
        rules.append(
            NameRule(
                f"{place}relative_attention_bias", f"{hub_part}relative_attention_bias.weight", transpose
            )
        )
    for part in ("wi", "wi_0", "wi_1", "wo"):
        rules.append(
            NameRule(
                f"{theirs}{last:03d}/DenseReluDense/{part}/kernel",
                f"{hub}{last}.DenseReluDense.{part}.weight",
                transpose,
            )
        )
    return rules


T5 = [
    NameRule("shared/embedding", "shared.weight"),
    NameRule("decoder/logits/kernel", "lm_head.weight", transpose),
    *_t5_side("encoder", 1),
    *_t5_side("decoder", 2),
]

# --- GPT-2 and GPT-1


def unlift(tensor: Tensor) -> Tensor:
    """Matrices that are convolutions of width one, `[1, in, out]`, which the hub keeps as `[in, out]`."""
    return tensor[0] if tensor.dim() == 3 and len(tensor) == 1 else tensor


OPENAI_LEAVES = {"w": ("weight", unlift), "b": ("bias", same), "g": ("weight", same)}
OPENAI_PARTS = ("ln_1", "attn/c_attn", "attn/c_proj", "ln_2", "mlp/c_fc", "mlp/c_proj")
GPT2 = [
    NameRule("model/wte", "transformer.wte.weight"),
    NameRule("model/wpe", "transformer.wpe.weight"),
    NameRule("model/ln_f/*", "transformer.ln_f.*", leaves=OPENAI_LEAVES),
    *(
        NameRule(
            f"model/h{{}}/{part}/*", f"transformer.h.{{}}.{part.replace('/', '.')}.*", leaves=OPENAI_LEAVES
        )
        for part in OPENAI_PARTS
    ),
]
