"""How does a name in a recipe become a function or class? A short name for ours, `package.module:name` for yours. And
what is the name of a function that is given in Python where a name goes?

There is no other registration: extending Whetstone means writing something and naming it. Names come from recipes and
the command line, never from tasks or runs' records: what a task names is looked up among what its recipe lists.

Easy to get wrong: options of a part are the keyword arguments of its signature, so a misspelt or mistyped
one is found before anything runs, and an option cannot exist that the part does not read.
"""

from __future__ import annotations

import filecmp
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints
from uuid import uuid4

from pydantic import ConfigDict, Field, ValidationError, create_model

from whetstone.contracts import check_spelling
from whetstone.errors import RecipeError, WhetstoneError, did_you_mean
from whetstone.masking import mask_secrets
from whetstone.renames import COMPONENT_MEMBERS, COMPONENT_OPTION_VALUES, COMPONENT_OPTIONS, COMPONENTS
from whetstone.user_code import describe_exception

OptionalProtocols = Sequence[type] | Callable[[object], Sequence[type]]
"""Protocols of optional methods and attributes of a kind of component, or a function that returns those of one."""


def find_part(kind: str, name: str, built_in: Mapping[str, Any], *, optional: OptionalProtocols = ()) -> Any:
    """Look up a built-in component, or import the function or class that `package.module:name` names.

    Modules are imported from the working directory and the folder of the recipe, too.

    Args:
        kind: Kind of the component, for messages and for the table of renamed components.
        built_in: Built-in components of this kind by name.
        optional: Optional protocols of this kind.

    Raises:
        RecipeError: If no component has this name (the message has the nearest name), or if the name of a member of a
            class is almost the name of an optional one.
    """
    if ":" not in name:
        if name not in built_in:
            new = COMPONENTS.get(kind, {}).get(name)
            if new is not None:
                raise RecipeError(f'{kind} "{name}": renamed to "{new}"')
            raise RecipeError(f'no {kind} named "{name}"{did_you_mean(name, built_in)}')
        return built_in[name]
    module_name, _, attribute = name.partition(":")
    if module_name.startswith(_GIVEN):
        if name not in _given:
            raise RecipeError(f'{kind} "{name}" {NO_NAME}')
        return _given[name]
    try:
        module = module_named(module_name)
    except ImportError as error:
        raise RecipeError(f'{kind} "{name}": {error}') from error
    if not hasattr(module, attribute):
        near = did_you_mean(attribute, (n for n in dir(module) if not n.startswith("_")))
        raise RecipeError(f'{kind} "{name}": {module_name} has no {attribute}{near}')
    part = getattr(module, attribute)
    if inspect.isclass(part):
        _check_members(kind, name, part, optional)
    return part


def _check_members(kind: str, name: str, part: object, optional: OptionalProtocols) -> None:
    """Refuse a member whose name is almost the name of an optional one."""
    check_spelling(kind, name, dir(part), optional(part) if callable(optional) else optional)


_GIVEN = "given-"
_HERE = f"{_GIVEN}{uuid4().hex[:8]}"
"""Stands for a module in the names of what is in none. Another process has another, and never takes one for its own."""
_given: dict[str, Any] = {}
NO_NAME = "was given as a function that is in no module, which ended with its process; define it at the top of a module"


def name_of(part: Callable[..., Any]) -> str:
    """`package.module:name` of a function or class at the top of a module; of a lambda, a local function or one of a
    notebook a name that `find_part` knows in this process alone.
    """
    module, name = _module_of(part), getattr(part, "__qualname__", type(part).__qualname__)
    if module is not None and getattr(sys.modules[module], name, None) is part:
        return f"{module}:{name}"
    for known, other in _given.items():
        if other is part:
            return known
    short = name.rpartition(".")[2].strip("<>")
    taken = sum(known.partition(":")[2].partition("#")[0] == short for known in _given)
    name = f"{_HERE}:{short}#{taken + 1}" if taken else f"{_HERE}:{short}"
    _given[name] = part
    return name


def _module_of(part: Callable[..., Any]) -> str | None:
    """The module a part is in, by a name under which others find it, too; None: there is none."""
    module: str | None = getattr(part, "__module__", None)
    if module != "__main__":
        return module if module in sys.modules else None
    main = sys.modules["__main__"]
    if getattr(main, "__spec__", None) is not None:  # python -m
        module = main.__spec__.name  # type: ignore[union-attr]
    else:
        file = Path(getattr(main, "__file__", None) or "")
        module = file.stem if file.suffix == ".py" else ""
        if module:
            search_also(file.resolve().parent)
    # found by that name, it would be run a second time, from its top
    known = sys.modules.setdefault(module, main) if module else None
    return module if known is main else None


