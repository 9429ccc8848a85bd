"""Lookup of components by name: a built-in name, or `package.module:name`.

There is no other registration: to extend Whetstone, write a function or class and name it in a recipe. A function that
Python code passes instead of a name gets a name here, too. Names come from recipes and the command line, never from
tasks or records of runs: a name in a task selects only from the components that its recipe lists.

Note:
    The options of a component are the keyword-only arguments of its signature. A misspelled or mistyped option is
    therefore an error before anything runs, and an option that the component ignores cannot exist.
"""

from __future__ import annotations

import difflib
import filecmp
import functools
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints
from uuid import uuid4

from pydantic import ConfigDict, Field, ValidationError, create_model

from whetstone.capabilities import check_spelling
from whetstone.errors import RecipeError, WhetstoneError, did_you_mean
from whetstone.masking import mask_secrets
from whetstone.renames import COMPONENT_MEMBERS, COMPONENT_OPTION_VALUES, COMPONENT_OPTIONS, COMPONENTS
from whetstone.user_code import describe_exception

OptionalProtocols = Sequence[type] | Callable[[object], Sequence[type]]
"""Protocols of optional members for a kind of component, or a function from a component to such protocols."""


_COMPARE = "; to compare several values, use `whetstone compare`"


def find_part(kind: str, name: str, built_in: Mapping[str, Any], *, optional: OptionalProtocols = ()) -> Any:
    """Look up a built-in component, or import the function or class `package.module:name`.

    Modules are also imported from the working directory and the folder of the recipe.

    Args:
        kind: Kind of the component, for messages and for the table of renamed components.
        name: Name of a built-in component, or `package.module:name`.
        built_in: Built-in components of this kind by name.
        optional: Optional protocols of this kind.

    Raises:
        RecipeError: If no component has this name (the message has the nearest name), or if a member of the class has
            almost the name of an optional member.
    """
    if "(" in name:
        raise RecipeError(
            f'{kind} "{name}" is a call; assign its result to a variable of a module, and name that: module:variable'
        )
    if "," in name:
        raise RecipeError(f'{kind} "{name}": one name is expected; a list is [NAME, NAME]{_COMPARE}')
    if ":" not in name:
        if name not in built_in:
            new = COMPONENTS.get(kind, {}).get(name)
            if new is not None:
                raise RecipeError(f'{kind} "{name}": renamed to "{new}"')
            path, dot, attribute = name.rpartition(".")
            remedy = f'; a component of your own is "{path}:{attribute}"' if dot else _nearest_component(name, built_in)
            raise RecipeError(f'no {kind} named "{name}"{remedy}')
        return built_in[name]
    module_name, _, attribute = name.partition(":")
    if module_name.startswith(_GIVEN):
        if name not in _unnamed_components:
            raise RecipeError(f'{kind} "{name}" {NO_NAME}')
        return _unnamed_components[name]
    try:
        module = import_named_module(module_name)
    except ImportError as error:
        raise RecipeError(f'{kind} "{name}": {error}') from error
    if not hasattr(module, attribute):
        near = did_you_mean(attribute, (n for n in dir(module) if not n.startswith("_")))
        raise RecipeError(f'{kind} "{name}": {module_name} has no {attribute}{near}')
    part = getattr(module, attribute)
    if inspect.isclass(part):
        _check_members(kind, name, part, optional)
    return part


def _nearest_component(name: str, built_in: Mapping[str, Any]) -> str:
    """Format a hint with the nearest component name.

    For the name of a component's function or class, it is the name of the component.
    """
    known = next((key for key, part in built_in.items() if getattr(part, "__name__", None) == name), None)
    return f'; did you mean "{known}"?' if known is not None else did_you_mean(name, built_in)


def _check_members(kind: str, name: str, part: object, optional: OptionalProtocols) -> None:
    """Reject a component with a member that has almost the name of an optional member."""
    check_spelling(kind, name, dir(part), optional(part) if callable(optional) else optional)


_GIVEN = "given-"
_HERE = f"{_GIVEN}{uuid4().hex[:8]}"
"""Module part in names of functions that are in no module. It differs between processes, so that such a name is valid
in one process only."""
_unnamed_components: dict[str, Any] = {}
NO_NAME = "is a function of an earlier process that is in no module; define it at the top of a module"


