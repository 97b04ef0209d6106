"""Translation with four beams beside Transformers and CTranslate2: a BART of 6 + 6 layers, 512 wide, with random weights.

All sides have the same weights and two threads, each in a process of its own. They get the first 200 sentences of multi30k's test set as they
come: Etymon and CTranslate2 sort them by length themselves, Transformers is given batches of 64, padded, as its users do. Random weights do not
end a text by themselves, so either all texts get equally many tokens ("fixed"), or the vector of a token that is nothing else is fitted so that
texts end about where their references do ("ended").

Etymon and Transformers write the same texts. CTranslate2 does not always: it forbids the end before it normalises, and stops at four ended texts.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import etymon
from benchmarks.harness import THREADS, Comparison, answer, in_turn, needed_corpora, peers, sized
from etymon.families import get_family
from etymon.nn.batch import Batch
from etymon.settings.decoding import DecodingSettings
from etymon.tasks import get_task
from etymon.tasks.text2text import BATCH, Text2Text
from etymon.text.tokenizer_training import train_tokenizer

SENTENCES, BEAMS, FIXED = sized((200, 4, 24), (6, 2, 5))
ROUNDS = sized(5, 1)
MOST = 36
"""Tokens of the longest reference. A text that missed its end and went on would hold up the whole batch of whoever pads, as none of the references does."""
# With weights as large as these, what is written depends on the source and on what was written before.
SHAPE: dict[str, Any] = {
    "vocabulary": 8192, "dim": 512, "layers": 6, "heads": 8, "inner_dim": 2048, "positions": 256, "dropout": 0.0,
    "deviation": 0.035, **sized({}, {"vocabulary": 300, "dim": 32, "layers": 1, "heads": 2, "inner_dim": 64}),
}  # fmt: skip
SIDES = ("etymon", "transformers", "ctranslate2")
TARGETS: dict[tuple[str, str], float | None] = {
    ("fixed", "transformers"): 2.5, ("fixed", "ctranslate2"): None,
    ("ended", "transformers"): 2.5, ("ended", "ctranslate2"): None,
}  # fmt: skip

Written = tuple[list[str], list[int]]
"""Texts, and of how many tokens where that is known."""


def lines(name: str) -> list[str]:
    return (needed_corpora("multi30k") / "multi30k" / name).read_text(encoding="utf-8").splitlines()


def task_of(model: Any) -> Text2Text:
    task = get_task("text2text", {}, model.family)
    assert isinstance(task, Text2Text)
    task.bind(model)
    return task


def prepare(folder: Path) -> None:
    """The model and its tokenizer, with an end that comes about where a reference ends."""
    family = get_family("bart")
    texts = {language: lines(f"train.{language}") for language in ("en", "de")}
    model = etymon.build("bart", "base", heads=("vocabulary",), shape=SHAPE).eval()
    choice = family.tokenizer
    model.tokenizer = train_tokenizer(
        choice.kind,
        texts["en"] + texts["de"],
        SHAPE["vocabulary"],
        specials=choice.specials,
        framing=family.framing,
    )
    model.carried["forced_eos_token_id"] = None  # a last token of its own would be one more difference
    fit_end(model, texts)
    etymon.save(model, folder)


@torch.no_grad()
def fit_end(
    model: Any, texts: dict[str, list[str]], pairs: int = 500, longest: int = 40, ridge: float = 10.0
) -> None:
    """Least squares: how much farther a text has come than its reference, by the decoder's states in texts of random words."""
    task, generator = task_of(model), np.random.default_rng(0)
    lengths = [len(ids) for ids in model.tokenizer.encode_batch(texts["de"][:pairs])]
    words = [
        np.append(model.decoder_start, generator.integers(8, SHAPE["vocabulary"] - 100, longest - 1))
        for _ in lengths
    ]
    memory = model.encode(Batch.of(task.sources(texts["en"][:pairs])))
    hidden_ND, _ = model.decode(Batch.of(words), memory)
    beyond = np.concatenate([np.arange(longest) + 1 - length for length in lengths]).clip(-4, 4)
    wanted_N1 = 4 * torch.from_numpy(beyond).float()[:, None]
    squares_DD = hidden_ND.T @ hidden_ND + ridge * torch.eye(hidden_ND.shape[1])
    model.body.words.weight[model.token("mask")] = torch.linalg.solve(squares_DD, hidden_ND.T @ wanted_N1)[
        :, 0
    ]


