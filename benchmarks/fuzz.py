"""What falls out where anybody may write? Inputs without end for everything that reads what others wrote.

    python benchmarks/fuzz.py recipes --minutes 60     one target, or `all`, one after the other
    python benchmarks/fuzz.py all --self-test          plants a fault in each, which has to be found
    python benchmarks/fuzz.py recipes --replay FILE    one input again, with what it was made into
    python benchmarks/fuzz.py merge                    what was found so far, into benchmarks/results

Inputs are bytes that decide what a grammar makes (`fuzzing/choices.py`). Where atheris is installed they are mutated
towards lines that no input has reached before; elsewhere hypothesis draws them. A process of its own tries them, with
two gibibytes beyond what it begins with and ten seconds an input; one that dies is a finding, and the next goes on.
Counts, findings and corpus lie in a folder and add up, so that a run can be stopped and gone on with.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from circumstances import circumstances
from fuzzing.trying import FOUND, PROGRESS, finding_of_a_death, replayed, tried

HERE = Path(__file__).parent
TARGETS = {
    "guest": "what the sandbox says",
    "schemas": "schemas of tools, and arguments",
    "calls": "calls in a model's text",
    "wire": "worlds over HTTP, both sides",
    "recipes": "recipes",
    "records": "records of runs and servers",
    "sql": "queries",
    "templates": "conversations as tokens",
    "files": "files of tasks and data",
}
SELF_TEST_SECONDS = 60.0
_COVERAGE = re.compile(r"cov: (\d+) ft: (\d+) corp: (\d+)")
_EVERY_SECONDS = 30.0


def begun(target: str, folder: Path) -> dict[str, Any]:
    """What is known of a target so far."""
    with contextlib.suppress(OSError, ValueError):
        known: dict[str, Any] = json.loads((folder / f"{target}.json").read_text())
        return known
    counts = {"inputs": 0, "wall_seconds": 0.0, "cpu_seconds": 0.0, "deaths": 0}
    return {"target": target, "engine": "", **counts, "coverage": {}, "findings": {}}


def watched(target: str, seconds: float, folder: Path, *, planted: bool = False) -> dict[str, Any]:
    """Have a target tried for so long, in processes of which each goes on where another died."""
    memory = Path("/dev/shm")  # what targets write is no matter of a disk
    with tempfile.TemporaryDirectory(prefix="whetstone-fuzz-", dir=memory if memory.is_dir() else None) as name:
        return _watched(target, seconds, folder, Path(name), planted)


def _watched(target: str, seconds: float, folder: Path, place: Path, planted: bool) -> dict[str, Any]:
    known, until = begun(target, folder), time.monotonic() + seconds
    saved, began = dict(known), time.monotonic()
    while (left := until - time.monotonic()) > 0:
        base = dict(known)
        words = [sys.executable, str(HERE / "fuzz.py"), target, "--try", f"{left:.0f}", "--into", str(folder)]
        process = subprocess.Popen(
            words + ["--planted"] * planted,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=os.environ | {"TMPDIR": str(place)},
        )
        assert process.stdout is not None
        last: list[str] = []
        written = 0.0
        for line in process.stdout:
            if line.startswith(PROGRESS):
                said = json.loads(line.removeprefix(PROGRESS))
                known |= {"engine": said["engine"], **{n: base[n] + said[n] for n in ("inputs", "cpu_seconds")}}
            elif line.startswith(FOUND):
                note(known, json.loads(line.removeprefix(FOUND)))
            else:
                last = [*last[-40:], line]
                if match := _COVERAGE.search(line):
                    known["coverage"] = dict(
                        zip(("edges", "features", "corpus"), map(int, match.groups()), strict=True)
                    )
                else:
                    print(line, end="", flush=True)
            if time.monotonic() - written > 1 and line.startswith((PROGRESS, FOUND)):
                written = time.monotonic()
                save(known | {"wall_seconds": saved["wall_seconds"] + written - began}, folder)
            if planted and came_out(known):
                process.kill()
        if process.wait() == 0 or (planted and came_out(known)):
            break
        if process.returncode == -signal.SIGTERM:
            break
        known["deaths"] += 1
        note(known, finding_of_a_death(target, folder, process.returncode, "".join(last)))
        time.sleep(1)
    known["wall_seconds"] = saved["wall_seconds"] + time.monotonic() - began
    save(known, folder)
    return known


def came_out(known: dict[str, Any]) -> bool:
    """Whether a planted fault is among the findings."""
    return any("planted" in finding["message"] for finding in known["findings"].values())


def note(known: dict[str, Any], found: dict[str, Any]) -> None:
    """Count a finding; the shortest input of its kind is kept."""
    there = known["findings"].setdefault(found["kind"], {**found, "count": 0})
    if there["count"] == 0 or found["bytes"] < there["bytes"]:
        known["findings"][found["kind"]] = {**found, "count": there["count"]}
    known["findings"][found["kind"]]["count"] += 1


def save(known: dict[str, Any], folder: Path) -> None:
    """Write down what is known, whole or not at all."""
    place = folder / f"{known['target']}.json"
    place.with_suffix(".part").write_text(json.dumps(known | {"updated": time.time()}, indent=1))
    os.replace(place.with_suffix(".part"), place)


def merged(folder: Path, results: Path) -> None:
    """Put what was found into two files: figures, and a table to read."""
    began, rows = time.perf_counter(), []
    for target in TARGETS:
        known = begun(target, folder)
        if known["inputs"]:
            for finding in known["findings"].values():
                finding["again"] = replays(target, finding["file"])
                finding["file"] = str(Path(finding["file"]).relative_to(folder))
            rows.append(known)
    told = {"name": "fuzz", "measured": {"targets": rows}, **circumstances(began)}
    (results / "fuzz.json").write_text(json.dumps(told, indent=1, sort_keys=True) + "\n")
    (results / "fuzz.md").write_text("\n".join(table(rows)) + "\n")


def replays(target: str, file: str) -> bool:
    """Whether an input still does what it did."""
    words = [sys.executable, str(HERE / "fuzz.py"), target, "--replay", file]
    try:
        return subprocess.run(words, capture_output=True, timeout=120).returncode != 0
    except subprocess.TimeoutExpired:
        return True


def table(rows: list[dict[str, Any]]) -> list[str]:
    """What a reader wants to know of it."""
    lines = [
        "# Fuzzing",
        "",
        "Inputs made up by a fuzzer, for everything that reads what others wrote. A finding is an exception that is",
        "none of Whetstone's own, an answer that must not be, more than ten seconds or two gibibytes. One process a",
        "target, at idle priority. `python benchmarks/fuzz.py all` goes on with it, `merge` makes this table again.",
        "",
        "| target | what | engine | inputs | hours | CPU hours | edges | kinds of findings | left |",
        "| --- | --- | --- | --: | --: | --: | --: | --: | --: |",
    ]
    for row in rows:
        left = sum(finding["again"] for finding in row["findings"].values())
        edges = row["coverage"].get("edges", "–")
        hours = f"{row['wall_seconds'] / 3600:.2f} | {row['cpu_seconds'] / 3600:.2f}"
        lines.append(
            f"| {row['target']} | {TARGETS[row['target']]} | {row['engine']} | {row['inputs']:,} | {hours} | {edges} | "
            f"{len(row['findings'])} | {left} |"
        )
    lines += ["", "## What fell out", ""]
    for row in rows:
        for kind, finding in sorted(row["findings"].items()):
            again = "still falls out" if finding["again"] else "mended"
            message = finding["message"].replace("`", "'").replace("\n", " ")[:160]
            lines.append(f"- {row['target']}: `{kind}` ({finding['count']} inputs, {again}): `{message}`")
    return lines


def self_test(target: str) -> bool:
    """Whether a planted fault is found."""
    with tempfile.TemporaryDirectory(prefix="whetstone-fuzz-") as name:
        known = watched(target, SELF_TEST_SECONDS, Path(name), planted=True)
    found = came_out(known)
    print(
        f"{target}: {'found' if found else 'NOT FOUND'} after {known['inputs']} inputs, {known['wall_seconds']:.0f} s"
    )
    return found


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=[*TARGETS, "all", "merge"])
    parser.add_argument("--minutes", type=float, default=1.0, help="for each target")
    parser.add_argument("--into", type=Path, default=Path(tempfile.gettempdir()) / "fuzz_out", help="where it goes on")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("--replay", type=Path)
    parser.add_argument("--planted", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--try", type=float, dest="seconds", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.into.mkdir(parents=True, exist_ok=True)
    if arguments.seconds is not None:
        tried(arguments.target, arguments.seconds, arguments.into, planted=arguments.planted)
    elif arguments.replay is not None:
        sys.exit(replayed(arguments.target, arguments.replay.read_bytes()))
    elif arguments.target == "merge":
        merged(arguments.into, arguments.results)
    else:
        targets = list(TARGETS) if arguments.target == "all" else [arguments.target]
        if arguments.self_test:
            found = [self_test(target) for target in targets]
            sys.exit(not all(found))
        for target in targets:
            known = watched(target, 60 * arguments.minutes, arguments.into)
            said = (
                f"{known['inputs']} inputs, {known['wall_seconds']:.0f} s, {len(known['findings'])} kinds of findings"
            )
            print(f"{target}: {said}")


if __name__ == "__main__":
    main()
