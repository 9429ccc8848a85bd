"""What did trying something come to? One line each, and what would mend it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CheckStatus(StrEnum):
    """Result of a check."""

    PASS = "pass"
    WARN = "warn"
    """It runs, with a limitation that you should know."""
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was tried."""

    name: str
    verdict: CheckStatus
    said: str
    """What was found, in one line."""
    mend: str = ""
    """What would make it pass."""
    seconds: float = 0.0
    is_finished: bool = True
    """Whether the check ended before its deadline."""
    is_decided: bool = True
    """Whether its result is known; if not, `doctor` does not report that the recipe is ready."""
