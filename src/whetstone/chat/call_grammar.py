"""Grammars for constrained decoding that guarantee a tool call with valid arguments.

The text around the arguments of a call is extracted from calls that the chat writes, so a tool-call format needs no
code for its grammar. Two layouts are recognized:

    prefix {arguments} suffix                       the arguments are one JSON object
    prefix (opening value closing)* suffix          each parameter has tags; the value is JSON or plain text

Grammars are in the Lark dialect of llguidance. A token of the vocabulary that the text contains, such as `<tool_call>`,
is referenced by its id.

Note:
    Plain text ends at the first occurrence of the closing tag, so the grammar excludes that tag from the value. In a
    JSON string a marker of the format is legal; `CallGrammar.excluded` lists the markers that a parser could mistake
    for the end of the call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Any

from whetstone.chat.formats import FORMATS
from whetstone.chat.incremental_tokenizer import Chat
from whetstone.chat.message import Message, ToolCall, ToolSpec
from whetstone.chat.protocol import ToolCallFormat
from whetstone.chat.template_probe import common_prefix
from whetstone.errors import PolicyError

JSON_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""Options of llguidance for JSON with the spacing of Python's `json.dumps`.

With flexible whitespace, a model could write spaces until its token limit.
"""
_SAMPLES: Mapping[str, Any] = {
    "string": "qzvaluezq",
    "integer": 48151,
    "number": 48151.5,
    "boolean": True,
    "array": ["qzvaluezq"],
    "object": {"qzkeyzq": "qzvaluezq"},
    "null": None,
}
"""Sample argument of each JSON type, recognizable in the text of a call."""
_OBJECT = re.compile(r'\{\s*"qzkeyzq"\s*:\s*"qzvaluezq"\s*\}')
_ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment"}
)
_DATA = frozenset({"const", "enum", "default", "examples"})
"""JSON Schema keywords whose values are data, not schemas."""
_FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
"""String formats of JSON Schema that llguidance enforces."""
_DEFINITIONS = ("$defs", "definitions")
_DEEPEST = 16
"""Maximum number of references that are followed from one schema."""


class CallGrammarError(ValueError):
    """Tool for which no grammar can guarantee a call with valid arguments.

    The text names the tool and the reason.
    """


@dataclass(frozen=True, slots=True)
class CallGrammar:
    """Grammar of a turn that makes at least one tool call."""

    lark: str
    """Lark grammar of the turn's text, without the token that ends the turn."""
    stop_id: int
    """Id of the token that ends the turn."""
    token_ids: frozenset[int]
    """Ids of the vocabulary's tokens that `lark` refers to."""
    excluded: tuple[str, ...]
    """Texts that the free parts of arguments must not contain, because the parser reads them as syntax."""


@dataclass(frozen=True, slots=True)
class _Call:
    """Text around the arguments of one tool's call, and the grammar rule of the arguments."""

    sample: ToolCall
    """Sample call from whose text the parts were extracted."""
    prefix: str
    """Text of a turn before the arguments."""
    sample_text: str
    """Arguments of the sample call as written; empty if the tool has no parameters."""
    suffix: str
    """Text of a turn after the arguments."""
    arguments: str
    """Right-hand side of the grammar rule for the arguments."""
    terminals: tuple[str, ...] = ()
    """Lines that define the terminals to which `arguments` refers."""

    @property
    def is_json(self) -> bool:
        """Whether the arguments are written as one JSON object."""
        return self.arguments.startswith("%json")

    def with_suffix(self, suffix: str) -> _Call:
        """Return the same call, split so that its suffix is `suffix`.

        A call whose text does not end with `suffix` is returned unchanged.
        """
        text = self.prefix + self.suffix
        return replace(self, prefix=text.removesuffix(suffix), suffix=suffix) if text.endswith(suffix) else self


