"""Effects of attacks by untrusted code on the machine and on the next episode, per isolation level and user.

    escaped   something outside changed (canaries: files, processes, sockets), a secret leaked, or the kernel permitted
              a forbidden operation
    next      a battery of harmless calls in the next session of the same pool differs from that of a new pool
    beside    a concurrent session lost its variable or its file

Each level runs in a separate process, as superuser and as ordinary user if both are available. Without isolation only
attacks that are harmless to this machine run: an attack that never works there is not an attack. Bubblewrap with the
system's Python is used as the container runtime.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from attack_list import ATTACKS, HEADER, Attack
from canaries import Canaries
from circumstances import circumstances
from import_paths import FOLDERS
from whetstone.errors import InfrastructureError
from whetstone.sandbox import Isolation, Limits, Outcome, Sandbox, find_bwrap

RESULTS = Path(__file__).parents[1] / "results"
DOCUMENT = Path(__file__).parents[2] / "docs" / "guide" / "security.md"
LIMITS = Limits(
    wall_seconds=0.7, cpu_seconds=1.0, memory_mb=200, processes=12, folder_mb=16, file_mb=8, files=200,
    output_bytes=1 << 20,
)  # fmt: skip
_ORDINARY = 12345
_LONGEST = 900
"""Time limit of a level in seconds."""
_BEGINS, _ENDS = "<!-- attack results -->\n", "<!-- end of attack results -->\n"

BATTERY = (Path(__file__).parent / "battery.txt").read_text()
"""Harmless code that inspects everything an episode could leave to the next; returns observation → value."""


# ------------------------------------------------------------ one level


class Level:
    """One isolation level with the attacks that run in it.

    Args:
        sandbox: Sandbox with the level.
        folder: Folder of the canaries; other users may traverse it.
        python: Folder that untrusted code may read and this user may write; None if there is no such folder.
    """

    def __init__(self, sandbox: Sandbox, folder: Path, python: Path | None) -> None:
        self.sandbox, self.folder, self.python = sandbox, folder, python
        self._others = set(psutil.Process().children(recursive=True))
        self._other_folders = _session_folders()
        self.has_own_user = sandbox.isolation in (Isolation.NAMESPACES, Isolation.CONTAINER) or os.getuid() == 0

    async def run_attacks(self, attacks: list[Attack]) -> dict[str, Any]:
        """Run attacks and return their effects, those on the next session, and the resources that they leave."""
        first = await self.battery(Sandbox(isolation=self.sandbox.isolation.value, **self._made_as), closes=True)
        neighbour = self.sandbox.session()
        neighbour_result = await neighbour.python("x = 41\nopen('note', 'w').write('mine')\nimport os\nos.getcwd()")
        where = ast.literal_eval(neighbour_result.value or "''")
        if self.sandbox.isolation is Isolation.NAMESPACES:
            where = f"/proc/{neighbour.process_id}/root{where}"
        canaries = Canaries(
            self.folder,
            self.python,
            server=self.sandbox.server.pid,
            neighbour=neighbour.process_id,
            neighbours_folder=where,
        )
        endings: Counter[str] = Counter()
        effects: dict[str, dict[str, list[str]]] = {}
        await self.battery(self.sandbox)  # the pool now has a used process
        left = [await self.measure_settled()]
        num_reused, is_isolated = 0, self.sandbox.isolation is not Isolation.UNSAFE
        for number, attack in enumerate(attacks, 1):
            outcome, lived = await self.run_attack(canaries, attack)
            endings[outcome] += 1
            changed = canaries.find_changes(self._said)
            following = await self.battery(self.sandbox)
            num_reused += following.pop("process") == lived
            differs = [
                f"{name}: {str(following.get(name))[:200]} for {str(value)[:200]}"
                for name, value in first.items()
                if name != "process" and following.get(name) != value
            ]
            neighbour_state = await neighbour.python("x + 1, open('note').read()")
            if neighbour_state.value != "(42, 'mine')":
                changed.append("the session beside it")
                await neighbour.python("x = 41\nopen('note', 'w').write('mine')")
            if changed or differs:
                effects[f"{attack.family}: {attack.name}"] = {
                    "escaped": changed,
                    "next": differs if is_isolated else [],
                }
            if number * 3 // len(attacks) > (number - 1) * 3 // len(attacks):
                left.append(await self.measure_settled())
        neighbour.close()
        canaries.close()
        self.sandbox.close()
        return {
            "tried": len(attacks),
            "endings": dict(endings),
            "found": effects,
            "lived_in_again": num_reused,
            "left": left,
            "left_when_closed": await self.measure_settled(),
        }

    async def run_attack(self, canaries: Canaries, attack: Attack) -> tuple[str, int]:
        """Run an attack and return (how its call ended, id of its process)."""
        session = self.sandbox.session()
        self._said, process = "", 0
        try:
            await session.python(HEADER + canaries.reach.code, wall_seconds=20)
            process = session.process_id
            outcome: Outcome = await session.python(attack.code)
            self._said = f"{outcome.output}{outcome.value}{outcome.error}"
            ending = str(outcome.ending)
            await session.wait_for_cleanup()
        except InfrastructureError:
            ending = "infrastructure"
        session.close()
        return ending, process

    async def battery(self, sandbox: Sandbox, *, closes: bool = False) -> dict[str, Any]:
        """Return the observations of a harmless session."""
        session = sandbox.session()
        try:
            outcome = await session.python(f"OWN_USER = {self.has_own_user}\n{BATTERY}", wall_seconds=20)
            observations: dict[str, Any] = (
                {"failed": str(outcome)} if outcome.value is None else ast.literal_eval(outcome.value)
            )
            shell = await session.shell("echo honest; pwd")
            where = observations.get("where", "")
            lines = shell.output.replace(where, ".").splitlines()[:2]
            observations |= {"process": session.process_id, "shell": (lines, shell.exit_code)}
        except InfrastructureError as error:
            observations = {"process": -1, "failed": str(error)}
        observations.pop("where", None)
        session.close()
        if closes:
            sandbox.close()
        return observations

    async def measure_settled(self) -> dict[str, float]:
        """Return the remaining resources after a short wait for processes to exit."""
        await asyncio.sleep(0.3)
        return self.measure_resources()

    def measure_resources(self) -> dict[str, float]:
        """Return the number of processes, descriptors, MiB and folders, including the concurrent session."""
        process_here = psutil.Process()
        family = [child for child in process_here.children(recursive=True) if child not in self._others]
        memory = 0
        for process in family:
            try:
                memory += process.memory_info().rss
            except psutil.Error:
                continue
        return {
            "processes": len(family),
            "descriptors": process_here.num_fds(),
            "host_mib": round(process_here.memory_info().rss / 2**20, 1),
            "behind_mib": round(memory / 2**20, 1),
            "folders": len(_session_folders() - self._other_folders),
            "groups": len(list(Path("/sys/fs/cgroup").glob(f"**/whetstone-{os.getpid()}-*"))),
        }

    @property
    def _made_as(self) -> dict[str, Any]:
        return {"limits": LIMITS, "container": self.sandbox.server.container}


def _session_folders() -> set[Path]:
    """Return the folders of this process's sessions; other runs on this machine have theirs in the same place."""
    return set(Path(tempfile.gettempdir()).glob(f"whetstone-session-{os.getpid()}-*"))


