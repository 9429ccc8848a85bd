"""What does a failure teach, where a sibling shows how it goes on? To turn round in the middle.

    shared turns → the failed path up to its first wrong turn → "another way" → the sibling's turns from the fork on

Easy to get wrong: the wrong turns are read and not trained, and what comes back behind the cut is what the good path
was answered. The sibling's words were drawn behind something else, so what they were drawn with no longer holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from whetstone.chat import Text
from whetstone.rollout.protocol import Roller
from whetstone.rollout.strategies.forked import Forked
from whetstone.trajectory import Author, Group, Task, Tokens, Trajectory, Turn

MARK = "revised"


@dataclass(frozen=True, slots=True, kw_only=True)
class Revised:
    """A tree of episodes, and for each that failed a revision: up to its first wrong turn, then as a sibling went on
    that succeeded (Agent-R).

    A revision has its sibling's score and is one of the group. There is none where nothing came back behind the wrong
    turn, where the reward pays turns one by one, or where a template rewrote history on the way.

    Source: Yuan et al. 2025 (Agent-R), arXiv:2501.11425. There the policy judges which turn is the first wrong one and
        revisions are imitated; here it is the first whose call failed, else the first behind the fork, and the recipe's
        objective learns them, with ratios that begin at 1.
    """

    group_size: int
    """Episodes of each task that are played, forks among them."""
    reflection: str = "That was wrong. Another way: "
    """Text inserted before the sibling's first words; trained."""
    max_revisions: int | None = None
    """Maximum number of revisions per group; null: one per failure."""

    @property
    def provides(self) -> frozenset[str]:
        """What its groups carry."""
        return frozenset({"forks"})

    async def __call__(self, task: Task, roller: Roller, /) -> Group:
        """See `Strategy`."""
        played = (await Forked(group_size=self.group_size)(task, roller)).trajectories
        good = [each for each in played if each.solved]
        made = (
            revision(bad, max(good, key=lambda each: shared_turns(bad, each)), self.reflection, roller)
            for bad in played
            if good and bad.ended.valid and bad.score is not None and not bad.solved
        )
        return Group(task, (*played, *[each for each in made if each is not None][: self.max_revisions]))


def shared_turns(one: Trajectory, other: Trajectory) -> int:
    """How many first turns two trajectories have in common, the same objects."""
    count = 0
    while count < min(len(one.turns), len(other.turns)) and one.turns[count] is other.turns[count]:
        count += 1
    return count


def first_wrong(turns: Sequence[Turn]) -> int:
    """The first turn that could not be read or whose call did not work; the first of all where there is none."""
    for place, turn in enumerate(turns):
        if turn.message.malformed or any(call.outcome != "ok" for call in turn.calls):
            return place
    return 0


def revision(bad: Trajectory, good: Trajectory, reflection: str, roller: Roller) -> Trajectory | None:
    """A failed path that turns round behind its first wrong turn and goes on as a good one; None where it cannot."""
    shared = shared_turns(bad, good)
    own, rest = bad.turns[shared:], good.turns[shared:]
    cut = first_wrong(own) + 1
    if not rest or cut >= len(own) or bad.opening != good.opening:
        return None
    if good.score is None or good.score.turns is not None or good.score.signals:
        return None
    behind = (*own[1 : cut + 1], *rest[1:])
    if any(turn.opens_segment or turn.aside or turn.conversation for turn in behind):
        return None
    if any(turn.training_context is not None for turn in (*own[: cut + 1], *rest)):
        return None
    wrong = [replace(turn, action=Tokens.written(turn.action.ids, Author.INSERTED)) for turn in own[:cut]]
    first, *later = rest
    turned = replace(
        first,
        context=own[cut].context,
        action=_patched((*roller.written(reflection), *first.action.ids)),
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
    return Tokens.written(ids, Author.CORRECTED)
