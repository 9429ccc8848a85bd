"""How do messages become tokens without ever re-tokenising what the model said?

    ids of turn t+1  =  ids of turn t  +  sampled ids  +  ids of the new messages as the template shows them

The sampled ids are the record. What the template puts behind them is found by rendering the
conversation with and without the new messages and taking the difference, so any template works
unchanged. Where the first rendering is not the beginning of the second, the template has rewritten
history (Qwen3 drops earlier thinking) and a new segment opens with everything rendered afresh.

Easy to get wrong: encode(decode(ids)) is often not ids; and a tool result that contains
`<|im_end|>` must not end the turn, so such look-alikes in foreign text are broken up first.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError

from whetstone.chat.message import Image, Message, Text, ToolSpec, system
from whetstone.chat.protocol import ToolCallFormat
from whetstone.chat.template import ChatTemplate
from whetstone.errors import PolicyError

Spoken = tuple[dict[str, str], ...]
"""Messages as the template reads them: role and content, nothing else."""

_HALF = re.compile("[\ud800-\udfff]")
_PROBE = "\ue000probe\ue000"  # private-use characters: no template and no text contains them


@dataclass(frozen=True, slots=True)
class Context:
    """All that the model has in view, and what of it is new."""

    ids: tuple[int, ...]
    """[T] everything, ready to be continued by the model."""
    new: tuple[int, ...]
    """[T'] what stands behind the last sampled token; all of `ids` where `opens_segment`."""
    opens_segment: bool
    spoken: Spoken
    """The same as messages, the model's own as the raw text it produced."""


class Chat:
    """One tokenizer's template and one tool-call format: messages ⇄ tokens.

    Raises:
        PolicyError: The tokenizer has no chat template, or one that cannot be used: it fails, takes more time or memory
            than it may, drops what the user says, has no generation prompt, or never closes the model's turn.
    """

    def __init__(self, tokenizer: Any, format: ToolCallFormat) -> None:
        self.tokenizer, self.format = tokenizer, format
        self._named = str(getattr(tokenizer, "name_or_path", "") or "tokenizer")
        if not getattr(tokenizer, "chat_template", None):
            raise PolicyError(
                f"{self._named}: the tokenizer has no chat template; set `chat_template` in its tokenizer_config.json"
            )
        try:
            self._template = ChatTemplate(tokenizer.get_chat_template())
        except (TemplateError, ValueError) as error:
            where = f"line {error.lineno}: " if isinstance(error, TemplateSyntaxError) else ""
            raise PolicyError(f"{self._named}: its chat template fails: {where}{_short(error)}") from None
        special = [str(token.content) for token in tokenizer.added_tokens_decoder.values()]
        look_alikes = sorted({*special, *format.markers}, key=len, reverse=True)
        # words are in there, too, where a tokenizer was made with some of its own: those are text
        self._special_ids = frozenset(i for i, token in tokenizer.added_tokens_decoder.items() if token.special)
        self._look_alike = re.compile("|".join(map(re.escape, look_alikes)))
        self._closing = self._tried()
        closing_ids = self.encode(self._closing)
        ends = set(closing_ids[:1]) | {tokenizer.eos_token_id}
        self.stop_ids: frozenset[int] = frozenset(i for i in ends if i is not None)
        """A turn is over when the model draws one of these."""
        if not closing_ids or closing_ids[0] not in tokenizer.added_tokens_decoder:
            raise PolicyError(
                f"{self._named}: the chat template does not close the "
                "assistant's turn with a special token, so the model could never end one"
            )
        self._knows_system = self._accepts_system()

    def __reduce__(self) -> tuple[type[Chat], tuple[Any, ToolCallFormat]]:
        """Another process compiles the template itself."""
        return Chat, (self.tokenizer, self.format)

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Context:
        """The context an episode begins with: the tools on offer, the opening messages, the model's turn."""
        spoken = self._with_tools(
            self._to_whom_it_knows(self._foreign(messages)), self.format.describe(self._declared(tools))
        )
        ids = self.encode(self._render(spoken, True))
        return Context(ids, ids, True, spoken)

    def extend(self, context: Context, sampled: Sequence[int], messages: Sequence[Message]) -> Context:
        """The context after the model said `sampled` and the environment answered with `messages`."""
        ended = bool(sampled) and sampled[-1] in self.stop_ids
        said = self.tokenizer.decode(sampled[:-1] if ended else sampled, skip_special_tokens=False)
        before = (*context.spoken, {"role": "assistant", "content": said})
        after = (*before, *self._foreign(messages))
        so_far, whole = self._render(before, False), self._render(after, True)
        if not whole.startswith(so_far):
            # the template rewrote history; what the model said stands there as text, its own tokens broken up
            cleared = tuple(
                replace_content(m, self._break_special(m["content"])) if m["role"] == "assistant" else m for m in after
            )
            ids = self.encode(self._render(cleared, True))
            return Context(ids, ids, True, after)
        new = self.encode(self._closing + whole[len(so_far) :])
        if ended:
            new = new[1:]  # the sampled stop token closed the turn itself
        return Context((*context.ids, *sampled, *new), new, False, after)

    def read(self, sampled: Sequence[int], tools: Sequence[ToolSpec], *, turn: int) -> Message:
        """The model's tokens as a message; call ids are unique within the episode."""
        ended = bool(sampled) and sampled[-1] in self.stop_ids
        text = self.tokenizer.decode(sampled[:-1] if ended else sampled, skip_special_tokens=False)
        message = self.format.read(text, tools)
        calls = tuple(replace(call, id=f"call_{turn}_{i}") for i, call in enumerate(message.tool_calls))
        return replace(message, tool_calls=calls)

    def write(self, message: Message, tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """A message as the tokens a model would have sampled for it, end of turn included."""
        return (*self.encode(self.format.write(message, tools)), self.encode(self._closing)[0])

    def encode(self, text: str) -> tuple[int, ...]:
        """A text as tokens, nothing added; half a letter, which no tokenizer reads, is read as `�`."""
        return tuple(self.tokenizer.encode(_HALF.sub("\ufffd", text), add_special_tokens=False))

    def _tried(self) -> str:
        """What the template puts behind the model's turn.

        Raises:
            PolicyError: It fails, or leaves something out that a conversation needs.
        """
        asked = ({"role": "user", "content": _PROBE},)
        said = ({"role": "user", "content": "x"}, {"role": "assistant", "content": _PROBE})
        opened, unopened, whole = self._render(asked, True), self._render(asked, False), self._render(said, False)
        if _PROBE not in opened:
            raise PolicyError(f"{self._named}: its chat template does not show what the user says")
        before, _, behind = whole.partition(_PROBE)
        header = before.removeprefix(self._render(said[:1], True))
        if opened == unopened and header != before and header.strip():
            raise PolicyError(
                f"{self._named}: its chat template has no generation prompt (add_generation_prompt changes nothing): "
                f"the model would be asked without {header.strip()!r} in front of its answer"
            )
        return behind

    def _to_whom_it_knows(self, spoken: Spoken) -> Spoken:
        """What the system says, said by the user where the template knows no system."""
        if self._knows_system or len(spoken) < 2 or [m["role"] for m in spoken[:2]] != ["system", "user"]:
            return spoken
        return (replace_content(spoken[1], f"{spoken[0]['content']}\n\n{spoken[1]['content']}"), *spoken[2:])

    def _render(self, spoken: Spoken, generation_prompt: bool) -> str:
        """The messages as the template writes them.

        Raises:
            PolicyError: It fails, or refuses them.
        """
        try:
            return self._template.render(
                spoken, add_generation_prompt=generation_prompt, special=self.tokenizer.special_tokens_map
            )
        except TemplateError as error:
            raise PolicyError(f"{self._named}: its chat template fails: {_short(error)}") from error

    def _foreign(self, messages: Sequence[Message]) -> Spoken:
        """Messages from outside, as the format shows them, with every look-alike of a special token broken up."""
        safe = [replace(message, content=(Text(self._safe(_in_text(message))),)) for message in messages]
        return tuple({"role": m.role, "content": m.text} for m in self.format.results(safe))

    def _declared(self, tools: Sequence[ToolSpec]) -> Sequence[ToolSpec]:
        """Tools as they may be told of: names, texts and schemas come from outside as messages do."""
        if not self._breaks("\n".join(json.dumps(tool.to_openai(), ensure_ascii=False) for tool in tools)):
            return tools
        return [
            ToolSpec(self._safe(tool.name), self._safe(tool.description), self._safe_in(tool.parameters))
            for tool in tools
        ]

    def _safe_in(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._safe(value)
        if isinstance(value, Mapping):
            return {self._safe(str(key)): self._safe_in(inner) for key, inner in value.items()}
        return [self._safe_in(inner) for inner in value] if isinstance(value, list | tuple) else value

    def _breaks(self, text: str) -> bool:
        """Whether the text holds a look-alike of a special token, or what the tokenizer takes for one."""
        return bool(self._look_alike.search(text)) or not self._special_ids.isdisjoint(self.encode(text))

    def _safe(self, text: str) -> str:
        """The text with every look-alike of a special token broken up, however the tokenizer reads it.

        Raises:
            PolicyError: No way to write it was found in which the tokenizer sees no special token.
        """
        # some tokenizers read other letters as the same: full-width signs, or nothing where there is a zero-width space
        folded = unicodedata.normalize("NFKC", text)
        spaced = self._look_alike.sub(lambda match: " ".join(match.group()), folded)
        for candidate in (self._break_special(text), self._break_special(folded), spaced):
            if self._special_ids.isdisjoint(self.encode(candidate)):
                return candidate
        raise PolicyError("a text from outside holds what the tokenizer takes for its own special tokens")

    def _break_special(self, text: str) -> str:
        """A zero-width space behind the first character: a person reads the same, the tokenizer does not."""
        return self._look_alike.sub(lambda match: match.group()[0] + "\u200b" + match.group()[1:], text)

    def _with_tools(self, spoken: Spoken, description: str) -> Spoken:
        if not description:
            return spoken
        if spoken and spoken[0]["role"] == "system":
            return (replace_content(spoken[0], f"{spoken[0]['content']}\n\n{description}"), *spoken[1:])
        if self._knows_system:
            return ({"role": "system", "content": system(description).text}, *spoken)
        return (replace_content(spoken[0], f"{description}\n\n{spoken[0]['content']}"), *spoken[1:])

    def _accepts_system(self) -> bool:
        """Some templates (Gemma) refuse or drop a system message; tools then go to the first user message."""
        try:
            shown = self._render(({"role": "system", "content": _PROBE}, {"role": "user", "content": "x"}), True)
        except PolicyError:  # refusing is all it can mean here
            return False
        return _PROBE in shown


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _in_text(message: Message) -> str:
    """What a policy that reads text alone is shown.

    Raises:
        PolicyError: Somebody asks about an image, which it cannot see; that a tool has made one can be said.
    """
    if message.role != "tool" and any(isinstance(part, Image) for part in message.content):
        raise PolicyError("the message holds an image, and this policy reads text only")
    shown = ""
    for part in message.content:
        shown += part.text if isinstance(part, Text) else "\n[image]" if shown else "[image]"
    return shown


def replace_content(message: dict[str, str], content: str) -> dict[str, str]:
    """The same message saying something else."""
    return {**message, "content": content}
