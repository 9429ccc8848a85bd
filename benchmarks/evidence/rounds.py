"""Claims about orders of training stages, each on a small local environment with an evaluation after every stage.

webrl      three rounds in which failed tasks generate new ones (arXiv:2411.02337), against plain reinforcement with the
           same number of sampled tokens per round
tulu       imitation, preferences among own samples, verifiable rewards, from one recipe (arXiv:2411.15124); on trained
           kinds of tasks and on a held-out kind, with a check for leaked tasks
zhongjing  plain text, dialogues, preferences (arXiv:2308.03549), on an artificial pharmacy
priming    initial policies of reinforcement: behaviors with wrong answers, right answers without them, or both
           (arXiv:2503.01307)
toolstar   from a policy that knows each of two tools: filtered traces of both, then tiered rewards (arXiv:2505.16410)
smart      traces that call a tool only if it is needed, against traces that always do (arXiv:2502.11435)

`--only NAME` runs one of them; `--folder FOLDER` stores runs and resumes them; stages that contenders share run once.
Claims are those of benchmarks/evidence/rounds-NAME.yaml; `--write` stores the results in benchmarks/results/evidence.
`--tiny` runs everything at a size without meaningful results, as a test of the script.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from claims.bench_settings import read_bench
from claims.evidence import build_result, build_row
from evidence import BENCHES as CLAIMS
from evidence import describe_machine, page, store_result
from lookup_and_compute import traces
from warm_up import train_warm_up
from whetstone.assembly import assemble
from whetstone.assembly.stage_datasets import as_reinforcement
from whetstone.atomic_write import write_text
from whetstone.chat import Message, ToolSpec, assistant
from whetstone.data.decontamination import find_overlaps
from whetstone.recipe import list_stages, load_recipe
from whetstone.reporting import Progress, read_trajectories
from whetstone.rollout import StepOutcome
from whetstone.seeding import derive_random
from whetstone.tasks.arithmetic import Arithmetic
from whetstone.training import train
from whetstone.training.agent_evaluation import evaluate
from whetstone.trajectory import Author, Score, Task, Trajectory

QUIET = Progress(quiet=True)
COMMON = ["ablations=null", "supervised=null", "reinforcement=null"]
MUON = {"optimizer": "muon", "micro_batch_tokens": 4096}
TOOL = "pocket_calculator"
UNSEEN = "sum_of_products"
SEEN = {"product": 1, "product_then_sum": 1, "sum_then_product": 1}
"""Kinds of tasks that a short imitation partly learns."""
OF_SEEN = f"tasks={{source: arithmetic, digits: 2, kinds: {json.dumps(SEEN)}}}"


@dataclass(frozen=True, slots=True)
class Contender:
    """One order of stages."""

    bench: str
    name: str
    stages: Sequence[Mapping[str, Any]]
    changes: Sequence[str] = ()
    suites: Mapping[str, Sequence[str]] = field(default_factory=lambda: {"held out": ()})
    """Name → overrides of an evaluation."""
    rounds: int = 1


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of stages and data."""

    warm_up: int = 360
    steps: int = 40
    """Reinforcement steps."""
    tasks: int = 12
    """Tasks per update."""
    tokens: int = 80_000
    """Sampled tokens per round of WebRL."""
    short: int = 120
    """Imitation steps from random weights."""
    rows: int = 2_000
    """Rows of generated files."""
    episodes: int = 200


TINY_CHANGES = [
    "policy.tiny={vocab_size: 340, hidden_size: 16, num_layers: 1, num_heads: 2, intermediate_size: 16, "
    "context_length: 256}",
    "rollout.max_new_tokens=6", "rollout.group_size=2", "reward=rounds:anything",
]  # fmt: skip
"""Settings of a test run; its reward differs between samples of an untrained model."""
TINY = Size(warm_up=4, steps=2, tasks=2, tokens=200, short=2, rows=60, episodes=6)
SIZES = {
    "tulu": Size(warm_up=100, steps=10, tasks=6, episodes=60),
    "toolstar": Size(warm_up=100, steps=10, tasks=6, short=80, rows=600, episodes=60),
    "priming": Size(warm_up=160, steps=10, tasks=6, rows=500, episodes=60),
}
"""Sizes of the smaller benches: a minute or two per seed."""


