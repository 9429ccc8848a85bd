"""Scanner shared by the tool-call formats: splits a turn into text and blocks of calls.

A format passes the pattern that opens a block and a function that parses one. The scanner continues after every block,
so that later blocks, the text between them, and a valid call next to a malformed one are all returned.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from whetstone.chat.formats.json_call import build_message
from whetstone.chat.message import Message, ToolCall

_SHORTEST_CUT = 4
_MAX_MALFORMED = 16

Found = ToolCall | str
"""A call, or the reason why a block is malformed."""


def scan_turn(
    text: str,
    opening: re.Pattern[str],
    parse_block: Callable[[re.Match[str]], tuple[Sequence[Found], int]],
    markers: Sequence[str] = (),
) -> Message:
    """Read a turn.

    Args:
        opening: Pattern at which a block of calls starts.
        parse_block: Receives the match of `opening`; returns (its calls and errors, position of its end).
        markers: Texts that occur in blocks only. A marker in the remaining text is the rest of a malformed block: it is
            reported, and the text ends before it.
    """
    pieces: list[str] = []
    blocks: list[Found] = []
    position = malformed = 0
    while (match := opening.search(text, position)) is not None:
        if malformed >= _MAX_MALFORMED:  # each can require a search to the end of the turn
            blocks.append(f"a turn with {malformed} malformed blocks of calls is not read further")
            text = text[: match.start()]
            break
        pieces.append(text[position : match.start()])
        calls, end = parse_block(match)
        blocks += calls
        malformed += any(isinstance(call, str) for call in calls)
        position = max(end, match.end(), match.start() + 1)
    pieces.append(text[position:])
    content = join_text(pieces)
    places = {marker: place for marker in markers if (place := content.find(marker)) >= 0}
    if places:
        marker = min(places, key=lambda each: (places[each], -len(each)))
        rest = content[places[marker] :]
        blocks.append(f"{marker} does not start or end a call that can be read: {rest[:60]!r}")
        content = content[: places[marker]].rstrip("\n")
    elif cut := cut_marker(content, markers):
        blocks.append(f"the turn ends within {cut}")
    return build_message(content, blocks)


def cut_marker(content: str, markers: Sequence[str]) -> str:
    """Return the marker of which the text ends with at least four characters, but not all; empty if there is none."""
    end = content.rstrip()
    for marker in markers:
        if any(end.endswith(marker[:count]) for count in range(len(marker) - 1, _SHORTEST_CUT - 1, -1)):
            return marker
    return ""


def skip_block(text: str, position: int, closings: Sequence[str], opening: re.Pattern[str]) -> int:
    """Return where to continue after a malformed block: after its closing, at the next opening, or at the end."""
    ends = [place + len(closing) for closing in closings if closing and (place := text.find(closing, position)) >= 0]
    following = opening.search(text, position)
    return min([*ends, *([following.start()] if following is not None else [])], default=len(text))


def join_text(pieces: Sequence[str]) -> str:
    """Join the text around blocks; line breaks next to a block belong to the block."""
    if len(pieces) == 1:
        return pieces[0]
    first = pieces[0].rstrip("\n")
    others = [piece.strip("\n") for piece in pieces[1:]]
    return "\n".join([*([first] if first else []), *(piece for piece in others if piece.strip())])


def split_markers(*forms: str) -> tuple[str, ...]:
    """Return the markers in the fixed text of a form, one per tag or token.

    `"</function>\\n</tool_call>"` contains two markers, which no vocabulary has as one token.
    """
    pieces = [piece for form in forms for piece in re.split(r"\{\w+\}", form)]
    signs = [sign for piece in pieces for sign in re.split(r"(?<=[>\]])|\s+|(?=<)|(?=\[[A-Z])", piece)]
    return tuple(dict.fromkeys(sign for sign in signs if len(sign) > 2 and sign[0] in "<["))


def pattern_of(form: str) -> str:
    """Return the pattern of fixed text in which whitespace is optional around and between tags."""
    tags = [tag for tag in re.split(r"\s+|(?=<)", form.strip()) if tag]
    return r"\s*".join(map(re.escape, tags))
