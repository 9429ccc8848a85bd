"""Sanitization of tool output: text without control characters, for the model and for files.

Control characters move cursors, hide text and break files; lone surrogates cannot be encoded. Special tokens of a chat
template are escaped elsewhere (`chat/`).
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


def sanitize_text(text: str) -> str:
    """Replace control characters and characters that cannot be encoded by `�`, in the output of a tool.

    Line breaks of all kinds become line feeds, tabs are kept, and terminal escape sequences are removed.
    """
    text = _ESCAPES.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return _UNSEEN.sub("\ufffd", text)
