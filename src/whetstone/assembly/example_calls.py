"""Attribution of failed calls in checks before a run."""

from __future__ import annotations

from collections.abc import Sequence

from whetstone.evaluation.check_result import Check, CheckStatus
from whetstone.tool_calls import describe_failing_tools, tool_statistics
from whetstone.trajectory import CallRecord
from whetstone.user_code import remove_place

_OF_ARGUMENTS = ("IndexError", "KeyError", "LookupError", "ValueError")
"""Exceptions of a tool that example arguments can cause."""


def judge_failures(lines: Sequence[str], errors: Sequence[str]) -> Check:
    """Return the result of calls with example arguments that all failed, which these arguments may have caused."""
    if all(remove_place(error).startswith(_OF_ARGUMENTS) for error in errors):
        mend = "raise ToolError for arguments that the model must correct (from whetstone import ToolError)"
        message = f"{'; '.join(lines)}; the example arguments may be the cause"
        return Check("", CheckStatus.WARN, message, mend, is_decided=False)
    return Check("", CheckStatus.FAIL, "; ".join(lines))


def describe_failures_of_tools(calls: Sequence[CallRecord]) -> list[str]:
    """Return a line for each tool that itself failed in all of these calls."""
    statistics = tool_statistics(calls)
    return describe_failing_tools({name: tool for name, tool in statistics.items() if tool.failed})
