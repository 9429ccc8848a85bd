"""Writes the pages of this folder from docstrings: what each part needs, its formula, when to use it.

python docs/generate.py           writes them
python docs/generate.py --check   says whether they are up to date, and exits with 1 where one is not
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from api_page import api_page
from compatibility_page import compatibility_page
from devices_page import devices_page
from docstring_parser import parse
from environments_page import environments_page
from formats_page import formats_page
from keys_page import keys_page
from measured import on_the_demo, verdicts
from metrics_page import metrics_page
from papers_page import papers_page
from recipes_page import recipes_page
from rewards_page import rewards_page
from tool_call_formats_page import tool_call_formats_page
from tools_page import tools_page
from what_matters_page import FOLDER, what_matters_page

from whetstone.algorithms import (
    ADVANTAGE_TRANSFORMS,
    ADVANTAGES,
    CORRECTIONS,
    CREDIT_FILTERS,
    OBJECTIVES,
    SHAPING,
    advantage_transforms,
    advantages,
    columns_of,
    corrections,
    level_of,
    objectives,
    removal_scope_of,
    schedules,
    shaping,
)
from whetstone.learning.columns import COLUMN_BUILDERS
from whetstone.rollout.allocations import ALLOCATIONS
from whetstone.rollout.context_transforms import CONTEXT_TRANSFORMS
from whetstone.rollout.dynamic_sampling import DYNAMIC_SAMPLING
from whetstone.rollout.environment_wrappers import ENVIRONMENT_WRAPPERS
from whetstone.rollout.replay import REPLAY
from whetstone.rollout.rewrites import REWRITES
from whetstone.rollout.starts import STARTS
from whetstone.rollout.stops import STOPS
from whetstone.rollout.strategies import STRATEGIES
from whetstone.rollout.trajectory_filters import TRAJECTORY_FILTERS
from whetstone.tasks.curricula import CURRICULA

HERE = Path(__file__).parent

GIVEN = {"group_size", "max_turns", "seed", "steps", "source", "stored_groups", "vocabulary"}
"""What parts are given from elsewhere in the recipe."""

PRIMITIVES: list[tuple[str, str, Mapping[str, Any]]] = [
    ("Sample and fork", "`rollout.strategy:`, how the trajectories of one task come about.", STRATEGIES),
    ("Budget allocation", "`rollout.budget_allocation:`, the group size and turn limit of each group.", ALLOCATIONS),
    ("Start states", "`rollout.start_states:`, the states from which the episodes of a group start.", STARTS),
    (
        "Context transforms",
        "`rollout.context_transforms:`, a list, in order; what the policy reads beside what the environment said.",
        CONTEXT_TRANSFORMS,
    ),
    ("Early stopping", "`rollout.early_stopping:`, a list of conditions that end an episode early.", STOPS),
    (
        "Environment wrapper",
        "`rollout.environment_wrapper:`, who answers in the environment's place.",
        ENVIRONMENT_WRAPPERS,
    ),
    ("Context rewrites", "`rollout.context_rewrites:`, a list of rewrites of the conversation history.", REWRITES),
    ("Replay", "`rollout.replay:`, a list; what stored trajectories are learned from.", REPLAY),
    (
        "Trajectory filters",
        "`rollout.trajectory_filters:`, a list, in order; which trajectories of a step are learned from.",
        TRAJECTORY_FILTERS,
    ),
    (
        "Dynamic sampling",
        "`rollout.dynamic_sampling:`, which groups count; others are sampled in the place of the rest.",
        DYNAMIC_SAMPLING,
    ),
    ("Task distribution", "`curriculum:`, which task comes next.", CURRICULA),
]

ROLLOUT = """# Rollout

*Written from the docstrings by `make docs`; change them there.*

Every published way to sample, reshape, choose and schedule trajectories is made of thirteen primitives. A recipe names
parts for those it needs; one that names none samples independent episodes of the source's tasks.

```yaml
curriculum: {name: ucb, kinds: [easy, hard]}       # task distribution
rollout:
  strategy: {name: entropy_branching, roots: 4}    # sample, fork, and how many of each
  budget_allocation: {name: horizon_stages, turns: [4, 8], updates_per_stage: 50}
  start_states: {name: expert_prefix, anneal_updates: 40}
  context_transforms: [{name: budget_line, budgets: [3, 6]}]
  early_stopping: [void_turn]
  environment_wrapper: try_again
  context_rewrites: [{name: summary, tokens: 2000}]
  replay: [success_replay]
  trajectory_filters: [resample_on_correct]
  dynamic_sampling: nonzero_variance
```

