"""Does a run go over an address boundary, through a slow link and a partition? Two network namespaces as two hosts.

    python benchmarks/two_hosts.py            # as root, with iproute2: it makes namespaces and takes them away

Each namespace has an address and a node of Ray of its own, and nothing between them but one link. The run's process, a
worker and a replica are on one, a worker and a replica on the other. First a run whose weights must be those of one
process, bit for bit; then the same with the link cut for a few seconds in the middle; then with the link cut for so
long that Ray counts the other node as dead, which ends once it hears of that, and is begun anew; then one of the demo's
policy over a link of so many kilobits a second, of which `whetstone why --slow` must say that it waits for weights.
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
    # a node that does not answer five times in a row is dead; by Ray's own numbers that takes a minute
    "RAY_health_check_period_ms": "2000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "5",
}
RUNS = ("whole", "cut", "lost")


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
    """A node of Ray on each host; the second is begun again where it ends, as whoever runs a cluster would."""
    here = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    variables = {**os.environ, **VARIABLES, "PYTHONPATH": here}
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
        time.sleep(4.0)  # the second waits for the first itself
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
    while updates(run_dir) < 2:
        time.sleep(0.05)
    found["updates_before_the_cut"] = updates(run_dir)
    told("ip", "-n", HOSTS[0], "link", "set", "wa", "down")
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        time.sleep(0.1)
        if "went_on_after_seconds" not in found and updates(run_dir) > found["updates_before_the_cut"] + 2:
            found["went_on_after_seconds"] = time.perf_counter() - began
    told("ip", "-n", HOSTS[0], "link", "set", "wa", "up")
    found["updates_when_it_healed"] = updates(run_dir)


def updates(run_dir: Path) -> int:
    """Of the weights, that are on record."""
    journal = run_dir / "store" / "journal.jsonl"
    return journal.read_text().count('"consumed"') if journal.is_file() else 0


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
    parser.add_argument("--lost-seconds", type=float, default=45.0, help="of the cut by which Ray loses the node")
    parser.add_argument("--lost-steps", type=int, default=150, help="updates of that run, which outlast the cut")
    parser.add_argument("--folder", type=Path, help="where the policy and runs of one process are kept; a short path")
    parser.add_argument("--only", nargs="*", choices=RUNS, default=RUNS, help="of the runs that are compared")
    parser.add_argument("--kbit", type=int, default=8000, help="a second, of the slow link")
    parser.add_argument("--steps", type=int, default=24, help="updates of the runs that are compared")
    arguments = parser.parse_args()
    began = time.perf_counter()
    crash.STEPS = arguments.steps
    torch.set_num_threads(1)  # before anything computes: two threads round a last bit otherwise than replicas with one
    measured: dict[str, Any] = {}
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="hosts-"))
    try:
        model = latest_checkpoint(folder / "policy") or crash.speaking(folder / "policy")
        with hosts(), nodes(folder / "ray"):
            for name in arguments.only:
                steps = arguments.lost_steps if name == "lost" else arguments.steps
                seconds = {"whole": 0.0, "cut": arguments.cut_seconds, "lost": arguments.lost_seconds}[name]
                measured[name] = compared(model, folder, name, steps, seconds)
                print(f"{name}: {measured[name]}", file=sys.stderr, flush=True)
            if arguments.policy is not None:
                measured["slow"] = slow(arguments.policy, arguments.kbit, folder / "slow")
    finally:
        if arguments.folder is None:
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


def compared(model: Path, folder: Path, name: str, steps: int, seconds: float) -> dict[str, Any]:
    """A run over two hosts whose link is cut for so many seconds, beside one in one process.

    Raises:
        AssertionError: Something was lost or doubled.
    """
    crash.STEPS = steps
    plain = [*crash.overrides_of("one step off, by recipe", model), f"reinforcement.steps={steps}"]
    one = folder / f"alone-{steps}"
    if not (one / "summary.json").is_file():
        shutil.rmtree(one, ignore_errors=True)
        crash.child(plain, str(one), None, None, False)
    shutil.rmtree(folder / name, ignore_errors=True)
    run_dir, found = folder / name, dict[str, Any](steps=steps, cut_seconds=seconds)
    cutting = threading.Thread(target=cut, args=(run_dir, seconds, found), daemon=True)
    if seconds:
        cutting.start()
    found["seconds"] = trained(plain, run_dir)
    if seconds:
        cutting.join()
    crash.accounted(run_dir)
    alone, there, rows = crash.weights(one), crash.weights(run_dir), rows_of(run_dir)
    found["same_weights"] = all(torch.equal(alone[each], there[each]) for each in alone)
    found["transfer_seconds"] = statistics.median(row["scale/transfer_seconds"] for row in rows)
    found["longest_transfer_seconds"] = max(row["scale/transfer_seconds"] for row in rows)
    metrics = {
        "workers_died": "workers_died",
        "replicas_died": "replicas_died",
        "groups_taken_back": "groups_reassigned",
    }
    for counted, metric in metrics.items():
        found[counted] = sum(row[f"scale/{metric}"] for row in rows)
    found["workers"] = [row["scale/workers"] for row in rows]
    found["replicas"] = [row["scale/replicas"] for row in rows]
    found["nodes"] = [row["scale/nodes"] for row in rows]
    return found


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
