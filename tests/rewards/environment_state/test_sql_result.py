"""Queries are compared by their results."""

import sqlite3
from pathlib import Path

import pytest

from support.rewards import episode, score, task, turn
from whetstone.rewards.environment_state.sql_result import same_rows

CHINOOK = Path(__file__).parents[4] / "shared" / "data" / "chinook" / "chinook.sqlite"


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "shop.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(
        "CREATE TABLE sold (id INTEGER, city TEXT, price REAL);"
        "INSERT INTO sold VALUES (1,'Oslo',1.5),(2,'Oslo',2.0),(3,'Rome',0.1);"
    )
    connection.close()
    return str(path)


def right(database, wanted, *turns):
    return score("sql_result", episode(*turns), task("?", database=database, query=wanted)).success


def test_rows_are_compared_unordered_or_in_order(database):
    wanted = "SELECT city, SUM(price) FROM sold GROUP BY city"
    assert right(database, wanted, "```sql\nSELECT city, TOTAL(price) FROM sold GROUP BY 1 ORDER BY city DESC\n```")
    assert not right(database, wanted, "SELECT city, COUNT(*) FROM sold GROUP BY city")
    ordered = "SELECT id FROM sold ORDER BY price"
    assert not right(database, ordered, "SELECT id FROM sold ORDER BY price DESC")
    assert right(database, ordered, "SELECT id FROM sold ORDER BY price ASC")


def test_query_can_be_an_argument_of_a_call(database):
    calls = turn("", ("sql", {"query": "SELECT 3"})), turn("", ("sql", {"query": "SELEC"}, "tool_error"))
    assert right(database, "SELECT COUNT(*) FROM sold", *calls, "There are three.")
    assert not right(database, "SELECT COUNT(*) FROM sold", "There are three.")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM nothing",
        "DELETE FROM sold",
        "ATTACH DATABASE '/tmp/x' AS x",
        "PRAGMA writable_schema=1",
        "SELECT 1; SELECT 2",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n) SELECT SUM(i) FROM n",
        "SELECT zeroblob(1000000000)",
        "SELECT instr(hex(zeroblob(8000000)), hex(zeroblob(3000000)) || '1')",
        f"SELECT {', '.join(['randomblob(16000000)'] * 90)}",
        "SELECT randomblob(900000) FROM sold a, sold b, sold c, sold d",
        "BEGIN",
    ],
)
def test_failing_query_is_wrong_and_changes_nothing(database, query):
    problem = task("?", database=database, query="SELECT COUNT(*) FROM sold")
    result = score("sql_result", episode(f"```\n{query}\n```"), problem, seconds=0.5)
    assert (result.value, result.parts["ran"]) == (0, 0)
    assert right(database, "SELECT COUNT(*) FROM sold", "SELECT 3")


def test_invalid_task_is_no_failure_of_the_agent(database):
    with pytest.raises(ValueError, match="own query does not run"):
        right(database, "SELECT nothing", "SELECT 1")
    with pytest.raises(FileNotFoundError):
        right(database + "x", "SELECT 1", "SELECT 1")


def test_bytes_are_compared_completely(database):
    assert right(database, "SELECT x'00ff'", "```sql\nSELECT x'00ff'\n```")
    assert not right(database, "SELECT x'00ff'", "```sql\nSELECT x'00fe'\n```")


def test_values():
    assert same_rows([(0.1 + 0.2,)], [(0.3,)], ordered=False)
    assert same_rows([(1, None)], [(1.0, None)], ordered=True)
    assert not same_rows([("1",)], [(1,)], ordered=False)
    assert not same_rows([(1,), (1,)], [(1,)], ordered=False)
    assert not same_rows([(b"x",)], [("x",)], ordered=False)


@pytest.mark.skipif(not CHINOOK.is_file(), reason=f"Chinook is missing: put {CHINOOK.name} into {CHINOOK.parent}")
def test_chinook():
    wanted = "SELECT Country, COUNT(*) FROM Customer GROUP BY Country"
    assert right(str(CHINOOK), wanted, "SELECT Country, COUNT(CustomerId) FROM Customer GROUP BY 1 ORDER BY 2 DESC")