In one step: task distribution → allocate → start → view → { sample, fork with stop, partner, view of each turn } →
score → rewrite → refill → inject → select → advantage → (what is only masked) → update → what is remembered. The second
half is one function, `training/one_step.py`. Task generation is a task source.

The state of a part (a buffer, a bandit, a library) is bounded, stored in the checkpoint, and a function of the recorded
groups: a resumed run has the same state as one that was not interrupted. All randomness derives from a seed made of
run, step, group and part. The metrics of a part are in `metrics.jsonl` under its name. The cost of a group, also of one
that is not used, is under `cost_per_group/`: sampled tokens, tokens of shared prefixes that were reused, tool calls,
environment steps.

What branching costs and whether it learns as well: [the table](../benchmarks/results/branching.md); whether void turns
make gradients jump: [another](../benchmarks/results/stability.md).

Yours is a class with the method its section's protocol asks for (`rollout/protocol.py`), named
`package.module:Class`. What is remembered needs `observe`, `state` and `load_state`; what is to be there in an
evaluation too says `at_evaluation = True`.

"""

TOP = """# Methods

*Written from the docstrings by `make docs`; change them there.*

A recipe names how rewards become credit and how credit becomes a loss:

```yaml
reward_shaping: [overlong]                # reward shaping, applied first
credit_filters: [void_turns]              # turns and episodes without a loss; some still count in the baseline
advantage: {name: gigpo, scale: true}
advantage_transforms: [entropy_modulated] # advantage transforms, applied last
objective: {name: clipped, clip_high: 0.28}
aggregation: token_mean                   # weight of a token in the loss
importance_correction: truncated          # weights of tokens that another policy sampled
```

Each is a pure function. Its parameters name the **columns** it reads; its keyword arguments are its options. A recipe
whose run does not produce a column is refused before anything is sampled. Yours is named `package.module:function`.

## Which estimator?

| data | start with | then try |
| --- | --- | --- |
| one outcome an episode, groups of the same task | `group_relative` | `leave_one_out` (unbiased), `batch_scaled` \
(tasks of very different difficulty), `opo` (lengths differ much), `pass_at_k` (only the best will be used) |
| one outcome, one episode a task | `reinforce_plus_plus` | `remax` (a greedy episode for comparison), a critic |
| rewards of turns | `matchtir`, `ui_s1` (the same turn of siblings) | `rlvmr` (the same kind of thought), `hrpo`, \
`mars` (sum first, then compare) |
| episodes of a task come through the same states | `gigpo` | `turn_gae` |
| a gold answer and sparse outcomes | `igpo` | `toolpo` (credit on calls alone) |
| a tree of forked episodes | `tree_ps` | `arpo`, `portool`; objectives `step_dpo`, `refuel` |
| a critic, long horizons | `turn_gae` | `digirl`, `webrl` (weak critics), `archer`, `mira`, `spa` |
| no labels for turns, but time for a second model | `oprl` | `igpo` |
| several players, agents, or kinds of task | `dr_mas` | `mars`, `role_normalized` |

Whether each learns on the demo's task, and what it was given beside: [the table](../benchmarks/results/methods.md).

The six pieces of an estimator: reward shaping (`reward_shaping`), return (`returns.reward_to_go`), baseline and
scale over a set (`sets.normalised`), sum of two levels, transform (`advantage_transforms`). Groups of one, equal
rewards, sets of one give exactly 0; statistics are in float64 over all trajectories of a step.

"""

OF_YOURS = """
Any other name is looked for among the columns a recipe adds, then among the reward's signals (`Score.signals`, one
number a turn) and parts (`Score.parts`, one an episode); a reward says what it gives with `@provides(...)`.

A column of yours is one function of the batch that says what its numbers are one of; its name is the column's:

