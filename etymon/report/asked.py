"""A section of a run's report: what the objective asked of a text, and what the model answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from etymon.report.page import in_language, render_template

HELD_OUT = "The first sample of the held-out text, the same at every validation."
TRAINING = "The first sample of the training text: nothing is held out."
LEGEND = (
    "A box is a token as the model reads it. Struck out above: what stood there. After the arrow: what "
    "must be predicted. Below: the trained model's first guess, and how sure it is; green where it is right."
)


@dataclass(frozen=True)
class AskedQuestions:
    """A sample as plain data (`runs.asking.AskedSample`)."""

    sample: Mapping[str, Any]
    title: str = "What must be predicted, and what the model answers"

    def body(self) -> str:
        sample = self.sample
        readers = [_reader(reader) for reader in sample["readers"]]
        captions = [sample["about"], HELD_OUT if sample["is_held_out"] else TRAINING, LEGEND]
        return render_template(
            "asked.html",
            objective=sample["name"],
            caption=" ".join(map(in_language, captions)),
            readers=readers,
            has_originals=any(token["was"] is not None for reader in readers for token in reader["tokens"]),
            lines=[_text_line(question) for question in sample["about_text"]],
        )


def _reader(reader: Mapping[str, Any]) -> dict[str, Any]:
    questions = {question["place"]: question for question in reader["questions"]}
    tokens: list[dict[str, Any]] = []
    for place, token in enumerate(reader["tokens"]):
        question = questions.get(place)
        guess = question["guesses"][0] if question and question["guesses"] else None
        answer, is_right = "", False
        if guess is not None and question is not None:
            is_right = question["rank"] == 1
            answer = f"{_plain(guess['token'])} {guess['probability']:.0%}"
        elif token["replaced"] is not None:
            # Right where the likelier side is the true one.
            is_right = (token["replaced"] > 0.5) == (token["original"] is not None)
            answer = f"{token['replaced']:.0%}"
        tokens.append(
            {
                "text": _plain(token["text"]),
                "kind": token["kind"],
                "was": None if token["original"] is None else _plain(token["original"]),
                "target": None if question is None else _plain(question["target"]),
                "answer": answer,
                "is_right": is_right,
            }
        )
    return {
        "name": reader["name"],
        "tokens": tokens,
        "has_more_before": reader["first"] > 0,
        "has_more_behind": reader["first"] + len(tokens) < reader["total"],
        "summary": _summary(reader),
    }


def _summary(reader: Mapping[str, Any]) -> str:
    # By place: ELECTRA's masks are drawn with replacement, and one that is drawn twice is shown once.
    by_place = {question["place"]: question for question in reader["questions"]}
    questions = [question for question in by_place.values() if question["rank"] is not None]
    if questions:
        right = sum(question["rank"] == 1 for question in questions)
        return in_language(f"{right} of these {len(questions)} tokens are the model's first guess.")
    flags = [token for token in reader["tokens"] if token["replaced"] is not None]
    if flags:
        right = sum((token["replaced"] > 0.5) == (token["original"] is not None) for token in flags)
        return in_language(
            f"Below every token: how likely it was replaced. {right} of {len(flags)} are told rightly."
        )
    return ""


def _text_line(question: Mapping[str, Any]) -> str:
    # As in `etymon explain`: the first answer of such a head is yes.
    is_no = bool(question["answer"])
    answer = in_language("no" if is_no else "yes")
    sure = f" ({question['probabilities'][question['answer']]:.0%})" if question["probabilities"] else ""
    return f"{in_language(question['name'].replace('_', ' '))}: {answer}{sure}"


def _plain(text: str) -> str:
    return text.strip() or text
