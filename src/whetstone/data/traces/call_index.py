"""Model calls of one conversation: finds the calls that a later call repeats, so that each output is trained once.

A trace has one record per model call, and each call repeats all messages before it. A call is part of another one if
all of its messages, output included, are the first messages of the other. Only the longest calls are imported.

Note:
    Only digests of messages are stored, so that memory does not depend on their length. Reasoning is ignored in the
    comparison, since many programs do not send it back; it is restored from the call that wrote it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from whetstone.data.traces.records import Record


@dataclass(slots=True)
class CallIndex:
    """Index of the model calls of all files, by digests of their messages. Filled in a first pass over the files."""

    leaves: dict[bytes, list[int]] = field(default_factory=dict)
    """Digest of the messages of a call that no other call repeats → numbers of the calls with these messages."""
    thoughts: dict[bytes, str] = field(default_factory=dict)
    """Digest of the messages up to an output → reasoning of the output."""
    _prefixes: set[bytes] = field(default_factory=set)
    _groups: dict[int, bytes] = field(default_factory=dict)
    _tools: set[int] = field(default_factory=set)
    _fallbacks: set[int] = field(default_factory=set)
    _called: set[bytes] = field(default_factory=set)
    _problems: set[tuple[bytes, str]] = field(default_factory=set)
    _unread: set[int] = field(default_factory=set)

    def add(self, number: int, record: Record) -> None:
        """Add the model call of one record.

        Args:
            number: Number of the record, counted over all files.
            record: The record.
        """
        group = _digest(b"", record.group)
        if record.is_fallback:
            self._fallbacks.add(number)
        elif record.group:
            self._called.add(group)
        self._groups[number] = group
        if not record.messages:
            key = (group, str(record.problem and record.problem.reason))
            if not record.group or key not in self._problems:
                self._problems.add(key)
                self._unread.add(number)
            return
        *prefixes, last = chain_digests(record.messages, b"fallback" if record.is_fallback else b"")
        thought = record.messages[-1].get("reasoning_content")
        if thought and not record.is_fallback:
            self.thoughts.setdefault(last, str(thought))
        if record.tools:
            self._tools.add(number)
        self._prefixes.update(prefixes)
        for digest in prefixes:
            self.leaves.pop(digest, None)
        if last in self._prefixes:
            return
        numbers = self.leaves.setdefault(last, [])
        repeated = next((k for k, other in enumerate(numbers) if self._groups[other] == group), None)
        if repeated is None:
            numbers.append(number)
        elif number in self._tools and numbers[repeated] not in self._tools:
            numbers[repeated] = number

    def select_records(self) -> set[int]:
        """Return the numbers of the records to import: calls that no longer call repeats, and unreadable records."""
        chosen = {*self._unread, *(number for numbers in self.leaves.values() for number in numbers)}
        return {number for number in chosen if not self.is_replaced(number)}

    def is_replaced(self, number: int) -> bool:
        """Return whether a record is the summary of a trace whose model calls are also in the files."""
        return number in self._fallbacks and self._groups[number] in self._called

    def restore_thoughts(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return messages with missing reasoning restored from the calls whose outputs they are."""
        restored = []
        for message, digest in zip(messages, chain_digests(messages), strict=True):
            thought = self.thoughts.get(digest) if message["role"] == "assistant" else None
            is_missing = thought and not message.get("reasoning_content") and "</think>" not in str(message["content"])
            restored.append({**message, "reasoning_content": thought} if is_missing else dict(message))
        return restored


def chain_digests(messages: Sequence[Mapping[str, Any]], digest: bytes = b"") -> Iterator[bytes]:
    """Yield the digest of the messages up to each message, that message included."""
    for message in messages:
        digest = _digest(digest, json.dumps(_content_of(message), sort_keys=True))
        yield digest


def _content_of(message: Mapping[str, Any]) -> list[Any]:
    """Return the values in which two records of one message agree: ids and reasoning can differ."""
    text = str(message.get("content") or "")
    text = text.rpartition("</think>")[2] if message["role"] == "assistant" else text
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return [message["role"], text.strip(), [[call["name"], _value_of(call["arguments"])] for call in calls]]


def _value_of(arguments: str) -> Any:
    with suppress(ValueError, RecursionError):
        return json.loads(arguments)
    return arguments


def _digest(before: bytes, text: str) -> bytes:
    return blake2b(before + text.encode("utf-8", "surrogatepass"), digest_size=12).digest()
