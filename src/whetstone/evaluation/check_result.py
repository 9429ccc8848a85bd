"""Result of a check: status, a one-line message, and a remedy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CheckStatus(StrEnum):
    """Status of a check."""

    PASS = "pass"
    WARN = "warn"
    """The check passed with a limitation that you should know, or could not be run."""
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """Result of one check, as `doctor`, `environments check` and `rewards audit` print it."""

    name: str
    """Name of the check; empty until the runner of the checks sets it."""
    verdict: CheckStatus
    """Status of the check."""
    said: str
    """Finding in one line."""
    mend: str = ""
    """Remedy that makes the check pass."""
    seconds: float = 0.0
    """Duration of the check."""
    is_finished: bool = True
    """Whether the check ended before its deadline."""
    is_decided: bool = True
    """Whether its result is known; if not, `doctor` does not report that the recipe is ready."""
