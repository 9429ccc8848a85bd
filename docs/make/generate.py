"""Generate the pages of this folder from docstrings: requirements, formula and use of each component.

python docs/make/generate.py           write the pages
python docs/make/generate.py --check   check that they are up to date; the exit code is 1 if one is not
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
from papers_page import NOT_RUN_PAGE, not_run_page, papers_page
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
    annotated_level,
    annotated_removal_scope,
    column_names,
    importance_sampling,
    objectives,
    schedules,
    shaping,
)
from whetstone.learning.columns import COLUMN_BUILDERS
from whetstone.recipe.resolved import ALIASES
from whetstone.rollout.action_masks import ACTION_MASKS
from whetstone.rollout.budget_allocation import ALLOCATIONS
from whetstone.rollout.context_rewrites import REWRITES
from whetstone.rollout.context_transforms import CONTEXT_TRANSFORMS
from whetstone.rollout.dynamic_sampling import DYNAMIC_SAMPLING
from whetstone.rollout.early_stopping import STOPS
from whetstone.rollout.environment_wrappers import ENVIRONMENT_WRAPPERS
from whetstone.rollout.replay import REPLAY
from whetstone.rollout.start_states import STARTS
from whetstone.rollout.strategies import STRATEGIES
from whetstone.rollout.trajectory_filters import TRAJECTORY_FILTERS
from whetstone.tasks.curricula import CURRICULA

REFERENCE = Path(__file__).parents[1] / "reference"

GIVEN = {"group_size", "max_turns", "seed", "steps", "source", "stored_groups", "vocabulary"}
"""Options that a component receives from elsewhere in the recipe."""

PRIMITIVES: list[tuple[str, str, Mapping[str, Any]]] = [
    ("Sample and fork", "`rollout.strategy:`, the sampling strategy for the trajectories of one task.", STRATEGIES),
    ("Budget allocation", "`rollout.budget_allocation:`, the group size and turn limit of each group.", ALLOCATIONS),
    ("Start states", "`rollout.start_states:`, the states from which the episodes of a group start.", STARTS),
    (
        "Context transforms",
        "`rollout.context_transforms:`, a list, in order; changes of the context that the policy reads.",
        CONTEXT_TRANSFORMS,
    ),
    ("Early stopping", "`rollout.early_stopping:`, a list of conditions that end an episode early.", STOPS),
    (
        "Environment wrapper",
        "`rollout.environment_wrapper:`, a wrapper around the environment.",
        ENVIRONMENT_WRAPPERS,
    ),
    (
        "Action masks",
        "`rollout.action_mask:`, a mask of actions in a fraction of turns that falls to 0 over training.",
        ACTION_MASKS,
    ),
    ("Context rewrites", "`rollout.context_rewrites:`, a list of rewrites of the conversation history.", REWRITES),
    ("Replay", "`rollout.replay:`, a list; stored trajectories that are added to a step.", REPLAY),
    (
        "Trajectory filters",
        "`rollout.trajectory_filters:`, a list, in order; the trajectories of a step that are trained on.",
        TRAJECTORY_FILTERS,
    ),
    (
        "Dynamic sampling",
        "`rollout.dynamic_sampling:`, a filter of groups; further groups are sampled instead of discarded ones.",
        DYNAMIC_SAMPLING,
    ),
    ("Task distribution", "`curriculum:`, the selection of the next task.", CURRICULA),
]

ROLLOUT = """# Rollout

*Generated from the docstrings by `make docs`; edit them there.*

Thirteen primitives are sufficient for the published methods of sampling, context changes, replay and scheduling. A
recipe names components for the primitives that it needs. Without any, it samples independent episodes of the tasks.

```yaml
curriculum: {name: ucb, kinds: [easy, hard]}       # task distribution
rollout:
  strategy: {name: entropy_branching, roots: 4}    # sampling and forks
  budget_allocation: {name: horizon_stages, turns: [4, 8], updates_per_stage: 50}
  start_states: {name: expert_prefix, anneal_updates: 40}
  context_transforms: [{name: budget_line, budgets: [3, 6]}]
  early_stopping: [void_turn]
  environment_wrapper: try_again
  action_mask: {name: admissible, fade_updates: 100}
  context_rewrites: [{name: summary, tokens: 2000}]
  replay: [success_replay]
  trajectory_filters: [resample_on_correct]
  dynamic_sampling: nonzero_variance
```

