"""How long does who looks at 100,000 trajectories wait? A run of that size is written, indexed and asked.

What the server takes is told from the request to the answer; what a person waits, in headless Chromium, from the
address to the first contentful paint and to the page with its numbers, and from a filter to its rows. With `--run`, the
share of a real run's training time that its index takes, in processor seconds.

    python benchmarks/viewer.py --write benchmarks/results
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import orjson

from circumstances import circumstances
from whetstone.record import RunStore
from whetstone.reporting import Journal
from whetstone.trajectory import Task
from whetstone.viewing.index import TrajectoryIndex

BROWSER = "/usr/bin/chromium"
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WORDS = [
    "find",
    "order",
    "ship",
    "refund",
    "address",
    "parcel",
    "store",
    "price",
    "check",
    "count",
    "list",
    "open",
    "close",
    "read",
    "write",
    "sum",
    "query",
]
GROUP = 8
GROUPS_A_STEP = 16
FILTERS = {
    "first page": {"descending": "1"},
    "unsolved": {"outcome": "unsolved"},
    "a tool": {"tool": "lookup"},
    "a kind and steps": {"kind": "shop/refund", "from_step": "100", "to_step": "400"},
    "a component's range, sorted by it": {"measure": "component:brief", "above": "0.4", "sort": "component:brief"},
    "a common word": {"text": "refund"},
    "two words and an ending": {"text": "refund parc", "ended": "max_turns"},
    "the most tokens first": {"sort": "tokens", "descending": "1"},
    "the last page": {"offset": "99900", "descending": "1"},
}


def written(folder: Path, count: int) -> Path:
    """A run of `count` trajectories of three turns, with its journal and metrics."""
    drawn = random.Random(0)
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(f"title: {count:,} trajectories\nreinforcement: {{steps: 1000}}\n")
    store, journal = RunStore(folder, groups_per_file=GROUPS_A_STEP), Journal(folder)
    for step in range(count // (GROUP * GROUPS_A_STEP) + 1):
        numbers = range(step * GROUPS_A_STEP, min((step + 1) * GROUPS_A_STEP, count // GROUP))
        lines = []
        for number in numbers:
            task = Task(f"shop/{('refund', 'order', 'search')[number % 3]}/{number % 500}", "")
            store.admit(number, step, number)
            lines += [_line(drawn, f"group-{number}/{task.id}#{k}", task.id, step) for k in range(GROUP)]
        path = folder / "trajectories" / f"step-{step + 1:06d}.jsonl"
        path.write_bytes(b"".join(lines))
        store.consume(step, list(numbers))
        values = {"episode/success": min(0.9, step / 1000 + drawn.random() / 10), "cost_per_step/episodes": 128.0}
        values |= {f"area/number_{k}": drawn.random() for k in range(60)}
        journal.record("reinforcement", step + 1, {**values, "reward/mean": values["episode/success"]})
    store.close()
    return folder


def _line(drawn: random.Random, id: str, task: str, step: int) -> bytes:
    right = drawn.random() < step / 1000
    said = [" ".join(drawn.choices(WORDS, k=12)) for _ in range(6)]
    tool = drawn.choice(("search", "refund", "lookup"))
    call = {"id": "c", "type": "function", "function": {"name": tool, "arguments": json.dumps({"text": said[0]})}}
    turns = [
        {
            "context": {"ids": list(range(30)), "authors": [["environment", 30]]},
            "action": {"ids": list(range(15)), "authors": [["policy", 15]], "versions": [step] * 15,
                       "logprobs": [round(drawn.random(), 4)] * 15, "entropies": [0.5] * 15},
            "observation": int(k < 2), "reward": None, "opens_segment": k == 0, "aside": False,
            "training_context": None, "seconds": [0.2, 0.05, 0.1],
            "calls": [[tool, "ok" if drawn.random() < 0.9 else "tool_error", 0.05, False, 0.0]] if k < 2 else [],
        }
        for k in range(3)
    ]  # fmt: skip
    messages = [
        {"role": "user", "content": said[1]}, {"role": "assistant", "content": said[2], "tool_calls": [call]},
        {"role": "tool", "content": said[3], "tool_call_id": "c"}, {"role": "assistant", "content": said[4]},
        {"role": "tool", "content": said[5]}, {"role": "assistant", "content": "done"},
    ]  # fmt: skip
    parts = {"right": float(right), "brief": round(drawn.random(), 3), "polite": round(drawn.random(), 3)}
    ended = drawn.choice(("terminated", "terminated", "max_turns"))
    score = {"value": float(right), "parts": parts, "turns": None, "success": right}
    row = {"id": id, "task_id": task, "ended": ended, "error": None, "score": score, "parent": None, "seconds": 1.0,
           "messages": messages, "opening": 1, "turns": turns}  # fmt: skip
    return orjson.dumps(row) + b"\n"


@contextmanager
def viewed(run: Path, cache: Path) -> Iterator[str]:
    """Its address, from the command itself."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "whetstone.cli.main", "view", str(run), "--port", str(port)]
    process = subprocess.Popen(words, env={**os.environ, "XDG_CACHE_HOME": str(cache)}, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def spread(measure: Callable[[], float], repeats: int) -> list[float]:
    """[least, median, most] milliseconds, the first try left out: it warms what a server has warm."""
    measure()
    found = [1000 * measure() for _ in range(repeats)]
    return [round(value, 1) for value in (min(found), statistics.median(found), max(found))]


def served(address: str, repeats: int) -> dict[str, list[float]]:
    """Milliseconds of each filter, from the request to the answer."""
    found = {}
    with httpx2.Client(base_url=address, timeout=60) as client:
        for name, asked in FILTERS.items():

            def ask(asked: dict[str, str] = asked) -> float:
                began = time.perf_counter()
                client.get("/api/runs/0/trajectories", params=asked).raise_for_status()
                return time.perf_counter() - began

            found[name] = spread(ask, repeats)
    return found


def in_chromium(address: str, repeats: int) -> dict[str, list[float]]:
    """Milliseconds a person waits; empty where there is no browser to try it with."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        print("no browser: pip install playwright, apt-get install chromium", file=sys.stderr)
        return {}
    painted = "() => performance.getEntriesByName('first-contentful-paint')[0].startTime / 1000"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=FLAGS)

        def opened(query: str, selector: str, of_paint: bool) -> float:
            page = browser.new_page()
            began = time.perf_counter()
            page.goto(f"{address}/{query}", wait_until="commit")
            page.wait_for_selector(selector)
            took = time.perf_counter() - began
            found = page.evaluate(painted) if of_paint else took
            page.close()
            return float(found)

        rows = "?tab=trajectories"
        found = {
            "run: first contentful paint": spread(lambda: opened("", ".verdict", True), repeats),
            "run: verdict and curves": spread(lambda: opened("", "figure svg", False), repeats),
            "trajectories: first contentful paint": spread(lambda: opened(rows, ".rows td", True), repeats),
            "trajectories: rows": spread(lambda: opened(rows, ".rows td", False), repeats),
        }
        page = browser.new_page()
        page.goto(f"{address}/{rows}")
        page.wait_for_selector("#filter-outcome")
        chosen = "unsolved"

        def filtered() -> float:
            nonlocal chosen
            chosen = "solved" if chosen == "unsolved" else "unsolved"
            return float(page.evaluate(_FILTERED, chosen))

        found["trajectories: from a filter to its rows"] = spread(filtered, repeats)
        browser.close()
    return found


_FILTERED = """async (chosen) => {
  const said = document.querySelector(".said");
  const before = said.textContent;
  const select = document.querySelector("#filter-outcome");
  const began = performance.now();
  const changed = new Promise((done) => new MutationObserver((_, watching) => {
    if (said.textContent !== before) { watching.disconnect(); requestAnimationFrame(done); }
  }).observe(said, {childList: true, subtree: true, characterData: true}));
  select.value = chosen;
  select.dispatchEvent(new Event("change"));
  await changed;
  return (performance.now() - began) / 1000;
}"""


def indexed(run: Path, cache: Path) -> dict[str, float]:
    """Trajectories, and the seconds and processor seconds its index takes from nothing."""
    began, busy = time.perf_counter(), time.process_time()
    index = TrajectoryIndex(run, folder=cache)
    index.refresh()
    took = {"seconds": time.perf_counter() - began, "processor_seconds": time.process_time() - busy}
    return {"trajectories": index.count(), **took, "mebibytes": index.path.stat().st_size / 2**20}


def of_training(run: Path) -> dict[str, float]:
    """The processor seconds of a run's index, against the seconds its training took."""
    with tempfile.TemporaryDirectory() as cache:
        found = indexed(run, Path(cache))
    trained = max(row.get("time/elapsed_seconds") or 0.0 for row in Journal(run).read())
    return {**found, "training_seconds": trained, "share": found["processor_seconds"] / trained}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--trajectories", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--run", type=Path, help="a real run, for the share of training its index takes")
    parser.add_argument("--write", type=Path, help="a folder for viewer.json and viewer.md")
    arguments = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run, cache = written(Path(folder) / "run", arguments.trajectories), Path(folder) / "cache"
        measured: dict[str, Any] = {"index": indexed(run, cache / "whetstone" / "viewer")}
        with viewed(run, cache) as address:
            measured["served_ms"] = served(address, arguments.repeats)
            measured["chromium_ms"] = in_chromium(address, arguments.repeats)
    if arguments.run is not None:
        measured["of_training"] = of_training(arguments.run)
    told = {
        "name": "viewer",
        "measured": measured,
        "ratios": {"filter": 200 / max(most for _, most, _ in measured["served_ms"].values())},
        "goal": "first contentful paint in 1000 ms, a filter in 200 ms, the index at most 1 % of training",
        "bound": "one pass over the rows of the index",
        **circumstances(began),
    }
    if arguments.write is not None:
        (arguments.write / "viewer.json").write_text(json.dumps(told, indent=1) + "\n")
        (arguments.write / "viewer.md").write_text(page_of(told))
    print(json.dumps(told) if arguments.json else page_of(told))


