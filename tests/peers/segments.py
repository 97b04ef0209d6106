"""Writes cases of Transformer-XL in the oracle's format: folders without a memory, and ignored labels in unequal numbers a row.

Run by the peer environment's interpreter with a folder to write to.
"""

import json
import math
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import TransfoXLConfig, TransfoXLLMHeadModel

SIZES = {
    "vocab_size": 90, "d_model": 24, "d_embed": 24, "n_head": 3, "d_head": 8, "d_inner": 40, "n_layer": 2, "clamp_len": -1,
    "same_length": False, "cutoffs": [20, 50], "div_val": 2, "mem_len": 0, "eos_token_id": 0,
}  # fmt: skip
VARIANTS = {
    "forgetful": {},
    "forgetful-clamped": {"clamp_len": 3, "pre_lnorm": True, "untie_r": False, "div_val": 1},
    "forgetful-plain": {"cutoffs": [], "div_val": 1},
    "remembering": {"mem_len": 6, "same_length": True},
    "remembering-plain": {"mem_len": 6, "cutoffs": [], "div_val": 1},
}
IGNORED = -100


def flattened(call, out, fields):
    found = {}
    for name in fields:
        value = getattr(out, name, None)
        parts = (
            {"": value}
            if isinstance(value, torch.Tensor)
            else {f".{i}": v for i, v in enumerate(value or ())}
        )
        found |= {f"{call}.{name}{end}": part.detach().contiguous().clone() for end, part in parts.items()}
    return found


def fingerprint(gradient):
    flat = gradient.double().reshape(-1)
    wave = torch.cos(torch.arange(len(flat), dtype=torch.float64) * 0.37 + 1.0)
    return {"norm": float(flat.norm()), "proj": float((flat * wave).sum()), "shape": list(gradient.shape)}


def write(folder, changed):
    torch.manual_seed(3)
    model = TransfoXLLMHeadModel(TransfoXLConfig(**{**SIZES, **changed})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0, 0.3 if parameter.dim() > 1 else 0.1)
            if "layer_norm.weight" in name:
                parameter += 1.0
    model.save_pretrained(folder)
    ids = [torch.randint(3, SIZES["vocab_size"], (3, 7)) for _ in range(2)]
    labels = ids[1].clone()
    for row, count in enumerate((2, 0, 4)):  # so many of a row are left out
        labels[row, 2 : 2 + count] = IGNORED
    if changed.get("cutoffs") == []:
        labels[0] = IGNORED
    inputs = {"first": ids[0], "second": ids[1], "labels": labels.clone(), "prompt": ids[0][:, :4].clone()}
    fields = ["prediction_scores", "mems", "hidden_states", "attentions"]
    seen = {"output_hidden_states": True, "output_attentions": True}
    first = model(ids[0], **seen)
    second = model(ids[1], mems=first.mems, **seen)
    labelled = model(ids[1], mems=first.mems, labels=labels)
    labelled.loss.backward()
    outputs = {
        **flattened("seg1", first, fields),
        **flattened("seg2", second, fields),
        **flattened("fwd", labelled, ["loss", "losses"]),
    }
    calls = [
        {"name": "seg1", "tensors": {"input_ids": "first"}, "const": seen, "fields": fields},
        {"name": "seg2", "tensors": {"input_ids": "second"}, "const": seen, "fields": fields},
        {
            "name": "fwd",
            "tensors": {"input_ids": "second", "labels": "labels"},
            "const": {},
            "fields": ["loss", "losses"],
        },
    ]
    for call in calls[1:]:
        call["carry"] = {"mems": "seg1:mems"}
    generations = []
    for beams in (1, 3):
        given = {
            "do_sample": False,
            "max_new_tokens": 8,
            "pad_token_id": 1,
            "eos_token_id": 0,
            "num_beams": beams,
        }
        made = model.generate(inputs["prompt"], return_dict_in_generate=True, output_scores=True, **given)
        name = f"beams{beams}"
        generations.append({"name": name, "tensors": {"input_ids": "prompt"}, "const": given})
        ends = [row[4:].tolist().index(0) + 5 if 0 in row[4:] else len(row) for row in made.sequences]
        outputs |= {f"gen.{name}.sequences": made.sequences, f"gen.{name}.lengths": torch.tensor(ends)}
        if beams > 1:
            outputs[f"gen.{name}.sequences_scores"] = made.sequences_scores
    names = [name for name, parameter in model.named_parameters()]
    stored = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        stored.setdefault(id(parameter), []).append(name)
    gradients = {name: p.grad for name, p in model.named_parameters()}
    manifest = {
        "name": folder.name, "kind": "hf", "library": "transformers", "library_version": "4.37.2",
        "calls": calls, "backward": {"call": "fwd", "loss": ["loss"]}, "generate": generations,
        "tied_parameters": [group for group in stored.values() if len(group) > 1],
        "tolerance": {"outputs_atol": 8.5e-5, "outputs_rtol": 1e-4, "grad_rel": 1e-4},
    }  # fmt: skip
    assert all(math.isfinite(float(value.double().sum())) for value in outputs.values())
    save_file(inputs, folder / "inputs.safetensors")
    save_file(outputs, folder / "outputs.safetensors")
    params = {name: None if gradients[name] is None else fingerprint(gradients[name]) for name in names}
    (folder / "grads.json").write_text(json.dumps({"params": params}))
    (folder / "manifest.json").write_text(json.dumps(manifest))


for variant, changed in VARIANTS.items():
    write(Path(sys.argv[1]) / variant, changed)
