"""Check of a data file before training: rows, lengths in tokens, and secrets, as the stage of a recipe reads them."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from whetstone.chat import Chat, ToolSpec
from whetstone.data.conversations import Chosen, DataUsage, all_assistant_turns, read_conversation
from whetstone.data.dataset_formats import CONVERSATIONS
from whetstone.data.decontamination import build_leak_finder, find_overlaps
from whetstone.data.demonstrations import tokenize_conversation
from whetstone.data.logs import conversation_rows
from whetstone.data.offline_episodes import best_and_worst, group_episodes, is_offline, logged_episodes, stored_groups
from whetstone.data.policy_limits import PolicyLimits
from whetstone.data.preferences import Preferences, read_preference
from whetstone.data.redacting import Redacting
from whetstone.data.row_readers import InvalidRow, Row, get_text, parse_row, read_rows
from whetstone.data.select_episodes import Choice, is_imitated
from whetstone.data.sensitive import collect_texts, count_sensitive, mask_sensitive, redact_sensitive, redact_texts
from whetstone.errors import DataError
from whetstone.recipe import DataSettings
from whetstone.trajectory import Group, Task, Trajectory
from whetstone.trajectory_json import encode_trajectory

_PAIR_STAGES = ("preference", "reward_model")
_EPISODE_STAGES = ("offline", "reinforcement")
_IMITATED = ("conversations", "logged episodes")
"""Kinds of data whose answers are examples for the policy."""


@dataclass(slots=True)
class DataReport:
    """Result of checking a data file, as `whetstone data check` prints it."""

    kind: str
    """`conversations`, `pairs`, `rated singles`, `texts`, `logged episodes`, `stored episodes` or `tasks`."""
    rows: int = 0
    """Number of rows in the file, including invalid ones."""
    learned: int = 0
    """Number of rows that can be trained."""
    wrong: list[str] = field(default_factory=list)
    """Invalid rows, with file, line and reason."""
    skipped: list[str] = field(default_factory=list)
    """Valid rows that are not trained: too long, changed by the template, excluded by a filter, or with a task of the
    evaluation."""
    twice: list[tuple[str, str]] = field(default_factory=list)
    """(a row, an earlier row with the same text)"""
    lengths: list[int] = field(default_factory=list)
    """[segments] tokens of each segment, its context included."""
    trained: int = 0
    """Number of tokens in the loss."""
    evaluated: list[tuple[str, str]] = field(default_factory=list)
    """(a row, the task of the evaluation that it contains)"""
    leaking: set[str] = field(default_factory=set)
    """Rows that are left out because they contain a task of the evaluation; `skipped` has the reason."""
    sensitive: Counter[str] = field(default_factory=Counter)
    """Number of secrets and personal data, by kind."""
    searched: int = 0
    """Number of rows that were searched for secrets and personal data; rows that cannot be parsed are not."""
    examples: list[Trajectory] = field(default_factory=list)
    """First episodes of the file."""
    usage: DataUsage = field(default_factory=DataUsage)
    """Trained and excluded turns, and keys without effect."""
    limits: PolicyLimits | None = None
    """Episodes that the policy cannot reproduce; None: not compared."""

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain values. Secrets and personal data in messages are masked."""
        plain = {name: getattr(self, name) for name in ("kind", "rows", "searched", "learned", "twice", "trained")}
        masked = {
            name: list(map(mask_sensitive, lines))
            for name, lines in (("wrong", self.wrong), ("left_out", self.skipped))
        }
        lengths = self.lengths or [0]
        summary = {"median": statistics.median(lengths), "most": max(lengths), "tokens": sum(lengths)}
        sensitive = dict(sorted(self.sensitive.items()))
        turns = {"trained": self.usage.trained, "excluded": dict(self.usage.excluded)}
        plain |= {"turns": turns, "unread": dict(self.usage.unread)}
        plain |= {} if self.limits is None else {"limits": self.limits.to_json()}
        return {**plain, **masked, "lengths": summary, "evaluated": self.evaluated, "sensitive": sensitive}

    def add_episodes(self, episodes: Iterable[Trajectory], show: int) -> None:
        """Add the segment lengths and trained tokens of episodes, and keep the first `show` episodes as examples."""
        for episode in episodes:
            if self.limits is not None:
                self.limits.add([episode])
            segments = episode.segments()
            self.lengths += [len(segment) for segment in segments]
            self.trained += sum(sum(segment.action_mask) for segment in segments)
            if len(self.examples) < show:
                self.examples.append(episode)


