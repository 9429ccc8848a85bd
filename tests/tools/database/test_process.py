"""Limits of database processes: expensive queries are ended, and the database serves the next one."""

import ast
import asyncio
import os
import signal
import socket
import sqlite3
import struct
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from support.tool_episodes import played
from whetstone.chat import ToolCall
from whetstone.errors import TaskError, ToolError
from whetstone.tools import Sql, Toolset
from whetstone.tools.database import DatabaseOrigin, DatabaseProcess, database_server, process
from whetstone.tools.database.database_server import DatabaseWorker, ResultTooLargeError, get_fork_server
from whetstone.trajectory import Task

HERE = Path(__file__).parents[3] / "src" / "whetstone" / "tools" / "database"
COUNT = "SELECT count(*) AS n FROM item"
NEVER_INTERRUPTED = {
    "sqlite": "SELECT instr(hex(zeroblob(8000000)), hex(zeroblob(3000000)) || '1')",
    "duckdb": "SELECT levenshtein(repeat('a', 1000000), repeat('b', 1000000))",
}
"""One step of the library that takes minutes without a check for interruption."""
MADE = "CREATE TABLE item (name TEXT); INSERT INTO item VALUES ('tea'), ('rice');"


def create_database(folder, kind):
    path = folder / f"shop.{kind}"
    library = pytest.importorskip("duckdb", reason="DuckDB is not installed") if kind == "duckdb" else sqlite3
    connection = library.connect(str(path))
    connection.execute("CREATE TABLE item (name TEXT)")
    connection.execute("INSERT INTO item VALUES ('tea'), ('rice')")
    connection.commit()
    connection.close()
    return path


@pytest.fixture(params=["sqlite", "duckdb"])
def kind(request):
    if request.param == "duckdb":
        pytest.importorskip("duckdb", reason="DuckDB is not installed")
    return request.param


@pytest.fixture
def database(kind, tmp_path):
    return create_database(tmp_path, kind)


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(process, "_GRACE_SECONDS", 0.3)


def run_queries(sql, *queries, task=None):
    answers = played(Toolset([sql], timeout_seconds=60), *(("sql", {"query": one}) for one in queries), task=task)
    return [answer.text for answer in answers]


def workers(kind):
    """Return the process ids of the databases."""
    started = get_fork_server(kind)._process
    if started is None:
        return []
    children = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
    return [int(child) for child in children]


def of_status(pid, name):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith(f"{name}:"))


def most_kib_of(pid):
    try:
        return int(of_status(pid, "VmHWM"))
    except (OSError, StopIteration):
        return 0  # it ended


def limits_of(pid):
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    return {line[:25].strip(): line[25:].split()[0] for line in lines}


def overwritten(path):
    Path(path).write_bytes(b"x" * 8192)


