"""What do stored episodes bring, alone and before online training? Two tables, several seeds, with intervals.

`quality`: data of three qualities (expert, mixed, poor), as D5RL asks of offline to online methods: success behind
training on stored episodes alone, then behind reinforcement from there on, with and without stored episodes beside the
fresh ones; and reinforcement from the same weights without any start. World: frozen-lake, or what `--recipe` names.

`hybrid`: the same mixed record and the same offline stage, then one thing of stored data beside fresh ones at a time.

`simulator`: episodes recorded on the real lake, then reinforcement on one whose holes hold, which is what a simulator
got wrong; judged on the real lake (H2O).

`start`: on recorded pages of a text shop, a semi-online walk along the record (UI-S1) and worthwhile turns first
offline, then online (DigiRL), against plain offline training, cloning of what succeeded, and reinforcement with no
start, each with as many updates.

Whatever was run in the folder is not run again. Claims are those of benchmarks/evidence/offline-TABLE.yaml; `--write`
keeps the result among benchmarks/results/evidence. `--toy` is a run of seconds that shows that all of it works, and
nothing else.

Sources: D5RL, arXiv:2408.08441; UI-S1, arXiv:2509.11543; DigiRL, arXiv:2406.11896; H2O, arXiv:2206.13464; of `hybrid`,
docs/stages.md.
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

from evidence import BENCHES, keep, machine, page
from whetstone.analysis.evidence import read_bench, result_of, row_of
from whetstone.assembly import assemble
from whetstone.assembly.assembly import Assembly
from whetstone.environments.native.frozen_lake import FrozenLake, Place
from whetstone.recipe import Resolved, load_recipe
from whetstone.record.checkpoint import checkpoint_path, latest_checkpoint
from whetstone.reporting import Progress, read_trajectories, write_trajectories
from whetstone.rollout import Independent, Plan
from whetstone.seeding import derive_seed
from whetstone.training import train
from whetstone.training.agent_evaluation import evaluate
from whetstone.training.supervised import demonstrated
from whetstone.trajectory import Trajectory

_TOY = [
    "policy.tiny.hidden_size=16", "policy.tiny.num_heads=2", "policy.tiny.num_layers=1",
    "policy.tiny.intermediate_size=16",
    "supervised.batch_size=4", "rollout.group_size=2", "evaluation.episodes=4", "rollout.max_in_flight=16",
]  # fmt: skip
_STORED = 100_000
"""From where on tasks are taken for stored episodes; nobody trains on them online."""


@dataclass(frozen=True, slots=True)
class Came:
    """What a stage came to."""

    outcomes: Mapping[str, float]
    """By held-out task, the share of episodes that solved it."""
    measures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything."""

    warm_up: int
    """Updates of the good policy's warm-up."""
    poor: float
    """How far into it the poor policy stands, and everybody begins."""
    groups: int
    """Stored, of the recipe's group size."""
    offline: int
    online: int
    """Updates."""
    tasks_per_step: int
    episodes: int = 200
    """Of an evaluation."""
    online_rate: float = 1e-3
    changes: tuple[str, ...] = ()
    """To the world and the policy."""


_SEEN = {"name": "frozen_lake", "actions": "text", "instruction": "", "view": "around", "max_steps": 6, "max_turns": 6}
_LAKE = (
    "tasks={source: frozen_lake, side: 4, moves: [2, 5]}",
    f"environment={json.dumps(_SEEN)}",
    "policy.tiny.hidden_size=64", "policy.tiny.intermediate_size=128",
)  # fmt: skip
"""A lake of which one sees four sides and where the goal lies: prompts of a few tokens, learned in seconds."""
_SMALL = Size(80, 0.5, 24, 10, 8, 4, episodes=60, online_rate=5e-4, changes=_LAKE)
SIZES = {
    "quality": _SMALL,
    "hybrid": _SMALL,
    "simulator": _SMALL,
    "start": Size(120, 0.3, 96, 20, 20, 4),
}
LEARNED = {"optimizer": "muon", "learning_rate": 1e-3, "micro_batch_tokens": 4096}
"""Of every stage, as the recipes have it; a policy from a folder has the rate of a pretrained one by default."""
TOY = Size(4, 0.5, 6, 2, 2, 2)


class ThickIce(FrozenLake):
    """A simulator of the lake that is wrong in one thing: its holes are seen, and hold."""

    def _at(self, place: Place) -> str:
        there = super()._at(place)
        return "ice" if there == "hole" and place == self.player else there


