"""Train short runs that cover the components of training and print a checksum of the final weights of each.

    python -m benchmarks same_weights > before.json          # on the commit before a refactoring
    python -m benchmarks same_weights --against before.json  # on the commit after it

Equal checksums mean weights that are equal bit for bit. Arithmetic depends on the processor and the build of PyTorch,
so both files must come from one machine. Every run also checks its metrics, so that a setting that no longer has an
effect fails the run, and no two runs may end with the same weights.

The first run trains a policy that calls its tool, which the other runs start from. Its reward is random in effect
(`parity`), so that groups have successes and failures. Settings are written with the names of commit 9e27b57; where
the checked commit refuses one as renamed, the run is repeated with the new name.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open

from whetstone.trajectory import Score, Task, Trajectory

HERE = Path(__file__).resolve().parent
BASE = "base"
"""The run that trains the policy the others start from."""
ALWAYS = ["ablations=null", "evaluation.episodes=2"]
PARITY = "reward=same_weights:parity"
FROM_BASE = ["policy.tiny=null", "policy.path={base_policy}", "supervised=null"]
SHORT = [
    "reinforcement.steps=2",
    "reinforcement.optimizer=adamw",
    "reinforcement.tasks_per_step=4",
    "rollout.group_size=4",
]
"""`muon` would choose its precision by measured time."""
MULTI_TURN = [*FROM_BASE, *SHORT, PARITY]
TINY = [
    "policy.tiny.hidden=64",
    "policy.tiny.heads=2",
    "policy.tiny.layers=1",
    "policy.tiny.intermediate=128",
    "policy.tiny.context_length=512",
]
TWO_CRITICS = ["critic.ensemble=2", "critic.warm_up=1"]


@dataclass(frozen=True)
class Run:
    """Arguments of `whetstone train`, and metrics that are above or below 0 in some step if the component ran.

    Each check is a metric, or the old and new names of a renamed metric separated by `|`; `AREA/` means any metric of
    that area, and `text:TEXT` a text in a stored trajectory.
    """

    arguments: Sequence[str]
    checks: Sequence[str]


def method(name: str, *changes: str) -> list[str]:
    """Arguments that train the base policy by a built-in method."""
    return [name, *MULTI_TURN, *changes]


RUNS: Mapping[str, Run] = {
    BASE: Run(
        [
            "demo",
            *TINY,
            *SHORT,
            PARITY,
            "supervised.steps=100",
            "supervised.batch_size=24",
            "supervised.optimizer=muon_float32",
            "reinforcement.tasks_per_step=8",
        ],
        ["loss/supervised", "episode/tool_calls", "advantage/abs_mean"],
    ),
    "grpo": Run(["demo", *MULTI_TURN], ["policy/clip_fraction|policy/entropy", "episode/tool_calls"]),
    "muon_bfloat16": Run(["demo", *MULTI_TURN, "reinforcement.optimizer=muon_bfloat16"], ["update/relative_norm"]),
    "muon_float32": Run(["demo", *MULTI_TURN, "reinforcement.optimizer=muon_float32"], ["update/relative_norm"]),
    "adapters": Run(["demo", *MULTI_TURN, "policy.lora.rank=4"], ["update/relative_norm"]),
    "asynchronous": Run(
        method("decoupled-ppo", "reinforcement.deterministic=true", "reinforcement.steps=4"),
        ["policy/staleness_max", "correction/weight|importance/weight_mean"],
    ),
    "token_critic": Run(
        method("ppo", "critic.warm_up=1", "reinforcement.steps=4"), ["loss/value", "value/error|value/loss"]
    ),
    "critic_ensemble": Run(
        method("archer", *TWO_CRITICS, "reinforcement.steps=4"),
        ["loss/value", "value/deviation|value/ensemble_std"],
    ),
    "pairwise_objective": Run(method("online-dpo"), ["preference/pairs"]),
    "entropy_branching": Run(method("entropy-branching"), ["cost_per_group/reused_tokens", "update/shared_fraction"]),
    "tree_search": Run(method("tree-ps"), ["cost_per_group/reused_tokens", "update/shared_fraction"]),
    "summary": Run(method("supo"), ["episode/new_segments|episode/context_resets"]),
    "self_play": Run(
        [
            "dealing",
            *SHORT,
            PARITY,
            "supervised.steps=20",
            "supervised.optimizer=muon_float32",
            "policy.tiny.hidden=64",
            "policy.tiny.layers=1",
            "advantage=dr_mas",
        ],
        ["advantage/abs_mean", 'text:"role":"buyer"', 'text:"role":"seller"'],
    ),
    "distillation": Run(
        [
            "demo",
            *TINY,
            "supervised=null",
            "reinforcement=null",
            "stages=[{distillation: {steps: 2, tasks_per_step: 4, optimizer: adamw}}]",
            "teacher.path={base_policy}",
        ],
        ["distillation/advantage"],
    ),
    "success_replay": Run(
        method("success-replay", "curriculum.size=4", "reinforcement.steps=4", "rollout.group_size=2"),
        ["replay/injected"],
    ),
    "offline_mixture": Run(
        ["demo", *MULTI_TURN, "reinforcement.stored.data={base}"],
        ["stored/groups|offline/groups"],
    ),
    "offline": Run(
        [
            "demo",
            *FROM_BASE,
            "reinforcement=null",
            "rollout.group_size=null",
            "advantage=b_coder",
            "objective=policy_gradient",
            *TWO_CRITICS,
            "offline.steps=4",
            "offline.data={base}",
        ],
        ["data/reward", "value/deviation|value/ensemble_std"],
    ),
    "reward_model": Run(
        [
            "demo",
            *FROM_BASE,
            *SHORT,
            "stages=[{reward_model: {data: '{base}', steps: 20}}, {reinforcement: {}, reward: "
            "{name: learned, stage: previous, outcome: 'same_weights:parity'}}]",
        ],
        ["reward/learned|reward/reward_model"],
    ),
    "pretraining_and_preference": Run(
        [
            "demo",
            *TINY,
            *SHORT,
            PARITY,
            "pretraining.data={texts}",
            "pretraining.steps=2",
            "pretraining.window=32",
            "supervised.steps=2",
            "supervised.optimizer=adamw",
            "preference.data={pairs}",
            "preference.steps=2",
            "preference.batch_size=4",
        ],
        ["loss/pretraining", "loss/supervised", "preference/pairs", "reward/mean"],
    ),
    "learner_processes": Run(
        ["demo", *MULTI_TURN, "reinforcement.optimizer=muon_float32", "scale.learner_processes=2"],
        ["scale/learner_balance"],
    ),
    "dynamic_sampling": Run(
        method(
            "dapo",
            "rollout.trajectory_filters=[resample_on_correct]",
            "reinforcement.steps=3",
        ),
        ["group/filtered", "trajectory_filters/removed_fraction"],
    ),
    "curriculum": Run(method("dump", "curriculum.temperature=0.1", "reinforcement.steps=4"), ["curriculum/"]),
    "process_model": Run(method("istar", "reinforcement.steps=3"), ["process_model/pairs|implicit_prm/pairs"]),
    "imitation": Run(method("mixed-imitation"), ["loss/imitation"]),
    "rounds": Run(
        [
            "expert-iteration",
            *FROM_BASE,
            PARITY,
            "rounds=2",
            "rollout.group_size=4",
            "sampling.steps=1",
            "sampling.tasks_per_step=8",
        ],
        ["loss/supervised"],
    ),
    "guided_retry": Run(method("guide", "rollout.group_size=2", "reinforcement.steps=3"), ["flag/hinted"]),
    "data_curation": Run(
        method("dart", "curriculum.size=4", "reinforcement.steps=4", "rollout.group_size=3"),
        ["replay/", "correction/weight|importance/weight_mean"],
    ),
    "entropy_band": Run(
        method("epo", "reinforcement.steps=3"), ["policy/outside_band|policy/entropy_out_of_band_fraction"]
    ),
    "expert_prefix": Run(method("snapshot-starts"), ["flag/started_later"]),
    "context_transforms": Run(method("experience", "reinforcement.steps=3"), ["context_transforms/"]),
    "early_stopping": Run(
        method("simpletir"), ["filter/void_turns_removed_fraction|credit_filters/void_turns_removed_fraction"]
    ),
}


async def parity(trajectory: Trajectory, task: Task) -> Score:
    """1, a success, if the sum of the sampled token ids is odd, otherwise 0."""
    odd = sum(sum(turn.action.ids) for turn in trajectory.turns) % 2
    return Score(float(odd), success=bool(odd))


def checksum(folder: Path) -> str:
    """One checksum of all tensors of a model folder, by name."""
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.safetensors")):
        with safe_open(file, framework="numpy") as tensors:
            for name in sorted(tensors.keys()):
                array = tensors.get_tensor(name)
                digest.update(f"{name} {array.dtype} {array.shape} ".encode())
                digest.update(array.tobytes())
    return digest.hexdigest()


def last_checkpoint(run_dir: Path) -> Path:
    """The checkpoint that was written last, of whichever stage."""
    checkpoints = [path for path in run_dir.rglob("checkpoints/step-*") if path.is_dir()]
    return max(checkpoints, key=lambda path: path.stat().st_mtime_ns)


def read_metrics(run_dir: Path) -> list[dict[str, float]]:
    """The metrics of all steps of all stages."""
    files = sorted(run_dir.rglob("metrics.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def passes(check: str, run_dir: Path) -> bool:
    """Whether a run passes a check; see `Run`."""
    if check.startswith("text:"):
        return any(check.removeprefix("text:") in file.read_text() for file in run_dir.rglob("trajectories/step-*"))
    rows = read_metrics(run_dir)
    names = check.split("|")
    return any(
        value != 0
        for row in rows
        for key, value in row.items()
        if key in names or (check.endswith("/") and key.startswith(check))
    )


class Bench:
    """Trains the runs of a checkout, one after another, each in a new process.

    Args:
        source: The checkout.
        folder: Where runs and data are written.
    """

    def __init__(self, source: Path, folder: Path) -> None:
        self.folder = folder
        self.renamed: dict[str, str] = {}
        path = [str(source / "src"), str(HERE), os.environ.get("PYTHONPATH", "")]
        self.environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path)), "OMP_NUM_THREADS": "1"}
        pairs = [{"prompt": f"Compute {a}+1", "chosen": str(a + 1), "rejected": str(a)} for a in range(12)]
        (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
        (folder / "texts.txt").write_text("\n\n".join(f"{a} times {a + 1} is {a * (a + 1)}" for a in range(30)))

    def train(self, name: str) -> tuple[str, float]:
        """The checksum of the final weights of a run and the seconds it took.

        Raises:
            SystemExit: The run failed or did not use the component it is there for.
        """
        run_dir = self.folder / name
        values = {"base": self.folder / BASE, "pairs": self.folder / "pairs.jsonl", "texts": self.folder / "texts.txt"}
        if name != BASE:
            values["base_policy"] = last_checkpoint(self.folder / BASE)
        arguments = [*RUNS[name].arguments, *ALWAYS]
        for key, path in values.items():
            arguments = [argument.replace(f"{{{key}}}", str(path)) for argument in arguments]
        began = time.perf_counter()
        while True:
            command = [sys.executable, "-m", "whetstone.cli.main", "train", *map(self._current, arguments)]
            done = subprocess.run(
                [*command, "--run-dir", str(run_dir)],
                capture_output=True,
                text=True,
                check=False,
                env=self.environment,
                cwd=self.folder,
            )
            if done.returncode == 0:
                break
            if not self._learn_name(done.stderr):
                sys.exit(f"{name}: {' '.join(command[3:])}\n{done.stdout[-500:]}{done.stderr[-2000:]}")
        seconds = time.perf_counter() - began
        for check in (*RUNS[name].checks, "update/relative_norm"):
            if not passes(check, run_dir):
                sys.exit(f"{name}: does not use its component: {check} is 0 or missing in every step")
        return checksum(last_checkpoint(run_dir)), seconds

    def _current(self, argument: str) -> str:
        """The argument with the names of the checked commit."""
        key, equals, value = argument.partition("=")
        for old, new in self.renamed.items():
            if key == old or key.startswith(f"{old}."):
                key = new + key.removeprefix(old)
            value = new if value == old else re.sub(rf"(?<=name: ){re.escape(old)}\b", new, value)
        return f"{key}{equals}{value}"

    def _learn_name(self, refusal: str) -> bool:
        """Note the new name in a refusal; whether there is one that was not known."""
        key = re.search(r"([\w.]+): renamed to ([\w.]+)", refusal)
        component = re.search(r'"([^"]+)": renamed to "([^"]+)"', refusal)
        match = component or key
        if match is None:
            return False
        old, new = match.groups()
        if match is key and "." in old and "." not in new:  # the option of a component
            new = ".".join([*old.split(".")[:-1], new])
        known = self.renamed.get(old) == new
        self.renamed[old] = new
        return not known


def processor() -> str:
    """The name of the processor."""
    info = Path("/proc/cpuinfo")
    models = re.findall(r"model name\s*: (.+)", info.read_text()) if info.is_file() else []
    return models[0] if models else platform.processor() or platform.machine()


def commit_of(source: Path) -> str:
    """The commit of a checkout, with `-dirty` where files differ from it."""
    command = ["git", "-C", str(source), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def main() -> None:
    """Train, print and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", choices=list(RUNS), metavar="NAME", help="these runs; base is trained, too"
    )
    parser.add_argument("--against", type=Path, metavar="FILE", help="output of another commit to compare with")
    parser.add_argument("--source", type=Path, default=HERE.parents[1], metavar="DIR", help="checkout to train with")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="write the runs to this new folder and keep them")
    options = parser.parse_args()
    names = [name for name in RUNS if name == BASE or not options.only or name in options.only]
    expected = json.loads(options.against.read_text()) if options.against else None
    runs: dict[str, dict[str, str | float]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        if options.keep:
            options.keep.mkdir(parents=True)
        bench = Bench(options.source.resolve(), (options.keep or Path(temporary)).resolve())
        for name in names:
            weights, seconds = bench.train(name)
            same = next((other for other, run in runs.items() if run["weights"] == weights), None)
            if same:
                sys.exit(f"{name}: ends with the weights of {same}, so its settings have no effect")
            runs[name] = {"weights": weights, "seconds": round(seconds, 1)}
            print(f"{name}: {weights[:12]} in {seconds:.1f} s", file=sys.stderr, flush=True)
    result = {
        "commit": commit_of(options.source),
        "processor": processor(),
        "torch": torch.__version__,
        "runs": runs,
    }
    print(json.dumps(result, indent=1))
    if expected is not None:
        for key in ("processor", "torch"):
            if expected[key] != result[key]:
                print(f"{key}: {expected[key]} before, {result[key]} now; weights may differ", file=sys.stderr)
        missing = [name for name in names if name not in expected["runs"]]
        if missing:
            print(f"not in {options.against}: {', '.join(missing)}", file=sys.stderr)
        other = [n for n in names if n not in missing and runs[n]["weights"] != expected["runs"][n]["weights"]]
        sys.exit(f"different weights: {', '.join(other)}" if other else 0)


if __name__ == "__main__":
    main()
