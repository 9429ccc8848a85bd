"""Buying from a seller who has a price in mind: every offer is answered, and patience ends.

The seller is a script with a hidden lowest price. He asks for less behind each offer and takes any at or above what he
would ask for next. In `dealing.py` two policies may sit at the table.

Easy to get wrong: a seller who comes down by himself is waited out. Words that are no offer cost a round and move him
not at all.

Ends: terminated with a deal or when the buyer leaves; truncated after `rounds`.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from whetstone.environments.commands import whole_number
from whetstone.environments.game_tasks import GameTasks
from whetstone.environments.native.plain_game import PlainGame
from whetstone.environments.protocol import GameObservation
from whetstone.trajectory import Author, Task


class Negotiation(PlainGame):
    """One thing to buy. A deal is a success when the buyer has at least half of what there was to gain."""

    name = "negotiation"
    instruction = "Buy below what it is worth to you. Commands: offer PRICE, accept, leave."

    def __init__(self) -> None:
        self.worth = self.lowest = self.asked = self.rounds = self.round = self.offers = 0
        self.patience: list[int] = []
        self.price: int | None = None

    def begin(self, task: Task, seed: int) -> GameObservation:
        """The seller's first price."""
        private = task.private
        self.worth, self.lowest, self.patience = private["worth"], private["lowest"], list(private["asks"])
        self.round, self.offers, self.rounds, self.price = 0, 0, len(self.patience), None
        self.asked = self.patience[0]
        return GameObservation(
            f"worth {self.worth}. seller asks {self.asked}. {self.rounds} rounds", author=Author.OTHER_AGENT
        )

    def act(self, command: str) -> GameObservation:
        """An offer, or the end of it."""
        verb, _, price = command.strip().lower().partition(" ")
        if verb == "leave":
            return GameObservation("you left", 0.0, terminated=True)
        if verb == "accept":
            return self._deal(self.asked)
        self.round += 1
        late = self.round >= self.rounds
        offer = whole_number(price) if verb == "offer" else None
        if offer is None:
            said = f"write: offer PRICE, accept, or leave. seller asks {self.asked}"
            return GameObservation(said, 0.0, understood=False, truncated=late)
        self.offers += 1
        following = self.patience[min(self.offers, self.rounds - 1)]
        if offer >= following:
            return self._deal(offer)
        if late:
            return GameObservation("the seller is tired of it and goes", 0.0, truncated=True, author=Author.OTHER_AGENT)
        self.asked = following
        left = self.rounds - self.round
        return GameObservation(f"no. seller asks {self.asked}. {left} rounds", 0.0, author=Author.OTHER_AGENT)

    def verdict(self) -> Mapping[str, Any]:
        """The share of what there was to gain that the buyer has."""
        share = self._share()
        return {"success": share >= 0.5, "score": max(0.0, share), "deal": self.price is not None}

    def admissible(self) -> list[str]:
        """Leaving, accepting, and offers in steps of five."""
        return ["leave", "accept", *(f"offer {price}" for price in range(5, self.asked, 5))]

    def solve(self) -> str:
        """Little at first, and in the last round what is asked."""
        if self.rounds - self.round <= 1:
            return "accept"
        return f"offer {max(1, self.asked * 2 // 5)}"

    def _deal(self, price: int) -> GameObservation:
        self.price = price
        return GameObservation(f"deal at {price}", max(0.0, self._share()), terminated=True, author=Author.OTHER_AGENT)

    def _share(self) -> float:
        if self.price is None:
            return 0.0
        return max(-1.0, min(1.0, (self.worth - self.price) / (self.worth - self.lowest)))


class NegotiationTasks(GameTasks):
    """Three, four and five rounds; the more, the further the seller's first price is from his last.

    Args:
        seed: As of `Generated`.
        levels: As of `Generated`.
    """

    name = "negotiation"
    game = Negotiation

    def make(self, draw: Random, level: int) -> Task:
        """See `Generated`."""
        lowest, rounds = draw.randint(10, 40), 2 + level
        worth = lowest + draw.randint(20, 50)
        asks = [worth + draw.randint(0, 20)]
        end = lowest + draw.randint(0, (worth - lowest) // 3)
        for k in range(1, rounds):
            asks.append(round(asks[0] + (end - asks[0]) * k / (rounds - 1)))
        return Task("", "", {"worth": worth, "lowest": lowest, "asks": asks}, {"kind": f"{rounds} rounds"})