```python
from whetstone.learning.columns import Columns, column


@column("turn")
def novelty(batch: Columns, *, floor: float = 0.0) -> list[float]:
    \"\"\"1 where nobody in the batch began a turn from the same state, `floor` where somebody did.\"\"\"
    states = batch["state_keys"].tolist()
    return [1.0 if states.count(state) == 1 else floor for state in states]
```

With `custom_columns: [my_package.signals:novelty]` in the recipe, an estimator can read `novelty: PerTurn`. The batch
gives other columns by name, its trajectories as `batch.held` and their turns as `batch.turns()`. A column that
reads log-probs or values sets `reads_models=True`. `requires=` is a function that returns the missing requirement, or
None.

"""

BESIDE = """## Functions beside recipes

Pieces, schedules and losses that no recipe names by themselves: some are inside of the methods above, the others are
for your own.

| function | |
| --- | --- |
"""


def main() -> None:
    """Write the pages, or check them."""
    matters, plots = what_matters_page()
    pages = {
        "methods.md": methods_page(),
        "rollout.md": rollout_page(),
        "tools.md": tools_page(),
        "environments.md": environments_page(),
        "papers.md": papers_page(),
        "rewards.md": rewards_page(),
        "formats.md": formats_page(),
        "tool-call-formats.md": tool_call_formats_page(),
        "devices.md": devices_page(),
        "compatibility.md": compatibility_page(),
        "what-matters.md": matters,
        "keys.md": keys_page(),
        "metrics.md": metrics_page(),
        "recipes.md": recipes_page(),
        "api.md": api_page(),
    }
    for name, page in pages.items():
        if "--check" not in sys.argv:
            (HERE / name).write_text(page)
        elif not (HERE / name).is_file() or (HERE / name).read_text() != page:
            sys.exit(f"docs/{name} is not what the docstrings say: make docs")
    folder = HERE / FOLDER
    if "--check" in sys.argv:  # what is in a plot differs with the version of what draws it
        missing = [name for name in plots if not (folder / name).is_file()]
        if missing:
            sys.exit(f"docs/{FOLDER}/{missing[0]} is not there: make docs")
        return
    folder.mkdir(exist_ok=True)
    for old in set(folder.glob("*.svg")) - {folder / name for name in plots}:
        old.unlink()
    for name, plot in plots.items():
        (folder / name).write_text(plot)


def rollout_page() -> str:
    """How trajectories come about, are reshaped, chosen and scheduled."""
    parts = [ROLLOUT]
    for title, said, classes in PRIMITIVES:
        parts.append(f"## {title}\n\n{said}\n\n")
        parts += [_part(name, part) for name, part in sorted(classes.items())]
    return "".join(parts).rstrip() + "\n"


def _part(name: str, part: type) -> str:
    text = inspect.getdoc(part) or ""
    body = re.split(r"\n(?:Args|Raises|Sources?):", text)[0].rstrip()
    source = re.search(r"\nSources?:(.*?)(?=\n\n|\Z)", text, re.DOTALL)
    lines = [f"### `{name}`\n\n", _as_markdown(body), "\n"]
    options = {key: p for key, p in inspect.signature(part).parameters.items() if key not in GIVEN}
    said = _said_of(part)
    if options:
        lines.append("| option | default | |\n| --- | --- | --- |\n")
        for key, p in options.items():
            default = "needed" if p.default is p.empty else f"`{_shown(p.default)}`"
            lines.append(f"| `{key}` | {default} | {said.get(key, '')} |\n")
        lines.append("\n")
    if source is not None:
        lines.append(f"*Source:* {' '.join(source.group(1).split())}\n\n")
    return "".join(lines)


def _said_of(part: type) -> dict[str, str]:
    """Of each option what stands under the field, or among the arguments."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(part))).body
    assert isinstance(node, ast.ClassDef)
    said = {p.arg_name: p.description or "" for p in parse(inspect.getdoc(part) or "").params}
    for field, below in pairwise(node.body):
        if not (isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)):
            continue
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            said[field.target.id] = str(below.value.value)
    return {key: " ".join(text.split()).replace("|", "\\|") for key, text in said.items()}


def _shown(default: Any) -> str:
    value = list(default) if isinstance(default, tuple) else default
    text = str(value)
    return (text if len(text) <= 60 else text[:57] + "…").replace("|", "\\|")


