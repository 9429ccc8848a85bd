"""Offline episodes: groups from a run, a file of trajectories, or the log of another tool.

Note:
    Stored tokens are valid only for the tokenizer with which they were sampled. The tokens of a few episodes are
    therefore decoded and compared with their text. Episodes with only text are tokenized as this model would sample
    them, without log-probs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, groupby
from pathlib import Path

from whetstone.chat import Chat, ToolSpec, user
from whetstone.data.conversations import Chosen, DataUsage, all_assistant_turns, read_conversation
from whetstone.data.demonstrations import messages_equal, tokenize_conversation
from whetstone.data.logs import LoggedEpisode, TokenSpan, list_used_columns, parse_log_row
from whetstone.data.row_readers import OnBadRow, Row, read_all
from whetstone.data.select_episodes import Choice, get_reward
from whetstone.data.trajectory_stitching import add_stitched
from whetstone.errors import DataError, RunDirectoryError
from whetstone.record import RunRecord
from whetstone.reporting.trajectories import read_trajectories
from whetstone.rollout.relabel_context import relabel_context
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
"""Number of episodes whose tokens are checked."""
_ALL = Choice()


Relabel = Callable[[Trajectory], str | None]
"""Function (an episode that did not solve its task) → description of the task it did solve; None: it solved none."""


def stored_groups(
    path: Path,
    chat: Chat,
    choice: Choice = _ALL,
    *,
    train_on: Chosen = all_assistant_turns,
    joined: int = 0,
    relabel: Relabel | None = None,
    tools: Sequence[ToolSpec] = (),
) -> list[Group]:
    """Load groups of scored episodes, in the order in which they were sampled.

    Args:
        path: A run directory, or a trajectory file of a run.
        chat: Tokenizer that the episodes must match.
        choice: Filters.
        train_on: Turns that are trained; the others are context.
        joined: Maximum number of stitched episodes per group, see `add_stitched`.
        relabel: Hindsight relabeling of episodes that did not solve their task; they count as solutions of the new one.
        tools: Tools of the episodes; for `relabel`.

    Raises:
        DataError: There are none, or they were sampled with another tokenizer.
    """
    groups = _of_run(path) if path.is_dir() else _of_file(path)
    if relabel is not None:
        relabel_one = partial(_relabel, relabel=relabel, chat=chat, tools=tools)
        groups = [replace(group, trajectories=tuple(map(relabel_one, group.trajectories))) for group in groups]
    chosen = _filter(path, [add_stitched(group, joined) for group in groups], choice)
    _check_tokens(path, chat, [t for group in chosen for t in group.trajectories][:_TRIED])
    return _mask(path, chosen, train_on)


def logged_groups(
    path: Path,
    chat: Chat,
    choice: Choice = _ALL,
    *,
    train_on: Chosen = all_assistant_turns,
    joined: int = 0,
    split: str = "train",
    reward: str | Sequence[str] | None = None,
    offered: tuple[ToolSpec, ...] = (),
    context_length: float = math.inf,
    on_bad_row: OnBadRow = "stop",
    count_skipped: Callable[[int], None] = lambda count: None,
    usage: DataUsage | None = None,
) -> list[Group]:
    """Load the episodes of other tools: rows of the same task are a group; groups are in the order of the file.

    Args:
        path: A file, as `load_rows` reads it.
        chat: Tokenizer and chat template.
        choice: Filters.
        train_on: Turns that are trained; the others are context.
        joined: Maximum number of stitched episodes per group, see `add_stitched`.
        split: Split of a dataset with several splits.
        reward: Column of the reward, or columns that are summed; None: the usual ones.
        offered: Tools of a row without tools.
        context_length: Maximum number of tokens of an episode.
        on_bad_row: `stop` raises one error for all invalid rows; `skip` excludes them.
        count_skipped: Receives the number of rows that are skipped.
        usage: Counts trained and excluded turns, and keys without effect.

    Returns:
        The groups, including episodes that cannot be trained: those have no score, and an `error`.

    Raises:
        DataError: A row is invalid or has no reward, its tokens are of another tokenizer, or no episode passes.
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
    train_on: Chosen = all_assistant_turns,
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
    for number, episode in enumerate(parse_log_row(row, reward)):
        if episode.reward is None:
            raise row.error("no reward; set its column (`reward`)")
        used = list_used_columns(row, reward)
        if episode.pieces:
            excluded = usage.add_row(row, used, sum(piece.sampled for piece in episode.pieces))
            trajectory = _read_pieces(episode, chat, offered, context_length)
            if excluded:
                reason = f"{row.where}  all of its turns are excluded from training ({excluded})"
                trajectory = replace(trajectory, turns=(), ended=EndReason.ERROR, error=reason)
        else:
            conversation = read_conversation(episode.row, offered, used=used)
            usage.add(conversation, chosen=train_on)
            trajectory = tokenize_conversation(conversation, chat, context_length=context_length)
        trajectory = replace(trajectory, id=f"{row.where}#{number}", task_id=episode.task)
        if trajectory.error is None:
            trajectory = replace(trajectory, score=Score(episode.reward))
        episodes.append(trajectory)
    return episodes


