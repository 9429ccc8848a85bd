"""Offline training on stored episodes, with and without subsequent online training, over several seeds.

`quality`: data of three qualities (expert, mixed, poor), as in D5RL's offline-to-online settings: success after
training only on stored episodes, then after reinforcement from there, with and without stored episodes in the batch;
and reinforcement from the same weights without an offline stage. Environment: frozen-lake, or that of `--recipe`.

`hybrid`: the same mixed data and offline stage, then online training with one use of the stored data at a time.

`simulator`: episodes recorded on the real lake, then reinforcement on a simulated lake whose holes are solid, the
error of the simulator; evaluated on the real lake (H2O).

`start`: on recorded pages of a text shop, a semi-online replay of the record (UI-S1), and filtered turns first offline,
then online (DigiRL), against plain offline training, cloning of successes, and reinforcement without an offline stage,
all with the same number of updates.

Finished runs in the folder are reused. Claims are those of benchmarks/evidence/offline-TABLE.yaml; `--write` stores
the result in benchmarks/results/evidence. `--toy` is a run of a few seconds that only tests the script.

Sources: D5RL, arXiv:2408.08441; UI-S1, arXiv:2509.11543; DigiRL, arXiv:2406.11896; H2O, arXiv:2206.13464; for
`hybrid`, docs/guide/stages.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from claims.bench_settings import read_bench
from claims.evidence import build_result, build_row
from evidence import BENCHES, describe_machine, page, store_result
from whetstone.assembly import assemble
from whetstone.assembly.assembly import RunComponents
from whetstone.environments.built_in.frozen_lake import FrozenLake, Place
from whetstone.recipe import Resolved, load_recipe
from whetstone.record.checkpoint import checkpoint_path, latest_checkpoint
from whetstone.reporting import Progress, read_trajectories, write_trajectories
from whetstone.rollout import GroupPlan, Independent
from whetstone.seeding import derive_seed
from whetstone.training import train
from whetstone.training.agent_evaluation import evaluate
from whetstone.training.supervised import sample_demonstrations
from whetstone.trajectory import Trajectory

_TOY = [
    "policy.tiny.hidden_size=16", "policy.tiny.num_heads=2", "policy.tiny.num_layers=1",
    "policy.tiny.intermediate_size=16",
    "supervised.batch_size=4", "rollout.group_size=2", "evaluation.episodes=4", "rollout.max_in_flight=16",
]  # fmt: skip
_STORED = 100_000
"""First task number of stored episodes; these tasks are not trained online."""


@dataclass(frozen=True, slots=True)
class StageResult:
    """Result of a stage."""

    outcomes: Mapping[str, float]
    """Held-out task → fraction of successful episodes."""
    measures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of stages and data."""

    warm_up: int
    """Updates of the good policy's warm-up."""
    poor: float
    """Fraction of the warm-up after which the poor policy is taken, from which all runs start."""
    groups: int
    """Number of stored groups, with the recipe's group size."""
    offline: int
    online: int
    """Online updates."""
    tasks_per_step: int
    episodes: int = 200
    """Episodes per evaluation."""
    online_rate: float = 1e-3
    changes: tuple[str, ...] = ()
    """Overrides of environment and policy."""


_SEEN = {"name": "frozen_lake", "actions": "text", "instruction": "", "view": "around", "max_steps": 6, "max_turns": 6}
_LAKE = (
    "tasks={source: frozen_lake, side: 4, moves: [2, 5]}",
    f"environment={json.dumps(_SEEN)}",
    "policy.tiny.hidden_size=64", "policy.tiny.intermediate_size=128",
)  # fmt: skip
"""A lake with observations of the four neighbors and the direction of the goal: short prompts, fast to learn."""
_SMALL = Size(80, 0.5, 24, 10, 8, 4, episodes=60, online_rate=5e-4, changes=_LAKE)
SIZES = {
    "quality": _SMALL,
    "hybrid": _SMALL,
    "simulator": _SMALL,
    "start": Size(120, 0.3, 96, 20, 20, 4),
}
LEARNED = {"optimizer": "muon", "learning_rate": 1e-3, "micro_batch_tokens": 4096}
"""Settings of every stage, as in the recipes; the default rate of a policy from a folder is for pretrained ones."""
TOY = Size(4, 0.5, 6, 2, 2, 2)


class ThickIce(FrozenLake):
    """Simulator of the lake with one error: its holes are visible but solid."""

    def _at(self, place: Place) -> str:
        tile = super()._at(place)
        return "ice" if tile == "hole" and place == self.player else tile


