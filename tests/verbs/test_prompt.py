"""`etymon prompt`: task files, what they show a model, and how its answers are judged."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import etymon
from etymon.errors import EtymonError
from etymon.lab.prompt import wilson
from etymon.lab.prompt_task import PromptFile, PromptTask, open_task

CITIES = [
    ("Paris", "France"),
    ("Rome", "Italy"),
    ("The cat", "the mat"),
    ("dog", "soup"),
    ("façade", "Ça va"),
]
RECORDS = [{"question": question, "answer": answer} for question, answer in CITIES]
TASK = """
instruction: Say it.
template: "Q: {question}\\nA: {answer}"
separator: "\\n"
examples: train.jsonl
queries: test.jsonl
choices: [France, Italy, the mat, soup]
shots: 1
"""


@pytest.fixture
def task(tmp_path: Path) -> Path:
    for name, records in (("train", RECORDS[:3]), ("test", RECORDS[1:4])):
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (tmp_path / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    (tmp_path / "task.yaml").write_text(TASK, encoding="utf-8")
    return tmp_path / "task.yaml"


def task_of(**keys: Any) -> PromptTask:
    given = {"template": "{question}: {answer}", "examples": RECORDS, "queries": RECORDS[:1], **keys}
    return open_task(given)


# --- scoring


@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_choices_are_scored_as_by_the_score_verb(folder, task, family):
    (outcome,) = etymon.prompt(folder(family), task).outcomes
    assert [answer.query for answer in outcome.answers] == [0, 1, 2]
    for answer, (question, label) in zip(outcome.answers, CITIES[1:4]):
        # The first example is Paris, for all three queries.
        assert answer.prompt == f"Say it.\nQ: Paris\nA: France\nQ: {question}\nA:"
        targets = [f" {choice.text}" if family == "gpt2" else choice.text for choice in answer.choices]
        expected = etymon.score(folder(family), [answer.prompt] * 4, target=targets)
        assert [one.log_prob for one in answer.choices] == pytest.approx(
            [one.log_likelihood for one in expected], abs=1e-5
        )
        assert [one.tokens for one in answer.choices] == [one.tokens for one in expected]
        best = max(expected, key=lambda one: one.log_likelihood / one.tokens)
        assert answer.answer == best.text.strip()
        assert answer.labels == (label,)
        assert answer.correct is (answer.answer == label)
        assert (answer.examples, answer.dropped) == (1, 0)
    assert outcome.correct == sum(answer.correct is True for answer in outcome.answers)
    assert outcome.accuracy == outcome.correct / 3
    assert outcome.interval == wilson(outcome.correct, 3)


def test_three_ways_of_scoring(folder, task):
    def answers(how: str) -> Any:
        found = etymon.prompt(folder("gpt2"), task, set=[f"normalise={how}"], shots=0)
        return found.outcomes[0].answers

    plain, token, unconditional = map(answers, ("sum", "token", "unconditional"))
    for one, other, third in zip(plain, token, unconditional):
        for a, b, c in zip(one.choices, other.choices, third.choices):
            alone = etymon.score(folder("gpt2"), "Answer:", target=f" {a.text}")[0].log_likelihood
            assert a.log_prob == a.score == b.log_prob
            assert b.score == pytest.approx(a.log_prob / a.tokens)
            assert (a.unconditional, b.unconditional) == (None, None)
            assert c.unconditional == pytest.approx(alone, abs=1e-5)
            assert c.score == pytest.approx(a.log_prob - alone, abs=1e-5)
        for answer in (one, other, third):
            assert answer.answer == max(answer.choices, key=lambda choice: choice.score).text
            assert answer.prompt.startswith("Say it.\nQ: ") and answer.prompt.count("Q:") == 1


def test_text_behind_the_answer_belongs_to_it(folder):
    keys = {"template": "The {answer} sat.", "queries": [{}], "choices": ["cat", "dog"]}
    choices = etymon.prompt(folder("gpt2"), keys).outcomes[0].answers[0].choices
    expected = etymon.score(folder("gpt2"), ["The"] * 2, target=[" cat sat.", " dog sat."])
    assert [one.log_prob for one in choices] == pytest.approx(
        [one.log_likelihood for one in expected], abs=1e-5
    )


def test_answers_that_are_written(folder, task):
    task.write_text(TASK.replace("choices: [France, Italy, the mat, soup]", "max_new_tokens: 4"))
    found = etymon.prompt(folder("gpt2"), task).outcomes[0]
    for answer in found.answers:
        begun = f"<|endoftext|>{answer.prompt}"
        (expected,) = etymon.generate(folder("gpt2"), begun, max_new_tokens=4, stop=["\n"])
        assert answer.answer == expected.text.strip()
        assert answer.choices == ()
        assert answer.correct is (answer.answer == answer.labels[0])
    # The right answer is what it says: one of several is enough.
    records = [{"question": answer.prompt, "answer": ["x", answer.answer]} for answer in found.answers]
    again = {"template": "{question}{answer}", "queries": records, "max_new_tokens": 4, "stop": "\n"}
    outcome = etymon.prompt(folder("gpt2"), again).outcomes[0]
    assert (outcome.metric, outcome.accuracy) == ("exact match", 1.0)


def test_a_model_of_python(folder, task):
    model = etymon.load(folder("gpt3"))
    by_name = etymon.prompt(folder("gpt3"), task, shots=[0, 2])
    assert etymon.prompt(model, task, shots="0,2") == by_name
    assert [outcome.shots for outcome in by_name.outcomes] == [0, 2]


# --- which examples


def test_first_and_random_examples():
    first = task_of(shots=2, queries=[{"question": "soup"}, {"question": "mat"}])
    assert [[one.shown for one in first.select(query, 2)] for query in (0, 1)] == [
        ["Paris: France", "Rome: Italy"]
    ] * 2
    random = [task_of(selection="random", seed=3, queries=[{"question": "soup"}] * 20) for _ in range(2)]
    drawn = [[one.context for one in random[0].select(query, 3)] for query in range(20)]
    assert drawn == [[one.context for one in random[1].select(query, 3)] for query in range(20)]
    assert len({tuple(some) for some in drawn}) > 10
    assert all(len(set(some)) == 3 for some in drawn)
    # More shots add to fewer, and another seed draws others.
    assert [one.context for one in random[0].select(7, 2)] == drawn[7][:2]
    other = task_of(selection="random", seed=4, queries=[{"question": "soup"}] * 20)
    assert drawn != [[one.context for one in other.select(query, 3)] for query in range(20)]


def test_a_query_is_never_its_own_example():
    task = task_of(queries=RECORDS)
    for query, record in enumerate(RECORDS):
        chosen = task.select(query, 4)
        assert len(chosen) == 4
        assert record["question"] not in [one.context.rstrip(":") for one in chosen]


def test_random_examples_give_what_each_prompt_gives(folder, task):
    keys = ["selection=random", "seed=1", "normalise=sum"]
    for answer in etymon.prompt(folder("gptj"), task, shots=2, set=keys).outcomes[0].answers:
        expected = etymon.score(folder("gptj"), answer.prompt, target=" the mat")[0].log_likelihood
        assert answer.choices[2].log_prob == pytest.approx(expected, abs=1e-5)


# --- room


def test_examples_that_there_is_no_room_for(folder, run, tmp_path):
    task = {
        "template": "Q: {question} A: {answer}",
        "queries": [{"question": "cat"}, {"question": "The naïve cat sat on the mat, as dogs and cats do!"}],
        "choices": ["a", "the mat"],
        "separator": "\n",
    }
    task["examples"] = [{"question": f"cat {number}", "answer": "a"} for number in range(8)]
    notes: list[str] = []
    (outcome,) = etymon.prompt(folder("gpt2"), task, shots=8, on_note=notes.append).outcomes
    positions = 48
    model = etymon.load(folder("gpt2"))
    for answer in outcome.answers:
        assert answer.examples + answer.dropped == 8
        kept = [f"Q: cat {number} A: a" for number in range(8)][answer.dropped :]
        assert answer.prompt.split("\n")[:-1] == kept, "the first ones are left out"
        longest = len(model.tokenizer.encode(answer.prompt + " the mat")) + 1
        one_more = len(model.tokenizer.encode(f"Q: cat {answer.dropped - 1} A: a\n"))
        assert longest <= positions < longest + one_more
    assert outcome.answers[0].dropped < outcome.answers[1].dropped
    assert outcome.shortened == 2
    assert "shots 8: 2 of 2 prompts were too long for the model's 48 positions" in notes[0]
    (tmp_path / "task.json").write_text(json.dumps(task))
    code, out, err = run("prompt", folder("gpt2"), tmp_path / "task.json", "--shots", "8", "--no-drop")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "queries 1: the prompt with 8 examples and its answer take" in err and "48 positions" in err
    task["queries"] = [{"question": "soup " * 48}]
    with pytest.raises(EtymonError, match="without any example the prompt and its answer take"):
        etymon.prompt(model, task, shots=3)


def test_room_for_what_is_written(folder):
    task = {
        "template": "Q: {question} A: {answer}",
        "queries": [{"question": "cat"}],
        "max_new_tokens": 20,
        "separator": "\n",
    }
    task["examples"] = [{"question": f"cat {number}", "answer": "a"} for number in range(8)]
    (answer,) = etymon.prompt(folder("gpt2"), task, shots=8).outcomes[0].answers
    assert 0 < answer.examples < 8


# --- files and labels


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl.gz"])
def test_files_of_records(tmp_path, kind):
    mark = {"csv": ",", "tsv": "\t"}.get(kind)
    if mark is None:
        lines = "".join(json.dumps({"text": a, "one": b, "other": "x", "right": 0}) + "\n" for a, b in CITIES)
        (tmp_path / "data.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    else:
        rows = [
            mark.join(["text", "one", "other", "right"]),
            *(mark.join([a, b, "x", "0"]) for a, b in CITIES),
        ]
        (tmp_path / f"data.{kind}").write_text("\n".join(rows), encoding="utf-8")
    (tmp_path / "task.yaml").write_text(
        f"template: '{{text}} > {{right}}'\nlabel: right\nchoices: ['{{one}}', '{{other}}']\nqueries: data.{kind}\n"
    )
    task = open_task(tmp_path / "task.yaml")
    assert [case.choices for case in task.queries] == [(answer, "x") for _, answer in CITIES]
    assert [case.shown for case in task.queries] == [f"{text} > {answer}" for text, answer in CITIES]


def test_records_that_cannot_be_read(folder, run, tmp_path, task):
    with open(tmp_path / "test.jsonl", "a", encoding="utf-8") as file:
        file.write("not JSON\n")
    code, _, err = run("prompt", folder("gpt2"), task)
    assert code == 2 and "line 4 is not valid JSON" in err
    code, _, err = run("prompt", folder("gpt2"), task, "--errors", "skip")
    assert code == 0 and "1 records of test.jsonl could not be read and were left out" in err


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("no", ("no",)),
        (1, ("yes",)),
        ("0", ("no",)),
        (True, ("yes",)),
        (None, ()),
        ("", ()),
        (["no", 1], ("no", "yes")),
    ],
)
def test_labels(label, expected):
    task = task_of(choices=["no", "yes"], examples=[], queries=[{"question": "x", "answer": label}])
    assert task.queries[0].labels == expected


def test_lists_of_choices():
    queries = [
        {"question": "x", "options": ["a", "b", "c"], "answer": 2},
        {"question": "y", "options": ["b"]},
    ]
    task = task_of(choices_column="options", examples=[], queries=queries)
    assert [(case.choices, case.labels) for case in task.queries] == [(("a", "b", "c"), ("c",)), (("b",), ())]


def test_unjudged_queries(folder, run, tmp_path):
    keys = {
        "template": "{question}: {answer}",
        "choices": ["a", "b"],
        "queries": [{"question": "x"}, {"question": "y"}],
    }
    outcome = etymon.prompt(folder("gpt2"), keys).outcomes[0]
    assert (outcome.judged, outcome.accuracy, outcome.interval) == (0, None, None)
    (tmp_path / "task.json").write_text(json.dumps(keys))
    assert "no labels" in run("prompt", folder("gpt2"), tmp_path / "task.json")[1]
    keys["queries"][0]["answer"] = "a"  # type: ignore[index]
    result = etymon.prompt(folder("gpt2"), keys)
    assert result.outcomes[0].judged == 1
    assert result.notes == ["1 of 2 queries have no label and are not judged"]


def test_templates():
    task = task_of(
        template="{{{question}}} = {n} {answer}!  \n",
        queries=[{"question": "\r\nx", "n": 1.5, "answer": "y"}],
        examples=[],
    )
    (case,) = task.queries
    assert (case.context, case.gap, case.rest) == ("{\nx} = 1.5", " ", "!")
    newline = task_of(template="A:\n{answer}", queries=[{"answer": "y"}], examples=[]).queries[0]
    assert (newline.context, newline.gap) == ("A:\n", "")
    assert task_of(instruction="", queries=[{"question": "z"}]).prompt(0, []).text == "z:"


# --- the command line


def test_what_is_shown_and_written(folder, run, task, tmp_path):
    out_file = tmp_path / "answers.jsonl"
    code, out, err = run("prompt", folder("gpt2"), task, "--shots", "0,1,2", "--out", out_file, "--show", "2")
    assert (code, err) == (0, "")
    records = [json.loads(line) for line in out_file.read_text(encoding="utf-8").splitlines()]
    assert [(one["shots"], one["query"]) for one in records] == [(s, q) for s in (0, 1, 2) for q in range(3)]
    assert {choice["text"] for choice in records[0]["choices"]} == {"France", "Italy", "the mat", "soup"}
    assert out.count("and 1 more") == 3
    *_, header, zero, one, two = out.splitlines()
    assert header.split() == ["shots", "queries", "shortened", "accuracy", "95%", "interval"]
    outcomes = etymon.prompt(folder("gpt2"), task, shots="0,1,2").outcomes
    for line, outcome in zip((zero, one, two), outcomes):
        assert line.split()[:4] == [str(outcome.shots), "3", "0", f"{outcome.accuracy:.1%}"]
    code, out, _ = run("prompt", folder("gpt2"), task, "--json", "--limit", "2")
    (record,) = json.loads(out)["outcomes"]
    assert (record["shots"], record["queries"], len(record["answers"])) == (1, 2, 2)
    assert record["interval"] == pytest.approx(wilson(record["correct"], 2))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"shotz": 1}, "unknown key 'shotz' in the task: did you mean 'shots'?"),
        ({"template": None}, "bad value in the task: template is null"),
        ({"template": "Q: {question}"}, "must hold {answer} once, and it does 0 times"),
        ({"template": "{answer} {answer}"}, "once, and it does 2 times"),
        ({"template": "{qestion} {answer}"}, "no column 'qestion'; did you mean 'question'?"),
        ({"template": "{question {answer}"}, "write {{ for a brace"),
        ({"template": "{question:>3} {answer}"}, "with nothing else in the braces"),
        ({"normalise": "tokens"}, "normalise is"),
        ({"shots": 9}, "9 shots, but there are 5 examples"),
        ({"shots": -1}, "ask for 0 or more"),
        ({"seed": -1}, "seed is -1"),
        ({"choices": ["a"], "choices_column": "x"}, "choices or choices_column, not both"),
        ({"choices_column": "question"}, "must hold a list of choices"),
        ({"choices": ["Franc", "Italy"]}, "the label 'France' is no choice; did you mean 'Franc'?"),
        ({"examples": [{"question": "x"}]}, "an example needs its answer, in the column 'answer'"),
        ({"queries": []}, "there are no queries"),
        ({"queries": "missing.jsonl"}, "no such file or folder: missing.jsonl"),
        ({"queries": [{"question": [1]}]}, "column 'question' holds a list, not a text"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0, expected at least 1"),
    ],
)
def test_mistakes_in_a_task_file(change, expected):
    with pytest.raises(EtymonError) as refused:
        task_of(**change)
    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)


def test_mistakes_on_the_command_line(folder, run, task, tmp_path):
    code, out, err = run("prompt", folder("bert"), task)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "BERT reads both sides of a word at once and cannot go on from a prompt" in err
    for options, expected in [
        (("--shots", "a few"), 'shots is "a few", expected 16, or 0,1,16'),
        (("--limit", "0"), "limit is 0, expected at least 1"),
        (("--set", "choises=[a]"), "did you mean 'choices'?"),
    ]:
        code, out, err = run("prompt", folder("gpt2"), task, *options)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert expected in err
    (tmp_path / "notes.txt").write_text("x")
    task.write_text(TASK.replace("test.jsonl", "notes.txt"))
    assert "has no named columns: give a .jsonl, .csv, .tsv file" in run("prompt", folder("gpt2"), task)[2]


def test_the_documentation_has_every_key():
    page = (Path(__file__).parents[2] / "docs" / "prompting.md").read_text(encoding="utf-8")
    for key in PromptFile.__dataclass_fields__:
        assert f"\n| `{key}` |" in page, key


@pytest.mark.parametrize(("correct", "judged"), [(0, 10), (10, 10), (37, 50), (1, 1), (500, 1000)])
def test_intervals(correct, judged):
    stats = pytest.importorskip("scipy.stats")
    expected = stats.binomtest(correct, judged).proportion_ci(method="wilson")
    assert wilson(correct, judged) == pytest.approx((expected.low, expected.high), abs=1e-6)
