"""How does a method of a paper fit onto any task? As a layer over the recipe of a world.

    with: [gigpo, entropy-branching]    a recipe's own keys < methods < files that extend it, command line, Python

Easy to get wrong: of two methods that set a key to different values one would be lost without a word. They are refused,
unless one is said to win: `with: [gigpo, {dapo: wins}]`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from whetstone.errors import RecipeError
from whetstone.recipe.locating import located
from whetstone.recipe.problems import models_in
from whetstone.recipe.reading import Keys, Places, merged, place_of, read_document, renamed, set_key, shortened
from whetstone.recipe.settings import Recipe

_DESCRIBING = ("title", "paper", "ablations")
"""Keys that are a method's own, whatever it is laid over; of several methods, those of all."""
_OF_A_WORLD = ("extends", "with", "tasks", "seed")
_WINS = "wins"
_THE_WORLDS = "world"
"""Where a method's reward is made of another, it is the world's own."""


@dataclass(frozen=True, slots=True)
class Method:
    """A method as its file has it, for one world."""

    name: str
    keys: Keys
    """What it sets."""
    places: Places
    adds: Mapping[str, Any]
    """Dotted key → what is added to the world's own: numbers are summed, lists joined."""
    needs: Mapping[str, str]
    """Dotted key → what must be set there, in words."""
    wins: bool = False
    """Over the other methods."""


@dataclass(frozen=True, slots=True)
class Laid:
    """Keys of a world with methods over them."""

    keys: Keys
    places: Places
    methods: tuple[Method, ...]
    notes: tuple[str, ...] = ()
    """What the world said and a method in the same file takes the place of."""

    def unmet(self, keys: Mapping[str, Any]) -> Iterator[tuple[Method, str, str]]:
        """(method, key, what it should be) for what a method needs and keys do not have."""
        for method in self.methods:
            for dotted, wanted in method.needs.items():
                if value_at(keys, dotted) in (None, [], {}, ""):
                    yield method, dotted, wanted


def with_methods(keys: Keys, places: Places, named: Any, worlds: Sequence[str] = (), place: str = "with") -> Laid:
    """Keys with methods laid over them.

    Args:
        named: As `with` has it: `dapo`, `dapo, gigpo`, `[gigpo, {dapo: wins}]`, names of ours or files; null: none.
        worlds: Names of the recipe and of those it extends, for what methods say of one.
        place: Where it was written, for messages.

    Raises:
        RecipeError: There is no such method, it says what only a recipe can, or two do not go together.
    """
    methods = tuple(read_method(name, worlds, wins=wins) for name, wins in _listed(named, place))
    if not methods:
        return Laid(keys, places, ())
    for number, method in enumerate(methods):
        for other in methods[:number]:
            _check_together(other, method, place)
    in_order = sorted(methods, key=lambda each: each.wins)  # winners last
    together = reduce(_joined, (each.keys for each in in_order))
    file = place.partition(":")[0]
    replaced = _replaced(keys, places, together, methods, file) if ":" in place else ()
    found = merged(keys, _rewarded(together, keys.get("reward")))
    found |= _described(methods)
    known = dict(places)
    for method in in_order:
        known |= {dotted: line for dotted, line in method.places.items() if not dotted.startswith("adds")}
        for dotted, more in method.adds.items():
            found = _added(found, dotted, more, method)
            known[dotted] = f"{known.get(dotted, 'default')} + {place_of(method.places, 'adds', method.name)}"
    for key in _DESCRIBING:
        known[key] = ", ".join(each.places[key] for each in methods if key in each.places)
    return Laid(found, known, methods, tuple(replaced))


