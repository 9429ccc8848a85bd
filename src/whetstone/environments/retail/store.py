"""The database of an episode: what everybody reads, and what this episode has changed.

Easy to get wrong: copying thousands of orders for each episode takes longer than the episode. Here the data is read
once and never changed; an entity is copied when it is first written to, and two databases are compared by what was
changed.
"""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from whetstone.errors import RecipeError, ToolError

Kind = Literal["users", "orders", "products"]
_SINGULAR = {"users": "user", "orders": "order", "products": "product"}


@functools.lru_cache(maxsize=4)
def read_database(path: str) -> Mapping[str, Mapping[str, Any]]:
    """`db.json` of the folder, read once.

    Raises:
        RecipeError: There is none; the message says what the folder is.
    """
    file = Path(path) / "db.json"
    if not file.is_file():
        raise RecipeError(f"{file}: no such file; the folder is data/tau2/domains/retail of tau2-bench")
    database: Mapping[str, Mapping[str, Any]] = json.loads(file.read_bytes())
    return database


@functools.lru_cache(maxsize=4)
def _indexes(path: str) -> tuple[dict[str, str], dict[tuple[str, str, str], str], dict[str, Any]]:
    """Users by e-mail; users by name and zip; variants by item id."""
    database = read_database(path)
    by_email, by_name, items = {}, {}, {}
    for id, user in database["users"].items():
        by_email[user["email"].lower()] = id
        name = user["name"]
        by_name[name["first_name"].lower(), name["last_name"].lower(), user["address"]["zip"]] = id
    for product in database["products"].values():
        items.update(product["variants"])
    return by_email, by_name, items


class Store:
    """Users, orders and products, as one episode has left them."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._database = read_database(path)
        self._changed: dict[tuple[str, str], Any] = {}
        self.looked = False
        """Whether anything that is there was looked for."""

    def look(self, kind: Kind, id: str) -> Any:
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

    def change(self, kind: Kind, id: str) -> Any:
        """An entity to change.

        Raises:
            ToolError: There is none.
        """
        entity = self.look(kind, id)
        if (kind, id) not in self._changed:
            entity = self._changed[kind, id] = copy.deepcopy(entity)
        return entity

    def user_by_email(self, email: str) -> str:
        """A user's id."""
        found = _indexes(self.path)[0].get(email.lower())
        if found is None:
            raise ToolError("user not found")
        self.looked = True
        return found

    def user_by_name(self, first: str, last: str, zip: str) -> str:
        """A user's id; the zip is the one the database came with."""
        found = _indexes(self.path)[1].get((first.lower(), last.lower(), zip))
        if found is None:
            raise ToolError("user not found")
        self.looked = True
        return found

    def item(self, id: str) -> Any:
        """A variant of some product."""
        found = _indexes(self.path)[2].get(id)
        if found is None:
            raise ToolError("item not found")
        return found

    def differences(self) -> dict[str, Any]:
        """What is not as it was, by kind and id; two databases are the same where these are."""
        return {
            f"{kind}/{id}": entity
            for (kind, id), entity in sorted(self._changed.items())
            if entity != self._database[kind][id]
        }

    def products(self) -> dict[str, str]:
        """Name → id of every product, by name."""
        return dict(sorted((product["name"], id) for id, product in self._database["products"].items()))
