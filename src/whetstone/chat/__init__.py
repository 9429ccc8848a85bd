"""Messages, tool-call formats, and the exact way from messages to tokens and back."""

from typing import TYPE_CHECKING

from whetstone.window import window

if TYPE_CHECKING:
    from whetstone.chat.endpoint import ChatEndpoint, Completion
    from whetstone.chat.fitting import fitting_format
    from whetstone.chat.formats import FORMATS
    from whetstone.chat.incremental import Chat, Context
    from whetstone.chat.message import Image, Message, Text, ToolCall, ToolSpec, assistant, system, tool_result, user
    from whetstone.chat.protocol import ToolCallFormat

__getattr__, __dir__ = window(__name__)

__all__ = [
    "FORMATS",
    "Chat",
    "ChatEndpoint",
    "Completion",
    "Context",
    "Image",
    "Message",
    "Text",
    "ToolCall",
    "ToolCallFormat",
    "ToolSpec",
    "assistant",
    "fitting_format",
    "system",
    "tool_result",
    "user",
]