def stand_in_runtime(folder: Path) -> list[str]:
    """Write a script with the interface of a container runtime: bubblewrap with the system's Python.

    Args:
        folder: Folder of the script.
    """
    runtime = folder / "runtime"
    runtime.write_text(
        "#!/bin/sh\n"
        'guest="$1"; sockets="$2"; shift 2\n'
        f"exec {shlex.quote(find_bwrap())} --unshare-pid --unshare-net --unshare-ipc --die-with-parent "
        "--tmpfs / --ro-bind /usr /usr "
        "--ro-bind /bin /bin --ro-bind /lib /lib --ro-bind-try /lib64 /lib64 --ro-bind /etc /etc --dev /dev "
        '--proc /proc --perms 1777 --tmpfs /tmp --perms 0755 --dir /run --ro-bind "$guest" /sandbox '
        '--bind "$sockets" /run/whetstone --setenv TMPDIR /tmp -- /usr/bin/python3 "$@"\n'
    )
    runtime.chmod(0o755)
    return [str(runtime), "{guest}", "{sockets}"]


def run_level(name: str, only: list[str]) -> dict[str, Any]:
    """Run the attacks of one level in this process."""
    home = Path(tempfile.mkdtemp(prefix="attacks-"))
    home.chmod(0o755)
    container = stand_in_runtime(home) if name == "container" else ()
    sandbox = Sandbox(isolation=name, limits=LIMITS, container=container)
    chosen = [a for a in ATTACKS if not only or a.name in only or a.family in only]
    if sandbox.isolation is Isolation.UNSAFE:
        chosen = [attack for attack in chosen if attack.control]
    python = Path(sys.prefix) / "share"
    try:
        own = python if os.access(python, os.W_OK) and os.getuid() else None
        return asyncio.run(Level(sandbox, home, own).run_attacks(chosen))
    finally:
        shutil.rmtree(home, ignore_errors=True)


