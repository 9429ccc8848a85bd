"""`make setup`, `make demo` and `make test` from clean clones, on a machine made as bare as each setting requires.

Each setting is a clean clone of the committed tree. Run it as root: it adds an ordinary user, and limits what commands
can use (no further user namespaces, an empty read-only `/dev/shm`, no network). Install no other programs first: tests
that need them are then not skipped.

    python -m benchmarks bare_machine --folder DIR --seeds 5             all settings; a finished one is not repeated
    python -m benchmarks bare_machine --folder DIR --only combined --write

`--write` stores the result of all finished settings in benchmarks/results.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pwd
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from circumstances import circumstances

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parents[1] / "results"
USER = "whetstone-bare"
AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}


@dataclasses.dataclass(frozen=True)
class Setting:
    """How bare the machine is."""

    title: str
    python: str = sys.executable
    ordinary: bool = False
    """Whether an ordinary user runs the commands, instead of root."""
    namespaces: bool = True
    """Whether user namespaces are allowed."""
    avx2: bool = False
    """Whether PyTorch is limited to AVX2."""
    narrow: bool = False
    """Whether the path has a space, `/dev/shm` is missing, and there is no network after setup."""
    demo: bool = True
    """Whether the demo is run."""


DEBIAN = "/usr/bin/python3"
SETTINGS = {
    "avx2": Setting("AVX2 forced, root", avx2=True),
    "combined": Setting(
        "all combined: ordinary user, Debian's Python, no user namespaces, AVX2, path with a space, no /dev/shm, "
        "no network after setup",
        python=DEBIAN, ordinary=True, namespaces=False, avx2=True, narrow=True,
    ),
    "root": Setting("root, Python below a home directory that only root can read"),
    "ordinary": Setting("ordinary user, Debian's Python", python=DEBIAN, ordinary=True),
    "no-namespaces": Setting("ordinary user, no user namespaces", python=DEBIAN, ordinary=True, namespaces=False),
}  # fmt: skip


def run_make(clone: Path, target: str, setting: Setting, log: Path) -> tuple[int, float]:
    """Run a target of the Makefile and return (exit code, seconds); its output is in `log`."""
    variables = AVX2 if setting.avx2 else {}
    words = ["env", "-u", "VIRTUAL_ENV", *(f"{name}={value}" for name, value in variables.items())]
    words += ["make", "-C", str(clone), target, f"PYTHON={setting.python}"]
    if not setting.namespaces:  # a user namespace in which no further one can be created
        forbid = 'echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --bounding-set=-all --inh-caps=-all "$@"'
        words = ["unshare", "--user", "--map-current-user", "--keep-caps", "sh", "-c", forbid, "sh", *words]
    if setting.ordinary:
        words = ["su", USER, "-s", "/bin/bash", "-c", shlex.join(words)]
    if setting.narrow:
        steps = ["empty=$(mktemp -d)", "chmod 755 $empty", "mount --bind -o ro $empty /dev/shm"]
        if target != "setup":
            steps.append("ip link set lo up")
        script = "; ".join([*steps, f"exec {shlex.join(words)}"])
        isolated = ["--mount"] if target == "setup" else ["--mount", "--net"]
        words = ["unshare", *isolated, "bash", "-c", script]
    started = time.perf_counter()
    with log.open("w") as output:
        done = subprocess.run(words, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, check=False)
    return done.returncode, time.perf_counter() - started


def measure(name: str, setting: Setting, folder: Path) -> dict[str, Any]:
    """Measure one setting; a clone that is there is replaced."""
    home = Path(pwd.getpwnam(USER).pw_dir) if setting.ordinary else folder
    clone = home / (f"bare {name}" if setting.narrow else f"bare-{name}")
    shutil.rmtree(clone, ignore_errors=True)
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    if setting.ordinary:
        subprocess.run(["chown", "-R", f"{USER}:{USER}", str(clone)], check=True)
    result: dict[str, Any] = {"title": setting.title}
    for target in ("setup", *(["demo"] if setting.demo else []), "test"):
        log = folder / f"{name}-{target}.log"
        code, seconds = run_make(clone, target, setting, log)
        result[target] = {"exit_code": code, "minutes": round(seconds / 60, 2)}
        if target == "test":
            result[target] |= counts_of(log.read_text(errors="replace"))
        if target == "demo" and code == 0:
            result[target] |= timeline_of(clone / "runs" / "demo")
    shutil.rmtree(clone)
    return result


def measure_seeds(count: int, folder: Path) -> list[dict[str, Any]]:
    """Run the whole demo, ablation included, with AVX2 forced for `count` seeds; a finished run is not repeated."""
    rows = []
    for seed in range(count):
        run, timed = folder / f"seed-{seed}", folder / f"seed-{seed}.json"
        if not timed.is_file():
            command = [sys.executable, "-m", "whetstone.cli.main", "train", "demo", f"seed={seed}"]
            shutil.rmtree(run, ignore_errors=True)  # the minutes of a resumed run would not be those of the demo
            started = time.perf_counter()
            with (folder / f"seed-{seed}.log").open("w") as log:
                words = [*command, "--run-dir", str(run)]
                subprocess.run(words, env={**os.environ, **AVX2}, stdout=log, stderr=log, check=True)
            minutes = (time.perf_counter() - started) / 60
            timed.write_text(json.dumps({"seed": seed, "minutes": round(minutes, 2), **timeline_of(run)}))
        rows.append(json.loads(timed.read_text()))
    return rows


def counts_of(output: str) -> dict[str, Any]:
    """Return the counts of pytest's last line, and the lines that list of skipped tests with reasons."""
    lines = output.splitlines()
    counts = dict.fromkeys(("passed", "failed", "skipped", "errors"), 0)
    for line in lines:
        pairs = re.findall(r"(\d+) (passed|failed|skipped|error)", line)
        if re.search(r"\d+ passed", line) and pairs:
            counts |= {("errors" if kind == "error" else kind): int(number) for number, kind in pairs}
    listed = [line.strip() for line in lines if re.match(r" +\d+  \S", line)]
    reasons = [re.sub(r"/\S*/(data/)?", "data/", line) if " into /" in line else line for line in listed]
    return {**counts, "reasons": reasons}


