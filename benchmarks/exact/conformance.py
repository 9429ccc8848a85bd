"""Check a trainer for silent failures: stale weights, lost prompts, outages that count as failures, and others.

Each check plays small training runs in processes of the trainer and judges their record. Adapters for Whetstone and
TRL are in `conformance_suite/`; one for another trainer is a script that reads a scenario and calls `Recorder`
(`scenario.py`), run by the interpreter of that trainer.

    python -m benchmarks conformance                                          # Whetstone
    python -m benchmarks conformance --trainer trl --python venv/bin/python   # TRL, in its own environment
    python -m benchmarks conformance --trainer my_adapter.py                  # another trainer
    python -m benchmarks conformance --checks hung_tool_ends --keep runs      # one check; keep its runs
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from import_paths import python_path
from publishing import add_output_options, publish
from whetstone.errors import did_you_mean

SUITE = Path(__file__).parent / "conformance_suite"
ADAPTERS = {"whetstone": SUITE / "whetstone_adapter.py", "trl": SUITE / "trl_adapter.py"}
RUN_SECONDS, POLL_SECONDS = 300.0, 0.05
REFUSED = 3


class Refused(Exception):
    """The adapter cannot play a scenario."""


@dataclass
class Player:
    """Plays scenarios with an adapter, each once."""

    adapter: Path
    python: str
    folder: Path
    played: dict[str, Any] = field(default_factory=dict)

    def __call__(self, name: str, *, kill_after: int = 0, **fields: Any) -> Any:
        """Return the record of a scenario.

        Raises:
            Refused: The trainer is not installed, or does not support it.
        """
        from conformance_suite.checks import Outcome, Record
        from conformance_suite.scenario import Scenario

        if name in self.played:
            return self.played[name]
        out = self.folder / name
        out.mkdir(parents=True)
        pause = 2.0 if kill_after else 0.0
        scenario = Scenario(str(self.folder / "world"), str(out), seconds_per_update=pause, **fields)
        outcome, resumed_at = self._run(scenario, kill_after=kill_after), 0.0
        if kill_after and outcome.error == "killed":
            resumed_at = time.time()
            second = Scenario(str(self.folder / "world"), str(out), resume=True, **fields)
            outcome = self._run(second)
        self.played[name] = Record(scenario, outcome, resumed_at)
        assert isinstance(self.played[name].outcome, Outcome)
        return self.played[name]

    def _run(self, scenario: Any, *, kill_after: int = 0) -> Any:
        """Run the adapter until it ends, has made `kill_after` updates, or hangs."""
        from conformance_suite.checks import HUNG_SECONDS, Outcome
        from conformance_suite.scenario import read_rows

        out = Path(scenario.out)
        path = out / ("again.json" if scenario.resume else "scenario.json")
        scenario.save(path)
        paths = [str(SUITE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        silent = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        environment = {**os.environ, **silent, "PYTHONPATH": os.pathsep.join(paths)}
        log = out / "stderr.txt"
        with log.open("a") as stderr:
            process = subprocess.Popen(
                [self.python, str(self.adapter), str(path)],
                env=environment,
                stdout=stderr,
                stderr=stderr,
                start_new_session=True,
            )
            started, killed = time.monotonic(), ""
            while process.poll() is None and not killed:
                time.sleep(POLL_SECONDS)
                hangs = [row["time"] for row in read_rows(out, "faults") if row["kind"] == "hang"]
                if kill_after and any(row["done"] >= kill_after for row in read_rows(out, "updates")):
                    killed = self._await_checkpoint(scenario)
                elif hangs and time.time() - hangs[0] > HUNG_SECONDS:
                    killed = "hung"
                elif time.monotonic() - started > RUN_SECONDS:
                    killed = f"no end after {RUN_SECONDS:.0f} s"
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        last = lines[-1] if lines else f"exit code {code}"
        if code == REFUSED:
            raise Refused(last)
        return Outcome(finished=code == 0 and not killed, error=killed or last[:300])

    def _await_checkpoint(self, scenario: Any) -> str:
        """Wait during the pause after an update, in which its checkpoint is written."""
        time.sleep(scenario.seconds_per_update / 2)
        return "killed"


def read_not_claimed(adapter: Path) -> dict[str, str]:
    """Return `NOT_CLAIMED` of an adapter: check → reason for which its trainer does not claim the property."""
    for node in ast.parse(adapter.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and any(getattr(each, "id", "") == "NOT_CLAIMED" for each in node.targets):
            return dict(ast.literal_eval(node.value))
    return {}


def judge(check: Any, player: Player, not_claimed: dict[str, str]) -> dict[str, Any]:
    """Run a check and return its result."""
    from conformance_suite.checks import Broken, Undecided

    began = time.monotonic()
    try:
        result, measured = "passes", check.run(player)
    except Broken as broken:
        result, measured = ("not applicable" if check.name in not_claimed else "fails"), str(broken)
    except Undecided as undecided:
        result, measured = "undecided", str(undecided)
    except Refused as refused:
        result, measured = "not applicable", str(refused)
    row = {"check": check.name, "result": result, "measured": measured}
    if result == "not applicable" and check.name in not_claimed:
        row["reason"] = not_claimed[check.name]
    return {**row, "seconds": round(time.monotonic() - began, 1)}


def run_suite(adapter: Path, python: str, folder: Path, names: list[str]) -> dict[str, Any]:
    """Run checks of one trainer and return their results."""
    from conformance_suite.checks import CHECKS
    from conformance_suite.world import build_world

    build_world(folder / "world")
    player, not_claimed, rows = Player(adapter, python, folder), read_not_claimed(adapter), []
    for check in CHECKS:
        if check.name in names:
            rows.append(judge(check, player, not_claimed))
            print(f"{check.name}: {rows[-1]['result']}: {rows[-1]['measured']}", file=sys.stderr)
    trainers = [row for record in player.played.values() for row in record.rows("trainer")]
    trainer = {key: trainers[0][key] for key in ("name", "version")} if trainers else {"name": adapter.stem}
    return {"trainer": trainer, "rows": rows, "seconds": round(sum(row["seconds"] for row in rows), 1)}


def format_page(result: dict[str, Any]) -> str:
    """Return the results of all trainers as a page."""
    from conformance_suite.checks import CHECKS

    names = [f"{each['trainer']['name']} {each['trainer'].get('version', '')}".strip() for each in result["trainers"]]
    lines = [
        "# Conformance of trainers",
        "",
        "Which silent failures does a trainer have? Each check plays training runs of a tiny model and judges the",
        "record; see [What trainers do silently](../../docs/guide/what-trainers-do-silently.md).",
        "",
        f"| check | {' | '.join(names)} |",
        f"| --- |{' --- |' * len(names)}",
    ]
    rows = [{row["check"]: row for row in each["rows"]} for each in result["trainers"]]
    for check in CHECKS:
        cells = [by_name[check.name]["result"] if check.name in by_name else "" for by_name in rows]
        lines.append(f"| `{check.name}` | {' | '.join(cells)} |")
    for name, each in zip(names, result["trainers"], strict=True):
        lines += ["", f"## {name}", "", f"{each['seconds']:.0f} seconds.", ""]
        for row in each["rows"]:
            reason = f" {row['reason']}" if "reason" in row else ""
            lines.append(f"- `{row['check']}`: {row['result']}. {row['measured']}.{reason}")
    lines += ["", f"{result['machine']}.", ""]
    return "\n".join(lines)


def main() -> int:
    """Run the suite; the exit code is 1 if a check fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", default="whetstone", help="whetstone, trl, or an adapter script")
    parser.add_argument("--python", default=sys.executable, help="interpreter with the trainer")
    parser.add_argument("--checks", nargs="+", metavar="CHECK", help="checks to run; default: all")
    parser.add_argument("--keep", type=Path, help="new folder for the runs, which are kept")
    options = add_output_options(parser).parse_args()
    from transformers.utils import logging

    from conformance_suite.checks import CHECKS

    logging.disable_progress_bar()
    known = [check.name for check in CHECKS]
    for name in options.checks or ():
        if name not in known:
            parser.error(f"no check {name}{did_you_mean(name, known)}")
    adapter = ADAPTERS.get(options.trainer, Path(options.trainer))
    if not adapter.is_file():
        parser.error(f"--trainer {options.trainer}: no such adapter; use {' or '.join(ADAPTERS)}, or a script")
    if options.trainer == "whetstone":
        os.environ["PYTHONPATH"] = python_path()
    with contextlib.ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="conformance-")))
        suite = run_suite(adapter.resolve(), options.python, folder.resolve(), options.checks or known)
    stored = options.write / "raw" / "conformance.json" if options.write is not None else None
    others = json.loads(stored.read_text())["trainers"] if stored is not None and stored.is_file() else []
    trainers = [each for each in others if each["trainer"]["name"] != suite["trainer"]["name"]] + [suite]
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    publish({"name": "conformance", "trainers": trainers, "machine": machine}, format_page, options)
    return int(any(row["result"] == "fails" for row in suite["rows"]))


if __name__ == "__main__":
    sys.exit(main())