def read_method(name: str, worlds: Sequence[str] = (), *, wins: bool = False) -> Method:
    """A method of ours, or of a file.

    Raises:
        RecipeError: There is none, or it says what only a recipe can.
    """
    document = read_document(name, of_method=True)
    keys, places = dict(document.keys), document.places
    for key in _OF_A_WORLD:
        if key in keys:
            said = "belongs to the recipe a method is laid over"
            raise RecipeError(f"{place_of(places, key, document.label)}  {key}: {said}")
    parts = {}
    for key in ("adds", "needs", "on"):
        parts[key] = keys.pop(key, None) or {}
        if not isinstance(parts[key], Mapping):
            raise RecipeError(f"{place_of(places, key, document.label)}  {key}: a mapping, got {shortened(parts[key])}")
    places = {dotted: line for dotted, line in places.items() if dotted.partition(".")[0] not in ("needs", "on")}
    for world in reversed(worlds):
        own = parts["on"].get(world) or {}
        if not isinstance(own, Mapping):
            raise RecipeError(f"{document.label}  on.{world}: keys of a recipe, got {shortened(own)}")
        keys = merged(keys, own)
        there = {key.removeprefix(f"on.{world}."): line for key, line in document.places.items()}
        places |= {key: line for key, line in there.items() if key.partition(".")[0] in own}
    keys = located(keys, document.folder)
    needs = {str(key): str(wanted) for key, wanted in parts["needs"].items()}
    return Method(Path(name).stem, keys, places, parts["adds"], needs, wins)


def _listed(named: Any, place: str) -> list[tuple[str, bool]]:
    """(name, whether it wins) of each."""
    if isinstance(named, str):
        named = [each.strip() for each in named.split(",") if each.strip()]
    found: list[tuple[str, bool]] = []
    for each in named if isinstance(named, list) else [] if named is None else [named]:
        if isinstance(each, Mapping) and len(each) == 1 and next(iter(each.values())) == _WINS:
            found.append((str(next(iter(each))), True))
        elif isinstance(each, str):
            found.append((each, False))
        else:
            said = "names of methods, one of which may win, as in [gigpo, {dapo: wins}]"
            raise RecipeError(f"{place}  with: {said}; got {shortened(each)}")
    names = [name for name, _ in found]
    for name in names:
        if names.count(name) > 1:
            raise RecipeError(f'{place}  with: "{name}" is listed twice')
    return found


# ------------------------------------------------------------ methods beside each other


def _check_together(one: Method, other: Method, place: str) -> None:
    for key, first, second in _differences(_setting(one.keys), _setting(other.keys), ""):
        if one.wins != other.wins:
            return
        both = f"{one.name} and {other.name} both set {key} ({shortened(first)}, {shortened(second)})"
        if one.wins:
            raise RecipeError(f"{place}  with: {both}, and both are said to win; let one")
        said = f"leave one out, or say which wins: with: [{one.name}, {{{other.name}: wins}}]"
        raise RecipeError(f"{place}  with: {both}; {said}")


def _setting(keys: Keys) -> Keys:
    return {key: value for key, value in keys.items() if key not in _DESCRIBING}


def _differences(one: Any, other: Any, dotted: str) -> Iterator[tuple[str, Any, Any]]:
    """(dotted key, value of one, value of the other) of what both set, and not to the same."""
    one, other = _as_parts(one, other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        if renamed(one, other) and "name" in one and "name" in other:
            yield dotted, one["name"], other["name"]
            return
        for key in one:
            if key in other:
                yield from _differences(one[key], other[key], f"{dotted}.{key}" if dotted else key)
    elif _are_parts(one) and _are_parts(other):  # each of a list is a part of its own
        mine, theirs = _by_name(one), _by_name(other)
        for name in mine:
            if name in theirs and mine[name] != theirs[name]:
                yield f"{dotted}: {name}", mine[name], theirs[name]
    elif one != other:
        yield dotted, one, other


def _joined(one: Mapping[str, Any], other: Mapping[str, Any]) -> Keys:
    """What both set; of what they differ in, the other's. Lists of parts are joined, in order."""
    found = dict(one)
    for key, value in other.items():
        below, top = _as_parts(found.get(key), value)
        if isinstance(below, Mapping) and isinstance(top, Mapping) and not renamed(below, top):
            found[key] = _joined(below, top)
        elif key in found and _are_parts(below) and _are_parts(top):
            found[key] = [*({**_by_name(below), **_by_name(top)}).values()]
        else:
            found[key] = value
    return found


def _as_parts(one: Any, other: Any) -> tuple[Any, Any]:
    """`clipped` beside `{name: clipped, clip_high: 0.28}` is a part, too."""
    if isinstance(one, str) and isinstance(other, Mapping):
        return {"mode" if "mode" in other else "name": one}, other
    if isinstance(other, str) and isinstance(one, Mapping):
        return one, {"mode" if "mode" in one else "name": other}
    return one, other


def _are_parts(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, str) or (isinstance(each, Mapping) and "name" in each) for each in value
    )