@dataclass(frozen=True, slots=True)
class _Repetition:
    """Layout of a turn that makes several calls."""

    calls: Sequence[_Call]
    """One call per tool, all with the same suffix."""
    starts: int
    """Number of leading characters of each prefix that are written only before the first call."""
    between: str
    """Text between the arguments of a call and the rest of the next call's prefix."""


def call_grammar(
    chat: Chat, tools: Sequence[ToolSpec], *, offered: Sequence[ToolSpec], is_single: bool = False
) -> CallGrammar:
    """Return the grammar of a turn that calls one of the tools, or several.

    Args:
        chat: Chat whose tool-call format and tokenizer the model uses.
        tools: Tools that the turn may call.
        offered: Tools that the prompt lists.
        is_single: Whether the turn makes exactly one call.

    Raises:
        CallGrammarError: If the format, or the schema of a tool, does not permit a grammar.
    """
    writer = _Writer(chat, offered)
    calls: Sequence[_Call] = [_call_of(writer, tool, number) for number, tool in enumerate(tools)]
    repetition = None if is_single else _find_repetition(writer, calls)
    if repetition is None:
        starts = 0
        head = [f"start: {' | '.join(f'c{n} {writer.literal(call.suffix)}' for n, call in enumerate(calls))}"]
    else:
        calls, starts, between = repetition.calls, repetition.starts, writer.literal(repetition.between)
        opening, closing = writer.literal(calls[0].prefix[:starts]), writer.literal(calls[0].suffix)
        head = [f"start: {opening} call ({between} call)* {closing}"]
        head.append(f"call: {' | '.join(f'c{n}' for n in range(len(calls)))}")
    rules = [f"c{n}: {writer.literal(call.prefix[starts:])} {call.arguments}" for n, call in enumerate(calls)]
    lines = [*head, *rules, *(line for call in calls for line in call.terminals)]
    # in tags, the rule of a value excludes its own closing tag
    signs = chat.format.markers if all(call.is_json for call in calls) else ()
    excluded = tuple(sign for sign in dict.fromkeys((*signs, chat.dialect.thought_signs[1])) if len(sign) > 2)
    return CallGrammar("\n".join(lines) + "\n", writer.stop_id, frozenset(writer.used), excluded)


def format_name(format: ToolCallFormat) -> str:
    """Return the name of a tool-call format in recipes.

    A custom format gives the name of its class.
    """
    for name, make in FORMATS.items():
        known = make()
        if known == format or (type(known) is type(format) and not is_dataclass(known)):
            return name
    return type(format).__name__


class _Writer:
    """Writer of sample turns as text, and of text as Lark literals."""

    def __init__(self, chat: Chat, offered: Sequence[ToolSpec]) -> None:
        self.chat, self.stop_id = chat, -1
        self.used: set[int] = set()
        """Ids of the vocabulary's tokens in all literals that were written so far."""
        self._offered = offered
        added = {str(token.content): id for id, token in chat.tokenizer.added_tokens_decoder.items()}
        self._ids = {text: id for text, id in added.items() if text and chat.encode(text) == (id,)}
        signs = sorted(self._ids, key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(map(re.escape, signs))})" if signs else r"((?!))")

    def write(self, *calls: ToolCall) -> str:
        """Return the text of a turn that makes these calls.

        Raises:
            CallGrammarError: If the format cannot write the calls, or does not read the same calls back.
        """
        name, message = calls[0].name, Message("assistant", (), calls)
        try:
            text, self.stop_id = self.chat.write_turn(message, self._offered)
        except (PolicyError, ValueError) as error:
            raise self.refusal(name, str(error)) from None
        read = self.chat.read((*self.chat.encode(text), self.stop_id), self._offered, turn=0)
        if read.malformed or list(map(_values, read.tool_calls)) != list(map(_values, calls)):
            raise self.refusal(name, "a call is not read back as it was written")
        if any(piece in self._ids and self._ids[piece] in self.chat.stop_ids for piece in self._split.split(text)):
            raise self.refusal(name, "a token that ends the turn is part of the call")
        return text

    def literal(self, text: str) -> str:
        """Return a text as a sequence of Lark literals and token ids."""
        return " ".join(self._literals(text)) or '""'

    def can_split(self, text: str, place: int) -> bool:
        """Return whether a text can be split at a position without cutting a token of the vocabulary."""
        return not any(match.start() < place < match.end() for match in self._split.finditer(text))

    def before_token(self, text: str) -> str:
        """Return the part of a text before its first added token of the vocabulary."""
        return str(self._split.split(text)[0])

    def refusal(self, tool: str, reason: str) -> CallGrammarError:
        """Return the error for a tool whose call cannot be guaranteed, with the reason."""
        name = format_name(self.chat.format)
        return CallGrammarError(f'the tool-call format {name} cannot guarantee a call of "{tool[:40]}": {reason[:200]}')

    def _literals(self, text: str) -> Iterator[str]:
        for piece in self._split.split(text):
            if piece in self._ids:
                self.used.add(self._ids[piece])
                yield f"<[{self._ids[piece]}]>"
            elif piece:
                yield json.dumps(piece, ensure_ascii=False)


