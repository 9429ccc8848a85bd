"""Run a bench of `evidence/benchmarks`: contenders with the same tasks, warm-up and budget over several seeds.

    python -m benchmarks evidence errands --seeds 8
    python -m benchmarks evidence errands --only grpo gigpo --seeds 8     # other rows of the result are kept
    python -m benchmarks evidence errands --write                        # benchmarks/results/evidence/errands.{json,md}
    python -m benchmarks evidence all --judge                           # recompute all verdicts from stored rows
    python -m benchmarks evidence all --fingerprint                     # store fingerprints that are missing
    python -m benchmarks evidence all --stale                           # recompute fingerprints, list stale contenders

A stopped or killed command resumes when it is run again. One thread; `--idle` runs at idle priority.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from claims.bench_settings import read_bench
from claims.claim_effects import MAX_END, MIN_GAIN, START, check_entry, collect_verdicts, median_deviation
from claims.evidence import Bench, assemble_bench, command_of, find_stale, rejudge_result, run_bench, take_fingerprint
from claims.measures import upgrade_result
from whetstone.analysis.paper_verdicts import format_part
from whetstone.errors import WhetstoneError, did_you_mean
from whetstone.evaluation.effect_estimates import detectable_difference
from whetstone.reporting import Progress
from whetstone.reporting.pareto import front_chart, pareto_front
from whetstone.training.interruption import Interrupted

HERE = Path(__file__).parent
BENCHES, RESULTS = HERE / "benchmarks", HERE.parent / "results" / "evidence"
VERDICTS = HERE.parents[1] / "src" / "whetstone" / "analysis" / "verdicts.json"
_BARS = "▁▂▃▄▅▆▇█"


def main() -> None:
    """Run a bench and print the effects of its claims."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "name",
        help="name of a file of evidence/benchmarks, or a path; all: with --judge, --fingerprint and --stale",
    )
    parser.add_argument("--seeds", type=int, help="number of seeds; default: that of the file")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=[], metavar="CONTENDER")
    parser.add_argument("--runs", type=Path, help="directory of the runs; default: runs/evidence/NAME")
    parser.add_argument("--write", action="store_true", help="store the result in benchmarks/results/evidence")
    parser.add_argument("--check", action="store_true", help="build every component, train nothing")
    parser.add_argument("--judge", action="store_true", help="recompute the claims of stored results, run nothing")
    parser.add_argument("--fingerprint", action="store_true", help="store the fingerprints that are missing")
    parser.add_argument("--stale", action="store_true", help="recompute fingerprints and list stale contenders")
    parser.add_argument("--idle", action="store_true", help="run at idle priority")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.idle:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    try:
        result = evidence(arguments)
    except WhetstoneError as error:
        print(f"evidence: {error}", file=sys.stderr)
        sys.exit(2)
    except Interrupted as stop:
        print(f"evidence: {stop}; run the same command to resume", file=sys.stderr)
        sys.exit(128 + stop.signal)
    if result is not None:
        print(json.dumps(result) if arguments.json else page(result))


def evidence(arguments: argparse.Namespace) -> dict[str, Any] | None:
    """Return the result of the bench; None if it was only checked or judged."""
    if arguments.judge:
        rejudge_stored(arguments.name)
        return None
    if arguments.fingerprint or arguments.stale:
        fingerprints(arguments)
        return None
    path = Path(arguments.name) if arguments.name.endswith(".yaml") else BENCHES / f"{arguments.name}.yaml"
    if not path.is_file():
        known = sorted(file.stem for file in BENCHES.glob("*.yaml"))
        raise WhetstoneError(
            f"no bench {arguments.name}{did_you_mean(arguments.name, known)}; there are {', '.join(known)}"
        )
    settings = read_bench(path)
    bench: Bench = assemble_bench(path.stem, settings, only=arguments.only)
    if arguments.check:
        print(f"{path.stem}: {len(bench.contenders)} contenders can be made, {len(settings.claims)} claims")
        return None
    stored = RESULTS / f"{path.stem}.json"
    result = run_bench(
        bench,
        seeds=range(arguments.first_seed, arguments.first_seed + (arguments.seeds or settings.seeds)),
        folder=arguments.runs or Path("runs") / "evidence" / path.stem,
        stored=upgrade_result(json.loads(stored.read_text(encoding="utf-8"))) if stored.is_file() else None,
        progress=Progress(quiet=arguments.json),
        machine=describe_machine(),
    )
    if arguments.write:
        store_result(result)
    return result


