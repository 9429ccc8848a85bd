"""What a tool returns is shown to a model and written to disk; here it becomes text that is only that.

Control characters move cursors, hide what is there and break files; lone surrogates cannot be written at all. What
looks like a token of a chat template is no matter of this file: the template's own side breaks it up (`chat/`).
"""

from __future__ import annotations

import re

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_UNSEEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"  # control characters but tabs and line breaks
    "\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks that turn the direction of writing
    "\ufff9-\ufffb\ufffe\uffff\U000e0000-\U000e007f"  # annotations, non-characters, invisible tags
    "\ud800-\udfff]"
)


def plain(text: str) -> str:
    """The text without control characters, escape sequences and what cannot be written; each shows as `�`.

    Line breaks of any kind become one, tabs stay, escape sequences that colour a terminal go without a trace.
    """
    text = _ESCAPES.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return _UNSEEN.sub("\ufffd", text)
