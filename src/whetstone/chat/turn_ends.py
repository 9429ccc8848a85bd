"""Detection of the tokens that end a turn of the model, by rendering turns.

Note:
    Some templates write the token that ends an answer also within a turn, for example after a thought. A model that is
    stopped there can never call after a thought, so such a token is no stop token if another one ends the turn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from whetstone.chat.message import ToolCall
from whetstone.chat.template_probe import CALLED, SAID, THOUGHT, TOOL, Dialect, Prober, TurnParts, common_prefix
from whetstone.errors import PolicyError

_PROBE = "\ue000probe\ue000"

Render = Callable[[Any, Any, bool], str]
"""Function (messages and turns of the model, tools, whether to add the generation prompt) → rendered text."""


@dataclass(frozen=True, slots=True)
class TurnEnds:
    """Tokens and text with which turns of the model end."""

    answer: int
    """Id of the token that the template writes after a turn without calls."""
    call: int
    """Id of the token that the template writes after a turn with calls."""
    stop_ids: frozenset[int]
    """Ids of all tokens at which generation of a turn stops."""
    text_end: str
    """Text that the template writes between an answer and the token that ends the turn; empty for most templates."""
    thought_end_separates_calls: bool
    """Whether the template writes the closing tag of thoughts also between two calls."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokenizer functions and special tokens that the detection needs."""

    encode: Callable[[str], tuple[int, ...]]
    """Function from text to token ids, without special tokens added."""
    added: Mapping[int, str]
    """Text of each added token by id."""
    special: frozenset[int]
    """Ids of added tokens that are special, and not ordinary words."""
    eos: int | None
    """Id of the end-of-sequence token; None if the tokenizer has none."""


def find_turn_ends(named: str, dialect: Dialect, render: Render, prober: Prober, vocabulary: Vocabulary) -> TurnEnds:
    """Find the tokens and text with which a chat template ends turns of the model.

    Args:
        named: Name of the model in error messages.
        dialect: Properties of the template.
        render: Renderer of messages and turns.
        prober: Renderer of probe conversations.
        vocabulary: Tokens of the tokenizer.

    Raises:
        PolicyError: If no special token ends a turn.
    """
    finder = _Finder(named, dialect, render, prober, vocabulary)
    answering, calling = finder.find_closings()
    ends = {*answering, *calling, vocabulary.eos} - {None}
    inner = finder.find_inner_tokens({end for end in ends if end is not None})
    others = {end for end in ends if end is not None} - inner
    call = calling[0]
    if call in inner and others:
        call = vocabulary.eos if vocabulary.eos is not None and vocabulary.eos in others else answering[0]
    stops = (others | set(answering)) if others else {end for end in ends if end is not None}
    texts = [vocabulary.added[stop] for stop in stops if stop in vocabulary.added]
    return TurnEnds(answering[0], call, frozenset(stops), finder.find_text_end(texts), finder.separates_calls())


def end_pattern(text_end: str) -> re.Pattern[str]:
    """Return a regular expression for `TurnEnds.text_end` at the end of a text.

    All tags but the last are optional.
    """
    tags = re.findall(r"<[^<>]*>|\[[^\[\]]*\]|[^\s<\[]+", text_end) or [""]
    optional = "".join(f"(?:{re.escape(tag)}\\s*)?" for tag in tags[:-1])
    return re.compile(rf"(?<!\s)\s*{optional}{re.escape(tags[-1])}\s*\Z")


