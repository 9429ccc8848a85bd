"""Distributed runs over two hosts, simulated by network namespaces: a slow link, a short and a long partition.

    python -m benchmarks two_hosts            # as root, with iproute2: it creates and deletes namespaces

Each namespace has its own address and Ray node, and one link connects them. The run's process, a worker and a replica
are on one host, a worker and a replica on the other. The first run must end with weights bit-identical to those of one
process; the second has the link cut for a few seconds; the third until Ray declares the other node dead,
which then exits and is restarted. The last run has the demo's policy and a slow link, and `whetstone why --slow` must
report that it waits for weights.
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
from import_paths import FOLDERS
from whetstone.record.checkpoint import latest_checkpoint

HOSTS = ("whetstone-a", "whetstone-b")
ADDRESSES = ("10.99.0.1", "10.99.0.2")
PORT = 6399
_NODES_SECONDS = 120.0
SPREAD = [
    "scale=ray",
    f"scale.address={ADDRESSES[0]}:{PORT}",
    "scale.environment_workers=2",
    "scale.engine_replicas=2",
    "scale.start_timeout_seconds=120",
]
VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_worker_niceness": "0",
    # a node without a response for five checks is dead; Ray's defaults take a minute
    "RAY_health_check_period_ms": "2000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "5",
}
RUNS = ("whole", "cut", "lost")


def run_command(*words: str, check: bool = True) -> str:
    """Run a command and return its output."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if check and done.returncode:
        sys.exit(f"{' '.join(words)}: {done.stdout[-500:]}{done.stderr[-1500:]}")
    return done.stdout


def within(host: int, *words: str) -> list[str]:
    """Return a command that runs in a namespace."""
    return ["ip", "netns", "exec", HOSTS[host], *words]


@contextlib.contextmanager
def hosts() -> Iterator[None]:
    """Create two namespaces and a link for the block."""
    for name in HOSTS:
        run_command("ip", "netns", "del", name, check=False)
        run_command("ip", "netns", "add", name)
    try:
        run_command(
            "ip", "link", "add", "wa", "netns", HOSTS[0], "type", "veth", "peer", "name", "wb", "netns", HOSTS[1]
        )
        for name, device, address in zip(HOSTS, ("wa", "wb"), ADDRESSES, strict=True):
            run_command("ip", "-n", name, "addr", "add", f"{address}/24", "dev", device)
            run_command("ip", "-n", name, "link", "set", "lo", "up")
            run_command("ip", "-n", name, "link", "set", device, "up")
        for name, other in zip(HOSTS, reversed(ADDRESSES), strict=True):
            run_command(
                "ip", "-n", name, "route", "add", "default", "via", other
            )  # by this route a host finds its own address
        yield
    finally:
        for name in HOSTS:
            run_command("ip", "netns", "del", name, check=False)


@contextlib.contextmanager
def nodes(folder: Path, store: int = 256 * 2**20) -> Iterator[None]:
    """Run a Ray node on each host for the block; the second is restarted if it exits."""
    python_path = os.pathsep.join([*map(str, FOLDERS), *filter(None, sys.path)])
    variables = {**os.environ, **VARIABLES, "PYTHONPATH": python_path}
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=3",
               f"--object-store-memory={store}", "--disable-usage-stats"]  # fmt: skip
    head = ["--head", f"--port={PORT}", "--include-dashboard=false", f"--temp-dir={folder}"]
    started: list[subprocess.Popen[bytes]] = []
    over = threading.Event()

    def begin(host: int, more: Sequence[str]) -> None:
        words, quiet = within(host, *command, f"--node-ip-address={ADDRESSES[host]}", *more), subprocess.DEVNULL
        started.append(subprocess.Popen(words, env=variables, start_new_session=True, stdout=quiet, stderr=quiet))

    def begin_again() -> None:
        while not over.wait(1.0):
            if started[-1].poll() is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(started[-1].pid, 9)
                begin(1, second)

    second = [f"--address={ADDRESSES[0]}:{PORT}"]
    watching = threading.Thread(target=begin_again, daemon=True)
    try:
        begin(0, head)
        time.sleep(4.0)  # the second node waits for the first
        begin(1, second)
        watching.start()
        yield
    finally:
        over.set()
        watching.join(5)
        for process in reversed(started):
            process.terminate()
        for process in started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)


def child(overrides: list[str], run_dir: str) -> None:
    """Train in the first namespace once both nodes are available."""
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


def train_run(overrides: Sequence[str], run_dir: Path) -> float:
    """Train a run on the first host and return its seconds."""
    child = f"import two_hosts; two_hosts.child({[*overrides, *SPREAD]!r}, {str(run_dir)!r})"
    python_path = os.pathsep.join([*map(str, FOLDERS), *filter(None, sys.path)])
    began = time.perf_counter()
    words = within(0, sys.executable, "-c", child)
    done = subprocess.run(words, env={**os.environ, **VARIABLES, "PYTHONPATH": python_path}, check=False, timeout=600)
    if done.returncode:
        sys.exit(f"a run over two hosts ended with {done.returncode}")
    return time.perf_counter() - began


def cut(run_dir: Path, seconds: float, figures: dict[str, Any]) -> None:
    """Cut the link for a while once the run has made two updates."""
    while updates(run_dir) < 2:
        time.sleep(0.05)
    figures["updates_before_the_cut"] = updates(run_dir)
    run_command("ip", "-n", HOSTS[0], "link", "set", "wa", "down")
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        time.sleep(0.1)
        if "went_on_after_seconds" not in figures and updates(run_dir) > figures["updates_before_the_cut"] + 2:
            figures["went_on_after_seconds"] = time.perf_counter() - began
    run_command("ip", "-n", HOSTS[0], "link", "set", "wa", "up")
    figures["updates_when_it_healed"] = updates(run_dir)


