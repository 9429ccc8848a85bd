"""Which new episodes are hidden in stored ones? The beginning of one with the end of another, where both saw the same.

    A: a₁ o a₂ …      B: b₁ o′ b₂ o b₃ ✓       both read o →      a₁ o b₃ ✓

Easy to get wrong: what stands behind the join was drawn behind another beginning, so it is nobody's draw here: it is
trained, and the log-probs it was drawn with are gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from whetstone.data.choosing import reward_of, said
from whetstone.trajectory import TRAINABLE, Author, Group, OffPolicy, Score, Tokens, Trajectory, Turn


def with_joined(group: Group, most: int) -> Group:
    """The group with at most so many new trajectories behind its own, each the beginning of one and the end of another
    that read the same there, token for token; those that end best first, and none that says what another says.

    Where a turn's new context is the same in two episodes of one task, their state is taken for the same; in a world
    that remembers more than it shows that is a guess, and so is the reward, which is that of the episode that ends it.
    The trajectory is marked `joined` and forks from the one that begins it; what it takes of the other is trained as
    text nobody drew (`patched`), with ratios that begin at 1.

    Source: by analogy, Yu et al. 2025 (SkillMimic-V2), arXiv:2505.02094, which stitches demonstrations at neighbouring
    states; here states are equal, not near.
    """
    own = [t for t in group.trajectories if t.score is not None and not t.score.invalid and not t.greedy]
    known = {said(trajectory) for trajectory in own}
    joined: list[Trajectory] = []
    for made in _joined(sorted(own, key=reward_of, reverse=True), own):
        if len(joined) == most:
            break
        if said(made) not in known:
            known.add(said(made))
            joined.append(made)
    return replace(group, trajectories=(*group.trajectories, *joined))


def _joined(ends: Sequence[Trajectory], begins: Sequence[Trajectory]) -> Iterator[Trajectory]:
    for end, begin in product(ends, begins):
        if begin is end or begin.opening != end.opening:
            continue
        for k, j in product(range(1, len(begin.turns)), range(1, len(end.turns))):
            same = begin.turns[k].context.sequence == end.turns[j].context.sequence
            if same and _continues(begin, k) and _continues(end):
                yield _of_both(begin, k, end, j)


def _continues(trajectory: Trajectory, count: int | None = None) -> bool:
    """Whether its first turns stand behind one another in one segment, as they were said to the environment."""
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
    return replace(turn, action=Tokens.written(turn.action.ids, Author.CORRECTED))


def _score(begin: Score | None, k: int, end: Score | None, j: int) -> Score:
    """The outcome of the end, and of each turn what was said of it where it was played."""
    assert begin is not None
    assert end is not None
    turns = None if begin.turns is None or end.turns is None else (*begin.turns[:k], *end.turns[j:])
    names = begin.signals.keys() & end.signals.keys()
    return replace(
        end, turns=turns, signals={name: (*begin.signals[name][:k], *end.signals[name][j:]) for name in names}
    )
