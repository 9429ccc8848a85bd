"""Which tool-call format fits a model? The one its own template writes calls in, and its training with it.

A template that writes no calls may still show tools and speak of signs, or the tokenizer have them. Where nothing says
anything, any format fits, since tools are told of in the system message: then it is Hermes, which most models with
templates of ChatML have seen.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whetstone.chat.dialect import Prober, hints, misread, reads_escapes
from whetstone.chat.formats import FORMATS
from whetstone.chat.rendering import Variable, rendered
from whetstone.errors import PolicyError

CHAT_SETTINGS = "chat.json"
"""File of a model folder with the tool-call format and template variables that the model was trained with."""
_NO_MODEL_WRITES = ("code", "compact", "react", "tags")
"""Formats a model learns from what it is told; no template writes calls in them."""


def fitting_format(tokenizer: Any, variables: Mapping[str, Variable] | None = None) -> str:
    """A built-in format's name.

    Args:
        tokenizer: With a chat template, or none yet.
        variables: What the template is given besides.
    """
    if not tokenizer.chat_template:
        return "hermes"
    try:
        prober = Prober(rendered(tokenizer, variables))
    except PolicyError:  # whoever opens a chat with it is told what is wrong
        return "hermes"
    names = [name for name in FORMATS if name not in _NO_MODEL_WRITES]
    made = {name: FORMATS[name]() for name in names}
    missed = {name: misread(prober, made[name]) for name in names}
    written = sorted((name for name in names if missed[name] is not None), key=lambda name: missed[name] or 0)
    best = [name for name in written if missed[name] == missed[written[0]]]
    if len(best) > 1:
        written = sorted(best, key=lambda name: not reads_escapes(prober, made[name]))
    vocabulary = {str(token.content) for token in tokenizer.added_tokens_decoder.values()}
    hinted = [name for name in names if hints(prober, made[name], vocabulary)]
    return next(iter([*written, *hinted]), "hermes")


def save_chat_settings(folder: Path, format: str, variables: Mapping[str, Variable]) -> None:
    """Write the tool-call format and template variables of a model into its folder."""
    settings = {"format": format, "variables": dict(variables)}
    (folder / CHAT_SETTINGS).write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")


def load_chat_settings(folder: Path) -> tuple[str, dict[str, Variable]]:
    """Read the tool-call format and template variables of a model folder; `auto` and none if it stores none.

    Raises:
        PolicyError: The file is damaged.
    """
    path = folder / CHAT_SETTINGS
    if not path.is_file():
        return "auto", {}
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return str(stored["format"]), dict(stored["variables"])
    except (ValueError, KeyError, TypeError) as error:
        raise PolicyError(f"{path}: is damaged ({type(error).__name__}); delete it to detect the format") from None
