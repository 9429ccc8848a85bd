"""Database of an episode: shared read-only data, and the changes of the episode.

Note:
    Copying thousands of orders per episode takes longer than the episode. The data is read once and never changed. An
    entity is copied at the first write, and two databases are compared by their changes.
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
    """Read `db.json` of a tau2-bench domain, or `db.toml` with lists; cached.

    Args:
        path: Folder of the domain.
        domain: Name of the domain, for the message.

    Raises:
        RecipeError: If there is no such file; the message has the expected folder.
    """
    file, lists = Path(path) / "db.json", Path(path) / "db.toml"
    database: _Database
    if lists.is_file():
        read = tomllib.loads(lists.read_text(encoding="utf-8"))
        database = {kind: {one[f"{_SINGULAR[kind]}_id"]: one for one in each} for kind, each in read.items()}
    elif file.is_file():
        database = json.loads(file.read_bytes())
    else:
        raise RecipeError(f"{file}: no such file; set path to the folder data/tau2/domains/{domain} of tau2-bench")
    return database


class Store:
    """Database of a tau2-bench domain with the changes of one episode.

    Entities are identified by kind and id. The original data are shared by all episodes and never changed.

    Args:
        path: The folder with `db.json` or `db.toml`.
        domain: Domain of tau2-bench, for messages.
    """

    def __init__(self, path: str, domain: str) -> None:
        self.path, self.domain = path, domain
        self._database = read_database(path, domain)
        self._changed: dict[tuple[str, str], Any] = {}
        self.looked = False
        """Whether an existing entity was read."""

    def read_entity(self, kind: str, id: str) -> Any:
        """Return an entity for reading.

        Raises:
            ToolError: If the entity does not exist.
        """
        if (kind, id) in self._changed:
            return self._changed[kind, id]
        if id not in self._database[kind]:
            raise ToolError(f"{_SINGULAR[kind]} not found")
        self.looked = True
        return self._database[kind][id]

    def edit_entity(self, kind: str, id: str) -> Any:
        """Return a copy of an entity for writing; the copy belongs to the episode.

        Raises:
            ToolError: If the entity does not exist.
        """
        entity = self.read_entity(kind, id)
        if (kind, id) not in self._changed:
            entity = self._changed[kind, id] = copy.deepcopy(entity)
        return entity

    def add_entity(self, kind: str, id: str, entity: Any) -> None:
        """Add an entity to this episode's database, or replace it."""
        self._changed[kind, id] = entity

    def has_entity(self, kind: str, id: str) -> bool:
        """Return whether an entity exists, in the original data or in this episode."""
        return (kind, id) in self._changed or id in self._database[kind]

    def list_ids(self, kind: str) -> Iterable[str]:
        """Return the ids of a kind's original entities, in the order of the file."""
        return self._database[kind]

    def find_differences(self) -> dict[str, Any]:
        """Return the entities that differ from the original data, by `kind/id`.

        Two episodes with equal differences have equal databases.
        """
        return {
            f"{kind}/{id}": entity
            for (kind, id), entity in sorted(self._changed.items())
            if entity != self._database[kind].get(id)
        }


def round_amounts(entity: Any) -> Any:
    """Return an entity with all amounts (floats) rounded to two decimals.

    The order of a summation decides the last bits of a sum.
    """
    if isinstance(entity, float):
        return round(entity, 2)
    if isinstance(entity, Mapping):
        return {key: round_amounts(value) for key, value in entity.items()}
    return [round_amounts(value) for value in entity] if isinstance(entity, list) else entity


def format_entity(entity: Any) -> str:
    """Return an entity of the database as JSON text for the agent."""
    return json.dumps(entity, ensure_ascii=False)
