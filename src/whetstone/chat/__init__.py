"""Messages, tool-call formats, and the exact conversion from messages to tokens and back."""

from typing import TYPE_CHECKING

from whetstone.lazy_imports import export_lazily

if TYPE_CHECKING:
    from whetstone.chat.openai_client import ChatEndpoint as ChatEndpoint, Completion as Completion
    from whetstone.chat.detect_format import detect_tool_call_format as detect_tool_call_format
    from whetstone.chat.formats import FORMATS as FORMATS
    from whetstone.chat.incremental_tokenizer import Chat as Chat, Context as Context
    from whetstone.chat.message import (
        Image as Image,
        Message as Message,
        Text as Text,
        ToolCall as ToolCall,
        ToolSpec as ToolSpec,
        assistant as assistant,
        system as system,
        tool_result as tool_result,
        user as user,
    )
    from whetstone.chat.protocol import ToolCallFormat as ToolCallFormat

__getattr__, __dir__ = export_lazily(__name__)
