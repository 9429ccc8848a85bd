"""The customer of the telecom domain by rules: he does on his phone what he is told to, and says what he sees.

He is told by the name of what is to be used: "Please use toggle_airplane_mode()", "toggle airplane mode", or, where
there is something to choose, "grant_app_permission(app_name='messaging', permission='sms')". Else he speaks as
`ScenarioUser` does.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from typing import Any

from whetstone.environments.protocol import Reply
from whetstone.environments.users.hands import HANDS, Hands
from whetstone.environments.users.scenario import ScenarioUser
from whetstone.python_syntax import parse_expression
from whetstone.tools.protocol import Episode

_CALL = re.compile(r"\b([a-z]\w*)\(([^()]*)\)")


class Caller(ScenarioUser):
    """Plays `scenario` in the task's private data, with a phone in his hands.

    Args:
        patience: How often he answers before he goes.
    """

    def __init__(self, *, patience: int = 30) -> None:
        super().__init__(patience=patience)
        self._hands: Hands | None = None

    def open(self, episode: Episode) -> Reply:
        """Why he calls."""
        self._hands = episode.shared.get(HANDS)
        return super().open(episode)

    def answer(self, text: str) -> Reply:
        """What he sees, where he was told to use something; else by the first rule that fits."""
        orders = [*self._orders(text)] if self._hands is not None else []
        if not orders:
            return super().answer(text)
        assert self._hands is not None
        self.answered += 1
        seen = [f"{name}: {self._hands.use(name, arguments)}" for name, arguments in orders]
        return Reply("\n".join(seen)) if self.answered < self.patience else self._end("I have no more time.")

    def _orders(self, text: str) -> Iterable[tuple[str, Mapping[str, Any]]]:
        written = [(found.start(), found[1], _arguments(found[2])) for found in _CALL.finditer(text)]
        orders = [(at, name, arguments) for at, name, arguments in written if arguments is not None]
        called = {name for _, name, _ in orders}
        assert self._hands is not None
        for tool in self._hands.tools:
            found = re.search(rf"\b{tool.__name__.replace('_', '[_ ]')}\b(?!\()", text, re.IGNORECASE)
            if found and tool.__name__ not in called:
                orders.append((found.start(), tool.__name__, {}))
        return ((name, arguments) for _, name, arguments in sorted(orders, key=lambda order: order[0]))


def told(name: str, arguments: Mapping[str, Any]) -> str:
    """How an agent tells him to use something, such that he does exactly that."""
    return f"Please use {name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})."


def _arguments(text: str) -> dict[str, Any] | None:
    """By name; none where it is written otherwise."""
    try:
        call = parse_expression(f"f({text})")
        assert isinstance(call, ast.Call)
        return {str(one.arg): ast.literal_eval(one.value) for one in call.keywords} if not call.args else None
    except (SyntaxError, ValueError):
        return None
