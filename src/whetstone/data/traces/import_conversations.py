"""Import of conversations from trace files as training data, with a report of which can be trained and why not.

Every record of a file is counted once: as a trained conversation, as a conversation that is refused for a reason, as
part of a longer call, or as a record of another kind. Files are read twice if their records are model calls: once for
the digests of messages, once for the conversations.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whetstone.chat import ToolSpec
from whetstone.data.conversations import Conversation, read_conversation
from whetstone.data.row_readers import Row
from whetstone.data.sensitive import collect_texts, count_sensitive, mask_sensitive, redact_sensitive, redact_texts
from whetstone.data.traces.call_index import CallIndex, chain_digests
from whetstone.data.traces.message_shapes import MessageShapes, read_tools
from whetstone.data.traces.records import ImportProblem, Record, RefusalReason, TraceError
from whetstone.data.traces.text_calls import has_text_calls, read_text_calls
from whetstone.data.traces.trace_formats import TraceFormat
from whetstone.errors import DataError, did_you_mean

MAX_PLACES = 5
"""Maximum number of places that the report lists per reason."""
_PERSONAL = ("e-mail address", "phone number")
_EMPTY_ANSWER = "empty answer"


@dataclass(slots=True)
class ImportOptions:
    """Settings of `whetstone data import`."""

    tools: Sequence[Mapping[str, Any]] | None = None
    """Declarations of tools for records without; None: such records have no tools."""
    secrets: str = "refuse"
    """`refuse` excludes conversations with secrets, `redact` replaces secrets and personal data, `keep` keeps them."""
    check: Callable[[Conversation], ImportProblem | None] | None = None
    """Check of a conversation under the model and chat template of a recipe."""


@dataclass(slots=True)
class ImportReport:
    """Counts of an import: records by outcome, and the first places of each reason for a refusal."""

    records: int = 0
    """Number of records in the files."""
    merged: int = 0
    """Number of model calls whose messages are part of a longer call."""
    other: Counter[str] = field(default_factory=Counter)
    """Kind of records without a conversation → number."""
    trainable: int = 0
    """Number of conversations that can be trained."""
    refused: Counter[RefusalReason] = field(default_factory=Counter)
    """Reason → number of conversations that cannot be trained."""
    places: dict[RefusalReason, list[str]] = field(default_factory=dict)
    """Reason → first places, each with its detail."""
    sensitive: Counter[str] = field(default_factory=Counter)
    """Number of secrets and personal data by kind, in the conversations that are searched."""
    unread: Counter[str] = field(default_factory=Counter)
    """Column or key that nothing reads → number of conversations."""
    text_calls: int = 0
    """Number of conversations whose calls are read from text."""
    repeated_turns: int = 0
    """Number of turns that are context only, because an earlier conversation of the same trace trains them."""

    @property
    def num_conversations(self) -> int:
        """Return the number of conversations, trainable or not."""
        return self.trainable + self.refused.total()

    def count_refusal(self, where: str, problem: ImportProblem) -> None:
        """Count a conversation that cannot be trained, and keep its place if it is among the first of its reason."""
        self.refused[problem.reason] += 1
        places = self.places.setdefault(problem.reason, [])
        if len(places) < MAX_PLACES:
            places.append(mask_sensitive(f"{where}  {problem.detail}".rstrip()))

    def to_json(self) -> dict[str, Any]:
        """Return the counts as JSON values; each reason has its number (`count`) and first places (`first`)."""
        names = ("records", "merged", "trainable", "text_calls", "repeated_turns")
        refused = {
            str(reason): {"count": count, "first": self.places[reason]} for reason, count in self.refused.most_common()
        }
        counts = {name: dict(getattr(self, name)) for name in ("other", "sensitive", "unread")}
        return {name: getattr(self, name) for name in names} | {"refused": refused} | counts


@dataclass(frozen=True, slots=True)
class Imported:
    """Result of importing one conversation: a row of training data, or the reason why there is none."""

    where: str
    """Place in the trace file."""
    problem: ImportProblem | None = None
    """Why the conversation cannot be trained; None if it can."""
    line: bytes | None = None
    """Row of the data file as JSON; None if the conversation cannot be trained."""


class ConversationImporter:
    """Imports the conversations of trace files as rows of training data (`whetstone data import`).

    Args:
        options: Settings of the import.

    Attributes:
        report: Counts, complete when all outcomes are read.
    """

    def __init__(self, options: ImportOptions) -> None:
        self.report = ImportReport()
        self._options = options
        self._seen: dict[bytes, str] = {}

    def read(self, files: Sequence[tuple[Path, TraceFormat]]) -> Iterator[Imported]:
        """Yield the outcome of each conversation, in the order of the files.

        Args:
            files: Files with their formats. Calls of one conversation can be in different files.

        Raises:
            DataError: A file cannot be read at all.
        """
        index = CallIndex()
        number = 0
        for path, trace_format in files:
            if trace_format.has_calls:
                for record in trace_format.read(path):
                    if not record.other:
                        index.add(number, record)
                    number += 1
        chosen = index.select_records()
        number = 0
        trained: dict[str, set[bytes]] = {}
        for path, trace_format in files:
            for record in trace_format.read(path):
                self.report.records += 1
                number += trace_format.has_calls
                if record.other:
                    self.report.other[record.other] += 1
                elif trace_format.has_calls and index.is_replaced(number - 1):
                    self.report.other["summary of a trace"] += 1
                elif trace_format.has_calls and number - 1 not in chosen:
                    self.report.merged += 1
                else:
                    messages = index.restore_thoughts(record.messages) if trace_format.has_calls else record.messages
                    if trace_format.has_calls and record.group and not record.problem:
                        messages = self._exclude_repeated(messages, trained.setdefault(record.group, set()))
                    yield self._import_record(record, messages)

    def _exclude_repeated(self, messages: Sequence[Mapping[str, Any]], trained: set[bytes]) -> list[dict[str, Any]]:
        """Return messages in which turns that an earlier conversation of the trace trains are context."""
        digests = list(chain_digests(messages))
        marked = [
            {**message, "weight": 0} if message["role"] == "assistant" and digest in trained else dict(message)
            for message, digest in zip(messages, digests, strict=True)
        ]
        self.report.repeated_turns += sum(message.get("weight") == 0 for message in marked)
        trained.update(digests)
        return marked

    def _import_record(self, record: Record, messages: Sequence[Mapping[str, Any]]) -> Imported:
        self.report.unread.update(list(record.unread))
        try:
            line = self._convert(record, messages)
        except TraceError as error:
            self.report.count_refusal(record.where, error.problem)
            return Imported(record.where, error.problem)
        self.report.trainable += 1
        return Imported(record.where, line=line)

    def _convert(self, record: Record, messages: Sequence[Mapping[str, Any]]) -> bytes:
        """Return the row of a conversation as JSON.

        Raises:
            TraceError: The conversation cannot be trained.
        """
        tools, problem = record.tools, record.problem
        if problem is None and has_text_calls(messages):
            shapes = MessageShapes()
            messages = read_text_calls(messages, shapes)
            tools, problem = tools or read_tools(shapes.tools), shapes.problem
            self.report.text_calls += problem is None
        declared = tools if tools is not None else self._options.tools
        problem = problem or check_messages(messages, declared or ())
        if problem is not None:
            raise TraceError(problem.reason, problem.detail)
        columns = {"messages": messages, **({"tools": declared} if declared else {}), **(record.marks or {})}
        self._check_sensitive(columns)
        try:
            conversation = read_conversation(Row(record.where, columns))
        except DataError as error:
            raise TraceError(RefusalReason.INVALID, str(error).removeprefix(f"{record.where}  ")) from None
        if not conversation.get_trained_turns(lambda *_: True):
            raise TraceError(RefusalReason.NOT_TRAINED, ", ".join(conversation.count_exclusions(lambda *_: True)))
        self._check_duplicate(record.where, conversation, messages)
        if self._options.check is not None and (problem := self._options.check(conversation)) is not None:
            raise TraceError(problem.reason, problem.detail)
        row = conversation_row(conversation)
        if self._options.secrets == "redact":
            row = redact_texts(row, redact_sensitive)
        try:
            return json.dumps(row, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise TraceError(RefusalReason.INVALID, "not valid Unicode: it contains half of a surrogate pair") from None

    def _check_sensitive(self, columns: Mapping[str, Any]) -> None:
        sensitive = count_sensitive(list(collect_texts(columns)))
        self.report.sensitive += sensitive
        secrets = [kind for kind in sensitive if kind not in _PERSONAL]
        if secrets and self._options.secrets == "refuse":
            raise TraceError(RefusalReason.SECRET, ", ".join(secrets))

    def _check_duplicate(self, where: str, conversation: Conversation, messages: Sequence[Mapping[str, Any]]) -> None:
        *_, digest = chain_digests([*messages, {"role": "tools", "content": repr(conversation.tools)}])
        before = self._seen.setdefault(digest, where)
        if before != where:
            raise TraceError(RefusalReason.DUPLICATE, f"of {before}")


def conversation_row(conversation: Conversation) -> dict[str, Any]:
    """Convert a conversation into a row in the OpenAI format; turns that are not trained have `weight: 0`."""
    messages = []
    for message, exclusion in zip(conversation.messages, conversation.exclusions, strict=True):
        is_excluded = exclusion not in ("", _EMPTY_ANSWER)
        messages.append({**message.to_openai(), **({"weight": 0} if is_excluded else {})})
    tools = [spec.to_openai() for spec in conversation.tools]
    return {"messages": messages, **({"tools": tools} if tools else {})}


def describe_report(report: ImportReport) -> list[str]:
    """Format the totals of a report as lines; the reasons of refusals are not included."""
    lines = [
        f"{report.num_conversations} conversations: {report.trainable} can be trained, {report.refused.total()} cannot"
    ]
    if report.merged or report.other:
        kinds = [f"{report.merged} calls that a longer call repeats"] if report.merged else []
        kinds += [f"{count} × {kind}" for kind, count in report.other.most_common()]
        lines.append(f"{report.records} records; without a conversation: {', '.join(kinds)}")
    if report.text_calls:
        lines.append(
            f"calls are read from the text of {report.text_calls} conversations, and tool instructions are removed"
        )
    if report.repeated_turns:
        lines.append(
            f"{report.repeated_turns} turns are context, because another conversation of their trace trains them"
        )
    sensitive = ", ".join(f"{count} {kind}" for kind, count in sorted(report.sensitive.items()))
    lines.append(f"secrets and personal data: {sensitive or '0'}")
    if report.unread:
        unread = ", ".join(f"{name} ({count})" for name, count in report.unread.most_common(10))
        lines.append(f"keys without effect: {unread}")
    return lines


def load_tools(path: Path) -> list[dict[str, Any]]:
    """Load tool declarations from a JSON file (`--tools`).

    Returns:
        Declarations in the OpenAI format.

    Raises:
        DataError: The file cannot be read, or is not a list of declarations.
    """
    try:
        tools = read_tools(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, TraceError) as error:
        raise DataError(f"{path}: {error}") from None
    if tools is None or not all(ToolSpec.from_openai(tool).parameters for tool in tools):
        raise DataError(f"{path}: a JSON list of tool declarations with a name and parameters is expected")
    return tools


Message = Mapping[str, Any]


def check_messages(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> ImportProblem | None:
    """Find the first problem that prevents training on a conversation, or return None.

    Args:
        messages: Messages in the OpenAI format.
        tools: Tool declarations in the OpenAI format.
    """
    if not messages:
        return ImportProblem(RefusalReason.NO_MESSAGES)
    if not any(message["role"] == "assistant" for message in messages):
        return ImportProblem(RefusalReason.NO_ANSWER)
    if messages[0]["role"] in ("assistant", "tool"):
        return ImportProblem(RefusalReason.FIRST_ROLE, f"messages[0] is of the {messages[0]['role']}")
    return _check_results(messages) or _check_tools(messages, tools)


def _check_results(messages: Sequence[Message]) -> ImportProblem | None:
    place = 0
    while place < len(messages):
        message = messages[place]
        if message["role"] == "tool":
            return ImportProblem(RefusalReason.MISSING_CALL, f"messages[{place}]")
        place += 1
        calls = message.get("tool_calls", ())
        if message["role"] != "assistant":
            continue
        end = place
        while end < len(messages) and messages[end]["role"] == "tool":
            end += 1
        results = messages[place:end]
        known = {call["id"] for call in calls}
        for index, result in enumerate(results, start=place):
            if len(results) > len(calls) or (known != {""} and result.get("tool_call_id", "") not in {*known, ""}):
                return ImportProblem(
                    RefusalReason.MISSING_CALL, f"messages[{index}] {result.get('tool_call_id', '')}".rstrip()
                )
        # a last turn can wait for its results, but calls in separate rows are one turn only if results follow
        if len(results) < len(calls) and (end < len(messages) or message.get("is_joined")):
            answered = {result.get("tool_call_id") for result in results}
            names = [call["function"]["name"] for call in calls if call["id"] not in answered]
            return ImportProblem(RefusalReason.MISSING_RESULT, f"messages[{place - 1}]: {', '.join(names)}")
        place = end
    return None


def _check_tools(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> ImportProblem | None:
    calls = [
        (place, call["function"]) for place, message in enumerate(messages) for call in message.get("tool_calls", ())
    ]
    declared = {tool["function"]["name"]: tool["function"] for tool in tools}
    for place, call in calls:
        name = call["name"]
        if not tools:
            return ImportProblem(RefusalReason.MISSING_SCHEMA, f"messages[{place}] calls {name}; no tools are declared")
        if name not in declared:
            return ImportProblem(RefusalReason.UNDECLARED, f"messages[{place}]: {name}{did_you_mean(name, declared)}")
        if "parameters" not in declared[name] and json.loads(call["arguments"]):
            return ImportProblem(RefusalReason.MISSING_SCHEMA, f"{name} is declared without parameters")
    return None