def with_names(value: Any) -> Any:
    """Keys of a recipe as a file has them: names where functions and classes are, text for paths, lists for tuples."""
    if isinstance(value, Mapping):
        return {key: with_names(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [with_names(each) for each in value]
    if isinstance(value, Path):
        return str(value)
    return name_of(value) if callable(value) else value


def lost_parts(value: Any, key: str = "") -> Iterator[str]:
    """Dotted keys of a recipe whose functions ended with the process they were given in."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from lost_parts(each, f"{key}.{name}".lstrip("."))
    elif isinstance(value, list):
        for each in value:
            yield from lost_parts(each, key)
    elif isinstance(value, str) and value.startswith(_GIVEN) and ":" in value and value not in _given:
        yield key


_searched: list[str] = []


def search_also(folder: Path) -> None:
    """Look for modules in this folder, too, before others, once one is asked for by name.

    Reading a recipe or a run asks for none, so what lies beside it takes no library's place there.
    """
    if str(folder) not in _searched:
        _searched.append(str(folder))


_refused: ContextVar[str] = ContextVar("refused", default="")


@contextmanager
def refuse_modules(remedy: str) -> Iterator[None]:
    """Import no module that a name selects for as long as the block lasts; built-in parts are still found.

    Args:
        remedy: What allows them, for the error.
    """
    token = _refused.set(remedy)
    try:
        yield
    finally:
        _refused.reset(token)


def module_named(name: str) -> ModuleType:
    """The module of this name, in the folders that are searched, in the working directory, or installed.

    Raises:
        ImportError: There is none, or one folder has another of this name than a second folder, or than what is loaded;
            or `refuse_modules` is in effect.
    """
    if remedy := _refused.get():
        raise ImportError(f"the module {name} is not imported; {remedy}")
    search_also(Path.cwd())  # the `whetstone` command does not put it there, as `python -m` would
    _check_one(name)
    for folder in _searched:
        if folder not in sys.path:
            sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # a module that this one imports
        remedy = f"run the command in the folder of {error.name.partition('.')[0]}, or put that folder into PYTHONPATH"
        raise ImportError(f"{error}; {remedy}") from error


def _check_one(name: str) -> None:
    """See that a name means one module: Python loads the first of a name, and gives it to all who ask afterwards."""
    below = Path(*name.split("."))
    places = (Path(folder) / file for folder in _searched for file in (below.with_suffix(".py"), below / "__init__.py"))
    there = {place.resolve() for place in places if place.is_file()}
    loaded = Path(getattr(sys.modules.get(name), "__file__", None) or "")
    if there and loaded.is_file():
        there.add(loaded.resolve())
    for one, other in pairwise(sorted(there)):
        if not filecmp.cmp(one, other, shallow=False):
            raise ImportError(f"{one} and {other} are two modules of one name, of which Python loads one; rename one")


def searched() -> list[str]:
    """The folders that modules were looked for in beside Python's own."""
    return list(_searched)


def unbound(part: Any) -> Any:
    """A function or class without the options a recipe bound to it."""
    return part.func if isinstance(part, functools.partial) else part


def options_of(part: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The keyword-only arguments of a function or class: what a recipe may set."""
    parameters = inspect.signature(part).parameters
    return {name: p for name, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}


def checked_options(
    part: Callable[..., Any], options: Mapping[str, Any], given: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The options with the types the part's signature asks for.

    Args:
        given: What is passed whatever the recipe says; returned as it is.

    Raises:
        RecipeError: An option the part does not have, one missing, or one of the wrong type; `key` says which.
    """
    known = options_of(part)
    for key in options:
        if key not in known:
            new = next((names[key] for names in COMPONENT_OPTIONS.values() if names.get(key) in known), None)
            raise OptionError(key, f"renamed to {new}" if new else f"no such option{did_you_mean(key, known)}")
    for key, parameter in known.items():
        if parameter.default is parameter.empty and key not in options and key not in (given or {}):
            raise OptionError(key, "is needed here and not set")
    inner = unbound(part)
    hints = get_type_hints(inner.__init__ if inspect.isclass(inner) else inner, include_extras=True)
    # names of fields may be those of methods of a model (`schema`), so the fields have names of their own
    fields: dict[str, Any] = {f"option_{key}": (hints.get(key, Any), Field(alias=key)) for key in options}
    config = ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False)
    model = create_model("options", __config__=config, **fields)
    try:
        values = model.model_validate(dict(options))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        key = str(problem["loc"][0])
        below = "".join(f".{part}" for part in problem["loc"][1:])
        if problem["type"] == "literal_error" and (new := _renamed_value(key, problem["input"])) is not None:
            raise OptionError(key + below, f"{problem['input']}: renamed to {new}") from None
        raise OptionError(key + below, plain_problem(problem)) from None
    return {**(given or {}), **{key: getattr(values, f"option_{key}") for key in options}}


def _renamed_value(option: str, value: Any) -> str | None:
    """Return the new value of an option that has a value of an earlier release, or None if it was never renamed."""
    tables = (options.get(option, {}) for options in COMPONENT_OPTION_VALUES.values())
    return next((table[value] for table in tables if isinstance(value, str) and value in table), None)


_PLAINLY = {
    "dict_type": "keys and values are asked for",
    "mapping_type": "keys and values are asked for",
    "model_type": "keys and values are asked for",
    "dataclass_type": "keys and values are asked for",
    "list_type": "a list is asked for",
    "tuple_type": "a list is asked for",
    "sequence_str": "a list is asked for",
    "is_instance_of": "something else is asked for",
}
_ALONE = {
    "missing": "is needed and not set",
    "missing_keyword_only_argument": "is needed and not set",
    "extra_forbidden": "no such key",
    "unexpected_keyword_argument": "no such key",
}


def plain_problem(problem: Mapping[str, Any]) -> str:
    """What Pydantic found, without its words for Python's types."""
    if problem["type"] in _ALONE:
        return _ALONE[problem["type"]]
    if problem["type"] == "value_error":
        return str(problem["ctx"]["error"])
    said = _PLAINLY.get(problem["type"], f"{problem['msg'][0].lower()}{problem['msg'][1:]}")
    written = mask_secrets(repr(problem["input"]))
    return f"{said}, got {written if len(written) <= 60 else f'{written[:57]}…'}"


def made_of(
    kind: str, name: str, part: Callable[..., Any], arguments: Mapping[str, Any], *, optional: OptionalProtocols = ()
) -> Any:
    """Create an object of a component class with the options of a recipe.

    Args:
        optional: Optional protocols of this kind.

    Raises:
        RecipeError: If the class cannot be called with these arguments (in one line), or if the name of a member of
            the object is almost the name of an optional one.
    """
    by_keyword_alone(kind, name, part)
    try:
        made = part(**arguments)
    except (WhetstoneError, ValueError):
        raise  # what it refuses is said where it was written
    except (Exception, SystemExit) as error:
        raise RecipeError(f'{kind} "{name}" cannot be made: {describe_exception(error)}') from error
    if ":" in name:  # what only the object has; its class was looked at when it was found
        _check_members(kind, name, made, optional)
    return made


def has_all_of(made: Any, protocol: type, kind: str, name: str) -> None:
    """See that an object somebody wrote has the methods and attributes its place asks for.

    Args:
        protocol: Names them.

    Raises:
        RecipeError: It lacks one.
    """
    for old, new in COMPONENT_MEMBERS.get(kind, {}).items():
        if hasattr(made, old):
            raise RecipeError(f'{kind} "{name}": {old}: renamed to {new}')
    asked = [key for key in vars(protocol) if key == "__call__" or not key.startswith("_")]
    for key in asked:
        if not hasattr(made, key):
            what = "cannot be called" if key == "__call__" else f"has no {key}"
            needs = ", ".join(key if key != "__call__" else "a method __call__" for key in asked)
            raise RecipeError(f'{kind} "{name}" {what}; a {kind} has {needs}')


def by_keyword_alone(kind: str, name: str, part: Callable[..., Any]) -> None:
    """See that a class needs nothing that a recipe could not set.

    Raises:
        RecipeError: It has an argument by position and without a default.
    """
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    for parameter in inspect.signature(part).parameters.values():
        if parameter.kind in positional and parameter.default is parameter.empty:
            raise RecipeError(
                f'{kind} "{name}" cannot be made: {parameter.name} is asked for by position; options are keyword-only: '
                f"def __init__(self, *, {parameter.name})"
            )


def named_part(kind: str, named: Any, built_in: Mapping[str, Any], *, optional: OptionalProtocols = ()) -> Any:
    """Look up a function, or a class with its options bound, by a name or a mapping with `name` and the options.

    Args:
        optional: Optional protocols of this kind.

    Raises:
        OptionError: If the class has no such option, or the option has another type.
        RecipeError: If no component has this name, options are set for a function, or `name` is missing.
    """
    options = dict(named) if isinstance(named, Mapping) else {"name": named}
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise RecipeError(f"a {kind} is a name, or a mapping with its name, got {named!r}")
    part = find_part(kind, name, built_in, optional=optional)
    if inspect.isclass(part):
        arguments = checked_options(part, options)
        by_keyword_alone(kind, name, part)
        return functools.partial(part, **arguments)
    if options:
        raise RecipeError(f"{name} is a function and has no options: {', '.join(options)}")
    return part


class OptionError(RecipeError):
    """An option of a part that cannot be; whoever knows where it was written adds file and line."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"{key}: {message}")
        self.key, self.message = key, message
