"""Conversations of a data file: checks the messages of a row, pairs calls with results, and selects trained turns.

`dataset_formats` reads every format into the same messages; everything here works on that form.

Note:
    Most chat templates render a call without a result, or a result without a call, without an error, and a model
    trained on them imitates a conversation that cannot happen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from whetstone.chat import Message, ToolCall, ToolSpec
from whetstone.data.dataset_formats import NormalMessage, RowReader, has_answer, suggest_key
from whetstone.data.row_readers import Row
from whetstone.errors import did_you_mean

Chosen = Callable[[Message, int, Sequence[Message]], bool]
"""(message of the assistant, its index among the assistant's messages, all messages) → whether it is trained"""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation of a data file: its messages and the tools that the model can call."""

    where: str
    """Place in the data file, such as `data.jsonl:7`."""
    messages: tuple[Message, ...]
    """Calls have the ids `call_T_I` (the assistant's T-th message, its I-th call), as in an episode."""
    tools: tuple[ToolSpec, ...] = ()
    """Tools that the model can call; empty without tools."""
    exclusions: tuple[str, ...] = ()
    """[messages] Why a message of the assistant is not trained, such as `weight: 0`; empty if it can be trained."""
    unread: tuple[str, ...] = ()
    """Columns and keys of the row that nothing reads."""

    def get_trained_turns(self, chosen: Chosen) -> tuple[int, ...]:
        """Return the indices in `messages` of the assistant turns that are trained.

        Args:
            chosen: Filter of assistant turns (`train_on`); turns that the file excludes are never trained.
        """
        return tuple(place for place, reason in self._turns(chosen) if not reason)

    def count_exclusions(self, chosen: Chosen) -> Counter[str]:
        """Count the assistant turns that are not trained, by reason; `train_on` if `chosen` rejects the turn."""
        return Counter(reason for _, reason in self._turns(chosen) if reason)

    def _turns(self, chosen: Chosen) -> Iterator[tuple[int, str]]:
        """Yield (index in `messages`, reason of its exclusion or an empty string) of each assistant turn."""
        own = [place for place, message in enumerate(self.messages) if message.role == "assistant"]
        for number, place in enumerate(own):
            is_chosen = chosen(self.messages[place], number, self.messages)
            yield place, self.exclusions[place] or ("" if is_chosen else "train_on")


@dataclass(slots=True)
class DataUsage:
    """Counts of trained and excluded turns of a data file, and the keys of the file that have no effect."""

    unit: str = "assistant turns"
    """Name of the counted unit, for the report."""
    trained: int = 0
    """Number of trained turns."""
    excluded: Counter[str] = field(default_factory=Counter)
    """Reason, such as `weight: 0` → number of turns."""
    unread: Counter[str] = field(default_factory=Counter)
    """Column or key, such as `source` or `messages[].mood` → number of rows."""

    def add(self, *conversations: Conversation, chosen: Chosen | None = None) -> None:
        """Count the turns and unread keys of all conversations of one row.

        Args:
            conversations: Conversations that were read from the row.
            chosen: Filter of assistant turns; None selects all of them.
        """
        for conversation in conversations:
            self.trained += len(conversation.get_trained_turns(chosen or all_assistant_turns))
            self.excluded += conversation.count_exclusions(chosen or all_assistant_turns)
        self.unread.update(list(dict.fromkeys(name for each in conversations for name in each.unread)))

    def add_row(self, row: Row, used: Collection[str], count: int = 1) -> str:
        """Count a row of text or tokens, which has no messages.

        Args:
            row: The row.
            used: Columns that another reader uses.
            count: Number of texts or turns in the row.

        Returns:
            The mark that excludes the row, such as `row weight: 0`; empty if the row is trained.
        """
        reader = RowReader(row, used)
        self.unread.update(list(reader.unread))
        if reader.mark is not False:
            self.trained += count
            return ""
        self.excluded[f"row {reader.reason}"] += count
        return f"row {reader.reason}"

    def describe(self, path: Path) -> list[str]:
        """Format the counts as lines of a report; keys without effect are in the second line."""
        total = self.trained + self.excluded.total()
        reasons = "; ".join(f"{reason} ({count})" for reason, count in self.excluded.most_common())
        lines = [f"{path}: {self.trained} of {total} {self.unit} are trained"] if total else []
        if reasons:
            lines[0] += f"; excluded: {reasons}"
        if self.unread:
            lines.append(f"{path}: keys without effect: {', '.join(map(self._describe_key, self.unread))}")
        return lines

    def _describe_key(self, name: str) -> str:
        near = suggest_key(name)
        rows = f"{self.unread[name]} rows" if self.unread[name] > 1 else "1 row"
        return f'{name} ({rows}; did you mean "{near}"?)' if near else f"{name} ({rows})"


def read_conversation(row: Row, offered: tuple[ToolSpec, ...] = (), *, used: Collection[str] = ()) -> Conversation:
    """Read the conversation of a row.

    Args:
        row: The row, in any dataset format.
        offered: Tools of a row that does not declare tools.
        used: Columns that another reader uses, such as the reward of a log.

    Raises:
        DataError: The row has no conversation, or an impossible one; the message has the place and the reason.
    """
    reader = RowReader(row, used)
    messages = reader.read_conversation()
    return check_conversation(reader, messages, reader.read_tools(offered))


def check_conversation(
    reader: RowReader, messages: Sequence[NormalMessage], tools: tuple[ToolSpec, ...]
) -> Conversation:
    """Check that messages form a possible conversation, and give calls and results the ids of an episode.

    Args:
        reader: Reader of the row, which errors name.
        messages: Messages of the row in normal form.
        tools: Tools that the model can call; empty if the row declares none.

    Raises:
        DataError: There are no messages, the first one is of the assistant or a tool, the assistant has none, a call
            has no result, or a call names an undeclared tool.
    """
    row = reader.row
    if not messages:
        raise row.error("the conversation has no messages")
    first = messages[0]
    if first.message.role in ("assistant", "tool"):
        raise row.error(
            f"{first.path}: the first message has the role {first.message.role}; it must have the role system or user"
        )
    if not any(each.message.role == "assistant" for each in messages):
        raise row.error("the conversation has no message of the assistant, so nothing can be trained")
    exclusions = tuple(_exclude(reader, each) for each in messages)
    return Conversation(row.where, tuple(_pair_calls(row, messages, tools)), tools, exclusions, reader.unread)


def _exclude(reader: RowReader, item: NormalMessage) -> str:
    """Return the reason why an assistant message is not trained, such as `weight: 0`; empty if it is trained."""
    if item.message.role != "assistant":
        return ""
    if item.mark and reader.mark is False:
        raise reader.row.error(f"{item.path}: {item.reason} contradicts {reader.reason} of the row")
    if item.mark is False:
        return item.reason
    if reader.mark is False:
        return f"row {reader.reason}"
    if item.is_context:
        return "prompt"
    return "" if has_answer(item.message) else "empty answer"


def _pair_calls(row: Row, messages: Sequence[NormalMessage], tools: tuple[ToolSpec, ...]) -> Iterator[Message]:
    """Yield the messages with call ids as in an episode (`call_T_I`) in calls and in their results."""
    known = {tool.name for tool in tools}
    turn, place = 0, 0
    while place < len(messages):
        item = messages[place]
        place += 1
        if item.message.role == "tool":
            raise row.error(f"{item.path}: the tool result{_describe_result(item)} follows no tool call")
        if item.message.role != "assistant":
            yield item.message
            continue
        calls = item.message.tool_calls
        for index, call in enumerate(calls):
            if tools and call.name not in known:
                near = did_you_mean(call.name, known)
                raise row.error(
                    f'{item.path}: tool call {index + 1} names "{call.name}", which is not a declared tool{near}'
                )
        yield replace(
            item.message, tool_calls=tuple(replace(call, id=f"call_{turn}_{k}") for k, call in enumerate(calls))
        )
        end = place
        while end < len(messages) and messages[end].message.role == "tool":
            end += 1
        results = messages[place:end]
        if len(results) < len(calls) and end < len(messages):
            missing = len(calls) - len(results)
            raise row.error(f"{messages[end].path}: {missing} of the tool calls before this message have no result")
        for result, index in zip(results, _match_results(row, calls, results), strict=True):
            yield replace(result.message, tool_call_id=f"call_{turn}_{index}")
        turn, place = turn + 1, end


def _match_results(row: Row, calls: Sequence[ToolCall], results: Sequence[NormalMessage]) -> list[int]:
    """Return the index of the call of each result: by id, otherwise by name, otherwise by position.

    Raises:
        DataError: A result matches no open call.
    """
    matched: dict[int, int] = {}
    unmatched = list(range(len(calls)))
    for number in sorted(range(len(results)), key=lambda k: _rank_of_match(results[k])):
        result = results[number]
        fits = (k for k in unmatched if _can_match(result, calls[k]))
        index = next(fits, None)
        if index is None:
            names = ", ".join(calls[k].name for k in unmatched) or "none"
            raise row.error(
                f"{result.path}: the tool result{_describe_result(result)} matches no open call; open calls: {names}"
            )
        unmatched.remove(index)
        matched[number] = index
    return [matched[number] for number in range(len(results))]


def _rank_of_match(result: NormalMessage) -> int:
    return 0 if result.message.tool_call_id else 1 if result.name else 2


def _can_match(result: NormalMessage, call: ToolCall) -> bool:
    call_id = result.message.tool_call_id
    return (not call_id or call_id == call.id) and (not result.name or result.name == call.name)


def _describe_result(result: NormalMessage) -> str:
    values = filter(None, (result.message.tool_call_id, result.name))
    return f" ({text})" if (text := ", ".join(values)) else ""


def all_assistant_turns(message: Message, number: int, messages: Sequence[Message]) -> bool:
    """Select every assistant turn; the default of `train_on`."""
    return True


def _last(message: Message, number: int, messages: Sequence[Message]) -> bool:
    return message is next(each for each in reversed(messages) if each.role == "assistant")


def _calls(message: Message, number: int, messages: Sequence[Message]) -> bool:
    return bool(message.tool_calls)


def _answers(message: Message, number: int, messages: Sequence[Message]) -> bool:
    return not message.tool_calls


LEARNED_FROM: Mapping[str, Chosen] = {"all": all_assistant_turns, "last": _last, "calls": _calls, "answers": _answers}
"""Value of the recipe key `train_on` → filter of assistant turns."""