def _call_of(writer: _Writer, tool: ToolSpec, number: int) -> _Call:
    sample = ToolCall(tool.name, json.dumps(_SAMPLES["object"]))
    try:
        text = writer.write(sample)
    except CallGrammarError:
        text = ""
    sample_text = _OBJECT.findall(text)
    if len(sample_text) != 1:
        return _tagged_call(writer, tool, number)
    prefix, _, suffix = text.partition(sample_text[0])
    return _Call(sample, prefix, sample_text[0], suffix, f"%json {_json(_closed(tool.parameters))}")


def _tagged_call(writer: _Writer, tool: ToolSpec, number: int) -> _Call:
    """Return the rules of a call whose parameters are written in tags.

    Raises:
        CallGrammarError: If parameters are not written one after another, or the text of a value cannot be restricted
            to the values that its schema permits.
    """
    empty = writer.write(ToolCall(tool.name, "{}"))
    required = set(tool.parameters.get("required") or ())
    if unknown := required - set(tool.properties):
        raise writer.refusal(tool.name, f'the required parameter "{min(unknown)}" has no schema')
    values = {key: _Value(writer, tool, key) for key in tool.properties}
    samples = {key: value.sample for key, value in values.items()}
    texts = {key: writer.write(ToolCall(tool.name, json.dumps({key: sample}))) for key, sample in samples.items()}
    # the earliest place of the parameters keeps each closing tag at the end of its parameter
    place = max((len(empty) - len(_shared_ending(empty, text)) for text in texts.values()), default=len(empty))
    while not all(
        writer.can_split(text, at) for text in texts.values() for at in (place, len(text) + place - len(empty))
    ):
        place += 1
    chunks = {key: text[place : len(text) + place - len(empty)] for key, text in texts.items()}
    sample, sample_text = ToolCall(tool.name, json.dumps(samples)), "".join(chunks.values())
    if writer.write(sample) != empty[:place] + sample_text + empty[place:]:
        raise writer.refusal(tool.name, "its parameters are not written one after another")
    rules: list[str] = []
    terminals: list[str] = []
    for index, (key, chunk) in enumerate(chunks.items()):
        rule, defined = values[key].rule(chunk, f"V{number}_{index}")
        rules.append(rule if key in required else f"({rule})?")
        terminals += defined
    return _Call(sample, empty[:place], sample_text, empty[place:], " ".join(rules), tuple(terminals))