def get_component_name(part: Callable[..., Any]) -> str:
    """Return `package.module:name` of a function or class at the top level of a module.

    A lambda, a local function or a function of a notebook gets a name that `find_part` resolves in this process only.
    """
    module, name = _module_of(part), getattr(part, "__qualname__", type(part).__qualname__)
    if module is not None and getattr(sys.modules[module], name, None) is part:
        return f"{module}:{name}"
    for known, other in _unnamed_components.items():
        if other is part:
            return known
    short = name.rpartition(".")[2].strip("<>")
    taken = sum(known.partition(":")[2].partition("#")[0] == short for known in _unnamed_components)
    name = f"{_HERE}:{short}#{taken + 1}" if taken else f"{_HERE}:{short}"
    _unnamed_components[name] = part
    return name


def _module_of(part: Callable[..., Any]) -> str | None:
    """Return an importable name of a component's module; None if there is none."""
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
            add_search_path(file.resolve().parent)
    # an import by that name would run the file a second time
    known = sys.modules.setdefault(module, main) if module else None
    return module if known is main else None


def to_serializable(value: Any) -> Any:
    """Convert recipe values to values of a file.

    Functions and classes become their names, paths become text, and tuples become lists.
    """
    if isinstance(value, Mapping):
        return {key: to_serializable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_serializable(each) for each in value]
    if isinstance(value, Path):
        return str(value)
    return get_component_name(value) if callable(value) else value


def find_unresolvable_functions(value: Any, key: str = "") -> Iterator[str]:
    """Yield the dotted keys of functions that existed only in an earlier process.

    Args:
        value: Recipe keys of a stored recipe.
        key: Dotted key of `value`.
    """
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from find_unresolvable_functions(each, f"{key}.{name}".lstrip("."))
    elif isinstance(value, list):
        for each in value:
            yield from find_unresolvable_functions(each, key)
    elif isinstance(value, str) and value.startswith(_GIVEN) and ":" in value and value not in _unnamed_components:
        yield key


_searched: list[str] = []


def add_search_path(folder: Path) -> None:
    """Add a folder to the module search path, before all other folders.

    The folder is used from the next import of a component on. Reading a recipe or a run imports no module, so files in
    their folders do not shadow a library.
    """
    if str(folder) not in _searched:
        _searched.append(str(folder))


_refused: ContextVar[str] = ContextVar("refused", default="")


@contextmanager
def refuse_modules(remedy: str) -> Iterator[None]:
    """Refuse to import modules of custom components within the block.

    Built-in components stay available. The viewer uses this for runs of unknown origin.

    Args:
        remedy: How to allow the imports, for the error.
    """
    token = _refused.set(remedy)
    try:
        yield
    finally:
        _refused.reset(token)


def import_named_module(name: str) -> ModuleType:
    """Import a module from the search path, the working directory or the installed packages.

    Raises:
        ImportError: If there is no such module, if two folders (or a folder and a loaded module) have different modules
            of this name, or if `refuse_modules` is in effect.
    """
    if remedy := _refused.get():
        raise ImportError(f"the module {name} is not imported; {remedy}")
    add_search_path(Path.cwd())  # the `whetstone` command does not put it there, as `python -m` would
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
    """Check that a module name is unambiguous.

    Python loads the first match, and returns it for every later import of the name.

    Raises:
        ImportError: If another module of this name exists in a search path or is loaded.
    """
    below = Path(*name.split("."))
    places = (Path(folder) / file for folder in _searched for file in (below.with_suffix(".py"), below / "__init__.py"))
    files = {place.resolve() for place in places if place.is_file()}
    loaded = Path(getattr(sys.modules.get(name), "__file__", None) or "")
    if files and loaded.is_file():
        files.add(loaded.resolve())
    for one, other in pairwise(sorted(files)):
        if not filecmp.cmp(one, other, shallow=False):
            raise ImportError(f"{one} and {other} are two modules with one name, and Python loads only one; rename one")


def get_search_paths() -> list[str]:
    """Return the folders that `add_search_path` added."""
    return list(_searched)


def unwrap_partial(part: Any) -> Any:
    """Return the function or class inside a `functools.partial`."""
    return part.func if isinstance(part, functools.partial) else part


