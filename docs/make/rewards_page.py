"""Page of rewards: reward functions, judges, the audit for reward hacking, and evaluation."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from docstring_parser import parse

from whetstone.evaluation.audit import PLAYERS
from whetstone.evaluation.audit.probe_policies import UNFINISHED, truncate_last_turn
from whetstone.rewards import REWARDS
from whetstone.rewards.judges import JUDGES
from whetstone.rewards.term import Fade, Term
from whetstone.rollout import SEARCHES

EVERY: Mapping[str, Any] = REWARDS
TOP = """# Rewards and evaluation

*Generated from the docstrings by `make docs`; edit them there.*

A reward is a function of a recorded episode and its task. It returns a value, named components, whether the task was
solved, and optionally a number per turn. A recipe names it, with options; a reward can combine others:

```yaml
reward: {name: otc, outcome: {name: symbolic, seconds: 2}, smooth: 6}
```

A custom reward is a function `mine(trajectory, task)`, plain or async, that the recipe names as `package.module:mine`:

| | |
| --- | --- |
| `trajectory.final_text` | the text of the last action |
| `trajectory.final` | result of the environment: its verdict, or the answer of an [agent](../guide/agents.md) |
| `trajectory.turns`, `trajectory.calls` | turns with messages, agents and rewards; tool calls with outcome and time |
| `task.private` | columns of the task that the policy does not see, such as `answer` |
| returns | `Score(value, success=…)`, or a number: 1 or more is a success, less is not |
| keyword-only parameters | options of the reward; one of type `Reward` or `Judge` is named in the recipe too |

A class can have state, and can compare the episodes of a complete group (`compared`).

**A failure in a reward is never a number.** After an exception, a value that is not finite, an unavailable or
unparsable judge, or a crashed sandbox, the episode is excluded from all statistics. It ends with `error` or
`infrastructure` and is counted in the metrics; too many of them stop the run (`reinforcement.max_failures`).

## Sums of terms

```yaml
reward:
  name: composed
  terms:
    correct: exact_number
    brief: {name: few_calls, weight: 0.2, times: correct}           # a factor: 0 for a wrong answer
    ran: {name: executed_calls, weight: 0.1, gate: correct, high: 3}  # gated and bounded
    format: {name: well_formed, weight: 0.5, fade: {to: 0, over: 100}}
```

The value is Σ weight · gate · factor · bounded(term). Each term is logged by its name, and its contribution as
`NAME.paid`. Use `gate` or `times` for efficiency and process terms; added to the outcome, they reward giving up.

### Is an auxiliary reward misleading? Learn its weight

```yaml
reward:
  name: composed
  primary: correct
  terms:
    correct: verdict
    near: {name: "my_rewards:progress", weight: 0.5, learned: true}
    style: {name: "my_rewards:style", weight: 0.3, task_weight: style}
```

The weight of a term with `learned: true` is multiplied by a factor in [0, 1], which is learned from the primary outcome
(BARFI, reward alignment): after every step, a regression within groups finds how far each term goes with `primary`. A
misleading term is switched off. Groups whose primary outcomes are equal are no evidence, so a helpful term keeps its
weight while all episodes fail; `prior` is the number of episodes that outweigh it, `decay` forgets earlier steps. The
factor is logged as `reward/NAME.factor` and stored with the score. It is part of the checkpoint.

`task_weight: KEY` multiplies the weight by a number of the task's private data, so that tasks weigh terms themselves,
such as immediate against long-term value. A task without a finite number under the key is an error of the reward.

"""

DOCTOR = """## A verifier with tools, with or without a reference answer

```yaml
reward: {name: rule_then_judge, tools: [calculator, convert, algebra], judge: {name: local, path: models/verifier}}
```

```yaml
reward: {name: rule_then_judge, reference: false, judge: {name: local, path: models/verifier}}   # no `answer` in tasks
```

The verifier calls its tools before it decides: numbers, units, and formulas by SymPy. With `reference: false` it judges
the answer without knowing the right one and gives a score from 0 to 10. `tools: []` is the same verifier without tools,
to measure the effect of the tools. `symbolic` compares formulas without a model.

## Sparse reward: a novelty bonus for exploration

```yaml
reward: {name: novelty, outcome: verdict, weight: 0.01}   # state counts
```

```yaml
reward: {name: novelty, outcome: verdict, measure: random_network, weight: 0.01}   # RND
```

```yaml
reward: {name: novelty, outcome: verdict, measure: control, weight: 0.01}   # empowerment
```

```yaml
reward: {name: novelty, outcome: "my_rewards:attack", over: actions, weight: 0.5}   # red team: new prompts
```

