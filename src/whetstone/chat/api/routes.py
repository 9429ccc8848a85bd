"""Which dialect is spoken at which address?"""

from __future__ import annotations

from collections.abc import Mapping

from whetstone.chat.api.anthropic_messages import MESSAGES
from whetstone.chat.api.openai_chat import CHAT
from whetstone.chat.api.openai_completions import COMPLETIONS
from whetstone.chat.api.openai_responses import RESPONSES
from whetstone.chat.api.protocol import Wire

ROUTES: dict[str, Wire] = {
    "chat/completions": CHAT,
    "completions": COMPLETIONS,
    "responses": RESPONSES,
    "messages": MESSAGES,
}
"""Behind `/v1/`."""


def wire_of(path: str, headers: Mapping[str, str]) -> Wire:
    """The dialect in which a request is refused, whatever it asks for.

    Args:
        headers: With names in small letters.
    """
    of_messages = "/v1/messages" in path or "anthropic-version" in headers
    return MESSAGES if of_messages else CHAT


def model_listed(name: str) -> dict[str, object]:
    """A model as OpenAI's and Anthropic's APIs list it: each client reads its own fields."""
    at = {"created": 0, "created_at": "1970-01-01T00:00:00Z"}
    return {"id": name, "object": "model", "type": "model", "owned_by": "whetstone", "display_name": name, **at}


def models_listed(name: str) -> dict[str, object]:
    """The one model there is, as a list."""
    ends = {"has_more": False, "first_id": name, "last_id": name}
    return {"object": "list", "data": [model_listed(name)], **ends}
