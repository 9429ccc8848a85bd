"""Detection of the tool-call format of a model from its chat template.

If the template writes calls, the format that reads them back is chosen. Otherwise the template may show tools and
mention markers of a format, or the tokenizer may have them as tokens. Without any evidence the format is Hermes, which
most models with ChatML templates have seen; any format works then, because tools are described in the system message.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whetstone.chat.formats import FORMATS
from whetstone.chat.rendering import Variable, template_renderer
from whetstone.chat.template_probe import Prober, mentions_format, parse_mismatch, reads_escapes
from whetstone.errors import PolicyError

CHAT_SETTINGS = "chat.json"
"""Name of the file in a model folder with the tool-call format and template variables of its training."""
_NO_MODEL_WRITES = ("code", "compact", "react", "tags")
"""Formats that a model follows from a description in the prompt; no chat template writes calls in them."""


def detect_tool_call_format(tokenizer: Any, variables: Mapping[str, Variable] | None = None) -> str:
    """Return the name of the built-in tool-call format that fits a tokenizer.

    The result is `hermes` without evidence.

    Args:
        tokenizer: Hugging Face tokenizer, with or without a chat template.
        variables: Additional template variables by name.
    """
    if not tokenizer.chat_template:
        return "hermes"
    try:
        prober = Prober(template_renderer(tokenizer, variables))
    except PolicyError:  # the error is raised when a chat is created
        return "hermes"
    names = [name for name in FORMATS if name not in _NO_MODEL_WRITES]
    formats = {name: FORMATS[name]() for name in names}
    missed = {name: parse_mismatch(prober, formats[name]) for name in names}
    written = sorted((name for name in names if missed[name] is not None), key=lambda name: missed[name] or 0)
    best = [name for name in written if missed[name] == missed[written[0]]]
    if len(best) > 1:
        written = sorted(best, key=lambda name: not reads_escapes(prober, formats[name]))
    vocabulary = {str(token.content) for token in tokenizer.added_tokens_decoder.values()}
    hinted = [name for name in names if mentions_format(prober, formats[name], vocabulary)]
    return next(iter([*written, *hinted]), "hermes")


def save_chat_settings(folder: Path, format: str, variables: Mapping[str, Variable]) -> None:
    """Write the tool-call format and template variables of a model to `chat.json` in its folder."""
    settings = {"format": format, "variables": dict(variables)}
    (folder / CHAT_SETTINGS).write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")


def load_chat_settings(folder: Path) -> tuple[str, dict[str, Variable]]:
    """Read the tool-call format and template variables from `chat.json` in a model folder.

    Returns:
        (name of the format, template variables); `auto` and no variables if the file does not exist.

    Raises:
        PolicyError: If the file is not valid JSON, or lacks a key.
    """
    path = folder / CHAT_SETTINGS
    if not path.is_file():
        return "auto", {}
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return str(stored["format"]), dict(stored["variables"])
    except (ValueError, KeyError, TypeError) as error:
        raise PolicyError(f"{path}: is damaged ({type(error).__name__}); delete it to detect the format") from None
