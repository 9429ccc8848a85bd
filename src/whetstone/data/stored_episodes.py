"""Which episodes does a run, a file of trajectories, or the log of another tool hold for others to learn from?

Easy to get wrong: their tokens mean something under the tokenizer they were sampled with alone. So what a few of them
say is read with the one there is, and compared with what is written beside it. Where only their text is known, it
becomes the tokens this model would have to sample for it, without log-probs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path

from whetstone.chat import Chat, ToolSpec, user
from whetstone.data.choosing import Choice, reward_of
from whetstone.data.conversations import Chosen, DataUsage, conversation_of, everything
from whetstone.data.demonstrations import same, written
from whetstone.data.joining import with_joined
from whetstone.data.logs import Logged, Piece, list_used_columns, logged
from whetstone.data.rows import OnBadRow, Row, read_all
from whetstone.errors import DataError, RunDirectoryError
from whetstone.record import RunRecord
from whetstone.reporting.trajectories import read_trajectories
from whetstone.rollout.rereading import reread
from whetstone.trajectory import (
    TRAINABLE,
    Author,
    Costs,
    EndReason,
    Group,
    OffPolicy,
    Provenance,
    Score,
    Task,
    Tokens,
    Trajectory,
    Turn,
)

_TRIED = 8
"""Episodes whose tokens are read again."""
_ALL = Choice()


Relabel = Callable[[Trajectory], str | None]
"""(an episode that did not solve its task) → the task it did solve, in words; None: it solved none"""


def stored_groups(
    path: Path,
    chat: Chat,
    choice: Choice = _ALL,
    *,
    train_on: Chosen = everything,
    joined: int = 0,
    relabel: Relabel | None = None,
    tools: Sequence[ToolSpec] = (),
) -> list[Group]:
    """Groups of scored episodes, in the order in which they were sampled.

    Args:
        path: A run directory, or a file of trajectories as runs write them.
        chat: Whose tokenizer they must be of.
        choice: Which of them are taken.
        train_on: Which turns of them are learned from; the others are read.
        joined: At most so many new ones of each group, see `with_joined`.
        relabel: Says what episodes that did not solve their task did instead; they solved that.
        tools: On offer in them; for `relabel`.

    Raises:
        DataError: There are none, or they were sampled with another tokenizer.
    """
    groups = _of_run(path) if path.is_dir() else _of_file(path)
    if relabel is not None:
        told = partial(_relabelled, relabel=relabel, chat=chat, tools=tools)
        groups = [replace(group, trajectories=tuple(map(told, group.trajectories))) for group in groups]
    chosen = _chosen(path, [with_joined(group, joined) for group in groups], choice)
    _check_tokens(path, chat, [t for group in chosen for t in group.trajectories][:_TRIED])
    return _learned(path, chosen, train_on)


def logged_groups(
    path: Path,
    chat: Chat,
    choice: Choice = _ALL,
    *,
    train_on: Chosen = everything,
    joined: int = 0,
    split: str = "train",
    reward: str | Sequence[str] | None = None,
    offered: tuple[ToolSpec, ...] = (),
    context_length: float = math.inf,
    on_bad_row: OnBadRow = "stop",
    count_skipped: Callable[[int], None] = lambda count: None,
    usage: DataUsage | None = None,
) -> list[Group]:
    """Read the episodes of other tools: rows of the same task are a group; groups are in the order of the file.

    Args:
        path: A file, as `rows_of` reads it.
        choice: Which of them are taken.
        train_on: Which turns of them are learned from; the others are read.
        joined: At most so many new ones of each group, see `with_joined`.
        split: Of a dataset that has several.
        reward: The column with the reward, or several that are added up; None: the usual ones.
        offered: Tools of rows that say nothing of tools.
        context_length: Tokens an episode may have.
        on_bad_row: `stop` raises one error for all invalid rows; `skip` excludes them.
        count_skipped: Receives the number of rows that are skipped.
        usage: Counts trained and excluded turns, and keys without effect.

    Returns:
        Beside what is taken, what cannot be learned from: without a score, with `error` in a line.

    Raises:
        DataError: A row is wrong or has no reward, its tokens are of another tokenizer, or nothing is taken.
    """
    parse = partial(
        logged_episodes,
        chat=chat,
        reward=reward,
        offered=offered,
        train_on=train_on,
        context_length=context_length,
        usage=usage,
    )
    episodes, skipped = read_all(path, parse, split=split, on_bad_row=on_bad_row)
    count_skipped(skipped)
    return group_episodes(path, episodes, choice, train_on=train_on, joined=joined)


def logged_episodes(
    row: Row,
    *,
    chat: Chat,
    reward: str | Sequence[str] | None = None,
    offered: tuple[ToolSpec, ...] = (),
    train_on: Chosen = everything,
    context_length: float = math.inf,
    usage: DataUsage | None = None,
) -> list[Trajectory]:
    """Return the episodes of a row; an episode that cannot be trained has no score and an `error`.

    Args:
        row: The row of the log.
        chat: Tokenizer and template of the policy.
        reward: Column of the reward, or columns that are summed; None: the usual ones.
        offered: Tools of a row without tools.
        train_on: Turns that `usage` counts as trained. The episodes have all turns.
        context_length: Maximum number of tokens of an episode.
        usage: Counts trained and excluded turns, and keys without effect.

    Raises:
        DataError: The row is invalid or has no reward, or its tokens are from another tokenizer.
    """
    episodes: list[Trajectory] = []
    usage = usage or DataUsage()
    for number, episode in enumerate(logged(row, reward)):
        if episode.reward is None:
            raise row.error("no reward: which column has it (`reward`)?")
        used = list_used_columns(row, reward)
        if episode.pieces:
            excluded = usage.add_row(row, used, sum(piece.sampled for piece in episode.pieces))
            trajectory = _read_pieces(episode, chat, offered, context_length)
            if excluded:
                reason = f"{row.where}  all of its turns are excluded from training ({excluded})"
                trajectory = replace(trajectory, turns=(), ended=EndReason.ERROR, error=reason)
        else:
            conversation = conversation_of(episode.row, offered, used=used)
            usage.add(conversation, chosen=train_on)
            trajectory = written(conversation, chat, context_length=context_length)
        trajectory = replace(trajectory, id=f"{row.where}#{number}", task_id=episode.task)
        if trajectory.error is None:
            trajectory = replace(trajectory, score=Score(episode.reward))
        episodes.append(trajectory)
    return episodes


def group_episodes(
    path: Path, episodes: Sequence[Trajectory], choice: Choice, *, train_on: Chosen = everything, joined: int = 0
) -> list[Group]:
    """Group the episodes of a log by task, and apply the filters.

    Raises:
        DataError: No episode remains, or `train_on` selects no turn.
    """
    tasks: dict[str, list[Trajectory]] = {}
    for episode in episodes:
        tasks.setdefault(episode.task_id, []).append(episode)
    groups = [Group(Task(task, ""), tuple(each), number) for number, (task, each) in enumerate(tasks.items())]
    left_out = {group.number: [t for t in group.trajectories if t.error is not None] for group in groups}
    chosen = _learned(path, _chosen(path, [with_joined(group, joined) for group in groups], choice), train_on)
    return [replace(group, trajectories=(*group.trajectories, *left_out[group.number])) for group in chosen]


def _chosen(path: Path, groups: Sequence[Group], choice: Choice) -> list[Group]:
    chosen = choice.of(groups)
    if not chosen:
        failed = next((t.error for group in groups for t in group.trajectories if t.error is not None), None)
        asked = f" with {choice}" if str(choice) else ""
        why = f"; the first that cannot be learned from: {failed}" if failed else ""
        raise DataError(f"{path}: holds no scored episodes{asked}{why}")
    return chosen


def learned(episode: Trajectory, train_on: Chosen) -> Trajectory:
    """The episode with the turns that are not chosen as something to read: nobody's, without log-probs, in no loss.

    Args:
        train_on: Given a turn's message, its number from 0, and all messages of the episode.
    """
    messages = episode.messages
    turns = tuple(
        turn
        if train_on(turn.message, number, messages)
        else replace(turn, action=Tokens.written(turn.action.ids, Author.INSERTED))
        for number, turn in enumerate(episode.turns)
    )
    return replace(episode, turns=turns)


def _learned(path: Path, groups: Sequence[Group], train_on: Chosen) -> list[Group]:
    if train_on is everything:
        return list(groups)
    masked = [replace(g, trajectories=tuple(learned(t, train_on) for t in g.trajectories)) for g in groups]
    if not any(t.segments() for group in masked for t in group.trajectories):
        raise DataError(f"{path}: train_on selects none of its turns")
    return masked


def _read_pieces(episode: Logged, chat: Chat, offered: tuple[ToolSpec, ...], context_length: float) -> Trajectory:
    where = episode.row.where
    turns: list[Turn] = []
    context, opens, length = Tokens.joined(()), True, 0
    for piece in episode.pieces:
        _check_piece(episode, piece, chat)
        if not piece.sampled:
            context, opens = Tokens.joined((context, Tokens.written(piece.ids, Author.ENVIRONMENT))), piece.begins
            length = len(piece.ids) + (0 if piece.begins else length)
            continue
        message = chat.read(piece.ids, offered, turn=len(turns))
        turns.append(Turn(context=context, action=_drawn(piece), message=message, opens_segment=opens or not turns))
        context, opens, length = Tokens.joined(()), False, length + len(piece.ids)
        if length > context_length:
            error = f"{where}  it has {length:,} tokens or more, the context {context_length:,.0f}"
            return Trajectory(where, episode.task, (), (), EndReason.ERROR, error, provenance=Provenance.REPLAYED)
    return Trajectory(where, episode.task, (), tuple(turns), EndReason.TERMINATED, provenance=Provenance.REPLAYED)


def _check_piece(episode: Logged, piece: Piece, chat: Chat) -> None:
    if max(piece.ids, default=0) >= len(chat.tokenizer):
        raise episode.row.error(f"token {max(piece.ids)} is none of this policy's tokenizer ({len(chat.tokenizer)})")
    if piece.said and piece.said.strip() not in chat.tokenizer.decode(piece.ids):
        raise episode.row.error(f"its tokens are of another tokenizer: they do not say {piece.said.strip()[:60]!r}")


def _drawn(piece: Piece) -> Tokens:
    if any(map(math.isnan, piece.logprobs)):
        return Tokens.written(piece.ids, Author.EXPERT)
    nothing = (math.nan,) * len(piece.ids)
    return Tokens.sampled(piece.ids, logprobs=piece.logprobs, versions=(-1,) * len(piece.ids), entropies=nothing)


def best_and_worst(group: Group) -> tuple[Trajectory, Trajectory] | None:
    """The first of the best and the first of the worst of its scored episodes; None where they are worth the same, or
    say the same."""
    scored = [each for each in group.trajectories if each.score is not None]
    best, worst = max(scored, key=reward_of), min(scored, key=reward_of)
    same_worth = reward_of(best) == reward_of(worst)
    return None if same_worth or best.messages == worst.messages else (best, worst)


def is_stored(path: Path) -> bool:
    """Whether a path is a run, or a file of its trajectories, rather than rows somebody wrote."""
    if path.is_dir():
        return (path / "recipe.yaml").is_file()
    if path.suffix != ".jsonl" or not path.is_file():
        return False
    with open(path, "rb") as file:
        return b'"turns"' in file.readline(1 << 20)


def as_stored(group: Group, name: str, *, number: int = 0, off_policy: OffPolicy | None = None) -> Group:
    """Prepare a stored group for an update of another run.

    Each trajectory gets an id with the prefix `name`, the provenance `replayed` unless it is `demonstrated` or `human`,
    and tokens that are older than every version of this run. The group costs nothing again.

    Args:
        name: What ids begin with.
        number: Its place.
        off_policy: What ratios compare with; None: the log-probs kept from when tokens were drawn, and where somebody
            wrote them, and none were kept, the policy before the update, where they begin at 1.

    Raises:
        DataError: Log-probs are to be compared with, and a trajectory has none.
    """
    older: dict[int, Turn] = {}
    for trajectory in group.trajectories:
        for turn in trajectory.turns:  # one that several share stays one
            older.setdefault(id(turn), replace(turn, action=_older(turn)))
    stored = (_as_stored(trajectory, name, off_policy, older) for trajectory in group.trajectories)
    return replace(group, trajectories=tuple(stored), number=number, costs=Costs())


def _as_stored(
    trajectory: Trajectory, name: str, off_policy: OffPolicy | None, older: Mapping[int, Turn]
) -> Trajectory:
    drawn = all(
        author not in TRAINABLE or not math.isnan(logprob)
        for turn in trajectory.turns
        for author, logprob in zip(turn.action.authors, turn.action.logprobs, strict=True)
    )
    if not drawn and off_policy in (OffPolicy.STORED, OffPolicy.TRUNCATED):
        raise DataError(
            f"{trajectory.id}: has no log-probs from when it was drawn, which off_policy: {off_policy} compares with; "
            "use off_policy: recompute"
        )
    return replace(
        trajectory,
        id=f"{name}{trajectory.id}",
        parent=None if trajectory.parent is None else f"{name}{trajectory.parent}",
        turns=tuple(older[id(turn)] for turn in trajectory.turns),
        off_policy=off_policy or (OffPolicy.STORED if drawn else OffPolicy.RECOMPUTE),
        removal=None,
        provenance=Provenance.REPLAYED if trajectory.provenance.is_fresh else trajectory.provenance,
    )


def _older(turn: Turn) -> Tokens:
    """What was drawn by nobody of this run; what an expert wrote is given credit here, and not imitated."""
    authors = tuple(Author.CORRECTED if author is Author.EXPERT else author for author in turn.action.authors)
    return replace(turn.action, versions=(-1,) * len(turn.action), authors=authors)


def _relabelled(trajectory: Trajectory, relabel: Relabel, chat: Chat, tools: Sequence[ToolSpec]) -> Trajectory:
    """What solved its task as it is; of the rest what relabelling makes of it.

    Source: Murty et al. 2024 (BAGEL), arXiv:2403.08140, which lets a model say what a trajectory did.
    """
    if trajectory.score is None or trajectory.solved or not trajectory.turns:
        return trajectory
    text = relabel(trajectory)
    if text is None:
        return trajectory
    asked = next((k for k in range(len(trajectory.opening) - 1, -1, -1) if trajectory.opening[k].role == "user"), None)
    if asked is None:
        raise DataError(f"{trajectory.id}: no user speaks in its opening, so there is no task to relabel")
    try:
        again = reread(
            trajectory, (*trajectory.opening[:asked], user(text), *trajectory.opening[asked + 1 :]), chat, tools
        )
    except ValueError as error:
        raise DataError(str(error)) from None
    return replace(again, score=Score(1.0, success=True), marks=(*again.marks, "relabelled"))


def _of_run(run_dir: Path) -> list[Group]:
    if not (run_dir / "recipe.yaml").is_file():
        raise DataError(f"{run_dir}: holds no run (recipe.yaml is missing)")
    try:
        record = RunRecord(run_dir)
        return [
            _with_its_task(record.load(number, Task("", "")))
            for number in sorted(record.admitted)
            if record.holds(number)
        ]
    except RunDirectoryError as error:
        raise DataError(str(error)) from None


def _with_its_task(group: Group) -> Group:
    name = group.trajectories[0].task_id if group.trajectories else ""
    return Group(Task(name, ""), group.trajectories, group.number, group.costs)


def _of_file(path: Path) -> list[Group]:
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    read = read_trajectories(path, error=DataError)
    # `group-7/task/…#2`: what stands before the first stroke is the group
    sampled = groupby(read, key=lambda trajectory: (trajectory.id.partition("/")[0], trajectory.task_id))
    return [Group(Task(task, ""), tuple(each), number) for number, ((_, task), each) in enumerate(sampled)]


def _check_tokens(path: Path, chat: Chat, episodes: Sequence[Trajectory]) -> None:
    for episode in episodes:
        for number, turn in enumerate(episode.turns):
            try:
                read = chat.read(turn.action.ids, (), turn=number) if turn.action.ids else turn.message
            except (IndexError, ValueError, OverflowError):
                read = None
            if read is None or (
                not turn.message.tool_calls and not turn.message.malformed and not same(read, turn.message)
            ):
                raise DataError(
                    f"{path}: {episode.id} was sampled with another tokenizer or chat format: turn {number + 1} does "
                    "not read as what it said"
                )
