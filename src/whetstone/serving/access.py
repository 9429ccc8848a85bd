"""Who may ask, and how much? Keys with roles, kept as hashes; limits on rate, tokens and how many ask at once.

Easy to get wrong: keys are compared in constant time and never shown again; what one key may not do is told apart from
what nobody may do.
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
from whetstone.chat.api.asked import RefusedError
from whetstone.errors import RecipeError

ROLES = ("use", "reward", "admin")
"""Each may do what those before it may: ask the model; pay its own episodes; see, pay and delete those of any key."""

_MINUTE = 60.0


@dataclass(slots=True)
class Key:
    """Somebody who may ask."""

    name: str
    hash: str
    role: str = "use"
    requests_a_minute: int | None = None
    """Of any kind, refused ones among them."""
    tokens_a_minute: int | None = None
    """Drawn; an answer nobody waited for counts as if it had been drawn to its end."""
    at_once: int | None = None
    """Answers under way."""
    most_bytes: int | None = None
    """Of a request, where that is less than the server takes."""
    asked: deque[float] = field(default_factory=deque, repr=False)
    drawn: deque[tuple[float, int]] = field(default_factory=deque, repr=False)
    under_way: int = 0

    def may(self, role: str) -> bool:
        """Whether it has this role."""
        return ROLES.index(self.role) >= ROLES.index(role)

    def ask(self) -> None:
        """It asks something.

        Raises:
            RefusedError: It asks too often.
        """
        now = time.monotonic()
        while self.asked and self.asked[0] < now - _MINUTE:
            self.asked.popleft()
        if self.requests_a_minute is not None:
            if len(self.asked) >= self.requests_a_minute:
                raise _too_much(self.requests_a_minute, "requests a minute", self.asked[0] + _MINUTE - now)
            self.asked.append(now)

    def begin(self) -> None:
        """An answer to it begins.

        Raises:
            RefusedError: It has too many, or too much of them.
        """
        now = time.monotonic()
        while self.drawn and self.drawn[0][0] < now - _MINUTE:
            self.drawn.popleft()
        tokens = sum(count for _, count in self.drawn)
        if self.tokens_a_minute is not None and tokens >= self.tokens_a_minute:
            raise _too_much(self.tokens_a_minute, "tokens a minute", self.drawn[0][0] + _MINUTE - now)
        if self.at_once is not None and self.under_way >= self.at_once:
            raise _too_much(self.at_once, "requests at once", 1.0)
        self.under_way += 1

    def end(self, tokens: int) -> None:
        """It is over, with so many tokens drawn."""
        self.under_way -= 1
        if self.tokens_a_minute is not None and tokens:
            self.drawn.append((time.monotonic(), tokens))


def _too_much(most: int, what: str, after: float) -> RefusedError:
    return RefusedError(f"this key may make {most} {what}", status=429, code="rate_limit_exceeded", after=after)


class Keys:
    """Those who may ask; without any, everybody by a name of this machine."""

    def __init__(self, keys: Mapping[str, Key] | None = None) -> None:
        self._keys = dict(keys or {})
        self._anybody = Key("", "", "admin")

    def __len__(self) -> int:
        """How many there are."""
        return len(self._keys)

    def __iter__(self) -> Iterator[Key]:
        """Iterate over the keys; without any, over the one of every request."""
        return iter(self._keys.values() or (self._anybody,))

    @classmethod
    def read(cls, path: Path) -> Keys:
        """The keys of a file `whetstone serve --new-key` wrote.

        Raises:
            RecipeError: It is none.
        """
        try:
            rows = json.loads(path.read_text("utf-8"))
            keys = [Key(**row) for row in rows]
        except (OSError, ValueError, TypeError) as error:
            raise RecipeError(f"{path}: no file of keys: {str(error)[:120]}") from None
        for key in keys:
            if key.role not in ROLES:
                raise RecipeError(f'{path}: key "{key.name}": no role "{key.role}"; there are {", ".join(ROLES)}')
        return cls({key.hash: key for key in keys})

    def of(self, headers: Mapping[str, str]) -> Key:
        """Whose request it is.

        Raises:
            RefusedError: Nobody's who may ask.
        """
        if not self._keys:
            return self._anybody
        given = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
        if not given:
            raise RefusedError("You didn't provide an API key.", status=401, code="missing_api_key")
        hashed = hashed_key(given)
        found = [key for hash, key in self._keys.items() if hmac.compare_digest(hash, hashed)]
        if not found:
            raise RefusedError("Incorrect API key provided.", status=401, code="invalid_api_key")
        return found[0]


def hashed_key(key: str) -> str:
    """A key as it is kept; it is long and random, so a quick hash is no weakness."""
    return hashlib.sha256(key.encode()).hexdigest()


def new_key(path: Path, name: str, role: str = "use", **limits: int | None) -> str:
    """Make a key and keep its hash; the key itself is returned and nowhere else.

    Raises:
        RecipeError: The file is none, or has the name already.
    """
    rows: list[dict[str, Any]] = []
    if path.exists():
        Keys.read(path)
        rows = json.loads(path.read_text("utf-8"))
    if any(row["name"] == name for row in rows):
        raise RecipeError(f'{path}: has a key "{name}" already')
    key = f"wh-{secrets.token_urlsafe(32)}"
    rows.append({"name": name, "hash": hashed_key(key), "role": role, **{k: v for k, v in limits.items() if v}})
    write_text(path, json.dumps(rows, indent=1) + "\n")
    path.chmod(0o600)
    return key
