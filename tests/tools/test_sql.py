"""A database tool returns compact tables within its limits, and episodes do not affect each other."""

import asyncio
import os
import shutil
import socket
import sqlite3
import subprocess
import tempfile
from pathlib import Path

import duckdb
import psycopg
import pytest

from support.tool_episodes import played
from whetstone.errors import InfrastructureError, RecipeError, TaskError, ToolError
from whetstone.tools import Toolset
from whetstone.tools.database import process
from whetstone.tools.protocol import Episode
from whetstone.tools.sql import Sql, as_table
from whetstone.trajectory import Task

CHINOOK = Path(__file__).parents[3] / "shared" / "data" / "chinook" / "chinook.sqlite"
MAKE = "CREATE TABLE item (name TEXT, price INTEGER)"


@pytest.fixture(params=["sqlite", "duckdb"])
def database(request, tmp_path):
    path = tmp_path / f"shop.{request.param}"
    connection = sqlite3.connect(path) if request.param == "sqlite" else duckdb.connect(str(path))
    connection.execute(MAKE)
    connection.execute("INSERT INTO item VALUES ('tea', 4), ('rice', 7), (NULL, 1)")
    connection.commit()
    connection.close()
    return path


def run_queries(sql, *queries):
    return played(Toolset([sql]), *queries)


def text_of(sql, query):
    return run_queries(sql, ("sql", {"query": query}))[0].text


def test_rows_are_a_compact_table(database):
    assert text_of(Sql(url=str(database)), "SELECT * FROM item ORDER BY price") == (
        "name | price\nNULL | 1\ntea | 4\nrice | 7\n[3 rows]"
    )
    assert text_of(Sql(url=str(database), max_rows=1), "SELECT price FROM item ORDER BY 1").endswith(
        "1\n[1 rows, there are more]"
    )


def test_cells_cannot_break_the_table():
    table = as_table(["a"], [["x | y\nz"], [b"\x00\x01"], ["l" * 500]], more=False)
    assert table.splitlines()[:3] == ["a", "x ¦ y⏎z", "[2 bytes]"]
    assert len(table) < 260


def test_read_only_database_refuses_writes(database):
    sql = Sql(url=str(database))
    for query in ("DELETE FROM item", "DROP TABLE item", "CREATE TABLE x (a INTEGER)", "PRAGMA query_only = OFF"):
        answer = run_queries(sql, ("sql", {"query": query}), ("sql", {"query": "DELETE FROM item"}))[1]
        assert answer.record.outcome == "tool_error", query
    assert "[3 rows]" in text_of(sql, "SELECT * FROM item")
    assert sql.stateless


def test_each_episode_changes_its_own_copy(database):
    sql = Sql(url=str(database), read_only=False)
    assert not sql.stateless
    deleted = run_queries(sql, ("sql", {"query": "DELETE FROM item"}), ("sql", {"query": "SELECT * FROM item"}))
    assert deleted[1].text.endswith("[0 rows]")
    assert "[3 rows]" in text_of(sql, "SELECT * FROM item")


@pytest.mark.parametrize(
    "query",
    [
        "ATTACH 'other.db' AS other",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_text('/etc/passwd')",
        "COPY item TO '/tmp/stolen.csv'",
        "SELECT load_extension('x')",
        "SET enable_external_access = true",
        "INSTALL httpfs",
        "SELECT zeroblob(2000000000)",
        "SELECT 1; SELECT 2; DROP TABLE item",
        "SELEC 1",
        "",
    ],
)
def test_statements_that_leave_the_database_are_refused(database, query):
    if query.startswith("SELECT 1;") and database.suffix == ".duckdb":
        pytest.skip("DuckDB runs several statements, and refuses to change anything in each")
    answer = run_queries(Sql(url=str(database)), ("sql", {"query": query}))[0]
    if query:
        assert answer.record.outcome == "tool_error", answer


def test_endless_query_is_interrupted(database):
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    sql = Sql(url=str(database), timeout_seconds=0.3)
    first, second = run_queries(sql, ("sql", {"query": endless}), ("sql", {"query": "SELECT 5 AS five"}))
    assert "longer than 0.3 s" in first.text
    assert second.text.startswith("five\n5")


