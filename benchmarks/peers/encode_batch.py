"""Bytes a second of `encode_batch` of a tokenizer.json on the beginning of a file, which is in memory already and cut into pieces."""

import sys
import time


def run(tokenizer: str, file: str, size: int) -> float:
    import tokenizers

    from etymon.text.sentences import cut_spans

    with open(file, "rb") as stream:
        text = stream.read(size).decode("utf-8", "ignore")
    cut = [text[start:stop] for start, stop in cut_spans(text)]
    backend = tokenizers.Tokenizer.from_file(tokenizer)
    begin = time.perf_counter()
    for place in range(0, len(cut), 64):
        backend.encode_batch(cut[place : place + 64], add_special_tokens=False)
    return len(text.encode()) / (time.perf_counter() - begin)


if __name__ == "__main__":
    print(run(sys.argv[1], sys.argv[2], int(sys.argv[3])))
