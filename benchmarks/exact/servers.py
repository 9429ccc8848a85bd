"""Episodes on environment servers of other projects: eight per installed server, with checked rewards and time.

    python -m benchmarks servers [--only mcp openenv] [--servers servers] [--write benchmarks/results]

A scripted policy plays half of the episodes right and half of them wrong. Servers of other projects are expected in
`servers/`, each in its own virtual environment; a missing one is reported with its install command.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from circumstances import circumstances
from openenv_servers import ENVIRONMENTS, SOURCE, PublishedEnvironment
from whetstone.chat import Message, ToolCall, assistant
from whetstone.environments import TASKS_OF_WORLDS, Environment, ToolEnvironment
from whetstone.environments.remote.agentgym import AgentGym
from whetstone.environments.remote.environment_client import Remote, RemoteTasks
from whetstone.environments.remote.nemo_gym import NemoGym, NemoGymTasks
from whetstone.environments.remote.openenv import OpenEnv
from whetstone.environments.remote.verifiers import Verifiers, VerifiersTasks
from whetstone.environments.text_actions import command_tool
from whetstone.evaluation.environment_checks import play_with_policy
from whetstone.tools import Mcp
from whetstone.tools.mcp_connections import get_connections
from whetstone.trajectory import Task, Trajectory

EPISODES = 8
_WORLDS = Path(__file__).resolve().parents[2] / "tests" / "data" / "servers"
_COLUMNS = (
    "server", "version", "episodes", "as they should", "turns", "mistakes told", "s to start", "s in all",
    "s an episode",
)  # fmt: skip
_PATIENCE = 120.0
"""Time limit in seconds for the start of a server."""
Script = Callable[[Task, Sequence[Message], bool], Message]
"""(task, conversation, whether to play it right) → next action."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A server and the episodes on it."""

    name: str
    brings: str
    """Install command."""
    needs: tuple[str, ...]
    """Resulting files in the folder of servers."""
    tasks: Callable[[str, Path], Sequence[Task]]
    """(address, folder of servers) → tasks."""
    make: Callable[[str, Path], Environment]
    script: Script
    command: Callable[[Path, int], list[str]] | None = None
    """(folder of servers, port) → start command; None if the environment starts the server."""
    inside: str = ""
    """Working directory of the server, relative to the folder of servers."""
    version: Callable[[Path], str] = field(default=lambda servers: "")
    turns: int = 60
    """Maximum number of turns of an episode that is played right."""
    is_paid: Callable[[Trajectory], bool] | None = None
    """Whether an episode was played right; None: by its verdict."""


def _call(name: str, **arguments: Any) -> Message:
    return assistant("", ToolCall(name, json.dumps(arguments)))


def _turn(conversation: Sequence[Message]) -> int:
    return sum(message.role == "assistant" for message in conversation)


# ------------------------------------------------------------ scripts


def _sums(prefix: str, last: str) -> Script:
    """Return a script that computes a sum by the tool and answers; a wrong answer is off by one."""

    def script(task: Task, conversation: Sequence[Message], right: bool) -> Message:
        a, b = map(int, re.findall(r"\d+", task.prompt)[:2])
        if _turn(conversation) == 0:
            return _call(f"{prefix}add", a=a, b=b)
        answer = int(conversation[-1].text) + (not right)
        return _call(last, answer=answer) if last else assistant(str(answer))

    return script


def _products(task: Task, conversation: Sequence[Message], right: bool) -> Message:
    if _turn(conversation) == 0:
        return _call("calculator", expression=task.prompt.rstrip("?") if right else "1/0")
    return assistant(conversation[-1].text)


def _lines(task: Task, conversation: Sequence[Message], right: bool) -> Message:
    wanted = task.private["reset"]["lines"]
    return assistant("\n".join(f"x{line} = {line}" for line in range(wanted if right else wanted - 1)))


def _counted(task: Task, conversation: Sequence[Message], right: bool) -> Message:
    turn, row = _turn(conversation), task.private["row"]
    if turn == 0:
        return _call("increment_counter", count="many")  # an invalid call, which the server reports
    if turn == 1:
        return _call("increment_counter", count=row["expected_count"] - row["initial_count"] + (not right))
    return assistant("done")


def _crafted(task: Task, conversation: Sequence[Message], right: bool) -> Message:
    if not right:
        return assistant("inventory")
    recipes, _, goal = conversation[0].text.partition("Goal: craft ")
    goal = goal.rstrip(". \n")
    recipe = next(line for line in recipes.splitlines() if re.match(rf"craft (\d+ )?{re.escape(goal)} using ", line))
    wanted = recipe.partition(" using ")[2].split(", ")
    turn = _turn(conversation)
    return assistant(f"get {wanted[turn]}" if turn < len(wanted) else recipe)