@pytest.mark.parametrize("read_only", [True, False])
def test_uninterruptible_query_is_killed_and_the_next_one_runs(kind, database, read_only):
    sql = Sql(url=str(database), read_only=read_only, timeout_seconds=0.3)
    ended, after = run_queries(sql, NEVER_INTERRUPTED[kind], COUNT)
    assert "the query ran longer than 0.3 s and was ended" in ended
    assert ("what was not committed" in ended) is not read_only
    assert after.startswith("n\n2")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "query"),
    [
        ("sqlite", f"SELECT {', '.join(['randomblob(16000000)'] * 90)}"),
        ("sqlite", "SELECT " + ", ".join(f"printf('%.*c', 1600000{k % 10}, 'x')" for k in range(90))),
        ("sqlite", f"SELECT {', '.join(['group_concat(hex(zeroblob(6000000)))'] * 90)} FROM item LIMIT 1"),
        (
            "sqlite",
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
            "SELECT i, hex(randomblob(4000000)) AS b FROM n ORDER BY b",
        ),
        (
            "sqlite",
            "WITH RECURSIVE n(i, b) AS (SELECT 1, randomblob(4000000) UNION ALL "
            "SELECT i + 1, randomblob(4000000) FROM n JOIN item ORDER BY 1) SELECT count(*) FROM n",
        ),
        ("duckdb", "SELECT string_agg(repeat('x', 10000000), ',') FROM range(500)"),
        ("duckdb", "SELECT repeat('abcdefgh', 500000000)"),
        ("duckdb", "SELECT list_sort(range(200000000))"),
        ("duckdb", "SELECT list(repeat('y', 1000000) || i) FROM range(5000) t(i)"),
        ("duckdb", "SELECT bitstring('1', 2000000000)"),
    ],
)
def test_query_beyond_the_memory_limit_is_ended(tmp_path, kind, query):
    path = create_database(tmp_path, kind)
    sql = Sql(url=str(path), timeout_seconds=30, memory_mb=256)

    async def episode():
        toolset = Toolset([sql], timeout_seconds=60)
        await toolset.open(Task("t", "?"), seed=0)
        try:
            running = asyncio.create_task(toolset.call(ToolCall("sql", f'{{"query": "{query}"}}')))
            most = 0
            while not running.done():
                await asyncio.sleep(0.001)
                most = max([most, *(most_kib_of(pid) for pid in workers(kind))])
            return await running, await toolset.call(ToolCall("sql", f'{{"query": "{COUNT}"}}')), most
        finally:
            await toolset.close()

    ended, after, max_kib = asyncio.run(episode())
    assert ended.record.outcome == "tool_error"
    assert "memory" in ended.text or "too large" in ended.text or "too big" in ended.text
    assert after.text.startswith("n\n2")
    assert max_kib < 450 << 10  # 256 MiB and the memory of the library itself


@pytest.mark.slow
def test_file_size_is_bounded(kind, database):
    grown = {
        "sqlite": "INSERT INTO item WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
        "SELECT zeroblob(1000000) FROM n",
        "duckdb": "INSERT INTO item SELECT repeat(md5(i::VARCHAR), 1000) FROM range(10000000) t(i)",
    }
    sql = Sql(url=str(database), read_only=False, timeout_seconds=20, memory_mb=128)
    ended, after = run_queries(sql, grown[kind], COUNT)
    assert "error" in ended
    assert after.startswith("n\n2")


def test_committed_rows_survive_a_killed_process(kind, database):
    sql = Sql(url=str(database), read_only=False, timeout_seconds=0.3)
    texts = run_queries(
        sql,
        "INSERT INTO item VALUES ('salt')",
        NEVER_INTERRUPTED[kind],
        COUNT,
        "BEGIN",
        "DELETE FROM item",
        NEVER_INTERRUPTED[kind],
        COUNT,
    )
    assert texts[2].startswith("n\n3")
    assert "what was not committed, and temporary tables, are gone" in texts[5]
    assert texts[6].startswith("n\n3")
    assert run_queries(sql, COUNT)[0].startswith("n\n2")


def test_interrupted_query_keeps_an_open_transaction(kind, database):
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    sql = Sql(url=str(database), read_only=False, timeout_seconds=0.3)
    if kind == "duckdb":
        pytest.skip("DuckDB takes back a transaction of which one statement fails")
    texts = run_queries(sql, "BEGIN", "DELETE FROM item", endless, COUNT, "ROLLBACK", COUNT)
    assert texts[2] == "error: the query ran longer than 0.3 s and was ended"
    assert texts[3].startswith("n\n0")
    assert texts[5].startswith("n\n2")


def test_closing_does_not_block_the_event_loop(kind, database):
    async def episode():
        sql = Sql(url=str(database), timeout_seconds=500)
        toolset = Toolset([sql], timeout_seconds=600)
        await toolset.open(Task("t", "?"), seed=0)
        running = asyncio.ensure_future(sql.sql(NEVER_INTERRUPTED[kind]))
        beats = 0
        for _ in range(50):
            await asyncio.sleep(0.01)
            beats += 1
        assert not running.done()
        assert beats == 50
        async with asyncio.timeout(30):
            await toolset.close()
            with pytest.raises(ToolError, match="brought the database down"):
                await running

    asyncio.run(episode())
    assert becomes_true(lambda: not workers(kind))