class _Value:
    """Grammar of the value of one parameter in tags.

    Raises:
        CallGrammarError: If the value can be plain text or JSON, or its schema restricts the text.
    """

    def __init__(self, writer: _Writer, tool: ToolSpec, key: str) -> None:
        self._writer, self._tool, self._key = writer, tool, key
        self._schema = tool.properties[key]
        resolved = _resolved(self._schema, tool.parameters)
        self._choices = _choices(resolved)
        kinds = _types(resolved, tool.parameters)
        self._is_text, self._is_boolean = "string" in kinds, kinds == {"boolean"} and self._choices is None
        if not self._is_text:
            self.sample = _SAMPLES[min(kinds, key=list(_SAMPLES).index)]
            return
        self.sample = _SAMPLES["string"]
        if self._choices is not None:
            if not all(isinstance(choice, str) and choice == choice.strip() != "" for choice in self._choices):
                raise self._refusal("strings that start or end with a space, or other types next to strings")
        elif restricting := set(resolved) - _ANNOTATIONS - {"type", *_DEFINITIONS}:
            raise self._refusal(f'the keyword "{min(restricting)}"')
        elif "type" in resolved and kinds != {"string"}:
            raise self._refusal("other types next to strings")

    def rule(self, chunk: str, name: str) -> tuple[str, list[str]]:
        """Return the right-hand side of a parameter's rule, and the lines that define its terminals.

        Args:
            chunk: Text of the parameter with the sample as its value.
            name: Name of the terminal for the value.
        """
        sample_text = self.sample if isinstance(self.sample, str) else json.dumps(self.sample)
        if sample_text not in chunk and self._is_boolean:  # some templates write True as Python does
            sample_text = str(self.sample)
        opening, separator, closing = chunk.partition(sample_text)
        if not separator or sample_text in closing:
            raise self._refusal("no text that is JSON")
        value, defined, rest = (
            ('("True" | "False")', [], closing) if sample_text == "True" else self._value(closing, name)
        )
        return f"{self._writer.literal(opening)} {value} {self._writer.literal(rest)}", defined

    def _value(self, closing: str, name: str) -> tuple[str, list[str], str]:
        """Return (symbols of the value, lines that define its terminals, the part of the closing tag that remains)."""
        if not self._is_text:
            root = {word: self._tool.parameters[word] for word in _DEFINITIONS if word in self._tool.parameters}
            return f"%json {_json({**self._schema, **root})}", [], closing
        if self._choices is not None:
            return f"({' | '.join(json.dumps(choice, ensure_ascii=False) for choice in self._choices)})", [], closing
        plain = self._writer.before_token(closing)
        rest, sign = closing[len(plain) :], plain.strip()
        ends = f" {json.dumps(plain, ensure_ascii=False)}" if plain else ""
        if rest and not sign:  # a token ends the text
            return name, [f"{name}: /(?s:.*)/{ends}"], rest
        if not sign:
            raise self._refusal("no closing tag")
        body = f"{name}_TEXT: /(?s:.*)/ & ~/(?s:.*){_escaped(sign)}(?s:.*)/"
        return name, [f"{name}: {name}_TEXT{ends}", body], rest

    def _refusal(self, reason: str) -> CallGrammarError:
        return self._writer.refusal(self._tool.name, f'the parameter "{self._key}" has {reason}')


def _find_repetition(writer: _Writer, calls: Sequence[_Call]) -> _Repetition | None:
    """Return the layout of a turn with several calls.

    None if the template writes one call per turn, or if the text between two calls varies.
    """
    first = next((call for call in calls if call.sample_text), None)
    if first is None or not writer.chat.dialect.several:
        return None
    # the end of a call without arguments belongs to no argument: it is the end of the others
    calls = [call if call.sample_text else call.with_suffix(first.suffix) for call in calls]
    try:
        two, three = (writer.write(*[first.sample] * count).split(first.sample_text) for count in (2, 3))
    except CallGrammarError:
        return None
    if len(two) != 3 or three != [two[0], two[1], two[1], two[2]] or (two[0], two[2]) != (first.prefix, first.suffix):
        return None
    own = len(_shared_ending(two[1], first.prefix))
    while not (writer.can_split(first.prefix, len(first.prefix) - own) and writer.can_split(two[1], len(two[1]) - own)):
        own -= 1
    starts = len(first.prefix) - own
    is_named = first.sample.name in first.prefix[starts:]
    fits = all(call.prefix[:starts] == first.prefix[:starts] and call.suffix == first.suffix for call in calls)
    return _Repetition(calls, starts, two[1][: len(two[1]) - own]) if is_named and fits else None


