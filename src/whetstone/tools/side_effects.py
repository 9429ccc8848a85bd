"""Side effects of tools outside of the episode, and the policy that decides which tools may be called.

An effect is a change outside of the episode, such as a refund, an e-mail or a row in a shared database. Changes of
objects that `open` or `reset` creates for the episode are not effects.

    read          changes nothing outside of the episode
    write         changes something
    destructive   changes something that cannot be undone
    None          unknown: the tool declares nothing

Note:
    `Toolset.call` checks a `CallPolicy` before each call, so no command has to check effects itself. Runs call tools of
    unknown effect, and checks (`whetstone doctor`, `rewards audit`) do not. Neither calls tools of the effects `write`
    and `destructive` without permission.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol, TypeVar, get_args, runtime_checkable

from whetstone.capabilities import implements_protocol
from whetstone.errors import RecipeError, did_you_mean

Effect = Literal["read", "write", "destructive"]
EFFECTS: tuple[Effect, ...] = get_args(Effect)
READING_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""HTTP methods that change nothing."""
Declared = TypeVar("Declared", bound=Callable[..., Any])


@runtime_checkable
class DeclaresEffects(Protocol):
    """Tool class or environment that declares its effects outside of the episode."""

    effects: Effect | Mapping[str, Effect] | None
    """Effect of all tools, or effect by tool name; None: unknown."""


def effects(effect: Effect) -> Callable[[Declared], Declared]:
    """Declare the effect of a function, of a method, or of all methods of a class.

    It is used as a decorator.

        @effects("write")
        def refund(order: str) -> str: ...

    A class can set the attribute instead: `effects = "read"`, or `effects = {"refund": "write"}` by method.

    Args:
        effect: `read`, `write` or `destructive`.

    Raises:
        RecipeError: If the effect does not exist.
    """
    checked_effect(effect, "effects")

    def declare(function: Declared) -> Declared:
        function.effects = effect  # type: ignore[attr-defined]
        return function

    return declare


def checked_effect(value: Any, where: str) -> Effect:
    """Return a declared effect after a check that it exists.

    Args:
        value: Declared effect.
        where: Place of the declaration, for the error.

    Raises:
        RecipeError: If the effect does not exist.
    """
    if value not in EFFECTS:
        raise RecipeError(
            f'{where}: "{value}" is not an effect{did_you_mean(str(value), EFFECTS)}; use {", ".join(EFFECTS)}'
        )
    return value  # type: ignore[no-any-return]


def declared_effect(part: Any, name: str = "") -> Effect | None:
    """Return the effect that a function or a tool class declares; None if it declares none.

    Args:
        part: Function, method, partial or tool object.
        name: Name of the tool, for an attribute `effects` that is a mapping by tool.

    Raises:
        RecipeError: If the declared effect does not exist.
    """
    while isinstance(part, partial):
        part = part.func
    declared = part.effects if implements_protocol(part, DeclaresEffects) else None
    if isinstance(declared, Mapping):
        declared = declared.get(name)
    elif not isinstance(declared, str):  # None, or a tool that has this name
        return None
    return None if declared is None else checked_effect(declared, f"tool {name}: effects")


def effect_of_method(method: str) -> Effect:
    """Return the effect of a request with an HTTP method: `read` for GET, `destructive` for DELETE, else `write`."""
    if method.upper() in READING_METHODS:
        return "read"
    return "destructive" if method.upper() == "DELETE" else "write"


def effect_of_hints(annotations: Any) -> Effect | None:
    """Return the effect that the annotations of an MCP tool declare.

    The result is None if they declare none.

    As in the specification, a tool with `readOnlyHint: false` is destructive unless `destructiveHint` is false.
    """
    if annotations is None:
        return None
    if annotations.read_only_hint:
        return "read"
    if annotations.destructive_hint is None and annotations.read_only_hint is None:
        return None
    return "write" if annotations.destructive_hint is False else "destructive"


@dataclass(frozen=True, slots=True)
class CallPolicy:
    """Policy that decides by their effect which tools are called."""

    allowed: bool | tuple[str, ...] = False
    """Permission to call tools of the effects `write` and `destructive`: for all tools, or for tools of these names."""
    calls_unknown: bool = True
    """Whether tools that declare no effect are called."""
    effects: Mapping[str, Effect] = field(default_factory=dict)
    """Effect by tool name, which replaces the declared effect."""

    def effect_of(self, name: str, declared: Effect | None) -> Effect | None:
        """Return the effect of a tool: that of the policy if it names the tool, otherwise the declared one."""
        return self.effects.get(name, declared)

    def permits(self, name: str, effect: Effect | None) -> bool:
        """Return whether a tool with this effect is called."""
        if effect == "read":
            return True
        if effect is None:
            return self.calls_unknown
        return self.allowed if isinstance(self.allowed, bool) else name in self.allowed

    def refused(self, effects: Mapping[str, Effect | None]) -> dict[str, Effect | None]:
        """Return the tools that are not called, with their effects, from all tools with their effects."""
        return {name: effect for name, effect in effects.items() if not self.permits(name, effect)}


CALLS_ALL = CallPolicy(allowed=True)
"""Policy that calls every tool."""


def describe_effects(effects: Mapping[str, Effect | None]) -> str:
    """Return tool names with their effects as text, such as `refund (write)`."""
    return ", ".join(f"{name} ({effect or 'unknown effect'})" for name, effect in effects.items())


def describe_remedy(effects: Mapping[str, Effect | None], *, for_check: bool = False) -> str:
    """Return how to permit calls of these tools, for an error message.

    Args:
        effects: Effects by tool name.
        for_check: Whether a check refuses the calls; a permission in the recipe does not apply to checks.
    """
    unknown = [name for name, effect in effects.items() if effect is None]
    known = [name for name in effects if name not in unknown]
    permission = "--allow-effects" if for_check else "environment.allow_effects or --allow-effects"
    remedies = [f"permit {', '.join(known)} with {permission}"] if known else []
    return "; ".join([*remedies, *([f"{describe_declaration(unknown)}, or use --call-tools"] if unknown else [])])


def describe_declaration(names: Iterable[str]) -> str:
    """Return how to declare the effects of these tools, for an error message."""
    return f'declare it with @effects("read") or environment.effects: {{{", ".join(f"{n}: read" for n in names)}}}'