def rejudge_stored(name: str) -> None:
    """Recompute the claims of stored results and rewrite results and pages.

    Args:
        name: Name of a bench, or `all`.

    Raises:
        WhetstoneError: There is no stored result.
    """
    for path in stored_results(name):
        result = upgrade_result(json.loads(path.read_text(encoding="utf-8")))
        judged = rejudge_result(read_bench(BENCHES / path.name.replace(".json", ".yaml")), result)
        write_result(judged)
        print(f"{path.stem}: {', '.join(claim['verdict'] for claim in judged['claims'])}")
    write_verdicts()


def stored_results(name: str) -> list[Path]:
    """Return the files of a bench's stored result, or of all.

    Raises:
        WhetstoneError: There is none.
    """
    stored = sorted(RESULTS.glob("*.json") if name == "all" else RESULTS.glob(f"{name}.json"))
    if not stored:
        raise WhetstoneError(f"{name} has no stored result in {RESULTS}; run it with --write")
    return stored


def fingerprints(arguments: argparse.Namespace) -> None:
    """Store missing fingerprints of contenders, or list the contenders whose rows are stale.

    Contenders that a script defines have no fingerprint.
    """
    for path in stored_results(arguments.name):
        settings = read_bench(BENCHES / f"{path.stem}.yaml")
        if settings.script is not None:
            continue
        result = upgrade_result(json.loads(path.read_text(encoding="utf-8")))
        stored = {each["name"]: each for each in result["contenders"]}
        wanted = [name for name, each in stored.items() if arguments.stale or not each.get("fingerprint")]
        if not wanted:
            continue
        bench = assemble_bench(path.stem, settings, only=arguments.only or wanted)
        folder = arguments.runs or Path("runs") / "fingerprints" / path.stem
        recomputed = {}
        for contender in bench.contenders:
            recomputed[contender.name] = take_fingerprint(
                bench, contender, folder=folder, progress=Progress(quiet=True)
            )
            if not arguments.stale:
                stored[contender.name]["fingerprint"] = recomputed[contender.name]
                path.write_text(format_json(result), encoding="utf-8")
            print(f"{path.stem}  {contender.name}: {recomputed[contender.name]['weights']}", flush=True)
        if arguments.stale:
            print(f"{path.stem}: stale: {', '.join(find_stale(result, recomputed)) or 'none'}")


def describe_machine() -> str:
    """Return a description of the machine."""
    return f"{platform.machine()}, {platform.system()}, one thread"


def store_result(result: Mapping[str, Any]) -> None:
    """Store a result with its page, and update the verdicts that `whetstone papers` reads."""
    write_result(result)
    write_verdicts()


