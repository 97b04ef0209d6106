"""What every objective does, in a few plain sentences, and short texts for objectives that need a second
document."""

from __future__ import annotations

from typing import Any

import numpy as np

from etymon.display import display_width, split_at
from etymon.text.tokenizer import Tokenizer

ABOUT = {
    "causal": "Every token is predicted from those before it. The model reads the text from left to"
    " right and never sees what comes later.",
    "recurrent": "Every token is predicted from those before it, segment by segment. What the "
    "layers computed for the segment before is kept as a memory, which is seen too but"
    " not trained again.",
    "prefix": "The beginning of the text is read in both directions, like a question; the rest is "
    "predicted token by token, like its answer.",
    "masked": "Some tokens are hidden, and the model says what they were. It sees everything else, "
    "to the left and to the right. A few of them become another token, or stay as they are: it must not "
    "trust what it reads.",
    "masked-next-sentence": "Some tokens are hidden, and the model says what they were. It also "
    "says whether the second text really followed the first, or came from "
    "another document.",
    "masked-sentence-order": "Some tokens are hidden, and the model says what they were. It also "
    "says whether the two texts stand in their order, or were swapped.",
    "hybrid": "Some rows have hidden tokens and are read in both directions, the others are read from "
    "left to right. In both, a token is predicted from the state of the place before it.",
    "permutation": "Some tokens are targets, and they are predicted one after the other in an order"
    " that is drawn anew. The query stream knows where a target stands but not which"
    " token it is; the content stream knows both. A sample is running text, which the next "
    "one remembers, and two pieces of text behind it.",
    "bidirectional": "Two language models read the text, one ahead and one back. Each predicts the "
    "next word on its way; they share the vocabulary and nothing else.",
    "replaced": "A small generator guesses hidden tokens, and its guesses are put into the text. "
    "The discriminator then says of every token whether it is the original one.",
    "distilled-masked": "Some tokens are hidden. The student learns what they were, and also the "
    "probabilities and states that a larger teacher has for the same text.",
    "distilled-causal": "The student predicts every next token, and learns the probabilities and "
    "states that a larger teacher has for the same text.",
    "denoising": "The text is damaged. The encoder reads what is left, and the decoder writes the "
    "whole original.",
    "span-corruption": "Spans of the text are taken out, and a sentinel stands for each. The "
    "encoder reads the rest; the decoder writes every sentinel and what it stood"
    " for.",
}
"""By the name of the objective; others are described by the first line of their docstrings."""

OTHER_TEXTS = {
    "en": (
        "The bakery opens at six. Fresh bread is ready by seven.",
        "Rivers carry sand to the sea. Over many years it becomes stone.",
    ),
    "zh": (
        "面包店早上六点开门。七点钟新鲜的面包就出炉了。",
        "河水把泥沙带到海里。许多年以后，泥沙变成了石头。",
    ),
}
"""Documents beside the user's, for objectives that ask whether a text came from another one."""
COMMON_CHINESE = (
    "的一是了我不人在他有这个上们来到时大地为子中你说生国年着就那和要她出也得里后自以会家可下而过天去能对小多然于心学之都好看起发"
    "当没成只如事把还用第样道想作种开美总从无情己面最女但现前些所同日手又行意动方期它头经长儿回位分爱老因很给名法间斯知世什两次使身者"
)
"""Characters beside those of a Chinese sentence, from which what is drawn at random can be taken."""


def about(objective: Any) -> str:
    """What an objective does: our words, or the first sentence of its own docstring."""
    if objective.name in ABOUT:
        return ABOUT[objective.name]
    words = (type(objective).__doc__ or "").strip().split("\n\n")[0]
    return " ".join(words.split())


def is_chinese(text: str) -> bool:
    """Whether some of the text is Chinese."""
    return any("\u4e00" <= letter <= "\u9fff" for letter in text)


def other_texts(text: str, tokenizer: Tokenizer) -> tuple[str, ...]:
    """Two documents in the script of the text; where the tokenizer does not know ours, the words of the text
    in other orders, or its end before its beginning."""
    others = OTHER_TEXTS["zh" if is_chinese(text) else "en"]
    ids = np.concatenate([tokenizer.encode(other, quiet=True) for other in others])
    unknown = tokenizer.id("unknown")
    if unknown is None or (ids == unknown).mean() < 0.5:
        return others
    words = text.split()
    if len(words) > 2:
        return " ".join(words[::-1]), " ".join(sorted(words))
    halves, thirds = (split_at(text, display_width(text) // parts) for parts in (2, 3))
    return halves[1] + halves[0], thirds[1] + thirds[0]
