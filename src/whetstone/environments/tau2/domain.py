"""Base of the agent's tools in tau2-bench's domains: a database per episode, two tools, the final check.

Source: tau2-bench, arXiv:2506.07982.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from whetstone.environments.tau2.database import Store, read_database, round_amounts
from whetstone.errors import ToolError
from whetstone.tools.arithmetic_tools import evaluate_expression
from whetstone.tools.protocol import Episode


class Desk:
    """Base class of the agent's tools in a domain of tau2-bench.

    A subclass adds the tools of its domain. Each episode has a separate database.

    Args:
        path: The folder with `db.json` or `db.toml`.

    Raises:
        RecipeError: If there is no such file.
    """

    effects = "read"
    domain: ClassVar[str]
    """Name of the domain."""

    def __init__(self, *, path: str) -> None:
        self.path = path
        read_database(path, self.domain)
        self.store = Store(path, self.domain)
        self._transferred = False
        self._wanted: Mapping[str, Any] = {}

    def open(self, episode: Episode) -> None:
        """Load the original database and compute the changes of the gold actions."""
        self._begin()
        self._wanted = wanted_differences(type(self), self.path, episode.task.private["actions"])

    def _begin(self) -> None:
        self.store, self._transferred = Store(self.path, self.domain), False

    def verdict(self) -> Mapping[str, Any]:
        """Return `same`: whether the database equals the result of the gold actions.

        Amounts are compared to the cent. A success also requires that any tool was used: in some tasks the gold actions
        change nothing, and neither does an idle agent.
        """
        changed = self.store.find_differences()
        same = round_amounts(changed) == round_amounts(self._wanted)
        done = same and (bool(changed) or self.store.looked or self._transferred)
        return {"success": done, "score": float(done), "same": same, "changed": len(changed)}

    def calculate(self, expression: str) -> str:
        """Calculate the result of a mathematical expression.

        Args:
            expression: Numbers, + - * / and parentheses.
        """
        return str(round(float(evaluate_expression(expression)), 2))

    def transfer_to_human_agents(self, summary: str) -> str:
        """Transfer the user to a human agent, with a summary of the issue: only where the user asks for it, or the
        issue cannot be solved by the policy and the tools.

        Args:
            summary: What the user wants.
        """
        self._transferred = True
        return "Transfer successful"


def wanted_differences(desk: type[Desk], path: str, actions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the changes of the original database by the gold actions.

    An action that fails changes nothing, as when it was recorded.

    Args:
        desk: Class of the domain.
        path: The folder with `db.json`.
        actions: Gold actions, each with `name` and `arguments`.
    """
    played = desk(path=path)
    for action in actions:
        tool = getattr(played, action["name"], None)
        if tool is None:
            continue
        try:
            tool(**action["arguments"])
        except ToolError:
            continue
    return played.store.find_differences()