def test_schema_lists_tables_and_columns(database):
    full, one, none = run_queries(
        Sql(url=str(database)), ("schema", {}), ("schema", {"table": "item"}), ("schema", {"table": "items"})
    )
    assert full.text == "item(name, price)"
    assert "price INTEGER" in one.text
    assert 'there is no table "items"; there are: item' in none.text


def test_missing_file_is_reported_immediately():
    with pytest.raises(RecipeError, match="no such file: nowhere"):
        Sql(url="nowhere.sqlite")


@pytest.mark.skipif(not CHINOOK.is_file(), reason=f"Chinook is missing: put {CHINOOK.name} into {CHINOOK.parent}")
def test_queries_of_a_music_shop():
    sql = Sql(url=str(CHINOOK))
    query = (
        "SELECT ar.Name, COUNT(*) AS tracks FROM Track t JOIN Album al ON t.AlbumId = al.AlbumId "
        "JOIN Artist ar ON al.ArtistId = ar.ArtistId GROUP BY ar.Name ORDER BY tracks DESC LIMIT 2"
    )
    answers = run_queries(
        sql,
        ("sql", {"query": query}),
        ("sql", {"query": "SELECT COUNT(*) AS n FROM Customer WHERE Country = 'Brazil'"}),
        ("sql", {"query": "SELECT * FROM Track"}),
        ("schema", {}),
    )
    assert answers[0].text == "Name | tracks\nIron Maiden | 213\nU2 | 135\n[2 rows]"
    assert answers[1].text == "n\n5\n[1 row]"
    assert answers[2].text.endswith("[50 rows, there are more]") or answers[2].record.truncated
    assert "Album(AlbumId, Title, ArtistId)\n" in answers[3].text
    assert len(answers[3].text.splitlines()) == 11


