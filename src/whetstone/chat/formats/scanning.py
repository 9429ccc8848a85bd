"""Scanner that splits the text of a turn into plain text and blocks of calls, shared by the tool-call formats.

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
"""Parsed call, or the reason why a block of calls is malformed."""


def scan_turn(
    text: str,
    opening: re.Pattern[str],
    parse_block: Callable[[re.Match[str]], tuple[Sequence[Found], int]],
    markers: Sequence[str] = (),
) -> Message:
    """Parse the text of a turn into an assistant message with text, calls and malformed calls.

    After 16 malformed blocks, the rest of the turn is not parsed.

    Args:
        text: Text of the turn.
        opening: Pattern at which a block of calls starts.
        parse_block: Function from the match of `opening` to (calls and errors of the block, position of its end).
        markers: Texts that occur only in blocks. A marker in the remaining text is the rest of a malformed block: it is
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
    """Return the marker that the end of a text cuts off after at least four characters.

    The result is empty if there is none.
    """
    end = content.rstrip()
    for marker in markers:
        if any(end.endswith(marker[:count]) for count in range(len(marker) - 1, _SHORTEST_CUT - 1, -1)):
            return marker
    return ""


def skip_block(text: str, position: int, closings: Sequence[str], opening: re.Pattern[str]) -> int:
    """Return the position at which scanning continues after a malformed block.

    It is the first of: the end of a closing marker, the next opening, the end of the text.

    Args:
        text: Text of the turn.
        position: Position within the malformed block.
        closings: Closing markers of a block.
        opening: Pattern at which a block starts.
    """
    ends = [place + len(closing) for closing in closings if closing and (place := text.find(closing, position)) >= 0]
    following = opening.search(text, position)
    return min([*ends, *([following.start()] if following is not None else [])], default=len(text))


def join_text(pieces: Sequence[str]) -> str:
    """Return the text around blocks of calls, joined.

    Line breaks next to a block belong to the block.
    """
    if len(pieces) == 1:
        return pieces[0]
    first = pieces[0].rstrip("\n")
    others = [piece.strip("\n") for piece in pieces[1:]]
    return "\n".join([*([first] if first else []), *(piece for piece in others if piece.strip())])


def split_markers(*forms: str) -> tuple[str, ...]:
    r"""Return the markers in the fixed text of forms, one per tag or token.

    `"</function>\n</tool_call>"` contains two markers, because no vocabulary has both as one token.

    Args:
        forms: Texts with placeholders such as `{name}`.
    """
    pieces = [piece for form in forms for piece in re.split(r"\{\w+\}", form)]
    signs = [sign for piece in pieces for sign in re.split(r"(?<=[>\]])|\s+|(?=<)|(?=\[[A-Z])", piece)]
    return tuple(dict.fromkeys(sign for sign in signs if len(sign) > 2 and sign[0] in "<["))


def pattern_of(form: str) -> str:
    """Return a regular expression for fixed text in which whitespace around and between tags is optional."""
    tags = [tag for tag in re.split(r"\s+|(?=<)", form.strip()) if tag]
    return r"\s*".join(map(re.escape, tags))