@dataclass(frozen=True, slots=True)
class DataReader:
    """Reads a data file as the stage of a recipe does; created by `whetstone data check`."""

    chat: Chat
    """Tokenizer and chat template of the policy."""
    settings: DataSettings
    """The `data` of the stage."""
    stage: str = ""
    """Kind of the stage; empty if no stage of the recipe reads the file: the columns decide."""
    offered: tuple[ToolSpec, ...] = ()
    """Tools of rows without tools."""
    chosen: Chosen = all_assistant_turns
    """Assistant turns that are trained."""
    context_length: int = 1 << 40
    """Maximum number of tokens of an episode."""
    choice: Choice = field(default_factory=Choice)
    """Filters of stored episodes."""
    stored: Callable[[], Sequence[Group]] | None = None
    """Reads stored episodes with the filters of the stage."""
    limits: Callable[[], PolicyLimits | None] = lambda: None
    """Returns the limits of the policy with which demonstrations are compared."""

    @property
    def is_imitated(self) -> bool:
        """Return whether the stage imitates the answers of the file; answers of preference pairs are not imitated."""
        return self.stage not in ("pretraining", *_PAIR_STAGES)

    def kind_of(self, row: Row) -> str:
        """Return the kind of data of a file (see `DataReport.kind`), from the stage or the columns of a row."""
        columns, has_filter = row.columns, bool(self.settings.filter_keys)
        if self.stage in _EPISODE_STAGES or (has_filter and self.stage not in ("pretraining", *_PAIR_STAGES)):
            return "logged episodes"
        if self.stage in _PAIR_STAGES and self.settings.reward is not None:
            return "logged episodes"
        if self.stage == "pretraining":
            return "texts"
        label = columns.get("label")
        is_rated = label is not None and ("completion" in columns or isinstance(label, bool))
        if self.stage in _PAIR_STAGES or "chosen" in columns or is_rated:
            return "rated singles" if "chosen" not in columns and is_rated else "pairs"
        if self.stage:
            return "conversations"
        if "completion_ids" in columns and "completion" not in columns and "messages" not in columns:
            return "logged episodes"
        is_conversation = not columns.keys().isdisjoint((*CONVERSATIONS, "completion"))
        return "texts" if "text" in columns and not is_conversation else "conversations"

    def leaves_out_evaluation_tasks(self, kind: str) -> bool:
        """Return whether the stage leaves out rows of this kind that contain a task of the evaluation."""
        is_demonstration = kind == "conversations" and self.stage in ("", "supervised")
        return is_demonstration and not self.settings.keep_evaluation_tasks

    def read_texts(self, row: Row) -> list[list[str]]:
        """Return the texts of the messages of each conversation of a valid row."""
        conversations = (read_conversation(each, self.offered) for each in conversation_rows(row))
        return [[message.text for message in conversation.messages] for conversation in conversations]

    def read_episodes(self, row: Row, kind: str, usage: DataUsage | None = None) -> list[Trajectory]:
        """Tokenize the episodes of a row as the stage does.

        Args:
            row: The row.
            kind: Kind of data, as returned by `kind_of`; not `texts`.
            usage: Counts trained and excluded turns, and keys without effect; None counts nothing.

        Raises:
            DataError: The row is invalid.
        """
        if kind == "logged episodes":
            read = partial(logged_episodes, chat=self.chat, reward=self.settings.reward, offered=self.offered)
            return read(row, train_on=self.chosen, context_length=self.context_length, usage=usage)
        if kind == "conversations":
            conversations = [read_conversation(each, self.offered) for each in conversation_rows(row)]
            if usage is not None:
                usage.add(*conversations, chosen=self.chosen)
            in_tokens = partial(
                tokenize_conversation, chat=self.chat, chosen=self.chosen, context_length=self.context_length
            )
            return [in_tokens(conversation) for conversation in conversations]
        pair = read_preference(row, self.offered)
        if usage is not None:
            usage.add(*(conversation for conversation, _ in pair.answers))
        return list(Preferences([pair], self.chat, context_length=self.context_length).tokenize_answers(pair))