def methods_page() -> str:
    """The whole page."""
    parts = [TOP, _overview()]
    sections: list[tuple[str, str, Mapping[str, Any]]] = [
        ("Estimators", "`advantage:`, from columns to advantages.", ADVANTAGES),
        ("Shaping", "`reward_shaping:`, a list; each gives what takes the place of the rewards of its level.", SHAPING),
        (
            "Advantage transforms",
            "`advantage_transforms:`, a list, in order; each works on any estimator's advantages.",
            ADVANTAGE_TRANSFORMS,
        ),
        ("Filters", "`filters:`, a list; each says where its removal bites.", CREDIT_FILTERS),
        (
            "Objectives",
            "`objective:`, from log-probs and advantages to a loss per token, or from sums of log-probs to one loss.",
            OBJECTIVES,
        ),
        ("Corrections", "`importance_correction:`, a weight without gradient on each token's loss.", CORRECTIONS),
    ]
    for title, said, functions in sections:
        parts.append(f"## {title}\n\n{said}\n\n")
        parts += [_entry(name, function) for name, function in sorted(functions.items())]
    parts.append(BESIDE)
    named = {id(function) for _, _, functions in sections for function in functions.values()}
    for room in (advantages, corrections, advantage_transforms, objectives, schedules, shaping):
        for name in sorted(room.__all__):
            function = getattr(room, name)
            if inspect.isfunction(function) and id(function) not in named:
                first = (inspect.getdoc(function) or "").partition("\n")[0]
                where = room.__name__.removeprefix("whetstone.algorithms.")
                parts.append(f"| `{where}.{name}` | {first} |\n")
    return "".join(parts).rstrip() + "\n"


def _overview() -> str:
    rows = ["## Columns\n\n| column | one a | what it is | who provides it |\n| --- | --- | --- | --- |\n"]
    listed = {column.listed_as or column.name: column for column in COLUMN_BUILDERS.values()}
    for name, column in sorted(listed.items(), key=lambda each: ("…" in each[0], each[0])):
        level = column.level if name != "slow_…" else "as the head"
        rows.append(f"| `{name}` | {level} | {column.about} | {column.provided_by or 'every run'} |\n")
    rows.append(OF_YOURS)
    return "".join(rows)


def _entry(name: str, function: Callable[..., Any]) -> str:
    text = inspect.getdoc(function) or ""
    documented = parse(text)
    body, _, source = text.partition("\nSource:")
    body = body.partition("\nArgs:")[0].partition("\nRaises:")[0].rstrip()
    lines = [f"### `{name}`\n\n", _as_markdown(body), "\n"]
    columns = [f"`{column}`" for column in columns_of(function)]
    gives = f"; gives one number a {level_of(function)}" if function in ADVANTAGES.values() else ""
    if function in CREDIT_FILTERS.values():
        gives = f"; bites: {removal_scope_of(function).value.replace('_', ' ')}"
    lines.append(f"*Reads* {', '.join(columns)}{gives}.\n\n")
    options = {p.name: p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY}
    said = {p.arg_name: " ".join((p.description or "").split()) for p in documented.params}
    if options:
        lines.append("| option | default | |\n| --- | --- | --- |\n")
        lines += [f"| `{key}` | `{p.default}` | {said.get(key, '')} |\n" for key, p in options.items()]
        lines.append("\n")
    lines.append(f"*Source:* {' '.join(source.split())}\n\n")
    for kind, functions in (("advantage", ADVANTAGES), ("objective", OBJECTIVES)):
        if functions.get(name) is function:
            measured, tried = on_the_demo(kind, name), verdicts(f"{kind} {name}")
            lines += [f"{measured}\n\n"] * bool(measured) + [f"{tried}\n"] * bool(tried)
    return "".join(lines)


def _as_markdown(body: str) -> str:
    """Indented lines are formulas."""
    found: list[str] = []
    inside = False
    for line in body.splitlines():
        formula = line.startswith("    ")
        if formula and not inside:
            found.append("```")
        if inside and not formula and line.strip():
            while not found[-1].strip():
                found.pop()
            found += ["```", ""]
        if line.strip() or not inside:
            inside = formula
        found.append(line[4:] if formula else line)
    if inside:
        found.append("```")
    return "\n".join(found) + "\n"


if __name__ == "__main__":
    main()
