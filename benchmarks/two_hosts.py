"""Does a run go over an address boundary, through a slow link and a partition? Two network namespaces as two hosts.

    python benchmarks/two_hosts.py            # as root, with iproute2: it makes namespaces and takes them away

Each namespace has an address and a node of Ray of its own, and nothing between them but one link. The run's process, a
worker and a replica are on one, a worker and a replica on the other. First a run whose weights must be those of one
process, bit for bit; then the same with the link cut for a few seconds in the middle; then one of the demo's policy
over a link of so many kilobits a second, of which `whetstone why --slow` must say that it waits for weights.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import crash
from circumstances import circumstances

HOSTS = ("whetstone-a", "whetstone-b")
ADDRESSES = ("10.99.0.1", "10.99.0.2")
PORT = 6399
_NODES_SECONDS = 120.0
SPREAD = [
    "scale=ray",
    f"scale.address={ADDRESSES[0]}:{PORT}",
    "scale.environment_workers=2",
    "scale.engine_replicas=2",
    "scale.start_seconds=120",
]
VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_worker_niceness": "0",
}


def told(*words: str, check: bool = True) -> str:
    """What a command prints."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if check and done.returncode:
        sys.exit(f"{' '.join(words)}: {done.stdout[-500:]}{done.stderr[-1500:]}")
    return done.stdout


def within(host: int, *words: str) -> list[str]:
    """A command in one of the namespaces."""
    return ["ip", "netns", "exec", HOSTS[host], *words]


@contextlib.contextmanager
def hosts() -> Iterator[None]:
    """Two namespaces and a link between them."""
    for name in HOSTS:
        told("ip", "netns", "del", name, check=False)
        told("ip", "netns", "add", name)
    try:
        told("ip", "link", "add", "wa", "netns", HOSTS[0], "type", "veth", "peer", "name", "wb", "netns", HOSTS[1])
        for name, device, address in zip(HOSTS, ("wa", "wb"), ADDRESSES, strict=True):
            told("ip", "-n", name, "addr", "add", f"{address}/24", "dev", device)
            told("ip", "-n", name, "link", "set", "lo", "up")
            told("ip", "-n", name, "link", "set", device, "up")
        for name, other in zip(HOSTS, reversed(ADDRESSES), strict=True):
            told("ip", "-n", name, "route", "add", "default", "via", other)  # by which a host finds its own address
        yield
    finally:
        for name in HOSTS:
            told("ip", "netns", "del", name, check=False)


@contextlib.contextmanager
def nodes(folder: Path, store: int = 256 * 2**20) -> Iterator[None]:
    """A node of Ray on each host."""
    here = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    variables = {**os.environ, **VARIABLES, "PYTHONPATH": here}
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=3",
               f"--object-store-memory={store}", "--disable-usage-stats"]  # fmt: skip
    head = ["--head", f"--port={PORT}", "--include-dashboard=false", f"--temp-dir={folder}"]
    started = []
    try:
        for host, more in enumerate((head, [f"--address={ADDRESSES[0]}:{PORT}"])):
            words = within(host, *command, f"--node-ip-address={ADDRESSES[host]}", *more)
            quiet = subprocess.DEVNULL
            started.append(subprocess.Popen(words, env=variables, start_new_session=True, stdout=quiet, stderr=quiet))
            time.sleep(4.0)  # the second waits for the first itself
        yield
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)


def child(overrides: list[str], run_dir: str) -> None:
    """Train, once both nodes are there; in the first namespace."""
    ray: Any = importlib.import_module("ray")
    deadline = time.monotonic() + _NODES_SECONDS
    while True:
        try:
            if not ray.is_initialized():
                ray.init(address=f"{ADDRESSES[0]}:{PORT}", log_to_driver=False, configure_logging=False)
            if sum(node["Alive"] for node in ray.nodes()) == len(HOSTS):
                break
        except ConnectionError:
            pass
        if time.monotonic() > deadline:
            sys.exit(f"after {_NODES_SECONDS:g} s there are not two nodes")
        time.sleep(0.5)
    crash.child(overrides, run_dir, None, None, False)
    ray.shutdown()


def trained(overrides: Sequence[str], run_dir: Path) -> float:
    """Seconds of a run whose process is on the first host."""
    child = f"import two_hosts; two_hosts.child({[*overrides, *SPREAD]!r}, {str(run_dir)!r})"
    here = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    began = time.perf_counter()
    words = within(0, sys.executable, "-c", child)
    done = subprocess.run(words, env={**os.environ, **VARIABLES, "PYTHONPATH": here}, check=False, timeout=600)
    if done.returncode:
        sys.exit(f"a run over two hosts ended with {done.returncode}")
    return time.perf_counter() - began


