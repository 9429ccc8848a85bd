"""Tool call parsing: formats that write tool calls as text and parse them, by their name in recipes."""

from collections.abc import Callable, Mapping

from whetstone.chat.formats.code import Code as Code
from whetstone.chat.formats.compact import Compact as Compact
from whetstone.chat.formats.families import FAMILIES as FAMILIES
from whetstone.chat.formats.gemma import Gemma as Gemma
from whetstone.chat.formats.harmony import Harmony as Harmony
from whetstone.chat.formats.hermes import Hermes as Hermes
from whetstone.chat.formats.json_block import JsonBlock as JsonBlock
from whetstone.chat.formats.llama3 import Llama3 as Llama3
from whetstone.chat.formats.minimax_m3 import MiniMaxM3 as MiniMaxM3
from whetstone.chat.formats.mistral import Mistral as Mistral
from whetstone.chat.formats.named_json import NamedJson as NamedJson
from whetstone.chat.formats.xml_parameters import Parameters as Parameters
from whetstone.chat.formats.pythonic import Pythonic as Pythonic
from whetstone.chat.formats.react import React as React
from whetstone.chat.formats.search_tags import Tags as Tags
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
