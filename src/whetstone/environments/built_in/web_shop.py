"""A web shop in text: search, read pages, choose options, buy the product that fits the request best.

Pages, commands (`search[…]`, `click[…]`) and the final reward are those of WebShop. The catalog is generated, and a
list of nouns replaces the language model of the original.

    reward = (attributes hit + options hit + price kept) / (attributes + options + 1) · r_type

Note:
    In the original, a requested option counts as hit by *any* option that was bought. Here only an option of the same
    kind counts.

Ends: terminated with the purchase; truncated after `max_steps`.

Source: WebShop, arXiv:2207.01206.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Mapping
from random import Random
from typing import Any

from whetstone.environments.built_in.game_base import PlainGame
from whetstone.environments.game_tasks import GameTasks
from whetstone.environments.protocol import GameObservation
from whetstone.seeding import derive_random
from whetstone.trajectory import Task

NOUNS = ("shirt", "shoes", "jacket", "lamp", "chair", "headphones", "backpack", "mug", "blanket", "watch")
ATTRIBUTES = (
    "cotton", "waterproof", "light", "warm", "soft", "sturdy", "foldable", "wireless", "vintage", "modern", "small",
    "large",
)  # fmt: skip
COLORS = ("red", "blue", "green", "black", "white")
SIZES = ("s", "m", "l")
Product = Mapping[str, Any]
"""Product of the catalog: id, noun, attributes, title, options and price."""
_COMMAND = re.compile(r"(search|click)\[(.*)\]")
_RESULTS = 5
"""Number of results per page."""


@functools.lru_cache(maxsize=4)
def build_catalog(count: int) -> tuple[Product, ...]:
    """Return the catalog of a shop, the same in every run.

    Args:
        count: Number of products.
    """
    draw = derive_random("web shop", count)
    products = []
    for number in range(count):
        noun = NOUNS[number % len(NOUNS)]
        attributes = draw.sample(ATTRIBUTES, 3)
        products.append(
            {
                "id": f"b{number + 1}",
                "noun": noun,
                "attributes": attributes,
                "title": f"{' '.join(attributes[:2])} {noun}",
                "options": {"color": draw.sample(COLORS, 3), "size": list(SIZES)} if number % 2 else
                {"color": draw.sample(COLORS, 3)},
                "price": draw.randint(10, 99),
            }
        )  # fmt: skip
    return tuple(products)


class WebShop(PlainGame):
    """Game of a visit to a web shop, to buy the product that fits a request.

    Args:
        max_steps: Number of commands after which the visit is truncated.
    """

    name = "web_shop"
    instruction = "Buy what is asked for. Commands: search[WORDS], click[BUTTON]."

    def __init__(self, *, max_steps: int = 15) -> None:
        self.max_steps = max_steps
        self.wish: dict[str, Any] = {}
        self.count = 0
        self.page = "search"
        self.results: list[str] = []
        self.first = 0
        self.product = ""
        self.chosen: dict[str, str] = {}
        self.opened: set[str] = set()
        """Products whose page was opened."""
        self.steps, self.reward, self.bought = 0, 0.0, False

    def begin(self, task: Task, seed: int) -> GameObservation:
        """Start on the page with the search field; return the request."""
        self.wish, self.count = dict(task.private["wish"]), task.private["products"]
        self.page, self.results, self.first, self.product, self.chosen = "search", [], 0, "", {}
        self.opened = set()
        self.steps, self.reward, self.bought = 0, 0.0, False
        return GameObservation(f"{task.private['asked']}\n{self._seen()}")

    def act(self, command: str) -> GameObservation:
        """Execute a search or a click and return the next page."""
        self.steps += 1
        late = self.steps >= self.max_steps
        match = _COMMAND.fullmatch(command.strip().lower())
        if match is None or not self._execute(match[1], match[2].strip()):
            return GameObservation(
                f"There is no such thing here.\n{self._seen()}", 0.0, understood=False, truncated=late
            )
        if self.bought:
            return GameObservation("Thank you.", self.reward, terminated=True)
        return GameObservation(self._seen(), 0.0, truncated=late)

    def verdict(self) -> Mapping[str, Any]:
        """Return the reward of the purchase as the score; a reward of 1 is a success."""
        return {"success": self.reward > 1 - 1e-9, "score": self.reward, "bought": self.bought}

    def admissible(self) -> list[str]:
        """Return clicks on all buttons, or searches for single words on the first page."""
        if self.page == "search":
            return [f"search[{word}]" for word in (*ATTRIBUTES, *NOUNS)]
        return [f"click[{button}]" for button in self._buttons()]

    def solve(self) -> str:
        """Return the expert's next command.

        The expert searches, opens results whose title and price fit, chooses the options, and buys.
        """
        wish = self.wish
        if self.page == "search":
            return f"search[{' '.join([*wish['attributes'], wish['noun']])}]"
        if self.page == "results":
            for id in self.results[self.first : self.first + _RESULTS]:
                product = self._known(id)  # only its title and price are visible here
                words = product["title"].split()
                fits = words[-1] == wish["noun"] and set(wish["attributes"]) <= set(words)
                if fits and product["price"] < wish["limit"] and id not in self.opened:
                    return f"click[{id}]"
            return "click[next]" if "next" in self._buttons() else "click[back]"
        for kind, value in wish["options"].items():
            if self.chosen.get(kind) != value:
                has_value = value in self._known(self.product)["options"].get(kind, ())
                return f"click[{value}]" if has_value else "click[back]"
        return "click[buy]"

    def _execute(self, verb: str, what: str) -> bool:
        """Execute a command; return whether it was possible on the current page."""
        if verb == "search":
            if self.page != "search" or not what:
                return False
            self.results, self.first, self.page = rank_products(what, self.count), 0, "results"
            return True
        if what not in self._buttons():
            return False
        if what == "back":
            self.page = "search" if self.page == "results" else "results"
        elif what in ("next", "previous"):
            self.first += _RESULTS if what == "next" else -_RESULTS
        elif what == "buy":
            self.bought, self.reward = True, shop_reward(self.wish, self._known(self.product), self.chosen)
        elif self.page == "results":
            self.page, self.product, self.chosen = "item", what, {}
            self.opened.add(what)
        else:
            options = self._known(self.product)["options"]
            self.chosen[next(kind for kind, values in options.items() if what in values)] = what
        return True

    def _buttons(self) -> list[str]:
        """Return the texts of the buttons that the current page offers for `click[…]`."""
        if self.page == "search":
            return []
        if self.page == "item":
            options = self._known(self.product)["options"].values()
            return ["back", "buy", *(value for values in options for value in values)]
        results = self.results[self.first : self.first + _RESULTS]
        turned = ["next"] if self.first + _RESULTS < len(self.results) else []
        return [*results, "back", *turned, *(["previous"] if self.first else [])]

    def _seen(self) -> str:
        if self.page == "search":
            return "search"
        if self.page == "results":
            products = (self._known(id) for id in self.results[self.first : self.first + _RESULTS])
            lines = [f"{p['id']} {p['title']} ${p['price']}" for p in products]
            turned = [button for button in self._buttons() if button in ("next", "previous")]
            return "\n".join([*lines, " ".join(["back", *turned])])
        product = self._known(self.product)
        lines = [f"{product['title']} ${product['price']}", f"about: {' '.join(product['attributes'])}"]
        for kind, values in product["options"].items():
            chosen = f" ({self.chosen[kind]})" if kind in self.chosen else ""
            lines.append(f"{kind}: {' '.join(values)}{chosen}")
        return "\n".join([*lines, "back buy"])

    def _known(self, id: str) -> Product:
        return build_catalog(self.count)[int(id[1:]) - 1]


class WebShopTasks(GameTasks):
    """Task source of requests in shops of 50, 100 and 200 products.

    At level 1, a request has one attribute and a color; at levels 2 and 3, two attributes and all options. A product of
    the shop fits the request.

    Args:
        seed: Determines the training tasks; the held-out tasks do not depend on it.
        levels: Difficulties, sampled uniformly; null: all levels.
        milestones: Whether training tasks have milestones, for the reward `milestones`: a fitting product is among the
            results, its page is open, and each option is chosen there.
    """

    name = "web_shop"
    game = WebShop

    def __init__(self, *, seed: int = 0, levels: list[int] | None = None, milestones: bool = False) -> None:
        super().__init__(seed=seed, levels=levels)
        self.milestones = milestones

    def make(self, draw: Random, level: int) -> Task:
        """Generate a random task of a level; see `Generated.make`."""
        count = (50, 100, 200)[level - 1]
        product = draw.choice(build_catalog(count))
        # titles contain the first two attributes, so that the results show them
        attributes = list(product["attributes"][: min(level, 2)])
        options = {kind: draw.choice(values) for kind, values in product["options"].items()}
        if level == 1:
            options = {"color": options["color"]}
        limit = product["price"] + draw.randint(1, 10)
        wish = {"noun": product["noun"], "attributes": attributes, "options": options, "limit": limit}
        option_text = ", ".join(f"{kind} {value}" for kind, value in options.items())
        request = f"Buy {' '.join(attributes)} {product['noun']}, {option_text}, below ${limit}."
        private: dict[str, Any] = {"wish": wish, "products": count, "asked": request}
        if self.milestones:
            private["milestones"] = write_milestones(wish, count)
        return Task("", "", private, {"kind": f"{count} products"})


def write_milestones(wish: Mapping[str, Any], count: int) -> list[dict[str, str]]:
    """Write the milestones of a request as patterns of pages: result, page of a product, each option chosen there.

    Args:
        wish: Request: noun, attributes, options and price limit.
        count: Number of products of the shop.
    """
    fitting = [
        product
        for product in build_catalog(count)
        if shop_reward(wish, product, wish["options"]) > 1 - 1e-9
        and all(value in product["options"].get(kind, ()) for kind, value in wish["options"].items())
    ]
    ids = "|".join(product["id"] for product in fitting)
    heads = (f"{p['title']} ${p['price']}\nabout: {' '.join(p['attributes'])}\n" for p in fitting)
    page = f"\\A(?:{'|'.join(map(re.escape, heads))})"
    chosen = [f"{page}(?s:.*)(?m:^){kind}: .* \\({value}\\)" for kind, value in wish["options"].items()]
    return [{"says": pattern} for pattern in (f"(?m)^(?:{ids}) ", page, *chosen)]


def shop_reward(wish: Mapping[str, Any], product: Product, chosen: Mapping[str, str]) -> float:
    """Compute the reward of a purchase, from 0 to 1.

    Args:
        wish: Request: noun, attributes, options and price limit.
        product: Product that was bought.
        chosen: Chosen value of each option.
    """
    attributes = sum(attribute in product["attributes"] for attribute in wish["attributes"])
    options = sum(chosen.get(kind) == value for kind, value in wish["options"].items())
    is_within_limit = product["price"] < wish["limit"]
    of = len(wish["attributes"]) + len(wish["options"]) + 1
    shared = len(set(wish["attributes"]) & set(product["attributes"]))
    kind = 1.0 if product["noun"] == wish["noun"] else 0.5 if shared else 0.1
    hit: int = attributes + options + is_within_limit
    return hit / of * kind


@functools.lru_cache(maxsize=4096)
def _rank_cached(words: str, count: int) -> tuple[str, ...]:
    products = build_catalog(count)
    texts = [Counter([*p["title"].split(), *p["attributes"]]) for p in products]
    often = Counter(word for text in texts for word in text)
    query = words.split()
    score = [sum(math.log(1 + count / often[w]) * (text[w] > 0) for w in query if often[w]) for text in texts]
    order = sorted(range(count), key=lambda k: (-score[k], k))
    return tuple(products[k]["id"] for k in order if score[k] > 0)


def rank_products(words: str, count: int) -> list[str]:
    """Return the ids of products that match a query, the best first.

    Rare words weigh more. At most four pages of results are returned.

    Args:
        words: Words of the query.
        count: Number of products of the shop.
    """
    return list(_rank_cached(words, count))[: 4 * _RESULTS]