def _by_name(parts: Sequence[Any]) -> dict[str, Any]:
    return {each if isinstance(each, str) else str(each["name"]): each for each in parts}


# ------------------------------------------------------------ methods over a world


def _described(methods: Sequence[Method]) -> Keys:
    """Title and papers of all; what a world compares itself with is nothing of a method, so its ablations go."""
    said = {key: [each.keys[key] for each in methods if each.keys.get(key)] for key in _DESCRIBING}
    ablations: Keys = {}
    for compared in said["ablations"]:
        ablations = merged(ablations, compared)
    return {"title": "; ".join(said["title"]), "paper": ", ".join(said["paper"]), "ablations": ablations or None}


def _rewarded(keys: Keys, reward: Any) -> Keys:
    """With the world's own reward where the method's is made of it."""
    own = keys.get("reward")
    return {**keys, "reward": _made_of(own, reward)} if isinstance(own, Mapping) else keys


def _made_of(own: Mapping[str, Any], reward: Any) -> Keys:
    made = {option: reward if value == _THE_WORLDS else value for option, value in own.items()}
    return {option: _made_of(value, reward) if option == "terms" else value for option, value in made.items()}


def _replaced(keys: Keys, places: Places, together: Keys, methods: Sequence[Method], file: str) -> Iterator[str]:
    """A line for each key that one file sets and names a method for, which sets it differently."""
    for dotted, own, new in list(_differences(_setting(keys), _setting(together), "")):
        place = place_of(places, dotted, "")
        if place.partition(":")[0] == file:
            whose = ", ".join(each.name for each in methods if value_at(each.keys, dotted) is not None)
            yield f"{place}  {dotted}: {whose} lies over it, so it is {shortened(new)}, not {shortened(own)}"


def _added(keys: Keys, dotted: str, more: Any, method: Method) -> Keys:
    """Keys with something added to what is there, or to its default; nothing to a section the world does not have."""
    own = value_at(keys, dotted)
    if own is None:
        own = _default_at(dotted)
    section = dotted.rpartition(".")[0]
    where = f"{place_of(method.places, f'adds.{dotted}', method.name)}  adds.{dotted}"
    if isinstance(more, list):
        if not isinstance(own, list):
            raise RecipeError(
                f"{method.name} adds {', '.join(map(str, more))} to {dotted}, and the recipe lists none there"
            )
        new: Any = [*own, *(each for each in more if each not in own)]
    elif isinstance(more, int | float) and not isinstance(more, bool):
        if value_at(keys, section) is None and section != "environment":
            return keys
        if not isinstance(own, int | float):
            raise RecipeError(f"{where}: {more} cannot be added to {shortened(own)}")
        new = own + more
    else:
        raise RecipeError(f"{where}: a number or a list, got {shortened(more)}")
    changed = dict(keys)
    set_key(changed, dotted, new)
    return changed


def _default_at(dotted: str) -> Any:
    """What a recipe has where nothing is written."""
    model: type[BaseModel] | None = Recipe
    value: Any = None
    for part in dotted.split("."):
        field = model.model_fields.get(part) if model is not None else None
        if field is None:
            return None
        value = field.get_default(call_default_factory=True)
        model = next(models_in(field.annotation), None)
    return value


def value_at(keys: Any, dotted: str) -> Any:
    """What is set there, lists by their numbers; None where nothing is."""
    for part in dotted.split(".") if dotted else ():
        if isinstance(keys, Mapping):
            keys = keys.get(part)
        elif isinstance(keys, list) and part.isdecimal() and int(part) < len(keys):
            keys = keys[int(part)]
        else:
            return None
    return keys
