"""Responses of the Responses API that a client can continue by id: the latest ones, in memory.

Note:
    A chain of responses shares its items, but each response is counted with all of them. The memory limit therefore
    holds in whatever order they are removed.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from whetstone.chat.api.openai_responses import list_items
from whetstone.chat.api.requests import RefusedError


@dataclass(frozen=True, slots=True)
class _Stored:
    owner: str
    items: tuple[Any, ...]
    """All items of the conversation, output included."""
    response: Mapping[str, Any]
    size: int
    """Size in bytes."""


class StoredResponses:
    """Stored responses of a server.

    Args:
        most: Maximum number of responses; the oldest are removed first.
        most_bytes: Maximum total size as JSON, in bytes.
    """

    def __init__(self, *, most: int = 4096, most_bytes: int = 256 << 20) -> None:
        self._most, self._most_bytes, self._bytes = most, most_bytes, 0
        self._kept: OrderedDict[str, _Stored] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of stored responses."""
        return len(self._kept)

    def resolve_input(self, owner: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return a request with the full conversation as its input.

        Raises:
            RefusedError: If it continues a response that does not exist.
        """
        items = list_items(body.get("input"))
        before = body.get("previous_response_id")
        if before is not None:
            items = [*self._get(owner, before, "previous_response_id").items, *items]
        return {**body, "input": items}

    def store(self, owner: str, body: Mapping[str, Any], response: Mapping[str, Any]) -> None:
        """Store a response, unless the request has `store: false`.

        Args:
            owner: Owner of the response.
            body: Resolved request.
            response: Response as it was sent.
        """
        if body.get("store") is False:
            return
        items = (*body["input"], *response["output"])
        size = len(json.dumps((items, response)))
        self._kept[response["id"]] = _Stored(owner, items, response, size)
        self._bytes += size
        while len(self._kept) > self._most or self._bytes > self._most_bytes:
            self._bytes -= self._kept.popitem(last=False)[1].size

    def get(self, owner: str, id: str) -> Mapping[str, Any]:
        """Return a stored response.

        Raises:
            RefusedError: If it does not exist, or has another owner.
        """
        return self._get(owner, id, "response_id").response

    def delete(self, owner: str, id: str) -> None:
        """Remove a response; those that continue it stay."""
        self._get(owner, id, "response_id")
        self._bytes -= self._kept.pop(id).size

    def forget(self, owner: str) -> None:
        """Remove all responses of an owner."""
        for id in [id for id, stored in self._kept.items() if stored.owner == owner]:
            self.delete(owner, id)

    def _get(self, owner: str, id: Any, param: str) -> _Stored:
        stored = self._kept.get(id) if isinstance(id, str) else None
        if stored is None or stored.owner != owner:
            raise RefusedError(
                f"{param}: there is no response {str(id)[:80]}; the latest ones are stored in memory, "
                "except those with store: false",
                status=404,
                param=param,
                code="not_found",
            )
        return stored
