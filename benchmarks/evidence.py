"""Do papers' claims hold at small scale? One bench of `benchmarks/evidence`: its contenders on the same tasks, behind
the same warm-up, with the same budget, over several seeds.

    python benchmarks/evidence.py credit --seeds 5
    python benchmarks/evidence.py credit --only grpo gigpo --seeds 2     # the rest of the result stays as it is
    python benchmarks/evidence.py credit --write                        # benchmarks/results/evidence/credit.{json,md}
    python benchmarks/evidence.py all --judge                           # stored results under the claims of today

Stopped or killed at any moment, the same command goes on. One thread; `--idle` takes only time nobody else wants.
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

from whetstone.analysis.evidence import Bench, assembled, judged_anew, read_bench, run_bench, stale
from whetstone.analysis.measures import upgrade_result
from whetstone.analysis.papers import part_line, verdicts_of
from whetstone.analysis.repeats import repeats_of
from whetstone.analysis.silence import silence_of
from whetstone.errors import WhetstoneError, did_you_mean
from whetstone.reporting import Progress
from whetstone.reporting.front import front_chart, front_of
from whetstone.training.interruption import Interrupted

HERE = Path(__file__).parent
BENCHES, RESULTS = HERE / "evidence", HERE / "results" / "evidence"
VERDICTS = HERE.parent / "src" / "whetstone" / "analysis" / "verdicts.json"
_BARS = "▁▂▃▄▅▆▇█"


def main() -> None:
    """Run a bench and tell what became of its claims."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="of a file of benchmarks/evidence, or a file; with --judge also: all")
    parser.add_argument("--seeds", type=int, help="how many; as the file says")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=[], metavar="CONTENDER")
    parser.add_argument("--runs", type=Path, help="where runs are kept: runs/evidence/NAME")
    parser.add_argument("--write", action="store_true", help="keep the result among benchmarks/results/evidence")
    parser.add_argument("--check", action="store_true", help="make every part, train nothing")
    parser.add_argument("--judge", action="store_true", help="judge what is stored under today's claims, run nothing")
    parser.add_argument("--idle", action="store_true", help="run with time that nothing else wants")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.idle:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    try:
        told = evidence(arguments)
    except WhetstoneError as error:
        print(f"evidence: {error}", file=sys.stderr)
        sys.exit(2)
    except Interrupted as stop:
        print(f"evidence: {stop}; the same command goes on", file=sys.stderr)
        sys.exit(128 + stop.signal)
    if told is not None:
        print(json.dumps(told) if arguments.json else page(told))


def evidence(arguments: argparse.Namespace) -> dict[str, Any] | None:
    """The bench's result; None where it was only checked or judged."""
    if arguments.judge:
        judge(arguments.name)
        return None
    path = Path(arguments.name) if arguments.name.endswith(".yaml") else BENCHES / f"{arguments.name}.yaml"
    if not path.is_file():
        known = sorted(file.stem for file in BENCHES.glob("*.yaml"))
        raise WhetstoneError(
            f"no bench {arguments.name}{did_you_mean(arguments.name, known)}; there are {', '.join(known)}"
        )
    settings = read_bench(path)
    bench: Bench = assembled(path.stem, settings, only=arguments.only)
    if arguments.check:
        print(f"{path.stem}: {len(bench.contenders)} contenders can be made, {len(settings.claims)} claims")
        return None
    stored = RESULTS / f"{path.stem}.json"
    told = run_bench(
        bench,
        seeds=range(arguments.first_seed, arguments.first_seed + (arguments.seeds or settings.seeds)),
        folder=arguments.runs or Path("runs") / "evidence" / path.stem,
        stored=upgrade_result(json.loads(stored.read_text(encoding="utf-8"))) if stored.is_file() else None,
        progress=Progress(quiet=arguments.json),
        machine=machine(),
    )
    if arguments.write:
        keep(told)
    return told


def judge(name: str) -> None:
    """Write stored results and their pages anew, as their claims are now.

    Args:
        name: Of a bench; all: every one that has a result.

    Raises:
        WhetstoneError: It has none.
    """
    stored = sorted(RESULTS.glob("*.json") if name == "all" else RESULTS.glob(f"{name}.json"))
    if not stored:
        raise WhetstoneError(f"{name} has no stored result in {RESULTS}; run it with --write")
    for path in stored:
        result = upgrade_result(json.loads(path.read_text(encoding="utf-8")))
        judged = judged_anew(read_bench(BENCHES / path.name.replace(".json", ".yaml")), result)
        keep(judged)
        print(f"{path.stem}: {', '.join(claim['verdict'] for claim in judged['claims'])}")