def _resolved(declared: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema with its references followed, and without alternatives that permit only null."""
    schema: Mapping[str, Any] = declared if isinstance(declared, Mapping) else {}
    for _ in range(_DEEPEST):
        rest = {word: value for word, value in schema.items() if word not in ("$ref", "anyOf", "oneOf", "allOf")}
        branches = [one for word in ("anyOf", "oneOf", "allOf") for one in schema.get(word) or ()]
        branches = [one for one in branches if not isinstance(one, Mapping) or one.get("type") != "null"]
        if isinstance(schema.get("$ref"), str):
            branches.append(_referenced(schema["$ref"], root))
        if len(branches) != 1 or not isinstance(branches[0], Mapping):
            break
        schema = {**branches[0], **rest}
    kinds = schema.get("type")
    if isinstance(kinds, list) and len(others := [kind for kind in kinds if kind != "null"]) == 1:
        return {**schema, "type": others[0]}
    return schema


def _referenced(pointer: str, root: Mapping[str, Any]) -> Any:
    target: Any = root
    for step in pointer.removeprefix("#").strip("/").split("/"):
        target = target.get(step) if isinstance(target, Mapping) else None
    return target


def _choices(schema: Mapping[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    return list(schema["enum"]) if isinstance(schema.get("enum"), list) and schema["enum"] else None


def _types(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int = 0) -> set[str]:
    """Return the JSON types that a resolved schema permits.

    The result is all types if the schema does not restrict them.
    """
    choices, kinds = _choices(schema), schema.get("type")
    if choices is not None:
        return {_type_of(choice) for choice in choices}
    if kinds:
        return {str(kind) for kind in (kinds if isinstance(kinds, list) else [kinds])} & set(_SAMPLES) or set(_SAMPLES)
    branches = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(branches, list) and depth < _DEEPEST:
        return {kind for one in branches for kind in _types(_resolved(one, root), root, depth + 1)}
    return set(_SAMPLES)


def _type_of(value: Any) -> str:
    return next((kind for kind, sample in _SAMPLES.items() if type(sample) is type(value)), "null")


def _closed(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a tool's arguments in which undeclared properties are forbidden.

    A schema with keywords beyond the basic ones is returned as it is: it may permit other properties.
    """
    schema = {**parameters, "type": "object"}
    if "properties" in schema and set(schema) <= _ANNOTATIONS | {
        "type",
        "properties",
        "required",
        "$schema",
        *_DEFINITIONS,
    }:
        schema["additionalProperties"] = False
    return schema


def _json(schema: Mapping[str, Any]) -> str:
    return json.dumps({"x-guidance": JSON_SPACING, **_without_formats(schema)})


def _without_formats(schema: Any) -> Any:
    """Return a schema without the string formats that llguidance does not know, such as `password`.

    They are annotations and restrict nothing.
    """
    if isinstance(schema, list):
        return [_without_formats(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    known = {
        word: value
        for word, value in schema.items()
        if word != "format" or not isinstance(value, str) or value in _FORMATS
    }
    return {word: value if word in _DATA else _without_formats(value) for word, value in known.items()}


def _shared_ending(one: str, other: str) -> str:
    return common_prefix(one[::-1], other[::-1])[::-1]


def _escaped(text: str) -> str:
    """Return a text as a regular expression of Rust that matches it literally, without a slash."""
    return "".join(sign if sign.isalnum() else f"\\x{{{ord(sign):X}}}" for sign in text)


def _values(call: ToolCall) -> tuple[str, Any]:
    return call.name, json.loads(call.arguments)
