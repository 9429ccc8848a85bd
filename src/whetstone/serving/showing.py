"""What of an answer under way may be shown, and is it over? Text grows token by token, and only what is new is read.

Easy to get wrong: half a letter, half a sign of a call or half a stop must not be shown, since what comes next decides
what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from whetstone.chat import Chat
from whetstone.chat.api.asked import Asked
from whetstone.chat.formats import Tags

Show = Callable[[str], None]
"""Told of each piece of text that may be shown."""
_SIGNS = ("<think>", "</think>")


class Shown:
    """An answer, as its client sees it come.

    Args:
        show: None: nobody watches; it may be over all the same, behind the first call.
        hidden: Whether it begins in a thought.
        calls: Text with which a call starts, if it is not a marker of the format; None: a call starts with the name of
            its tool, so nothing is shown before the turn is complete.
    """

    def __init__(self, chat: Chat, asked: Asked, show: Show | None, *, hidden: bool, calls: str | None = "") -> None:
        hidden = hidden or (calls is None and bool(asked.tools))
        self._chat, self._asked, self._show = chat, asked, None if hidden else show
        signs = (
            ()
            if asked.prompt is not None
            else (
                *(chat.format.markers if asked.tools else ()),
                *(f"<{tool.name}>" for tool in asked.tools if isinstance(chat.format, Tags)),
                *chat.frame_signs,
                *_SIGNS,
            )
        )
        self._held = (*signs, *asked.stop, *((calls,) if calls and asked.tools else ()))
        self._halves = frozenset(sign[:count] for sign in self._held for count in range(1, len(sign) + 1))
        self._longest = max(map(len, self._held), default=0)
        self._text, self._said = "", 0
        self._from, self._to = 0, 0
        """Tokens before the second are in the text; those from the first on say how the next ones are spelled."""
        self._checked = 0
        self.ends: int | None = None
        """How many tokens there are where the first call is over and one alone may be made."""

    @property
    def shown(self) -> str:
        """What the client was shown."""
        return self._text[: self._said]

    def on_tokens(self, tokens: Sequence[int]) -> bool:
        """See `OnTokens`."""
        if self._show is not None:
            self._read(tokens)
            self._tell(self._show)
        return self.over(tokens)

    def over(self, tokens: Sequence[int]) -> bool:
        """Whether nothing more is to come, whatever the model would say."""
        if self._asked.one_call and self._asked.tools and self.ends is None and self._calls(tokens) is not None:
            counts = range(self._checked + 1, len(tokens) + 1)
            self.ends = next((count for count in counts if self._calls(tokens[:count])), None)
        self._checked = len(tokens)
        return self.ends is not None

    def _calls(self, tokens: Sequence[int]) -> bool | None:
        """Whether a call is over there, and nothing else begun; None: none is begun."""
        read = self._chat.read(tokens, self._asked.tools, turn=0)
        return (bool(read.tool_calls) and not read.malformed) if read.tool_calls or read.malformed else None

    def _read(self, tokens: Sequence[int]) -> None:
        decode = self._chat.tokenizer.decode
        before = str(decode(tokens[self._from : self._to], skip_special_tokens=False))
        after = str(decode(tokens[self._from :], skip_special_tokens=False))
        if len(after) > len(before) and not after.endswith("\ufffd"):
            self._text += after[len(before) :]
            self._from, self._to = self._to, len(tokens)

    def _tell(self, show: Show) -> None:
        new = self._text[self._said :]
        ends = [at for sign in self._held if (at := new.find(sign)) >= 0]
        if ends:
            # the marker can be a part of the opening of a call, of which nothing is shown
            self._show, safe = None, min(new[: min(ends)], self._without_halves(new), key=len)
        else:
            safe = self._without_halves(new)
        if safe:
            self._said += len(safe)
            show(safe)

    def _without_halves(self, new: str) -> str:
        """Up to what may become a sign."""
        for count in range(min(len(new), self._longest), 0, -1):
            if new[-count:] in self._halves:
                return new[:-count]
        return new
