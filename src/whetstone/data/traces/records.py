"""Records of a trace file: the messages of one model call or conversation, or the reason why they cannot be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class RefusalReason(StrEnum):
    """Reasons why a conversation cannot be trained."""

    UNREADABLE = "unreadable record"
    NO_MESSAGES = "no messages"
    UNKNOWN_ROLE = "unknown role"
    UNSUPPORTED = "unsupported content"
    TRUNCATED = "truncated content"
    ARGUMENTS = "arguments that are not a JSON object"
    NO_ANSWER = "no answer of the assistant"
    FIRST_ROLE = "starts with the assistant or a tool"
    MISSING_RESULT = "call without result"
    MISSING_CALL = "result without call"
    MISSING_SCHEMA = "missing tool schema"
    UNDECLARED = "tool name not declared"
    INVALID = "invalid conversation"
    SECRET = "contains a secret"
    DUPLICATE = "duplicate"
    TOO_LONG = "longer than the context"
    TEMPLATE = "changed by the chat template"
    NOT_TRAINED = "all turns are excluded from training"


REMEDIES: Mapping[RefusalReason, str] = {
    RefusalReason.NO_MESSAGES: "record the content of messages, and export the model calls with inputs and outputs",
    RefusalReason.UNKNOWN_ROLE: (
        "roles are system, user, assistant and tool; in a CSV file `--role customer=user` names the role of a value"
    ),
    RefusalReason.TRUNCATED: "raise the limits of attributes or of output tokens in the recording program",
    RefusalReason.MISSING_RESULT: "export the model calls that follow the tool call, too",
    RefusalReason.MISSING_SCHEMA: "record the declarations of tools, or pass them with `--tools FILE`",
    RefusalReason.UNDECLARED: "declare the tool with `--tools FILE`",
    RefusalReason.SECRET: "replace secrets with `--secrets redact`, or keep them with `--secrets keep`",
    RefusalReason.TOO_LONG: "raise `policy.context_length` of the recipe",
}
"""What to do about a reason, if the import has a remedy."""


@dataclass(frozen=True, slots=True)
class ImportProblem:
    """Reason why a conversation cannot be trained, with its detail."""

    reason: RefusalReason
    """Reason, under which the conversation is counted."""
    detail: str = ""
    """Place in the record and value, such as `messages[3]: search`; can be empty."""

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else str(self.reason)


class TraceError(Exception):
    """Part of a record cannot be read. The reader of the record stores the problem and continues.

    Args:
        reason: Reason under which the record is counted.
        detail: Place in the record and value.
    """

    def __init__(self, reason: RefusalReason, detail: str = "") -> None:
        super().__init__(detail)
        self.problem = ImportProblem(reason, detail)


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a trace file: a conversation, a model call, or a record of another kind."""

    where: str
    """File with line or row, and the id of the span, observation or run."""
    messages: Sequence[Mapping[str, Any]] = ()
    """Messages in the OpenAI format: all inputs of a model call, followed by its output."""
    tools: Sequence[Any] | None = None
    """Declarations of tools; None if the record has none."""
    problem: ImportProblem | None = None
    """First problem of the record."""
    group: str = ""
    """Key of a trace or session; empty if the record belongs to none."""
    is_fallback: bool = False
    """Whether the record sums up a trace. It is read only if the trace has no records of model calls."""
    other: str = ""
    """Kind of a record without a conversation, such as `execute_tool span`; empty for all other records."""
    marks: Mapping[str, Any] | None = None
    """Columns of the row that exclude turns from training, such as `weight`."""
    unread: Sequence[str] = ()
    """Paths of keys that nothing reads, such as `messages[].mood`."""