def get_component_options(part: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the options of a component: its keyword-only parameters, by name."""
    parameters = inspect.signature(part).parameters
    return {name: p for name, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}


def validate_options(
    part: Callable[..., Any],
    options: Mapping[str, Any],
    fixed: Mapping[str, Any] | None = None,
    *,
    keys_beside: Iterable[str] = (),
) -> dict[str, Any]:
    """Validate options against the types in a component's signature.

    Args:
        part: Function or class.
        options: Options by name.
        fixed: Arguments that are always passed; returned unchanged.
        keys_beside: Keys of the recipe at the same level as the options, for suggestions.

    Returns:
        Options and fixed arguments, in the types of the signature.

    Raises:
        RecipeError: If an option is unknown, missing or of the wrong type; `key` is its name.
    """
    known = get_component_options(part)
    for key in options:
        if key not in known:
            new = next((names[key] for names in COMPONENT_OPTIONS.values() if names.get(key) in known), None)
            name = getattr(unwrap_partial(part), "__name__", "the component")
            near = did_you_mean(key, {*known, *keys_beside}) or f"; {name} has no options"
            raise OptionError(key, f"renamed to {new}" if new else f"no such option{near}")
    for key, parameter in known.items():
        if parameter.default is parameter.empty and key not in options and key not in (fixed or {}):
            raise OptionError(key, "is required")
    return {**(fixed or {}), **_typed_options(part, options)}


def _typed_options(part: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Convert options to the types of the parameters in a component's signature.

    Raises:
        OptionError: If an option has another type.
    """
    inner = unwrap_partial(part)
    hints = get_type_hints(inner.__init__ if inspect.isclass(inner) else inner, include_extras=True)
    # a field must not have the name of a method of a model (`schema`), hence the prefix
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
        raise OptionError(key + below, format_validation_error(problem)) from None
    return {key: getattr(values, f"option_{key}") for key in options}


def _renamed_value(option: str, value: Any) -> str | None:
    """Return the new name of an option value of an earlier release, or None."""
    tables = (options.get(option, {}) for options in COMPONENT_OPTION_VALUES.values())
    return next((table[value] for table in tables if isinstance(value, str) and value in table), None)


_PLAINLY = {
    "dict_type": "a mapping is expected",
    "mapping_type": "a mapping is expected",
    "model_type": "a mapping is expected",
    "dataclass_type": "a mapping is expected",
    "list_type": "a list is expected",
    "tuple_type": "a list is expected",
    "sequence_str": "a list is expected",
    "is_instance_of": "another type is expected",
}
_ALONE = {
    "missing": "is required",
    "missing_keyword_only_argument": "is required",
    "extra_forbidden": "no such key",
    "unexpected_keyword_argument": "no such key",
}


def format_validation_error(problem: Mapping[str, Any]) -> str:
    """Format an error of Pydantic without its names of Python types."""
    if problem["type"] in _ALONE:
        return _ALONE[problem["type"]]
    if problem["type"] == "value_error":
        return str(problem["ctx"]["error"])
    message = _PLAINLY.get(problem["type"], f"{problem['msg'][0].lower()}{problem['msg'][1:]}")
    if problem["type"] in ("dict_type", "mapping_type"):
        message += f", such as {{NAME: {problem['input'] if type(problem['input']) in (int, float) else 'VALUE'}}}"
    written = mask_secrets(repr(problem["input"]))
    near = _nearest_value(problem) if problem["type"] == "literal_error" else ""
    remedy = _COMPARE if _has_several_values(problem) else near
    return f"{message}, got {written if len(written) <= 60 else f'{written[:57]}…'}{remedy}"


def _has_several_values(problem: Mapping[str, Any]) -> bool:
    """Return whether the value of a number or choice has several valid ones, such as `1e-4,3e-4`."""
    value = problem["input"]
    values = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else []
    if problem["type"] == "literal_error":
        allowed = re.findall(r"'([^']*)'", str(problem["ctx"]["expected"]))
        return len(values) > 1 and all(str(each).strip() in allowed for each in values)
    if not problem["type"].startswith(("float_", "int_")):
        return False
    with suppress(TypeError, ValueError):
        return len([float(each) for each in values]) > 1
    return False


def _nearest_value(problem: Mapping[str, Any]) -> str:
    """Return `; did you mean "adamw"?` for a value such as `AdamW`, `torch.optim.AdamW` or `{name: adamw}`."""
    value = problem["input"]
    if isinstance(value, Mapping):
        value = value.get("name")
    if not isinstance(value, str):
        return ""
    allowed = re.findall(r"'([^']*)'", str(problem["ctx"]["expected"]))
    word = value.rpartition(".")[2].lower()
    parts = set(word.split("_"))
    shared = {name: len(parts & set(name.split("_"))) for name in allowed}
    # `adamw_torch` is `adamw` and not `adamw_8bit`, which has more letters in common
    near = sorted((name for name in allowed if shared[name]), key=lambda name: (-shared[name], len(name)))
    near = near or difflib.get_close_matches(word, allowed, n=1, cutoff=0.6)
    return f'; did you mean "{near[0]}"?' if near else ""


def instantiate_component(
    kind: str, name: str, part: Callable[..., Any], arguments: Mapping[str, Any], *, optional: OptionalProtocols = ()
) -> Any:
    """Create an object of a component class with the options of a recipe.

    Args:
        kind: Kind of the component, for messages.
        name: Name of the component, for messages.
        part: Component class.
        arguments: Arguments of the class by name.
        optional: Optional protocols of this kind.

    Raises:
        RecipeError: If the class cannot be called with these arguments (in one line), or if a member of the object has
            almost the name of an optional member.
    """
    check_constructible(kind, name, part)
    try:
        component = part(**arguments)
    except (WhetstoneError, ValueError):
        raise  # the caller adds file and line
    except (Exception, SystemExit) as error:
        raise RecipeError(f'{kind} "{name}" cannot be created: {describe_exception(error)}') from error
    if ":" in name:  # attributes of the object; those of its class were checked in `find_part`
        _check_members(kind, name, component, optional)
    return component


def check_interface(component: Any, protocol: type, kind: str, name: str) -> None:
    """Check that a custom component has the methods and attributes of its protocol.

    Args:
        component: Object to check.
        protocol: Protocol of this kind of component.
        kind: Kind of the component, for the message.
        name: Name of the component, for the message.

    Raises:
        RecipeError: If a method or attribute is missing.
    """
    for old, new in COMPONENT_MEMBERS.get(kind, {}).items():
        if hasattr(component, old):
            raise RecipeError(f'{kind} "{name}": {old}: renamed to {new}')
    members = [key for key in vars(protocol) if key == "__call__" or not key.startswith("_")]
    for key in members:
        if not hasattr(component, key):
            what = "cannot be called" if key == "__call__" else f"has no {key}"
            needs = ", ".join(key if key != "__call__" else "a method __call__" for key in members)
            raise RecipeError(f'{kind} "{name}" {what}; a {kind} has {needs}')


def check_constructible(kind: str, name: str, part: Callable[..., Any]) -> None:
    """Check that a class has no required positional argument, which a recipe cannot set.

    Raises:
        RecipeError: If the class has such an argument; the message shows the corrected signature.
    """
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    for parameter in inspect.signature(part).parameters.values():
        if parameter.kind in positional and parameter.default is parameter.empty:
            raise RecipeError(
                f'{kind} "{name}" cannot be created: {parameter.name} is a positional argument; options are '
                f"keyword-only: def __init__(self, *, {parameter.name})"
            )


def bind_component(kind: str, named: Any, built_in: Mapping[str, Any], *, optional: OptionalProtocols = ()) -> Any:
    """Look up a function or class, and bind the options that come with its name.

    The options of a function are its parameters; a model does not see those that are bound.

    Args:
        kind: Kind of the component, for messages.
        named: Name, or a mapping with `name` and options.
        built_in: Built-in components of this kind by name.
        optional: Optional protocols of this kind.

    Returns:
        The function or class, as a `functools.partial` if options are bound.

    Raises:
        OptionError: If the component has no such option, or the option has another type.
        RecipeError: If no component has this name, or `name` is missing.
    """
    options = dict(named) if isinstance(named, Mapping) else {"name": named}
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise RecipeError(f"a {kind} must be a name, or a mapping with `name`, got {named!r}")
    part = find_part(kind, name, built_in, optional=optional)
    if inspect.isclass(part):
        arguments = validate_options(part, options)
        check_constructible(kind, name, part)
        return functools.partial(part, **arguments)
    return functools.partial(part, **_function_options(name, part, options)) if options else part


def _function_options(name: str, part: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Convert options to the types of a function's parameters; others stay unbound."""
    by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    known = [each.name for each in inspect.signature(part).parameters.values() if each.kind in by_keyword]
    for key in options:
        if key not in known:
            raise OptionError(key, f"the function {name} has no parameter {key}{did_you_mean(key, known)}")
    return _typed_options(part, options)


class OptionError(RecipeError):
    """Error about an invalid option of a component; the caller adds file and line.

    Args:
        key: Name of the option.
        message: Problem and remedy.
    """

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"{key}: {message}")
        self.key, self.message = key, message