def test_cancelled_query_leaves_the_database_unchanged(kind, database):
    async def episode():
        toolset = Toolset([sql := Sql(url=str(database), read_only=False, timeout_seconds=500)])
        await toolset.open(Task("t", "?"), seed=0)
        try:
            await sql.sql("INSERT INTO item VALUES ('salt')")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(sql.sql(NEVER_INTERRUPTED[kind]), 0.3)
            assert (await sql.sql(COUNT)).startswith("n\n3")
            assert becomes_true(lambda: len(workers(kind)) == 1)  # the killed process ends a moment later
        finally:
            await toolset.close()

    asyncio.run(episode())


def test_two_concurrent_episodes(kind, database):
    async def episode(name, query):
        sql = Sql(url=str(database), read_only=False, timeout_seconds=0.5)
        toolset = Toolset([sql])
        await toolset.open(Task("t", "?"), seed=0)
        try:
            await sql.sql(f"INSERT INTO item VALUES ('{name}')")
            answers = [await toolset.call(ToolCall("sql", f'{{"query": "{query}"}}')) for _ in range(2)]
            stored = await sql.sql(f"SELECT count(*) AS n FROM item WHERE name = '{name}'")
            return [answer.record.outcome for answer in answers], stored, await sql.sql(COUNT)
        finally:
            await toolset.close()

    async def both():
        return await asyncio.gather(episode("ours", NEVER_INTERRUPTED[kind]), episode("theirs", COUNT))

    (first, our_kept, our_count), (second, their_kept, their_count) = asyncio.run(both())
    assert first == ["tool_error"] * 2
    assert second == ["ok"] * 2
    assert our_kept == their_kept == "n\n1\n[1 row]"
    assert our_count == their_count == "n\n3\n[1 row]"


def test_killed_process_is_replaced(kind, database):
    async def episode():
        toolset = Toolset([sql := Sql(url=str(database), read_only=False, timeout_seconds=500)])
        await toolset.open(Task("t", "?"), seed=0)
        try:
            await sql.sql("INSERT INTO item VALUES ('salt')")
            os.kill(workers(kind)[0], signal.SIGKILL)
            await asyncio.sleep(0.2)
            assert (await sql.sql(COUNT)).startswith("n\n3")
            running = asyncio.ensure_future(sql.sql(NEVER_INTERRUPTED[kind]))
            await asyncio.sleep(0.3)
            os.kill(workers(kind)[0], signal.SIGKILL)
            with pytest.raises(ToolError, match="brought the database down"):
                await running
            get_fork_server(kind)._process.kill()
            get_fork_server(kind)._process.wait()
            await asyncio.sleep(0.3)
            assert (await sql.sql(COUNT)).startswith("n\n3")
        finally:
            await toolset.close()

    asyncio.run(episode())


def test_corrupt_copy_is_recreated_and_that_is_reported(tmp_path):
    async def episode():
        origin = DatabaseOrigin("sqlite", statements=MADE, read_only=False)
        process = DatabaseProcess(origin)
        await process.open()
        try:
            overwritten(process._own_file)
            process._worker.kill()
            with pytest.raises(ToolError, match="what was changed is lost"):
                await process.fetch_rows(COUNT, most=1, seconds=5)
            return (await process.fetch_rows(COUNT, most=1, seconds=5)).rows
        finally:
            await process.close()

    assert asyncio.run(episode()) == [[2]]


