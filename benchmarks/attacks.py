"""What does foreign code do to the machine, and to the next episode? Every attack at every level, for every user.

    escaped   something outside is not as it was (canaries: files, processes, sockets), a secret was told, or the kernel
              did what it was not to do
    next      a battery of honest calls in the next session of the same pool finds something else than in a new pool
    beside    a session that goes on meanwhile has lost its variable or its file

Each level is tried in a process of its own, as a superuser and as an ordinary user where both can be had. Without
isolation only what is harmless to this machine is tried: what never works there was not an attack. A container runtime
is played by bubblewrap, with the system's Python in it.
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
from whetstone.errors import InfrastructureError
from whetstone.sandbox import Isolation, Limits, Outcome, Sandbox, find_bwrap

RESULTS = Path(__file__).parent / "results"
DOCUMENT = Path(__file__).parents[1] / "docs" / "security.md"
LIMITS = Limits(
    wall_seconds=0.7, cpu_seconds=1.0, memory_mb=200, processes=12, folder_mb=16, file_mb=8, files=200,
    output_bytes=1 << 20,
)  # fmt: skip
_ORDINARY = 12345
_LONGEST = 900
"""Seconds a level may take."""
_BEGINS, _ENDS = "<!-- what was tried -->\n", "<!-- end of what was tried -->\n"

BATTERY = (Path(__file__).parent / "battery.txt").read_text()
"""Honest code that looks at all an episode could have left to the next; its value is by what was looked at."""


# ------------------------------------------------------------ one level


class Level:
    """One kind of isolation, and all that is tried there.

    Args:
        sandbox: Where.
        folder: For canaries; others may pass it.
        python: A folder that foreign code may read and this user may write; None where there is none.
    """

    def __init__(self, sandbox: Sandbox, folder: Path, python: Path | None) -> None:
        self.sandbox, self.folder, self.python = sandbox, folder, python
        self._others = set(psutil.Process().children(recursive=True))
        self._other_folders = _session_folders()
        self.alone = sandbox.isolation in (Isolation.NAMESPACES, Isolation.CONTAINER) or os.getuid() == 0

    async def tried(self, attacks: list[Attack]) -> dict[str, Any]:
        """What became of each, what the next session found, and what all of them left."""
        first = await self.battery(Sandbox(isolation=self.sandbox.isolation.value, **self._made_as), closes=True)
        neighbour = self.sandbox.session()
        kept = await neighbour.python("x = 41\nopen('note', 'w').write('mine')\nimport os\nos.getcwd()")
        where = ast.literal_eval(kept.value or "''")
        if self.sandbox.isolation is Isolation.NAMESPACES:
            where = f"/proc/{neighbour.process}/root{where}"
        assert self.sandbox._server is not None
        canaries = Canaries(
            self.folder,
            self.python,
            server=self.sandbox._server.pid,
            neighbour=neighbour.process,
            neighbours_folder=where,
        )
        endings: Counter[str] = Counter()
        found: dict[str, dict[str, list[str]]] = {}
        await self.battery(self.sandbox)  # now there is a world that was left
        left = [await self.settled()]
        again, kept_in = 0, self.sandbox.isolation is not Isolation.UNSAFE
        for number, attack in enumerate(attacks, 1):
            outcome, lived = await self.attacked(canaries, attack)
            endings[outcome] += 1
            changed = canaries.changed(self._said)
            following = await self.battery(self.sandbox)
            again += following.pop("process") == lived
            differs = [
                f"{name}: {str(following.get(name))[:200]} for {str(value)[:200]}"
                for name, value in first.items()
                if name != "process" and following.get(name) != value
            ]
            beside = await neighbour.python("x + 1, open('note').read()")
            if beside.value != "(42, 'mine')":
                changed.append("the session beside it")
                await neighbour.python("x = 41\nopen('note', 'w').write('mine')")
            if changed or differs:
                found[f"{attack.family}: {attack.name}"] = {"escaped": changed, "next": differs if kept_in else []}
            if number * 3 // len(attacks) > (number - 1) * 3 // len(attacks):
                left.append(await self.settled())
        neighbour.close()
        canaries.close()
        self.sandbox.close()
        return {
            "tried": len(attacks),
            "endings": dict(endings),
            "found": found,
            "lived_in_again": again,
            "left": left,
            "left_when_closed": await self.settled(),
        }

    async def attacked(self, canaries: Canaries, attack: Attack) -> tuple[str, int]:
        """How its call ended, and in which world."""
        session = self.sandbox.session()
        self._said, process = "", 0
        try:
            await session.python(HEADER + canaries.reach.code, wall_seconds=20)
            process = session.process
            outcome: Outcome = await session.python(attack.code)
            self._said = f"{outcome.output}{outcome.value}{outcome.error}"
            ending = str(outcome.ending)
            await session.settled()
        except InfrastructureError:
            ending = "infrastructure"
        session.close()
        return ending, process

    async def battery(self, sandbox: Sandbox, *, closes: bool = False) -> dict[str, Any]:
        """What a session finds that does no harm."""
        session = sandbox.session()
        try:
            outcome = await session.python(f"ALONE = {self.alone}\n{BATTERY}", wall_seconds=20)
            found: dict[str, Any] = (
                {"failed": str(outcome)} if outcome.value is None else ast.literal_eval(outcome.value)
            )
            shell = await session.shell("echo honest; pwd")
            where = found.get("where", "")
            lines = shell.output.replace(where, ".").splitlines()[:2]
            found |= {"process": session.process, "shell": (lines, shell.exit_code)}
        except InfrastructureError as error:
            found = {"process": -1, "failed": str(error)}
        found.pop("where", None)
        session.close()
        if closes:
            sandbox.close()
        return found

    async def settled(self) -> dict[str, float]:
        """What is left over when the last ones have had a moment to end."""
        await asyncio.sleep(0.3)
        return self.left_over()

    def left_over(self) -> dict[str, float]:
        """Processes, descriptors, MiB and folders, with the session that goes on."""
        here = psutil.Process()
        family = [child for child in here.children(recursive=True) if child not in self._others]
        memory = 0
        for process in family:
            try:
                memory += process.memory_info().rss
            except psutil.Error:
                continue
        return {
            "processes": len(family),
            "descriptors": here.num_fds(),
            "host_mib": round(here.memory_info().rss / 2**20, 1),
            "behind_mib": round(memory / 2**20, 1),
            "folders": len(_session_folders() - self._other_folders),
            "groups": len(list(Path("/sys/fs/cgroup").glob(f"**/whetstone-{os.getpid()}-*"))),
        }

    @property
    def _made_as(self) -> dict[str, Any]:
        return {"limits": LIMITS, "container": self.sandbox.container}


def _session_folders() -> set[Path]:
    """Return the folders of this process's sessions; other runs on this machine have theirs in the same place."""
    return set(Path(tempfile.gettempdir()).glob(f"whetstone-session-{os.getpid()}-*"))


