"""What must not leave this machine: secrets, and paths that say whose machine it is."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from etymon.errors import EtymonError

SECRETS = {
    "a token of the hub": r"\bhf_[A-Za-z0-9]{20,}",
    "a key of OpenAI": r"\bsk-[A-Za-z0-9_-]{20,}",
    "a token of GitHub": r"\b(gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,})",
    "a token of GitLab": r"\bglpat-[\w-]{20,}",
    "a key of Amazon": r"\bA(KI|SI)A[0-9A-Z]{16}\b",
    "a key of Google": r"\bAIza[\w-]{35}",
    "a token of Slack": r"\bxox[abprs]-[\w-]{10,}",
    "a private key": r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    "a password in an address": r"://[^\s/:@\"']+:[^\s/:@\"']+@",
    # A number alone is the id of a word in some vocabulary.
    "a password": r"(?i)(password|passwd|api[_-]?key|secret|auth[_-]?token)"
    r"\\?[\"']?\s*[:=]\s*\\?[\"'](?!\d+\b)\S{8,}",
}
"""By the forms that their makers give them."""
ABSOLUTE = re.compile(
    # Not after a letter (and/or), a scheme (https://), a dot (../data) or another slash.
    r"(?<![\w.:/\\~-])/(?:[\w.+@=-]+/)+[\w.+@=-]*"
    # A drive of Windows, with its own slashes, which JSON doubles, or with others.
    r"|(?<!\w)[A-Za-z]:(?:\\{1,2}[\w .+@=-]*\w)+|(?<!\w)[A-Za-z]:/(?:[\w.+@=-]+/)*[\w.+@=-]+"
)
SECRET_NAMES = re.compile(r"TOKEN|SECRET|PASSWORD|API_?KEY|CREDENTIAL", re.IGNORECASE)
LEARNT = ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "added_tokens.json", "token_counts.json")
"""Files whose words come from text: a path among them is a word that somebody wrote."""


def without_paths(text: str) -> str:
    """The text with every absolute path shortened to its last part."""
    return ABSOLUTE.sub(lambda match: re.split(r"[\\/]+", match[0].rstrip("\\/"))[-1], text)


def own_words(token: str | None = None) -> dict[str, str]:
    """What this machine alone has, and what it is: values of variables that hold secrets, the user's folder,
    and the token that is used now."""
    # The folder of root, or of a container, says nothing of anybody.
    words = {"the user's folder": str(Path.home())} if len(Path.home().parts) > 2 else {}
    for name, value in os.environ.items():
        # Shorter ones would be found by chance.
        if SECRET_NAMES.search(name) and len(value) >= 12:
            words[f"the value of {name}"] = value
    return words | ({"your token of the hub": token} if token else {})


def refuse_confidential(files: Mapping[str, Path | bytes], words: Mapping[str, str]) -> None:
    """Refuses files that hold secrets, or absolute paths where nobody's text is. The weights are searched for
    `words` alone: in numbers everything else is found by chance."""
    for name, content in files.items():
        # Whole: a word that lies across two parts of a file would not be found.
        data = content if isinstance(content, bytes) else content.read_bytes()
        for kind, word in words.items():
            if word.encode() in data:
                raise _refusal(name, kind)
        if name.endswith((".safetensors", ".png")):
            continue
        text = data.decode("utf-8", errors="replace")
        for kind, pattern in SECRETS.items():
            if match := re.search(pattern, text):
                # Its beginning alone: messages end in logs.
                raise _refusal(name, f"what looks like {kind} ({match[0][:6]}...)")
        is_learnt = name.rpartition("/")[2] in LEARNT or name.endswith(".model")
        if not is_learnt and (match := ABSOLUTE.search(text)):
            raise _refusal(name, f"a path of this machine ({match[0]})")


def _refusal(name: str, content: str) -> EtymonError:
    return EtymonError(f"{name} holds {content}: take it out there, and push again; nothing was uploaded")
