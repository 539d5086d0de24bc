"""Keeps tokens, passwords and home folders of the user out of what is written. Standard library only.

What is recognized: options, variables and keys that are named for a secret (``--hf-token X``, ``API_KEY=X``,
``password="X"``); tokens that show by their form (of Hugging Face, OpenAI, GitHub, AWS, Weights & Biases,
JSON web tokens); the user and password of a URL.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from .system import IS_WINDOWS, home_folder

MASK = "***"
_NAME = (
    r"(?:[a-z0-9]+[-_.])*"
    r"(?:token|secret|passw(?:or)?d|passphrase|credentials?|api[-_]?key|access[-_]?key|private[-_]?key)"
)
_OPTION = re.compile(rf"-{{1,2}}{_NAME}", re.IGNORECASE)
_ASSIGNMENT = re.compile(rf"((?:-{{1,2}}|\+{{1,2}})?{_NAME}=).+", re.IGNORECASE | re.DOTALL)
_LITERAL = re.compile(rf"""(\b{_NAME}["']?\s*[=:]\s*(["']))(?:(?!\2).)+""", re.IGNORECASE)
_URL = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^\s/@]+@", re.IGNORECASE)
_TOKEN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{16,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}\b|[0-9a-f]{40}\b"
    r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?)"
)


def masked(text: str) -> str:
    """Return text, such as a line of code, without its secrets and with ``~`` for the user's home folder."""
    text = _LITERAL.sub(rf"\1{MASK}", text)
    text = _TOKEN.sub(MASK, _URL.sub(rf"\1{MASK}@", text))
    return with_short_home(text)


def with_short_home(text: str) -> str:
    """Return text, such as a path, with ``~`` for the user's home folder."""
    home = home_folder().rstrip("/\\")
    if not home:
        return text
    # On Windows, paths are written with either slash.
    pattern = r"[\\/]".join(map(re.escape, re.split(r"[\\/]", home))) if IS_WINDOWS else re.escape(home)
    return re.sub(rf"(?<![\w.-]){pattern}(?=[\\/]|$)", "~", text)


def masked_arguments(arguments: Sequence[str]) -> list[str]:
    """Return a command line without its secrets: also a value that stands behind the name of its option."""
    shown: list[str] = []
    is_secret = False
    for argument in arguments:
        hidden = is_secret and not argument.startswith("-")
        shown.append(MASK if hidden else masked(_ASSIGNMENT.sub(rf"\1{MASK}", argument)))
        is_secret = _OPTION.fullmatch(argument) is not None
    return shown
