"""Prompts that share their beginning give what each gives by itself, and the beginning is read once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from etymon.errors import EtymonError
from etymon.families import get_family
from etymon.families.model import Model
from etymon.generation import DecodingSettings, decode, generate_texts, prompting
from etymon.generation.likelihood import score_texts
from etymon.generation.prompting import Prompt, Prompter
from etymon.generation.stepper import common_prefix
from etymon.nn.batch import Batch
from etymon.text.tokenizer_training import train_tokenizer
from tests.generation.conftest import SHAPES, TEXTS, remembering, tiny_model, tiny_tokenizer, two_tongues

DECODERS = ("gpt2", "gpt1", "gpt3", "gptj")
SHARED = "cats do:\n\nParis: France\n\n"
PROMPTS = [
    Prompt("The cat sat:", SHARED),
    Prompt("Rome", SHARED),
    Prompt("The naïve dog:", SHARED),
    Prompt("Paris and the dog, and", SHARED),
    Prompt("soup:", "The cat"),
    Prompt("soup:", "Rome"),
    Prompt("The cat sat on"),
]
COMPLETIONS = [
    [" Italy", " a"],
    [" the mat", " sat on the mat", " a"],
    [" a"],
    [" the", " cats do", " Rome"],
    [" a", " soup and a façade"],
    [" ate"],
    [" a", " mat"],
]


def alone(model: Model, prompt: str, completion: str) -> float:
    """By one pass over the whole text."""
    assert model.tokenizer is not None
    context = [model.token("begin") or model.token("end"), *model.tokenizer.encode(prompt).tolist()]
    ids = model.tokenizer.encode(completion).tolist()
    prefix = [len(context)] if model.reads_prefix else None
    batch = Batch.of([[*context, *ids[:-1]]], prefix=prefix)
    with torch.no_grad():
        hidden, _ = model.hidden(batch)
        log_probs = model.heads["vocabulary"].log_probs(hidden, None, prompting_context(batch))
    return sum(float(log_probs[len(context) - 1 + place, number]) for place, number in enumerate(ids))


def prompting_context(batch: Batch) -> object:
    from etymon.nn.vocabulary import Context

    return Context(batch)


def with_pointer() -> Model:
    known, tokenizer = get_family("gpt2"), tiny_tokenizer("gpt2")
    shape = known.shape(vocabulary=tokenizer.size, pointer=6, **SHAPES["gpt2"])
    model = Model(known, shape, {"vocabulary"}).initialise(1)
    model.tokenizer = tokenizer
    return model.eval()


def check(model: Model, prompts: Sequence[Prompt] = PROMPTS) -> None:
    found = Prompter(model).score(prompts, COMPLETIONS)
    for prompt, completions, likelihoods in zip(prompts, COMPLETIONS, found, strict=True):
        for completion, likelihood in zip(completions, likelihoods, strict=True):
            assert likelihood.log_prob == pytest.approx(alone(model, prompt.text, completion), abs=1e-5)
            assert likelihood.tokens == len(model.tokenizer.encode(completion))


@pytest.mark.parametrize("tokens", [8192, 100, 1])
@pytest.mark.parametrize("family", DECODERS)
def test_sharing_changes_nothing(tiny, family, tokens, monkeypatch):
    """Batches of all, of two, and of one; completions of one token and of many, and as many as they come."""
    monkeypatch.setattr(prompting, "BATCH_TOKENS", tokens)
    check(tiny(family))


@pytest.mark.parametrize("family", ["gpt2", "gpt3"])
def test_a_beginning_that_sees_what_follows_is_not_shared(family, monkeypatch):
    monkeypatch.setattr(prompting, "BATCH_TOKENS", 100)
    model = tiny_model(family)
    causal = [alone(model, prompt.text, own[0]) for prompt, own in zip(PROMPTS, COMPLETIONS)]
    model.reads_prefix = True
    assert [alone(model, prompt.text, own[0]) for prompt, own in zip(PROMPTS, COMPLETIONS)] != pytest.approx(
        causal
    )
    check(model)


@pytest.mark.parametrize("tokens", [8192, 100])
def test_a_pointer_gets_its_window_back(tokens, monkeypatch):
    monkeypatch.setattr(prompting, "BATCH_TOKENS", tokens)
    check(with_pointer())


def test_a_beginning_beyond_a_memory_is_not_shared():
    prompter = Prompter(remembering(8))
    together = prompter.score(PROMPTS, COMPLETIONS)
    for prompt, completions, likelihoods in zip(PROMPTS, COMPLETIONS, together, strict=True):
        (alone,) = prompter.score([prompt], [completions])
        assert [one.log_prob for one in likelihoods] == pytest.approx(
            [one.log_prob for one in alone], abs=1e-5
        )


def test_sources_of_an_encoder_decoder(tiny, monkeypatch):
    """Their completions are targets: `etymon score --target`, with the end token."""
    monkeypatch.setattr(prompting, "BATCH_TOKENS", 100)
    model = tiny("t5")
    seen: list[int] = []
    encode = model.encode
    monkeypatch.setattr(model, "encode", lambda batch: seen.append(batch.layout.rows) or encode(batch))
    found = Prompter(model).score(PROMPTS, COMPLETIONS)
    assert sum(seen) == len(PROMPTS), "a prompt is encoded once, whatever the number of its choices"
    for prompt, completions, likelihoods in zip(PROMPTS, COMPLETIONS, found, strict=True):
        targets = [text.strip() for text in completions]
        expected = score_texts(model, [prompt.text] * len(targets), targets)
        assert [one.log_prob for one in likelihoods] == pytest.approx(
            [one.log_likelihood for one in expected], abs=1e-5
        )
        assert [one.tokens for one in likelihoods] == [one.tokens for one in expected]


def test_a_source_is_read_by_its_own_tokenizer():
    prompter = Prompter(two_tongues())
    found = prompter.score(PROMPTS, [["the mat"]] * len(PROMPTS))
    expected = score_texts(prompter.model, [prompt.text for prompt in PROMPTS], ["the mat"] * len(PROMPTS))
    assert [one.log_prob for (one,) in found] == pytest.approx(
        [one.log_likelihood for one in expected], abs=1e-5
    )
    settings = DecodingSettings(max_new_tokens=5)
    written = generate_texts(prompter.model, [prompt.text for prompt in PROMPTS], settings)
    assert [one.ids for one in prompter.generate(PROMPTS, settings)] == [one.ids for one in written]


def counted(model: Model, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens of every pass through the model from now on."""
    seen: list[int] = []
    hidden = Model.hidden

    def counting(self: Model, batch: Batch, *others: object) -> object:
        seen.append(batch.layout.tokens)
        return hidden(self, batch, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(Model, "hidden", counting)
    return seen


def test_the_beginning_is_read_once(tiny, monkeypatch):
    model, rows = tiny("gpt2"), 2
    prompts = [Prompt(f"\n\n{word} is", SHARED) for word in ("cat", "dog", "Rome", "soup", "mat")]
    completions = [[" a", " the mat"]] * len(prompts)
    prompter = Prompter(model)
    asked = [prompter.encode(prompt.text, own) for prompt, own in zip(prompts, completions)]
    shared = common_prefix([each.context for each in asked])
    assert shared >= len(model.tokenizer.encode(SHARED.rstrip()))
    monkeypatch.setattr(prompting, "BATCH_TOKENS", rows * max(each.length for each in asked))
    seen = counted(model, monkeypatch)
    prompter.score(prompts, completions)
    own = sum(len(each.context) - shared for each in asked)
    behind = sum(len(ids) - 1 for each in asked for ids in each.completions)
    assert seen[0] == shared
    assert sum(seen) == shared + own + behind


def test_common_tokens():
    assert common_prefix([[1, 2, 3, 4], [1, 2, 3, 5, 6], [1, 2, 3, 4, 4]]) == 3
    assert common_prefix([[1, 2], [1, 2, 3]]) == 1  # the last token of a row is its own
    assert common_prefix([[1, 2, 3]]) == 2
    assert common_prefix([[4], [4, 5]]) == 0
    assert common_prefix([[], [1]]) == 0


# --- tokens


@pytest.mark.parametrize("kind", ["byte-bpe", "word-bpe", "unigram", "wordpiece", "bpe", "byte", "character"])
def test_lines_are_encoded_like_the_whole(kind):
    tokenizer = train_tokenizer(kind, TEXTS, 300, specials={"unknown": "<unk>"})
    prompter = Prompter.__new__(Prompter)
    prompter.tokenizer, prompter._ids_by_line, prompter._by_line = tokenizer, {}, True
    texts = [
        "The cat:\nParis is\n\nRome:\n  the dog \n\n\nsoup",
        "\nThe cat\n",
        "Paris\n\nThe cat: sat\nRome",
        "",
        "\n\n \n",
    ]
    for text, ids in zip(texts, prompter.encode_texts(texts), strict=True):
        assert ids == tokenizer.encode(text).tolist()
    assert len(prompter._ids_by_line) < sum(text.count("\n") + 1 for text in texts)


@pytest.mark.parametrize("family", DECODERS)
def test_prompt_and_completion_are_tokens_of_the_whole(tiny, family):
    prompter = Prompter(tiny(family))
    for prompt, completion in [
        ("cats do\n\nThe cat:", " sat on"),
        ("Q: The cat\nA:\n", "Paris"),
        ("", "The cat"),
    ]:
        asked = prompter.encode(prompt, [completion])
        whole = prompter.tokenizer.encode(prompt + completion).tolist()
        assert [*asked.context[1:], *asked.completions[0]] == whole
        assert asked.context[1:] == prompter.tokenizer.encode(prompt).tolist()
        assert asked.apart == 0


def test_a_token_on_both_sides_of_the_border(tiny):
    """The prompt keeps its tokens, and the completion is encoded by itself."""
    prompter = Prompter(tiny("gpt2"))
    encode = prompter.tokenizer.encode
    assert len(encode("The cat")) < len(encode("The c")) + len(encode("at"))
    asked = prompter.encode("Rome\nThe c", ["at", "!"])
    assert asked.context[1:] == encode("Rome\nThe c").tolist()
    assert asked.completions == [encode("at").tolist(), encode("!").tolist()]
    assert asked.apart == 1
    prompter.score([Prompt("The c")], [["at"]])
    assert prompter.apart == 1


def test_a_prompt_that_fills_the_positions(tiny):
    model = tiny("gpt2")
    prompter = Prompter(model)
    text = "!" * (model.positions - 2)
    asked = prompter.encode(text, [" a"])
    assert asked.length == model.positions == len(asked.context) + 1
    # The others of the batch go on for two more tokens.
    found = prompter.score([Prompt(text), Prompt("Rome")], [[" a"], [" the mat and a"]])
    assert found[0][0].log_prob == pytest.approx(alone(model, text, " a"), abs=1e-5)


# --- generation


@pytest.mark.parametrize("family", [*DECODERS, "t5"])
@pytest.mark.parametrize("beams", [1, 3])
def test_generation_equals_that_of_each_prompt(tiny, family, beams, monkeypatch):
    from etymon.generation import stepper

    monkeypatch.setattr(stepper, "SHARED", 4)
    model = tiny(family)
    settings = DecodingSettings(max_new_tokens=6, beams=beams, stop=("\n",))
    found = Prompter(model).generate(PROMPTS, settings)
    for prompt, one in zip(PROMPTS, found, strict=True):
        ids = [model.token("end"), *model.tokenizer.encode(prompt.text).tolist()]
        if family == "t5":
            ids = [*ids[1:], ids[0]]
        ((expected,),) = decode(model, [ids], settings)
        assert (one.prompt, one.ids) == (prompt.text, expected.ids)
        assert one.text == model.tokenizer.decode(expected.ids, whole=True).split("\n")[0]
        assert one.log_prob == pytest.approx(expected.log_prob, abs=1e-4)


def test_what_is_written_is_scored_alike(tiny):
    """Where the tokenizer spells the new text as the model did, both have the same probability."""
    prompter = Prompter(tiny("gpt2"))
    compared = 0
    for one in prompter.generate(PROMPTS, DecodingSettings(max_new_tokens=2)):
        if prompter.tokenizer.encode(one.text).tolist() == one.ids:
            ((scored,),) = prompter.score([Prompt(one.prompt)], [[one.text]])
            assert scored.log_prob == pytest.approx(one.log_prob, abs=1e-5)
            compared += 1
    assert compared


def test_without_an_end_of_text_token(tiny):
    model = tiny_model("gpt2")
    model.tokenizer.roles.clear()
    prompter = Prompter(model)
    assert prompter.encode("Rome is", [" a"]).context == model.tokenizer.encode("Rome is").tolist()
    assert np.isfinite(prompter.score([Prompt("Rome is")], [[" a"]])[0][0].log_prob)
    with pytest.raises(EtymonError, match="the prompt is empty and the model has no end-of-text token"):
        prompter.encode("", [" a"])


def test_generation_reads_a_long_beginning_once(tiny, monkeypatch):
    model = tiny("gpt2")
    shared = "The cat sat on the mat, as cats do. " * 3
    prompts = [Prompt(own, shared) for own in ("dog", "Paris", "Rome is", "soup!")]
    lengths = [len(ids) for ids in model.tokenizer.encode_batch([prompt.text for prompt in prompts])]
    begun = len(model.tokenizer.encode(shared.rstrip()))
    assert begun >= 32
    seen = counted(model, monkeypatch)
    Prompter(model).generate(prompts, DecodingSettings(max_new_tokens=1))
    assert begun < seen[0] <= min(lengths)
    assert sum(seen) == seen[0] + sum(1 + length - seen[0] for length in lengths)


def test_progress(tiny):
    heard: list[tuple[int, int]] = []
    prompter = Prompter(tiny("gpt2"))
    prompter.score(PROMPTS, COMPLETIONS, lambda done, total: heard.append((done, total)))
    assert heard == [(done, len(PROMPTS)) for done in range(1, len(PROMPTS) + 1)]
    heard.clear()
    prompter.generate(
        PROMPTS, DecodingSettings(max_new_tokens=1), lambda done, total: heard.append((done, total))
    )
    assert heard[-1] == (len(PROMPTS), len(PROMPTS))


# --- refusals


def test_refusals(tiny: Callable[[str], Model]) -> None:
    with pytest.raises(
        EtymonError, match="BERT reads both sides of a word at once and cannot go on from a prompt"
    ):
        Prompter(tiny("bert"))
    with pytest.raises(EtymonError, match="the choice '' has no tokens"):
        Prompter(tiny("gpt2")).score([Prompt("Rome")], [[" a", ""]])
    known = get_family("gpt2")
    bare = Model(known, known.shape(vocabulary=9, **SHAPES["gpt2"]), set())
    with pytest.raises(EtymonError, match="no tokenizer"):
        Prompter(bare)
    bare.tokenizer = tiny("gpt2").tokenizer
    with pytest.raises(EtymonError, match="no vocabulary head"):
        Prompter(bare)


def test_nothing_to_score(tiny):
    assert Prompter(tiny("gpt2")).score([], []) == []
    assert Prompter(tiny("t5")).generate([], DecodingSettings()) == []
    assert np.isfinite(Prompter(tiny("t5")).score([Prompt("")], [["a"]])[0][0].log_prob)