async def anything(trajectory: Trajectory, task: Task) -> Score:
    """Return 1 if the sum of the token ids is odd; demonstrations are right."""
    odd = sum(sum(turn.action.ids) for turn in trajectory.turns) % 2
    expert = any(author is Author.EXPERT for turn in trajectory.turns for author in turn.action.authors)
    return Score(float(odd), success=bool(odd) or expert)


# ------------------------------------------------------------ WebRL


def variations(heard: StepOutcome, draw: random.Random) -> Iterator[Task]:
    """Yield two tasks of the same kind for each task without a success."""
    for group in heard.groups:
        if not any(trajectory.solved for trajectory in group.trajectories):
            source = Arithmetic(seed=draw.randrange(2**31), kinds={group.task.tags["kind"]: 1})
            yield from (source.task(0), source.task(1))


def webrl(size: Size, seed: int, folder: Path) -> list[Contender]:
    """Return rounds of WebRL and equally many of plain reinforcement, from the same weights."""
    small = TINY_CHANGES[:1] if size is TINY else []
    steps = [f"supervised.steps={size.warm_up}", "rollout.max_new_tokens=24"]
    model = train_warm_up(seed, folder / "warm", *steps, *small)
    budget = {"sampled_tokens": size.tokens}
    learned = {"steps": 100 * size.steps, "tasks_per_step": size.tasks, "learning_rate": 1e-3, "budget": budget, **MUON}
    overrides = [f"policy.path={model}", "policy.tiny=null"]
    curriculum = {"name": "generated_tasks", "generator": "rounds:variations", "generated_fraction": 0.5}
    stage = {"reinforcement": learned, "with": "webrl", "curriculum": curriculum}
    return [
        Contender("webrl", "WebRL, failures make tasks", [stage], overrides, rounds=3),
        Contender("webrl", "plain", [{"reinforcement": learned}], overrides, rounds=3),
    ]


# ------------------------------------------------------------ TÜLU 3


def tulu(size: Size, seed: int, folder: Path) -> list[Contender]:
    """Return the full order, and reinforcement directly after imitation."""
    imitated = {"supervised": {"steps": size.warm_up, "learning_rate": 1e-2, **MUON}}
    sampled = {"sampling": {"steps": 1, "tasks_per_step": 10 * size.tasks}}
    preferred = {"data": {"from_stage": "previous"}, "steps": size.steps, "batch_size": 16, "learning_rate": 1e-4}
    reinforced = {"steps": size.steps, "tasks_per_step": size.tasks, "learning_rate": 1e-3, **MUON}
    suites = {"development": (), "unseen kind": [f"tasks.kinds={{{UNSEEN}: 1}}"]}
    first: list[Mapping[str, Any]] = [imitated]
    between: list[Mapping[str, Any]] = [sampled, {"preference": preferred}]
    last: list[Mapping[str, Any]] = [{"reinforcement": reinforced}]
    return [
        Contender("tulu", "imitation, preference, reward", [*first, *between, *last], [OF_SEEN], suites),
        Contender("tulu", "imitation, reward", [*first, *last], [OF_SEEN], suites),
    ]


def count_leaked(contender: Contender, seed: int, size: Size) -> int:
    """Return the number of evaluation tasks that are among the training tasks."""
    trained_prompts: list[tuple[str, str]] = []
    for stage in list_stages(build_recipe(contender, seed, size)):
        source = assemble(as_reinforcement(stage.resolved)).source
        trained_prompts += [(stage.name, source.task(index).prompt) for index in range(20 * size.tasks * 8)]
    evaluation_tasks: list[Task] = []
    for kinds in (dict.fromkeys(SEEN, 1.0), {UNSEEN: 1.0}):
        evaluation_tasks += Arithmetic(digits=2, kinds=kinds).held_out(size.episodes)
    return sum(1 for _ in find_overlaps(trained_prompts, evaluation_tasks))


