"""Did an episode do its task? Told without the reward that is being tried: by the world, or by the expert's own answer.

Easy to get wrong: an answer that is somewhere in a text has not been given. What is said last, or alone, has.
"""

from __future__ import annotations

from collections.abc import Sequence

from whetstone.rewards.answers.exact_match import normalized, same_answer
from whetstone.rewards.answers.final_answer import final_answer
from whetstone.rewards.calls.canonical import calls_of, same_call
from whetstone.trajectory import EndReason, Task, Trajectory


def deserves(trajectory: Trajectory, expert: Trajectory, task: Task) -> bool | None:
    """Whether an episode did what the expert's did; None where that is a matter of taste: the right answer comes last,
    behind other words, and some rewards take it."""
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
