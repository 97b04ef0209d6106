"""Text to token ids, in numpy: documents, sentences, tokenizers, framing, the token store."""
