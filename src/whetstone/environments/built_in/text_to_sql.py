"""Questions about a shop's database: read the schema, write a query, answer.

Every shop has other names of tables and columns, so that a query requires the schema. The database is in the task; the
tools are those of `sql` with `url: task`.
"""

from __future__ import annotations

import sqlite3
from random import Random

from whetstone.environments.built_in.scripted_tasks import Scripted, script_call, script_text
from whetstone.trajectory import Task

_NAMES = {
    "people": ("customers", "clients", "buyers"),
    "things": ("products", "items", "goods"),
    "orders": ("orders", "purchases", "sales"),
    "town": ("town", "city", "place"),
    "price": ("price", "cost"),
    "kind": ("kind", "category"),
    "count": ("quantity", "amount"),
    "who": ("customer_id", "buyer_id"),
    "what": ("product_id", "item_id"),
}
_PEOPLE = ("Ann", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gwen", "Hugo", "Ida", "Jon", "Kim", "Leo", "Mia", "Ned")
_TOWNS = ("Oslo", "Rome", "Lyon", "Bern", "Graz")
_THINGS = ("lamp", "chair", "table", "mug", "vase", "clock", "rug", "shelf", "desk", "sofa", "bowl", "fork")
_KINDS = ("home", "office", "kitchen")


class TextToSqlTasks(Scripted):
    """Task source of questions that a SQL query answers.

    Level 1 requires one table, level 2 counts and comparisons, level 3 joins of two or three tables.

    Args:
        seed: Determines the training tasks; the held-out tasks do not depend on it.
        levels: Difficulties, sampled uniformly; null: all levels.
    """

    name = "text_to_sql"

    def make(self, draw: Random, level: int) -> Task:
        """Generate a random task of a level; see `Generated.make`."""
        n = {name: draw.choice(names) for name, names in _NAMES.items()}
        people = draw.sample(_PEOPLE, 6)
        things = draw.sample(_THINGS, 6)
        towns = [draw.choice(_TOWNS) for _ in people]
        prices = draw.sample(range(5, 99), len(things))
        kinds = [draw.choice(_KINDS) for _ in things]
        orders = [(draw.randint(1, 6), draw.randint(1, 6), draw.randint(1, 9)) for _ in range(14)]
        lines = [
            f"CREATE TABLE {n['people']} (id INTEGER PRIMARY KEY, name TEXT, {n['town']} TEXT);",
            f"CREATE TABLE {n['things']} (id INTEGER PRIMARY KEY, name TEXT, {n['kind']} TEXT, {n['price']} INTEGER);",
            f"CREATE TABLE {n['orders']} (id INTEGER PRIMARY KEY, {n['who']} INTEGER, {n['what']} INTEGER, "
            f"{n['count']} INTEGER);",
        ]
        rows = (
            (n["people"], [(k + 1, f"'{p}'", f"'{t}'") for k, (p, t) in enumerate(zip(people, towns, strict=True))]),
            (
                n["things"],
                [
                    (k + 1, f"'{t}'", f"'{kind}'", price)
                    for k, (t, kind, price) in enumerate(zip(things, kinds, prices, strict=True))
                ],
            ),
            (n["orders"], [(k + 1, *order) for k, order in enumerate(orders)]),
        )
        for table, values in rows:
            listed = ", ".join(f"({', '.join(map(str, row))})" for row in values)
            lines.append(f"INSERT INTO {table} VALUES {listed};")
        kind, question, query = _question(draw, level, n, people, towns, things, kinds)
        database = "\n".join(lines)
        answer = _answer(database, query)
        script = [script_call("schema"), script_call("sql", query=query), script_text(answer)]
        private = {"database": database, "answer": answer, "script": script}
        return Task("", question, private, {"kind": kind})


def _question(
    draw: Random,
    level: int,
    n: dict[str, str],
    people: list[str],
    towns: list[str],
    things: list[str],
    kinds: list[str],
) -> tuple[str, str, str]:
    """Return the kind, the question and the query of a task."""
    person, town, thing, kind = map(draw.choice, (people, towns, things, kinds))
    choices: tuple[tuple[str, str, str], ...]
    if level == 1:
        choices = (
            ("look up", f"Where does {person} live?", f"SELECT {n['town']} FROM {n['people']} WHERE name = '{person}'"),
            (
                "look up",
                f"What is the price of {thing}?",
                f"SELECT {n['price']} FROM {n['things']} WHERE name = '{thing}'",
            ),
        )
    elif level == 2:
        choices = (
            (
                "count",
                f"How many people live in {town}?",
                f"SELECT COUNT(*) FROM {n['people']} WHERE {n['town']} = '{town}'",
            ),
            (
                "compare",
                f"What is the highest price of kind {kind}?",
                f"SELECT MAX({n['price']}) FROM {n['things']} WHERE {n['kind']} = '{kind}'",
            ),
            (
                "compare",
                f"What is the cheapest thing of kind {kind}?",
                f"SELECT name FROM {n['things']} WHERE {n['kind']} = '{kind}' ORDER BY {n['price']} LIMIT 1",
            ),
        )
    else:
        joined = f"FROM {n['orders']} o JOIN {n['people']} p ON o.{n['who']} = p.id"
        choices = (
            ("join", f"How many orders did {person} make?", f"SELECT COUNT(*) {joined} WHERE p.name = '{person}'"),
            (
                "join",
                f"How many pieces of {thing} were ordered?",
                f"SELECT COALESCE(SUM(o.{n['count']}), 0) FROM {n['orders']} o JOIN {n['things']} t "
                f"ON o.{n['what']} = t.id WHERE t.name = '{thing}'",
            ),
            (
                "join",
                f"How much did {person} spend in all?",
                f"SELECT COALESCE(SUM(o.{n['count']} * t.{n['price']}), 0) {joined} JOIN {n['things']} t "
                f"ON o.{n['what']} = t.id WHERE p.name = '{person}'",
            ),
        )
    return draw.choice(choices)


def _answer(database: str, query: str) -> str:
    """Return the first value of the result of a query."""
    connection = sqlite3.connect(":memory:")
    try:
        connection.executescript(database)
        return str(connection.execute(query).fetchone()[0])
    finally:
        connection.close()
