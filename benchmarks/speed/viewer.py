"""Latency of the viewer on a run with 100,000 trajectories: index, server responses and pages.

Server time is measured from the request to the response; page time in headless Chromium, from the address to the first
contentful paint and to the complete page, and from a filter to its rows. `--run` measures the CPU seconds of the index
of a real run, as a fraction of its training time.

    python -m benchmarks viewer --write benchmarks/results
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
from whetstone.viewer.trajectory_index import TrajectoryIndex

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


def write_run(folder: Path, count: int) -> Path:
    """Write a run of `count` trajectories with three turns, with journal and metrics."""
    rng = random.Random(0)
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(f"title: {count:,} trajectories\nreinforcement: {{steps: 1000}}\n")
    store, journal = RunStore(folder, groups_per_file=GROUPS_A_STEP), Journal(folder)
    for step in range(count // (GROUP * GROUPS_A_STEP) + 1):
        numbers = range(step * GROUPS_A_STEP, min((step + 1) * GROUPS_A_STEP, count // GROUP))
        lines = []
        for number in numbers:
            task = Task(f"shop/{('refund', 'order', 'search')[number % 3]}/{number % 500}", "")
            store.admit_group(number, step, number)
            lines += [_line(rng, f"group-{number}/{task.id}#{k}", task.id, step) for k in range(GROUP)]
        path = folder / "trajectories" / f"step-{step + 1:06d}.jsonl"
        path.write_bytes(b"".join(lines))
        store.consume_groups(step, list(numbers))
        values = {"episode/success": min(0.9, step / 1000 + rng.random() / 10), "cost_per_step/episodes": 128.0}
        values |= {f"area/number_{k}": rng.random() for k in range(60)}
        journal.record("reinforcement", step + 1, {**values, "reward/mean": values["episode/success"]})
    store.close()
    return folder


def _line(rng: random.Random, id: str, task: str, step: int) -> bytes:
    right = rng.random() < step / 1000
    texts = [" ".join(rng.choices(WORDS, k=12)) for _ in range(6)]
    tool = rng.choice(("search", "refund", "lookup"))
    call = {"id": "c", "type": "function", "function": {"name": tool, "arguments": json.dumps({"text": texts[0]})}}
    turns = [
        {
            "context": {"ids": list(range(30)), "authors": [["environment", 30]]},
            "action": {"ids": list(range(15)), "authors": [["policy", 15]], "versions": [step] * 15,
                       "logprobs": [round(rng.random(), 4)] * 15, "entropies": [0.5] * 15},
            "observation": int(k < 2), "reward": None, "opens_segment": k == 0, "aside": False,
            "training_context": None, "seconds": [0.2, 0.05, 0.1],
            "calls": [[tool, "ok" if rng.random() < 0.9 else "tool_error", 0.05, False, 0.0]] if k < 2 else [],
        }
        for k in range(3)
    ]  # fmt: skip
    messages = [
        {"role": "user", "content": texts[1]}, {"role": "assistant", "content": texts[2], "tool_calls": [call]},
        {"role": "tool", "content": texts[3], "tool_call_id": "c"}, {"role": "assistant", "content": texts[4]},
        {"role": "tool", "content": texts[5]}, {"role": "assistant", "content": "done"},
    ]  # fmt: skip
    parts = {"right": float(right), "brief": round(rng.random(), 3), "polite": round(rng.random(), 3)}
    ended = rng.choice(("terminated", "terminated", "max_turns"))
    score = {"value": float(right), "parts": parts, "turns": None, "success": right}
    row = {"id": id, "task_id": task, "ended": ended, "error": None, "score": score, "parent": None, "seconds": 1.0,
           "messages": messages, "opening": 1, "turns": turns}  # fmt: skip
    return orjson.dumps(row) + b"\n"


@contextmanager
def run_viewer(run: Path, cache: Path) -> Iterator[str]:
    """Start the viewer by its command and yield its address."""
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
    """Return [minimum, median, maximum] milliseconds, without the first, warm-up measurement."""
    measure()
    milliseconds = [1000 * measure() for _ in range(repeats)]
    return [round(value, 1) for value in (min(milliseconds), statistics.median(milliseconds), max(milliseconds))]


def measure_filters(address: str, repeats: int) -> dict[str, list[float]]:
    """Return filter → milliseconds from the request to the response."""
    results = {}
    with httpx2.Client(base_url=address, timeout=60) as client:
        for name, parameters in FILTERS.items():

            def ask(parameters: dict[str, str] = parameters) -> float:
                began = time.perf_counter()
                client.get("/api/runs/0/trajectories", params=parameters).raise_for_status()
                return time.perf_counter() - began

            results[name] = spread(ask, repeats)
    return results


def measure_pages(address: str, repeats: int) -> dict[str, list[float]]:
    """Return page → milliseconds in Chromium; empty if there is no browser."""
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
            results = page.evaluate(painted) if of_paint else took
            page.close()
            return float(results)

        rows = "?tab=trajectories"
        results = {
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

        results["trajectories: from a filter to its rows"] = spread(filtered, repeats)
        browser.close()
    return results


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


def build_index(run: Path, cache: Path) -> dict[str, float]:
    """Build the index of a run and return the number of trajectories, seconds and CPU seconds."""
    began, busy = time.perf_counter(), time.process_time()
    index = TrajectoryIndex(run, folder=cache)
    index.refresh()
    took = {"seconds": time.perf_counter() - began, "processor_seconds": time.process_time() - busy}
    return {"trajectories": index.count_trajectories(), **took, "mebibytes": index.file.path.stat().st_size / 2**20}


def measure_index(run: Path) -> dict[str, float]:
    """Return the CPU seconds of a run's index, relative to its training time."""
    with tempfile.TemporaryDirectory() as cache:
        figures = build_index(run, Path(cache))
    trained = max(row.get("time/elapsed_seconds") or 0.0 for row in Journal(run).read())
    return {**figures, "training_seconds": trained, "share": figures["processor_seconds"] / trained}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--trajectories", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--run", type=Path, help="a real run, for the relative cost of its index")
    parser.add_argument("--write", type=Path, help="folder for viewer.json and viewer.md")
    arguments = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run, cache = write_run(Path(folder) / "run", arguments.trajectories), Path(folder) / "cache"
        measured: dict[str, Any] = {"index": build_index(run, cache / "whetstone" / "viewer")}
        with run_viewer(run, cache) as address:
            measured["served_ms"] = measure_filters(address, arguments.repeats)
            measured["chromium_ms"] = measure_pages(address, arguments.repeats)
    if arguments.run is not None:
        measured["of_training"] = measure_index(arguments.run)
    result = {
        "name": "viewer",
        "measured": measured,
        "ratios": {"filter": 200 / max(most for _, most, _ in measured["served_ms"].values())},
        "goal": "first contentful paint in 1000 ms, a filter in 200 ms, the index at most 1 % of training",
        "bound": "one pass over the rows of the index",
        **circumstances(began),
    }
    if arguments.write is not None:
        (arguments.write / "raw").mkdir(parents=True, exist_ok=True)
        (arguments.write / "raw" / "viewer.json").write_text(json.dumps(result, indent=1) + "\n")
        (arguments.write / "viewer.md").write_text(format_page(result))
    print(json.dumps(result) if arguments.json else format_page(result))


def format_page(result: dict[str, Any]) -> str:
    """Return the page of the results."""
    measured = result["measured"]
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
            f"A real run with {share['trajectories']:,} trajectories trained for {share['training_seconds']:,.0f} s; "
            f"its index takes {share['processor_seconds']:.1f} CPU seconds: {share['share']:.2%} of that time."
        )
    tables = (("From the request to the answer", "served_ms"), ("In headless Chromium", "chromium_ms"))
    for title, key in tables:
        lines += ["", f"## {title}", "", "| what | least ms | median ms | most ms |", "| --- | --- | --- | --- |"]
        lines += [f"| {name} | {low} | {middle} | {most} |" for name, (low, middle, most) in measured[key].items()]
    machine = result["machine"]
    lines += ["", f"Goal: {result['goal']}. Measured on {machine['cores']} cores, {machine['system']}.", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