class Bench:
    """Initial policies and runs of one seed."""

    def __init__(self, recipe: str, seed: int, folder: Path, size: Size, *, toy: bool) -> None:
        self.recipe, self.seed, self.size, self.toy = recipe, seed, size, toy
        self.folder = folder / f"{recipe}-seed-{seed}"
        self.overrides = [f"seed={seed}", "ablations=null", f"evaluation.episodes={size.episodes}"]
        self.overrides += [*size.changes, *(_TOY if toy else [])]
        began = max(1, round(size.poor * size.warm_up))
        changes = [
            "reinforcement=null",
            f"supervised.steps={size.warm_up}",
            f"supervised.checkpoint_interval_steps={began}",
        ]
        changes += [f"supervised.keep_interval_steps={began}"]
        without = [f"{key}=null" for key in ("rollout.group_size",)]
        self._train(load_recipe(recipe, [*self.overrides, *changes, *without]), "warm-up")
        self.poor = checkpoint_path(self.folder / "warm-up", began)
        good = latest_checkpoint(self.folder / "warm-up")
        assert good is not None
        self.good = good

    def stored(self, name: str, policies: Sequence[Path | None], *, solved: bool = False) -> Path:
        """Return a file of episodes whose groups alternate between policies.

        Args:
            policies: Checkpoints; None for the source's expert together with the poor policy.
            solved: Store only successful episodes; a toy run, which has none, stores all.
        """
        path = self.folder / f"{name}.jsonl"
        if not path.is_file():
            read: list[Trajectory] = []
            for k, policy in enumerate(policies):
                numbers = range(k, self.size.groups, len(policies))
                read += asyncio.run(self._sampled(self.poor if policy is None else policy, numbers, policy is None))
            read.sort(key=lambda t: int(t.id.partition("/")[0].removeprefix("group-")))
            write_trajectories(path, [t for t in read if t.score is not None and (t.solved or self.toy or not solved)])
        return path

    def run(
        self, name: str, stages: Sequence[Mapping[str, Any]], *, judged: Sequence[str] | None = None
    ) -> dict[str, StageResult]:
        """Run stages and return the result of each on held-out episodes; equal stages of other runs are reused.

        Args:
            judged: Overrides of the evaluation; None evaluates as in training.
        """
        overrides = self._base_overrides(self.poor)
        resolved = load_recipe(self.recipe, [*overrides, "supervised=null", "reinforcement=null"], stages=list(stages))
        self._train(resolved, name)
        results = {}
        for folder in sorted((self.folder / name / "stages").glob("[0-9]*")):
            files = [path for path in (folder / "trajectories").glob("evaluation-*") if "untrained" not in path.name]
            if judged is not None:
                files = [folder / "judged" / "trajectories.jsonl"]
                if not files[0].is_file():
                    evaluate(folder, judged, into=files[0].parent, progress=Progress(quiet=True))
            outcomes = _solved(files[0])
            results[folder.name.partition("-")[2]] = StageResult(
                outcomes, {"success": fmean(outcomes.values())} | _sampled(folder)
            )
        return results

    def online(self, **more: Any) -> dict[str, Any]:
        """Return a reinforcement stage."""
        settings = {"steps": self.size.online, "tasks_per_step": self.size.tasks_per_step, **LEARNED}
        settings["learning_rate"] = self.size.online_rate
        return {"reinforcement": {**settings, **more}}

    def offline(self, data: Path, steps: int | None = None) -> dict[str, Any]:
        """Return an offline stage on stored episodes."""
        steps = self.size.offline if steps is None else steps
        settings = {"data": str(data), "steps": steps, "tasks_per_step": self.size.tasks_per_step, **LEARNED}
        return {"offline": settings, "objective": "advantage_weighted"}

    def _base_overrides(self, checkpoint: Path) -> list[str]:
        own = [each for each in self.overrides if not each.startswith(("policy.tiny", "supervised"))]
        return [*own, "policy.tiny=null", f"policy.path={checkpoint}"]

    async def _sampled(self, policy: Path, numbers: Sequence[int], expert: bool) -> list[Trajectory]:
        changes = [*self._base_overrides(policy), "supervised=null", f"reinforcement.steps={self.size.online}"]
        assembly = assemble(load_recipe(self.recipe, changes))
        size = assembly.resolved.recipe.rollout.group_size
        engine = assembly.build_engine()
        trajectories: list[Trajectory] = []
        try:
            actor = assembly.policy_actor(engine, temperature=1.0)
            plans = [_plan(assembly, number) for number in numbers]
            async for group in assembly.build_collector(actor).groups(plans, Independent(group_size=size - expert)):
                trajectories += group.trajectories
        finally:
            await engine.close()
        if expert:
            demonstrations = await sample_demonstrations(assembly, _STORED + numbers[0], len(numbers))
            trajectories += [
                replace(t, id=f"group-{k}/{t.id}#expert") for k, t in zip(numbers, demonstrations.episodes, strict=True)
            ]
        return trajectories

    def _train(self, resolved: Resolved, name: str) -> None:
        run_dir = self.folder / name
        others = [path.parent for path in sorted(self.folder.glob("*/stages")) if path.parent != run_dir]
        resumed = (run_dir / "recipe.yaml").is_file()
        train(resolved, run_dir, resume=resumed, progress=Progress(quiet=True), reuse_from=others)
        print(f"seed {self.seed}: {name}", flush=True)


