"""Opens folders of encoders with relative positions in Transformers 4, and writes what it computes beside them.

Run by the peer environment's interpreter. For every folder below the one given that has an `inputs.safetensors` and a
`class.txt`: `outputs.safetensors` (logits, hidden states, attention, loss, and gradients as `grad.NAME`), and the model as it
saves it itself in `again/`.
"""

import sys
from pathlib import Path

import transformers
from safetensors.torch import load_file, save_file

for path in sorted(Path(sys.argv[1]).glob("*/inputs.safetensors")):
    folder = path.parent
    cls = getattr(transformers, (folder / "class.txt").read_text())
    model, info = cls.from_pretrained(folder, output_loading_info=True)
    missing = [name for name in info["missing_keys"] if not name.endswith("position_embeddings.weight")]
    assert not missing and not info["unexpected_keys"] and not info["mismatched_keys"], info
    model.eval()
    out = model(**load_file(path), output_hidden_states=True, output_attentions=True)
    out.loss.backward()
    found = {"logits": out.logits, "loss": out.loss, "hidden": out.hidden_states[-1]}
    found |= {f"attention.{number}": weights for number, weights in enumerate(out.attentions)}
    found |= {f"grad.{name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
    save_file(
        {name: value.detach().contiguous() for name, value in found.items()}, folder / "outputs.safetensors"
    )
    model.save_pretrained(folder / "again")
