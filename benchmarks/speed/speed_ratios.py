"""Ratios of the speed benchmarks per commit and processor, so that a loss of speed is visible.

    python -m benchmarks speed_ratios                            all benchmarks, natively and limited to AVX2
    python -m benchmarks speed_ratios --only engine --native     one benchmark without a limit
    python -m benchmarks speed_ratios --model FOLDER --trl       with a pretrained model, and against TRL

Each benchmark runs in a separate process with `--json` and its default of five repeats, whose medians are compared.
A process that exceeds `--piece-seconds` is stopped; benchmarks with `--keep` continue from their measurements at the
next call, and completed ones are not repeated for the same commit, version and processor. The results are one row per
commit and processor in `results/raw/speed_ratios.json`, and `results/speed_ratios.md` is their table.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from circumstances import processor

FOLDER = Path(__file__).parent
RESULTS = FOLDER.parent / "results" / "raw" / "speed_ratios.json"
AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
BENCHMARKS: dict[str, list[str]] = {
    "engine": ["engine.py", "--keep", "KEEP"],
    "learner": ["learner.py", "--keep", "KEEP"],
    "rollout": ["rollout.py", "--scales", "1.0"],
    "tools": ["tools.py", "--calls", "2000", "--passages", "20000"],
    "demo_step": ["demo_step.py", "--folder", "FOLDER"],
    "asynchronous": ["asynchronous.py", "--utilisation-only"],
}
"""Arguments of each benchmark; KEEP is replaced by the file of its measurements."""
WITH_TRL: dict[str, list[str]] = {"end_to_end": ["end_to_end.py", "--keep", "KEEP", "--warm-ups", "FOLDER"]}
WITH_MODEL: dict[str, list[str]] = {
    "engine_model": ["engine.py", "--keep", "KEEP", "--model", "MODEL", "--generate-repeats", "1"],
    "learner_model": ["learner.py", "--keep", "KEEP", "--model", "MODEL", "--without-forks"],
}


def current_commit() -> str:
    """Return the abbreviated commit, with `+` if tracked files are modified."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, check=True, cwd=FOLDER
    )
    status = ["git", "status", "--porcelain", "--untracked-files=no"]
    modified = subprocess.run(status, capture_output=True, text=True, check=True, cwd=FOLDER).stdout.strip()
    return commit.stdout.strip() + "+" * bool(modified)


def run_benchmark(arguments: list[str], limit: dict[str, str], seconds: float) -> dict[str, Any] | None:
    """Run one benchmark and return its object; None if it exceeds its seconds or fails."""
    command = [sys.executable, str(FOLDER / arguments[0]), *arguments[1:], "--json"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, **limit}, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait()
        return None
    except BaseException:  # interrupted: the session of the child does not end by itself
        os.killpg(process.pid, 9)
        raise
    lines = output.strip().splitlines()
    return json.loads(lines[-1]) if process.returncode == 0 and lines else None


def store_ratios(rows: list[dict[str, Any]], commit: str, on: str, name: str, ratios: dict[str, float]) -> None:
    """Add the ratios of a benchmark to the row of a commit and processor, and write both files."""
    row = next((row for row in rows if row["commit"] == commit and row["processor"] == on), None)
    if row is None:
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        row = {"commit": commit, "version": version("whetstone-rl"), "date": date, "processor": on, "ratios": {}}
        rows.append(row)
    row["ratios"][name] = {key: float(f"{value:.3g}") for key, value in ratios.items()}
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
    (RESULTS.parents[1] / f"{RESULTS.stem}.md").write_text(format_table(rows))


def format_table(rows: list[dict[str, Any]]) -> str:
    """Return the page: one table per benchmark with a row per commit and processor, oldest first.

    A ratio below 0.9 times the previous one of the same processor is bold.
    """
    lines = [
        "# Speed ratios per commit",
        "",
        "`python -m benchmarks speed_ratios` appends one row per commit and processor to the table of each benchmark.",
        "Each number is a ratio of medians (higher is better), which the benchmark's file in `benchmarks/` defines. A",
        "ratio that is less than 0.9 times the previous one of the same processor is bold.",
    ]
    for name in dict.fromkeys(name for row in rows for name in row["ratios"]):
        of_benchmark = [row for row in rows if name in row["ratios"]]
        keys = list(dict.fromkeys(key for row in of_benchmark for key in row["ratios"][name]))
        lines += ["", f"## {name}", "", f"| commit | date | processor | {' | '.join(keys)} |"]
        lines.append("| --- | --- | --- |" + " --- |" * len(keys))
        previous: dict[tuple[str, str], float] = {}
        for row in of_benchmark:
            cells = [f"{row['version']} {row['commit']}", row["date"], row["processor"]]
            for key in keys:
                value, before = row["ratios"][name].get(key), previous.get((row["processor"], key))
                is_loss = value is not None and before is not None and value < 0.9 * before
                cells.append("" if value is None else f"**{value:g}**" if is_loss else f"{value:g}")
                if value is not None:
                    previous[row["processor"], key] = value
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Run the benchmarks that the current commit lacks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the rows of this commit as one JSON object")
    parser.add_argument("--only", nargs="+", help="names of benchmarks")
    parser.add_argument("--native", action="store_true", help="no second run limited to AVX2")
    parser.add_argument("--avx2", action="store_true", help="only the run limited to AVX2")
    parser.add_argument("--trl", action="store_true", help="whole training steps against TRL, which must be installed")
    parser.add_argument("--model", help="folder of a pretrained model")
    parser.add_argument("--commit", help="name of the row [the current commit]")
    parser.add_argument("--piece-seconds", type=float, default=3600.0, help="time limit of one benchmark")
    parser.add_argument("--folder", type=Path, default=Path("speed_ratios"), help="folder of unfinished measurements")
    options = parser.parse_args()
    benchmarks = {**BENCHMARKS, **(WITH_TRL if options.trl else {}), **(WITH_MODEL if options.model else {})}
    unknown = set(options.only or ()) - set(benchmarks)
    if unknown:
        parser.error(f"--only: no benchmark named {', '.join(sorted(unknown))}; there are {', '.join(benchmarks)}")
    rows: list[dict[str, Any]] = json.loads(RESULTS.read_text()) if RESULTS.is_file() else []
    commit = options.commit or current_commit()
    limits = [*([] if options.avx2 else [{}]), *([] if options.native else [AVX2])]
    options.folder.mkdir(parents=True, exist_ok=True)
    unfinished = []
    for name, arguments in benchmarks.items():
        for limit in limits if options.only is None or name in options.only else ():
            os.environ.pop("ATEN_CPU_CAPABILITY", None)
            os.environ.update(limit)
            on = processor()
            if any(row["commit"] == commit and row["processor"] == on and name in row["ratios"] for row in rows):
                continue
            measurements = options.folder / f"{commit}-{name}-{'avx2' if limit else 'native'}.jsonl"
            values = {"KEEP": str(measurements), "FOLDER": str(options.folder), "MODEL": str(options.model)}
            result = run_benchmark([values.get(word, word) for word in arguments], limit, options.piece_seconds)
            if result is None:
                unfinished.append(f"{name} ({'AVX2' if limit else 'native'})")
                continue
            store_ratios(rows, commit, on, name, result["ratios"])
    of_commit = [row for row in rows if row["commit"] == commit]
    print(json.dumps({"rows": of_commit, "unfinished": unfinished}) if options.json else format_table(of_commit))
    if unfinished:
        sys.exit(f"not finished, call again: {', '.join(unfinished)}")


if __name__ == "__main__":
    main()