# ------------------------------------------------------------ all of them


def run_level_in_process(level: str, user: str, only: list[str]) -> dict[str, Any]:
    """Run a level in a new process as `user`, with a Python that this user owns; or return why it did not run."""
    folder = Path(tempfile.mkdtemp(prefix="whetstone-attacks-"))
    folder.chmod(0o755)
    try:
        become = []
        if user == "ordinary" and os.getuid() == 0:
            become = ["setpriv", f"--reuid={_ORDINARY}", f"--regid={_ORDINARY}", "--clear-groups"]
            os.chown(folder, _ORDINARY, _ORDINARY)
        # others may traverse its folder, and this user owns it: readable files in it then belong to the user
        python = [*become, _open_python(), "-m", "venv", "--without-pip", str(folder / "python")]
        subprocess.run(python, check=True, capture_output=True)
        (folder / "python" / "share").mkdir(exist_ok=True)
        if become:
            os.chown(folder / "python" / "share", _ORDINARY, _ORDINARY)
        python_path = [
            *map(str, FOLDERS),
            str(Path(__file__).parents[2] / "src"),
            sysconfig.get_path("purelib"),
        ]
        done = subprocess.run(
            [*become, str(folder / "python" / "bin" / "python"), __file__, "--level", level, *only],
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(folder),
                "TMPDIR": str(folder),
                "PYTHONPATH": os.pathsep.join(python_path),
                "API_KEY": "sk-secret",
            },
            capture_output=True,
            text=True,
            timeout=_LONGEST,
            check=False,
            cwd=folder,
        )
        if done.returncode != 0:
            return {"left_out": (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]}
        result: dict[str, Any] = json.loads(done.stdout)
        return result
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _open_python() -> str:
    """Return a Python that all users may run: this one, or the system's if this one is in a private folder."""
    closed = any(not folder.stat().st_mode & stat.S_IXOTH for folder in Path(sys.executable).resolve().parents)
    return (shutil.which("python3", path="/usr/bin") or sys.executable) if closed else sys.executable


def table(rows: dict[str, dict[str, Any]]) -> str:
    """Return a Markdown table of the effects of attacks per level and user."""
    lines = [
        "| level | user | attacks | changed something outside | changed the next episode | processes, descriptors, "
        "MiB of the host, MiB of its child processes: at first → at the end |",
        "| --- | --- | --: | --- | --- | --- |",
    ]
    for key, row in rows.items():
        level, _, user = key.partition(", ")
        if "left_out" in row:
            lines.append(f"| `{level}` | {user} | – | not tried: {_cell(row['left_out'])} | | |")
            continue
        first, last = row["left"][0], row["left"][-1]
        kinds = ("processes", "descriptors", "host_mib", "behind_mib")
        left = ", ".join(f"{first[kind]:g} → {last[kind]:g}" for kind in kinds)
        out, following = (_named(row["found"], kind) for kind in ("escaped", "next"))
        if level == "unsafe":
            out, following = f"{sum(bool(each['escaped']) for each in row['found'].values())}, as they should", "–"
        lines.append(f"| `{level}` | {user} | {row['tried']} | {out} | {following} | {left} |")
    return "\n".join(lines) + "\n"