def _plan(assembly: RunComponents, number: int) -> GroupPlan:
    seed = derive_seed(assembly.resolved.recipe.seed, "stored", number)
    return GroupPlan(assembly.source.task(_STORED + number), seed, number, f"group-{number}/")


def _solved(path: Path) -> dict[str, float]:
    by_task: dict[str, list[bool]] = {}
    for trajectory in read_trajectories(path):
        if trajectory.score is not None:
            by_task.setdefault(trajectory.task_id, []).append(trajectory.solved)
    return {task: fmean(each) for task, each in by_task.items()}


def _sampled(stage: Path, over: int = 5) -> dict[str, float]:
    """Return the minimum of the mean success over `over` steps while sampling, for a reinforcement stage."""
    rows = map(json.loads, (stage / "metrics.jsonl").read_text().splitlines())
    successes = [row["episode/success"] for row in rows if row["stage"] == "reinforcement"]
    means = [fmean(successes[k : k + over]) for k in range(max(1, len(successes) - over + 1))] if successes else []
    return {"least success while sampling": min(means)} if means else {}


ContenderResults = dict[str, StageResult]
"""Contender → result of its last stage."""


def quality(bench: Bench) -> ContenderResults:
    """Run offline training on data of three qualities, with and without subsequent reinforcement."""
    results: ContenderResults = {"none, online": bench.run("none", [bench.online()])["reinforcement"]}
    for name, path in qualities(bench).items():
        plain = bench.run(name, [bench.offline(path), bench.online()])
        results |= {f"{name}, offline": plain["offline"], f"{name}, online": plain["reinforcement"]}
    return results


def qualities(bench: Bench) -> dict[str, Path]:
    """Store successful episodes of the good policy, episodes of both policies, and episodes of the poor policy."""
    return {
        "expert": bench.stored("expert", [bench.good], solved=True),
        "mixed": bench.stored("mixed", [bench.good, bench.poor]),
        "poor": bench.stored("poor", [bench.poor]),
    }


def hybrid(bench: Bench) -> ContenderResults:
    """Run one offline stage on mixed data, then online training with one setting changed."""
    data = bench.stored("mixed", [bench.good, bench.poor])
    stored = {"data": str(data)}
    offline = bench.offline(data)
    judged = {"advantage": "turn_gae", "critic": {"warmup_updates": 2}}
    sure = {"critic": {"ensemble_size": 4, "pessimism": "min"}}
    smooth = {"consistency_regularization": {"noise": 0.05, "policy": 0.1, "value": 0.1}}
    weighed = {"objective": "policy_gradient", "critic": {"ensemble_size": 4, "pessimism": "deviation"}}
    contenders: dict[str, list[dict[str, Any]]] = {
        "online": [offline, bench.online()],
        "stored and fresh mixed": [offline, bench.online(offline_mixture={**stored, "fraction": 0.5})],
        "stored and fresh alternate": [offline, bench.online(offline_mixture={**stored, "mode": "alternating"})],
        "tasks by coverage": [
            offline,
            bench.online(offline_mixture={**stored, "fraction": 0.0})
            | {"curriculum": {"name": "coverage", "size": 256}},
        ],
        "critic": [offline | judged, bench.online() | judged],
        "critic reads stored": [
            offline | judged,
            bench.online(offline_mixture={**stored, "mode": "critic_only"}) | judged,
        ],
        "ensemble, smooth": [
            {**offline, "offline": {**offline["offline"], **smooth}} | judged | sure,
            bench.online(**smooth) | judged | sure,
        ],
        "one weight for all": [offline | judged | weighed, bench.online() | judged],
        "a weight by state": [
            offline | judged | weighed | {"advantage_transforms": ["balanced"]},
            bench.online() | judged,
        ],
    }
    named = {name: name.replace(", ", "-").replace(" ", "-") for name in contenders}
    return {name: list(bench.run(named[name], stages).values())[-1] for name, stages in contenders.items()}


