"""Generated catalog of similar tools, with example requests.

A tool is a verb and an object, such as `cancel_invoice`. Requests replace half of the words by synonyms that no
description contains, such as "call off the bill 17"; the example requests of a tool contain them. The tasks are in
`tasks/tool_requests.py`.
"""

from __future__ import annotations

from whetstone.chat.message import ToolSpec
from whetstone.plugins import OptionError

VERBS = {
    "create": "set up", "delete": "throw out", "fetch": "look up", "update": "change", "cancel": "call off",
    "approve": "accept", "reject": "turn down", "schedule": "find a date for", "archive": "put away",
    "export": "download", "share": "pass on", "rename": "give another title to", "verify": "double check",
    "estimate": "make a guess about", "translate": "put into French", "summarize": "give me the gist of",
    "duplicate": "copy", "restore": "bring back", "lock": "close off", "announce": "tell everyone of",
    "label": "tag", "print": "put on paper", "count": "tell me how many there are like", "encrypt": "scramble",
    "inspect": "take a close view of",
}  # fmt: skip
"""Verb in names and descriptions → words of a request."""
OBJECTS = {
    "invoice": "bill", "vehicle": "car", "employee": "worker", "customer": "client", "shipment": "parcel",
    "appointment": "meeting", "contract": "agreement", "apartment": "flat", "physician": "doctor",
    "medication": "pills", "lecture": "class", "recipe": "dish", "photograph": "picture", "film": "movie",
    "journey": "trip", "garment": "clothes", "device": "gadget", "password": "login", "salary": "wage",
    "warehouse": "depot",
}  # fmt: skip
"""Object in names and descriptions → word of a request."""
MAX_TOOLS = len(VERBS) * len(OBJECTS)
_PARAMETERS = {
    "type": "object",
    "properties": {"number": {"type": "integer", "description": "Record number."}},
    "required": ["number"],
}


def generate_tools(count: int) -> list[tuple[ToolSpec, tuple[str, ...]]]:
    """Return `count` tools with their example requests; the first 500 combinations of a verb and an object.

    Raises:
        OptionError: If `count` is not from 1 to 500.
    """
    if not 1 <= count <= MAX_TOOLS:
        raise OptionError("generated", f"must be from 1 to {MAX_TOOLS}, got {count}")
    pairs = [(verb, thing) for thing in OBJECTS for verb in VERBS]
    return [
        (
            ToolSpec(f"{verb}_{thing}", f"{verb.capitalize()} {thing} records.", _PARAMETERS),
            (f"I want to {VERBS[verb]} this {OBJECTS[thing]}", f"{VERBS[verb]} one {OBJECTS[thing]}"),
        )
        for verb, thing in pairs[:count]
    ]
