from __future__ import annotations

import json
from dataclasses import asdict

import pytest

import etymon
from tests import tiny


def test_fill_prints_every_blank_and_the_whole(folder, run):
    text = "The ___ sat on the <mask>."
    found = etymon.fill(folder("bert"), text, top_k=3)[0]
    code, out, _ = run("fill", folder("bert"), text, "--top-k", 3)
    assert code == 0
    lines = out.splitlines()
    assert [line for line in lines if line.startswith("blank")] == ["blank 1", "blank 2"]
    assert len(lines) == 2 * 4 + 1
    assert lines[-1].removeprefix("filled").strip() == found.filled
    assert f"{found.blanks[0][0].probability:.2%}" in lines[1]
    assert json.loads(run("fill", folder("bert"), text, "--top-k", 3, "--json")[1]) == asdict(found)


def test_fill_with_spans(folder, run):
    code, out, _ = run("fill", folder("t5"), "The [MASK] sat.", "--top-k", 2, "--max-new-tokens", 4)
    assert code == 0
    assert len(out.splitlines()) == 2


def test_fill_refuses_a_decoder(folder, run):
    code, _, err = run("fill", folder("gpt2"), "The ___")
    assert code == 2
    assert "GPT-2 cannot fill blanks" in err


def test_score(folder, run, tmp_path):
    found = etymon.score(folder("gpt2"), ["The cat", "Paris is"])
    code, out, _ = run("score", folder("gpt2"), "The cat", "Paris is", "--tokens")
    assert code == 0
    for one in found:
        assert f"log-likelihood {one.log_likelihood:.4f}  tokens {one.tokens}" in out
        assert f"bits per byte {one.bits_per_byte:.4f}" in out
    assert len(out.splitlines()) == 2 + sum(one.tokens for one in found)
    file = tmp_path / "text.txt"
    file.write_text("The cat\nParis is\n\n", encoding="utf-8")
    assert [
        one.log_likelihood for one in etymon.score(folder("gpt2"), file=file, lines=True)
    ] == pytest.approx([one.log_likelihood for one in found])
    code, out, _ = run("score", folder("gpt2"), "--file", file, "--json")
    assert json.loads(out)["text"] == "The cat\nParis is\n\n"
    code, out, _ = run("score", folder("bert"), "The cat")
    assert out.startswith("pseudo-log-likelihood")
    assert "bits" not in out


def test_score_a_target(folder, run):
    each = etymon.score(folder("t5"), ["The cat", "Paris"], target=["mat", "France"])
    assert [one.text for one in each] == ["mat", "France"]
    one_for_all = etymon.score(folder("t5"), ["The cat", "Paris"], target="mat")
    assert one_for_all[0].log_likelihood == pytest.approx(each[0].log_likelihood, rel=1e-5)
    assert run("score", folder("t5"), "The cat", "--target", "mat")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("t5", "The cat"), "give the target"),
        (("gpt2",), "there is no text"),
        (("gpt2", "--file", "missing.txt"), "cannot read missing.txt"),
    ],
)
def test_score_mistakes_are_one_line(folder, run, arguments, expected):
    family, *rest = arguments
    code, out, err = run("score", folder(family), *rest)
    assert (code, out) == (2, "")
    assert expected in err
    assert err.count("\n") == 1


def test_a_file_that_is_no_text(folder, run, tmp_path):
    (tmp_path / "bytes").write_bytes(b"ab\xff")
    code, _, err = run("score", folder("gpt2"), "--file", tmp_path / "bytes")
    assert code == 2
    assert "is not UTF-8 at byte 2 (line 1)" in err


def test_fill_and_score_of_an_electra_run_find_its_generator(tmp_path):
    for name, head in (("discriminator", "replaced"), ("generator", "vocabulary")):
        etymon.save(tiny.model("electra", frozenset({head})), tmp_path / "run" / name)
    assert etymon.fill(tmp_path / "run", "The ___ sat.") == etymon.fill(
        tmp_path / "run" / "generator", "The ___ sat."
    )
    assert (
        etymon.score(tmp_path / "run", "The cat")[0].log_probs
        == etymon.score(tmp_path / "run" / "generator", "The cat")[0].log_probs
    )
    assert "replaced" in etymon.load(tmp_path / "run").heads, "the model that is meant is the discriminator"
    with pytest.raises(etymon.EtymonError, match="vocabulary"):
        etymon.fill(tmp_path / "run" / "discriminator", "The ___ sat.")
