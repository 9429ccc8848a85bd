"""Buying from a seller with a hidden reserve price; every offer is answered, and the number of rounds is limited.

The seller is a script with a hidden lowest price. It lowers its price after each offer, and accepts any offer at or
above its next price. In `bargaining.py`, two policies can negotiate.

Note:
    If the seller lowered its price without offers, waiting would win. A message without an offer costs a round and
    does not change the price.

Ends: terminated with a deal or when the buyer leaves; truncated after `rounds`.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from whetstone.environments.built_in.game_base import PlainGame
from whetstone.environments.game_tasks import GameTasks
from whetstone.environments.protocol import GameObservation
from whetstone.environments.text_actions import parse_whole_number
from whetstone.trajectory import Author, Task


class Negotiation(PlainGame):
    """Negotiation with a scripted seller about one item.

    A deal is a success if the buyer gets at least half of the surplus.
    """

    name = "negotiation"
    instruction = "Buy below what it is worth to you. Commands: offer PRICE, accept, leave."

    def __init__(self) -> None:
        self.worth = self.lowest = self.asked = self.rounds = self.round = self.offers = 0
        self.patience: list[int] = []
        self.price: int | None = None

    def begin(self, task: Task, seed: int) -> GameObservation:
        """Start the negotiation of the task.

        Return the buyer's value and the seller's price.
        """
        private = task.private
        self.worth, self.lowest, self.patience = private["worth"], private["lowest"], list(private["asks"])
        self.round, self.offers, self.rounds, self.price = 0, 0, len(self.patience), None
        self.asked = self.patience[0]
        return GameObservation(
            f"worth {self.worth}. seller asks {self.asked}. {self.rounds} rounds", author=Author.OTHER_AGENT
        )

    def act(self, command: str) -> GameObservation:
        """Execute a command: offer, accept or leave.

        Another command costs a round and does not change the price.
        """
        verb, _, price = command.strip().lower().partition(" ")
        if verb == "leave":
            return GameObservation("you left", 0.0, terminated=True)
        if verb == "accept":
            return self._deal(self.asked)
        self.round += 1
        late = self.round >= self.rounds
        offer = parse_whole_number(price) if verb == "offer" else None
        if offer is None:
            text = f"write: offer PRICE, accept, or leave. seller asks {self.asked}"
            return GameObservation(text, 0.0, understood=False, truncated=late)
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
        """Return the buyer's fraction of the surplus, and whether there is a deal."""
        share = self._share()
        return {"success": share >= 0.5, "score": max(0.0, share), "deal": self.price is not None}

    def admissible(self) -> list[str]:
        """Return the commands leave and accept, and offers in steps of five."""
        return ["leave", "accept", *(f"offer {price}" for price in range(5, self.asked, 5))]

    def solve(self) -> str:
        """Return a low offer, or in the last round an acceptance."""
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
    """Task source of negotiations of 3, 4 and 5 rounds at levels 1, 2 and 3.

    The difference between the seller's first and last price grows with the rounds.

    Args:
        seed: Determines the training tasks; the held-out tasks do not depend on it.
        levels: Difficulties, sampled uniformly; null: all levels.
    """

    name = "negotiation"
    game = Negotiation

    def make(self, draw: Random, level: int) -> Task:
        """Generate a random task of a level; see `Generated.make`."""
        lowest, rounds = draw.randint(10, 40), 2 + level
        value = lowest + draw.randint(20, 50)
        asks = [value + draw.randint(0, 20)]
        end = lowest + draw.randint(0, (value - lowest) // 3)
        for k in range(1, rounds):
            asks.append(round(asks[0] + (end - asks[0]) * k / (rounds - 1)))
        return Task("", "", {"worth": value, "lowest": lowest, "asks": asks}, {"kind": f"{rounds} rounds"})