class Bench:
    """One seed: the policies it begins with, and runs from there."""

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
        """A file of episodes, group by group from one of these policies after the other; None: the source's expert,
        and beside him what the poor policy does.

        Args:
            solved: Only those that solved their task; of a toy, which solves none, all.
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
    ) -> dict[str, Came]:
        """What each stage came to on held-out episodes; nothing is made of stages another run made.

        Args:
            judged: The keys that differ where it is evaluated; None: it is where it was trained.
        """
        begun = self._begun(self.poor)
        resolved = load_recipe(self.recipe, [*begun, "supervised=null", "reinforcement=null"], stages=list(stages))
        self._train(resolved, name)
        found = {}
        for folder in sorted((self.folder / name / "stages").glob("[0-9]*")):
            told = [path for path in (folder / "trajectories").glob("evaluation-*") if "untrained" not in path.name]
            if judged is not None:
                told = [folder / "judged" / "trajectories.jsonl"]
                if not told[0].is_file():
                    evaluate(folder, judged, into=told[0].parent, progress=Progress(quiet=True))
            outcomes = _solved(told[0])
            found[folder.name.partition("-")[2]] = Came(
                outcomes, {"success": fmean(outcomes.values())} | _sampled(folder)
            )
        return found

    def online(self, **more: Any) -> dict[str, Any]:
        """A stage of reinforcement."""
        settings = {"steps": self.size.online, "tasks_per_step": self.size.tasks_per_step, **LEARNED}
        settings["learning_rate"] = self.size.online_rate
        return {"reinforcement": {**settings, **more}}

    def offline(self, data: Path, steps: int | None = None) -> dict[str, Any]:
        """A stage on stored episodes."""
        steps = self.size.offline if steps is None else steps
        settings = {"data": str(data), "steps": steps, "tasks_per_step": self.size.tasks_per_step, **LEARNED}
        return {"offline": settings, "objective": "advantage_weighted"}

    def _begun(self, checkpoint: Path) -> list[str]:
        own = [each for each in self.overrides if not each.startswith(("policy.tiny", "supervised"))]
        return [*own, "policy.tiny=null", f"policy.path={checkpoint}"]

    async def _sampled(self, policy: Path, numbers: Sequence[int], expert: bool) -> list[Trajectory]:
        changes = [*self._begun(policy), "supervised=null", f"reinforcement.steps={self.size.online}"]
        assembly = assemble(load_recipe(self.recipe, changes))
        size = assembly.resolved.recipe.rollout.group_size
        engine = assembly.engine()
        found: list[Trajectory] = []
        try:
            actor = assembly.policy_actor(engine, temperature=1.0)
            plans = [_plan(assembly, number) for number in numbers]
            async for group in assembly.collector(actor).groups(plans, Independent(group_size=size - expert)):
                found += group.trajectories
        finally:
            await engine.close()
        if expert:
            shown = await demonstrated(assembly, _STORED + numbers[0], len(numbers))
            found += [replace(t, id=f"group-{k}/{t.id}#expert") for k, t in zip(numbers, shown.episodes, strict=True)]
        return found

    def _train(self, resolved: Resolved, name: str) -> None:
        there = self.folder / name
        others = [path.parent for path in sorted(self.folder.glob("*/stages")) if path.parent != there]
        resumed = (there / "recipe.yaml").is_file()
        train(resolved, there, resume=resumed, progress=Progress(quiet=True), reuse_from=others)
        print(f"seed {self.seed}: {name}", flush=True)


def _plan(assembly: Assembly, number: int) -> Plan:
    seed = derive_seed(assembly.resolved.recipe.seed, "stored", number)
    return Plan(assembly.source.task(_STORED + number), seed, number, f"group-{number}/")


def _solved(path: Path) -> dict[str, float]:
    by_task: dict[str, list[bool]] = {}
    for trajectory in read_trajectories(path):
        if trajectory.score is not None:
            by_task.setdefault(trajectory.task_id, []).append(trajectory.solved)
    return {task: fmean(each) for task, each in by_task.items()}


def _sampled(stage: Path, over: int = 5) -> dict[str, float]:
    """Of a stage of reinforcement, the least success of its samples, in the mean of so many steps."""
    rows = map(json.loads, (stage / "metrics.jsonl").read_text().splitlines())
    seen = [row["episode/success"] for row in rows if row["stage"] == "reinforcement"]
    means = [fmean(seen[k : k + over]) for k in range(max(1, len(seen) - over + 1))] if seen else []
    return {"least success while sampling": min(means)} if means else {}


Found = dict[str, Came]
"""By contender."""


def quality(bench: Bench) -> Found:
    """Data of three qualities: alone, and before reinforcement."""
    found: Found = {"none, online": bench.run("none", [bench.online()])["reinforcement"]}
    for name, path in qualities(bench).items():
        plain = bench.run(name, [bench.offline(path), bench.online()])
        found |= {f"{name}, offline": plain["offline"], f"{name}, online": plain["reinforcement"]}
    return found


def qualities(bench: Bench) -> dict[str, Path]:
    """Stored episodes of the good policy that solved their tasks, of it and the poor one in turn, of the poor one."""
    return {
        "expert": bench.stored("expert", [bench.good], solved=True),
        "mixed": bench.stored("mixed", [bench.good, bench.poor]),
        "poor": bench.stored("poor", [bench.poor]),
    }


def hybrid(bench: Bench) -> Found:
    """One offline stage on mixed data, then online training with one thing more or less."""
    data = bench.stored("mixed", [bench.good, bench.poor])
    stored = {"data": str(data)}
    offline = bench.offline(data)
    judged = {"advantage": "turn_gae", "critic": {"warmup_updates": 2}}
    sure = {"critic": {"ensemble_size": 4, "pessimism": "min"}}
    smooth = {"consistency_regularization": {"noise": 0.05, "policy": 0.1, "value": 0.1}}
    weighed = {"objective": "policy_gradient", "critic": {"ensemble_size": 4, "pessimism": "deviation"}}
    contenders: dict[str, list[dict[str, Any]]] = {
        "online": [offline, bench.online()],
        "stored beside fresh": [offline, bench.online(offline_mixture={**stored, "fraction": 0.5})],
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


def simulator(bench: Bench) -> Found:
    """The same offline stage on episodes of the real lake, then reinforcement on the lake whose holes hold."""
    data = str(bench.stored("mixed", [bench.good, bench.poor]))
    critic = {"advantage": "turn_gae", "critic": {"warmup_updates": 2}}
    simulated = {**_SEEN, "name": "offline:ThickIce"}
    begun = bench.offline(Path(data)) | critic
    contenders: dict[str, dict[str, Any]] = {
        "simulated alone": bench.online(),
        "critic reads recorded": bench.online(offline_mixture={"data": data, "mode": "critic_only"}),
        "simulated held down": bench.online(
            offline_mixture={"data": data, "mode": "critic_only", "simulation_weight": 0.5}
        ),
    }
    found: Found = {}
    for name, online in contenders.items():
        stages = [begun, online | critic | {"environment": simulated}]
        came = bench.run(name.replace(" ", "-"), stages, judged=[f"environment={json.dumps(_SEEN)}"])
        # a stage that another of these runs made already is not made again
        found |= {name: came["reinforcement"]} | ({"no simulator": came["offline"]} if "offline" in came else {})
    return found


def start(bench: Bench) -> Found:
    """A start on a record against none, and against plain offline training; each with as many updates."""
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
    begun, online = bench.offline(record, updates // 2), bench.online(**half)
    again = {"name": "online", **online}
    # as many episodes an update as the others have
    rows = size.tasks_per_step * 8
    cloned = {"supervised": {"data": str(record), "steps": updates, "batch_size": rows, **LEARNED}}
    contenders: dict[str, tuple[str, list[dict[str, Any]]]] = {
        "no start, online": ("none", [bench.online(steps=updates)]),
        "offline": ("offline", [bench.offline(record, updates)]),
        "cloning of successes": ("cloned", [cloned]),
        "offline, then online": ("offline-online", [begun, online]),
        "semi-online, then online": ("semi-online", [online | walked, again]),
        "DigiRL, offline, then online": ("digirl", [begun | judged, online | judged | surprising]),
    }
    return {name: list(bench.run(kept, stages).values())[-1] for name, (kept, stages) in contenders.items()}


TABLES: dict[str, tuple[Callable[[Bench], Found], str]] = {
    "quality": (quality, "frozen-lake"),
    "hybrid": (hybrid, "frozen-lake"),
    "simulator": (simulator, "frozen-lake"),
    "start": (start, "web-shop"),
}


def measured(table: str, recipe: str, seeds: int, folder: Path, *, toy: bool) -> dict[str, Any]:
    """The result of a table, as `benchmarks/evidence.py` stores it."""
    rows, _ = TABLES[table]
    name = f"offline-{table}"
    settings = read_bench(BENCHES / f"{name}.yaml")
    by_name: dict[str, dict[int, dict[str, Any]]] = {}
    tasks: list[str] = []
    for seed in range(seeds):
        size = replace(TOY, changes=SIZES[table].changes) if toy else SIZES[table]
        found = rows(Bench(recipe, seed, folder, size, toy=toy))
        tasks = sorted(set.intersection(*(set(came.outcomes) for came in found.values())))
        for contender, came in found.items():
            outcomes = [came.outcomes[task] for task in tasks]
            by_name.setdefault(contender, {})[seed] = row_of(settings, contender, seed, came.measures, outcomes)
    return result_of(name, settings, by_name, world=recipe, machine=machine(), budget={}, tasks=len(tasks))


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("table", choices=list(TABLES))
    parser.add_argument("--recipe", help="the world; default: frozen-lake, and web-shop for start")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where runs are kept; what is there is not run again")
    parser.add_argument("--toy", action="store_true", help="seconds, to see that it works")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--write", action="store_true", help="keep the result among benchmarks/results/evidence")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as passing:
        folder = arguments.folder or Path(passing)
        recipe = arguments.recipe or TABLES[arguments.table][1]
        told = measured(arguments.table, recipe, arguments.seeds, folder, toy=arguments.toy)
    if arguments.write:
        keep(told)
    print(json.dumps(told) if arguments.json else page(told))


if __name__ == "__main__":
    main()
