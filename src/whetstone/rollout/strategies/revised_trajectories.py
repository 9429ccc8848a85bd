"""Strategy that adds revised trajectories: a failure up to its first wrong turn, then a successful sibling (Agent-R).

    shared turns → the failed path up to its first wrong turn → reflection → the sibling's turns from the fork on

Note:
    The wrong turns are read and not trained, and the observations after the cut are those of the successful path. The
    sibling's actions were sampled in another context, so their log-probs do not apply.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from whetstone.chat import Text
from whetstone.rollout.protocol import Roller
from whetstone.rollout.strategies.forked import RandomBranching
from whetstone.trajectory import Author, Group, Task, Tokens, Trajectory, Turn

MARK = "revised"


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisedTrajectories:
    """Samples a tree of episodes and adds a revision of each failure (Agent-R).

    A revision consists of a failure up to its first wrong turn and the remaining turns of a successful sibling. It has
    its sibling's score and belongs to the group. There is none if no observation follows the wrong turn, if the reward
    has values per turn, or if a template rewrote the history.

    Source: Yuan et al. 2025 (Agent-R), arXiv:2501.11425. There the policy judges which turn is the first wrong one and
    revisions are imitated. Here it is the first whose call failed, else the first after the fork, and the recipe's
    objective trains them, with ratios that start at 1.
    """

    group_size: int
    """Number of sampled episodes per task, including forks."""
    reflection: str = "That was wrong. Another way: "
    """Text that is inserted before the sibling's first action and trained."""
    max_revisions: int | None = None
    """Maximum number of revisions per group; null: one per failure."""

    @property
    def provides(self) -> frozenset[str]:
        """Return `forks`: the groups contain episodes that share turns."""
        return frozenset({"forks"})

    async def __call__(self, task: Task, roller: Roller, /) -> Group:
        """Sample the trajectories of one group; see `Strategy.__call__`."""
        played = (await RandomBranching(group_size=self.group_size)(task, roller)).trajectories
        good = [each for each in played if each.solved]
        revisions = (
            build_revision(bad, max(good, key=lambda each: shared_turns(bad, each)), self.reflection, roller)
            for bad in played
            if good and bad.ended.valid and bad.score is not None and not bad.solved
        )
        return Group(task, (*played, *[each for each in revisions if each is not None][: self.max_revisions]))


def shared_turns(one: Trajectory, other: Trajectory) -> int:
    """Return the number of leading turns that two trajectories share, as the same objects."""
    count = 0
    while count < min(len(one.turns), len(other.turns)) and one.turns[count] is other.turns[count]:
        count += 1
    return count


def first_wrong_turn(turns: Sequence[Turn]) -> int:
    """Return the index of the first turn with a malformed or failed call.

    Returns 0 if no call failed.
    """
    for place, turn in enumerate(turns):
        if turn.message.malformed or any(call.outcome != "ok" for call in turn.calls):
            return place
    return 0


def build_revision(bad: Trajectory, good: Trajectory, reflection: str, roller: Roller) -> Trajectory | None:
    """Build a trajectory from a failed path up to its first wrong turn and the rest of a successful path.

    Returns None if the paths cannot be joined, for example because one of them was rewritten.

    Args:
        bad: Failed trajectory.
        good: Successful trajectory of the same task, which may share turns with `bad`.
        reflection: Text inserted before the first action of `good` that is used.
        roller: Sampling interface; tokenizes the text.
    """
    shared = shared_turns(bad, good)
    own, rest = bad.turns[shared:], good.turns[shared:]
    cut = first_wrong_turn(own) + 1
    if not rest or cut >= len(own) or bad.opening != good.opening:
        return None
    if good.score is None or good.score.turns is not None or good.score.signals:
        return None
    later_turns = (*own[1 : cut + 1], *rest[1:])
    if any(turn.opens_segment or turn.aside or turn.conversation for turn in later_turns):
        return None
    if any(turn.training_context is not None for turn in (*own[: cut + 1], *rest)):
        return None
    wrong = [replace(turn, action=Tokens.from_ids(turn.action.ids, Author.INSERTED)) for turn in own[:cut]]
    first, *later = rest
    turned = replace(
        first,
        context=own[cut].context,
        action=_patched((*roller.tokenize(reflection), *first.action.ids)),
        message=replace(first.message, content=(Text(reflection), *first.message.content)),
        opens_segment=False,
    )
    turns = (*bad.turns[:shared], *wrong, turned, *(replace(t, action=_patched(t.action.ids)) for t in later))
    return replace(
        good,
        id=f"{bad.id}~{good.id.rpartition('#')[2]}",
        turns=turns,
        parent=bad.id if shared else None,
        fork_turn=shared or None,
        marks=(*good.marks, MARK),
        closing=None,
    )


def _patched(ids: Sequence[int]) -> Tokens:
    return Tokens.from_ids(ids, Author.CORRECTED)