def group_episodes(
    path: Path,
    episodes: Sequence[Trajectory],
    choice: Choice,
    *,
    train_on: Chosen = all_assistant_turns,
    joined: int = 0,
) -> list[Group]:
    """Group the episodes of a log by task, and apply the filters.

    Raises:
        DataError: No episode remains, or `train_on` selects no turn.
    """
    tasks: dict[str, list[Trajectory]] = {}
    for episode in episodes:
        tasks.setdefault(episode.task_id, []).append(episode)
    groups = [Group(Task(task, ""), tuple(each), number) for number, (task, each) in enumerate(tasks.items())]
    failed = {group.number: [t for t in group.trajectories if t.error is not None] for group in groups}
    chosen = _mask(path, _filter(path, [add_stitched(group, joined) for group in groups], choice), train_on)
    return [replace(group, trajectories=(*group.trajectories, *failed[group.number])) for group in chosen]


def _filter(path: Path, groups: Sequence[Group], choice: Choice) -> list[Group]:
    chosen = choice.select_groups(groups)
    if not chosen:
        failed = next((t.error for group in groups for t in group.trajectories if t.error is not None), None)
        filters = f" with {choice}" if str(choice) else ""
        why = f"; the first invalid one: {failed}" if failed else ""
        raise DataError(f"{path}: no scored episodes{filters} to train on{why}")
    return chosen


def mask_unselected_turns(episode: Trajectory, train_on: Chosen) -> Trajectory:
    """Return the episode with unselected turns masked: no author of the policy, no log-probs, not in the loss.

    Args:
        episode: The episode.
        train_on: Receives a turn's message, its index, and all messages of the episode.
    """
    messages = episode.messages
    turns = tuple(
        turn
        if train_on(turn.message, number, messages)
        else replace(turn, action=Tokens.from_ids(turn.action.ids, Author.INSERTED))
        for number, turn in enumerate(episode.turns)
    )
    return replace(episode, turns=turns)


def _mask(path: Path, groups: Sequence[Group], train_on: Chosen) -> list[Group]:
    if train_on is all_assistant_turns:
        return list(groups)
    masked = [
        replace(g, trajectories=tuple(mask_unselected_turns(t, train_on) for t in g.trajectories)) for g in groups
    ]
    if not any(t.segments() for group in masked for t in group.trajectories):
        raise DataError(f"{path}: train_on selects none of its turns")
    return masked


def _read_pieces(
    episode: LoggedEpisode, chat: Chat, offered: tuple[ToolSpec, ...], context_length: float
) -> Trajectory:
    where = episode.row.where
    turns: list[Turn] = []
    context, opens, length = Tokens.concatenate(()), True, 0
    for piece in episode.pieces:
        _check_piece(episode, piece, chat)
        if not piece.sampled:
            context, opens = Tokens.concatenate((context, Tokens.from_ids(piece.ids, Author.ENVIRONMENT))), piece.begins
            length = len(piece.ids) + (0 if piece.begins else length)
            continue
        message = chat.read(piece.ids, offered, turn=len(turns))
        turns.append(Turn(context=context, action=_to_tokens(piece), message=message, opens_segment=opens or not turns))
        context, opens, length = Tokens.concatenate(()), False, length + len(piece.ids)
        if length > context_length:
            error = f"{where}  it has {length:,} tokens or more, the context {context_length:,.0f}"
            return Trajectory(where, episode.task, (), (), EndReason.ERROR, error, provenance=Provenance.REPLAYED)
    return Trajectory(where, episode.task, (), tuple(turns), EndReason.TERMINATED, provenance=Provenance.REPLAYED)


def _check_piece(episode: LoggedEpisode, piece: TokenSpan, chat: Chat) -> None:
    if max(piece.ids, default=0) >= len(chat.tokenizer):
        raise episode.row.error(
            f"token {max(piece.ids)} is not in this policy's tokenizer ({len(chat.tokenizer)} tokens)"
        )
    if piece.text and piece.text.strip() not in chat.tokenizer.decode(piece.ids):
        raise episode.row.error(
            f"the token ids are of another tokenizer: they do not decode to {piece.text.strip()[:60]!r}"
        )


def _to_tokens(piece: TokenSpan) -> Tokens:
    if any(map(math.isnan, piece.logprobs)):
        return Tokens.from_ids(piece.ids, Author.EXPERT)
    nothing = (math.nan,) * len(piece.ids)
    return Tokens.from_samples(piece.ids, logprobs=piece.logprobs, versions=(-1,) * len(piece.ids), entropies=nothing)


def best_and_worst(group: Group) -> tuple[Trajectory, Trajectory] | None:
    """Return the scored episodes with the highest and the lowest reward; None if rewards or messages are equal."""
    scored = [each for each in group.trajectories if each.score is not None]
    best, worst = max(scored, key=get_reward), min(scored, key=get_reward)
    same_worth = get_reward(best) == get_reward(worst)
    return None if same_worth or best.messages == worst.messages else (best, worst)


