"""Ways to write tool calls as text, by the name a recipe gives them."""

from collections.abc import Callable, Mapping

from whetstone.chat.formats.code import Code
from whetstone.chat.formats.compact import Compact
from whetstone.chat.formats.families import FAMILIES
from whetstone.chat.formats.gemma import Gemma
from whetstone.chat.formats.harmony import Harmony
from whetstone.chat.formats.hermes import Hermes
from whetstone.chat.formats.json_block import JsonBlock
from whetstone.chat.formats.llama3 import Llama3
from whetstone.chat.formats.minimax_m3 import MiniMaxM3
from whetstone.chat.formats.mistral import Mistral
from whetstone.chat.formats.named_json import NamedJson
from whetstone.chat.formats.parameters import Parameters
from whetstone.chat.formats.pythonic import Pythonic
from whetstone.chat.formats.react import React
from whetstone.chat.formats.tags import Tags
from whetstone.chat.protocol import ToolCallFormat

FORMATS: Mapping[str, Callable[[], ToolCallFormat]] = {
    "code": Code,
    "compact": Compact,
    "harmony": Harmony,
    "hermes": Hermes,
    "lfm2": Pythonic,
    "llama3": Llama3,
    "minimax_m3": MiniMaxM3,
    "mistral": Mistral,
    "react": React,
    "tags": Tags,
    **FAMILIES,
}

__all__ = [
    "FAMILIES",
    "FORMATS",
    "Code",
    "Compact",
    "Gemma",
    "Harmony",
    "Hermes",
    "JsonBlock",
    "Llama3",
    "MiniMaxM3",
    "Mistral",
    "NamedJson",
    "Parameters",
    "Pythonic",
    "React",
    "Tags",
]