@pytest.fixture(scope="module")
def postgresql(tmp_path_factory):
    """Start a PostgreSQL server, if it is installed."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not programs:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    folder, bin = tmp_path_factory.mktemp("pg"), programs[-1].parent
    who = {}
    if os.getuid() == 0:  # PostgreSQL refuses to run as a superuser
        folder = Path(tempfile.mkdtemp())
        shutil.chown(folder, "postgres", "postgres")
        who = {"user": "postgres", "group": "postgres"}
    quiet = {"check": True, "capture_output": True, "cwd": folder, **who}
    subprocess.run([bin / "initdb", "-D", folder / "data", "-U", "tester", "--auth=trust"], **quiet)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
    log = folder / "log"
    subprocess.run([bin / "pg_ctl", "-D", folder / "data", "-l", log, "-o", options, "-w", "start"], **quiet)
    url = f"postgresql://tester@127.0.0.1:{port}/postgres"
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE item (name TEXT, price INTEGER)")
        connection.execute("INSERT INTO item VALUES ('tea', 4), ('rice', 7), (NULL, 1)")
    yield url
    subprocess.run([bin / "pg_ctl", "-D", folder / "data", "-m", "immediate", "stop"], **quiet)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
def test_postgresql_server_is_queried_and_not_changed(postgresql):
    sql = Sql(url=postgresql, timeout_seconds=0.5)
    answers = run_queries(
        sql,
        ("sql", {"query": "SELECT * FROM item ORDER BY price"}),
        ("sql", {"query": "DELETE FROM item"}),
        ("sql", {"query": "SELEC 1"}),
        ("sql", {"query": "SELECT pg_sleep(10)"}),
        ("sql", {"query": "SELECT 1; DROP TABLE item"}),
        ("sql", {"query": "COMMIT"}),
        ("sql", {"query": "/* */ -- x\n END"}),
        ("sql", {"query": "SET TRANSACTION READ WRITE"}),
        ("sql", {"query": "DELETE FROM item"}),
        ("schema", {}),
        ("schema", {"table": "item"}),
        ("sql", {"query": "SELECT count(*) AS n FROM item"}),
    )
    texts = [answer.text for answer in answers]
    assert texts[0] == "name | price\nNULL | 1\ntea | 4\nrice | 7\n[3 rows]"
    assert "read-only transaction" in texts[1]
    assert "syntax error" in texts[2]
    assert "longer than 0.5 s" in texts[3]
    assert {answer.record.outcome for answer in answers[1:7]} == {"tool_error"}
    assert answers[8].record.outcome == "tool_error"
    assert texts[9] == "item(name, price)"
    assert texts[10] == "CREATE TABLE item (name text, price integer)"
    assert texts[11].startswith("n\n3")


def test_changes_of_an_episode_in_postgresql_are_rolled_back(postgresql):
    sql = Sql(url=postgresql, read_only=False)
    count = ("sql", {"query": "SELECT count(*) AS n FROM item"})
    answers = run_queries(
        sql, ("sql", {"query": "DELETE FROM item WHERE price > 1"}), ("sql", {"query": "SELEC"}), count
    )
    assert answers[0].text == "done"
    assert answers[2].text.startswith("n\n1")
    assert run_queries(sql, count)[0].text.startswith("n\n3")


def test_postgresql_query_is_cancelled_without_blocking_the_event_loop(postgresql):
    async def episode():
        toolset = Toolset([sql := Sql(url=postgresql, timeout_seconds=300)])
        await toolset.open(Task("t", "?"), seed=0)
        running = asyncio.ensure_future(sql.sql("SELECT pg_sleep(300)"))
        for _ in range(20):
            await asyncio.sleep(0.01)
        assert not running.done()
        async with asyncio.timeout(30):
            await toolset.close()
            with pytest.raises((ToolError, InfrastructureError)):
                await running

    asyncio.run(episode())


def test_missing_postgresql_server_is_an_infrastructure_failure():
    with pytest.raises(InfrastructureError, match="PostgreSQL"):
        run_queries(Sql(url="postgresql://tester@127.0.0.1:9/postgres"), ("sql", {"query": "SELECT 1"}))


@pytest.mark.parametrize(
    "statements",
    [
        "CREATE TABLE t(x); ATTACH '{}' AS other; CREATE TABLE other.t(x);",
        "CREATE TABLE t(x); VACUUM INTO '{}';",
        "PRAGMA temp_store_directory = '{}';",
        "SELECT writefile('{}', 'x');",
        "SELECT load_extension('{}');",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n;",
    ],
)
def test_statements_of_a_task_create_only_its_database(tmp_path, statements, monkeypatch):
    monkeypatch.setattr(process, "_MAKING_SECONDS", 0.2)
    reached = tmp_path / "reached"
    source = Task("t", "?", {"database": statements.replace("{}", str(reached))})
    with pytest.raises(TaskError, match="its database cannot be created"):
        asyncio.run(Toolset([Sql(url="task")]).open(source, seed=0))
    assert not reached.exists()


def test_dump_can_start_with_settings():
    dump = "PRAGMA foreign_keys=OFF;\nBEGIN TRANSACTION;\nCREATE TABLE t(x);\nINSERT INTO t VALUES(7);\nCOMMIT;"
    for read_only in (True, False):
        toolset = Toolset([Sql(url="task", read_only=read_only)])
        (answer,) = played(toolset, ("sql", {"query": "SELECT x FROM t"}), task=Task("t", "?", {"database": dump}))
        assert "7" in answer.text


@pytest.mark.parametrize("query", ["", "-- nothing"])
def test_statement_without_rows_reports_success(database, query):
    assert text_of(Sql(url=str(database)), query) == "done"


def test_unpaired_surrogate_is_no_query(database):
    tool = Sql(url=str(database))

    async def asked_half():
        await tool.open(Episode(Task("t", ""), seed=0))
        try:
            with pytest.raises(ToolError, match="half a letter"):
                await tool.sql("SELECT '\ud800'")
        finally:
            await tool.close()

    asyncio.run(asked_half())


@pytest.mark.parametrize("statements", ["SELECT 1;\0", "SELECT '\ud800'", "x"])
def test_statements_that_create_no_database_are_an_error_of_the_task(statements):
    with pytest.raises(TaskError, match="its database cannot be created"):
        asyncio.run(Sql(url="task").open(Episode(Task("t", "", {"database": statements}), seed=0)))


@pytest.mark.parametrize("read_only", [True, False])
def test_failed_transaction_is_rolled_back(database, read_only):
    tool = Sql(url=str(database), read_only=read_only)
    queries = ["BEGIN", "SELECT * FROM nowhere", "SELECT count(*) FROM item"]
    *_, counted, tables = run_queries(tool, *(("sql", {"query": query}) for query in queries), ("schema", {}))
    assert "3" in counted.text
    assert tables.text.startswith("item(")