def _named(effects: dict[str, dict[str, list[str]]], kind: str) -> str:
    names = [name for name, each in effects.items() if each[kind]]
    names_shown = ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
    return f"{len(names)}: {_cell(names_shown)}" if names else "0"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")[:400]


def page(rows: dict[str, dict[str, Any]]) -> str:
    """Return the page: introduction, table, and attacks that never worked."""
    families = Counter(attack.family for attack in ATTACKS)
    unseen = [a for a in ATTACKS if a.control and not _worked(rows, a)]
    counts = ", ".join(f"{name} {count}" for name, count in families.items())
    never = "".join(f"- {attack.family}: {attack.name}\n" for attack in unseen)
    return (
        f"# Attacks\n\n{len(ATTACKS)} attacks: {counts}. `python -m benchmarks attacks` runs them again.\n\n"
        f"{table(rows)}\n{sum(a.control for a in ATTACKS)} attacks are harmless to a machine without isolation; of "
        f"them, these did not work there either:\n\n{never or '- none'}\n"
    )


def _worked(rows: dict[str, dict[str, Any]], attack: Attack) -> bool:
    """Return whether an attack worked without isolation."""
    effects = [row.get("found", {}) for key, row in rows.items() if key.startswith(Isolation.UNSAFE)]
    return any(each.get(f"{attack.family}: {attack.name}", {}).get("escaped") for each in effects)


def main() -> None:
    """Run all attacks and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="*", help="families or names of attacks; a selection is not stored")
    parser.add_argument("--levels", nargs="+", default=[str(level) for level in Isolation])
    parser.add_argument("--users", nargs="+", default=["superuser", "ordinary"] if os.getuid() == 0 else ["ordinary"])
    parser.add_argument("--level", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.level:
        print(json.dumps(run_level(arguments.level, arguments.only)))
        return
    began = time.perf_counter()
    stored = arguments.results / "raw" / "attacks.json"
    rows: dict[str, dict[str, Any]] = {}
    if stored.is_file() and not arguments.only:
        rows = json.loads(stored.read_text())["measured"]
    order = [f"{level}, {user}" for level in Isolation for user in ("superuser", "ordinary")]
    for level in arguments.levels:
        for user in arguments.users:
            result = rows[f"{level}, {user}"] = run_level_in_process(level, user, arguments.only)
            print(f"{level}, {user}: {json.dumps(result)[:2000]}", file=sys.stderr, flush=True)
            rows = {key: rows[key] for key in order if key in rows}
            if not arguments.only:
                store_results(rows, arguments.results, began)
    print(table(rows) if not arguments.json else json.dumps(rows))


def store_results(rows: dict[str, dict[str, Any]], folder: Path, began: float) -> None:
    """Store the results so far, and update the table in the documentation."""
    report = {"name": "attacks", "measured": rows, "ratios": {}, "goal": "nothing escapes, and the next finds nothing"}
    (folder / "raw").mkdir(parents=True, exist_ok=True)
    (folder / "raw" / "attacks.json").write_text(json.dumps({**report, **circumstances(began)}, indent=1) + "\n")
    (folder / "attacks.md").write_text(page(rows))
    write_into(DOCUMENT, table(rows))


def write_into(document: Path, rows: str) -> None:
    """Replace the table in the document."""
    before, _, rest = document.read_text().partition(_BEGINS)
    document.write_text(before + _BEGINS + "\n" + rows + "\n" + _ENDS + rest.partition(_ENDS)[2])


if __name__ == "__main__":
    main()
