"""From text to batches of token ids, in numpy: documents, tokenizers, the store, plans, framing, noise."""
