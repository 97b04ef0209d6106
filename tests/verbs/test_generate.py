from __future__ import annotations

import io
import json
import sys

import pytest

import etymon
from etymon.errors import EtymonError


def test_python_and_command_line_agree(folder, run):
    options = {"max_new_tokens": 12, "temperature": 0.9, "top_k": 40, "seed": 3}
    found = etymon.generate(folder("gpt2"), "The cat", **options)
    assert len(found) == 1
    assert found == etymon.generate(etymon.load(folder("gpt2")), ["The cat"], **options)
    flags = [part for name, value in options.items() for part in ("--" + name.replace("_", "-"), value)]
    assert run("generate", folder("gpt2"), "The cat", *flags) == (0, found[0].text + "\n", "")
    code, out, _ = run("generate", folder("gpt2"), "The cat", *flags, "--json")
    record = json.loads(out)
    assert code == 0
    assert record["ids"] == found[0].ids
    assert record["prompt"] == "The cat"


def test_sampling_options_turn_sampling_on(folder):
    model = etymon.load(folder("gpt2"))
    greedy = etymon.generate(model, "The cat", max_new_tokens=12)
    assert etymon.generate(model, "The cat", max_new_tokens=12, top_k=1)[0].ids == greedy[0].ids
    for option in ({"temperature": 2.0}, {"top_p": 0.999}, {"top_k": 50}, {"sample": True}):
        drawn = {
            tuple(etymon.generate(model, "The cat", max_new_tokens=12, seed=seed, **option)[0].ids)
            for seed in (1, 2)
        }
        assert len(drawn) == 2, option
    with pytest.raises(EtymonError, match="turn on sample"):
        etymon.generate(model, "The cat", sample=False, temperature=2.0)


def test_several_prompts_and_texts(folder, run):
    code, out, _ = run(
        "generate", folder("gpt2"), "The cat", "Paris", "--beams", 2, "--returns", 2, "--max-new-tokens", 4
    )
    assert code == 0
    assert [line for line in out.splitlines() if line.startswith("---")] == ["--- The cat"] * 2 + [
        "--- Paris"
    ] * 2


def test_prompts_from_standard_input(folder, run, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("The cat\n\nParis\n"))
    code, out, _ = run("generate", folder("t5"), "-", "--max-new-tokens", 3, "--json")
    assert code == 0
    assert [json.loads(line)["prompt"] for line in out.splitlines()] == ["The cat", "Paris"]


def test_one_prompt_streams_on_a_terminal(folder, run, monkeypatch):
    pieces: list[str] = []
    found = etymon.generate(folder("gpt2"), "The cat", max_new_tokens=12, on_text=pieces.append)
    assert len(pieces) > 1
    assert "".join(pieces) == found[0].text
    flags = ("generate", folder("gpt2"), "The cat", "--max-new-tokens", 12)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert run(*flags)[1] == found[0].text + "\n"
    assert json.loads(run(*flags, "--json")[1])["text"] == found[0].text


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("gpt2", "x", "--temperature", "0"), "temperature is 0.0"),
        (("gpt2", "x", "--max-new-tokens", "100"), "48 positions"),
        (("bert", "x"), "etymon fill"),
        (("gpt2", "x", "--device", "toaster"), "no device 'toaster'"),
        (("gpt2", "x", "--device", "cuda:99"), "no device 'cuda:99'"),
        (("gpt2", "x", "--stop", ""), "empty stop"),
        (("gpt2", "x", "--batch-size", "0"), "batch_size is 0"),
    ],
)
def test_mistakes_are_one_line(folder, run, arguments, expected):
    family, *rest = arguments
    code, out, err = run("generate", folder(family), *rest)
    assert (code, out) == (2, "")
    assert expected in err
    assert err.count("\n") == 1


def test_a_folder_without_tokenizer(folder, run, tmp_path):
    for file in folder("gpt2").iterdir():
        if not file.name.startswith("tokenizer"):
            (tmp_path / file.name).write_bytes(file.read_bytes())
    for verb in ("generate", "fill", "score", "embed"):
        code, _, err = run(verb, tmp_path, "x")
        assert code == 2
        assert "no tokenizer" in err
        assert err.count("\n") == 1