If no episode is rewarded, nothing is learned; a bonus for rare observations (curiosity, intrinsic reward) leads to
states that the policy does not reach by chance. Keep weight × turns below the outcome of a solved task: a larger bonus
pays for novelty instead of solutions. The metric `reward/novelty_above_outcome` is the fraction of such episodes, and
the alarm *novelty above reward* reports it. `alternate_steps: 5` alternates five steps with and five without the bonus.

## Can it be fooled?

`whetstone rewards audit RECIPE` tests for reward hacking: an expert and impostors play the recipe's tasks, and no
impostor should be rewarded like the expert. Whether a task was completed is determined without the reward, by the
verdict of the environment or the answer of the expert. A verdict of success does not count for players without a move
(`nothing`, `garbage`, `nonsense`), and counts for players that stop immediately (`one move`, `stops`) only as often as
luck explains. The exit code is 1 if the reward can be fooled, or if it is the same for every episode; the output then
lists the inputs of the reward.

| player | |
| --- | --- |
"""

CHECKS = """
The checks: a good episode has a higher reward than every bad one; nonsense and an immediate stop never win; giving up
is not rewarded more than an honest failure; without the task's private data, the verdict or the judge, the reward is
not a number; components keep their names; scores are reproducible; a change of one percent in a weight changes no
ranking. All built-in recipes pass.

`whetstone rewards train-model RECIPE --model FOLDER` trains a reward model (`reward_model`) on the same episodes.

"""

WRITTEN = """## Can a model write the reward?

`whetstone rewards write RECIPE --judge JUDGE -o reward.py` lets a language model write a dense reward (reward shaping)
as Python code from the description of the task, as in Text2Reward and Auto MC-Reward:

```console
$ whetstone rewards write frozen-lake --judge '{name: local, path: models/writer}' -o lake.py
proposal 1: line 2: a `while` may never end
proposal 2: line 2: a trace has no `private`, only prompt, turns, ended, final, answer
proposal 3: accepted
…
lake.py: correlation with success 1.00 in 96 episodes; read the file, then set
reward: {"name": "generated_code", "path": "lake.py", "outcome": {"name": "verdict"}}
```

Each proposal passes these steps, or the objection goes back to the model (`--rounds`):

1. It is one function `reward(trace)` without imports, `while` and unknown names, and reads no private data.
2. The model, as a critic, finds no contradiction between the code and its reason.
3. It runs in the sandbox on the episodes of an expert and impostors (`--tasks`), ends within 5 seconds, and returns the
   same finite number twice.
4. Its values go with success: the rank-biserial correlation is at least `--min-correlation`. Otherwise the model, as a
   trajectory analyzer, compares a failure that is paid with a success that is not.
5. The sum of the recipe's reward and the code passes the audit.

`--episodes RUN` adds the recorded episodes of a run, so that a reward can be refined after training. With
`--template FILE` the model changes only the numbers of a reward, its parameters and weights (Language to Rewards). No
code is used unread: the command writes a file, and the recipe names it.

"""

EXTRACTED = """## Rules from preferences, metrics from comments

`whetstone rewards rules PAIRS --judge JUDGE -o rules.yaml` extracts rules from preference pairs, rows with `chosen` and
`rejected`, as in AutoRule: a judge names the rules that the better side keeps and the worse side breaks. A fraction
of the pairs is held out (`--held-out`). On these, the judge decides which rules each side satisfies, and the command
prints the agreement with the preferences, its probability under chance, and per rule the number of pairs in which only
the chosen (`+`) or only the rejected side (`−`) satisfies it:

```
+4 −0  contains because
agreement with 4 held-out pairs: 100.0% (4 agree, 0 disagree; chance: p = 0.0625); 1 rules from 4 pairs
```

`whetstone rewards metrics COMMENTS --judge JUDGE -o metrics.yaml` turns free-text comments on episodes (rows with a
conversation and a column `comment`) into named metrics as in AutoLibra: comments are split into aspects, and aspects
are grouped. On held-out rows it prints

| | |
| --- | --- |
| coverage | fraction of aspects of the comments that a metric of the episode covers |
| redundancy | fraction of metrics that the judge finds in an episode and its comment does not mention |

The file of `-o` is a recipe layer with the reward `rules`, the fraction of satisfied rules or metrics:
`whetstone train RECIPE with=rules.yaml`. A judge that names no rule, a file with fewer than two rows, and a row without
a pair or comment are one line. Rules are texts of a model: read them before you train on them.

"""

JUDGED = """## Judges

A judge receives a question about untrusted material and returns one JSON object with a given schema. The material is in
fields whose delimiters contain its hash, so that it cannot close them; reasoning is removed. Responses are cached by
request (`cache:`, one file for any number of runs), parsed strictly, and requested again if they are not JSON. Without
a response there is no score. `judge.meter` counts requests, tokens and cost. Request, response and reason of a built-in
judge are stored with the score (`score.judgements`). `whetstone view` and `whetstone show RUN --trajectory ID` show
them.

