"""Opens model folders in Transformers 4 and writes the logits of `ids.safetensors` beside them, as `logits.safetensors`.

Run by the peer environment's interpreter with the folders' parent. A folder says its class in `config.json`.
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

for path in sorted(Path(sys.argv[1]).glob("*/config.json")):
    (name,) = json.loads(path.read_text())["architectures"]
    model, info = getattr(transformers, name).from_pretrained(path.parent, output_loading_info=True)
    assert not info["missing_keys"] and not info["mismatched_keys"], (name, info)
    ids = load_file(path.parent / "ids.safetensors")["ids"]
    given = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        outputs = model.eval()(ids, **given)
    logits = outputs["prediction_logits"] if "prediction_logits" in outputs else outputs["logits"]
    save_file({"logits": logits.contiguous()}, path.parent / "logits.safetensors")
