"""Builds rewards from recipes: by name, with options; nested rewards first.

    reward: {name: otc, outcome: {name: symbolic, seconds: 2}}

The annotation of an option determines its kind: a `Reward`, `Judge`, `Term` or `Member` is built from a name with
options, anything else is a value.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

from whetstone.errors import RecipeError, did_you_mean
from whetstone.inference import Member
from whetstone.plugins import OptionError, find_part, get_component_options, instantiate_component, validate_options
from whetstone.rewards.adapting import adapt_reward, signature_of_library
from whetstone.rewards.judges import JUDGES, Judge
from whetstone.rewards.protocol import OPTIONAL, Reward
from whetstone.rewards.term import Term
from whetstone.rollout.optional_protocols import TrainsModel
from whetstone.rollout.protocol import Stateful
from whetstone.trajectory import Score, Task, Trajectory


@dataclass(frozen=True, slots=True)
class _Known:
    """Named components that `make_reward` can build: rewards by name, and the function that returns a model of
    `policies`.
    """

    rewards: Mapping[str, Any]
    member: Callable[[str], Member]


def _no_member(name: str) -> Member:
    raise RecipeError(f'"{name}" is a model of a run (`policies`), and there is no run here; choose another reward')


def make_reward(named: Any, built_in: Mapping[str, Any], member: Callable[[str], Member] = _no_member) -> Reward:
    """Build the reward that a recipe names.

    Args:
        named: Name of a reward, mapping with `name` and options, or an object that is already a reward.
        built_in: Built-in rewards by name.
        member: Function that returns a model of `policies` by name.

    Raises:
        OptionError: If an option is unknown, missing or of the wrong type; `key` is its name.
        RecipeError: If the reward is unknown.
    """
    reward: Reward = _build("reward", named, _Known(built_in, member))
    return reward


def make_judge(named: Any) -> Judge:
    """Build a judge from its name, or a mapping with `name` and options, as in a recipe.

    Raises:
        OptionError: If an option is unknown, missing or of the wrong type.
        RecipeError: If the judge is unknown.
    """
    judge: Judge = _build("judge", named, _Known({}, _no_member))
    return judge


def _build(kind: str, named: Any, known: _Known) -> Any:
    if not isinstance(named, str | Mapping | type) and (callable(named) or isinstance(named, Judge)):
        return named  # already built
    options = dict(named) if isinstance(named, Mapping) else {"name": named}
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise RecipeError(f"a {kind} must be a name, or a mapping with its name, got {named!r}")
    optional = (*OPTIONAL, Stateful, TrainsModel) if kind == "reward" else ()
    part = find_part(kind, name, JUDGES if kind == "judge" else known.rewards, optional=optional)
    if not callable(part):
        raise RecipeError(f'{kind} "{name}" is {part!r}, not a function or class')
    if kind == "judge" and ":" in name and not all(hasattr(part, method) for method in ("answer", "close")):
        raise RecipeError(
            f'judge "{name}" is not a judge: a class with async def answer(self, question) -> dict and close(self); '
            "see docs/reference/rewards.md"
        )
    if kind == "reward" and inspect.isfunction(part) and signature_of_library(part):
        return adapt_reward(_with_options(part, options), name)
    built = {}
    hints = get_type_hints(part.__init__ if inspect.isclass(part) else part)
    for key in [key for key in options if key in get_component_options(part)]:
        make = _maker(hints.get(key), known)
        if make is not None:
            built[key] = _with_key(key, make, options.pop(key))
    try:
        arguments = validate_options(part, options, built)
    except OptionError as error:
        value = options.get(error.key)
        has_weight = error.key == "weight" or (isinstance(value, Mapping) and "weight" in value)
        if kind != "reward" or not has_weight:
            raise
        remedy = f'a weight is a key of a term: {{name: composed, terms: {{NAME: {{name: "{name}", weight: …}}}}}}'
        raise OptionError(error.key, f"{error.message}; {remedy}") from None
    if inspect.isclass(part):
        component = _with_scores(part, name) if kind == "reward" and ":" in name else part
        return instantiate_component(kind, name, component, arguments, optional=optional)
    bound = functools.partial(part, **arguments) if arguments else part
    return adapt_reward(bound, name) if kind == "reward" and ":" in name else bound


def _with_options(part: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    """Bind options of a recipe to a reward function of TRL or verl; any of its parameters is an option."""
    names = [name for name in inspect.signature(part).parameters if name not in ("completions", "solution_str")]
    for key in options:
        if key not in names:
            raise OptionError(key, f"no such option{did_you_mean(key, names)}")
    return functools.partial(part, **options) if options else part


def _with_scores(part: type, name: str) -> type:
    """Return a subclass of a custom reward class whose `__call__` is async and returns a `Score`."""
    call = next((vars(kind)["__call__"] for kind in part.__mro__ if "__call__" in vars(kind)), None)
    if call is None:
        return part

    async def score(self: Any, trajectory: Trajectory, task: Task) -> Score:
        result: Score = await adapt_reward(functools.partial(call, self), name)(trajectory, task)
        return result

    return type(part.__name__, (part,), {"__call__": score, "__module__": part.__module__})


def _maker(hint: Any, known: _Known) -> Callable[[Any], Any] | None:
    """Return the function that builds an option from its name in the recipe.

    Returns None if the option is a plain value.
    """
    kinds = [kind for kind in (hint, *get_args(hint)) if inspect.isclass(kind)]
    if Reward in kinds:
        return lambda named: _build("reward", named, known)
    if Judge in kinds:
        return lambda named: _build("judge", named, known)
    if Term in kinds:
        return lambda named: _terms(named, known)
    if Member in kinds:
        return known.member
    return None


def _terms(named: Any, known: _Known) -> dict[str, Term]:
    """Build the terms of a composed reward; keys of a term and options of its reward differ in their names."""
    if not isinstance(named, Mapping) or not named:
        raise RecipeError(f"must be a mapping by name, such as `correct: exact_number`, got {named!r}")
    terms = {}
    for name, value in named.items():
        options = dict(value) if isinstance(value, Mapping) else {"name": value}
        own = {key: options.pop(key) for key in list(options) if key in get_component_options(Term) and key != "reward"}
        try:
            reward = _with_key(str(name), lambda one: _build("reward", one, known), options)
        except OptionError as error:
            key = error.key.removeprefix(f"{name}.")
            near = did_you_mean(key, [*get_component_options(Term)])
            if error.message.startswith("no such option") and "did you mean" in near:  # a misspelled key of the term
                raise OptionError(error.key, f"no such option{near}") from None
            raise
        try:
            terms[str(name)] = Term(**validate_options(Term, own, {"reward": reward}))
        except OptionError as error:
            raise OptionError(f"{name}.{error.key}", error.message) from None
    return terms


def _with_key(key: str, make: Callable[[Any], Any], named: Any) -> Any:
    """Build an option; errors are raised with the key of the option."""
    if named is None:
        return None
    try:
        return make(named)
    except OptionError as error:
        raise OptionError(f"{key}.{error.key}", error.message) from None
    except RecipeError as error:
        raise OptionError(key, str(error)) from None
