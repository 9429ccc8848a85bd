"""Which tool-call format fits a model? The one its own template was written for, and its training with it.

A template that speaks of no tools fits any format, since tools are told of in the system message: then it is Hermes,
which most models with templates of ChatML have seen.
"""

from __future__ import annotations

_SIGNS = {
    "[TOOL_CALLS]": "mistral",
    "<|python_tag|>": "llama3",
    "Environment: ipython": "llama3",
    "<tool_call>": "hermes",
}
"""What a template writes around calls."""


def fitting_format(template: object) -> str:
    """A built-in format's name.

    Args:
        template: Of the tokenizer: a text, several by name, or None.
    """
    return next((name for sign, name in _SIGNS.items() if sign in str(template)), "hermes")
