"""SQL queries of a model: no query reads or writes other files, or changes a read-only database.

A grammar of SQL with the functions of SQLite and DuckDB that access files, on databases next to a canary.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import duckdb

from fuzzing.choices import Choices, require
from fuzzing.trying import scratch
from whetstone.errors import TaskError, ToolError
from whetstone.tools import sql as sql_module
from whetstone.tools.protocol import Episode
from whetstone.tools.sql import Sql
from whetstone.trajectory import Task

CANARY = "canary-4f1c99b0"
MAKE = "CREATE TABLE item (name TEXT, price INTEGER); CREATE VIEW cheap AS SELECT * FROM item WHERE price < 5;"
_folder = scratch("sql")
_canary = _folder / "canary.txt"
_canary.write_text(f"name,price\n{CANARY},7\n")
with contextlib.closing(sqlite3.connect(_folder / "shop.sqlite")) as _database:
    _database.executescript(MAKE + "INSERT INTO item VALUES ('tea', 4), ('rice', 7);")
with contextlib.closing(sqlite3.connect(_folder / "other.sqlite")) as _database:
    _database.executescript(f"CREATE TABLE other (name TEXT); INSERT INTO other VALUES ('{CANARY}');")
with duckdb.connect(str(_folder / "shop.duckdb")) as _duck:
    _duck.execute(MAKE + "INSERT INTO item VALUES ('tea', 4), ('rice', 7);")
_before = {path.name: path.read_bytes() for path in _folder.iterdir()}
_PLACES = tuple(f"'{_folder / name}'" for name in ("canary.txt", "new.txt", "other.sqlite", "new.duckdb"))
NAMES = (
    "item",
    "cheap",
    "name",
    "price",
    "sqlite_master",
    "sqlite_temp_master",
    "main.item",
    "temp.x",
    "x",
    '"x y"',
    "rowid",
    "o.other",
)
FUNCTIONS = (
    "readfile", "writefile", "load_extension", "edit", "fts3_tokenizer", "zeroblob", "randomblob", "printf",
    "group_concat", "hex",
    "replace", "json_each", "json_extract", "quote", "char", "unicode", "read_csv", "read_text", "read_blob",
    "read_csv_auto", "glob",
    "read_parquet", "sqlite_scan", "getenv", "repeat", "range", "generate_series", "pragma_table_info",
    "pragma_database_list",
    "pragma_journal_mode", "pragma_writable_schema", "pragma_query_only", "duckdb_settings", "query",
    "sqlite_compileoption_get",
)  # fmt: skip
PRAGMAS = (
    "query_only", "journal_mode", "writable_schema", "temp_store_directory", "data_store_directory", "user_version",
    "wal_checkpoint",
    "trusted_schema", "integrity_check", "database_list", "temp_store", "mmap_size", "cache_spill", "schema_version",
    "optimize",
    "enable_profiling", "threads", "memory_limit", "enable_external_access", "profiling_output", "log_query_path",
    "extension_directory",
)  # fmt: skip
WORDS = (
    *NAMES, *FUNCTIONS, *PRAGMAS, *_PLACES, "SELECT", "FROM", "WHERE", "ATTACH", "DETACH", "VACUUM", "INTO", "COPY",
    "TO", "EXPORT",
    "IMPORT", "INSTALL", "LOAD", "SET", "RESET", "PRAGMA", "INSERT", "UPDATE", "DELETE", "CREATE", "DROP", "TABLE",
    "TRIGGER", "VIRTUAL",
    "USING", "fts5(x)", "rtree(a,b,c)", "dbstat", "csv", "BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE",
    "REINDEX", "ANALYZE",
    "EXPLAIN", "WITH", "RECURSIVE", "UNION", "VALUES", "NULL", "--", "/*", "*/", ";", "(", ")", "*", "=", ",", "?",
    ":a", "@a", "0", "1",
)  # fmt: skip
MOST_SECONDS = 0.3


def expression(choices: Choices, depth: int = 3) -> str:
    """Generate an expression."""
    kind = choices.below(9 if depth else 4)
    if kind < 2:
        return choices.one(NAMES)
    if kind == 2:
        return str(choices.one((0, 1, -1, 2**63, 1e308, 10**9, "NULL", "x'00ff'", "'tea'", "'%'", "current_timestamp")))
    if kind == 3:
        return choices.one(_PLACES)
    if kind < 6:
        return f"{choices.one(FUNCTIONS)}({', '.join(choices.some(lambda: expression(choices, depth - 1), 3))})"
    if kind == 6:
        operator = choices.one(
            ("+", "*", "||", "LIKE", "GLOB", "IN", "IS", "<", "->", "REGEXP", "MATCH", "/", "%", "<<")
        )
        return f"({expression(choices, depth - 1)} {operator} {expression(choices, depth - 1)})"
    if kind == 7:
        return f"({select(choices, depth - 1)})"
    return f"CAST({expression(choices, depth - 1)} AS {choices.one(('TEXT', 'BLOB', 'INTEGER', 'JSON', 'INT[]'))})"


def source(choices: Choices, depth: int) -> str:
    """Generate a table or a subquery."""
    kind = choices.below(6)
    if kind < 2:
        return choices.one(NAMES)
    if kind == 2:
        return choices.one(_PLACES)
    if kind == 3:
        return f"{choices.one(FUNCTIONS)}({', '.join(choices.some(lambda: expression(choices, 1), 2))})"
    if kind == 4 and depth:
        return f"({select(choices, depth - 1)}) AS o"
    return f"{choices.one(NAMES)} AS a, {choices.one(NAMES)} AS b"


def select(choices: Choices, depth: int = 2) -> str:
    """Generate a SELECT."""
    if choices.often(20):
        step = choices.one(("x + 1", "x || x", "x * 2", "zeroblob(x * 1000000)"))
        first, column = expression(choices, 1), expression(choices, 1)
        return f"WITH RECURSIVE r(x) AS (SELECT {first} UNION ALL SELECT {step} FROM r) SELECT {column} FROM r"
    columns = ["*", *choices.some(lambda: expression(choices, depth), 2)][-2:]
    text = f"SELECT {', '.join(columns)} FROM {source(choices, depth)}"
    if choices.often(60):
        text += f" WHERE {expression(choices, depth)}"
    return text + choices.one(
        ("", "", " ORDER BY 1", " GROUP BY 1", " LIMIT 1", f" UNION SELECT {expression(choices, 1)}")
    )


def statement(choices: Choices) -> str:
    """Generate a statement."""
    place = choices.one(_PLACES)
    kind = choices.below(14)
    if kind < 4:
        return select(choices)
    if kind == 4:
        how = choices.one(("", " (TYPE sqlite)", " (READ_ONLY)"))
        return f"ATTACH {choices.one(('', 'DATABASE '))}{place} AS o{how}"
    if kind == 5:
        into = choices.one(("", f"INTO {place}", f"INTO {expression(choices, 1)}"))
        return f"VACUUM {choices.one(('', 'main ', 'temp '))}{into}"
    if kind == 6:
        return f"COPY {choices.one(('item', f'({select(choices, 1)})'))} {choices.one(('TO', 'FROM'))} {place}"
    if kind == 7:
        value = choices.one(("", f" = {expression(choices, 0)}", f"({expression(choices, 0)})"))
        return f"PRAGMA {choices.one(PRAGMAS)}{value}"
    if kind == 8:
        return f"{choices.one(('SET', 'SET GLOBAL', 'RESET'))} {choices.one(PRAGMAS)} = {expression(choices, 0)}"
    if kind == 9:
        rows = choices.one(("VALUES (1, 2)", select(choices, 1), "DEFAULT VALUES"))
        return f"INSERT INTO {choices.one(NAMES)} {rows}"
    if kind == 10:
        what = choices.one(("TABLE", "VIEW", "TEMP TABLE", "OR REPLACE VIEW"))
        return f"CREATE {what} {choices.one(NAMES)} AS {select(choices, 1)}"
    if kind == 11:
        modules = ("fts5(a)", "fts3(a, tokenize=icu)", "rtree(a,b,c)", f"csv(filename={place})", "dbstat")
        return f"CREATE VIRTUAL TABLE {choices.one(('x', 'temp.x'))} USING {choices.one(modules)}"
    if kind == 12:
        does = statement(choices) if choices.often(128) else select(choices)
        return f"CREATE {choices.one(('', 'TEMP '))}TRIGGER t AFTER INSERT ON item BEGIN {does}; END"
    return choices.one((
        "BEGIN", "COMMIT", "ROLLBACK", "DELETE FROM item", "DROP TABLE item", "UPDATE item SET price = 0", "CHECKPOINT",
        f"EXPORT DATABASE {place}", f"IMPORT DATABASE {place}", "INSTALL httpfs", f"LOAD {place}", f"INSTALL {place}",
        "EXPLAIN SELECT 1", "DETACH o", "SAVEPOINT s", "RELEASE s",
    ))  # fmt: skip


def query(choices: Choices) -> str:
    """Generate a query: a statement, occasionally damaged, several statements, or only words."""
    if choices.often(40):
        return " ".join(choices.some(lambda: choices.one(WORDS), 12)) + choices.text(WORDS, 2)
    text = statement(choices)
    if choices.often(30):
        text += "; " + statement(choices)
    if choices.often(30):
        at = choices.below(len(text) + 1)
        text = text[:at] + choices.text(WORDS, 2) + text[at + choices.below(4) :]
    return text


def one(choices: Choices) -> None:
    """Run one input."""
    url = choices.note("url", choices.one((str(_folder / "shop.sqlite"), str(_folder / "shop.duckdb"), "task")))
    read_only = choices.note("read_only", choices.often(128))
    private: dict[str, Any] = {"database": MAKE}
    if url == "task" and choices.often(160):
        private = {"database": choices.note("making", MAKE + "; ".join(choices.some(lambda: query(choices), 4)))}
    tool = Sql(url=url, read_only=read_only, timeout_seconds=MOST_SECONDS)
    try:
        _LOOP.run_until_complete(tool.open(Episode(Task("t", "", private), seed=0)))
        before = _run_query(tool, "SELECT * FROM item")
        queries = choices.note("queries", [query(choices) for _ in range(1 + choices.below(4))])
        for query_text in queries:
            _run_query(tool, query_text)
        _schema(tool, choices.one(NAMES))
        _schema(tool, "")
        if read_only and before is not None:
            require(_run_query(tool, "SELECT * FROM item") == before, "a database changed that is read only", queries)
    except TaskError as error:
        require("\n" not in str(error), "no one line", error)
    finally:
        _LOOP.run_until_complete(tool.close())
    _check_files()


_LOOP = asyncio.new_event_loop()
"""Event loop of all calls, because a database waits on it for its process."""


def _run_query(tool: Sql, query_text: str) -> str | None:
    try:
        answer = _LOOP.run_until_complete(tool.sql(query_text))
    except ToolError as error:
        require(CANARY not in str(error), "a file was read", query_text)
        return None
    require(isinstance(answer, str) and len(answer) < 200_000, "an answer without bounds", answer)
    require(CANARY not in answer, "a file was read", query_text)
    return answer


def _schema(tool: Sql, table: str) -> None:
    try:
        answer = _LOOP.run_until_complete(tool.schema(table))
    except ToolError as error:
        answer = str(error)
    require(CANARY not in answer, "a file was read", table)


def _check_files() -> None:
    present = {path.name: path for path in _folder.iterdir()}
    for name in present.keys() - _before.keys():
        present[name].unlink()
    require(present.keys() == _before.keys(), "a file was written", sorted(present))
    for name, data in _before.items():
        changed = Path(_folder / name).read_bytes() != data
        if changed:
            (_folder / name).write_bytes(data)
        require(not changed, "a file was changed", name)


def plant() -> None:
    """Plant a query without access control."""
    honest = Sql.sql

    async def careless(self: Sql, query: str) -> str:
        if query.upper().startswith("ATTACH"):
            raise KeyError("planted")
        return await honest(self, query)

    sql_module.Sql.sql = careless  # type: ignore[method-assign]
