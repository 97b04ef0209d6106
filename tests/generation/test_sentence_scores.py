"""Sentence scores against minicons, Transformers and straightforward loops; trees against rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from etymon.errors import EtymonError
from etymon.families import get_family
from etymon.families.model import Model
from etymon.families.saving import save
from etymon.generation.likelihood import score_texts
from etymon.generation.prefix_trees import plant_trees, reads_trees
from etymon.generation.sentence_scores import score_sentences, scoring_method
from etymon.nn.batch import Batch
from tests import tiny as small
from tests.generation.conftest import tiny_model, two_tongues

PAIRS = [
    ("The cat sat on the mat.", "The cat sat on the cats."),
    ("The cat sat on the mat.", "The cat sits on the mat."),
    ("Paris is the capital of France.", "Paris are the capital of France."),
    ("The dogs eat soup.", "The dogs eats soup."),
    ("Naïve dogs — and a façade!", "Dogs naïve — and a façade!"),
]
SENTENCES = [sentence for pair in PAIRS for sentence in pair]


def made(family: str, heads: frozenset[str] = frozenset({"vocabulary"})) -> Model:
    """Of the families that the other world of tests has."""
    model = small.model(family, heads)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model.eval()


def log_probs(model: Model, **options: Any) -> list[float]:
    return [score.log_prob for score in score_sentences(model, SENTENCES, **options)]


# --- from left to right


@pytest.mark.parametrize(
    ("family", "changed", "in_trees"),
    [
        ("gpt2", {}, True),
        ("gpt2", {"position_kind": "rotary"}, True),
        ("gpt2", {"position_kind": "relative_key"}, True),
        ("gpt2", {"position_kind": "relative_bias"}, True),
        ("gpt2", {"cutoffs": (30, 100), "divisor": 2}, True),
        ("gpt1", {}, True),
        ("gptj", {}, True),
        ("gpt2", {"pointer": 6}, False),
        ("gpt3", {}, False),
        ("transformer-xl", {}, False),
    ],
)
def test_a_tree_gives_every_sentence_the_score_that_it_has_alone(family, changed, in_trees):
    model = tiny_model(family, **changed)
    assert reads_trees(model) is in_trees
    alone = [score_texts(model, [sentence])[0] for sentence in SENTENCES]
    scored = score_sentences(model, SENTENCES)
    assert [score.log_prob for score in scored] == pytest.approx(
        [each.log_likelihood for each in alone], abs=2e-4
    )
    assert [score.tokens for score in scored] == [each.tokens for each in alone]
    assert [score.bytes for score in scored] == [len(sentence.encode()) for sentence in SENTENCES]
    assert scoring_method(model) == "likelihood"


def test_beginnings_are_read_once(tiny, monkeypatch):
    model, read = tiny("gpt2"), []
    hidden = model.hidden
    monkeypatch.setattr(
        model, "hidden", lambda batch, *rest: read.append(batch.layout.tokens) or hidden(batch, *rest)
    )
    score_sentences(model, SENTENCES)
    rows = [tuple(model.tokenizer.encode(sentence).tolist()) for sentence in SENTENCES]
    distinct = {row[:stop] for row in rows for stop in range(len(row) + 1)}
    # Each begins once in a tree; the first token of all is in every tree again.
    assert len(distinct) <= sum(read) < sum(len(row) + 1 for row in rows)


def test_trees_hold_every_text_and_stay_short():
    texts = [[0, *np.random.default_rng(seed).integers(1, 4, 2 + seed % 9).tolist()] for seed in range(60)]
    trees = plant_trees(texts, longest=20)
    found = {number: [tree.ids[place] for place in path] for tree in trees for number, path in tree.texts}
    assert [found[number] for number in range(len(texts))] == texts
    assert max(len(tree.ids) for tree in trees) <= 20
    for tree in trees:
        for _, path in tree.texts:
            for token in range(len(tree.ids)):  # the last of a text sees its own way, and nothing else
                is_seen = token <= path[-1] < tree.seen_until[token]
                assert is_seen == (token in path)


def test_long_sentences_are_read_in_windows(tiny):
    model, long = tiny("gpt2"), " ".join(SENTENCES)
    assert len(model.tokenizer.encode(long)) > model.positions
    scored = score_sentences(model, [long, "The cat."])
    assert scored[0].log_prob == pytest.approx(score_texts(model, [long])[0].log_likelihood, abs=1e-3)


def test_xlnet_predicts_in_the_order_of_the_text(tmp_path: Path):
    transformers = pytest.importorskip("transformers")
    model = made("xlnet")
    save(model, tmp_path)
    reference = transformers.XLNetLMHeadModel.from_pretrained(tmp_path).eval()
    assert scoring_method(model) == "likelihood in its own order"
    for sentence, scored in zip(SENTENCES, log_probs(model)):
        ids = model.tokenizer.encode(sentence).tolist()
        first = model.token("begin") if model.token("begin") is not None else model.token("end")
        row = torch.tensor([[first, *ids]])
        size = row.shape[1]
        # In Transformers' mask a one hides: nobody sees itself or what comes after it.
        hidden = torch.ones(1, size, size).triu()
        total = 0.0
        for place in range(1, size):
            asked = torch.zeros(1, 1, size)
            asked[0, 0, place] = 1
            with torch.no_grad():
                logits = reference(row, perm_mask=hidden, target_mapping=asked).logits[0, 0]
            total += float(logits.log_softmax(-1)[row[0, place]])
        assert scored == pytest.approx(total, abs=1e-3)


def test_elmo_takes_the_mean_of_its_directions():
    model = made("elmo")
    assert scoring_method(model) == "likelihood of both directions"
    scores = score_sentences(model, ["The river crossed the garden.", "The zzz crossed the river."])
    head: Any = model.heads["vocabulary"]
    ids = model.tokenizer.encode("The river crossed the garden.")
    row = [model.tokenizer.id("begin"), *ids.tolist(), model.tokenizer.id("end")]
    with torch.no_grad():
        hidden, _ = model.hidden(Batch.of([row]))
        ahead, back = (head.log_probs(part.contiguous()) for part in hidden.chunk(2, -1))
    words = [word if word < head.size else model.tokenizer.id("unknown") for word in row]
    total = sum(float(ahead[n - 1, words[n]] + back[n + 1, words[n]]) / 2 for n in range(1, len(row) - 1))
    assert scores[0].log_prob == pytest.approx(total, abs=1e-4)
    assert scores[0].tokens == len(ids)


# --- from both sides


@pytest.mark.parametrize("family", ["bert", "roberta", "albert", "distilbert"])
def test_pseudo_likelihood_is_that_of_score(family):
    model = tiny_model(family)
    alone = [score_texts(model, [sentence])[0].log_likelihood for sentence in SENTENCES]
    assert log_probs(model) == pytest.approx(alone, abs=2e-4)
    assert log_probs(model, pll="within-word") != pytest.approx(alone, abs=1e-2)


def test_rows_that_a_pair_shares_are_computed_once(tiny, monkeypatch):
    model = tiny("bert")
    read = []
    states = model.states
    monkeypatch.setattr(
        model, "states", lambda batch, at=None: read.append(batch.layout.rows) or states(batch, at)
    )
    one_word = ["The cat sat.", "The dog sat."]
    encoded = [model.tokenizer.encode(sentence) for sentence in one_word]
    score_sentences(model, [*one_word, *one_word])
    assert sum(read) <= sum(map(len, encoded))


def test_a_discriminator_says_how_sure_it_is_that_nothing_was_replaced(tmp_path: Path):
    transformers = pytest.importorskip("transformers")
    model = made("electra", frozenset({"replaced"}))
    save(model, tmp_path)
    reference = transformers.ElectraForPreTraining.from_pretrained(tmp_path).eval()
    assert scoring_method(model) == "no token replaced"
    for sentence, scored in zip(SENTENCES, log_probs(model)):
        ids = torch.from_numpy(
            model.tokenizer.framing.frame(model.tokenizer.encode(sentence)).ids.astype(np.int64)
        )
        with torch.no_grad():
            logits = reference(ids[None]).logits[0, 1:-1]
        assert scored == pytest.approx(float(torch.nn.functional.logsigmoid(-logits).sum()), abs=1e-4)


# --- encoder-decoders


def test_t5_writes_every_word_into_a_blank(tmp_path: Path, tiny):
    transformers = pytest.importorskip("transformers")
    model = tiny("t5")
    save(model, tmp_path)
    reference = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path).eval()
    tokenizer = model.tokenizer
    sentinel, start, end = tokenizer.sentinels[0], model.decoder_start, tokenizer.id("end")
    assert scoring_method(model) == "infilling"
    for sentence, scored in zip(SENTENCES, log_probs(model)):
        words = [tokenizer.encode(word).tolist() for word in sentence.split()]
        total = 0.0
        for place, word in enumerate(words):
            source = [
                id_ for part in (*words[:place], [sentinel], *words[place + 1 :], [end]) for id_ in part
            ]
            inputs = torch.tensor([[start, sentinel, *word[:-1]]])
            with torch.no_grad():
                logits = reference(input_ids=torch.tensor([source]), decoder_input_ids=inputs).logits[0, 1:]
            total += float(logits.log_softmax(-1)[range(len(word)), word].sum())
        assert scored == pytest.approx(total, abs=1e-3)


def test_bart_writes_the_sentence_from_one_with_a_blank(tmp_path: Path):
    transformers = pytest.importorskip("transformers")
    model = tiny_model("bart")
    save(model, tmp_path)
    reference = transformers.BartForConditionalGeneration.from_pretrained(tmp_path).eval()
    tokenizer, sentence = model.tokenizer, "The cat sat on the mat."
    encoding = tokenizer.backend.encode(sentence, add_special_tokens=False)
    framed = tokenizer.framing.frame(encoding.ids).ids.tolist()
    begin = framed.index(encoding.ids[0])
    total = 0.0
    for word in sorted(set(encoding.word_ids)):
        places = [place for place, each in enumerate(encoding.word_ids) if each == word]
        kept = [*encoding.ids[: places[0]], tokenizer.id("mask"), *encoding.ids[places[-1] + 1 :]]
        source = torch.from_numpy(tokenizer.framing.frame(kept).ids.astype(np.int64))[None]
        with torch.no_grad():
            inputs = torch.tensor([[model.decoder_start, *framed[:-1]]])
            log_p = reference(input_ids=source, decoder_input_ids=inputs).logits[0].log_softmax(-1)
        total += sum(float(log_p[begin + place, encoding.ids[place]]) for place in places)
    assert score_sentences(model, [sentence])[0].log_prob == pytest.approx(total, abs=1e-3)


@pytest.mark.parametrize("family", ["t5", "bart", "transformer", "rnn"])
def test_a_target_is_written_from_nothing(family):
    model = tiny_model(family)
    alone = [each.log_likelihood for each in score_texts(model, [""] * len(SENTENCES), SENTENCES)]
    assert log_probs(model, seq2seq="target") == pytest.approx(alone, abs=1e-3)
    assert scoring_method(model) == "infilling"


def test_a_translator_is_scored_by_its_target():
    model = two_tongues()
    assert scoring_method(model) == "likelihood of the target"
    assert len(log_probs(model)) == len(SENTENCES)
    with pytest.raises(
        EtymonError, match="cannot fill a blank of its own text: score it by --seq2seq target"
    ):
        score_sentences(model, SENTENCES, seq2seq="infilling")


# --- minicons


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("minicons")
    for family in ("gpt2", "bert"):
        save(tiny_model(family), folder / family)
    return folder


def test_likelihoods_equal_minicons(saved: Path, tiny):
    from minicons.scorer import IncrementalLMScorer

    peer = IncrementalLMScorer(str(saved / "gpt2"), "cpu")
    theirs = peer.sequence_score(SENTENCES, reduction=lambda scores: scores.sum(0).item(), bos_token=True)
    assert log_probs(tiny("gpt2")) == pytest.approx(theirs, abs=1e-4)
    means = peer.sequence_score(SENTENCES, bos_token=True)
    assert [score.per_token for score in score_sentences(tiny("gpt2"), SENTENCES)] == pytest.approx(
        means, abs=1e-4
    )


@pytest.mark.parametrize(("pll", "metric"), [("token", "original"), ("within-word", "within_word_l2r")])
def test_pseudo_likelihoods_equal_minicons(saved: Path, tiny, pll, metric, monkeypatch):
    from minicons.scorer import MaskedLMScorer

    peer = MaskedLMScorer(str(saved / "bert"), "cpu")
    # Transformers 5 has no `batch_encode_plus`, by which minicons 0.3.39 asks a tokenizer.
    if not hasattr(peer.tokenizer, "batch_encode_plus"):
        monkeypatch.setattr(
            type(peer.tokenizer), "batch_encode_plus", type(peer.tokenizer).__call__, raising=False
        )
    theirs = peer.sequence_score(SENTENCES, reduction=lambda scores: scores.sum(0).item(), PLL_metric=metric)
    assert log_probs(tiny("bert"), pll=pll) == pytest.approx(theirs, abs=1e-4)


# --- refusals


def test_refusals(tiny):
    with pytest.raises(EtymonError, match="has no tokens"):
        score_sentences(tiny("gpt2"), ["The cat.", ""])
    with pytest.raises(EtymonError, match=r"a sentence has 5\d tokens, but the model reads 48"):
        score_sentences(tiny("bert"), [" ".join(["cat"] * 50)])
    classifier = Model(get_family("bert"), tiny("bert").shape, {"classification"}).initialise()
    classifier.tokenizer = tiny("bert").tokenizer
    with pytest.raises(
        EtymonError, match="this BERT has no vocabulary head and gives no likelihood of a sentence"
    ):
        score_sentences(classifier, ["The cat."])
