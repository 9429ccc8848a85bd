"""Attacks of untrusted code in containers: effects on the machine, a concurrent container and the next container.

python -m benchmarks container_attacks --image IMAGE --write

IMAGE needs python3. Each attack of `attack_list.txt` runs as root of a new container from a warm pool. Columns:

    escaped    something outside changed (canaries: files, processes, sockets), or a secret of the machine was printed
    next       harmless observations in the next container differ from those of the first one
    concurrent a container that runs all the time lost its file or its process
    permitted  the attack reports that an operation was permitted; it had no effect outside of its container
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from attack_list import ATTACKS, HEADER, Attack
from canaries import Canaries
from circumstances import circumstances
from publishing import store_result
from whetstone.errors import InfrastructureError
from whetstone.sandbox import CONTAINER_LIMITS, ContainerOptions, ContainerPool
from whetstone.sandbox.containers.container_runtime import describe_runtime, start_guard
from whetstone.sandbox.containers.container_session import ContainerSession

RESULTS = Path(__file__).parents[1] / "results"
BATTERY = "\n".join(
    line
    for line in (Path(__file__).parent / "battery.txt").read_text().splitlines()
    if not line.startswith('    "memory": ')  # it allocates until an allocation fails; a container is ended instead
)
LIMITS = replace(
    CONTAINER_LIMITS, wall_seconds=3, cpu_seconds=3, memory_mb=300, processes=30, folder_mb=16, file_mb=8, files=2000,
    output_bytes=1 << 20,
)  # fmt: skip
_LONG_SECONDS = 60.0
_PERMITTED = "the kernel said yes"
_ORDINARY_USER = """\
As an ordinary user the list was not run: podman 4.3.1 starts containers of such a user on this machine, but with
control groups of version 1 it ignores `--memory`, `--pids-limit` and `--cpus` ("Resource limits are not supported and
ignored on cgroups V1 rootless systems"), and Whetstone refuses a runtime that cannot limit these."""
_OBSERVE = (
    "import ast, random, sys\nrandom.seed(0)\ntree = ast.parse(sys.stdin.read())\n"
    "last, names = ast.Expression(tree.body.pop().value), {'__name__': '__main__'}\n"
    "exec(compile(tree, 'battery', 'exec'), names)\nprint(repr(eval(compile(last, 'battery', 'eval'), names)))\n"
)


def python_command(code: str, program: str = "-") -> str:
    """Return a shell command that runs Python with the code as its standard input."""
    return f"PYTHONHASHSEED=0 python3 {program} <<'END_OF_CODE'\n{code}\nEND_OF_CODE\n"


async def observe(pool: ContainerPool) -> dict[str, Any]:
    """Return the harmless observations of a new container."""
    session = pool.session(limits=LIMITS)
    try:
        command = "cat > /tmp/observe.py <<'END_OF_CODE'\n" + _OBSERVE + "END_OF_CODE\n"
        command += python_command(f"OWN_USER = True\n{BATTERY}", "/tmp/observe.py")
        outcome = await session.shell(command, wall_seconds=_LONG_SECONDS)
        try:
            observations: dict[str, Any] = ast.literal_eval(outcome.output.strip())
        except (SyntaxError, ValueError):
            return {"failed": f"{outcome.ending} {outcome.error} {outcome.output[-500:]}"}
        return observations
    finally:
        session.close()


class ConcurrentContainer:
    """Container that runs all the time, with a file and a process."""

    def __init__(self, session: ContainerSession) -> None:
        self.session = session

    async def start(self) -> None:
        """Write the file and start the process."""
        await self.session.shell("cd /tmp; echo mine > note; sleep 1234567 &", wall_seconds=_LONG_SECONDS)

    async def is_unchanged(self) -> bool:
        """Return whether both are as they were."""
        look = (
            "cat /tmp/note; for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done | grep -c '^sleep 1234567'"
        )
        outcome = await self.session.shell(look, wall_seconds=_LONG_SECONDS)
        return outcome.output == "mine\n1\n"


async def run_attacks(image: str, attacks: list[Attack], folder: Path) -> dict[str, Any]:
    """Run attacks, one after the other, and return their effects."""
    pool = ContainerPool(ContainerOptions(container="podman", image=image, warm_containers=3), limits=LIMITS)
    endings: Counter[str] = Counter()
    effects: dict[str, dict[str, list[str]]] = {}
    permitted: list[str] = []
    try:
        concurrent = ConcurrentContainer(pool.session(limits=LIMITS))
        await concurrent.start()
        first = await observe(pool)
        if "failed" in first:
            raise SystemExit(f"the observations failed: {first['failed']}")
        process = pool.runtime.inspect_container(concurrent.session.name).process
        canaries = Canaries(
            folder,
            None,
            server=start_guard("podman").pid,
            neighbour=process,
            neighbours_folder=f"/proc/{process}/root/tmp",
        )
        for number, attack in enumerate(attacks, 1):
            session, output = pool.session(limits=LIMITS), ""
            try:
                code = HEADER + canaries.reach.code + attack.code
                outcome = await session.shell(python_command(code))
                output, ending = f"{outcome.output}{outcome.error}", str(outcome.ending)
            except InfrastructureError as error:
                ending = f"infrastructure: {error}"
            session.close()
            endings[ending] += 1
            changes = canaries.find_changes(output)
            name = f"{attack.family}: {attack.name}"
            if _PERMITTED in changes:
                permitted.append(name)
            effect = {"escaped": [change for change in changes if change != _PERMITTED]}
            following = await observe(pool)
            effect["next"] = [
                f"{key}: {str(following.get(key))[:200]} for {str(value)[:200]}"
                for key, value in first.items()
                if following.get(key) != value
            ]
            effect["concurrent"] = [] if await concurrent.is_unchanged() else ["file or process"]
            if effect["concurrent"]:
                await concurrent.start()
            if any(effect.values()):
                effects[name] = effect
                print(name, effect, file=sys.stderr, flush=True)
            if number % 20 == 0:
                print(number, dict(endings), file=sys.stderr, flush=True)
        canaries.close()
    finally:
        pool.close()
    return {"tried": len(attacks), "endings": dict(endings), "found": effects, "permitted": permitted}


def count_containers() -> int:
    """Return the number of containers of this process."""
    words = ["podman", "ps", "-aq", "--filter", f"name=whetstone-{os.getpid()}-"]
    return len(subprocess.run(words, capture_output=True, text=True, check=True).stdout.split())


def page(report: dict[str, Any]) -> str:
    """Return the page of the results."""
    result = report["measured"]
    count = {
        kind: sum(bool(each[kind]) for each in result["found"].values()) for kind in ("escaped", "next", "concurrent")
    }
    endings = ", ".join(f"{name} {number}" for name, number in sorted(result["endings"].items()))
    families = Counter(name.partition(":")[0] for name in result["permitted"])
    permitted = ", ".join(f"{name} {number}" for name, number in families.items()) or "none"
    return (
        "# Attacks in containers\n\n"
        "Written by `python -m benchmarks container_attacks --image IMAGE --write`. The attacks of the sandbox "
        "([attacks](attacks.md)), each as\nroot of a new podman container from a warm pool.\n\n"
        f"Runtime: {report['runtime']}.\n\n"
        "| attacks | changed something outside | changed the next container | changed a concurrent container | "
        "containers left | seconds |\n| --: | --: | --: | --: | --: | --: |\n"
        f"| {result['tried']} | {count['escaped']} | {count['next']} | {count['concurrent']} | {report['left']} "
        f"| {report['took']:.0f} |\n\n"
        f"Ends of the calls: {endings}.\n\n{_ORDINARY_USER}\n\n"
        f"{len(result['permitted'])} attacks report an operation that is permitted in a container and that the other "
        "sandboxes forbid, such as to read\nthe container's own `/etc/shadow`, to change its own user, or to open an "
        "unnamed socket. None changed a canary. Two of them touch\nthe machine: `sync` writes the caches of all disks, "
        "and a socket to the hypervisor (`AF_VSOCK`) was opened, which\nthe profile of system calls refuses since this "
        f"run. By family: {permitted}.\n\n" + "".join(f"- {name}\n" for name in result["permitted"])
    )


def main() -> None:
    """Run the attacks and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="*", help="families or names of attacks; a selection is not stored")
    parser.add_argument("--image", required=True, help="local image with python3")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    attacks = [a for a in ATTACKS if not arguments.only or a.family in arguments.only or a.name in arguments.only]
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="attacks-") as folder:
        os.chmod(folder, 0o755)
        result = asyncio.run(run_attacks(arguments.image, attacks, Path(folder)))
    report = {
        "name": "container_attacks", "measured": result, "runtime": describe_runtime("podman"),
        "left": count_containers(), "took": time.perf_counter() - began, **circumstances(began),
    }  # fmt: skip
    if arguments.write and not arguments.only:
        store_result(RESULTS, "container_attacks", report, page)
    print(page(report))


if __name__ == "__main__":
    main()
