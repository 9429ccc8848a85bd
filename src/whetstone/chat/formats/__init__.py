"""Ways to write tool calls as text, by the name a recipe gives them."""

from whetstone.chat.formats.code import Code
from whetstone.chat.formats.compact import Compact
from whetstone.chat.formats.hermes import Hermes
from whetstone.chat.formats.llama3 import Llama3
from whetstone.chat.formats.mistral import Mistral
from whetstone.chat.formats.react import React
from whetstone.chat.formats.tags import Tags

FORMATS = {
    "code": Code,
    "compact": Compact,
    "hermes": Hermes,
    "llama3": Llama3,
    "mistral": Mistral,
    "react": React,
    "tags": Tags,
}

__all__ = ["FORMATS", "Code", "Compact", "Hermes", "Llama3", "Mistral", "React", "Tags"]