def _expert(task: Task, conversation: Sequence[Message], right: bool) -> Message:
    if not right:
        return _call("act", command="look")
    action: Message = TASKS_OF_WORLDS["household"]().demonstrate(task, conversation, (command_tool(()),))
    return action


# ------------------------------------------------------------ the servers


def _python(folder: str) -> Callable[[Path], Path]:
    return lambda servers: servers / folder / "bin" / "python"


def _served(folder: str, application: str) -> Callable[[Path, int], list[str]]:
    return lambda servers, port: [
        str(_python(folder)(servers)), "-m", "uvicorn", application, "--port", str(port), "--log-level", "error",
    ]  # fmt: skip


def _installed(folder: str, package: str) -> Callable[[Path], str]:
    def read_version(servers: Path) -> str:
        code = f"from importlib.metadata import version; print('{package}', version('{package}'))"
        command = [str(_python(folder)(servers)), "-c", code]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or package

    return read_version


def _checked_out(folder: str) -> Callable[[Path], str]:
    def read_commit(servers: Path) -> str:
        command = ["git", "-C", str(servers / folder), "rev-parse", "--short=9", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "a copy"

    return read_commit


def _rows(address: str, servers: Path) -> Sequence[Task]:
    path = "resources_servers/example_session_state_mgmt/data/example.jsonl"
    rows = NemoGymTasks(path=str(servers / "nemo-gym-source" / path), held_out_fraction=1.0).held_out(EPISODES)
    return [rows[number % len(rows)] for number in range(EPISODES)]


def _environment(folder: str, package: str) -> str:
    return f"python -m venv servers/{folder} && servers/{folder}/bin/pip install {package}"


def _additions(address: str, servers: Path) -> Sequence[Task]:
    return [Task(f"{a}", f"{a}+{a + 1}?", {"reset": {"a": a, "b": a + 1}}) for a in range(EPISODES)]


def _over_mcp(connection: Any) -> Callable[[str, Path], Environment]:
    program = [sys.executable, "-c", "from whetstone.cli.mcp import mcp_command; mcp_command()", "calculator"]
    surroundings = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    return lambda address, servers: ToolEnvironment(
        tools=[functools.partial(Mcp, command=program, connection=connection, environment=surroundings)]
    )


def _published(one: PublishedEnvironment) -> Contender:
    """Return the contender of an environment of the repository of OpenEnv."""
    envs = f"{SOURCE}/envs"
    return Contender(
        f"openenv: {one.name} (OpenEnv)", one.install_command,
        (f"{one.folder}/bin/python", f"{envs}/{one.inside or one.name + '_env'}"),
        lambda address, servers: one.build_tasks(EPISODES), lambda address, servers: one.make(address), one.act,
        lambda servers, port: one.start_command(str(_python(one.folder)(servers)), port),
        f"{envs}/{one.inside}" if one.inside else envs, _checked_out(SOURCE), one.turns, one.is_paid,
    )  # fmt: skip


_OPENENV, _IN_OPENENV = _environment("openenv", "openenv-core"), ("openenv/bin/python",)
CONTENDERS = (
    Contender(
        "whetstone: household", "", (),
        lambda address, servers: RemoteTasks(url=address).held_out(EPISODES),
        lambda address, servers: Remote(url=address), _expert,
        lambda servers, port: [
            sys.executable, "-m", "whetstone.cli.main", "environments", "serve", "household", "--port", str(port),
        ],
        version=lambda servers: f"whetstone-rl {version('whetstone-rl')}",
    ),
    Contender(
        "mcp: calculator, shared", "pip install -e '.[mcp]'", (),
        lambda address, servers: [Task(str(a), f"{a}*{a + 1}?") for a in range(EPISODES)],
        _over_mcp("auto"), _products, version=lambda servers: f"mcp {version('mcp')}",
    ),
    Contender(
        "mcp: calculator, one an episode", "pip install -e '.[mcp]'", (),
        lambda address, servers: [Task(str(a), f"{a}*{a + 1}?") for a in range(EPISODES)],
        _over_mcp("episode"), _products, version=lambda servers: f"mcp {version('mcp')}",
    ),
    Contender(
        "openenv: tools", _OPENENV, _IN_OPENENV, _additions,
        lambda address, servers: OpenEnv(url=address), _sums("", "submit"),
        _served("openenv", "openenv_world:tools"), version=_installed("openenv", "openenv-core"),
    ),
    Contender(
        "openenv: code", _OPENENV, _IN_OPENENV,
        lambda address, servers: [Task(f"{n}", "", {"reset": {"lines": n + 2}}) for n in range(EPISODES)],
        lambda address, servers: OpenEnv(url=address), _lines,
        _served("openenv", "openenv_world:code"), version=_installed("openenv", "openenv-core"),
    ),
    *map(_published, ENVIRONMENTS),
    Contender(
        "nemo gym: counter",
        "git clone https://github.com/NVIDIA-NeMo/Gym servers/nemo-gym-source && "
        "python3.13 -m venv servers/nemo-gym && servers/nemo-gym/bin/pip install ./servers/nemo-gym-source",
        ("nemo-gym/bin/python", "nemo-gym-source/nemo_gym"), _rows,
        lambda address, servers: NemoGym(url=address), _counted,
        lambda servers, port: [str(_python("nemo-gym")(servers)), str(_WORLDS / "nemo_counter.py"), str(port)],
        "nemo-gym-source", _checked_out("nemo-gym-source"),
    ),
    Contender(
        "agentgym: textcraft",
        "git clone https://github.com/WooooDyy/AgentGym servers/agentgym-source && "
        "python -m venv servers/agentgym && "
        "servers/agentgym/bin/pip install ./servers/agentgym-source/agentenv-textcraft",
        ("agentgym/bin/python", "agentgym-source/agentenv-textcraft"),
        lambda address, servers: [Task(str(n), "", {"data_idx": n}) for n in range(EPISODES)],
        lambda address, servers: AgentGym(url=address), _crafted,
        _served("agentgym", "agentenv_textcraft.server:app"), "agentgym-source/agentenv-textcraft",
        _checked_out("agentgym-source"),
    ),
    Contender(
        "verifiers: sums", _environment("verifiers", "verifiers"), ("verifiers/bin/python",),
        lambda address, servers: VerifiersTasks(
            taskset="whetstone_sums",
            python=str(_python("verifiers")(servers)),
            held_out_fraction=1.0,
            seconds=_PATIENCE,
        ).held_out(EPISODES),
        lambda address, servers: Verifiers(
            taskset="whetstone_sums", python=str(_python("verifiers")(servers)), seconds=_PATIENCE
        ),
        _sums("adder_", ""), version=_installed("verifiers", "verifiers"),
    ),
)  # fmt: skip


@contextlib.contextmanager
def _running(contender: Contender, servers: Path) -> Iterator[str]:
    """Start a server, yield its address, and stop it with all its processes after the block."""
    if contender.command is None:
        yield ""
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    inside = servers / contender.inside if contender.inside else _WORLDS
    surroundings = {**os.environ, "PYTHONPATH": os.pathsep.join([str(inside), os.environ.get("PYTHONPATH", "")])}
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            contender.command(servers, port), cwd=inside, env=surroundings, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
        try:
            until = time.monotonic() + _PATIENCE
            while True:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                    break
                if process.poll() is not None or time.monotonic() > until:
                    output.seek(0)
                    last = output.read().decode(errors="replace").strip().rpartition("\n")[2]
                    raise RuntimeError(f"{contender.name} does not start: {last[:300]}")
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(10)


async def _play_episodes(
    contender: Contender, address: str, servers: Path, tasks: Sequence[Task]
) -> tuple[list[Any], int]:
    """Play episodes and return ((whether it should be right, episode) per episode, number of tool servers)."""

    async def one(task: Task, right: bool) -> Any:
        return right, await play_with_policy(
            lambda: contender.make(address, servers), task,
            lambda conversation, tools, offered: contender.script(task, conversation, right), seed=0,
            max_turns=contender.turns if right else min(4, contender.turns),
        )  # fmt: skip

    episodes: list[Awaitable[Any]] = [one(task, number % 2 == 0) for number, task in enumerate(tasks)]
    return list(await asyncio.gather(*episodes)), get_connections().started


def measure_server(contender: Contender, servers: Path) -> dict[str, Any]:
    """Play all episodes of a server and return the result."""
    began = time.perf_counter()
    with _running(contender, servers) as address:
        tasks = contender.tasks(address, servers)
        started, playing = time.perf_counter() - began, time.perf_counter()
        episodes, connected = asyncio.run(_play_episodes(contender, address, servers, tasks))
        seconds = time.perf_counter() - playing
    paid = contender.is_paid or _paid
    wrong = [
        f"task {task.id}: played {'right' if right else 'wrong'}, and {'' if paid(one.trajectory) else 'not '}paid"
        for task, (right, one) in zip(tasks, episodes, strict=True)
        if paid(one.trajectory) != right
    ]
    calls = [call for _, one in episodes for turn in one.trajectory.turns for call in turn.calls]
    return {
        "server": contender.name,
        "version": contender.version(servers),
        "episodes": len(episodes),
        "as_they_should": len(episodes) - len(wrong),
        "mistakes_told": sum(call.outcome != "ok" for call in calls),
        "turns": sum(len(one.trajectory.turns) for _, one in episodes),
        "servers_started": connected,
        "seconds_to_start": round(started, 1),
        "seconds": round(seconds, 2),
        "median_episode_seconds": round(statistics.median(one.seconds for _, one in episodes), 3),
        "differences": wrong,
    }


def _paid(played: Trajectory) -> bool:
    """Return whether an episode succeeded; without a verdict, whether its answer is from a successful call."""
    if "success" in played.final:
        return bool(played.final["success"])
    return all(call.outcome == "ok" for turn in played.turns for call in turn.calls)


def table(results: Sequence[Mapping[str, Any]], missing: Mapping[str, str]) -> str:
    """Return the page of the results."""
    lines = [
        "# Environment servers of other projects\n",
        "Eight concurrent episodes, half of them played right and half wrong by a script; `as they should`: number",
        "with the right reward. `mistakes told`: calls with an error of the server or the model, after which the",
        "episode continued. Seconds include other load of the machine; `to start` is from the command to the first",
        "task.\n",
        f"| {' | '.join(_COLUMNS)} |",
        f"|{' --- |' * len(_COLUMNS)}",
    ]
    for one in results:
        started = f" ({one['servers_started']} started)" if one["servers_started"] else ""
        lines.append(
            f"| {one['server']}{started} | {one['version']} | {one['episodes']} | {one['as_they_should']} "
            f"| {one['turns']} | {one['mistakes_told']} | {one['seconds_to_start']} | {one['seconds']} "
            f"| {one['median_episode_seconds']} |"
        )
    lines += (
        ["\n## Not installed\n", *[f"- {name}: `{command}`" for name, command in missing.items()]] if missing else []
    )
    wrong = [f"- {one['server']}: {each}" for one in results for each in one["differences"]]
    lines += ["\n## Not as they should\n", *(wrong or ["None."])]
    return "\n".join(lines) + "\n"


def _with_earlier(result: dict[str, Any], file: Path) -> None:
    """Add earlier results of servers that were not measured now, in the order of the table."""
    earlier = json.loads(file.read_text()) if file.exists() else {"measured": [], "missing": {}}
    now = {one["server"] for one in result["measured"]} | result["missing"].keys()
    order = [contender.name for contender in CONTENDERS]
    measure_server = result["measured"] + [one for one in earlier["measured"] if one["server"] not in now]
    result["measured"] = sorted(measure_server, key=lambda one: order.index(one["server"]))
    known = now | {one["server"] for one in measure_server}
    result["missing"] |= {name: reason for name, reason in earlier["missing"].items() if name not in known}


def main() -> None:
    """Play all servers and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=[""], help="prefixes of names, such as mcp or openenv")
    parser.add_argument("--servers", type=Path, default=Path("servers"), help="folder of installed servers")
    parser.add_argument("--write", type=Path, help="folder for servers.md and raw/servers.json")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    servers, began = arguments.servers.absolute(), time.perf_counter()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(_WORLDS), os.environ.get("PYTHONPATH", "")])
    results, missing = [], {}
    for contender in CONTENDERS:
        if not contender.name.startswith(tuple(arguments.only)):
            continue
        if not all((servers / needed).exists() for needed in contender.needs):
            missing[contender.name] = contender.brings
            continue
        try:
            results.append(measure_server(contender, servers))
        except RuntimeError as error:
            missing[contender.name] = f"{error}; {contender.brings}"
        print(results[-1] if results else missing, file=sys.stderr)
    result: dict[str, Any] = {"name": "servers", "measured": results, "missing": missing, "goal": "all as they should"}
    result |= circumstances(began)
    if arguments.write:
        _with_earlier(result, arguments.write / "raw" / "servers.json")
    page = table(result["measured"], result["missing"])
    if arguments.write:
        (arguments.write / "servers.md").write_text(page, encoding="utf-8")
        (arguments.write / "raw").mkdir(parents=True, exist_ok=True)
        (arguments.write / "raw" / "servers.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result) if arguments.json else page)


if __name__ == "__main__":
    main()
