"""Execution of a tool's function: conversion of its value to a result, and attribution of its failure.

`toolset.py` describes whose failure an exception is.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from typing import Any

from whetstone.cancellation import is_second_interrupt
from whetstone.chat import Image, Text
from whetstone.errors import (
    InfrastructureError,
    ToolError,
    ToolStop,
    exception_text,
    root_exception,
    summarize_exception,
)
from whetstone.sandbox.host_paths import remove_host_paths
from whetstone.strict_json import MAX_VALUES
from whetstone.strict_json import to_plain_values as json_value
from whetstone.tools.backend_failures import find_backend_error
from whetstone.tools.protocol import Result
from whetstone.tools.schema import Tool
from whetstone.tools.thread_runner import call_user_function, is_async, run_in_thread
from whetstone.user_code import describe_place
from whetstone.waiting import waiting_for

_MAX_ERROR_CHARACTERS = 300
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def as_result(value: Any) -> Result:
    """Convert the value that a tool returned to a result: text unchanged, any other value as JSON.

    Raises:
        TypeError: If JSON cannot express the value.
    """
    if isinstance(value, Result):
        return value
    if isinstance(value, str) and not isinstance(value, Enum):
        return Result((Text(value),))
    if isinstance(value, Text | Image):
        return Result((value,))
    if isinstance(value, tuple | list) and any(isinstance(part, Text | Image) for part in value):
        return Result(tuple(part for one in value for part in as_result(one).content))
    if isinstance(value, bytes | bytearray):
        return Result((Text(json_value(value)),))
    return Result((Text(json.dumps(json_value(value, other=_format_value), ensure_ascii=False, allow_nan=False)),))


def _format_value(value: Any) -> str:
    """Return the text of a value that JSON cannot express.

    Raises:
        TypeError: If the text contains the address of an object, which differs between runs.
    """
    text = summarize_exception(value) if isinstance(value, BaseException) else str(value)
    if _ADDRESS.search(text) or f"{id(value):x}" in text.lower() or str(id(value)) in text:
        raise TypeError(f"the tool returned an object of type {type(value).__name__}, neither text nor JSON")
    return text


async def execute(tool: Tool, arguments: dict[str, Any]) -> Result:
    """Run a tool's function and return its result.

    An exception of the tool becomes a result, too.

    Raises:
        BackendError: If the backend failed, so that the call can be repeated.
        BaseException: For a second Ctrl-C.
    """
    try:
        if is_async(tool.function):
            value = await tool.function(**arguments)
        else:
            value = await call_user_function(_call, tool.function, arguments)
        if isinstance(value, AsyncIterator):
            value = await _take(value)
        is_quick = isinstance(value, Result | str)
        return as_result(value) if is_quick else await run_in_thread(as_result, value)
    except BaseException as error:  # a tool may raise anything
        if is_second_interrupt(error):
            raise
        failure = find_backend_error(root_exception(error), arguments)
        if failure is not None:
            raise failure from None
        return attribute_failure(error)


def _call(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Call a plain function and convert its result in the same thread, because the result may be a generator."""
    value = function(**arguments)
    return value if inspect.isawaitable(value) or isinstance(value, AsyncIterator) else as_result(value)


async def _take(values: AsyncIterator[Any]) -> list[Any]:
    """Return the values of an async generator as a list.

    Raises:
        TypeError: If there are more than `MAX_VALUES`.
    """
    taken = []
    async for value in values:
        taken.append(value)
        if len(taken) > MAX_VALUES:
            raise TypeError(f"{type(values).__name__} yields more than {MAX_VALUES} values")
    return taken


def attribute_failure(error: BaseException) -> Result:
    """Convert an exception to the result of its call.

    `toolset.py` describes whose failure it is.
    """
    error = root_exception(error)
    if isinstance(error, InfrastructureError):
        return replace(failed_result("unavailable", exception_text(error)), failure=error)
    if isinstance(error, ToolStop):
        return Result((Text(exception_text(error)),), "stopped")
    if isinstance(error, ToolError):
        return failed_result("tool_error", remove_host_paths(exception_text(error)))
    text = remove_host_paths(summarize_exception(error), user_folders=True)
    return failed_result("tool_failed", text, place=describe_place(error))


@contextmanager
def waiting_for_tool(owner: str) -> Iterator[None]:
    """Context manager that names the component that its block waits for, and converts backend failures.

    A failure of the component's backend is raised as `InfrastructureError`.

    Args:
        owner: Component that the block waits for, such as `tool Sql (open)`.
    """
    try:
        with waiting_for(owner):
            yield
    except Exception as error:
        failure = find_backend_error(root_exception(error), {})
        if failure is None:
            raise
        raise InfrastructureError(f"{owner}: {failure}") from error


def error_line(result: Result, content: tuple[Text | Image, ...]) -> str:
    """Return the error of a call for people, in one line of at most 300 characters.

    The result is empty if the call succeeded.
    """
    if result.outcome in ("ok", "stopped"):
        return ""
    text = "".join(part.text for part in content if isinstance(part, Text)).strip()
    line = " ".join(text.removeprefix("error: ").split())
    line = f"{result.place}: {line}" if result.place else line
    return line if len(line) <= _MAX_ERROR_CHARACTERS else f"{line[: _MAX_ERROR_CHARACTERS - 1]}…"


def failed_result(outcome: Any, reason: str, *, place: str = "") -> Result:
    """Return a result with an error text for the model.

    Args:
        outcome: Outcome of the call, such as `tool_error`.
        reason: Reason of the failure; the model reads it after `error: `.
        place: File, line and function of the user's code that raised, for people.
    """
    return Result((Text(f"error: {reason}"),), outcome, place)
