"""Training steps of Transformers 4.37.2's Transformer-XL, one for every line read: run by the interpreter of .venv-peer.

The first line of input is a JSON record (configuration, batch, length); each later line asks for a step, whose seconds are printed.
"""

import json
import sys
import time
import warnings

import torch
from transformers import TransfoXLConfig, TransfoXLLMHeadModel

warnings.filterwarnings("ignore")
asked = json.loads(sys.stdin.readline())
torch.set_num_threads(asked["threads"])
torch.manual_seed(0)
model = TransfoXLLMHeadModel(TransfoXLConfig(**asked["config"])).train()
optimiser = torch.optim.AdamW(model.parameters(), lr=asked["rate"])
ids = torch.randint(0, asked["config"]["vocab_size"], (asked["batch"], asked["length"]))
memory = None
print("ready", flush=True)
for _ in sys.stdin:
    begin = time.perf_counter()
    output = model(ids, labels=ids, mems=memory)
    memory = output.mems
    output.losses.mean().backward()
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    print(time.perf_counter() - begin, flush=True)
