"""Reasons why an episode ends."""

from __future__ import annotations

from enum import StrEnum


class EndReason(StrEnum):
    """Reason why an episode ended. The list is complete: every way to end has a name here."""

    TERMINATED = "terminated"
    """The environment ended the episode: answered, solved or lost."""
    TRUNCATED = "truncated"
    """A limit of the environment cut the episode short."""
    MAX_TURNS = "max_turns"
    """The episode used up its turns."""
    MAX_TOKENS = "max_tokens"
    """A turn used up its tokens before it was finished."""
    CONTEXT_FULL = "context_full"
    """The model's context has no room for another turn."""
    MALFORMED_ACTION = "malformed_action"
    """The action could not be parsed, and the environment allows no retry."""
    TOOL_STOPPED = "tool_stopped"
    """A tool ended the episode."""
    EARLY_STOPPED = "stopped"
    """A rule of the rollout ended it, such as one for void turns; its name is in `Trajectory.marks`."""
    TIMEOUT = "timeout"
    """The episode's deadline passed."""
    ABORTED = "aborted"
    """The run was stopped, or the episode cancelled."""
    INFRASTRUCTURE = "infrastructure"
    """An engine, server or sandbox failed; the episode is not trained."""
    ERROR = "error"
    """An exception in the environment, a reward or Whetstone; `Trajectory.error` holds the cause."""

    @property
    def valid(self) -> bool:
        """Return whether the episode is a result of the policy; if not, it leaves every statistic."""
        return self not in (EndReason.ABORTED, EndReason.INFRASTRUCTURE, EndReason.ERROR)

    @property
    def cut_short(self) -> bool:
        """Return whether a limit ended the episode rather than the environment or a failure."""
        return self in (
            EndReason.TRUNCATED,
            EndReason.MAX_TURNS,
            EndReason.MAX_TOKENS,
            EndReason.CONTEXT_FULL,
            EndReason.TIMEOUT,
        )