def check_file(path: Path, reader: DataReader, *, held_out: Sequence[Task] = (), show: int = 1) -> DataReport:
    """Check a data file under a tokenizer and chat template. Every row is read.

    Args:
        path: The file.
        reader: Reads the file as the stage does.
        held_out: Tasks of the evaluation, which should not be in the data.
        show: Number of episodes to keep for display.

    Raises:
        DataError: The file does not exist, cannot be read at all, or is empty.
    """
    if is_offline(path):
        return _check_stored(path, reader, show)
    rows = read_rows(path, split=reader.settings.split)
    report = DataReport("")
    texts: list[tuple[str, str]] = []
    first_rows: dict[str, str] = {}
    logged: list[Trajectory] = []
    find_leak = build_leak_finder(held_out)
    for row in rows:
        report.rows += 1
        if isinstance(row, InvalidRow):
            report.wrong.append(str(row))
            continue
        if not report.kind:
            report.kind = reader.kind_of(row)
            report.limits = reader.limits() if reader.is_imitated and report.kind in _IMITATED else None
        text = _text(row)
        texts.append((row.where, text))
        if text in first_rows:
            report.twice.append((row.where, first_rows[text]))
        first_rows.setdefault(text, row.where)
        sensitive = count_sensitive(list(collect_texts(row.columns)))
        report.sensitive += sensitive
        report.searched += 1
        if report.kind == "texts":
            _add_text(report, row, reader.chat)
            continue
        parse = partial(reader.read_episodes, kind=report.kind)
        episodes = parse_row(row, partial(parse, usage=report.usage))
        # messages quote the row, and cut quotes off: those of a row with secrets are taken from its masked copy
        masked = parse_row(_mask_row(row), parse) if sensitive else episodes
        if isinstance(episodes, str):
            report.wrong.append(masked if isinstance(masked, str) else str(row.error("invalid; it contains secrets")))
            continue
        if reader.leaves_out_evaluation_tasks(report.kind):
            leaks = list(map(find_leak, reader.read_texts(row)))
            episodes = [episode for episode, task_id in zip(episodes, leaks, strict=True) if task_id is None]
            if not episodes:
                report.leaking.add(row.where)
                report.skipped.append(_describe_leak(row, next(filter(None, leaks)), reader.stage or "supervised"))
                continue
        quoted = [] if isinstance(masked, str) else masked
        reasons = [episode.error for episode in quoted if episode.error is not None]
        excluded = sum(episode.error is not None for episode in episodes)
        report.skipped += (reasons + [str(row.error("cannot be trained"))] * excluded)[:excluded]
        if report.kind == "logged episodes":
            if "completion_ids" in row.columns:  # the text of such a row is in its tokens
                report.sensitive += count_sensitive([_decode(reader.chat, episode) for episode in episodes])
            logged += episodes
        elif all(episode.score is not None for episode in episodes):
            report.learned += 1
            report.add_episodes(episodes, show)
    if not report.rows:
        raise DataError(f"{path}: the file has no rows")
    report.kind = report.kind or "conversations"
    if logged:
        _add_logged(report, path, reader, logged, show)
    report.evaluated = list(find_overlaps(texts, held_out))
    return report


def _describe_leak(row: Row, task_id: str, stage: str) -> str:
    remedy = f"{stage}.data.keep_evaluation_tasks: true trains on it"
    return str(row.error(f"contains the evaluation task {task_id} and is left out; {remedy}"))


def _add_text(report: DataReport, row: Row, chat: Chat) -> None:
    text = parse_row(row, lambda row: [get_text(row)])
    if isinstance(text, str):
        report.wrong.append(text)
        return
    report.usage.unit = "texts"
    if report.usage.add_row(row, ("text",)):
        return
    ids = chat.encode(text[0])
    report.learned, report.trained = report.learned + 1, report.trained + len(ids)
    report.lengths.append(len(ids))


def _add_logged(report: DataReport, path: Path, reader: DataReader, episodes: Sequence[Trajectory], show: int) -> None:
    """Add the episodes of a log that the filters keep."""
    settings = reader.settings
    try:
        groups = group_episodes(path, episodes, reader.choice, train_on=reader.chosen, joined=settings.stitched)
    except DataError as error:
        report.skipped.append(str(error))
        return
    trained = _select_trained(groups, reader.stage)
    report.learned = len({episode.id.rpartition("#")[0] for episode in trained})
    scored = sum(episode.error is None for episode in episodes)
    _note_excluded(report, path, scored - len(trained))
    report.add_episodes(trained, show)