def count_same_order(before: Sequence[Group], after: Sequence[Group]) -> tuple[int, int]:
    """Count the pairs of episodes of one group that two rewards put into the same order.

    Args:
        before: Groups with scores of one reward.
        after: The same groups with scores of another reward.

    Returns:
        (pairs in the same order, pairs that differ in both rewards).
    """
    same = pairs = 0
    for old, new in zip(before, after, strict=True):
        values = zip(map(get_reward, old.trajectories), map(get_reward, new.trajectories), strict=True)
        for (a, x), (b, y) in combinations(values, 2):
            pairs += a != b and x != y
            same += (a - b) * (x - y) > 0
    return same, pairs


def is_offline(path: Path) -> bool:
    """Return whether a path is a run, or a trajectory file of a run, rather than a dataset."""
    if path.is_dir():
        return (path / "recipe.yaml").is_file()
    if path.suffix != ".jsonl" or not path.is_file():
        return False
    with open(path, "rb") as file:
        return b'"turns"' in file.readline(1 << 20)


def mark_offline(group: Group, name: str, *, number: int = 0, off_policy: OffPolicy | None = None) -> Group:
    """Mark a group of another run as off-policy data before an update.

    Each trajectory gets an id with the prefix `name`, the provenance `replayed` unless it is `demonstrated` or `human`,
    and tokens that are older than every version of this run. The group adds no costs.

    Args:
        group: The group.
        name: Prefix of the ids.
        number: Index of the group.
        off_policy: Reference of the ratios; None: the stored log-probs or, if there are none, the policy before the
            update, with initial ratios of 1.

    Raises:
        DataError: Log-probs are required, and a trajectory has none.
    """
    older: dict[int, Turn] = {}
    for trajectory in group.trajectories:
        for turn in trajectory.turns:  # a turn that several trajectories share stays one object
            older.setdefault(id(turn), replace(turn, action=_older(turn)))
    stored = (_mark(trajectory, name, off_policy, older) for trajectory in group.trajectories)
    return replace(group, trajectories=tuple(stored), number=number, costs=Costs())


def _mark(trajectory: Trajectory, name: str, off_policy: OffPolicy | None, older: Mapping[int, Turn]) -> Trajectory:
    drawn = all(
        author not in TRAINABLE or not math.isnan(logprob)
        for turn in trajectory.turns
        for author, logprob in zip(turn.action.authors, turn.action.logprobs, strict=True)
    )
    if not drawn and off_policy in (OffPolicy.STORED, OffPolicy.TRUNCATED):
        raise DataError(
            f"{trajectory.id}: has no log-probs of the sampler, which off_policy: {off_policy} requires; "
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
    """Return tokens of another run; tokens of an expert receive credit here, and are not imitated."""
    authors = tuple(Author.CORRECTED if author is Author.EXPERT else author for author in turn.action.authors)
    return replace(turn.action, versions=(-1,) * len(turn.action), authors=authors)


def _relabel(trajectory: Trajectory, relabel: Relabel, chat: Chat, tools: Sequence[ToolSpec]) -> Trajectory:
    """Relabel an unsolved trajectory with the task that it did solve (hindsight relabeling).

    A solved trajectory, and one for which `relabel` returns None, is unchanged.

    Source: Murty et al. 2024 (BAGEL), arXiv:2403.08140, in which a model describes a trajectory.
    """
    if trajectory.score is None or trajectory.solved or not trajectory.turns:
        return trajectory
    text = relabel(trajectory)
    if text is None:
        return trajectory
    place = next((k for k in range(len(trajectory.opening) - 1, -1, -1) if trajectory.opening[k].role == "user"), None)
    if place is None:
        raise DataError(f"{trajectory.id}: its prompt has no user message, so there is no task to relabel")
    try:
        relabeled = relabel_context(
            trajectory, (*trajectory.opening[:place], user(text), *trajectory.opening[place + 1 :]), chat, tools
        )
    except ValueError as error:
        raise DataError(str(error)) from None
    return replace(relabeled, score=Score(1.0, success=True), marks=(*relabeled.marks, "relabelled"))


def _of_run(run_dir: Path) -> list[Group]:
    if not (run_dir / "recipe.yaml").is_file():
        raise DataError(f"{run_dir}: not a run directory (recipe.yaml is missing)")
    try:
        record = RunRecord(run_dir)
        return [
            _with_its_task(record.load(number, Task("", "")))
            for number in sorted(record.admitted)
            if record.has_group(number)
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
    # `group-7/task/…#2`: the part before the first slash is the group
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
                not turn.message.tool_calls and not turn.message.malformed and not messages_equal(read, turn.message)
            ):
                raise DataError(
                    f"{path}: {episode.id} was sampled with another tokenizer or chat format: turn {number + 1} does "
                    "not decode to its text"
                )
