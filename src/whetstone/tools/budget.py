"""What calls cost, and an end to it: a price for each tool, a sum for the episode, and a tool that says what is left.

Each call's price stands in its record (`CallRecord.cost`), where rewards read it. What is refused for want of money
costs nothing.
"""

from __future__ import annotations

from whetstone.errors import RecipeError
from whetstone.tools.protocol import Episode


class Budget:
    """A sum that calls are paid from: one tool, `budget`.

    Args:
        total: The sum of an episode.
        prices: By tool.
        price: Of the others; `budget` itself is free.

    Raises:
        RecipeError: A price below nothing.
    """

    effects = "read"

    def __init__(self, *, total: float, prices: dict[str, float] | None = None, price: float = 1.0) -> None:
        self.total, self.prices, self.price = total, {"budget": 0.0, **(prices or {})}, price
        for name, value in {**self.prices, "price": price, "total": total}.items():
            if value < 0:
                raise RecipeError(f"budget: {name} costs {value:g}, less than nothing")
        self.spent = 0.0

    def open(self, episode: Episode) -> None:
        """Begin with all of it."""
        self.spent = 0.0

    def charge(self, tool: str) -> tuple[str, float]:
        """(why a call cannot be paid for, if so; what it costs)"""
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