def timeline_of(run: Path) -> dict[str, Any]:
    """Return success and seconds of each stage of a finished demo and of its ablation."""
    summary = json.loads((run / "summary.json").read_text())
    after = {name: value["success"] for name, value in summary["evaluations"].items()}
    ablation = {name: each["after"]["success"] for name, each in summary["ablations"].items()}
    seconds = {f"ablation {name}": each["seconds"] for name, each in summary["ablations"].items()}
    return {"success": after, "ablations": ablation, "seconds": {**summary["seconds"], **seconds}}


def page_of(
    results: dict[str, dict[str, Any]], seeds: list[dict[str, Any]], where: dict[str, Any], note: str = ""
) -> str:
    """Return the page of all finished settings and seeds; `note` describes the machine while the seeds ran."""
    machine = where["machine"]
    lines = [
        "# A bare machine",
        "",
        f"`python -m benchmarks bare_machine --folder DIR --seeds 5 --write`, {machine['processor']}, "
        f"{machine['cores']} cores.",
        "Clean clones; no program was installed for the tests (bubblewrap and Chromium are missing).",
        "",
        "## `make demo`",
        "",
        "| setting | setup, minutes | demo, minutes | success by stage | without the tool | seconds of training |",
        "| --- | ---: | ---: | --- | ---: | --- |",
    ]
    for result in results.values():
        if (demo := result.get("demo")) is None:
            continue
        stages = ", ".join(f"{name} {100 * value:.1f} %" for name, value in demo.get("success", {}).items())
        without = ", ".join(f"{100 * value:.1f} %" for value in demo.get("ablations", {}).values())
        seconds = ", ".join(f"{name} {value:.0f}" for name, value in demo.get("seconds", {}).items())
        setup = result["setup"]["minutes"]
        lines.append(f"| {result['title']} | {setup} | {demo['minutes']} | {stages} | {without} | {seconds} |")
    if seeds:
        lines += ["", "## Success of the demo by seed", ""]
        lines += [
            "Greedy success on 500 held-out tasks, AVX2 forced (`whetstone train demo seed=N`). The minutes include"
        ]
        lines += [f"the start, the evaluations and the report. {note}".rstrip(), ""]
        columns = (
            "seed",
            "untrained",
            "supervised",
            "reinforcement",
            "without the tool",
            "minutes",
            "seconds of training",
        )
        lines += [f"| {' | '.join(columns)} |", "| ---: | ---: | ---: | ---: | ---: | ---: | --- |"]
        for row in seeds:
            values = [f"{100 * value:.1f} %" for value in (*row["success"].values(), *row["ablations"].values())]
            seconds = ", ".join(f"{name} {value:.0f}" for name, value in row["seconds"].items())
            lines.append(f"| {row['seed']} | {' | '.join(values)} | {row['minutes']} | {seconds} |")
    lines += ["", "## `make test`", ""]
    lines += ["| setting | minutes | passed | failed | skipped |", "| --- | ---: | ---: | ---: | ---: |"]
    for result in results.values():
        test = result["test"]
        failed = test["failed"] + test["errors"]
        lines.append(f"| {result['title']} | {test['minutes']} | {test['passed']} | {failed} | {test['skipped']} |")
    lines += ["", "## Skipped tests and reasons", ""]
    for result in results.values():
        lines += [f"**{result['title']}**", "", *(f"- {reason}" for reason in result["test"]["reasons"]), ""]
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    """Measure the settings and print them as one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="folder for clones, logs and finished settings")
    parser.add_argument("--only", nargs="*", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--without-demo", action="store_true", help="measure setup and tests only")
    parser.add_argument("--seeds", type=int, default=0, help="also train the demo for this number of seeds")
    parser.add_argument("--note", default="", help="sentences about the machine, for the table of seeds")
    parser.add_argument("--write", action="store_true", help="store the result in benchmarks/results")
    parser.add_argument("--json", action="store_true", help="accepted for uniformity: the output is JSON")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("benchmarks/robust/bare_machine.py: adds a user and limits namespaces; run it as root")
    began = time.perf_counter()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    try:
        pwd.getpwnam(USER)
    except KeyError:
        subprocess.run(["useradd", "--create-home", USER], check=True)
    store = arguments.folder / "results.json"
    results: dict[str, dict[str, Any]] = json.loads(store.read_text()) if store.is_file() else {}
    for name in arguments.only:
        if name not in results:
            setting = dataclasses.replace(SETTINGS[name], demo=SETTINGS[name].demo and not arguments.without_demo)
            results[name] = measure(name, setting, arguments.folder)
            store.write_text(json.dumps(results, indent=1))
    results = {name: results[name] for name in SETTINGS if name in results}
    seeds = measure_seeds(arguments.seeds, arguments.folder)
    where = circumstances(began)
    if arguments.write:
        stored = {"name": "bare_machine", "settings": results, "seeds": seeds, "note": arguments.note, **where}
        (RESULTS / "raw" / "bare_machine.json").write_text(json.dumps(stored, indent=1) + "\n")
        (RESULTS / "bare_machine.md").write_text(page_of(results, seeds, where, arguments.note))
    print(json.dumps({"name": "bare_machine", "measured": results, "seeds": seeds, **where}, indent=1))


if __name__ == "__main__":
    main()
