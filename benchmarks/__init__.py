"""Benchmarks beside a peer, in one run. `python -m benchmarks [NAME ...]`; with ETYMON_BENCH_TOY=1 at toy size, to see that they run."""

import os

for _name, _value in (("OMP_NUM_THREADS", "2"), ("HF_HUB_OFFLINE", "1"), ("TOKENIZERS_PARALLELISM", "false")):
    os.environ.setdefault(_name, _value)  # before torch is imported