def converted(reference: Any, folder: Path, end: int) -> Any:
    """The weights in CTranslate2's own layout. Its command-line converter wants a tokenizer of Transformers; we need none."""
    import ctranslate2
    from ctranslate2.converters.transformers import _MODEL_LOADERS

    reference.config.normalize_before = False  # as published; newer folders do not say so
    spec = _MODEL_LOADERS["BartConfig"].get_model_spec(reference)
    tokens = [str(number) for number in range(reference.config.vocab_size)]
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    spec.config.bos_token = spec.config.unk_token = "0"
    spec.config.decoder_start_token, spec.config.eos_token = (
        str(number) for number in (reference.config.decoder_start_token_id, end)
    )
    spec.validate()
    spec.optimize(quantization="float32")
    folder.mkdir(exist_ok=True)
    spec.save(str(folder))
    return ctranslate2.Translator(
        str(folder), device="cpu", compute_type="float32", inter_threads=1, intra_threads=THREADS
    )


def side(name: str, place: str, mode: str) -> Callable[[], Written]:
    """What one side does in a round."""
    folder = Path(place)
    model = etymon.load(folder).eval()
    task, end = task_of(model), int(model.token("mask"))
    least, most = (FIXED, FIXED) if mode == "fixed" else (1, MOST)
    sources = task.sources(lines("test_2016_flickr.en")[:SENTENCES])
    if name == "etymon":
        settings = DecodingSettings(beams=BEAMS, min_new_tokens=least, max_new_tokens=most, end_ids=(end,))
        return lambda: (task.write(model, sources, settings), [])

    def written(rows: list[list[int]]) -> Written:
        cut = [row[: row.index(end)] if end in row else row for row in rows]
        return [task.writer.decode(row, whole=True).strip() for row in cut], [len(row) for row in cut]

    from transformers import BartForConditionalGeneration

    reference = BartForConditionalGeneration.from_pretrained(folder, attn_implementation="sdpa").eval()
    if name == "transformers":
        pad, start = reference.config.pad_token_id, reference.config.decoder_start_token_id
        batches = [
            torch.nn.utils.rnn.pad_sequence(
                [torch.from_numpy(ids).long() for ids in sources[first : first + BATCH]], batch_first=True, padding_value=pad
            )
            for first in range(0, SENTENCES, BATCH)
        ]  # fmt: skip
        asked: dict[str, Any] = {
            "num_beams": BEAMS, "do_sample": False, "min_new_tokens": least, "max_new_tokens": most, "eos_token_id": end,
            "pad_token_id": pad, "decoder_start_token_id": start,
        }  # fmt: skip

        def generate(ids: torch.Tensor) -> list[list[int]]:
            rows: torch.Tensor = reference.generate(ids, attention_mask=(ids != pad).long(), **asked)
            return rows[:, 1:].tolist()

        return lambda: written([row for ids in batches for row in generate(ids)])
    engine = converted(reference, folder / f"ctranslate2-{mode}", end)
    tokens = [[str(number) for number in ids.tolist()] for ids in sources]

    def translate() -> Written:
        found = engine.translate_batch(
            tokens, max_batch_size=BATCH, beam_size=BEAMS, min_decoding_length=least, max_decoding_length=most
        )
        return written([[int(number) for number in one.hypotheses[0]] for one in found])

    return translate


def translation(mode: str) -> Iterable[Comparison]:
    with tempfile.TemporaryDirectory() as place:
        prepare(Path(place) / "model")
        asked = {name: (name, f"{place}/model", mode) for name in SIDES}
        with peers("benchmarks.translation", asked) as sides:
            said = {name: side.first for name, side in sides.items()}
            # What they said was their warm-up.
            times = in_turn({name: side.ask for name, side in sides.items()}, ROUNDS, warmup=0)
    speeds = {name: [round(SENTENCES / seconds, 1) for seconds in each] for name, each in times.items()}
    for name in SIDES[1:]:
        texts, lengths = said[name]
        same = np.mean([ours == theirs for ours, theirs in zip(said["etymon"][0], texts, strict=True)])
        yield Comparison(
            f"translation-{mode}-{name}", times["etymon"], times[name], peer=name, target=TARGETS[mode, name],
            what=f"BART 6 + 6 x 512, random weights, {SENTENCES} sentences of multi30k, {BEAMS} beams, {mode} lengths",
            details={
                "sentences_a_second": speeds, "same_texts": round(float(same), 3),
                "tokens": {"mean": float(np.mean(lengths)), "most": max(lengths)},
            },
        )  # fmt: skip


RUNS = [partial(translation, mode) for mode in ("fixed", "ended")]

if __name__ == "__main__":
    torch.set_num_threads(THREADS)
    with torch.inference_mode():
        answer(side(*sys.argv[1:]))