def updates(run_dir: Path) -> int:
    """Return the number of recorded updates of the weights."""
    journal = run_dir / "store" / "journal.jsonl"
    return journal.read_text().count('"consumed"') if journal.is_file() else 0


def read_rows(run_dir: Path) -> list[dict[str, Any]]:
    """Return the metrics of the reinforcement steps of a run."""
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["stage"] == "reinforcement"]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--policy", type=Path, help="the demo after its warm-up, for the slow link; skipped by default")
    parser.add_argument("--cut-seconds", type=float, default=5.0)
    parser.add_argument(
        "--lost-seconds", type=float, default=45.0, help="length of the partition in which Ray loses the node"
    )
    parser.add_argument(
        "--lost-steps", type=int, default=150, help="updates of that run, which must outlast the partition"
    )
    parser.add_argument("--folder", type=Path, help="folder of the policy and of single-process runs; a short path")
    parser.add_argument("--only", nargs="*", choices=RUNS, default=RUNS, help="runs to compare")
    parser.add_argument("--kbit", type=int, default=8000, help="kilobits per second of the slow link")
    parser.add_argument("--steps", type=int, default=24, help="updates per compared run")
    arguments = parser.parse_args()
    began = time.perf_counter()
    crash.STEPS = arguments.steps
    torch.set_num_threads(1)  # before any computation: two threads round differently from replicas with one
    measured: dict[str, Any] = {}
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="hosts-"))
    try:
        model = latest_checkpoint(folder / "policy") or crash.train_speaking_policy(folder / "policy")
        with hosts(), nodes(folder / "ray"):
            for name in arguments.only:
                steps = arguments.lost_steps if name == "lost" else arguments.steps
                seconds = {"whole": 0.0, "cut": arguments.cut_seconds, "lost": arguments.lost_seconds}[name]
                measured[name] = compare_run(model, folder, name, steps, seconds)
                print(f"{name}: {measured[name]}", file=sys.stderr, flush=True)
            if arguments.policy is not None:
                measured["slow"] = slow(arguments.policy, arguments.kbit, folder / "slow")
    finally:
        if arguments.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
    result = {
        "name": "two_hosts",
        "measured": measured,
        "ratios": {},
        "goal": "weights of one process over two hosts and through a partition; a slow link is named",
        "bound": "",
        **circumstances(began),
    }
    print(json.dumps(result) if arguments.json else json.dumps(measured, indent=1))


def compare_run(model: Path, folder: Path, name: str, steps: int, seconds: float) -> dict[str, Any]:
    """Train a run over two hosts with a partition of `seconds`, and compare it with one in one process.

    Raises:
        AssertionError: Something was lost or duplicated.
    """
    crash.STEPS = steps
    plain = [*crash.build_overrides("one step off, by recipe", model), f"reinforcement.steps={steps}"]
    one = folder / f"alone-{steps}"
    if not (one / "summary.json").is_file():
        shutil.rmtree(one, ignore_errors=True)
        crash.child(plain, str(one), None, None, False)
    shutil.rmtree(folder / name, ignore_errors=True)
    run_dir, figures = folder / name, dict[str, Any](steps=steps, cut_seconds=seconds)
    cutting = threading.Thread(target=cut, args=(run_dir, seconds, figures), daemon=True)
    if seconds:
        cutting.start()
    figures["seconds"] = train_run(plain, run_dir)
    if seconds:
        cutting.join()
    crash.check_accounting(run_dir)
    reference, weights, rows = crash.load_weights(one), crash.load_weights(run_dir), read_rows(run_dir)
    figures["same_weights"] = all(torch.equal(reference[each], weights[each]) for each in reference)
    figures["transfer_seconds"] = statistics.median(row["scale/transfer_seconds"] for row in rows)
    figures["longest_transfer_seconds"] = max(row["scale/transfer_seconds"] for row in rows)
    metrics = {
        "workers_died": "workers_died",
        "replicas_died": "replicas_died",
        "groups_taken_back": "groups_reassigned",
    }
    for counted, metric in metrics.items():
        figures[counted] = sum(row[f"scale/{metric}"] for row in rows)
    figures["workers"] = [row["scale/workers"] for row in rows]
    figures["replicas"] = [row["scale/replicas"] for row in rows]
    figures["nodes"] = [row["scale/nodes"] for row in rows]
    return figures


def slow(policy: Path, kbit: int, run_dir: Path) -> dict[str, Any]:
    """Train a run over a slow link and return the output of `whetstone why`."""
    for host, device in enumerate(("wa", "wb")):
        words = ("dev", device, "root", "tbf", "rate", f"{kbit}kbit", "burst", "32kbit", "latency", "400ms")
        run_command(*within(host, "tc", "qdisc", "add", *words))
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
    seconds = train_run(overrides, run_dir)
    output = run_command(sys.executable, "-m", "whetstone.cli.main", "why", str(run_dir), "--slow")
    transfers = [row["scale/transfer_seconds"] for row in read_rows(run_dir)]
    return {"seconds": seconds, "kbit": kbit, "transfer_seconds": statistics.median(transfers), "said": output}


if __name__ == "__main__":
    main()
