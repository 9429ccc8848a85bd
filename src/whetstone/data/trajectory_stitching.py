"""Trajectory stitching: new episodes from the prefix of one and the suffix of another with an identical context.

    A: a₁ o a₂ …      B: b₁ o′ b₂ o b₃ ✓       both read o →      a₁ o b₃ ✓

Note:
    The suffix was sampled after a different prefix. It is trained, but its log-probs are not valid and are dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from whetstone.data.select_episodes import format_turns, get_reward
from whetstone.trajectory import TRAINABLE, Author, Group, OffPolicy, Score, Tokens, Trajectory, Turn


def add_stitched(group: Group, most: int) -> Group:
    """Append up to `most` stitched trajectories to a group, each the prefix of one and the suffix of another.

    Both have the same context tokens at the splice. Suffixes with the highest reward come first, and duplicates of
    other trajectories are skipped.

    If a turn has the same new context in two episodes of a task, their states are assumed to be equal. In an
    environment with hidden state this is an approximation, as is the reward, which is that of the episode with the
    suffix. The trajectory has the flag `joined` and forks from the one with the prefix. The suffix is trained as text
    that was not sampled (`patched`), with initial ratios of 1.

    Source: by analogy, Yu et al. 2025 (SkillMimic-V2), arXiv:2505.02094, which stitches demonstrations at neighboring
    states; here states are equal, not near.
    """
    own = [t for t in group.trajectories if t.score is not None and not t.score.invalid and not t.greedy]
    known = {format_turns(trajectory) for trajectory in own}
    joined: list[Trajectory] = []
    for stitched in _stitch(sorted(own, key=get_reward, reverse=True), own):
        if len(joined) == most:
            break
        if format_turns(stitched) not in known:
            known.add(format_turns(stitched))
            joined.append(stitched)
    return replace(group, trajectories=(*group.trajectories, *joined))


def _stitch(ends: Sequence[Trajectory], begins: Sequence[Trajectory]) -> Iterator[Trajectory]:
    for end, begin in product(ends, begins):
        if begin is end or begin.opening != end.opening:
            continue
        for k, j in product(range(1, len(begin.turns)), range(1, len(end.turns))):
            same = begin.turns[k].context.sequence == end.turns[j].context.sequence
            if same and _continues(begin, k) and _continues(end):
                yield _of_both(begin, k, end, j)


def _continues(trajectory: Trajectory, count: int | None = None) -> bool:
    """Return whether the first `count` turns are consecutive in one segment, unchanged for the environment."""
    first, *others = trajectory.turns[:count]
    plain = (turn.training_context is None and not turn.aside for turn in (first, *others))
    return all(plain) and not any(turn.opens_segment for turn in others)


def _of_both(begin: Trajectory, k: int, end: Trajectory, j: int) -> Trajectory:
    return replace(
        end,
        id=f"{begin.id}+{k}:{end.id}+{j}",
        turns=(*begin.turns[:k], *map(_drawn_by_nobody, end.turns[j:])),
        score=_score(begin.score, k, end.score, j),
        parent=begin.id,
        fork_turn=k,
        marks=(*end.marks, "joined"),
        off_policy=OffPolicy.RECOMPUTE,
        removal=None,
    )


def _drawn_by_nobody(turn: Turn) -> Turn:
    if not any(author in TRAINABLE for author in turn.action.authors):
        return turn  # excluded from training, and stays so
    return replace(turn, action=Tokens.from_ids(turn.action.ids, Author.CORRECTED))


def _score(begin: Score | None, k: int, end: Score | None, j: int) -> Score:
    """Combine scores: the outcome of the suffix, and turn rewards of the episode in which each turn was played."""
    assert begin is not None
    assert end is not None
    turns = None if begin.turns is None or end.turns is None else (*begin.turns[:k], *end.turns[j:])
    names = begin.signals.keys() & end.signals.keys()
    return replace(
        end, turns=turns, signals={name: (*begin.signals[name][:k], *end.signals[name][j:]) for name in names}
    )
