"""Did an episode do its task? Told without the reward that is being tried: by the world, or by the expert's own answer.

Easy to get wrong: a world can be wrong, too. Of who made no move it is not believed that he did the task, and of who
stopped at once it is left open, since that may have been luck. And an answer that is somewhere in a text has not been
given. What is said last, or alone, has.
"""

from __future__ import annotations

from collections.abc import Sequence

from whetstone.evaluation.audit.players import NEVER_ACT, STOP_EARLY
from whetstone.rewards.answers.exact_match import normalized, same_answer
from whetstone.rewards.answers.final_answer import final_answer
from whetstone.rewards.calls.canonical import calls_of, same_call
from whetstone.trajectory import EndReason, Task, Trajectory


def deserves(trajectory: Trajectory, expert: Trajectory, task: Task, player: str = "") -> bool | None:
    """Whether an episode did what the expert's did; None where that is a matter of taste: the right answer comes last,
    behind other words, and some rewards take it; or where it was luck.

    Args:
        player: Who played it.
    """
    found = _did(trajectory, expert, task)
    return None if found and player in STOP_EARLY else found and not _unmoved(trajectory, player)


def _unmoved(trajectory: Trajectory, player: str) -> bool:
    """Whether nobody in this seat can have done anything in the world that says what became of it."""
    return player in NEVER_ACT and "success" in trajectory.final


def _did(trajectory: Trajectory, expert: Trajectory, task: Task) -> bool | None:
    """Whether the world says so, or else the answer."""
    if "success" in trajectory.final and "success" in expert.final:
        solved = bool(trajectory.final["success"])
        return None if trajectory is expert and not solved else solved  # he ran out of turns: nobody's yardstick
    if trajectory is expert:
        return True
    if trajectory.ended is EndReason.MAX_TOKENS:
        return False
    answer = final_answer(trajectory)
    wanted = final_answer(expert)
    named = "answer" not in task.private and bool({"calls", "possible_answer"} & set(task.private))
    if named or wanted is None or not wanted.strip():  # what is wanted are calls
        return _calls_like(trajectory, expert)
    if answer is None:
        return False
    known: Sequence[str] = [wanted, *([str(task.private["answer"])] if "answer" in task.private else [])]
    if any(same_answer(answer, one) for one in known):
        return True
    return None if any(_says_last(answer, one) for one in known) else False


def _says_last(answer: str, wanted: str) -> bool:
    said, asked = normalized(answer).split(), normalized(wanted).split()
    return bool(asked) and said[-len(asked) :] == asked


def _calls_like(trajectory: Trajectory, expert: Trajectory) -> bool:
    ours, theirs = calls_of(trajectory), calls_of(expert)
    return len(ours) == len(theirs) and all(map(same_call, ours, theirs))