def cut(run_dir: Path, seconds: float, found: dict[str, Any]) -> None:
    """Cut the link for a while once the run has made two updates."""
    journal = run_dir / "store" / "journal.jsonl"
    while not journal.is_file() or journal.read_text().count('"consumed"') < 2:
        time.sleep(0.05)
    found["updates_before_the_cut"] = journal.read_text().count('"consumed"')
    told("ip", "-n", HOSTS[0], "link", "set", "wa", "down")
    time.sleep(seconds)
    told("ip", "-n", HOSTS[0], "link", "set", "wa", "up")
    found["updates_when_it_healed"] = journal.read_text().count('"consumed"')


def rows_of(run_dir: Path) -> list[dict[str, Any]]:
    """Of the metrics of its reinforcement."""
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["stage"] == "reinforcement"]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--policy", type=Path, help="the demo behind its warm-up, for the slow link; none: left out")
    parser.add_argument("--cut-seconds", type=float, default=5.0)
    parser.add_argument("--kbit", type=int, default=8000, help="a second, of the slow link")
    parser.add_argument("--steps", type=int, default=24, help="updates of the runs that are compared")
    arguments = parser.parse_args()
    began = time.perf_counter()
    crash.STEPS = arguments.steps
    torch.set_num_threads(1)  # before anything computes: two threads round a last bit otherwise than replicas with one
    measured: dict[str, Any] = {}
    folder = Path(tempfile.mkdtemp(prefix="hosts-"))
    try:
        model = crash.speaking(folder / "policy")
        plain = [*crash.overrides_of("one step off, by recipe", model), f"reinforcement.steps={crash.STEPS}"]
        crash.child(plain, str(folder / "alone"), None, None, False)
        alone = crash.weights(folder / "alone")
        with hosts(), nodes(folder / "ray"):
            for name in ("whole", "cut"):
                run_dir, found = folder / name, dict[str, Any]()
                cutting = threading.Thread(target=cut, args=(run_dir, arguments.cut_seconds, found), daemon=True)
                if name == "cut":
                    cutting.start()
                found["seconds"] = trained(plain, run_dir)
                if name == "cut":
                    cutting.join()
                crash.accounted(run_dir)
                there, rows = crash.weights(run_dir), rows_of(run_dir)
                found["same_weights"] = all(torch.equal(alone[each], there[each]) for each in alone)
                found["transfer_seconds"] = statistics.median(row["scale/transfer_seconds"] for row in rows)
                found["longest_transfer_seconds"] = max(row["scale/transfer_seconds"] for row in rows)
                found["workers_died"] = sum(row["scale/workers_died"] for row in rows)
                found["replicas_died"] = sum(row["scale/replicas_died"] for row in rows)
                measured[name] = found
                print(f"{name}: {found}", file=sys.stderr, flush=True)
            if arguments.policy is not None:
                measured["slow"] = slow(arguments.policy, arguments.kbit, folder / "slow")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    said = {
        "name": "two_hosts",
        "measured": measured,
        "ratios": {},
        "goal": "weights of one process over two hosts and through a partition; a slow link is named",
        "bound": "",
        **circumstances(began),
    }
    print(json.dumps(said) if arguments.json else json.dumps(measured, indent=1))


def slow(policy: Path, kbit: int, run_dir: Path) -> dict[str, Any]:
    """What is said of a run over a slow link."""
    for host, device in enumerate(("wa", "wb")):
        words = ("dev", device, "root", "tbf", "rate", f"{kbit}kbit", "burst", "32kbit", "latency", "400ms")
        told(*within(host, "tc", "qdisc", "add", *words))
    overrides = [
        "policy.tiny=null",
        f"policy.path={policy}",
        "supervised=null",
        "ablations=null",
        "reinforcement.steps=4",
        "reinforcement.tasks_per_step=4",
        "rollout.group_size=4",
        "evaluation.episodes=4",
    ]
    seconds = trained(overrides, run_dir)
    said = told(sys.executable, "-m", "whetstone.cli.main", "why", str(run_dir), "--slow")
    transfers = [row["scale/transfer_seconds"] for row in rows_of(run_dir)]
    return {"seconds": seconds, "kbit": kbit, "transfer_seconds": statistics.median(transfers), "said": said}


if __name__ == "__main__":
    main()