@pytest.mark.parametrize(
    ("statements", "why"),
    [
        (f"CREATE TABLE t AS {NEVER_INTERRUPTED['sqlite']};", "longer than"),
        (f"CREATE TABLE t AS SELECT {', '.join(['randomblob(16000000)'] * 90)};", "too big|more than 64 MiB|memory"),
        ("CREATE TABLE t(x); SELEC", "syntax error"),
        (
            "CREATE TABLE t(x); WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
            "INSERT INTO t SELECT randomblob(1000000) FROM n;",
            "disk|full|more than 64 MiB",
        ),
    ],
)
def test_statements_of_a_task_have_the_same_limits(monkeypatch, statements, why):
    monkeypatch.setattr(process, "_MAKING_SECONDS", 0.5 if why == "longer than" else 30.0)
    toolset = Toolset([Sql(url="task", memory_mb=64)])
    with pytest.raises(TaskError, match=f"its database cannot be created: .*({why})"):
        asyncio.run(toolset.open(Task("t", "?", {"database": statements}), seed=0))
    assert becomes_true(lambda: not workers("sqlite"))


def test_kernel_enforces_the_limits_of_a_process(kind, database):
    async def episode():
        toolset = Toolset([Sql(url=str(database), memory_mb=300)])
        await toolset.open(Task("t", "?"), seed=0)
        try:
            (pid,) = workers(kind)
            return limits_of(pid), of_status(pid, "NoNewPrivs"), os.getsid(pid) == pid, os.listdir(f"/proc/{pid}/fd")
        finally:
            await toolset.close()

    limits, nothing_gained, own_session, files = asyncio.run(episode())
    assert limits["Max core file size"] == "0"
    assert 300 << 20 <= int(limits["Max data size"]) < 700 << 20
    assert 300 << 20 <= int(limits["Max file size"]) < 310 << 20
    assert int(limits["Max cpu time"]) < 60
    assert nothing_gained == "1"
    assert own_session
    assert len(files) < 8


@pytest.mark.slow
def test_two_hundred_episodes_leave_no_resources():
    sql = Sql(url="task", read_only=False, timeout_seconds=1)
    task = Task("t", "?", {"database": MADE})

    async def episodes(count):
        for _ in range(count):
            toolset = Toolset([sql])
            await toolset.open(task, seed=0)
            await sql.sql(COUNT)
            await toolset.close()

    def open_files():
        folders = list(Path(tempfile.gettempdir()).glob("whetstone-sql-*"))
        started = get_fork_server("sqlite")._process.pid
        resources = len(os.listdir("/proc/self/fd")), threading.active_count(), len(folders)
        return (*resources, len(os.listdir(f"/proc/{started}/fd")), len(workers("sqlite")))

    asyncio.run(episodes(20))
    assert becomes_true(lambda: not workers("sqlite"))
    before, memory = open_files(), int(of_status("self", "VmRSS"))
    asyncio.run(episodes(200))
    assert becomes_true(lambda: open_files() == before), (open_files(), before)
    assert int(of_status("self", "VmRSS")) < memory + (32 << 10)


def becomes_true(condition, seconds=10.0):
    """Return whether a condition becomes true within some seconds."""
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.02)
    return condition()


def test_database_process_imports_nothing_of_the_package():
    """Keep start time and memory of the process low."""
    for path in (HERE / "guest").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                inside = name.startswith(("whetstone.sandbox.guest", "whetstone.tools.database.guest"))
                assert inside or name == "duckdb" or name.split(".")[0] in sys.stdlib_module_names, (path, name)


class IdleServer:
    """A server that receives no request before it is ended."""

    def kill_process(self, number):
        pass


