"""How does what a recipe says of rewards become rewards? By name, with options; one made of others, from the inside.

    reward: {name: otc, outcome: {name: symbolic, seconds: 2}}

What an option is, its annotation says: a `Reward`, a `Judge` or a `Term` is named in its turn, anything else is a
value.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_args, get_type_hints

from whetstone.errors import RecipeError, did_you_mean
from whetstone.plugins import OptionError, checked_options, find_part, made_of, options_of
from whetstone.rewards.adapting import adapt_reward, signature_of_library
from whetstone.rewards.judges import JUDGES, Judge
from whetstone.rewards.protocol import OPTIONAL, Reward
from whetstone.rewards.term import Term
from whetstone.rollout.optional import TrainsModel
from whetstone.rollout.protocol import Stateful
from whetstone.trajectory import Score, Task, Trajectory


def make_reward(named: Any, built_in: Mapping[str, Any]) -> Reward:
    """The reward a recipe names: a name, a mapping with `name` and options, or a reward itself.

    Raises:
        OptionError: An option it does not have, one missing, or one of the wrong type; `key` says which.
        RecipeError: There is no such reward.
    """
    made: Reward = _made("reward", named, built_in)
    return made


def _made(kind: str, named: Any, built_in: Mapping[str, Any]) -> Any:
    if not isinstance(named, str | Mapping | type) and (callable(named) or isinstance(named, Judge)):
        return named  # made already
    options = dict(named) if isinstance(named, Mapping) else {"name": named}
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise RecipeError(f"a {kind} is a name, or a mapping with its name, got {named!r}")
    optional = (*OPTIONAL, Stateful, TrainsModel) if kind == "reward" else ()
    part = find_part(kind, name, JUDGES if kind == "judge" else built_in, optional=optional)
    if not callable(part):
        raise RecipeError(f'{kind} "{name}" is {part!r}, not a function or class')
    if kind == "judge" and ":" in name and not all(hasattr(part, method) for method in ("answer", "close")):
        raise RecipeError(
            f'judge "{name}" is not a judge: a class with async def answer(self, question) -> dict and close(self); '
            "see docs/rewards.md"
        )
    if kind == "reward" and inspect.isfunction(part) and signature_of_library(part):
        return adapt_reward(_with_options(part, options), name)
    given = {}
    hints = get_type_hints(part.__init__ if inspect.isclass(part) else part)
    for key in [key for key in options if key in options_of(part)]:
        make = _maker(hints.get(key), built_in)
        if make is not None:
            given[key] = _below(key, make, options.pop(key))
    arguments = checked_options(part, options, given)
    if inspect.isclass(part):
        component = _with_scores(part, name) if kind == "reward" and ":" in name else part
        return made_of(kind, name, component, arguments, optional=optional)
    bound = functools.partial(part, **arguments) if arguments else part
    return adapt_reward(bound, name) if kind == "reward" and ":" in name else bound


def _with_options(part: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    """Return a function of TRL or verl with the options of a recipe bound: any of its parameters."""
    names = [name for name in inspect.signature(part).parameters if name not in ("completions", "solution_str")]
    for key in options:
        if key not in names:
            raise OptionError(key, f"no such option{did_you_mean(key, names)}")
    return functools.partial(part, **options) if options else part


def _with_scores(part: type, name: str) -> type:
    """Return a subclass whose `__call__` is async and returns a Score."""
    call = next((vars(kind)["__call__"] for kind in part.__mro__ if "__call__" in vars(kind)), None)
    if call is None:
        return part

    async def score(self: Any, trajectory: Trajectory, task: Task) -> Score:
        found: Score = await adapt_reward(functools.partial(call, self), name)(trajectory, task)
        return found

    return type(part.__name__, (part,), {"__call__": score, "__module__": part.__module__})


def _maker(hint: Any, built_in: Mapping[str, Any]) -> Callable[[Any], Any] | None:
    """What makes an option of this type; None where it is a value."""
    kinds = [kind for kind in (hint, *get_args(hint)) if inspect.isclass(kind)]
    if Reward in kinds:
        return lambda named: _made("reward", named, built_in)
    if Judge in kinds:
        return lambda named: _made("judge", named, built_in)
    if Term in kinds:
        return lambda named: _terms(named, built_in)
    return None


def _terms(named: Any, built_in: Mapping[str, Any]) -> dict[str, Term]:
    """Terms by name; keys of a term are told from options of its reward by their names."""
    if not isinstance(named, Mapping) or not named:
        raise RecipeError(f"terms by name, such as `correct: exact_number`, got {named!r}")
    made = {}
    for name, said in named.items():
        options = dict(said) if isinstance(said, Mapping) else {"name": said}
        own = {key: options.pop(key) for key in list(options) if key in options_of(Term) and key != "reward"}
        try:
            reward = _below(str(name), lambda one: _made("reward", one, built_in), options)
        except OptionError as error:
            key = error.key.removeprefix(f"{name}.")
            near = did_you_mean(key, [*options_of(Term)])
            if error.message.startswith("no such option") and "did you mean" in near:  # a key of the term, misspelt
                raise OptionError(error.key, f"no such option{near}") from None
            raise
        try:
            made[str(name)] = Term(**checked_options(Term, own, {"reward": reward}))
        except OptionError as error:
            raise OptionError(f"{name}.{error.key}", error.message) from None
    return made


def _below(key: str, make: Callable[[Any], Any], named: Any) -> Any:
    """What is made of an option, errors saying where it stands."""
    if named is None:
        return None
    try:
        return make(named)
    except OptionError as error:
        raise OptionError(f"{key}.{error.key}", error.message) from None
    except RecipeError as error:
        raise OptionError(key, str(error)) from None
