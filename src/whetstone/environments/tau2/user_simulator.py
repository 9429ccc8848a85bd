"""Rule-based user simulator of the telecom domain: follows instructions about the phone and reports its state.

An instruction names the tool: "Please use toggle_airplane_mode()", "toggle airplane mode", or with arguments
"grant_app_permission(app_name='messaging', permission='sms')". Without an instruction, it replies as `ScenarioUser`
does.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from typing import Any

from whetstone.environments.protocol import Reply
from whetstone.environments.user_simulators.scenario import ScenarioUser
from whetstone.environments.user_simulators.user_tools import USER_TOOLS, UserTools
from whetstone.python_syntax import parse_expression
from whetstone.tools.protocol import Episode

_CALL = re.compile(r"\b([a-z]\w*)\(([^()]*)\)")


class Caller(ScenarioUser):
    """Rule-based simulated user with the tools of a phone.

    Plays the `scenario` in the task's private data.

    Args:
        patience: Maximum number of replies.
    """

    def __init__(self, *, patience: int = 30) -> None:
        super().__init__(patience=patience)
        self._hands: UserTools | None = None

    def open(self, episode: Episode) -> Reply:
        """Return the reason for the call as the first message."""
        self._hands = episode.shared.get(USER_TOOLS)
        return super().open(episode)

    def answer(self, text: str) -> Reply:
        """Use the tools that the agent's message names and return their results.

        Without such an instruction, the reply is that of `ScenarioUser`.
        """
        orders = [*self._orders(text)] if self._hands is not None else []
        if not orders:
            return super().answer(text)
        assert self._hands is not None
        self.answered += 1
        seen = [f"{name}: {self._hands.use(name, arguments)}" for name, arguments in orders]
        return Reply("\n".join(seen)) if self.answered < self.patience else self._end("I have no more time.")

    def _orders(self, text: str) -> Iterable[tuple[str, Mapping[str, Any]]]:
        """Return the tools and arguments that a message names, in the order of the text."""
        written = [(match.start(), match[1], _arguments(match[2])) for match in _CALL.finditer(text)]
        orders = [(at, name, arguments) for at, name, arguments in written if arguments is not None]
        called = {name for _, name, _ in orders}
        assert self._hands is not None
        for tool in self._hands.tools:
            match = re.search(rf"\b{tool.__name__.replace('_', '[_ ]')}\b(?!\()", text, re.IGNORECASE)
            if match and tool.__name__ not in called:
                orders.append((match.start(), tool.__name__, {}))
        return ((name, arguments) for _, name, arguments in sorted(orders, key=lambda order: order[0]))


def instruction_text(name: str, arguments: Mapping[str, Any]) -> str:
    """Return an agent's message that makes `Caller` use a tool with these arguments."""
    return f"Please use {name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})."


def _arguments(text: str) -> dict[str, Any] | None:
    """Parse keyword arguments in Python syntax; None if the text has another form."""
    try:
        call = parse_expression(f"f({text})")
        assert isinstance(call, ast.Call)
        return {str(one.arg): ast.literal_eval(one.value) for one in call.keywords} if not call.args else None
    except (SyntaxError, ValueError):
        return None
