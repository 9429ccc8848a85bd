"""HTML of trajectories, groups and runs for notebooks.

Note:
    Texts of models and tools are escaped. The theme of a notebook can differ from that of the browser, so all colors
    are readable on a light and on a dark background.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from whetstone.chat.message import Message

_BOX = "border:1px solid rgba(128,128,128,.35);border-radius:6px;padding:.5em .8em;margin:.3em 0;max-width:60em"
_TEXT = "white-space:pre-wrap;overflow-wrap:anywhere;font-family:monospace;font-size:90%;unicode-bidi:isolate"
_SHADES = {"user": "rgba(59,130,196,.14)", "assistant": "rgba(46,158,107,.14)", "tool": "rgba(217,130,43,.14)"}
_OTHER = "rgba(128,128,128,.12)"
_LONGEST = 4000
"""Maximum number of characters of one message."""


def render_box(title: str, facts: Mapping[str, str], body: str) -> str:
    """Render a titled frame as HTML.

    Args:
        title: Title, as plain text.
        facts: Name → value of facts below the title, as plain text.
        body: Content, as HTML.
    """
    facts_html = " · ".join(f"{escape(name)} <b>{escape(value)}</b>" for name, value in facts.items())
    return f'<div style="{_BOX}"><b>{escape(title)}</b><div style="opacity:.8">{facts_html}</div>{body}</div>'


def render_conversation(messages: Iterable[Message]) -> str:
    """Render messages with their tool calls as HTML, one below the other."""
    parts = []
    for message in messages:
        text = message.text if len(message.text) <= _LONGEST else f"{message.text[:_LONGEST]} …"
        lines = [escape(text)] if text else []
        lines += [f"→ {escape(call.name)}({escape(call.arguments)})" for call in message.tool_calls]
        lines += [f"✗ {escape(what)}" for what in message.malformed]
        shade = _SHADES.get(message.role, _OTHER)
        body = "\n".join(lines)
        parts.append(
            f'<div style="background:{shade};border-radius:4px;padding:.3em .6em;margin:.25em 0">'
            f'<small style="opacity:.7">{escape(message.role)}</small><div style="{_TEXT}">{body}</div></div>'
        )
    return "".join(parts)


def render_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Render a table as HTML; column names and cells are plain text."""
    head = "".join(f'<th style="text-align:left">{escape(name)}</th>' for name in names)
    lines = "".join(
        "<tr>" + "".join(f'<td style="text-align:left">{escape(cell)}</td>' for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"


def render_collapsible(title: str, body: str) -> str:
    """Render a collapsible section as HTML.

    Args:
        title: Title, as plain text.
        body: Content, as HTML.
    """
    return f"<details><summary>{escape(title)}</summary>{body}</details>"