@dataclass(frozen=True, slots=True)
class _Finder:
    named: str
    dialect: Dialect
    render: Render
    prober: Prober
    vocabulary: Vocabulary

    def find_closings(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the tokens that the template writes after an answer, and after a turn with calls.

        The first token of each is used.

        Raises:
            PolicyError: If no special token ends a turn.
        """
        messages = ({"role": "user", "content": "x"}, TurnParts("", "", _PROBE))
        alone = self.render(messages, (), False).rpartition(_PROBE)[2]
        following = self.render((*messages, {"role": "user", "content": "x"}), (), True).rpartition(_PROBE)[2]
        # some templates close the last turn once more (Phi-3), or with another token (gpt-oss)
        closed = answering = self._ends(common_prefix(alone, following), alone) or self._ends(alone, alone)
        if not answering:  # the token that starts the next message ends the turn
            answering = self._first_special(following)
        if not answering:
            raise PolicyError(
                f"{self.named}: the chat template does not close the "
                "assistant's turn with a special token, so the model could never end one"
            )
        if not self.dialect.writes_calls:
            return answering, answering
        call = ToolCall(TOOL.name, json.dumps({"text": CALLED}))
        called = TurnParts("", "", "", (replace(call, id=self.dialect.id_of(call, 0)),))
        answer = {"role": "tool", "tool_call_id": called.calls[0].id, "name": TOOL.name, "content": "x"}
        tail = self.render((messages[0], called), (TOOL,), False).rpartition(CALLED)[2]
        ids = [i for i in self.vocabulary.encode(tail) if i in self.vocabulary.added]
        first = self._first_special(tail)
        if first and first != answering and self.vocabulary.added[first[0]] in self.render(messages[:1], (), False):
            return answering, first  # the token that starts the next message
        if answering[0] in ids:
            return answering, answering
        after = self.render((messages[0], called, answer), (TOOL,), True).rpartition(CALLED)[2]
        following = after.removeprefix(tail).lstrip()
        speaker = self._first_special(following)
        if not closed and speaker and following.startswith(self.vocabulary.added[speaker[0]]):
            return answering, speaker  # the token that starts the result
        return answering, (self._ends(tail, tail) or speaker or answering)[:1]

    def find_text_end(self, stops: Sequence[str]) -> str:
        """Return the text with special tokens that the template writes between an answer and a stop token.

        It is empty for most templates.

        Args:
            stops: Texts of the stop tokens.
        """
        rendered = self.render(({"role": "user", "content": "x"}, TurnParts("", "", _PROBE)), (), False)
        after = rendered.rpartition(_PROBE)[2]
        end = min((at for stop in stops if (at := after.find(stop)) >= 0), default=0)
        between = after[:end].strip()
        return between if any(i in self.vocabulary.added for i in self.vocabulary.encode(between)) else ""

    def separates_calls(self) -> bool:
        """Return whether the template writes the closing tag of thoughts between two calls without a thought."""
        opening, closing = self.dialect.thought_signs
        if not (self.dialect.writes_calls and opening.strip() and closing):
            return False
        call = ToolCall(TOOL.name, json.dumps({"text": CALLED, "count": 3}))
        calls = tuple(replace(call, id=self.dialect.id_of(call, index)) for index in range(2))
        text = self.prober.render_turn(
            self.dialect.convert_turn(TurnParts("", "", "", calls)), self.dialect.shows_tools
        )
        rest = text.partition(CALLED)[2]
        return closing in rest.rpartition(CALLED)[0]

    def find_inner_tokens(self, ends: set[int]) -> set[int]:
        """Return the candidates for stop tokens that the template also writes within a turn.

        A model that is stopped by such a token could never call after a thought, or call twice.

        Args:
            ends: Ids of the candidates.
        """
        inner: set[int] = set()
        call = ToolCall(TOOL.name, json.dumps({"text": CALLED, "count": 3}))
        for thought, content, count in ((THOUGHT, "", 1), ("", SAID, 1), ("", "", 2), (THOUGHT, SAID, 0)):
            if count and not self.dialect.writes_calls:
                continue
            calls = tuple(replace(call, id=self.dialect.id_of(call, index)) for index in range(count))
            text = self.prober.render_turn(
                self.dialect.convert_turn(TurnParts("", thought, content, calls)), self.dialect.shows_tools
            )
            last = max(text.rfind(mark) for mark in (SAID, CALLED))
            if last >= 0 and all(mark in text for mark in (thought, content, *(CALLED for _ in calls))):
                inner |= ends.intersection(self.vocabulary.encode(text[:last]))
        return inner

    def _ends(self, after: str, alone: str) -> tuple[int, ...]:
        """Return the token that ends a turn.

        It is the end-of-sequence token if present, else the last token of the rendered turn, else the first.
        """
        ids = [i for i in self.vocabulary.encode(after) if i in self.vocabulary.added]
        if self.vocabulary.eos in ids:
            return (self.vocabulary.eos,)
        last = next((i for i in reversed(ids) if alone.rstrip().endswith(self.vocabulary.added[i])), None)
        return (last,) if last is not None else tuple(ids[:1])

    def _first_special(self, text: str) -> tuple[int, ...]:
        return tuple(i for i in self.vocabulary.encode(text) if i in self.vocabulary.special)[:1]
