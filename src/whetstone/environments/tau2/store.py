"""The database of an episode: what everybody reads, and what this episode has changed.

Easy to get wrong: copying thousands of orders for each episode takes longer than the episode. Here the data is read
once and never changed; an entity is copied when it is first written to, and two databases are compared by what was
changed.
"""

from __future__ import annotations

import copy
import functools
import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from whetstone.errors import RecipeError, ToolError

_SINGULAR = {
    "users": "user", "orders": "order", "products": "product", "flights": "flight", "reservations": "reservation",
    "customers": "customer", "lines": "line", "bills": "bill", "plans": "plan", "devices": "device",
}  # fmt: skip
_Database = Mapping[str, Mapping[str, Any]]


@functools.lru_cache(maxsize=4)
def read_database(path: str, domain: str) -> _Database:
    """`db.json` of the folder of a domain, or `db.toml`, where entities are lists; read once.

    Raises:
        RecipeError: There is none; the message says what the folder is.
    """
    file, lists = Path(path) / "db.json", Path(path) / "db.toml"
    database: _Database
    if lists.is_file():
        read = tomllib.loads(lists.read_text(encoding="utf-8"))
        database = {kind: {one[f"{_SINGULAR[kind]}_id"]: one for one in each} for kind, each in read.items()}
    elif file.is_file():
        database = json.loads(file.read_bytes())
    else:
        raise RecipeError(f"{file}: no such file; the folder is data/tau2/domains/{domain} of tau2-bench")
    return database


class Store:
    """The entities of a domain by kind and id, as one episode has left them.

    Args:
        path: The folder with `db.json` or `db.toml`.
        domain: Of tau2-bench, for messages.
    """

    def __init__(self, path: str, domain: str) -> None:
        self.path, self.domain = path, domain
        self._database = read_database(path, domain)
        self._changed: dict[tuple[str, str], Any] = {}
        self.looked = False
        """Whether anything that is there was looked for."""

    def look(self, kind: str, id: str) -> Any:
        """An entity to read, not to change.

        Raises:
            ToolError: There is none.
        """
        if (kind, id) in self._changed:
            return self._changed[kind, id]
        if id not in self._database[kind]:
            raise ToolError(f"{_SINGULAR[kind]} not found")
        self.looked = True
        return self._database[kind][id]

    def change(self, kind: str, id: str) -> Any:
        """An entity to change.

        Raises:
            ToolError: There is none.
        """
        entity = self.look(kind, id)
        if (kind, id) not in self._changed:
            entity = self._changed[kind, id] = copy.deepcopy(entity)
        return entity

    def add(self, kind: str, id: str, entity: Any) -> None:
        """An entity that was not there."""
        self._changed[kind, id] = entity

    def has(self, kind: str, id: str) -> bool:
        """Whether there is such an entity."""
        return (kind, id) in self._changed or id in self._database[kind]

    def ids(self, kind: str) -> Iterable[str]:
        """All that were there from the beginning, in the order of the file."""
        return self._database[kind]

    def differences(self) -> dict[str, Any]:
        """What is not as it was, by kind and id; two databases are the same where these are."""
        return {
            f"{kind}/{id}": entity
            for (kind, id), entity in sorted(self._changed.items())
            if entity != self._database[kind].get(id)
        }


def in_cents(entity: Any) -> Any:
    """The same with its amounts rounded: in what order things are named decides the last bits of a sum."""
    if isinstance(entity, float):
        return round(entity, 2)
    if isinstance(entity, Mapping):
        return {key: in_cents(value) for key, value in entity.items()}
    return [in_cents(value) for value in entity] if isinstance(entity, list) else entity


def written(entity: Any) -> str:
    """An entity as the agent reads it."""
    return json.dumps(entity, ensure_ascii=False)
