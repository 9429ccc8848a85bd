"""Function calling over several requests, on stateful services: files, tickets, trading, travel.

Similar to BFCL's multi-turn category: a user sends one request after the other. The final state of all services must
equal the state after the right calls, without other changes.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from whetstone.environments.built_in.scripted_tasks import Scripted, Step, script_call, script_text
from whetstone.errors import ToolError
from whetstone.tools.protocol import Episode
from whetstone.trajectory import Task

State = dict[str, Any]
"""State of the services as JSON values, by service."""


class Services:
    """Tools of the services of a task, which change their shared state."""

    effects = "read"

    def __init__(self) -> None:
        self.state: State = {}
        self._expected: State = {}
        self._named: list[str] = []

    def open(self, episode: Episode) -> None:
        """Load the state and the expected final state of the task."""
        private = episode.task.private
        self.state, self._expected = copy.deepcopy(private["state"]), private["expected"]
        self._named = private["services"]

    def tools(self) -> list[Callable[..., Any]]:
        """Return the tools of the task's services.

        Before an episode those of all services.
        """
        named = self._named or list(SERVICES)
        return [getattr(self, name) for service in named for name in SERVICES[service]]

    def verdict(self) -> Mapping[str, Any]:
        """Return the fraction of services in the expected state.

        All services are a success.
        """
        same = [self.state[name] == self._expected[name] for name in self.state]
        return {"success": all(same), "score": sum(same) / max(1, len(same))}

    # ------------------------------------------------------------ files

    def list_files(self) -> str:
        """The files there are."""
        return ", ".join(sorted(self.state["files"])) or "none"

    def read_file(self, path: str) -> str:
        """A file's text.

        Args:
            path: The file.
        """
        return str(self._known("files", path, "file"))

    def write_file(self, path: str, text: str) -> str:
        """Write a file, in place of any that is there.

        Args:
            path: The file.
            text: All of it.
        """
        self.state["files"][path] = text
        return "written"

    def move_file(self, path: str, to: str) -> str:
        """Give a file another name.

        Args:
            path: The file.
            to: Its new name, which is not taken.
        """
        text = self._known("files", path, "file")
        if to in self.state["files"]:
            raise ToolError(f"there is a file {to} already")
        self.state["files"][to] = text
        del self.state["files"][path]
        return "moved"

    # ------------------------------------------------------------ tickets

    def open_ticket(self, title: str, priority: int) -> str:
        """Open a ticket and get its id.

        Args:
            title: What it is about.
            priority: From 1 to 5.
        """
        if not 1 <= priority <= 5:
            raise ToolError(f"a priority is 1 to 5, got {priority}")
        id = f"t{len(self.state['tickets']) + 1}"
        self.state["tickets"][id] = {"title": title, "priority": priority, "status": "open"}
        return id

    def find_ticket(self, title: str) -> str:
        """The ids of tickets with this title.

        Args:
            title: The whole of it.
        """
        return ", ".join(id for id, ticket in self.state["tickets"].items() if ticket["title"] == title) or "none"

    def close_ticket(self, id: str) -> str:
        """Close an open ticket.

        Args:
            id: The ticket's id.
        """
        ticket = self._known("tickets", id, "ticket")
        if ticket["status"] != "open":
            raise ToolError(f"{id} is not open")
        ticket["status"] = "closed"
        return "closed"

    # ------------------------------------------------------------ trading

    def quote(self, stock: str) -> str:
        """The price of a stock.

        Args:
            stock: Its symbol.
        """
        return str(self._price(stock))

    def buy(self, stock: str, shares: int) -> str:
        """Buy shares for cash.

        Args:
            stock: Its symbol.
            shares: How many.
        """
        account, cost = self.state["trading"], self._price(stock) * shares
        if shares < 1 or cost > account["cash"]:
            raise ToolError(f"{shares} shares cost {cost}, there is cash of {account['cash']}")
        account["cash"] -= cost
        account["held"][stock] = account["held"].get(stock, 0) + shares
        return f"bought for {cost}"

    def sell(self, stock: str, shares: int) -> str:
        """Sell shares that are held.

        Args:
            stock: Its symbol.
            shares: How many.
        """
        account, price = self.state["trading"], self._price(stock)
        if not 1 <= shares <= account["held"].get(stock, 0):
            raise ToolError(f"{account['held'].get(stock, 0)} shares of {stock} are held")
        account["held"][stock] -= shares
        if not account["held"][stock]:  # a stock without shares has no entry, so that states compare equal
            del account["held"][stock]
        account["cash"] += price * shares
        return f"sold for {price * shares}"

    # ------------------------------------------------------------ travel

    def flights(self, origin: str, destination: str) -> str:
        """The flights between two towns, with their prices.

        Args:
            origin: From where.
            destination: To where.
        """
        matches = {i: f for i, f in self.state["travel"]["flights"].items() if f[:2] == [origin, destination]}
        return ", ".join(f"{id} for {flight[2]}" for id, flight in matches.items()) or "none"

    def book(self, flight: str, traveller: str) -> str:
        """Book a flight.

        Args:
            flight: Its id.
            traveller: Who flies.
        """
        if flight not in self.state["travel"]["flights"]:
            raise ToolError(f"there is no flight {flight}")
        self.state["travel"]["booked"].append([flight, traveller])
        return "booked"

    def cancel_booking(self, flight: str, traveller: str) -> str:
        """Cancel a booking.

        Args:
            flight: The flight's id.
            traveller: Who was to fly.
        """
        if [flight, traveller] not in self.state["travel"]["booked"]:
            raise ToolError(f"{traveller} has no booking of {flight}")
        self.state["travel"]["booked"].remove([flight, traveller])
        return "cancelled"

    def _known(self, service: str, key: str, what: str) -> Any:
        if key not in self.state[service]:
            raise ToolError(f"there is no {what} {key}")
        return self.state[service][key]

    def _price(self, stock: str) -> int:
        prices = self.state["trading"]["prices"]
        if stock not in prices:
            raise ToolError(f"there is no stock {stock}; there are: {', '.join(sorted(prices))}")
        return int(prices[stock])


SERVICES = {
    "files": ("list_files", "read_file", "write_file", "move_file"),
    "tickets": ("open_ticket", "find_ticket", "close_ticket"),
    "trading": ("quote", "buy", "sell"),
    "travel": ("flights", "book", "cancel_booking"),
}
"""Names of the tools of each service."""
_WORDS = ("plan", "draft", "report", "budget", "notes", "agenda", "review", "summary")
_TITLES = ("printer broken", "slow network", "lost badge", "new laptop", "door stuck")
_STOCKS = ("ACME", "BOLT", "CORE", "DYNO")
_TOWNS = ("Oslo", "Rome", "Lyon", "Bern")
_PEOPLE = ("Ann", "Ben", "Cleo", "Dan")


class ApisTasks(Scripted):
    """Task source of 1, 2 and 3 requests at levels 1, 2 and 3.

    Each request is to another service.

    Args:
        seed: Determines the training tasks; the held-out tasks do not depend on it.
        levels: Difficulties, sampled uniformly; null: all levels.
    """

    name = "apis"

    def make(self, draw: Random, level: int) -> Task:
        """Generate a random task of a level; see `Generated.make`."""
        services = draw.sample(list(SERVICES), level)
        state = {name: _STATES[name](draw) for name in services}
        world = Services()
        world.state = copy.deepcopy(state)
        requests, script = [], []
        for service in services:
            sentence, steps = _REQUESTS[service](draw, world)
            requests.append(sentence)
            for step in steps:
                getattr(world, step[1])(**step[2])
            script += [*steps, script_text("done")]
        private = {
            "services": services,
            "state": state,
            "expected": json.loads(json.dumps(world.state)),
            "requests": requests,
            "script": script,
        }
        return Task("", "", private, {"kind": f"{level} request{'s' * (level > 1)}"})


def _files(draw: Random) -> dict[str, str]:
    return {f"{name}.txt": f"{draw.choice(_WORDS)} {draw.randint(1, 99)}" for name in draw.sample(_WORDS, 4)}


def _tickets(draw: Random) -> dict[str, Any]:
    titles = draw.sample(_TITLES, 3)
    return {
        f"t{k}": {"title": title, "priority": draw.randint(1, 5), "status": "open"} for k, title in enumerate(titles, 1)
    }


def _trading(draw: Random) -> dict[str, Any]:
    holdings = {stock: draw.randint(3, 9) for stock in draw.sample(_STOCKS, 2)}
    return {"cash": 1000, "prices": {stock: draw.randint(5, 50) for stock in _STOCKS}, "held": holdings}


def _travel(draw: Random) -> dict[str, Any]:
    flights: dict[str, list[Any]] = {}
    for k in range(6):
        origin, destination = draw.sample(_TOWNS, 2)
        price = draw.randint(50, 400)
        while any(price == taken for *_, taken in flights.values()):  # otherwise two flights could be the cheapest
            price += 1
        flights[f"f{k + 1}"] = [origin, destination, price]
    return {"flights": flights, "booked": [["f1", draw.choice(_PEOPLE)]]}


def _ask_files(draw: Random, world: Services) -> tuple[str, list[Step]]:
    path = draw.choice(sorted(world.state["files"]))
    if draw.random() < 0.5:
        to = f"{draw.choice(_WORDS)}-{draw.randint(1, 9)}.txt"
        return f"Rename {path} to {to}.", [script_call("move_file", path=path, to=to)]
    to, text = f"copy-{path}", world.state["files"][path]
    steps = [script_call("read_file", path=path), script_call("write_file", path=to, text=text)]
    return f"Copy {path} to {to}.", steps


def _ask_tickets(draw: Random, world: Services) -> tuple[str, list[Step]]:
    if draw.random() < 0.5:
        title, priority = draw.choice(_TITLES), draw.randint(1, 5)
        return f"Open a ticket {title} of priority {priority}.", [
            script_call("open_ticket", title=title, priority=priority)
        ]
    id, ticket = draw.choice(sorted(world.state["tickets"].items()))
    steps = [script_call("find_ticket", title=ticket["title"]), script_call("close_ticket", id=id)]
    return f"Close the ticket {ticket['title']}.", steps


def _ask_trading(draw: Random, world: Services) -> tuple[str, list[Step]]:
    account = world.state["trading"]
    if draw.random() < 0.5:
        stock, shares = draw.choice(sorted(account["held"])), draw.randint(1, 3)
        return f"Sell {shares} shares of {stock}.", [script_call("sell", stock=stock, shares=shares)]
    stock = draw.choice(_STOCKS)
    shares = min(9, account["cash"] // account["prices"][stock])
    limit = account["prices"][stock] * shares
    request = f"Buy as many shares of {stock} as {limit} pays for."
    return request, [script_call("quote", stock=stock), script_call("buy", stock=stock, shares=shares)]


def _ask_travel(draw: Random, world: Services) -> tuple[str, list[Step]]:
    travel = world.state["travel"]
    if draw.random() < 0.3:
        flight, person = travel["booked"][0]
        return f"Cancel {flight} of {person}.", [script_call("cancel_booking", flight=flight, traveller=person)]
    origin, destination, _ = draw.choice(list(travel["flights"].values()))
    between = {i: f[2] for i, f in travel["flights"].items() if f[:2] == [origin, destination]}
    flight, person = min(between, key=lambda id: (between[id], id)), draw.choice(_PEOPLE)
    steps = [
        script_call("flights", origin=origin, destination=destination),
        script_call("book", flight=flight, traveller=person),
    ]
    return f"Book the cheapest flight from {origin} to {destination} for {person}.", steps


_STATES = {"files": _files, "tickets": _tickets, "trading": _trading, "travel": _travel}
_REQUESTS = {"files": _ask_files, "tickets": _ask_tickets, "trading": _ask_trading, "travel": _ask_travel}
