"""What is wrong with a file, before a night of training? Told row by row and in sum, in the tokens that would be
learned."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whetstone.chat import Chat, ToolSpec
from whetstone.data.conversations import Chosen, DataUsage, conversation_of, everything
from whetstone.data.dataset_formats import CONVERSATIONS
from whetstone.data.demonstrations import written
from whetstone.data.logs import conversation_rows
from whetstone.data.overlap import overlaps
from whetstone.data.preferences import Preferences, preference_of
from whetstone.data.rows import Row, rows_of, text_of
from whetstone.data.stored_episodes import is_stored, stored_groups
from whetstone.errors import DataError
from whetstone.trajectory import Task, Trajectory


@dataclass(slots=True)
class DataReport:
    """What a file holds."""

    kind: str
    """`conversations`, `pairs`, `rated singles`, `texts`, `stored episodes`."""
    rows: int = 0
    learned: int = 0
    """Rows that can be learned from."""
    wrong: list[str] = field(default_factory=list)
    """Rows that cannot be read, with file, line and reason."""
    left_out: list[str] = field(default_factory=list)
    """Rows that can be read and not learned from: too long, or changed by the template."""
    twice: list[tuple[str, str]] = field(default_factory=list)
    """(a row, the one before it that says the same)"""
    lengths: list[int] = field(default_factory=list)
    """Tokens of what is learned from, each with what stands before it."""
    trained: int = 0
    """Tokens a loss is on."""
    evaluated: list[tuple[str, str]] = field(default_factory=list)
    """(a row, the task of the evaluation it holds)"""
    shown: list[Trajectory] = field(default_factory=list)
    """The first few, to be looked at."""
    usage: DataUsage = field(default_factory=DataUsage)
    """Trained and excluded turns, and keys without effect."""

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        found = {
            name: getattr(self, name) for name in ("kind", "rows", "learned", "wrong", "left_out", "twice", "trained")
        }
        lengths = self.lengths or [0]
        middle = {"median": statistics.median(lengths), "most": max(lengths), "tokens": sum(lengths)}
        turns = {"trained": self.usage.trained, "excluded": dict(self.usage.excluded)}
        usage = {"turns": turns, "unread": dict(self.usage.unread)}
        return {**found, **usage, "lengths": middle, "evaluated": self.evaluated}


def checked_file(
    path: Path,
    chat: Chat,
    *,
    split: str = "train",
    offered: tuple[ToolSpec, ...] = (),
    chosen: Chosen = everything,
    context_length: int,
    held_out: Sequence[Task] = (),
    show: int = 1,
) -> DataReport:
    """What a file comes to under a tokenizer and template.

    Args:
        split: Of a dataset that has several.
        offered: Tools of rows that say nothing of tools.
        chosen: Which turns of the assistant are learned from.
        context_length: Tokens there is room for.
        held_out: Tasks that are evaluated, which should not be among what is learned from.
        show: How many to keep to be looked at.

    Raises:
        DataError: There is no such file, or nothing in it.
    """
    if is_stored(path):
        return _stored(path, chat, show)
    rows = _readable(path, split)
    first = next(rows, None)
    if first is None:
        raise DataError(f"{path}: nothing in it")
    report = DataReport(_kind(first[0]) if first[0] is not None else "conversations")
    texts: list[tuple[str, str]] = []
    seen: dict[str, str] = {}
    for row, wrong in (first, *rows):
        report.rows += 1
        if row is None:
            report.wrong.append(wrong)
            continue
        text = _text(row.columns)
        texts.append((row.where, text))
        if text in seen:
            report.twice.append((row.where, seen[text]))
        seen.setdefault(text, row.where)
        try:
            _learn(report, row, chat, offered, chosen, context_length, show)
        except DataError as error:
            report.wrong.append(str(error))
    report.evaluated = list(overlaps(texts, held_out))
    return report


def _learn(
    report: DataReport, row: Row, chat: Chat, offered: tuple[ToolSpec, ...], chosen: Chosen, context: int, show: int
) -> None:
    if report.kind == "texts":
        ids = chat.encode(text_of(row))
        report.usage.unit = "texts"
        if not report.usage.add_text(row):
            return
        report.learned, report.trained = report.learned + 1, report.trained + len(ids)
        report.lengths.append(len(ids))
        return
    if report.kind == "conversations":
        said = [conversation_of(each, offered) for each in conversation_rows(row)]
        report.usage.add(*said, chosen=chosen)
        episodes = [written(each, chat, chosen=chosen, context_length=context) for each in said]
    else:
        pair = preference_of(row, offered)
        report.usage.add(*(conversation for conversation, _ in pair.answers))
        episodes = list(Preferences([pair], chat, context_length=context).group(0).trajectories)
    for episode in episodes:
        if episode.error is not None:
            report.left_out.append(episode.error)
    if all(episode.score is not None for episode in episodes):
        report.learned += 1
        segments = [segment for episode in episodes for segment in episode.segments()]
        report.lengths += [len(segment) for segment in segments]
        report.trained += sum(sum(segment.action_mask) for segment in segments)
        if len(report.shown) < show:
            report.shown += episodes


def _stored(path: Path, chat: Chat, show: int) -> DataReport:
    episodes = [episode for group in stored_groups(path, chat) for episode in group.trajectories]
    report = DataReport("stored episodes", rows=len(episodes), learned=len(episodes), shown=episodes[:show])
    segments = [segment for episode in episodes for segment in episode.segments()]
    report.lengths = [len(segment) for segment in segments]
    report.trained = sum(sum(segment.action_mask) for segment in segments)
    return report


def _readable(path: Path, split: str) -> Iterator[tuple[Row | None, str]]:
    """Row by row; what stops the reading is the last of them."""
    rows = rows_of(path, split=split)
    while True:
        try:
            yield next(rows), ""
        except StopIteration:
            return
        except DataError as error:
            yield None, str(error)
            return


def _kind(row: Row) -> str:
    columns = row.columns
    if "chosen" in columns and "rejected" in columns:
        return "pairs"
    if columns.get("label") is not None and ("completion" in columns or isinstance(columns["label"], bool)):
        return "rated singles"
    is_conversation = not columns.keys().isdisjoint((*CONVERSATIONS, "completion"))
    return "texts" if "text" in columns and not is_conversation else "conversations"


def _text(columns: Mapping[str, Any]) -> str:
    """All a row says, as one text."""
    said: list[str] = []

    def gather(value: Any) -> None:
        if isinstance(value, str):
            said.append(value)
        elif isinstance(value, Mapping):
            for inner in value.values():
                gather(inner)
        elif isinstance(value, list | tuple):
            for inner in value:
                gather(inner)

    gather({key: value for key, value in columns.items() if key != "tools"})
    return "\n".join(said)


def counted(lines: Sequence[str], *, most: int = 5) -> list[str]:
    """The first few, and how many more there are."""
    more = len(lines) - most
    return [*lines[:most], *([f"… and {more} more"] if more > 0 else [])]
