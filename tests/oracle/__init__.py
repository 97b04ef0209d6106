"""The library against stored values of the reference implementations: `python -m tests.oracle PATH...`.

A case is a folder with a tiny checkpoint, inputs and everything the reference computed from them: outputs, hidden
states, attention weights, fingerprints of all gradients, generated ids. `case` reads the format, `forward` runs the
library the way a case asks, `judge` compares, `generation` decodes, `runner` puts them together.
"""