Order in a step: curriculum → budget allocation → start states → context transforms → { sampling and forks, with early
stopping, environment wrapper, action mask, context transforms and rewrites per turn } → reward → dynamic sampling →
replay → trajectory filters → advantage → removal of masked trajectories → update → state of components. Task generation
is a task source.

The state of a component (a buffer, a bandit, a library) is bounded, stored in the checkpoint, and a function of the
recorded groups: a resumed run has the same state as one that was not interrupted. All randomness derives from a seed
made of run, step, group and component. The metrics of a component are in `metrics.jsonl` under its name. The cost of a
group, even of one that is not used, is under `cost_per_group/`: sampled tokens, tokens of shared prefixes that were
reused, tool calls, environment steps.

Results: [cost and success of branching](../../benchmarks/results/branching.md), [gradient spikes from void
turns](../../benchmarks/results/stability.md).

A custom component is a class, named `package.module:Class`, with the method of its protocol (`rollout/protocol.py`).
A component with state requires `observe`, `state` and `load_state`. A component that also applies in evaluations sets
`at_evaluation = True`.

"""

TOP = """# Methods

*Generated from the docstrings by `make docs`; edit them there.*

A recipe selects how rewards become advantages and how advantages become a loss:

```yaml
reward_shaping: [overlong]                # reward shaping, applied first
credit_filters: [void_turns]              # turns and episodes without a loss; some still count in the baseline
advantage: {name: gigpo, scale: true}
advantage_transforms: [entropy_modulated] # advantage transforms, applied last
objective: {name: clipped, clip_high: 0.28}
aggregation: token_mean                   # weight of a token in the loss
importance_correction: truncated          # weights of tokens that another policy sampled
```

Each is a pure function. Its parameters name the **columns** that it reads; its keyword arguments are its options. A
recipe whose run does not provide a column is rejected before sampling starts. A custom function is named
`package.module:function`.

## Which estimator?

| data | start with | then try |
| --- | --- | --- |
| one outcome per episode, groups of the same task | `group_relative` | `leave_one_out` (unbiased), `batch_scaled` \
(tasks of very different difficulty), `opo` (lengths differ much), `pass_at_k` (only the best sample will be used) |
| one outcome, one episode per task | `reinforce_plus_plus` | `remax` (greedy episode as baseline), a critic |
| turn rewards | `matchtir`, `ui_s1` (the same turn of siblings) | `rlvmr` (the same kind of reasoning), `hrpo`, \
`mars` (sum, then compare) |
| episodes of a task visit the same states | `gigpo` | `turn_gae` |
| a gold answer and sparse outcomes | `igpo` | `toolpo` (credit only on calls) |
| a tree of forked episodes | `tree_ps` | `arpo`, `portool`; objectives `step_dpo`, `refuel` |
| a critic, long horizons | `turn_gae` | `digirl`, `webrl` (weak critics), `archer`, `mira`, `spa` |
| no turn labels, but compute for a second model | `oprl` | `igpo` |
| several players, agents, or kinds of task | `dr_mas` | `mars`, `role_normalized` |

Results of each on the demo's task, with the settings: [the table](../../benchmarks/results/methods.md).

The six pieces of an estimator: reward shaping (`reward_shaping`), return (`returns.reward_to_go`), baseline and
scale over a set (`group_statistics.normalize_in_sets`), sum of two levels, transform (`advantage_transforms`). Groups
or sets of one and equal rewards give exactly 0. Statistics are in float64 over all trajectories of a step.

"""

OF_YOURS = """
Any other name is looked up in the custom columns of the recipe, then in the signals of the reward (`Score.signals`,
one number per turn) and its components (`Score.parts`, one per episode). A reward declares them with `@provides(...)`.

A custom column is one function of the batch that declares the level of its numbers; its name is that of the column:

```python
from whetstone.learning.columns import Columns, column


@column("turn")
def novelty(batch: Columns, *, floor: float = 0.0) -> list[float]:
    \"\"\"Return 1 for a state that occurs once in the batch, else `floor`.\"\"\"
    states = batch["state_keys"].tolist()
    return [1.0 if states.count(state) == 1 else floor for state in states]
```

