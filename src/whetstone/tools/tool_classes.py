"""Classes of tools: creation of their objects, and the tools that an object offers."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from whetstone.capabilities import implements_protocol
from whetstone.errors import InfrastructureError, RecipeError, WhetstoneError, did_you_mean
from whetstone.tools.protocol import LIFETIME, HasOpen, OffersTools
from whetstone.tools.schema import Tool, tool_from_function
from whetstone.tools.side_effects import DeclaresEffects, declared_effect
from whetstone.user_code import describe_exception


def list_object_tools(holder: Any) -> list[Tool]:
    """Return the tools of an object: those that its `tools` returns, or its public methods.

    Raises:
        RecipeError: A method cannot be a tool.
    """
    if implements_protocol(holder, OffersTools):
        offered = [tool if isinstance(tool, Tool) else tool_from_function(tool) for tool in holder.tools()]
        return [_with_effects(tool, holder) for tool in offered]
    names = dict.fromkeys(name for kind in reversed(type(holder).__mro__) for name in vars(kind))  # as they are written
    names = {name: None for name in names if not name.startswith("_") and name not in LIFETIME}
    methods = {name: getattr(holder, name) for name in names if not _is_property(holder, name)}
    tools = [tool_from_function(method, name) for name, method in methods.items() if _is_method(method)]
    if implements_protocol(holder, DeclaresEffects) and isinstance(holder.effects, Mapping):
        known = {tool.spec.name for tool in tools}
        for name in holder.effects.keys() - known:
            raise RecipeError(f'{type(holder).__name__}.effects: there is no tool "{name}"{did_you_mean(name, known)}')
    return [_with_effects(tool, holder) for tool in tools]


def _with_effects(tool: Tool, holder: Any) -> Tool:
    """Return a tool with the effect that it or its class declares."""
    declared = tool.effects or declared_effect(holder, tool.spec.name)
    return tool if declared == tool.effects else replace(tool, effects=declared)


def _is_property(holder: Any, name: str) -> bool:
    return isinstance(inspect.getattr_static(holder, name), property | functools.cached_property)


def _is_method(value: Any) -> bool:
    """Return whether an attribute is a method; static methods, class methods and partials are included."""
    return inspect.ismethod(value) or inspect.isfunction(value) or isinstance(value, functools.partial)


def create_holder(item: Any) -> Any:
    """Return an object of a class of tools.

    Raises:
        RecipeError: The object cannot be created, or has no tools.
    """
    kind = item.func if isinstance(item, functools.partial) else item
    try:
        holder = item()
    except (WhetstoneError, InfrastructureError):
        raise
    except (Exception, SystemExit) as error:
        raise RecipeError(f'tool "{kind.__name__}" cannot be created: {describe_exception(error)}') from error
    if not holds_something(holder):
        raise RecipeError(f'tool "{kind.__name__}" has no public method that a model could call')
    return holder


def holds_something(item: Any) -> bool:
    """Return whether an object has tools, or takes part in the calls of other tools."""
    if inspect.isroutine(item) or isinstance(item, str | bytes | int | float | list | tuple | dict | set):
        return False
    return any(hasattr(item, name) for name in LIFETIME) or bool(list_object_tools(item))


def is_class(item: Any) -> bool:
    """Return whether an item of a toolset is a class, or a partial of one."""
    return inspect.isclass(item.func if isinstance(item, functools.partial) else item)


def holds_tools(item: Any) -> bool:
    """Return whether an item of a toolset is an object whose tools are listed or opened."""
    return not inspect.isroutine(item) and (
        implements_protocol(item, OffersTools) or implements_protocol(item, HasOpen)
    )
