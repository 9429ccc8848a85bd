"""What did episodes fail by? The few causes behind many failures, each said once, with how often.

Easy to get wrong: the same cause reads differently in every episode (an address, a number, an id), and a hundred lines
that differ in a digit tell nobody anything.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from whetstone.errors import NothingScoredError
from whetstone.trajectory import EndReason, Trajectory

FIRST_EPISODES = 32
"""So many failures at the beginning, and nothing else, say that nothing else will come."""
_DIFFERS = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?")
_LONGEST = 200
_REWARDED = re.compile(r"with reward 0\.\d")
"""A cause with a reward between 0 and 1."""


def cause_of(trajectory: Trajectory) -> str:
    """Why an episode says nothing, in one line; how it ended where no more is known."""
    said = (trajectory.error or "").strip()
    if said:
        line = said.splitlines()[0]
        return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
    reward = f" with reward {trajectory.score.value:g}" if trajectory.score is not None else ""
    return f"ended by {trajectory.ended}{reward}"


def cause_key(cause: str) -> str:
    """What causes have in common that differ in numbers and addresses alone."""
    return _DIFFERS.sub("#", cause)


def counted_causes(causes: Iterable[str], *, most: int = 5) -> dict[str, int]:
    """Each cause with how often there was one like it, the most frequent first, and what is left as `others`.

    Causes that differ in numbers and addresses alone are one, told as the first of them.
    """
    told: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for cause in causes:
        counts[told.setdefault(cause_key(cause), cause)] += 1
    found = dict(counts.most_common(most))
    others = counts.total() - sum(found.values())
    return {**found, "others": others} if others else found


def causes_of(trajectories: Iterable[Trajectory], *, most: int = 5) -> dict[str, int]:
    """By cause, how many episodes have no score; those somebody stopped are not among them."""
    failed = (t for t in trajectories if t.score is None and t.ended is not EndReason.ABORTED)
    return counted_causes(map(cause_of, failed), most=most)


def listed(causes: Mapping[str, int], *, most: int = 2) -> str:
    """`RuntimeError: no power (12), ended by timeout (3), and 4 others`"""
    named = [(cause, count) for cause, count in causes.items() if cause != "others"]
    parts = [f"{cause} ({count})" for cause, count in named[:most]]
    others = sum(count for _, count in named[most:]) + causes.get("others", 0)
    return ", ".join(parts) + (f", and {others} others" if others else "")


class Beginning:
    """Watches the first episodes: where every one of them fails, whoever waits for the next is told so.

    Args:
        what: They are called, in the plural.
        worked: What none of them did, such as `could be scored`.
    """

    def __init__(self, what: str = "episodes", worked: str = "could be scored") -> None:
        self.what, self.worked = what, worked
        self._failed: list[str] = []
        self._one_worked = False

    def see(self, cause: str | None) -> None:
        """One more is over; why it failed, or None.

        Raises:
            NothingScoredError: It was the last that was given a chance.
        """
        if self._one_worked or cause is None:
            self._one_worked, self._failed = True, []
            return
        self._failed.append(cause)
        if len(self._failed) >= FIRST_EPISODES:
            self.conclude()

    def conclude(self) -> None:
        """No more are to come.

        Raises:
            NothingScoredError: There were some, and none worked.
        """
        if self._failed:
            causes = listed(counted_causes(self._failed))
            message = f"none of the first {len(self._failed)} {self.what} {self.worked}: {causes}"
            if any(_REWARDED.search(cause) for cause in self._failed):
                message += "; a reward below 1 is no success: return Score(value, success=True)"
            raise NothingScoredError(message)
