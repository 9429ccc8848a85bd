"""Ground truth of the audit: whether an episode did its task, by the environment or by the expert's answer.

The audited reward is not used.

Note: An environment can be wrong, too. A player without any action never counts as successful, and for a player that
stops immediately the result is undecided, since it may be luck. An answer somewhere in a text does not count. It must
be the last words, or the full text.
"""

from __future__ import annotations

from collections.abc import Sequence

from whetstone.evaluation.audit.probe_policies import NEVER_ACT, STOP_EARLY
from whetstone.rewards.answers.exact_match import normalize_answer, same_answer
from whetstone.rewards.answers.final_answer import final_answer
from whetstone.rewards.calls.canonical import list_calls, same_call
from whetstone.trajectory import EndReason, Task, Trajectory


def task_completed(trajectory: Trajectory, expert: Trajectory, task: Task, player: str = "") -> bool | None:
    """Return whether an episode did the task like the expert; None if undecided.

    It is undecided if the right answer comes last, after other words, which some rewards accept, or if it may be luck.

    Args:
        player: Name of the player of the episode.
    """
    did = _did(trajectory, expert, task)
    return None if did and player in STOP_EARLY else did and not _unmoved(trajectory, player)


def _unmoved(trajectory: Trajectory, player: str) -> bool:
    """Return whether the player never acts and the environment reports success."""
    return player in NEVER_ACT and "success" in trajectory.final


def _did(trajectory: Trajectory, expert: Trajectory, task: Task) -> bool | None:
    """Return whether the environment reports success, or otherwise whether the answer is right."""
    if "success" in trajectory.final and "success" in expert.final:
        solved = bool(trajectory.final["success"])
        return None if trajectory is expert and not solved else solved  # out of turns: no reference
    if trajectory is expert:
        return True
    if trajectory.ended is EndReason.MAX_TOKENS:
        return False
    answer = final_answer(trajectory)
    wanted = final_answer(expert)
    named = "answer" not in task.private and bool({"calls", "possible_answer"} & set(task.private))
    if named or wanted is None or not wanted.strip():  # the task requires calls
        return _calls_like(trajectory, expert)
    if answer is None:
        return False
    known: Sequence[str] = [wanted, *([str(task.private["answer"])] if "answer" in task.private else [])]
    if any(same_answer(answer, one) for one in known):
        return True
    return None if any(_says_last(answer, one) for one in known) else False


def _says_last(answer: str, wanted: str) -> bool:
    words, last_words = normalize_answer(answer).split(), normalize_answer(wanted).split()
    return bool(last_words) and words[-len(last_words) :] == last_words


def _calls_like(trajectory: Trajectory, expert: Trajectory) -> bool:
    calls, expert_calls = list_calls(trajectory), list_calls(expert)
    return len(calls) == len(expert_calls) and all(map(same_call, calls, expert_calls))
