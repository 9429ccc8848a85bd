"""Tools that count their real calls, one for each effect."""

from whetstone.tools import arithmetic_tools, effects

CALLS = []
"""Effects of the tools that were called."""
OPENED = []


def _counting(effect):
    async def pocket_calculator(expression: str) -> str:
        """One operation on two numbers."""
        CALLS.append(effect)
        return arithmetic_tools.pocket_calculator(expression)

    return pocket_calculator if effect is None else effects(effect)(pocket_calculator)


undeclared, reading, writing, destroying = map(_counting, (None, "read", "write", "destructive"))


class Opened:
    """Counts episodes."""

    effects = "read"

    async def open(self, episode):
        OPENED.append(episode.task.id)

    async def look(self) -> str:
        """Look."""
        return "nothing"


class Shop:
    """Declares effects by method."""

    effects = {"refund": "destructive", "order": "write"}  # noqa: RUF012

    async def look_up(self) -> int:
        """Price."""
        return 4

    async def order(self) -> str:
        """Order."""
        CALLS.append("order")
        return "ordered"

    async def refund(self) -> str:
        """Refund."""
        CALLS.append("refund")
        return "refunded"


async def agent(task, base_url):
    """Count the agents that are started."""
    CALLS.append("agent")
