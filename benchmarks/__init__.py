"""Benchmarks beside a peer, in one run. `python -m benchmarks [NAME ...]`."""
