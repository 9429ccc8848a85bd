"""Writes `methods.md` from docstrings: what each method needs, its formula, when to use it.

python docs/generate.py           writes it
python docs/generate.py --check   says whether it is up to date, and exits with 1 where it is not
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from docstring_parser import parse

from whetstone.algorithms import (
    ADVANTAGES,
    CORRECTIONS,
    FILTERS,
    MODULATION,
    OBJECTIVES,
    SHAPING,
    advantages,
    bite_of,
    columns_of,
    corrections,
    level_of,
    modulation,
    objectives,
    schedules,
    shaping,
)
from whetstone.training import PROVIDERS

PAGE = Path(__file__).parent / "methods.md"

TOP = """# Methods

*Written from the docstrings by `make docs`; change them there.*

A recipe names how rewards become credit and how credit becomes a loss:

```yaml
shaping: [overlong]                # rewards made over before anything is computed from them
filters: [void_turns]              # what is not learned from, and where that bites
advantage: {name: gigpo, scale: true}
modulation: [entropy_modulated]    # advantages made over after all
objective: {name: clipped, clip_high: 0.28}
aggregation: token_mean            # what a token's loss counts for
correction: truncated              # what tokens count for that another policy drew
```

Each is a pure function. Its parameters name the **columns** it reads; its keyword arguments are its options. A recipe
whose run does not produce a column is refused before anything is sampled. Yours is named `package.module:function`.

## Which estimator?

| what there is | begin with | then try |
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
| several players, agents, or kinds of task | `dr_mas` | `mars`, `role_normalised` |

Whether each learns on the demo's task, and what it was given beside: [the table](../benchmarks/results/methods.md).

Whether each learns on the demo's task, and what it was given beside: [the table](../benchmarks/results/methods.md).

The six pieces they are made of: shape the reward (`shaping`), return (`returns.reward_to_go`), baseline and scale over
a set (`sets.normalised`), blend two levels (a sum), modulate (`modulation`). Groups of one, equal rewards and sets of
one give exactly 0; statistics are in float64 over all trajectories of a step.

"""

BESIDE = """## Functions beside recipes

Pieces, schedules and losses that no recipe names by themselves: some are inside of the methods above, the others are
for your own.

| function | |
| --- | --- |
"""


def main() -> None:
    """Write the page, or check it."""
    page = methods_page()
    if "--check" in sys.argv:
        if not PAGE.is_file() or PAGE.read_text() != page:
            sys.exit("docs/methods.md is not what the docstrings say: make docs")
        return
    PAGE.write_text(page)


def methods_page() -> str:
    """The whole page."""
    parts = [TOP, _overview()]
    sections: list[tuple[str, str, Mapping[str, Any]]] = [
        ("Estimators", "`advantage:`, from columns to advantages.", ADVANTAGES),
        ("Shaping", "`shaping:`, a list; each gives what takes the place of the rewards of its level.", SHAPING),
        ("Modulation", "`modulation:`, a list, in order; each works on any estimator's advantages.", MODULATION),
        ("Filters", "`filters:`, a list; each says where its removal bites.", FILTERS),
        (
            "Objectives",
            "`objective:`, from log-probs and advantages to a loss per token, or from sums of log-probs to one loss.",
            OBJECTIVES,
        ),
        ("Corrections", "`correction:`, a weight without gradient on each token's loss.", CORRECTIONS),
    ]
    for title, said, functions in sections:
        parts.append(f"## {title}\n\n{said}\n\n")
        parts += [_entry(name, function) for name, function in sorted(functions.items())]
    parts.append(BESIDE)
    named = {id(function) for _, _, functions in sections for function in functions.values()}
    for room in (advantages, corrections, modulation, objectives, schedules, shaping):
        for name in sorted(room.__all__):
            function = getattr(room, name)
            if inspect.isfunction(function) and id(function) not in named:
                first = (inspect.getdoc(function) or "").partition("\n")[0]
                where = room.__name__.removeprefix("whetstone.algorithms.")
                parts.append(f"| `{where}.{name}` | {first} |\n")
    return "".join(parts).rstrip() + "\n"


def _overview() -> str:
    rows = ["## Columns\n\n| column | who provides it |\n| --- | --- |\n"]
    rows += [f"| `{name}` | {who} |\n" for name, who in PROVIDERS.items()]
    rows.append(
        "\nEvery run has outcomes, rewards, groups, lengths, turns and tokens, states, calls, entropies, log-probs.\n"
        "Any other name is looked for among the reward's signals (`Score.signals`, one number a turn) and parts\n"
        "(`Score.parts`, one an episode); a reward says what it gives with `@provides(...)`.\n\n"
    )
    return "".join(rows)


def _entry(name: str, function: Callable[..., Any]) -> str:
    text = inspect.getdoc(function) or ""
    documented = parse(text)
    body, _, source = text.partition("\nSource:")
    body = body.partition("\nArgs:")[0].partition("\nRaises:")[0].rstrip()
    lines = [f"### `{name}`\n\n", _as_markdown(body), "\n"]
    columns = [f"`{column}`" for column in columns_of(function)]
    gives = f"; gives one number a {level_of(function)}" if function in ADVANTAGES.values() else ""
    if function in FILTERS.values():
        gives = f"; bites: {bite_of(function).value.replace('_', ' ')}"
    lines.append(f"*Reads* {', '.join(columns)}{gives}.\n\n")
    options = {p.name: p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY}
    said = {p.arg_name: " ".join((p.description or "").split()) for p in documented.params}
    if options:
        lines.append("| option | default | |\n| --- | --- | --- |\n")
        lines += [f"| `{key}` | `{p.default}` | {said.get(key, '')} |\n" for key, p in options.items()]
        lines.append("\n")
    lines.append(f"*Source:* {' '.join(source.split())}\n\n")
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
