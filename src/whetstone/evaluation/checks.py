"""What did trying something come to? One line each, and what would mend it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """What a check came to."""

    GOOD = "good"
    NOTE = "note"
    """It will run; this should be known."""
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was tried."""

    name: str
    verdict: Verdict
    said: str
    """What was found, in one line."""
    mend: str = ""
    """What would make it good."""
    seconds: float = 0.0
    is_finished: bool = True
    """Whether the check ended before its deadline."""
