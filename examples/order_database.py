"""Tools that change a database, trained on a copy of the database per episode.

python examples/order_database.py [RUN_DIR]

In production, `refund` changes the shop's database. In training, `open` copies the database into memory, the tools
change the copy, and `close` drops it. No row outside of the episode changes, so the class declares `effects = "read"`.
"""

import json
import random
import sqlite3
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import whetstone
from whetstone.chat import Message, ToolCall, assistant
from whetstone.errors import ToolError
from whetstone.tasks import Generated
from whetstone.tools import Episode
from whetstone.training import RunSummary


class Orders:
    """Orders of a shop: `find_order` and `refund`.

    Args:
        path: The SQLite database.
    """

    effects = "read"
    """The tools change a copy that belongs to the episode. Over the shop's own database, `refund` is `destructive`."""

    def __init__(self, *, path: str) -> None:
        self.path = path

    async def open(self, episode: Episode) -> None:
        """Copy the database into memory."""
        self.copy = sqlite3.connect(":memory:")
        source = sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)
        source.backup(self.copy)
        source.close()
        self.wanted = episode.task.private["order"]

    async def find_order(self, customer: str) -> str:
        """Return the number of a customer's order.

        Args:
            customer: First name.
        """
        row = self.copy.execute("SELECT number FROM orders WHERE customer = ?", (customer,)).fetchone()
        if row is None:
            raise ToolError(f"there is no customer {customer}")
        return str(row[0])

    async def refund(self, number: int) -> str:
        """Refund an order.

        Args:
            number: Number of the order.
        """
        changed = self.copy.execute("UPDATE orders SET status = 'refunded' WHERE number = ?", (number,)).rowcount
        if not changed:
            raise ToolError(f"there is no order {number}")
        return "refunded"

    async def verdict(self) -> dict[str, Any]:
        """Return success if the wanted order is refunded and no other."""
        refunded = self.copy.execute("SELECT number FROM orders WHERE status = 'refunded'").fetchall()
        success = refunded == [(self.wanted,)]
        return {"success": success, "score": float(success)}

    async def close(self) -> None:
        """Drop the copy."""
        self.copy.close()


CUSTOMERS = {"Ada": 11, "Ben": 12, "Eva": 13, "Ida": 14, "Leo": 15, "Mia": 16}


class Refunds(Generated):
    """Tasks: customers who want a refund."""

    name, held_out_share = "refunds", 3

    def make(self, draw: random.Random, level: int) -> whetstone.Task:
        """Return one task."""
        customer = draw.choice(list(CUSTOMERS))
        private = {"customer": customer, "order": CUSTOMERS[customer], "round": draw.randrange(1000)}
        return whetstone.Task("", f"{customer} wants a refund.", private)

    def demonstrate(self, task: whetstone.Task, conversation: Sequence[Message], tools: Any) -> Message:
        """Find the order, refund it, and report it."""
        results = [message.text for message in conversation if message.role == "tool"]
        if not results:
            return assistant("", ToolCall("find_order", json.dumps({"customer": task.private["customer"]}), "call_0"))
        if len(results) == 1:
            return assistant("", ToolCall("refund", json.dumps({"number": int(results[0])}), "call_1"))
        return assistant("done")


def create_database(path: Path) -> None:
    """Write the shop's database."""
    shop = sqlite3.connect(path)
    shop.execute("CREATE TABLE orders (number INTEGER PRIMARY KEY, customer TEXT, status TEXT)")
    shop.executemany("INSERT INTO orders VALUES (?, ?, 'paid')", [(n, name) for name, n in CUSTOMERS.items()])
    shop.commit()
    shop.close()


RECIPE = {
    "policy": {"tiny": {"vocab_size": 320, "hidden_size": 64, "num_layers": 2, "num_heads": 2, "context_length": 192}},
    "chat": {"format": "compact"},
    "tasks": {"source": Refunds},
    "reward": "verdict",
    "supervised": {"steps": 60},
    "rollout": {"group_size": 4, "max_new_tokens": 24},
    "reinforcement": {"steps": 10, "tasks_per_step": 8},
    "evaluation": {"episodes": 50},
}


def main(run_dir: str = "runs/orders", **sections: Any) -> RunSummary:
    """Train, and show that no order of the shop was refunded."""
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "shop.sqlite"
        create_database(database)
        environment = {"tools": [partial(Orders, path=str(database))], "max_turns": 4}
        run = whetstone.train(whetstone.load_recipe(RECIPE, environment=environment, **sections), run_dir)
        refunded = sqlite3.connect(database).execute("SELECT COUNT(*) FROM orders WHERE status = 'refunded'").fetchone()
    print(f"success {run.before.success:.0%} → {run.after.success:.0%}, {refunded[0]} orders of the shop refunded")
    return run


if __name__ == "__main__":
    main(*sys.argv[1:])
