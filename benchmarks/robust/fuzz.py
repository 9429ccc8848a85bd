"""Fuzzing of everything that reads untrusted input.

    python -m benchmarks fuzz recipes --minutes 60     one target, or `all`, one after the other
    python -m benchmarks fuzz all --self-test          plant a fault in each target, which must be found
    python -m benchmarks fuzz recipes --replay FILE    run one input again and print the generated objects
    python -m benchmarks fuzz merge                    write all findings to benchmarks/results

Inputs are bytes that determine the output of a grammar (`fuzzing/choices.py`). If atheris is installed, inputs are
mutated toward new lines of code; otherwise hypothesis generates them. A separate process tries the inputs, with two
gibibytes of additional memory and ten seconds per input; a process that dies is a finding, and the next one continues.
Counts, findings and corpus accumulate in a folder, so that a run can be interrupted and resumed.
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
from fuzzing.trying import FOUND, PROGRESS, finding_of_a_death, replay_input, try_inputs

HERE = Path(__file__).parent
TARGETS = {
    "guest": "replies of the sandbox",
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


def load_state(target: str, folder: Path) -> dict[str, Any]:
    """Load the counts and findings of a target so far."""
    with contextlib.suppress(OSError, ValueError):
        known: dict[str, Any] = json.loads((folder / f"{target}.json").read_text())
        return known
    counts = {"inputs": 0, "wall_seconds": 0.0, "cpu_seconds": 0.0, "deaths": 0}
    return {"target": target, "engine": "", **counts, "coverage": {}, "findings": {}}


def fuzz_target(target: str, seconds: float, folder: Path, *, planted: bool = False) -> dict[str, Any]:
    """Fuzz a target for `seconds`, in successive processes of which each continues after the death of the last."""
    memory = Path("/dev/shm")  # the files of targets need no disk
    with tempfile.TemporaryDirectory(prefix="whetstone-fuzz-", dir=memory if memory.is_dir() else None) as name:
        return _fuzz_target(target, seconds, folder, Path(name), planted)


def _fuzz_target(target: str, seconds: float, folder: Path, place: Path, planted: bool) -> dict[str, Any]:
    known, until = load_state(target, folder), time.monotonic() + seconds
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
                counts = json.loads(line.removeprefix(PROGRESS))
                known |= {"engine": counts["engine"], **{n: base[n] + counts[n] for n in ("inputs", "cpu_seconds")}}
            elif line.startswith(FOUND):
                add_finding(known, json.loads(line.removeprefix(FOUND)))
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
            if planted and has_planted_fault(known):
                process.kill()
        if process.wait() == 0 or (planted and has_planted_fault(known)):
            break
        if process.returncode == -signal.SIGTERM:
            break
        known["deaths"] += 1
        add_finding(known, finding_of_a_death(target, folder, process.returncode, "".join(last)))
        time.sleep(1)
    known["wall_seconds"] = saved["wall_seconds"] + time.monotonic() - began
    save(known, folder)
    return known


def has_planted_fault(known: dict[str, Any]) -> bool:
    """Return whether a planted fault is among the findings."""
    return any("planted" in finding["message"] for finding in known["findings"].values())


def add_finding(known: dict[str, Any], finding: dict[str, Any]) -> None:
    """Count a finding and store the shortest input of its kind."""
    previous = known["findings"].setdefault(finding["kind"], {**finding, "count": 0})
    if previous["count"] == 0 or finding["bytes"] < previous["bytes"]:
        known["findings"][finding["kind"]] = {**finding, "count": previous["count"]}
    known["findings"][finding["kind"]]["count"] += 1


def save(known: dict[str, Any], folder: Path) -> None:
    """Store counts and findings atomically."""
    place = folder / f"{known['target']}.json"
    place.with_suffix(".part").write_text(json.dumps(known | {"updated": time.time()}, indent=1))
    os.replace(place.with_suffix(".part"), place)


def merge_results(folder: Path, results: Path) -> None:
    """Write all findings as figures and as a table."""
    began, rows = time.perf_counter(), []
    for target in TARGETS:
        known = load_state(target, folder)
        if known["inputs"]:
            for finding in known["findings"].values():
                finding["again"] = still_fails(target, finding["file"])
                finding["file"] = str(Path(finding["file"]).relative_to(folder))
            rows.append(known)
    result = {"name": "fuzz", "measured": {"targets": rows}, **circumstances(began)}
    (results / "raw").mkdir(parents=True, exist_ok=True)
    (results / "raw" / "fuzz.json").write_text(json.dumps(result, indent=1, sort_keys=True) + "\n")
    (results / "fuzz.md").write_text("\n".join(table(rows)) + "\n")


def still_fails(target: str, file: str) -> bool:
    """Return whether an input still fails."""
    words = [sys.executable, str(HERE / "fuzz.py"), target, "--replay", file]
    try:
        return subprocess.run(words, capture_output=True, timeout=120).returncode != 0
    except subprocess.TimeoutExpired:
        return True


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the lines of the page."""
    lines = [
        "# Fuzzing",
        "",
        "Inputs made up by a fuzzer, for everything that reads what others wrote. A finding is an exception that is",
        "none of Whetstone's own, an answer that must not be, more than ten seconds or two gibibytes. One process a",
        "target, at idle priority. `python -m benchmarks fuzz all` continues, `merge` writes this table again.",
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
            status = "still fails" if finding["again"] else "fixed"
            message = finding["message"].replace("`", "'").replace("\n", " ")[:160]
            lines.append(f"- {row['target']}: `{kind}` ({finding['count']} inputs, {status}): `{message}`")
    return lines


def self_test(target: str) -> bool:
    """Return whether a planted fault is found."""
    with tempfile.TemporaryDirectory(prefix="whetstone-fuzz-") as name:
        known = fuzz_target(target, SELF_TEST_SECONDS, Path(name), planted=True)
    is_found = has_planted_fault(known)
    print(
        f"{target}: {'found' if is_found else 'NOT FOUND'} after {known['inputs']} inputs, "
        f"{known['wall_seconds']:.0f} s"
    )
    return is_found


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=[*TARGETS, "all", "merge"])
    parser.add_argument("--minutes", type=float, default=1.0, help="minutes per target")
    parser.add_argument(
        "--into",
        type=Path,
        default=Path(tempfile.gettempdir()) / "fuzz_out",
        help="folder of counts, findings and corpus",
    )
    parser.add_argument("--results", type=Path, default=HERE.parent / "results")
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("--replay", type=Path)
    parser.add_argument("--planted", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--try", type=float, dest="seconds", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.into.mkdir(parents=True, exist_ok=True)
    if arguments.seconds is not None:
        try_inputs(arguments.target, arguments.seconds, arguments.into, planted=arguments.planted)
    elif arguments.replay is not None:
        sys.exit(replay_input(arguments.target, arguments.replay.read_bytes()))
    elif arguments.target == "merge":
        merge_results(arguments.into, arguments.results)
    else:
        targets = list(TARGETS) if arguments.target == "all" else [arguments.target]
        if arguments.self_test:
            are_found = [self_test(target) for target in targets]
            sys.exit(not all(are_found))
        for target in targets:
            known = fuzz_target(target, 60 * arguments.minutes, arguments.into)
            counts = (
                f"{known['inputs']} inputs, {known['wall_seconds']:.0f} s, {len(known['findings'])} kinds of findings"
            )
            print(f"{target}: {counts}")


if __name__ == "__main__":
    main()
