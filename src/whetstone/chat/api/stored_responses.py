"""Which responses may a client go on from by their id? The last ones, in memory, each with all that was said up to it.

Easy to get wrong: a chain of responses shares what was said, but counts as if each held all of it, so that what is
promised of memory holds however they are let go.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from whetstone.chat.api.asked import RefusedError
from whetstone.chat.api.openai_responses import items_of


@dataclass(frozen=True, slots=True)
class _Stored:
    owner: str
    items: tuple[Any, ...]
    """All that was said, its output included."""
    told: Mapping[str, Any]
    size: int
    """Bytes."""


class StoredResponses:
    """Those of a server.

    Args:
        most: How many are kept; the oldest go first.
        most_bytes: What they may hold in all, as JSON.
    """

    def __init__(self, *, most: int = 4096, most_bytes: int = 256 << 20) -> None:
        self._most, self._most_bytes, self._bytes = most, most_bytes, 0
        self._kept: OrderedDict[str, _Stored] = OrderedDict()

    def __len__(self) -> int:
        """How many there are."""
        return len(self._kept)

    def resolved(self, owner: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """A request with all that was said as its input.

        Raises:
            RefusedError: It goes on from a response that is not there.
        """
        items = items_of(body.get("input"))
        before = body.get("previous_response_id")
        if before is not None:
            items = [*self._get(owner, before, "previous_response_id").items, *items]
        return {**body, "input": items}

    def keep(self, owner: str, body: Mapping[str, Any], told: Mapping[str, Any]) -> None:
        """Keep a response, unless the client said `store: false`.

        Args:
            body: The request, resolved.
        """
        if body.get("store") is False:
            return
        items = (*body["input"], *told["output"])
        size = len(json.dumps((items, told)))
        self._kept[told["id"]] = _Stored(owner, items, told, size)
        self._bytes += size
        while len(self._kept) > self._most or self._bytes > self._most_bytes:
            self._bytes -= self._kept.popitem(last=False)[1].size

    def told(self, owner: str, id: str) -> Mapping[str, Any]:
        """A response as it was told.

        Raises:
            RefusedError: It is not there, or another's.
        """
        return self._get(owner, id, "response_id").told

    def delete(self, owner: str, id: str) -> None:
        """Forget one; what goes on from it stays."""
        self._get(owner, id, "response_id")
        self._bytes -= self._kept.pop(id).size

    def forget(self, owner: str) -> None:
        """All of an owner go."""
        for id in [id for id, stored in self._kept.items() if stored.owner == owner]:
            self.delete(owner, id)

    def _get(self, owner: str, id: Any, param: str) -> _Stored:
        found = self._kept.get(id) if isinstance(id, str) else None
        if found is None or found.owner != owner:
            raise RefusedError(
                f"{param}: there is no response {str(id)[:80]}; the last ones are kept in memory, "
                "but for those with store: false",
                status=404,
                param=param,
                code="not_found",
            )
        return found