def simulator(bench: Bench) -> ContenderResults:
    """Run the same offline stage on episodes of the real lake, then reinforcement on the simulated lake."""
    data = str(bench.stored("mixed", [bench.good, bench.poor]))
    critic = {"advantage": "turn_gae", "critic": {"warmup_updates": 2}}
    simulated = {**_SEEN, "name": "offline:ThickIce"}
    offline_stage = bench.offline(Path(data)) | critic
    contenders: dict[str, dict[str, Any]] = {
        "simulated only": bench.online(),
        "critic reads recorded": bench.online(offline_mixture={"data": data, "mode": "critic_only"}),
        "simulated held down": bench.online(
            offline_mixture={"data": data, "mode": "critic_only", "simulation_weight": 0.5}
        ),
    }
    results: ContenderResults = {}
    for name, online in contenders.items():
        stages = [offline_stage, online | critic | {"environment": simulated}]
        stage_results = bench.run(name.replace(" ", "-"), stages, judged=[f"environment={json.dumps(_SEEN)}"])
        # a stage of another run is reused and has no new result
        results |= {name: stage_results["reinforcement"]} | (
            {"no simulator": stage_results["offline"]} if "offline" in stage_results else {}
        )
    return results


def start(bench: Bench) -> ContenderResults:
    """Compare starts on a record with none and with plain offline training, at equal numbers of updates."""
    size = bench.size
    record = bench.stored("record", [None])
    updates = size.offline + size.online
    walked = {
        "rollout": {"environment_wrapper": {"name": "log_replay", "patches": 2}},
        "reward": "expert_match",
        "advantage": "ui_s1",
    }
    judged = {"advantage": "digirl", "critic": {"loss": "success"}, "objective": "policy_gradient"}
    half = {"steps": updates // 2}
    surprising = {"rollout": {"trajectory_filters": [{"name": "rare_successes", "quantile": 0.8}]}}
    offline_stage, online = bench.offline(record, updates // 2), bench.online(**half)
    online_again = {"name": "online", **online}
    # the same number of episodes per update as the other contenders
    rows = size.tasks_per_step * 8
    cloned = {"supervised": {"data": str(record), "steps": updates, "batch_size": rows, **LEARNED}}
    contenders: dict[str, tuple[str, list[dict[str, Any]]]] = {
        "no start, online": ("none", [bench.online(steps=updates)]),
        "offline": ("offline", [bench.offline(record, updates)]),
        "cloning of successes": ("cloned", [cloned]),
        "offline, then online": ("offline-online", [offline_stage, online]),
        "semi-online, then online": ("semi-online", [online | walked, online_again]),
        "DigiRL, offline, then online": ("digirl", [offline_stage | judged, online | judged | surprising]),
    }
    return {name: list(bench.run(run_name, stages).values())[-1] for name, (run_name, stages) in contenders.items()}


TABLES: dict[str, tuple[Callable[[Bench], ContenderResults], str]] = {
    "quality": (quality, "frozen-lake"),
    "hybrid": (hybrid, "frozen-lake"),
    "simulator": (simulator, "frozen-lake"),
    "start": (start, "web-shop"),
}


def run_table(table: str, recipe: str, seeds: int, folder: Path, *, toy: bool) -> dict[str, Any]:
    """Run a table and return its result as `benchmarks/evidence/evidence.py` stores it."""
    rows, _ = TABLES[table]
    name = f"offline-{table}"
    settings = read_bench(BENCHES / f"{name}.yaml")
    by_name: dict[str, dict[int, dict[str, Any]]] = {}
    tasks: list[str] = []
    for seed in range(seeds):
        size = replace(TOY, changes=SIZES[table].changes) if toy else SIZES[table]
        results = rows(Bench(recipe, seed, folder, size, toy=toy))
        tasks = sorted(set.intersection(*(set(stage_result.outcomes) for stage_result in results.values())))
        for contender, stage_result in results.items():
            outcomes = [stage_result.outcomes[task] for task in tasks]
            by_name.setdefault(contender, {})[seed] = build_row(
                settings, contender, seed, stage_result.measures, outcomes
            )
    return build_result(name, settings, by_name, world=recipe, machine=describe_machine(), budget={}, tasks=len(tasks))


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("table", choices=list(TABLES))
    parser.add_argument("--recipe", help="recipe of the environment; default: frozen-lake, and web-shop for start")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="folder of runs; finished ones are reused")
    parser.add_argument("--toy", action="store_true", help="a run of a few seconds that tests the script")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--write", action="store_true", help="store the result in benchmarks/results/evidence")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as passing:
        folder = arguments.folder or Path(passing)
        recipe = arguments.recipe or TABLES[arguments.table][1]
        result = run_table(arguments.table, recipe, arguments.seeds, folder, toy=arguments.toy)
    if arguments.write:
        store_result(result)
    print(json.dumps(result) if arguments.json else page(result))


if __name__ == "__main__":
    main()
