"""Bargaining of a buyer and a seller: each knows only their own value of the item.

Two seats: `buyer` and `seller`, who speaks first. Each may be a policy or the script.

Easy to get wrong: words that are no offer are nothing that could be accepted, and no reason to come towards whoever
said them. And a first price that is good enough already leaves nothing to deal about.

Ends: terminated with a deal, or when one leaves or patience ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from whetstone.chat import Message, ToolSpec
from whetstone.environments.commands import Actions, whole_number
from whetstone.environments.game_tasks import Solver, said_as_command
from whetstone.environments.multi_agent import Seat
from whetstone.tasks.generated import Generated
from whetstone.trajectory import Task

_OTHER = {"buyer": "seller", "seller": "buyer"}
ENOUGH = 0.4
"""The share from which a deal is a success."""


class Dealing:
    """One thing, two prices in mind. A deal is a success for who has at least 40 % of what there was to share."""

    roles: tuple[str, ...] = ("buyer", "seller")
    instructions = {  # noqa: RUF012 - read only
        "buyer": "Buy below what it is worth to you. Commands: offer PRICE, accept, leave.",
        "seller": "Sell above what it costs you. Commands: offer PRICE, accept, leave.",
    }

    def __init__(self) -> None:
        self.worth = {"buyer": 0, "seller": 0}
        self.rounds = 0
        self.offers: list[tuple[str, int | None]] = []
        """Who said what; None where it was no offer."""
        self.price: int | None = None
        self.over = ""
        self.unread: dict[str, list[str]] = {}
        self.turn = "seller"

    def begin(self, task: Task, seed: int) -> None:
        """The seller is to speak."""
        self.worth = {role: int(task.private["worth"][role]) for role in self.roles}
        self.rounds, self.offers, self.price, self.over = int(task.private["rounds"]), [], None, ""
        self.unread = {role: [f"to you: {self.worth[role]}. {self.rounds} rounds"] for role in self.roles}
        self.turn = "seller"

    def to_move(self) -> str:
        """See `TableGame`."""
        return "" if self.over else self.turn

    def seen(self, role: str) -> str:
        """See `TableGame`."""
        unread, self.unread[role] = self.unread[role], []
        return ". ".join([*unread, *([self.over] if self.over else [])])

    def act(self, role: str, command: str) -> bool:
        """See `TableGame`."""
        other = _OTHER[role]
        verb, _, said = command.strip().lower().partition(" ")
        price = whole_number(said) if verb == "offer" else None
        standing = self.offers[-1][1] if self.offers and self.offers[-1][0] == other else None
        if verb == "leave":
            self.over = f"the {role} left"
            return True
        if verb == "accept" and standing is not None:
            self.price, self.over = standing, f"deal at {standing}"
            return True
        if price is None:
            self.unread[role].append("write: offer PRICE, accept, or leave")
        self.offers.append((role, price))  # it was a turn in any case
        self.unread[other].append(f"the {role} says nothing" if price is None else f"the {role} offers {price}")
        self.turn = other
        if len(self.offers) >= 2 * self.rounds:
            self.over = "nobody has patience any more"
        return price is not None

    def script(self, role: str) -> str:
        """From far off to one's own price in equal steps, one behind each offer of the other's; takes what is better
        than its next offer."""
        mine = sum(who == role for who, _ in self.offers)
        heard = sum(who != role and price is not None for who, price in self.offers)
        wanted = asked(role, self.worth[role], min(mine, heard), self.rounds)
        who, standing = self.offers[-1] if self.offers else (role, None)
        if who != role and standing is not None:
            better = standing <= wanted if role == "buyer" else standing >= wanted
            if better:
                return "accept"
        return f"offer {wanted}"

    def verdict(self, role: str) -> Mapping[str, Any]:
        """See `TableGame`."""
        if self.price is None:
            return {"success": False, "score": 0.0, "deal": False}
        share = share_of(role, self.price, self.worth)
        return {"success": share >= ENOUGH, "score": max(0.0, min(1.0, share)), "deal": True}


def asked(role: str, worth: int, steps: int, rounds: int) -> int:
    """The price the script names behind so many steps towards the other."""
    far = worth * 2 if role == "seller" else worth // 2
    return round(far + (worth - far) * min(1.0, (steps + 1) / rounds) * 0.9)


def share_of(role: str, price: int, worth: Mapping[str, int]) -> float:
    """Of what there is to share, what a price gives a role."""
    gain = worth["buyer"] - price if role == "buyer" else price - worth["seller"]
    return gain / max(1, worth["buyer"] - worth["seller"])


class DealingTasks(Generated):
    """Two, three and four rounds; there is always a price both gain by, and the first one the script names in either
    seat is not enough for the other.

    Args:
        seed: As of `Generated`.
        levels: As of `Generated`.
    """

    name = "dealing"  # seeds and task ids keep the name of the first release

    def __init__(self, *, seed: int = 0, levels: list[int] | None = None) -> None:
        super().__init__(seed=seed, levels=levels)
        self._solver = Solver(_Alone)

    def make(self, draw: Random, level: int) -> Task:
        """See `Generated`."""
        rounds = 1 + level
        while True:
            low = draw.randint(10, 40)
            worth = {"seller": low, "buyer": low + draw.randint(10, 40)}
            first = {_OTHER[role]: asked(role, worth[role], 0, rounds) for role in worth}
            if all(share_of(role, price, worth) < ENOUGH for role, price in first.items()):
                break
        return Task("", "", {"worth": worth, "rounds": rounds}, {"kind": f"{rounds} rounds"})

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """What the script says in the first seat."""
        return said_as_command(self._solver.next_command(task, conversation, tools), tools)


class _Alone:
    """The buyer's side against the script, for the solver."""

    def begin(self, task: Task, seed: int) -> None:
        self.game = Dealing()
        self.game.begin(task, seed)
        self._seller()

    def act(self, command: str) -> None:
        if self.game.to_move() == "buyer":
            self.game.act("buyer", command)
        self._seller()

    def solve(self) -> str:
        return self.game.script("buyer")

    def close(self) -> None:
        """Nothing is held."""

    def _seller(self) -> None:
        while self.game.to_move() == "seller":
            self.game.act("seller", self.game.script("seller"))


def bargaining(*, actions: Actions = "call") -> Seat:
    """One seat at the table.

    Args:
        actions: Commands as a call of `act`, or as text.
    """
    return Seat(Dealing, actions=actions)
