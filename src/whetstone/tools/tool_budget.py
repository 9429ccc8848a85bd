"""Budget for tool calls: a price per tool, a total per episode, and a tool that reports the remainder.

The price of each call is in its record (`CallRecord.cost`), where rewards read it. A call that is refused because the
budget is exhausted costs nothing.
"""

from __future__ import annotations

from whetstone.errors import RecipeError
from whetstone.tools.protocol import Episode


class Budget:
    """Budget that limits the tool calls of an episode: one tool, `budget`, which reports the remainder.

    Args:
        total: Budget of an episode.
        prices: Price of a call, by tool name.
        price: Price of a call of any other tool; `budget` itself is free.

    Raises:
        RecipeError: If a price is negative.
    """

    effects = "read"

    def __init__(self, *, total: float, prices: dict[str, float] | None = None, price: float = 1.0) -> None:
        self.total, self.prices, self.price = total, {"budget": 0.0, **(prices or {})}, price
        for name, value in {**self.prices, "price": price, "total": total}.items():
            if value < 0:
                raise RecipeError(f"budget: {name} must be 0 or more, got {value:g}")
        self.spent = 0.0

    def open(self, episode: Episode) -> None:
        """Reset the budget at the start of an episode."""
        self.spent = 0.0

    def charge(self, tool: str) -> tuple[str, float]:
        """Charge a call against the budget.

        Args:
            tool: Name of the called tool.

        Returns:
            (reason to refuse the call, empty to allow it; cost of the call).
        """
        cost = self.prices.get(tool, self.price)
        if cost > self.total - self.spent + 1e-9:
            return f"{tool} costs {cost:g}, and {self.total - self.spent:g} of {self.total:g} are left", 0.0
        self.spent += cost
        return "", cost

    async def budget(self) -> str:
        """Show what is left to be spent on tools, and what they cost."""
        prices = ", ".join(f"{name} {value:g}" for name, value in self.prices.items() if name != "budget")
        others = f"others {self.price:g}" if prices else f"each {self.price:g}"
        return (
            f"{self.total - self.spent:g} of {self.total:g} left; prices: {', '.join(filter(None, (prices, others)))}"
        )