def stand_in_runtime(folder: Path) -> list[str]:
    """What plays a container runtime: bubblewrap, with the system's Python and none of ours in it.

    Args:
        folder: Where it is written.
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


def one_level(name: str, only: list[str]) -> dict[str, Any]:
    """In this process, as this user."""
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
        return asyncio.run(Level(sandbox, home, own).tried(chosen))
    finally:
        shutil.rmtree(home, ignore_errors=True)


# ------------------------------------------------------------ all of them


def apart(level: str, user: str, only: list[str]) -> dict[str, Any]:
    """In a process of its own, as this user, with a Python that is this user's; or why not."""
    folder = Path(tempfile.mkdtemp(prefix="whetstone-attacks-"))
    folder.chmod(0o755)
    try:
        become = []
        if user == "ordinary" and os.getuid() == 0:
            become = ["setpriv", f"--reuid={_ORDINARY}", f"--regid={_ORDINARY}", "--clear-groups"]
            os.chown(folder, _ORDINARY, _ORDINARY)
        # one whose folder others may pass, and which is this user's: what one may read of it is then one's own file
        python = [*become, _open_python(), "-m", "venv", "--without-pip", str(folder / "python")]
        subprocess.run(python, check=True, capture_output=True)
        (folder / "python" / "share").mkdir(exist_ok=True)
        if become:
            os.chown(folder / "python" / "share", _ORDINARY, _ORDINARY)
        here = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "src"), sysconfig.get_path("purelib")]
        done = subprocess.run(
            [*become, str(folder / "python" / "bin" / "python"), __file__, "--level", level, *only],
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(folder),
                "TMPDIR": str(folder),
                "PYTHONPATH": os.pathsep.join(here),
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
        found: dict[str, Any] = json.loads(done.stdout)
        return found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _open_python() -> str:
    """A Python that everybody may run: this one, or the system's where this one lies in a closed folder."""
    closed = any(not folder.stat().st_mode & stat.S_IXOTH for folder in Path(sys.executable).resolve().parents)
    return (shutil.which("python3", path="/usr/bin") or sys.executable) if closed else sys.executable


def table(rows: dict[str, dict[str, Any]]) -> str:
    """As Markdown: by level and user, what was tried and what came of it."""
    lines = [
        "| level | user | attacks | changed something outside | changed the next episode | processes, descriptors, "
        "MiB of the host, MiB behind it: at first → at the end |",
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


def _named(found: dict[str, dict[str, list[str]]], kind: str) -> str:
    names = [name for name, each in found.items() if each[kind]]
    shown = ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
    return f"{len(names)}: {_cell(shown)}" if names else "0"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")[:400]


def page(rows: dict[str, dict[str, Any]]) -> str:
    """The table with what stands above it."""
    families = Counter(attack.family for attack in ATTACKS)
    unseen = [a for a in ATTACKS if a.control and not _worked(rows, a)]
    said = ", ".join(f"{name} {count}" for name, count in families.items())
    never = "".join(f"- {attack.family}: {attack.name}\n" for attack in unseen)
    return (
        f"# Attacks\n\n{len(ATTACKS)} ways to do harm: {said}. `python benchmarks/attacks.py` tries them again.\n\n"
        f"{table(rows)}\nOf {sum(a.control for a in ATTACKS)} that are harmless to a machine without isolation these "
        f"did not work there, either:\n\n{never or '- none'}\n"
    )


def _worked(rows: dict[str, dict[str, Any]], attack: Attack) -> bool:
    """Whether it was seen to work without isolation."""
    found = [row.get("found", {}) for key, row in rows.items() if key.startswith(Isolation.UNSAFE)]
    return any(each.get(f"{attack.family}: {attack.name}", {}).get("escaped") for each in found)


def main() -> None:
    """Try all, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="*", help="families or names; all unless said, and then nothing is written")
    parser.add_argument("--levels", nargs="+", default=[str(level) for level in Isolation])
    parser.add_argument("--users", nargs="+", default=["superuser", "ordinary"] if os.getuid() == 0 else ["ordinary"])
    parser.add_argument("--level", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.level:
        print(json.dumps(one_level(arguments.level, arguments.only)))
        return
    began = time.perf_counter()
    kept = arguments.results / "attacks.json"
    rows: dict[str, dict[str, Any]] = {}
    if kept.is_file() and not arguments.only:
        rows = json.loads(kept.read_text())["measured"]
    order = [f"{level}, {user}" for level in Isolation for user in ("superuser", "ordinary")]
    for level in arguments.levels:
        for user in arguments.users:
            found = rows[f"{level}, {user}"] = apart(level, user, arguments.only)
            print(f"{level}, {user}: {json.dumps(found)[:2000]}", file=sys.stderr, flush=True)
            rows = {key: rows[key] for key in order if key in rows}
            if not arguments.only:
                keep(rows, arguments.results, began)
    print(table(rows) if not arguments.json else json.dumps(rows))


def keep(rows: dict[str, dict[str, Any]], folder: Path, began: float) -> None:
    """Write what was found so far, here and in the document."""
    report = {"name": "attacks", "measured": rows, "ratios": {}, "goal": "nothing escapes, and the next finds nothing"}
    (folder / "attacks.json").write_text(json.dumps({**report, **circumstances(began)}, indent=1) + "\n")
    (folder / "attacks.md").write_text(page(rows))
    write_into(DOCUMENT, table(rows))


def write_into(document: Path, rows: str) -> None:
    """Put the table where the document has it."""
    before, _, rest = document.read_text().partition(_BEGINS)
    document.write_text(before + _BEGINS + "\n" + rows + "\n" + _ENDS + rest.partition(_ENDS)[2])


if __name__ == "__main__":
    main()