def machine() -> str:
    """What it runs on, in words."""
    return f"{platform.machine()}, {platform.system()}, one thread"


def keep(told: Mapping[str, Any]) -> None:
    """Put a result among those that are stored, and what it says of papers where `whetstone papers` reads it."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    stored = RESULTS / f"{told['name']}.json"
    stored.write_text(as_text(told), encoding="utf-8")
    stored.with_suffix(".md").write_text(page(told), encoding="utf-8")
    front = front_chart(costs(told))
    if front:
        stored.with_suffix(".svg").write_text(with_name_space(front), encoding="utf-8")
    write_verdicts()


def costs(told: Mapping[str, Any]) -> dict[str, list[tuple[float, float]]]:
    """By contender, (cost, share solved) of each run, where a claim measures what episodes cost."""
    return {
        each["name"]: [
            (run["measures"]["cost"], run["measures"]["success"])
            for run in each["runs"]
            if not run["failed"] and run["measures"].get("cost") is not None
        ]
        for each in told["contenders"]
    }


def with_name_space(svg: str) -> str:
    """An `<svg>` element as a file of its own."""
    return svg if "xmlns=" in svg else svg.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)


def write_verdicts() -> None:
    """What all stored results say of papers, for `whetstone papers`; docs/generate.py makes the page of it."""
    results = [upgrade_result(json.loads(path.read_text(encoding="utf-8"))) for path in sorted(RESULTS.glob("*.json"))]
    VERDICTS.write_text(json.dumps(verdicts_of(results), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def as_text(told: Mapping[str, Any]) -> str:
    """A result as JSON, a run a line, so that what changed is read in a diff."""
    written = json.dumps({**told, "contenders": None}, indent=1, ensure_ascii=False)
    contenders = [
        json.dumps({key: value for key, value in each.items() if key != "runs"}, ensure_ascii=False)[:-1]
        + ', "runs": [\n   '
        + ",\n   ".join(json.dumps(run, ensure_ascii=False) for run in each["runs"])
        + "]}"
        for each in told["contenders"]
    ]
    return written.replace('"contenders": null', '"contenders": [\n  ' + ",\n  ".join(contenders) + "]", 1) + "\n"


def page(told: Mapping[str, Any]) -> str:
    """A result for people."""
    budget = ", ".join(f"{most:,.0f} {unit.replace('_', ' ')}" for unit, most in told["budget"].items())
    same = f"The same {told['tasks']}"
    lines = [
        f"# {told['question']}",
        "",
        f"{same} held-out tasks, greedy; the same warm-up for every contender of a seed;\n{budget} each."
        if budget
        else f"{same} tasks or interactions for every contender; the script says how long each learns.",
        f"Whetstone {told['version']}, {told['date']}, {told['machine']}.",
        f"`python benchmarks/{told['script'] or 'evidence.py ' + told['name']}`",
        "",
    ]
    lines += of_script(told) if told["script"] else of_runs(told)
    if any(cost > 0 for points in costs(told).values() for cost, _ in points):
        lines += ["", *of_costs(told)]
    lines += [
        "",
        "## Claims",
        "",
        "| paper | claim | verdict | difference (95 % over seeds), p over tasks |",
        "| --- | --- | --- | --- |",
    ]
    for claim in told["claims"]:
        shown = "; ".join(part_line(part) for part in claim["parts"]) or claim.get("why", "")
        lines.append(f"| {claim['paper']} | {claim['claim']} | {claim['verdict']} | {shown} |")
    lines += [f"| {each['paper']} | {each['claim']} | not tried | {each['why']} |" for each in told["not_tried"]]
    lines += [*of_silence(told), *of_repeats(told)]
    failures = [
        f"- {each['name']}, seed {run['seed']}: {run['failed']}"
        for each in told["contenders"]
        for run in each["runs"]
        if run["failed"]
    ]
    if failures:
        lines += ["", "## Failed", "", *failures]
    late = [
        f"- {each['name']}, seed {run['seed']}: {run['timed_out']} episodes passed their deadline"
        for each in told["contenders"]
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
            "A machine that was suspended for as long makes such episodes, too.",
        ]
    lines += [
        "",
        "**held**: for every part, the 95 % interval over seeds of the paired difference lies on the claimed side of",
        "0; **held in part**: that of some part does, or the mean does with p < 0.05 of a permutation test over tasks,",
        "after Holm; **not held at this scale**: else. A failed run is never left out: with one a claim holds in part",
        "at most. Of a single seed nothing is said.",
    ]
    return "\n".join(lines) + "\n"


def of_silence(told: Mapping[str, Any]) -> list[str]:
    """Comparisons that could have shown nothing, and why."""
    found = [
        f"- {claim['better']} against {part['than']}, {part['measure']}: {why}."
        for claim in told["claims"]
        for part in claim["parts"]
        if (why := silence_of(told, claim, part))
    ]
    return ["", "## What could show nothing", "", *dict.fromkeys(found)] if found else []


def of_repeats(told: Mapping[str, Any]) -> list[str]:
    """What later seeds say of each claim, where there are as many as to say something."""
    settings = read_bench(BENCHES / f"{told['name']}.yaml") if (BENCHES / f"{told['name']}.yaml").is_file() else None
    repeats = repeats_of(settings, told) if settings is not None else []
    if settings is None or not repeats:
        return []
    share = ("success", "area under the curve")
    agreed = sum(each["agrees"] for each in repeats)
    lines = [
        "",
        "## Repeated",
        "",
        f"The first {settings.seeds} seeds against those run later. {agreed} of {len(repeats)} later means lie in the",
        "interval of the first.",
        "",
        "| claim | measure | first | later | verdicts | agrees |",
        "| --- | --- | --- | --: | --- | --- |",
    ]
    for each in repeats:
        scale = 100.0 if each["measure"] in share else 1.0
        low, high = (scale * end for end in each["interval"])
        first = f"{scale * each['first']:+.1f} ({low:+.1f} to {high:+.1f})"
        said = each["verdicts"][0] if len(set(each["verdicts"])) == 1 else " → ".join(each["verdicts"])
        later, agrees = f"{scale * each['again']:+.1f}", "yes" if each["agrees"] else "no"
        measured = f"{each['measure']} against {each['than']}"
        lines.append(f"| {each['claim']} | {measured} | {first} | {later} | {said} | {agrees} |")
    return lines


def of_runs(told: Mapping[str, Any]) -> list[str]:
    """The table of contenders that are recipes."""
    lines = [
        "| contender | success by seed (%) | mean | gain | area | learning curve, 0 to 100 % | sampled tokens |",
        "| --- | --- | --: | --: | --: | --- | --: |",
    ]
    old = stale(told)
    for each in told["contenders"]:
        done = [run for run in each["runs"] if not run["failed"]]
        name = each["name"] + (" (stale: of another version or recipe)" if each["name"] in old else "")
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


def of_costs(told: Mapping[str, Any]) -> list[str]:
    """What an episode cost, and who is on the front."""
    found = {name: points for name, points in costs(told).items() if points}
    means = {name: (float(np.mean([c for c, _ in p])), float(np.mean([s for _, s in p]))) for name, p in found.items()}
    front = front_of(means)
    lines = ["| contender | cost of an episode by seed | mean | success | on the front |"]
    lines += ["| --- | --- | --: | --: | --- |"]
    for name, points in found.items():
        cost, success = means[name]
        by_seed = " ".join(f"{each:.1f}" for each, _ in points)
        lines.append(f"| {name} | {by_seed} | {cost:.2f} | {100 * success:.1f} | {'yes' if name in front else ''} |")
    return [*lines, "", f"![Success against the cost of an episode]({told['name']}.svg)"]


def of_script(told: Mapping[str, Any]) -> list[str]:
    """The table of contenders that a script made: every measure, over seeds."""
    labels = list(
        dict.fromkeys(label for each in told["contenders"] for run in each["runs"] for label in run["measures"])
    )
    lines = [
        f"| contender | success by seed (%) | {' | '.join(labels)} |",
        "| --- | --- |" + " --: |" * len(labels),
    ]
    for each in told["contenders"]:
        by_seed = " ".join(f"{100 * run['measures']['success']:.0f}" for run in each["runs"])
        cells = []
        for label in labels:
            known = [run["measures"][label] for run in each["runs"] if run["measures"].get(label) is not None]
            cells.append(f"{np.mean(known):,.3g}" if known else "–")
        lines.append(f"| {each['name']} | {by_seed} | {' | '.join(cells)} |")
    return lines


def curve(runs: Sequence[Mapping[str, Any]], points: int = 16) -> str:
    """The mean learning curve of some runs as a line of bars.

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
