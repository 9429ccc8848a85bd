"""Bargaining of a buyer and a seller, who know only their own value of the item.

Two seats: `buyer`, and `seller`, who moves first. Each can be a policy or the script.

Note:
    A message without an offer cannot be accepted, and the script makes no concession for it. If the first price were
    good enough already, there would be nothing to bargain about.

Ends: terminated with a deal, or when one leaves or the rounds are used up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from whetstone.chat import Message, ToolSpec
from whetstone.environments.game_tasks import Solver, command_to_message
from whetstone.environments.multi_agent import Seat
from whetstone.environments.text_actions import Actions, parse_whole_number
from whetstone.tasks.generated import Generated
from whetstone.trajectory import Task

_OTHER = {"buyer": "seller", "seller": "buyer"}
ENOUGH = 0.4
"""Minimum fraction of the surplus for a success."""


class Dealing:
    """Game of a buyer and a seller with one item and two private values.

    A deal is a success for a seat with at least 40 % of the surplus.
    """

    roles: tuple[str, ...] = ("buyer", "seller")
    instructions = {  # noqa: RUF012 - read only
        "buyer": "Buy below what it is worth to you. Commands: offer PRICE, accept, leave.",
        "seller": "Sell above what it costs you. Commands: offer PRICE, accept, leave.",
    }

    def __init__(self) -> None:
        self.worth = {"buyer": 0, "seller": 0}
        self.rounds = 0
        self.offers: list[tuple[str, int | None]] = []
        """Pair (role, offered price) of each turn; the price is None if the turn had no offer."""
        self.price: int | None = None
        self.over = ""
        self.unread: dict[str, list[str]] = {}
        self.turn = "seller"

    def begin(self, task: Task, seed: int) -> None:
        """Start a game with the values of the task; the seller moves first."""
        self.worth = {role: int(task.private["worth"][role]) for role in self.roles}
        self.rounds, self.offers, self.price, self.over = int(task.private["rounds"]), [], None, ""
        self.unread = {role: [f"to you: {self.worth[role]}. {self.rounds} rounds"] for role in self.roles}
        self.turn = "seller"

    def to_move(self) -> str:
        """Return the role whose turn it is; see `TableGame`."""
        return "" if self.over else self.turn

    def seen(self, role: str) -> str:
        """Return the unread text of a role; see `TableGame`."""
        unread, self.unread[role] = self.unread[role], []
        return ". ".join([*unread, *([self.over] if self.over else [])])

    def act(self, role: str, command: str) -> bool:
        """Execute a command: offer, accept or leave; see `TableGame`.

        Another command is a turn without an offer.
        """
        other = _OTHER[role]
        verb, _, price_text = command.strip().lower().partition(" ")
        price = parse_whole_number(price_text) if verb == "offer" else None
        standing = self.offers[-1][1] if self.offers and self.offers[-1][0] == other else None
        if verb == "leave":
            self.over = f"the {role} left"
            return True
        if verb == "accept" and standing is not None:
            self.price, self.over = standing, f"deal at {standing}"
            return True
        if price is None:
            self.unread[role].append("write: offer PRICE, accept, or leave")
        self.offers.append((role, price))  # an invalid command is a turn too
        self.unread[other].append(f"the {role} says nothing" if price is None else f"the {role} offers {price}")
        self.turn = other
        if len(self.offers) >= 2 * self.rounds:
            self.over = "nobody has patience any more"
        return price is not None

    def script(self, role: str) -> str:
        """Return the script's command: an offer, or an acceptance.

        The script's price starts far from its value and moves in equal steps, one per offer received. The script
        accepts an offer that is better than its next price.
        """
        num_own = sum(who == role for who, _ in self.offers)
        num_offers = sum(who != role and price is not None for who, price in self.offers)
        wanted = concession_price(role, self.worth[role], min(num_own, num_offers), self.rounds)
        who, standing = self.offers[-1] if self.offers else (role, None)
        if who != role and standing is not None:
            better = standing <= wanted if role == "buyer" else standing >= wanted
            if better:
                return "accept"
        return f"offer {wanted}"

    def verdict(self, role: str) -> Mapping[str, Any]:
        """Return the result for a role: the fraction of the surplus that it got.

        See `TableGame`.
        """
        if self.price is None:
            return {"success": False, "score": 0.0, "deal": False}
        share = surplus_fraction(role, self.price, self.worth)
        return {"success": share >= ENOUGH, "score": max(0.0, min(1.0, share)), "deal": True}


def concession_price(role: str, value: int, steps: int, rounds: int) -> int:
    """Return the price that the script offers after a number of concessions.

    Args:
        role: `buyer` or `seller`.
        value: Private value of the role.
        steps: Number of concessions so far.
        rounds: Number of rounds of the game.
    """
    far = value * 2 if role == "seller" else value // 2
    return round(far + (value - far) * min(1.0, (steps + 1) / rounds) * 0.9)


def surplus_fraction(role: str, price: int, values: Mapping[str, int]) -> float:
    """Return the fraction of the surplus that a role gets at a price.

    Below 0 if the price is worse than its value.

    Args:
        role: `buyer` or `seller`.
        price: Price of the deal.
        values: Private value of each role.
    """
    gain = values["buyer"] - price if role == "buyer" else price - values["seller"]
    return gain / max(1, values["buyer"] - values["seller"])


class DealingTasks(Generated):
    """Task source of negotiations of 2, 3 and 4 rounds at levels 1, 2 and 3.

    There is always a price at which both gain, and the first price of the script in either seat is not enough for the
    other.

    Args:
        seed: Determines the training tasks; the held-out tasks do not depend on it.
        levels: Difficulties, sampled uniformly; null: all levels.
    """

    name = "dealing"  # seeds and task ids keep the name of the first release

    def __init__(self, *, seed: int = 0, levels: list[int] | None = None) -> None:
        super().__init__(seed=seed, levels=levels)
        self._solver = Solver(_BuyerGame)

    def make(self, draw: Random, level: int) -> Task:
        """Generate a random task of a level; see `Generated.make`."""
        rounds = 1 + level
        while True:
            low = draw.randint(10, 40)
            values = {"seller": low, "buyer": low + draw.randint(10, 40)}
            first = {_OTHER[role]: concession_price(role, values[role], 0, rounds) for role in values}
            if all(surplus_fraction(role, price, values) < ENOUGH for role, price in first.items()):
                break
        return Task("", "", {"worth": values, "rounds": rounds}, {"kind": f"{rounds} rounds"})

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Return the script's command in the buyer's seat."""
        return command_to_message(self._solver.next_command(task, conversation, tools), tools)


class _BuyerGame:
    """Game of the buyer against the scripted seller, for the solver."""

    def begin(self, task: Task, seed: int) -> None:
        self.game = Dealing()
        self.game.begin(task, seed)
        self._play_seller()

    def act(self, command: str) -> None:
        if self.game.to_move() == "buyer":
            self.game.act("buyer", command)
        self._play_seller()

    def solve(self) -> str:
        return self.game.script("buyer")

    def close(self) -> None:
        """Do nothing; there are no resources."""

    def _play_seller(self) -> None:
        while self.game.to_move() == "seller":
            self.game.act("seller", self.game.script("seller"))


def bargaining(*, actions: Actions = "call") -> Seat:
    """Return an environment of one seat of a negotiation.

    Args:
        actions: Commands as a call of `act`, or as text.
    """
    return Seat(Dealing, actions=actions)