# ------------------------------------------------------------ Zhongjing

SYLLABLES = ("ba", "do", "fi", "gu", "ke", "lo", "mi", "na", "pe", "ru", "sa", "to", "vi", "wu", "za")


def pharmacy() -> dict[str, str]:
    """Return forty artificial ailments with their herbs."""
    draw = derive_random("pharmacy")
    names = ["".join(draw.sample(SYLLABLES, 3)) for _ in range(200)]
    names = list(dict.fromkeys(names))
    return dict(zip(names[:40], names[40:80], strict=True))


class Ailments:
    """Task source of patients. Every fourth ailment is only in texts, not in dialogues."""

    def __init__(self, *, seed: int = 0) -> None:
        self.seed = seed

    def task(self, index: int) -> Task:
        """Return training patient `index`."""
        return self._task(derive_random(self.seed, "patient", index).randrange(40))

    def held_out(self, count: int) -> list[Task]:
        """Return one patient per ailment."""
        return [self._task(number) for number in range(min(count, 40))]

    def _task(self, number: int) -> Task:
        ailment = list(pharmacy())[number]
        kind = "from texts only" if number % 4 == 0 else "in dialogues"
        return Task(f"patient/{ailment}", f"I have {ailment}.", {"answer": pharmacy()[ailment]}, {"kind": kind})


async def right_herb(trajectory: Trajectory, task: Task) -> Score:
    """Return 1 for the right herb, with the mention of a doctor as a part."""
    text = trajectory.final_text
    right = float(task.private["answer"] in text)
    return Score(right, {"right": right, "careful": float("see a doctor" in text)}, success=bool(right))