With `custom_columns: [my_package.signals:novelty]` in the recipe, an estimator can read `novelty: PerTurn`. The batch
has other columns by name, its trajectories as `batch.trajectories` and their turns as `batch.turns()`. A column that
reads log-probs or values sets `reads_models=True`. `requires=` is a function that returns the missing requirement, or
None.

"""

OTHER_FUNCTIONS = """## Other functions

Building blocks, schedules and losses that a recipe cannot name: the methods above use some of them, and custom methods
can use all.

| function | |
| --- | --- |
"""


def main() -> None:
    """Write or check the pages."""
    matters, plots = what_matters_page()
    pages = {
        "methods.md": methods_page(),
        "rollout.md": rollout_page(),
        "tools.md": tools_page(),
        "environments.md": environments_page(),
        "papers.md": papers_page(),
        NOT_RUN_PAGE: not_run_page(),
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
            (REFERENCE / name).write_text(page)
        elif not (REFERENCE / name).is_file() or (REFERENCE / name).read_text() != page:
            sys.exit(f"docs/reference/{name}: is not up to date; run make docs")
    folder = REFERENCE / FOLDER
    if "--check" in sys.argv:  # plots differ between versions of matplotlib
        missing = [name for name in plots if not (folder / name).is_file()]
        if missing:
            sys.exit(f"docs/reference/{FOLDER}/{missing[0]}: does not exist; run make docs")
        return
    folder.mkdir(exist_ok=True)
    for old in set(folder.glob("*.svg")) - {folder / name for name in plots}:
        old.unlink()
    for name, plot in plots.items():
        (folder / name).write_text(plot)


def rollout_page() -> str:
    """Return the page of sampling, context, replay and scheduling components."""
    parts = [ROLLOUT]
    for title, about, classes in PRIMITIVES:
        parts.append(f"## {title}\n\n{about}\n\n")
        parts += [_part(name, part) for name, part in sorted(classes.items())]
    return "".join(parts).rstrip() + "\n"


def _part(name: str, part: type) -> str:
    text = inspect.getdoc(part) or ""
    body = re.split(r"\n(?:Args|Raises|Sources?):", text)[0].rstrip()
    source = re.search(r"\nSources?:(.*?)(?=\n\n|\Z)", text, re.DOTALL)
    lines = [f"### `{name}`\n\n", _as_markdown(body), "\n"]
    options = {key: p for key, p in inspect.signature(part).parameters.items() if key not in GIVEN}
    descriptions = _describe_options(part)
    if options:
        lines.append("| option | default | |\n| --- | --- | --- |\n")
        for key, p in options.items():
            default = "needed" if p.default is p.empty else f"`{_format_default(p.default)}`"
            lines.append(f"| `{key}` | {default} | {descriptions.get(key, '')} |\n")
        lines.append("\n")
    if source is not None:
        lines.append(f"*Source:* {' '.join(source.group(1).split())}\n\n")
    return "".join(lines)


def _describe_options(part: type) -> dict[str, str]:
    """Return the description of each option, from attribute docs or the `Args` section."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(part))).body
    assert isinstance(node, ast.ClassDef)
    descriptions = {p.arg_name: p.description or "" for p in parse(inspect.getdoc(part) or "").params}
    for field, below in pairwise(node.body):
        if not (isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)):
            continue
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            descriptions[field.target.id] = str(below.value.value)
    return {key: " ".join(text.split()).replace("|", "\\|") for key, text in descriptions.items()}


def _format_default(default: Any) -> str:
    value = list(default) if isinstance(default, tuple) else default
    text = str(value)
    return (text if len(text) <= 60 else text[:57] + "…").replace("|", "\\|")


