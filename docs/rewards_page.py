"""The page of rewards: what an episode is worth, who judges, how it is found out whether that can be fooled."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from docstring_parser import parse

from whetstone.evaluation.audit import PLAYERS
from whetstone.evaluation.audit.players import UNFINISHED, unfinished
from whetstone.rewards import REWARDS
from whetstone.rewards.judges import JUDGES
from whetstone.rewards.term import Fade, Term
from whetstone.rollout import SEARCHES

EVERY: Mapping[str, Any] = REWARDS
TOP = """# Rewards and evaluation

*Written from the docstrings by `make docs`; change them there.*

A reward is a function of an episode on record and its task; it says a value, named parts, whether the task was solved,
and sometimes a number for each turn. A recipe names it, with options; a reward that is made of others names them:

```yaml
reward: {name: otc, outcome: {name: symbolic, seconds: 2}, smooth: 6}
```

A custom reward is a function `mine(trajectory, task)`, plain or async, that the recipe names as `package.module:mine`:

| | |
| --- | --- |
| `trajectory.final_text` | the text of the last action |
| `trajectory.final` | result of the environment: its verdict, or the answer of an [agent](agents.md) |
| `trajectory.turns`, `trajectory.calls` | turns with messages, agents and rewards; tool calls with outcome and time |
| `task.private` | columns of the task that the policy does not see, such as `answer` |
| returns | `Score(value, success=…)`, or a number: 1 or more is a success, less is not |
| keyword-only parameters | options of the reward; one of type `Reward` or `Judge` is named in the recipe too |

A class may hold something, and compare the episodes of a group (`compared`), once the group is whole.

**What goes wrong in a reward is never a number.** An exception, a value that is not finite, a judge that is down or
answers in prose, a sandbox that died: the episode leaves every statistic, ends by `error` or `infrastructure`, is
counted in the metrics, and too many of them stop the run (`reinforcement.max_failures`).

## Sums of terms

```yaml
reward:
  name: composed
  terms:
    correct: exact_number
    brief: {name: few_calls, weight: 0.2, times: correct}           # a factor: nothing for a wrong answer
    ran: {name: executed_calls, weight: 0.1, gate: correct, high: 3}  # gated and bounded
    format: {name: well_formed, weight: 0.5, fade: {to: 0, over: 100}}
```

The value is Σ weight · gate · factor · bounded(term). Each term is logged by its name, and what it was paid as
`NAME.paid`. Efficiency and process terms belong behind `gate` or `times`: beside the answer they pay for giving up.

"""

DOCTOR = """## Can it be fooled?

`whetstone rewards audit RECIPE` lets an expert and impostors play the recipe's tasks, and asks whether anybody who did
not do the task is paid as if he had. Who did it is told without the reward: by the world's own verdict, or by the
expert's answer. Of who makes no move (`nothing`, `garbage`, `nonsense`) the world is not believed, and of who stops at
once (`one move`, `stops`) no more wins than luck explains. It exits with 1 if the reward can be fooled, or if it is the
same for every episode: it then reports what the reward reads.

| who | |
| --- | --- |
"""

CHECKS = """
Checked are: a good episode is paid more than every bad one; nonsense and stopping at once never win; giving up is paid
no more than an honest failure; what cannot be judged (the task's private data, the world's verdict, the judge taken
away) is not a number; components keep their names; scores are the same when asked again; a change of one per cent in a
weight changes nobody's place. Every recipe that comes along passes.

`whetstone rewards train-model RECIPE --model FOLDER` fits a reward model (`reward_model`) on the same episodes.

"""

JUDGED = """## Judges

A judge is asked a question about material that is not to be trusted, and answers with one JSON object of a known shape.
Material stands in fields whose marks are made from its own hash, so that nothing in it can close them; thoughts are
taken out. Answers are kept by what was asked (`cache:`, one file for any number of runs), read strictly, and asked for
again where they are prose. No answer is no score. `judge.meter` counts questions, tokens and cost. What a judge of ours
was asked and said, and its reason, is kept with the score (`score.judgements`) and shown by `whetstone view` and
`whetstone show RUN --trajectory ID`.

