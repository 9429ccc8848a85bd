"""Episode in a container of an exported Harbor folder: a server for actions, and the grading of the recorded ones.

`serve` runs as root in the folder with `environment.json`, so that the agent, another user, cannot read the data of the
task. It records each action in `actions.jsonl`. `grade` runs in the folder of the tests and repeats those actions, so
that a changed container cannot claim a reward.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from whetstone.environments.exchange.exported_episode import (
    EXPORT_FILE,
    ExportedAction,
    ExportedEpisode,
    ExportedResult,
    read_export,
    replay_export,
)

SOCKET = "/tmp/.episode.sock"
ACTIONS = Path("/opt/episode/actions.jsonl")
_MAX_BYTES = 1 << 20


def parse_action(line: str) -> ExportedAction:
    """Parse an action of a line of JSON: `{"text": …}`, or `{"tool": …, "arguments": "{…}"}`.

    Raises:
        ValueError: It is something else.
    """
    row = json.loads(line)
    if not isinstance(row, dict) or not all(isinstance(value, str) for value in row.values()):
        raise ValueError("an action is an object with text, or with tool and arguments")
    if set(row) not in ({"text"}, {"tool", "arguments"}):
        raise ValueError("an action has either text, or tool and arguments")
    return ExportedAction(**row)


async def start_episode_server(folder: Path, socket: str, actions: Path) -> asyncio.Server:
    """Start the episode of a folder, and a server that executes the actions of clients one after the other.

    Args:
        folder: Folder with `environment.json`, whose first task is played.
        socket: Path of the Unix socket.
        actions: File to which actions are appended before they are executed.
    """
    episode = ExportedEpisode(read_export(folder / EXPORT_FILE), 0)
    await episode.start()
    lock = asyncio.Lock()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = (await reader.readline()).decode()
            async with lock:
                try:
                    action = parse_action(line)
                except (ValueError, TypeError) as error:
                    result = ExportedResult(f"error: {error}", failed=True, done=episode.done)
                else:
                    if not episode.done:
                        with actions.open("a", encoding="utf-8") as file:
                            file.write(line)
                    result = await episode.execute_action(action)
            answered = {"text": result.text, "failed": result.failed, "done": result.done}
            writer.write(json.dumps(answered).encode() + b"\n")
            await writer.drain()
        finally:
            writer.close()

    server = await asyncio.start_unix_server(answer, socket, limit=_MAX_BYTES)
    os.chmod(socket, 0o666)
    return server


def grade_actions(folder: Path, actions: Path) -> float:
    """Return the reward of recorded actions; without any, that of an episode without actions.

    Args:
        folder: Folder with `environment.json`.
        actions: File with one action per line; it may be missing.
    """
    lines = actions.read_text(encoding="utf-8").splitlines() if actions.is_file() else []
    return asyncio.run(replay_export(read_export(folder / EXPORT_FILE), 0, map(parse_action, lines)))


async def _serve_forever() -> None:
    async with await start_episode_server(Path(), SOCKET, ACTIONS) as server:
        await server.serve_forever()


def run_container_episode() -> None:
    """Serve the episode of the current folder (`serve`), or print its reward (`grade`)."""
    if sys.argv[1:] == ["serve"]:
        asyncio.run(_serve_forever())
    elif sys.argv[1:] == ["grade"]:
        print(grade_actions(Path(), ACTIONS))
    else:
        sys.exit("usage: python -m whetstone.environments.exchange.container_episode serve|grade")


if __name__ == "__main__":
    run_container_episode()