def write_result(result: Mapping[str, Any]) -> None:
    """Write a result, its page and its chart."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    stored = RESULTS / f"{result['name']}.json"
    stored.write_text(format_json(result), encoding="utf-8")
    stored.with_suffix(".md").write_text(page(result), encoding="utf-8")
    front = front_chart(costs(result))
    if front:
        stored.with_suffix(".svg").write_text(add_svg_namespace(front), encoding="utf-8")


def costs(result: Mapping[str, Any]) -> dict[str, list[tuple[float, float]]]:
    """Return contender → (cost, success) per run, if a claim measures cost."""
    return {
        each["name"]: [
            (run["measures"]["cost"], run["measures"]["success"])
            for run in each["runs"]
            if not run["failed"] and run["measures"].get("cost") is not None
        ]
        for each in result["contenders"]
    }


def add_svg_namespace(svg: str) -> str:
    """Return an `<svg>` element with the namespace that a file needs."""
    return svg if "xmlns=" in svg else svg.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)


def write_verdicts() -> None:
    """Recompute `verdicts.json` from all stored results; docs/make/generate.py writes the page."""
    results = [upgrade_result(json.loads(path.read_text(encoding="utf-8"))) for path in sorted(RESULTS.glob("*.json"))]
    VERDICTS.write_text(json.dumps(collect_verdicts(results), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def format_json(result: Mapping[str, Any]) -> str:
    """Return a result as JSON with one run per line, so that diffs are short."""
    written = json.dumps({**result, "contenders": None}, indent=1, ensure_ascii=False)
    contenders = [
        json.dumps({key: value for key, value in each.items() if key != "runs"}, ensure_ascii=False)[:-1]
        + ', "runs": [\n   '
        + ",\n   ".join(json.dumps(run, ensure_ascii=False) for run in each["runs"])
        + "]}"
        for each in result["contenders"]
    ]
    return written.replace('"contenders": null', '"contenders": [\n  ' + ",\n  ".join(contenders) + "]", 1) + "\n"


def page(result: Mapping[str, Any]) -> str:
    """Return the page of a result."""
    budget = ", ".join(f"{most:,.0f} {unit.replace('_', ' ')}" for unit, most in result["budget"].items())
    same = f"The same {result['tasks']}"
    lines = [
        f"# {result['question']}",
        "",
        f"{same} held-out tasks and the same warm-up for every contender of a seed;\n{budget} each."
        if budget
        else f"{same} tasks or interactions for every contender; the script defines the training.",
        f"Whetstone {result['version']}, {result['date']}, {result['machine']}.",
        f"`{command_of(result['script']) if result['script'] else 'python -m benchmarks evidence ' + result['name']}`",
        "",
        *format_entry_rule(result),
        "",
    ]
    lines += format_script_table(result) if result["script"] else format_run_table(result)
    if any(cost > 0 for points in costs(result).values() for cost, _ in points):
        lines += ["", *format_cost_table(result)]
    lines += [
        "",
        "## Claims",
        "",
        "| paper | claim | effect | difference with its simultaneous 95 % interval |",
        "| --- | --- | --- | --- |",
    ]
    for claim in result["claims"]:
        figures = "; ".join(format_part(part) for part in claim["parts"])
        effect = f"{claim['verdict']} ({claim['reason']})"
        lines.append(f"| {claim['paper']} | {claim['claim']} | {effect} | {figures} |")
    lines += [f"| {each['paper']} | {each['claim']} | not run | {each['why']} |" for each in result["not_tried"]]
    failures = [
        f"- {each['name']}, seed {run['seed']}: {run['failed']}"
        for each in result["contenders"]
        for run in each["runs"]
        if run["failed"]
    ]
    if failures:
        lines += ["", "## Failed", "", *failures]
    late = [
        f"- {each['name']}, seed {run['seed']}: {run['timed_out']} episodes passed their deadline"
        for each in result["contenders"]
        for run in each["runs"]
        if run.get("timed_out")
    ]
    if late:
        lines += [
            "",
            "## Out of time",
            "",
            *late,
            "",
            "A machine that was suspended for as long has such episodes as well.",
        ]
    return "\n".join(lines) + "\n"


def format_entry_rule(result: Mapping[str, Any]) -> list[str]:
    """Return the entry rule and the detectable difference of a bench, for the top of its page."""
    lines = []
    if result["learning"]:
        low, high = (f"{100 * share:.0f}" for share in START)
        lines.append(
            f"Entry rule: the baseline starts at {low} to {high} % success, gains at least {100 * MIN_GAIN:.0f} points "
            f"in every seed and ends below {100 * MAX_END:.0f} %."
        )
        rows = {each["name"]: {r["seed"]: r for r in each["runs"] if not r["failed"]} for each in result["contenders"]}
        others = [claim["than"] for claim in result["claims"]]
        baselines = dict.fromkeys(name for each in others for name in ([each] if isinstance(each, str) else each))
        for name in baselines:
            problem = check_entry(rows[name]).problem if rows.get(name) else "not run"
            lines.append(f"- {name}: {problem or 'met'}")
    deviation = median_deviation(result["claims"])
    if deviation > 0:
        seeds = max(sum(not run["failed"] for run in each["runs"]) for each in result["contenders"])
        now, eight = (100 * detectable_difference(deviation, count) for count in (max(2, seeds), 8))
        lines += [
            "",
            f"Standard deviation of a run {100 * deviation:.1f} points (median of the comparisons). Detectable at 80 % "
            f"power for one comparison: {now:.0f} points with {seeds} seeds, {eight:.0f} points with 8.",
        ]
    return lines


def format_run_table(result: Mapping[str, Any]) -> list[str]:
    """Return the table of contenders that are recipes."""
    lines = [
        "| contender | success by seed (%) | mean | gain | area | learning curve, 0 to 100 % | sampled tokens |",
        "| --- | --- | --: | --: | --: | --- | --: |",
    ]
    for each in result["contenders"]:
        done = [run for run in each["runs"] if not run["failed"]]
        name = each["name"]
        by_seed = " ".join("failed" if r["failed"] else f"{100 * r['measures']['success']:.0f}" for r in each["runs"])
        if not done:
            lines.append(f"| {name} | {by_seed} | – | – | – | – | – |")
            continue
        success = np.mean([run["measures"]["success"] for run in done])
        gain = success - np.mean([run["before"] for run in done])
        area = np.nanmean(np.array([run["measures"]["area under the curve"] for run in done], dtype=float))
        tokens = np.mean([run["spent"]["sampled_tokens"] for run in done])
        figures = f"{100 * success:.1f} | {100 * gain:+.1f} | {100 * area:.1f} | {curve(done)} | {tokens:,.0f}"
        lines.append(f"| {name} | {by_seed} | {figures} |")
    return lines


def format_cost_table(result: Mapping[str, Any]) -> list[str]:
    """Return the table of costs per episode and the Pareto front."""
    known = {name: points for name, points in costs(result).items() if points}
    means = {name: (float(np.mean([c for c, _ in p])), float(np.mean([s for _, s in p]))) for name, p in known.items()}
    front = pareto_front(means)
    lines = ["| contender | cost of an episode by seed | mean | success | on the front |"]
    lines += ["| --- | --- | --: | --: | --- |"]
    for name, points in known.items():
        cost, success = means[name]
        by_seed = " ".join(f"{each:.1f}" for each, _ in points)
        lines.append(f"| {name} | {by_seed} | {cost:.2f} | {100 * success:.1f} | {'yes' if name in front else ''} |")
    return [*lines, "", f"![Success against the cost of an episode]({result['name']}.svg)"]


def format_script_table(result: Mapping[str, Any]) -> list[str]:
    """Return the table of a script's contenders: every measure, mean over seeds."""
    labels = list(
        dict.fromkeys(label for each in result["contenders"] for run in each["runs"] for label in run["measures"])
    )
    lines = [
        f"| contender | success by seed (%) | {' | '.join(labels)} |",
        "| --- | --- |" + " --: |" * len(labels),
    ]
    for each in result["contenders"]:
        by_seed = " ".join(f"{100 * run['measures']['success']:.0f}" for run in each["runs"])
        cells = []
        for label in labels:
            known = [run["measures"][label] for run in each["runs"] if run["measures"].get(label) is not None]
            cells.append(f"{np.mean(known):,.3g}" if known else "–")
        lines.append(f"| {each['name']} | {by_seed} | {' | '.join(cells)} |")
    return lines


def curve(runs: Sequence[Mapping[str, Any]], points: int = 16) -> str:
    """Return the mean learning curve of runs as a line of bars.

    >>> curve([{"curve": [[0, 10], [0.0, 1.0]]}], points=2)
    '▁█'
    """
    curves = [run["curve"] for run in runs if run["curve"][0]]
    if not curves:
        return ""
    places = np.linspace(max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves), points)
    mean = np.mean([np.interp(places, x, y) for x, y in curves], axis=0)
    return "".join(_BARS[min(7, int(8 * height))] for height in mean)


if __name__ == "__main__":
    main()