"""

SEARCHED = """## Evaluation

`whetstone evaluate RUN_OR_RECIPE` plays held-out tasks with fixed seeds: success with a 95 % interval over tasks
(several episodes of one task are correlated), pass@k and pass^k, maj@k, the mean reward, components, turns, calls,
solved episodes per call, tokens, cost, what went wrong, calibration of stated confidence, each tag of the tasks.
`--policy` takes a run, a model's folder or an OpenAI-compatible address; `--output-dir FOLDER` keeps every episode
and continues from them; `--lm-eval FILE` writes results as lm-evaluation-harness does. Episodes that failed for reasons
of infrastructure are counted apart; above 2 % the command exits with 1. `evaluation.interval_steps: 10` evaluates
during training, on a copy of the weights.

`whetstone compare demo with=null,gspo` or `whetstone compare demo advantage=gpg,gigpo --budget sampled_tokens=1e6`
trains each over several seeds on the same tasks with the same budget (`episodes`, `sampled_tokens`, `tool_calls`,
`seconds`), and says in a table and on one page what differs: paired by task and seed, p-values corrected after Holm,
effect sizes. Runs are kept under a name made of all that decides them; adding a contender runs one contender.

Several tries and one answer, by `evaluation.strategy:`

"""


def rewards_page() -> str:
    """The whole page."""
    lines = [TOP]
    lines += ["| of a term | default | |\n| --- | --- | --- |\n", *_fields(Term), *_fields(Fade, "fade."), "\n"]
    lines.append(DOCTOR)
    for name, make in PLAYERS.items():
        player = make(0)
        said = inspect.getdoc(player if inspect.isfunction(player) else type(player)) or ""
        lines.append(f"| {name} | {' '.join(said.split())} |\n")
    lines.append(f"| {UNFINISHED} | {' '.join((inspect.getdoc(unfinished) or '').split())} |\n")
    lines += [CHECKS, JUDGED]
    lines += [_entry(name, part) for name, part in JUDGES.items()]
    lines.append("## Every reward\n\n")
    lines += [_entry(name, part) for name, part in sorted(EVERY.items())]
    lines.append(SEARCHED)
    lines += [_entry(name, part) for name, part in SEARCHES.items()]
    return "".join(lines).rstrip() + "\n"


def _fields(part: type, prefix: str = "") -> list[str]:
    """Options of a term, with what stands under each field."""
    source = inspect.getsource(part)
    found = re.findall(r'^    (\w+): [^\n]*?(?:= (.+?))?\n(?:    """(.*?)""")?', source, re.MULTILINE | re.DOTALL)
    rows = []
    for name, default, said in found:
        if name != "reward":
            text = " ".join(said.split()) if said else ""
            rows.append(f"| `{prefix}{name}` | {f'`{default}`' if default else 'needed'} | {text} |\n")
    return rows


def _entry(name: str, part: Callable[..., Any]) -> str:
    text = inspect.getdoc(part) or ""
    body = re.split(r"\n(?:Args|Raises|Sources?):", text)[0].rstrip()
    source = re.search(r"\nSources?:(.*?)(?=\n\n|\Z)", text, re.DOTALL)
    said: Mapping[str, str] = {p.arg_name: " ".join((p.description or "").split()) for p in parse(text).params}
    options = {p.name: p for p in inspect.signature(part).parameters.values() if p.kind is p.KEYWORD_ONLY}
    lines = [f"### `{name}`\n\n{body}\n\n"]
    if options:
        lines.append("| option | default | |\n| --- | --- | --- |\n")
        for key, option in options.items():
            lines.append(f"| `{key}` | {_default(option)} | {said.get(key, '').replace('|', chr(92) + '|')} |\n")
        lines.append("\n")
    if source is not None:
        lines.append(f"*Source:* {' '.join(source.group(1).split())}\n\n")
    return "".join(lines)


def _default(option: inspect.Parameter) -> str:
    if option.default is option.empty:
        return "needed"
    value = getattr(option.default, "__name__", option.default)
    return f"`{value}`" if value != "" else '`""`'
