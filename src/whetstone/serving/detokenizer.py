"""Incremental detokenizer of a streamed answer, which holds back text that may become a marker.

Note:
    Incomplete characters, markers of tool calls and stop strings must not be sent, since later tokens complete them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from whetstone.chat import Chat
from whetstone.chat.api.requests import CompletionRequest
from whetstone.chat.formats import Tags

Show = Callable[[str], None]
"""Callback that receives each piece of text to send."""
_THOUGHT_MARKERS = ("<think>", "</think>")


class StreamedText:
    """Converts the sampled tokens of one answer into streamed text; the engine calls `on_tokens`.

    Args:
        show: Callback for text; None: not streamed. The answer may still end after the first call.
        hidden: Whether the answer starts inside thinking.
        calls: Text with which a call starts, if it is not a marker of the format; None: a call starts with the name of
            its tool, so that nothing is sent before the turn is complete.
    """

    def __init__(
        self, chat: Chat, request: CompletionRequest, show: Show | None, *, hidden: bool, calls: str | None = ""
    ) -> None:
        hidden = hidden or (calls is None and bool(request.tools))
        self._chat, self._request, self._show = chat, request, None if hidden else show
        signs = (
            ()
            if request.prompt is not None
            else (
                *(chat.format.markers if request.tools else ()),
                *(f"<{tool.name}>" for tool in request.tools if isinstance(chat.format, Tags)),
                *chat.frame_signs,
                *_THOUGHT_MARKERS,
            )
        )
        self._markers = (*signs, *request.stop, *((calls,) if calls and request.tools else ()))
        self._marker_prefixes = frozenset(sign[:count] for sign in self._markers for count in range(1, len(sign) + 1))
        self._longest = max(map(len, self._markers), default=0)
        self._text, self._num_sent = "", 0
        self._from, self._to = 0, 0
        """Tokens before `_to` are in the text; tokens from `_from` on decide the spelling of later ones."""
        self._checked = 0
        self.end: int | None = None
        """Number of tokens at the end of the first call, if only one call is permitted."""

    @property
    def sent_text(self) -> str:
        """Return the text that was sent to the client so far."""
        return self._text[: self._num_sent]

    def on_tokens(self, tokens: Sequence[int]) -> bool:
        """Send the text that is complete so far; return whether sampling should stop. See `OnTokens`."""
        if self._show is not None:
            self._decode(tokens)
            self._send(self._show)
        return self.is_complete(tokens)

    def is_complete(self, tokens: Sequence[int]) -> bool:
        """Return whether the only permitted tool call is complete, so that sampling can stop."""
        if (
            self._request.one_call
            and self._request.tools
            and self.end is None
            and self._has_complete_call(tokens) is not None
        ):
            counts = range(self._checked + 1, len(tokens) + 1)
            self.end = next((count for count in counts if self._has_complete_call(tokens[:count])), None)
        self._checked = len(tokens)
        return self.end is not None

    def _has_complete_call(self, tokens: Sequence[int]) -> bool | None:
        """Return whether a call is complete and nothing follows it; None if no call has started."""
        read = self._chat.read(tokens, self._request.tools, turn=0)
        return (bool(read.tool_calls) and not read.malformed) if read.tool_calls or read.malformed else None

    def _decode(self, tokens: Sequence[int]) -> None:
        decode = self._chat.tokenizer.decode
        before = str(decode(tokens[self._from : self._to], skip_special_tokens=False))
        after = str(decode(tokens[self._from :], skip_special_tokens=False))
        if len(after) > len(before) and not after.endswith("\ufffd"):
            self._text += after[len(before) :]
            self._from, self._to = self._to, len(tokens)

    def _send(self, show: Show) -> None:
        new = self._text[self._num_sent :]
        ends = [at for sign in self._markers if (at := new.find(sign)) >= 0]
        if ends:
            # the marker can be a part of the opening of a call, of which nothing is shown
            self._show, safe = None, min(new[: min(ends)], self._hold_back(new), key=len)
        else:
            safe = self._hold_back(new)
        if safe:
            self._num_sent += len(safe)
            show(safe)

    def _hold_back(self, new: str) -> str:
        """Return the part of new text before the start of a possible marker or stop string."""
        for count in range(min(len(new), self._longest), 0, -1):
            if new[-count:] in self._marker_prefixes:
                return new[:-count]
        return new
