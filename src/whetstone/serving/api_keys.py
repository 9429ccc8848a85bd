"""API keys of the server: roles, hashes, and limits on requests, tokens and concurrency.

Note:
    Keys are compared in constant time and never shown again. An action that a key may not do (403) differs from a
    request without a valid key (401).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whetstone.atomic_write import write_text
from whetstone.chat.api.requests import RefusedError
from whetstone.errors import RecipeError

ROLES = ("use", "reward", "admin")
"""Each role includes those before it: request completions; reward own episodes; read, reward and delete all
episodes."""

_MINUTE = 60.0


@dataclass(slots=True)
class Key:
    """API key of a client, with its limits and its usage in the last minute."""

    name: str
    """Name of the client, unique in the file of keys."""
    hash: str
    """SHA-256 of the key; the key itself is not stored."""
    role: str = "use"
    """Name in `ROLES`."""
    requests_a_minute: int | None = None
    """Maximum number of requests per minute, including rejected ones."""
    tokens_a_minute: int | None = None
    """Maximum number of sampled tokens per minute; an abandoned answer counts with its maximum length."""
    at_once: int | None = None
    """Maximum number of answers in progress."""
    most_bytes: int | None = None
    """Maximum bytes of a request, if less than the server's limit."""
    request_times: deque[float] = field(default_factory=deque, repr=False)
    """Times of the requests of the last minute, in seconds of the monotonic clock."""
    token_counts: deque[tuple[float, int]] = field(default_factory=deque, repr=False)
    """(time, sampled tokens) of the answers of the last minute."""
    num_running: int = 0
    """Number of answers in progress."""

    def has_role(self, role: str) -> bool:
        """Return whether the key may act in a role of `ROLES`; each role includes those before it."""
        return ROLES.index(self.role) >= ROLES.index(role)

    def count_request(self) -> None:
        """Count a request against `requests_a_minute`, before it is parsed.

        Raises:
            RefusedError: The limit is reached (status 429).
        """
        now = time.monotonic()
        while self.request_times and self.request_times[0] < now - _MINUTE:
            self.request_times.popleft()
        if self.requests_a_minute is not None:
            if len(self.request_times) >= self.requests_a_minute:
                raise _limit_error(self.requests_a_minute, "requests per minute", self.request_times[0] + _MINUTE - now)
            self.request_times.append(now)

    def start_answer(self) -> None:
        """Count the start of an answer against `at_once`, and check `tokens_a_minute`.

        Raises:
            RefusedError: A limit is reached (status 429).
        """
        now = time.monotonic()
        while self.token_counts and self.token_counts[0][0] < now - _MINUTE:
            self.token_counts.popleft()
        tokens = sum(count for _, count in self.token_counts)
        if self.tokens_a_minute is not None and tokens >= self.tokens_a_minute:
            raise _limit_error(self.tokens_a_minute, "tokens per minute", self.token_counts[0][0] + _MINUTE - now)
        if self.at_once is not None and self.num_running >= self.at_once:
            raise _limit_error(self.at_once, "requests at once", 1.0)
        self.num_running += 1

    def end_answer(self, tokens: int) -> None:
        """Count the end of an answer.

        Args:
            tokens: Number of sampled tokens, which counts against `tokens_a_minute`.
        """
        self.num_running -= 1
        if self.tokens_a_minute is not None and tokens:
            self.token_counts.append((time.monotonic(), tokens))


def _limit_error(limit: int, unit: str, after: float) -> RefusedError:
    return RefusedError(f"this key may make {limit} {unit}", status=429, code="rate_limit_exceeded", after=after)


class Keys:
    """Collection of the API keys of a server. Without keys, any client on this machine may use the server."""

    def __init__(self, keys: Mapping[str, Key] | None = None) -> None:
        self._keys = dict(keys or {})
        self._shared_key = Key("", "", "admin")

    def __len__(self) -> int:
        """Return the number of keys; 0 if clients need none."""
        return len(self._keys)

    def __iter__(self) -> Iterator[Key]:
        """Iterate over the keys; if there are none, over the one entry that all clients share."""
        return iter(self._keys.values() or (self._shared_key,))

    @classmethod
    def read(cls, path: Path) -> Keys:
        """Read the keys that `whetstone serve --new-key` has stored in a file.

        Raises:
            RecipeError: The file is not a file of keys.
        """
        try:
            rows = json.loads(path.read_text("utf-8"))
            keys = [Key(**row) for row in rows]
        except (OSError, ValueError, TypeError) as error:
            raise RecipeError(f"{path}: not a file of keys: {str(error)[:120]}") from None
        for key in keys:
            if key.role not in ROLES:
                raise RecipeError(f'{path}: key "{key.name}": no role "{key.role}"; there are {", ".join(ROLES)}')
        return cls({key.hash: key for key in keys})

    def find(self, headers: Mapping[str, str]) -> Key:
        """Return the key that a request names in `Authorization` or `x-api-key`.

        Raises:
            RefusedError: The request has no valid key (status 401).
        """
        if not self._keys:
            return self._shared_key
        text = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
        if not text:
            raise RefusedError("You didn't provide an API key.", status=401, code="missing_api_key")
        hashed = hash_key(text)
        matches = [key for hash, key in self._keys.items() if hmac.compare_digest(hash, hashed)]
        if not matches:
            raise RefusedError("Incorrect API key provided.", status=401, code="invalid_api_key")
        return matches[0]


def hash_key(key: str) -> str:
    """Return the stored hash of a key.

    Keys are long and random, so that a fast hash is sufficient.
    """
    return hashlib.sha256(key.encode()).hexdigest()


def create_key(path: Path, name: str, role: str = "use", **limits: int | None) -> str:
    """Create an API key and store its hash in a file of keys.

    Args:
        path: File of keys, which is created if it does not exist.
        name: Name of the client.
        role: Name in `ROLES`.
        limits: Limits of the key by their field names in `Key`; None: no limit.

    Returns:
        The key, which is stored nowhere else.

    Raises:
        RecipeError: The file is not a file of keys, or it has a key of this name.
    """
    rows: list[dict[str, Any]] = []
    if path.exists():
        Keys.read(path)
        rows = json.loads(path.read_text("utf-8"))
    if any(row["name"] == name for row in rows):
        raise RecipeError(f'{path}: has a key named "{name}" already; choose another name')
    key = f"wh-{secrets.token_urlsafe(32)}"
    rows.append({"name": name, "hash": hash_key(key), "role": role, **{k: v for k, v in limits.items() if v}})
    write_text(path, json.dumps(rows, indent=1) + "\n")
    path.chmod(0o600)
    return key