def methods_page() -> str:
    """Return the page of methods."""
    parts = [TOP, _overview()]
    sections: list[tuple[str, str, Mapping[str, Any]]] = [
        ("Estimators", "`advantage:`, functions from columns to advantages.", ADVANTAGES),
        ("Shaping", "`reward_shaping:`, a list; each replaces the rewards of its level.", SHAPING),
        (
            "Advantage transforms",
            "`advantage_transforms:`, a list, in order; each applies to the advantages of any estimator.",
            ADVANTAGE_TRANSFORMS,
        ),
        ("Filters", "`credit_filters:`, a list; each declares the scope of its removal.", CREDIT_FILTERS),
        (
            "Objectives",
            "`objective:`, from log-probs and advantages to a loss per token, or from sums of log-probs to one loss.",
            OBJECTIVES,
        ),
        ("Corrections", "`importance_correction:`, a weight without gradient on each token's loss.", CORRECTIONS),
    ]
    for title, about, functions in sections:
        parts.append(f"## {title}\n\n{about}\n\n")
        key = about.partition(":")[0].strip("`")
        parts += [_entry(name, function, _list_aliases(key, name)) for name, function in sorted(functions.items())]
    parts.append(OTHER_FUNCTIONS)
    named = {id(function) for _, _, functions in sections for function in functions.values()}
    for module in (advantages, importance_sampling, advantage_transforms, objectives, schedules, shaping):
        for name in sorted(vars(module)):
            function = getattr(module, name)
            if inspect.isfunction(function) and id(function) not in named:
                first = (inspect.getdoc(function) or "").partition("\n")[0]
                where = module.__name__.removeprefix("whetstone.algorithms.")
                parts.append(f"| `{where}.{name}` | {first} |\n")
    return "".join(parts).rstrip() + "\n"


def _overview() -> str:
    rows = ["## Columns\n\n| column | one per | meaning | provided by |\n| --- | --- | --- | --- |\n"]
    listed = {column.listed_as or column.name: column for column in COLUMN_BUILDERS.values()}
    for name, column in sorted(listed.items(), key=lambda each: ("…" in each[0], each[0])):
        level = column.level if name != "slow_…" else "as the head"
        rows.append(f"| `{name}` | {level} | {column.about} | {column.provided_by or 'every run'} |\n")
    rows.append(OF_YOURS)
    return "".join(rows)


def _list_aliases(key: str, name: str) -> str:
    """Return the line with the other names of a component, each with the options that it implies; empty without any."""
    others = []
    for alias, meant in ALIASES.get(key, {}).items():
        options = ", ".join(f"{option}: {str(value).lower()}" for option, value in meant.items() if option != "name")
        if meant["name"] == name:
            others.append(f"`{alias}`" + (f" (`{options}`)" if options else ""))
    return f"*Also named* {', '.join(others)}.\n\n" if others else ""


def _entry(name: str, function: Callable[..., Any], aliases: str) -> str:
    text = inspect.getdoc(function) or ""
    documented = parse(text)
    body, _, source = text.partition("\nSource:")
    body = body.partition("\nArgs:")[0].partition("\nRaises:")[0].rstrip()
    lines = [f"### `{name}`\n\n", aliases, _as_markdown(body), "\n"]
    columns = [f"`{column}`" for column in column_names(function)]
    gives = f"; returns one number per {annotated_level(function)}" if function in ADVANTAGES.values() else ""
    if function in CREDIT_FILTERS.values():
        gives = f"; scope of the removal: {annotated_removal_scope(function).value.replace('_', ' ')}"
    lines.append(f"*Reads* {', '.join(columns)}{gives}.\n\n")
    options = {p.name: p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY}
    descriptions = {p.arg_name: " ".join((p.description or "").split()) for p in documented.params}
    if options:
        lines.append("| option | default | |\n| --- | --- | --- |\n")
        lines += [f"| `{key}` | `{p.default}` | {descriptions.get(key, '')} |\n" for key, p in options.items()]
        lines.append("\n")
    lines.append(f"*Source:* {' '.join(source.split())}\n\n")
    for kind, functions in (("advantage", ADVANTAGES), ("objective", OBJECTIVES)):
        if functions.get(name) is function:
            measured, tried = on_the_demo(kind, name), verdicts(f"{kind} {name}")
            lines += [f"{measured}\n\n"] * bool(measured) + [f"{tried}\n"] * bool(tried)
    return "".join(lines)


def _as_markdown(body: str) -> str:
    """Convert a docstring to Markdown; indented lines are formulas."""
    lines: list[str] = []
    inside = False
    for line in body.splitlines():
        formula = line.startswith("    ")
        if formula and not inside:
            lines.append("```")
        if inside and not formula and line.strip():
            while not lines[-1].strip():
                lines.pop()
            lines += ["```", ""]
        if line.strip() or not inside:
            inside = formula
        lines.append(line[4:] if formula else line)
    if inside:
        lines.append("```")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
