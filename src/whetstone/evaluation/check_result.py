"""Result of a check: status, a one-line message, and a remedy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CheckStatus(StrEnum):
    """Result of a check."""

    PASS = "pass"
    WARN = "warn"
    """Passed with a limitation that you should know."""
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """Result of one check."""

    name: str
    verdict: CheckStatus
    said: str
    """Finding in one line."""
    mend: str = ""
    """Remedy that would make it pass."""
    seconds: float = 0.0
    is_finished: bool = True
    """Whether the check ended before its deadline."""
    is_decided: bool = True
    """Whether its result is known; if not, `doctor` does not report that the recipe is ready."""
