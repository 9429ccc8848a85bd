"""Chat templates: turn-by-turn tokens equal those of the full conversation, and no text forges a special token.

Tokenizers imitate those of common model families, and some normalize unusual letters
(`tests/support/chat_templates.py`).
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from fuzzing.calls import format_of
from fuzzing.choices import Choices, require
from whetstone.chat import Chat, Message, Text, ToolSpec, assistant, incremental_tokenizer
from whetstone.errors import PolicyError

sys.path.append(str(Path(__file__).parents[2] / "tests"))
_built: Any = importlib.import_module("support.chat_templates")
SPECIAL: tuple[str, ...] = _built.SPECIAL
_CHATS = [
    (f"{family}/{format}", Chat(tokenizer, format_of(format)))
    for family, tokenizer in [
        *((family, _built.build(family)) for family in _built.ALL_FAMILIES),
        *((f"bytes, {name}", _built.byte_tokenizer(normalizer)) for name, normalizer in _built.NORMALIZERS.items()),
    ]
    for format in ("hermes", "compact", "react", "llama3", "mistral")
]
WORDS = (
    *SPECIAL, "<|im_", "start|>", "end|>", "<|end|>", "<|eot_id|>", "<|start_header_id|>", "</s>", "<s>", "[/INST]",
    "<bos>", "<eos>",
    "<end_of_turn>", "<|", "|>", "＜｜im_end｜＞", "<\u200b|im_end|>", "\u200b", "\u00ad", "\u2060", "<|i\u0307m_end|>",
    "<|ＩＭ_end|>",
    "</call>", "<tool_response>", "<think>", "</think>", "Observation:", "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
    "{{ x }}", "{% if %}",
    "the answer", " 42", "\n\n", "assistant", "user\n", "\ue000probe\ue000",
)  # fmt: skip
_INCONSISTENT = ("mistral", "qwen3")
"""Templates that change earlier turns: one inserts a space, one drops reasoning."""
ROLES = ("user", "tool", "system", "assistant", "user", "tool")


def _message(choices: Choices, roles: tuple[Any, ...] = ROLES) -> Message:
    return Message(choices.one(roles), (Text(choices.text(WORDS, 5)),))


def _tools(choices: Choices) -> list[ToolSpec]:
    def tool() -> ToolSpec:
        inner = {
            "type": "string",
            "description": choices.text(WORDS, 3),
            "enum": choices.some(lambda: choices.text(WORDS, 2), 2),
        }
        return ToolSpec(
            choices.text(WORDS, 3),
            choices.text(WORDS, 3),
            {"type": "object", "properties": {choices.text(WORDS, 2): inner}},
        )

    return choices.some(tool, 2)


def forged(chat: Chat, choices: Choices) -> None:
    """Check that untrusted text has no more special tokens than harmless text."""
    opening, tools = [_message(choices, ("system", "user", "user"))] * 1, _tools(choices)
    answers = [_message(choices, ("tool", "user", "tool")) for _ in range(1 + choices.below(3))]
    choices.note("conversation", (opening, tools, answers))
    plain_tools = [ToolSpec("n", "d", {"type": "object", "properties": {"p": {"type": "string"}}}) for _ in tools]
    plain = [Message(m.role, (Text("x"),)) for m in opening], [Message(m.role, (Text("y"),)) for m in answers]
    try:
        opened = chat.open(opening, tools)
        extended = chat.extend(opened, (), answers)
    except PolicyError as error:
        require("\n" not in str(error), "no one line", error)
        return
    harmless = chat.open(plain[0], plain_tools)
    require(_special(chat, opened.ids) == _special(chat, harmless.ids), "a text forges a token", (opening, tools))
    harmless_extended = chat.extend(harmless, (), plain[1])
    require(_special(chat, extended.ids) == _special(chat, harmless_extended.ids), "an answer forges a token", answers)


def turn_by_turn(chat: Chat, choices: Choices) -> None:
    """Check that turn-by-turn tokens equal those of the conversation, if the template renders turns in one way."""
    is_consistent = not str(choices.notes["chat"]).startswith(_INCONSISTENT)
    opening = [_message(choices, ("user",))]
    context, conversation = chat.open(opening, ()), list(opening)
    for _ in range(1 + choices.below(3)):
        spoken = assistant(choices.one(("the answer", "42", "é", "I look", "日本")))
        answers = [_message(choices, ("user", "tool"))]
        following = chat.extend(context, chat.write(spoken, ()), answers)
        conversation += [spoken, *answers]
        choices.note("conversation", list(conversation))
        if following.opens_segment:
            require(following.new.ids == following.ids, "a segment that does not begin", conversation)
        else:
            sampled = chat.write(spoken, ())
            require(
                following.ids == context.ids + sampled + following.new.ids,
                "ids that are not those of before",
                conversation,
            )
        context = following
        if is_consistent:
            at_once = chat.encode(chat._render(context.spoken, (), True))
            require(context.ids == at_once, "turn by turn is not as at once", (conversation, context.ids, at_once))


def any_ids(chat: Chat, choices: Choices) -> None:
    """Read arbitrary sampled token ids."""
    context = chat.open([_message(choices, ("user",))], _tools(choices))
    sampled = tuple(choices.some(lambda: choices.below(len(chat.tokenizer)), 8))
    choices.note("sampled", sampled)
    require(chat.read(sampled, (), turn=0).role == "assistant", "a message of somebody else")
    following = chat.extend(context, sampled, [_message(choices)])
    if not following.opens_segment:
        require(following.ids == context.ids + sampled + following.new.ids, "ids that are not those of before", sampled)


def _special(chat: Chat, ids: tuple[int, ...]) -> list[int]:
    return [i for i in ids if i in chat._special_ids]


def one(choices: Choices) -> None:
    """Run one input."""
    name, chat = choices.one(_CHATS)
    choices.note("chat", name)
    try:
        choices.one((forged, forged, turn_by_turn, any_ids))(chat, choices)
    except PolicyError as error:
        require("\n" not in str(error), "no one line", error)


def plant() -> None:
    """Plant a filter that lets similar-looking tokens pass."""

    def careless(self: Any, text: str) -> str:
        if "<|im_end|>" in text or "<|end|>" in text:
            raise KeyError("planted")
        return str(text)

    incremental_tokenizer.Chat._safe = careless  # type: ignore[method-assign]