def _check_stored(path: Path, reader: DataReader, show: int) -> DataReport:
    """Check a run, or a file of its trajectories."""
    episodes = [episode for group in stored_groups(path, reader.chat) for episode in group.trajectories]
    limits = reader.limits() if reader.is_imitated else None
    report = DataReport("stored episodes", rows=len(episodes), limits=limits)
    report.sensitive += count_sensitive([_decode(reader.chat, episode) for episode in episodes])
    try:
        groups = reader.stored() if reader.stored is not None else stored_groups(path, reader.chat, reader.choice)
    except DataError as error:
        report.skipped.append(str(error))
        return report
    trained = _select_trained(groups, reader.stage)
    report.learned = len(trained)
    _note_excluded(report, path, len(episodes) - len(trained))
    report.add_episodes(trained, show)
    return report


def _select_trained(groups: Sequence[Group], stage: str) -> list[Trajectory]:
    """Return the episodes of the groups that a stage of this kind trains on."""
    if stage == "preference":
        return [episode for group in groups for episode in best_and_worst(group) or ()]
    episodes = [episode for group in groups for episode in group.trajectories if episode.score is not None]
    return [episode for episode in episodes if is_imitated(episode)] if stage == "supervised" else episodes


def _note_excluded(report: DataReport, path: Path, count: int) -> None:
    if count > 0:
        report.skipped.append(f"{path}: {count} episodes are excluded by the filters of `data` or by the stage")


def _decode(chat: Chat, episode: Trajectory) -> str:
    return "\n".join(str(chat.tokenizer.decode(segment.tokens.ids)) for segment in episode.segments())


def _mask_row(row: Row) -> Row:
    return Row(row.where, redact_texts(row.columns, mask_sensitive), row.number)


def _text(row: Row) -> str:
    """Join all texts of a row except its tool declarations, by which duplicates are found."""
    return "\n".join(collect_texts([value for name, value in row.columns.items() if name != "tools"]))


def write_redacted(path: Path, output: Path, chat: Chat, *, split: str = "train", suffix: str = "") -> tuple[int, int]:
    """Write a copy of a data file with secrets and personal data replaced by their kind, as JSON lines.

    Args:
        path: The file, which stays as it is.
        output: The copy.
        chat: Tokenizer of stored episodes, whose tokens are redacted too.
        split: Split of a dataset with several splits.
        suffix: Format of the file, whatever its name.

    Returns:
        The number of rows in the copy, and the number of rows that cannot be read and are not in it.

    Raises:
        DataError: The copy exists, is not `.jsonl`, or a row has token ids; or `detect-secrets` is not installed.
    """
    if output.suffix != ".jsonl":
        raise DataError(f"{output}: the redacted copy is written as JSON lines; use a name that ends with .jsonl")
    redact_sensitive("")  # before a file is created
    lines, unreadable = [], 0
    if is_offline(path):
        redacting = Redacting(chat, redact_sensitive)
        episodes = (episode for group in stored_groups(path, chat) for episode in group.trajectories)
        lines = [encode_trajectory(redacting(episode)) for episode in episodes]
    else:
        for row in read_rows(path, split=split, suffix=suffix):
            if isinstance(row, InvalidRow):
                unreadable += 1
                continue
            if place := next(_token_places(row.columns), None):
                raise row.error("token ids contain the text too; redact the text before it is tokenized", place)
            redacted = redact_texts(row.columns, redact_sensitive)
            lines.append(json.dumps(redacted, ensure_ascii=False, default=str).encode())
    try:
        with open(output, "xb") as file:
            file.writelines(line + b"\n" for line in lines)
    except FileExistsError:
        raise DataError(f"{output}: the file exists already; choose another name for the redacted copy") from None
    except OSError as error:
        raise DataError(f"{output}: {error.strerror}") from None
    return len(lines), unreadable


def _token_places(value: Any, place: str = "") -> Iterator[str]:
    """Yield the paths of lists of token ids in a row, such as `traces[0].nodes[1].token_ids`."""
    if isinstance(value, dict):
        for name, item in value.items():
            path = f"{place}.{name}" if place else str(name)
            if name in ("prompt_ids", "completion_ids", "token_ids", "input_ids") and item:
                yield path
            yield from _token_places(item, path)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _token_places(item, f"{place}[{index}]")


def count_lines(lines: Sequence[str], *, most: int = 5) -> list[str]:
    """Return the first `most` lines, and a line with the number of further lines if there are more."""
    more = len(lines) - most
    return [*lines[:most], *([f"… and {more} more"] if more > 0 else [])]
