"""Causes of failed episodes, grouped by message and counted.

Note:
    The message of one cause differs between episodes (an address, a number, an id). Numbers and addresses are therefore
    ignored when messages are grouped.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from whetstone.errors import NoScoredEpisodesError
from whetstone.trajectory import EndReason, Trajectory

FIRST_EPISODES = 32
"""Number of failures at the start, without a success, after which sampling stops."""
_DIFFERS = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?")
_LONGEST = 200
_LIMITS = {
    EndReason.CONTEXT_FULL: "use a model with a longer context (policy.tiny.context_length), or shorten the prompts",
    EndReason.MAX_TURNS: "increase environment.max_turns (or supervised.max_turns, if it is set)",
    EndReason.MAX_TOKENS: "increase rollout.max_new_tokens",
    EndReason.TIMEOUT: "increase environment.timeout_seconds",
}
"""Remedy for a limit that ends most episodes."""
_REWARDED = re.compile(r"with reward 0\.\d")
"""Pattern of a cause that contains a reward between 0 and 1."""


def find_failure_cause(trajectory: Trajectory) -> str:
    """Return the cause of a failed episode on one line.

    It is the recorded error. Without one, it is the end reason, with the reward if there is one.
    """
    error = (trajectory.error or "").strip()
    if error:
        line = error.splitlines()[0]
        return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
    reward = f" with reward {trajectory.score.value:g}" if trajectory.score is not None else ""
    return f"ended by {trajectory.ended}{reward}"


def normalize_cause(cause: str) -> str:
    """Replace numbers and addresses in a cause by `#`, so that equal causes can be grouped."""
    return _DIFFERS.sub("#", cause)


def count_causes(causes: Iterable[str], *, most: int = 5) -> dict[str, int]:
    """Count causes, most frequent first.

    Causes that differ only in numbers and addresses are counted together, under the first of them.

    Args:
        causes: One cause per failure.
        most: Number of causes to list; the remaining failures are counted as `others`.
    """
    first_causes: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for cause in causes:
        counts[first_causes.setdefault(normalize_cause(cause), cause)] += 1
    frequent = dict(counts.most_common(most))
    others = counts.total() - sum(frequent.values())
    return {**frequent, "others": others} if others else frequent


def count_failure_causes(trajectories: Iterable[Trajectory], *, most: int = 5) -> dict[str, int]:
    """Count the episodes without a score by cause; aborted episodes are ignored.

    Args:
        trajectories: Episodes, with or without a score.
        most: Number of causes to list; the remaining failures are counted as `others`.
    """
    failed = (t for t in trajectories if t.score is None and t.ended is not EndReason.ABORTED)
    return count_causes(map(find_failure_cause, failed), most=most)


def format_causes(causes: Mapping[str, int], *, most: int = 2) -> str:
    """Format counted causes: `RuntimeError: no power (12), ended by timeout (3), and 4 others`.

    Args:
        causes: Number of failures by cause, most frequent first.
        most: Number of causes to list.
    """
    named = [(cause, count) for cause, count in causes.items() if cause != "others"]
    parts = [f"{cause} ({count})" for cause, count in named[:most]]
    others = sum(count for _, count in named[most:]) + causes.get("others", 0)
    return ", ".join(parts) + (f", and {others} others" if others else "")


class StartupFailureMonitor:
    """Monitor that raises an error if each of the first episodes fails.

    Stages and collectors create one at their start, so that a broken setup does not use up the budget of a run.

    Args:
        what: Plural noun for the monitored items.
        worked: Predicate that none of them fulfills, such as `could be scored`.
    """

    def __init__(self, what: str = "episodes", worked: str = "could be scored") -> None:
        self.what, self.worked = what, worked
        self._failed: list[str] = []
        self._one_worked = False

    def record_result(self, cause: str | None) -> None:
        """Record the result of one more episode.

        Args:
            cause: Cause of its failure; None if it succeeded.

        Raises:
            NoScoredEpisodesError: If `FIRST_EPISODES` failures are recorded and no success.
        """
        if self._one_worked or cause is None:
            self._one_worked, self._failed = True, []
            return
        self._failed.append(cause)
        if len(self._failed) >= FIRST_EPISODES:
            self.conclude()

    def conclude(self) -> None:
        """Record that there are no further episodes.

        Raises:
            NoScoredEpisodesError: If there were episodes and all failed.
        """
        if self._failed:
            causes = format_causes(count_causes(self._failed))
            message = f"none of the first {len(self._failed)} {self.what} {self.worked}: {causes}"
            if any(_REWARDED.search(cause) for cause in self._failed):
                message += "; a reward below 1 is not a success: return Score(value, success=True)"
            message += _suggest_limit(self._failed)
            raise NoScoredEpisodesError(message)


def _suggest_limit(causes: Sequence[str]) -> str:
    """Format the remedy as the end of a message if a limit ended most of the failed episodes; empty otherwise."""
    for reason, remedy in _LIMITS.items():
        if 2 * sum(cause.startswith(f"ended by {reason}") for cause in causes) > len(causes):
            return f"; {remedy}"
    return ""