def framed(text):
    return struct.pack("!I", len(text)) + text


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (b"", EOFError),
        (b"\x00\x00", EOFError),
        (b"\xff\xff\xff\xff" + b"x" * 100, ResultTooLargeError),
        (framed(b'{"rows": [[1]]}') * 100, ResultTooLargeError),
        (framed(b"["), EOFError),
        (framed(b"[1]"), EOFError),
        (framed(b"[" * 900), EOFError),
        (framed(b"\xff\xfe\x00"), EOFError),
        (framed(b"1" * 900), EOFError),
    ],
)
def test_messages_of_a_process_are_bounded_text(reply, error):
    async def receive():
        host_end, guest_end = socket.socketpair()
        guest_end.sendall(reply)
        guest_end.shutdown(socket.SHUT_WR)
        worker = DatabaseWorker(IdleServer(), 0, host_end)
        try:
            with pytest.raises(error):
                await worker.send_request({"do": "rows"}, most_bytes=1000)
            assert not worker.is_alive
        finally:
            host_end.close()
            guest_end.close()

    asyncio.run(receive())


@pytest.mark.parametrize(
    "received",
    [
        [{"end": "ok"}],
        [{"columns": 5}, {"end": "ok"}],
        [{"columns": [1]}, {"end": "ok"}],
        [{"columns": ["a"]}, {"rows": [[1]] * 9}, {"end": "ok"}],
        [{"columns": ["a"]}, {"rows": [[1, 2]]}, {"end": "ok"}],
        [{"columns": ["a"]}, {"rows": [[[1]]]}, {"end": "ok"}],
        [{"columns": ["a"]}, {"rows": [[{"bytes": "é"}]]}, {"end": "ok"}],
        [{"columns": ["a"]}, {"rows": 7}, {"end": "ok"}],
        [{"columns": ["a"]}, {}, {"end": "ok"}],
        [{"end": ["ok"]}],
    ],
)
def test_reply_that_is_no_table_is_rejected(received, monkeypatch):
    async def respond(*_, **__):
        return [dict(one) for one in received]

    async def episode():
        process = DatabaseProcess(DatabaseOrigin("sqlite", statements=MADE))
        await process.open()
        try:
            with monkeypatch.context() as patch:
                patch.setattr(database_server.DatabaseWorker, "send_request", respond)
                with pytest.raises(ToolError):
                    await process.fetch_rows("SELECT 1", most=5, seconds=5)
            return (await process.fetch_rows("SELECT 1 AS a", most=5, seconds=5)).rows
        finally:
            await process.close()

    assert asyncio.run(episode()) == [[1]]


@pytest.mark.parametrize("read_only", [True, False])
def test_table_text_does_not_depend_on_the_folder_of_the_file(tmp_path, kind, read_only):
    queries = {
        "sqlite": ["PRAGMA database_list", "SELECT file FROM pragma_database_list", "ATTACH 'x' AS y"],
        "duckdb": [
            "SELECT path FROM duckdb_databases()",
            "SELECT unnest(string_split(value[2:-2], ', ')) AS path FROM duckdb_settings() "
            "WHERE name = 'allowed_paths' ORDER BY path",
        ],
    }[kind]
    texts = []
    for name in ("one", "another"):
        (tmp_path / name).mkdir()
        file = create_database(tmp_path / name, kind)
        texts.append(run_queries(Sql(url=str(file), read_only=read_only), *queries))
    assert texts[0] == texts[1]
    assert not any(str(tmp_path) in text or "whetstone-sql-" in text for text in texts[0])


def test_values_are_complete_without_a_cell_limit():
    query = "SELECT 1, -9223372036854775808, 1.5, 9e999, NULL, 'ä|\n', x'00ff'"

    async def episode():
        process = DatabaseProcess(DatabaseOrigin("sqlite", statements=MADE))
        await process.open()
        try:
            full = await process.fetch_rows(query, most=5, seconds=5, cell_characters=0)
            shortened = await process.fetch_rows("SELECT x'00ff', 'abcdef'", most=5, seconds=5, cell_characters=3)
            return full.rows, shortened.rows
        finally:
            await process.close()

    full, shortened = asyncio.run(episode())
    assert full == [[1, -(2**63), 1.5, float("inf"), None, "ä|\n", b"\x00\xff"]]
    assert shortened == [["[2 bytes]", "abc"]]
