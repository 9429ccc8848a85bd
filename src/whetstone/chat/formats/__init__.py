"""Ways to write tool calls as text, by the name a recipe gives them."""

from whetstone.chat.formats.compact import Compact
from whetstone.chat.formats.hermes import Hermes

FORMATS = {"compact": Compact, "hermes": Hermes}

__all__ = ["FORMATS", "Compact", "Hermes"]
