"""`lm_eval --model local-completions` against the server: the figures of the harness on the model itself."""

from __future__ import annotations

from pathlib import Path

import pytest

import etymon
from tests.server.conftest import Running
from tests.test_harness import Request

pytest.importorskip("lm_eval")
pytest.importorskip("tenacity", reason="lm_eval's client of servers needs it")

PAIRS = [
    ("The cat sat on", " the mat."),
    ("Paris is the capital", " of France"),
    ("日本", "語"),
    ("", "A dog"),
]


def test_figures_of_a_served_model_are_those_of_the_model(server: Running, folders: dict[str, Path]) -> None:
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    from etymon.harness import HarnessModel

    ours = HarnessModel(path=str(folders["gpt2"]))
    served = LocalCompletionsAPI(
        model="gpt2",
        base_url=f"{server.url}/v1/completions",
        tokenizer=str(folders["gpt2"]),
        max_length=128,
        batch_size=2,
    )
    requests = [Request(*pair) for pair in PAIRS]
    for (score, greedy), (expected, is_greedy) in zip(
        served.loglikelihood(requests), ours.loglikelihood(requests), strict=True
    ):
        assert score == pytest.approx(expected, abs=1e-3) and bool(greedy) == bool(is_greedy)
    texts = [Request(text + rest) for text, rest in PAIRS]
    assert served.loglikelihood_rolling(texts) == pytest.approx(ours.loglikelihood_rolling(texts), abs=1e-3)
    settings = {"until": ["\n"], "max_gen_toks": 6, "do_sample": False, "temperature": 0}
    prompts = [text for text, _ in PAIRS[:3]]
    expected_texts = etymon.generate(server.models["gpt2"], prompts, max_new_tokens=6, stop=["\n"])
    written = served.generate_until([Request(text, dict(settings)) for text in prompts])
    assert written == [each.text for each in expected_texts]