- **What if a judge is slow, down or returns garbage?** A request ends after `seconds`, and has `max_attempts` attempts.
  Then the episode has no score and is counted in `episode/invalid`; more than `reinforcement.max_failures` per thousand
  stop the run.
- **What does a judge cost?** Set `prompt_price` and `completion_price`: `whetstone plan RECIPE --trial` estimates the
  price of a run, and `reinforcement: {budget: {dollars: 20}}` ends the stage at that price ([cost](../guide/cost.md)).

"""

SEARCHED = """## Evaluation

`whetstone evaluate RUN_OR_RECIPE` plays held-out tasks with fixed seeds: success with a 95 % interval over tasks
(several episodes of one task are correlated), pass@k and pass^k, maj@k, success by turn and attempt, the mean reward,
components, turns, calls, solved episodes per call, tokens, cost, failures, calibration of stated confidence, each tag
of the tasks.
`--policy` takes a run, a model's folder or an OpenAI-compatible address; `--output-dir FOLDER` stores every episode
and resumes from them; `--lm-eval FILE` writes results as lm-evaluation-harness does. Infrastructure failures are
counted separately; above 2 % the command exits with 1. `evaluation.interval_steps: 10` evaluates
during training, on a copy of the weights.

`whetstone compare demo with=null,gspo` or `whetstone compare demo advantage=gpg,gigpo --budget sampled_tokens=1e6`
trains each over several seeds on the same tasks with the same budget (`episodes`, `sampled_tokens`, `tool_calls`,
`seconds`), and reports the differences in a table and on one page: paired by task and seed, p-values with Holm's
correction, effect sizes. Runs are stored under a name derived from all settings that affect them; adding a
contender runs only that contender.

Test-time search, several attempts and one answer, with `evaluation.strategy:`

"""


def rewards_page() -> str:
    """Return the whole page."""
    lines = [TOP]
    lines += ["| option of a term | default | |\n| --- | --- | --- |\n", *_fields(Term), *_fields(Fade, "fade."), "\n"]
    lines.append(DOCTOR)
    for name, make in PLAYERS.items():
        player = make(0)
        about = inspect.getdoc(player if inspect.isfunction(player) else type(player)) or ""
        lines.append(f"| {name} | {' '.join(about.split())} |\n")
    lines.append(f"| {UNFINISHED} | {' '.join((inspect.getdoc(truncate_last_turn) or '').split())} |\n")
    lines += [CHECKS, WRITTEN, EXTRACTED, JUDGED]
    lines += [_entry(name, part) for name, part in JUDGES.items()]
    lines.append("## Every reward\n\n")
    lines += [_entry(name, part) for name, part in sorted(EVERY.items())]
    lines.append(SEARCHED)
    lines += [_entry(name, part) for name, part in SEARCHES.items()]
    return "".join(lines).rstrip() + "\n"


def _fields(part: type, prefix: str = "") -> list[str]:
    """Return the options of a term with their descriptions."""
    source = inspect.getsource(part)
    fields = re.findall(r'^    (\w+): [^\n]*?(?:= (.+?))?\n(?:    """(.*?)""")?', source, re.MULTILINE | re.DOTALL)
    rows = []
    for name, default, about in fields:
        if name != "reward":
            text = " ".join(about.split()) if about else ""
            rows.append(f"| `{prefix}{name}` | {f'`{default}`' if default else 'needed'} | {text} |\n")
    return rows


def _entry(name: str, part: Callable[..., Any]) -> str:
    text = inspect.getdoc(part) or ""
    body = re.split(r"\n(?:Args|Raises|Sources?):", text)[0].rstrip()
    source = re.search(r"\nSources?:(.*?)(?=\n\n|\Z)", text, re.DOTALL)
    descriptions: Mapping[str, str] = {p.arg_name: " ".join((p.description or "").split()) for p in parse(text).params}
    options = {p.name: p for p in inspect.signature(part).parameters.values() if p.kind is p.KEYWORD_ONLY}
    lines = [f"### `{name}`\n\n{body}\n\n"]
    if options:
        lines.append("| option | default | |\n| --- | --- | --- |\n")
        for key, option in options.items():
            lines.append(
                f"| `{key}` | {_default(option)} | {descriptions.get(key, '').replace('|', chr(92) + '|')} |\n"
            )
        lines.append("\n")
    if source is not None:
        lines.append(f"*Source:* {' '.join(source.group(1).split())}\n\n")
    return "".join(lines)


def _default(option: inspect.Parameter) -> str:
    if option.default is option.empty:
        return "needed"
    value = getattr(option.default, "__name__", option.default)
    return f"`{value}`" if value != "" else '`""`'