def zhongjing(size: Size, seed: int, folder: Path) -> list[Contender]:
    """Return the order with texts and the one without."""
    known = list(pharmacy().items())
    spoken = [pair for number, pair in enumerate(known) if number % 4]
    texts = [f"The herb for {ailment} is {herb}." for ailment, herb in known]
    texts += [f"Who has {ailment} takes {herb}." for ailment, herb in known]
    (folder / "texts.txt").write_text("\n\n".join(texts))
    careful = [(f"I have {a}.", f"Take {h}. If it lasts, see a doctor.", f"Take {h}.") for a, h in spoken]
    chats = _write_rows(
        folder / "chats.jsonl", [{"prompt": question, "completion": short} for question, _, short in careful]
    )
    rows = [{"prompt": question, "chosen": long, "rejected": short} for question, long, short in careful]
    pairs = _write_rows(folder / "pairs.jsonl", rows)
    world = [
        "tasks={source: 'rounds:Ailments'}", "environment={tools: [], max_turns: 1, max_calls_per_turn: null}",
        "reward=rounds:right_herb", "rollout.max_new_tokens=48",
    ]  # fmt: skip
    learned = {"steps": size.short, "learning_rate": 1e-3}
    read = {"pretraining": {"data": str(folder / "texts.txt"), "window": 64, **learned}}
    rest = [
        {"supervised": {"data": str(chats), **learned}},
        {
            "preference": {
                "data": str(pairs),
                "steps": max(1, size.short // 2),
                "learning_rate": 1e-3,
                "objective": "orpo",
            }
        },
    ]
    return [
        Contender("zhongjing", "texts, dialogues, preferences", [read, *rest], world),
        Contender("zhongjing", "dialogues, preferences", rest, world),
    ]


# ------------------------------------------------------------ priming and SMART


def _make_conversation(task: Task, answer: str, *, calls: bool) -> dict[str, Any]:
    """Return a conversation that computes by the tool, or answers directly."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": task.prompt}]
    source, messages_read = Arithmetic(), [Message.from_openai({"role": "user", "content": task.prompt})]
    while calls:
        action = source.demonstrate(task, messages_read, (_TOOL_SPEC,))
        if not action.tool_calls:
            break
        call = action.tool_calls[0]
        expression = json.loads(call.arguments)["expression"]
        result = str(eval(expression, {"__builtins__": {}}))  # only digits and operators of built-in tasks
        function = {"name": TOOL, "arguments": call.arguments}
        messages.append({"role": "assistant", "tool_calls": [{"id": "x", "type": "function", "function": function}]})
        messages.append({"role": "tool", "tool_call_id": "x", "content": result})
        messages_read.append(Message.from_openai(messages[-1]))
    messages.append({"role": "assistant", "content": answer})
    return {"messages": messages}


def _tool_spec() -> Any:
    from whetstone.environments import ToolEnvironment
    from whetstone.tools import pocket_calculator

    return ToolEnvironment(tools=[pocket_calculator]).toolset.specs[0]


_TOOL_SPEC = _tool_spec()


def _wrong(task: Task) -> str:
    return str(int(task.private["answer"]) + 7)


def priming(size: Size, seed: int, folder: Path) -> list[Contender]:
    """Return three initial policies for the same reinforcement."""
    source = Arithmetic(seed=seed, digits=2, kinds=SEEN)
    tasks = [source.task(index) for index in range(size.rows)]
    conversations: dict[str, Callable[[Task], dict[str, Any]]] = {
        "calls, wrong answers": lambda task: _make_conversation(task, _wrong(task), calls=True),
        "right answers, no calls": lambda task: _make_conversation(task, task.private["answer"], calls=False),
        "calls, right answers": lambda task: _make_conversation(task, task.private["answer"], calls=True),
    }
    contenders = []
    for name, row in conversations.items():
        path = _write_rows(folder / f"{name.replace(', ', '-').replace(' ', '-')}.jsonl", map(row, tasks))
        imitated = {"data": str(path), "steps": size.warm_up // 2, "learning_rate": 1e-2, **MUON}
        reinforced = {"steps": size.steps, "tasks_per_step": size.tasks, "learning_rate": 1e-3, **MUON}
        stages = [{"supervised": imitated}, {"reinforcement": reinforced}]
        contenders.append(Contender("priming", name, stages, [OF_SEEN]))
    return contenders


class Mixed(Arithmetic):
    """Task source that alternates between memorizable sums of digits and tasks that need the tool."""

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__(seed=seed, kinds={"product": 1})

    def task(self, index: int) -> Task:
        """See `Arithmetic`."""
        return super().task(index) if index % 2 else _known(derive_random(self.seed, "known", index).randrange(100))

    def held_out(self, count: int) -> list[Task]:
        """Return half of each kind; memorized sums cannot be held out."""
        unknown = super().held_out(count // 2)
        known = [_known(number) for number in derive_random("known").sample(range(100), min(100, count - count // 2))]
        return [*unknown, *known]


class Familiar(Mixed):
    """Same as `Mixed`, with demonstrations that answer every other sum directly and call the tool for the rest."""

    def task(self, index: int) -> Task:
        """See `Arithmetic`."""
        task = super().task(index)
        return replace(task, private={**task.private, "at once": task.tags["kind"] == "known" and index % 4 == 0})

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """See `Arithmetic`."""
        if task.private.get("at once"):
            return assistant(task.private["answer"])
        return super().demonstrate(task, conversation, tools)


def _known(number: int) -> Task:
    a, b = divmod(number, 10)
    private = {"answer": str(a + b), "steps": (f"{a}+{b}",)}
    return Task(f"known/{a}+{b}", f"Compute {a}+{b}", private, {"kind": "known"})


def smart(size: Size, seed: int, folder: Path) -> list[Contender]:
    """Return traces of the same tasks, with necessary calls or with calls everywhere."""
    source = Mixed(seed=seed)
    tasks = [source.task(index) for index in range(size.rows)]
    contenders = []
    for name, always in (("calls where needed", False), ("calls always", True)):
        rows = [
            _make_conversation(task, task.private["answer"], calls=always or task.tags["kind"] != "known")
            for task in tasks
        ]
        path = _write_rows(folder / f"{name.replace(' ', '-')}.jsonl", rows)
        imitated = {"data": str(path), "steps": size.warm_up, "learning_rate": 1e-2, **MUON}
        contenders.append(Contender("smart", name, [{"supervised": imitated}], ["tasks={source: 'rounds:Mixed'}"]))
    return contenders


# ------------------------------------------------------------ Tool-Star


def toolstar(size: Size, seed: int, folder: Path) -> list[Contender]:
    """Return traces of both tools followed by tiered rewards, and equally many updates of rewards only."""
    world = [
        "environment={tools: [pocket_calculator, 'lookup_and_compute:PriceList'], max_turns: 6, max_calls_per_turn: 1}",
        "rollout.max_new_tokens=24",
    ]
    small = TINY_CHANGES[:1] if size is TINY else []
    known = [
        "tasks={source: 'lookup_and_compute:BothTools', kinds: [price, product]}",
        f"supervised.steps={size.warm_up}",
    ]
    model = train_warm_up(seed, folder / "warm", *small, *world, *known)
    path = _write_rows(folder / "traces.jsonl", traces(seed, size.rows))
    imitation = {
        "data": {"path": str(path), "min_reward": 1, "well_formed_only": True},
        "steps": size.short,
        "learning_rate": 1e-2,
    }
    paid = {"name": "tool_star", "outcome": "exact_number", "tools": ["look_up", TOOL]}
    begins = [
        *world,
        "tasks={source: 'lookup_and_compute:BothTools', kinds: [both]}",
        f"policy.path={model}",
        "policy.tiny=null",
    ]

    def reinforced(steps: int) -> dict[str, Any]:
        learned = {"steps": steps, "tasks_per_step": size.tasks, "learning_rate": 1e-3, **MUON}
        return {"reinforcement": learned, "reward": paid}

    return [
        Contender(
            "toolstar", "traces, then rewards", [{"supervised": {**imitation, **MUON}}, reinforced(size.steps)], begins
        ),
        Contender("toolstar", "rewards only", [reinforced(size.short + size.steps)], begins),
    ]


# ------------------------------------------------------------ all of them

BENCHES: dict[str, Callable[[Size, int, Path], list[Contender]]] = {
    "webrl": webrl, "tulu": tulu, "zhongjing": zhongjing, "priming": priming, "smart": smart,
    "toolstar": toolstar,
}  # fmt: skip


def _write_rows(path: Path, rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def build_recipe(contender: Contender, seed: int, size: Size) -> Any:
    """Return the recipe of a contender."""
    changes = [*COMMON, *contender.changes, f"seed={seed}", f"evaluation.episodes={size.episodes}"]
    changes += [f"repeat_stages={contender.rounds}"] if contender.rounds > 1 else []
    if size is TINY:
        starts_from_policy = any(change.startswith("policy.path") for change in contender.changes)
        changes += TINY_CHANGES[1:] if starts_from_policy else TINY_CHANGES
    return load_recipe("demo", changes, stages=[dict(stage) for stage in contender.stages])


def run_contender_stages(
    contender: Contender, seed: int, size: Size, folder: Path, reused_folders: Sequence[Path]
) -> list[dict[str, Any]]:
    """Train a contender, or resume it, and return its rows per stage and suite.

    Args:
        beside: Folders whose equal stages are reused.
    """
    stored_path = folder / "rows.json"
    if stored_path.is_file():
        return list(json.loads(stored_path.read_text()))
    is_started = (folder / "recipe.yaml").is_file()
    train(build_recipe(contender, seed, size), folder, resume=is_started, progress=QUIET, reuse_from=reused_folders)
    stage_rows: list[dict[str, Any]] = []
    spent = 0.0
    stages_done = json.loads((folder / "summary.json").read_text())["stages"]
    for place, stage in enumerate((folder / each["folder"] / "metrics.jsonl" for each in stages_done), start=1):
        rows = [json.loads(line) for line in stage.read_text().splitlines()]
        spent += sum(row.get("cost_per_step/sampled_tokens") or 0.0 for row in rows)
        row: dict[str, Any] = {"stage": stages_done[place - 1]["name"], "measures": {}, "outcomes": {}}
        for suite, changes in contender.suites.items():
            kept_in = folder / "evaluated" / f"{place}-{suite.replace(' ', '-')}"
            came_to = evaluate(stage.parent, changes, episodes=size.episodes, into=kept_in, progress=QUIET)
            if not row["outcomes"]:  # the first suite determines success
                row["measures"] = {"success": came_to.success, "tool calls": came_to.tool_calls, **came_to.parts}
                row["measures"] |= {kind: rate.success for kind, rate in came_to.kinds.items()}
                played = read_trajectories(kept_in / "trajectories.jsonl")
                row["outcomes"] = {t.task_id: float(t.solved) for t in played if t.score is not None}
            else:
                row["measures"][suite] = came_to.success
        row["measures"]["sampled tokens"] = spent
        stage_rows.append(row)
    write_text(stored_path, json.dumps(stage_rows))
    return stage_rows


def result(bench: str, seeds: int, size: Size, root: Path) -> dict[str, Any]:
    """Return the stored result of a bench; intermediate stages of contenders are separate contenders."""
    settings = read_bench(CLAIMS / f"rounds-{bench}.yaml")
    rows: dict[str, dict[int, dict[str, Any]]] = {}
    tasks: list[str] = []
    for seed in range(seeds):
        folder = root / f"{bench}-{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        reused_folders: list[Path] = []
        came: dict[str, dict[str, Any]] = {}
        for number, contender in enumerate(BENCHES[bench](size, seed, folder)):
            stages = run_contender_stages(contender, seed, size, folder / f"run-{number}", reused_folders)
            reused_folders.append(folder / f"run-{number}")
            if bench == "tulu":
                stages[-1]["measures"]["tasks that leaked"] = count_leaked(contender, seed, size)
            came |= {f"{contender.name}, after {stage['stage']}": stage for stage in stages[:-1]}
            came[contender.name] = stages[-1]
            print(f"{bench}, seed {seed}: {contender.name}: {stages[-1]['measures']}", file=sys.stderr, flush=True)
        tasks = sorted(set.intersection(*(set(stage["outcomes"]) for stage in came.values())))
        for name in settings.contenders:
            outcomes = [came[name]["outcomes"][task] for task in tasks]
            rows.setdefault(name, {})[seed] = build_row(settings, name, seed, came[name]["measures"], outcomes)
    name = f"rounds-{bench}"
    return build_result(name, settings, rows, world="demo", machine=describe_machine(), budget={}, tasks=len(tasks))


def main() -> None:
    """Run the benches, print their tables, and optionally store the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=sorted(BENCHES), action="append", help="name of a bench; repeatable")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="folder of runs; finished ones are reused")
    parser.add_argument("--tiny", action="store_true", help="run at the size of a test")
    parser.add_argument("--json", action="store_true", help="print one JSON object per bench")
    parser.add_argument("--write", action="store_true", help="store the results in benchmarks/results/evidence")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as passing:
        root = arguments.folder or Path(passing)
        for bench in arguments.only or BENCHES:
            bench_result = result(bench, arguments.seeds, TINY if arguments.tiny else SIZES.get(bench, Size()), root)
            if arguments.write:
                store_result(bench_result)
            print(json.dumps(bench_result) if arguments.json else page(bench_result))


if __name__ == "__main__":
    main()