def page_of(told: dict[str, Any]) -> str:
    """The results as a page."""
    measured = told["measured"]
    index = measured["index"]
    lines = [
        "# What who looks at a run waits for",
        "",
        f"A run of {index['trajectories']:,} trajectories of three turns. Its index takes "
        f"{1e6 * index['processor_seconds'] / index['trajectories']:.0f} µs of a processor a trajectory "
        f"({index['seconds']:.0f} s in all) and {index['mebibytes']:.0f} MiB.",
    ]
    if "of_training" in measured:
        share = measured["of_training"]
        lines.append(
            f"Of a real run, {share['trajectories']:,} trajectories in {share['training_seconds']:,.0f} s of training, "
            f"the index takes {share['processor_seconds']:.1f} s of a processor: {share['share']:.2%} of its time."
        )
    tables = (("From the request to the answer", "served_ms"), ("In headless Chromium", "chromium_ms"))
    for title, key in tables:
        lines += ["", f"## {title}", "", "| what | least ms | median ms | most ms |", "| --- | --- | --- | --- |"]
        lines += [f"| {name} | {low} | {middle} | {most} |" for name, (low, middle, most) in measured[key].items()]
    machine = told["machine"]
    lines += ["", f"Goal: {told['goal']}. Measured on {machine['cores']} cores, {machine['system']}.", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
