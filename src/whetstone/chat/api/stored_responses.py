"""Store of the latest responses of the Responses API, in memory, so that a client can continue one by its id.

Note:
    Responses of one conversation share their items, but each response is counted with all of them. The memory limit
    therefore holds in whatever order responses are removed.
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
    """Response with its owner and its full conversation."""

    owner: str
    """Name of the API key that requested the response."""
    items: tuple[Any, ...]
    """All items of the conversation, including the output of the response."""
    response: Mapping[str, Any]
    """Response body as sent to the client."""
    size: int
    """Size of the items and the response as JSON, in bytes."""


class StoredResponses:
    """Responses that clients of one server can continue, retrieve and delete.

    A client can access only the responses to requests with the same API key.

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
        """Return a request body whose `input` is the full conversation, including that of `previous_response_id`.

        Args:
            owner: Name of the client's API key.
            body: Request body.

        Raises:
            RefusedError: If `previous_response_id` names a response that is not stored, or belongs to another owner.
        """
        items = list_items(body.get("input"))
        before = body.get("previous_response_id")
        if before is not None:
            items = [*self._get(owner, before, "previous_response_id").items, *items]
        return {**body, "input": items}

    def store(self, owner: str, body: Mapping[str, Any], response: Mapping[str, Any]) -> None:
        """Store a response, unless its request has `store: false`.

        Remove the oldest responses beyond the limits.

        Args:
            owner: Name of the client's API key.
            body: Request body returned by `resolve_input`.
            response: Response body as sent to the client.
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
        """Return the body of a stored response.

        Raises:
            RefusedError: If the response is not stored, or belongs to another owner.
        """
        return self._get(owner, id, "response_id").response

    def delete(self, owner: str, id: str) -> None:
        """Remove a stored response; responses that continue it are kept.

        Raises:
            RefusedError: If the response is not stored, or belongs to another owner.
        """
        self._get(owner, id, "response_id")
        self._bytes -= self._kept.pop(id).size

    def delete_all(self, owner: str) -> None:
        """Remove all stored responses of an owner."""
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
