"""Selection of tasks, groups and episodes: fractions with a gradient, regret, quotas, schedules and starts."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace
from random import Random
from statistics import fmean

from paper_properties import exact
from paper_properties.episodes import TASK, make_episode, make_group, make_searches, make_turn
from whetstone.algorithms.credit_filters import zero_variance
from whetstone.algorithms.schedules.weight_schedules import mixing_weight, replay_weight
from whetstone.analysis.exact import Figure
from whetstone.rollout.budget_allocation import BySuccess, HorizonStages
from whetstone.rollout.context_transforms.budget_line import used_calls
from whetstone.rollout.context_transforms.demonstration_prompt import DemonstrationPrompt
from whetstone.rollout.context_transforms.rubric_prompt import group_share, step_share
from whetstone.rollout.dynamic_sampling.nonzero_variance import NonzeroVariance
from whetstone.rollout.early_stopping.budget_exhausted import BudgetExhausted
from whetstone.rollout.early_stopping.control_episodes import estimate_early_stopping
from whetstone.rollout.early_stopping.stragglers import StragglerStop
from whetstone.rollout.protocol import EpisodeKey, EpisodeState, Siblings, StepOutcome
from whetstone.rollout.replay.self_imitation import center_on_baseline
from whetstone.rollout.replay.success_replay import SuccessReplay
from whetstone.rollout.start_states.expert_prefix import start_fraction
from whetstone.rollout.strategies.balanced_branching import balanced_probability, root_count
from whetstone.rollout.trajectory_filters.balanced import Balanced
from whetstone.rollout.trajectory_filters.resample_on_correct import ResampleOnCorrect, outcome_quotas
from whetstone.tasks.curricula import Coverage, StagedTasks, TaskSubset, UpperBound
from whetstone.tasks.curricula.task_subset import learning_impact
from whetstone.trajectory import Group, Task, Turn


class _Source:
    """Tasks without end; task k is of kind k mod 3."""

    def task(self, index: int) -> Task:
        """See `Source`."""
        return Task(f"t{index}", "?", tags={"kind": "abc"[index % 3]})


def _outcome(step: int, *groups: Group, advantages: dict[str, float] | None = None) -> StepOutcome:
    return StepOutcome(step, groups, advantages or {}, Random(0))


@exact("success-replay", of=SuccessReplay)
def failed_groups_receive_a_stored_success() -> list[Figure]:
    """With one stored success, exactly the groups that failed altogether change, and the fraction of groups
    with a gradient rises from 1 - p^G - (1 - p)^G to 1 - p^G."""
    replay = SuccessReplay()
    replay.observe(_outcome(1, make_group([1.0])))
    before, after, wrong = 0.0, 0.0, 0
    for outcome in itertools.product((0.0, 1.0), repeat=4):
        group = make_group(outcome)
        changed = replay(group, Random(0))
        chance = 0.1 ** sum(outcome) * 0.9 ** (4 - sum(outcome))
        before += chance * (len(set(group.rewards)) > 1)
        after += chance * (len(set(changed.rewards)) > 1)
        wrong += (changed is not group) != (sum(outcome) == 0)
    return [
        Figure("fraction with a gradient, p = 0.1, G = 4", "=", 1 - 0.1**4 - 0.9**4, before),
        Figure("the same with replay", "=", 1 - 0.1**4, after),
        Figure("groups changed that did not fail, or failed ones that did not change", "=", 0, wrong),
    ]


@exact("dapo", of=(NonzeroVariance, zero_variance))
def sampling_again_gives_every_group_a_gradient() -> list[Figure]:
    """Exactly the groups with different successes count, so that an update of n groups takes n / (1 - p^G - (1
    - p)^G) sampled ones on average."""
    counts = NonzeroVariance()
    counted = sum(
        0.1 ** sum(outcome) * 0.9 ** (4 - sum(outcome)) for outcome in itertools.product((0, 1), repeat=4)
        if counts(make_group(list(map(float, outcome))))
    )  # fmt: skip
    return [Figure("sampled groups per counted one, p = 0.1, G = 4", "=", 1 / (1 - 0.1**4 - 0.9**4), 1 / counted)]


@exact("early-stopping", of=StragglerStop)
def stopping_saves_turns_of_failures() -> list[Figure]:
    """On groups with known lengths, episodes longer than twice the median success end early: turns saved and
    successes lost are counted."""
    lengths = [(3, True), (4, True), (5, True), (20, False), (18, False), (11, True)]
    stop, saved, lost = StragglerStop(standstill=99), 0, 0
    for length, success in lengths:
        end = length
        for turns in range(1, length):
            siblings = Siblings(ended=[(other, right) for other, right in lengths if other < turns])
            if stop(_state(turns, len(lengths)), siblings):
                end = turns
                break
        saved += length - end
        lost += success and end < length
    # the median success is 4 once three are over: 9 turns end an episode, also the slow success of 11
    return [
        Figure("turns saved of 61 (20 - 9, 18 - 9, 11 - 9)", "=", 22, saved),
        Figure("successes lost", "=", 1, lost),
    ]


@exact("early-stopping", of=estimate_early_stopping)
def controls_measure_saved_turns_and_lost_successes() -> list[Figure]:
    """A stop ends three of the episodes above at 9 turns. Every choice of those that continue is enumerated: the mean
    estimates of saved turns and lost successes per stopped episode are the true ones for each number of them."""
    stopped = [(20, False), (18, False), (11, True)]
    figures = []
    for count in (1, 2, 3):
        estimates = []
        for continued in itertools.combinations(stopped, count):
            episodes = [
                replace(make_searches(length - 1, reward=float(solved)), marks=("stragglers_continued:9",))
                for length, solved in continued
            ]
            ended = make_episode([make_turn("7")] * 9, reward=0.0)
            estimates.append(estimate_early_stopping([*episodes, replace(ended, marks=("stragglers",))]))
        saved, lost = (fmean(e[f"stragglers_{name}"] for e in estimates) for name in ("saved_turns", "lost_success"))
        figures += [
            Figure(f"turns saved per stop, {count} of 3 continue", "=", 22 / 3, saved),
            Figure(f"successes lost per stop, {count} of 3 continue", "=", 1 / 3, lost),
        ]
    return figures


def _state(turns: int, size: int) -> EpisodeState:
    return EpisodeState(EpisodeKey(TASK, 0, group_size=size), turns=tuple(make_turn(str(k)) for k in range(turns)))


@exact("dart", of=(BySuccess, Balanced))
def solved_tasks_receive_fewer_samples() -> list[Figure]:
    """A task that is mostly solved has half the samples and turns in proportion to its longest success; a
    filter keeps a success and a failure of each mixed group."""
    allocation = BySuccess(group_size=8, max_turns=30, rate=0.6, slack=1.5, min_turns=2)
    easy, hard = Task("easy", "?"), Task("hard", "?")
    group = make_group([1.0, 1.0, 1.0, 0.0], task=easy)
    allocation.observe(_outcome(1, group, make_group([0.0] * 4, task=hard)))
    allowed = [allocation(EpisodeKey(task, 0, group_size=8)) for task in (easy, hard, TASK)]
    keep, missing = Balanced(keep=2), 0
    for seed in range(50):
        (filtered,) = keep([make_group([1.0] + [0.0] * 7)], Random(seed))
        missing += sorted(filtered.rewards) != [0.0, 1.0]
    return [
        Figure("samples of a task solved 3 of 4 times, of 8", "=", 4, allowed[0].group_size or 8),
        Figure("turns of it (longest success 1, slack 1.5)", "=", 2, allowed[0].max_turns or 30),
        Figure("samples of a task that was never solved", "=", 8, allowed[1].group_size or 8),
        Figure("filtered groups of 50 without the rare success", "=", 0, missing),
    ]


@exact("scaling-inter", of=HorizonStages)
def horizon_grows_in_stages() -> list[Figure]:
    """The turns an episode may have follow the stages exactly and stay at the last."""
    stages = HorizonStages(turns=[3, 6, 12], updates_per_stage=10)
    turns = [stages(EpisodeKey(TASK, 0, step=step)).max_turns for step in (0, 9, 10, 19, 20, 500)]
    return [
        Figure(f"turns at update {step}", "=", expected, limit or 0)
        for step, expected, limit in zip((0, 9, 10, 19, 20, 500), (3, 3, 6, 6, 12, 12), turns, strict=True)
    ]


@exact("grpo-roc", of=(outcome_quotas, ResampleOnCorrect))
def quotas_keep_the_cleanest_successes() -> list[Figure]:
    """For every number of successes and failures the quotas add up and are there to take; of the successes,
    those with the fewest failed calls are kept."""
    wrong = 0
    for positive, negative in itertools.product(range(1, 16), repeat=2):
        if positive + negative >= 8:
            some = outcome_quotas(positive, negative, 8)
            wrong += sum(some) != 8 or some[0] > positive or some[1] > negative
    answers = [[make_turn("7")] * (k + 1) for k in range(4)]  # each further answer is unclean
    successes = [make_episode(turns, name=f"s{k}", reward=1.0) for k, turns in enumerate(answers)]
    failures = [make_episode([make_turn("8")], name=f"f{k}", reward=0.0) for k in range(4)]
    group = Group(TASK, (*reversed(successes), *failures))
    (filtered,) = ResampleOnCorrect(group_size=8, keep=4)([group], Random(0))
    names = {t.id for t in filtered.counted}
    return [
        Figure("pairs of numbers whose quotas fail, of 197", "=", 0, wrong),
        Figure("cleanest two successes among the four kept", "=", 2, len(names & {"s0", "s1"})),
        Figure("failures among them", "=", 2, len(names & {"f0", "f1"})),
    ]


@exact("dump", of=UpperBound)
def bandit_finds_the_kind_that_teaches() -> list[Figure]:
    """On three kinds of task with known gains, the bandit's regret per step is below that of uniform choice and
    falls, while every kind is tried."""
    gains = {"a": 0.1, "b": 0.3, "c": 0.8}
    bandit, source, random = UpperBound(kinds="abc", temperature=0.1), _Source(), Random(0)
    chosen = []
    for step in range(400):
        index = bandit.choose(source, 0, step, step, random)  # type: ignore[arg-type]
        task = source.task(index)
        kind = task.tags["kind"]
        chosen.append(kind)
        group = make_group([1.0, 0.0], task=task, number=step)
        advantages = {t.id: gains[kind] for t in group.trajectories}
        bandit.observe(_outcome(step + 1, group, advantages=advantages))
    regrets = [0.8 - gains[kind] for kind in chosen]
    return [
        Figure("regret per step, last 200, bound: uniform choice", "<", 0.4, sum(regrets[200:]) / 200),
        Figure("the same, bound: first 100", "<", sum(regrets[:100]) / 100, sum(regrets[200:]) / 200),
        Figure("kinds tried", "=", 3, len(Counter(chosen))),
    ]


@exact("limr", of=(learning_impact, TaskSubset))
def curves_like_the_mean_score_highest() -> list[Figure]:
    """A task whose curve of success equals the mean curve scores 1 and no task more; a task that is always
    solved scores 0; a subset visits exactly its tasks."""
    curves = [[0.0, 0.5, 1.0], [0.2, 0.5, 0.8], [0.4, 0.5, 0.6], [0.2, 0.5, 0.8], [1.0, 1.0, 1.0]]
    mean = [sum(curve[k] for curve in curves) / 5 for k in range(3)]
    scores = learning_impact([*curves, mean])
    subset = TaskSubset(indices=[3, 7, 11])
    visited = Counter(subset.choose(_Source(), 0, k, 0, Random(0)) for k in range(30))  # type: ignore[arg-type]
    return [
        Figure("score of the mean curve", "=", 1.0, scores[5]),
        Figure("largest score of another task", "<", 1.0, max(scores[:5])),
        Figure("score of a task that is always solved", "=", 0.0, scores[4]),
        Figure(
            "tasks of the subset without exactly 10 of 30 visits", "=", 0, sum(visited[k] != 10 for k in (3, 7, 11))
        ),
    ]


@exact("leveraging-offline-data-online-reinforcement-learning", of=Coverage)
def uncovered_tasks_are_chosen() -> list[Figure]:
    """With a strong preference for need, all of 1,000 choices are tasks without a stored episode; the
    probability of a task with n visits is in proportion to 1/√n."""
    stored = [make_group([1.0] * 4, task=Task(name, "?")) for name in ("t0", "t1")]
    strong = Coverage(size=4, stored_groups=lambda: stored, strength=60.0)
    random = Random(0)
    choices = Counter(strong.choose(_Source(), 0, k, 0, random) for k in range(1000))  # type: ignore[arg-type]
    plain = Coverage(size=4, stored_groups=lambda: stored)
    plain.choose(_Source(), 0, 0, 0, random)  # type: ignore[arg-type]
    return [
        Figure("choices of stored tasks in 1,000", "=", 0, choices[0] + choices[1]),
        # two tasks with 4 visits of one state (need 1/2) and two without (need 1)
        Figure("mean need of the pool", "=", 0.75, plain.metrics()["need"]),
    ]


@exact("craft-gui", "masksearch", of=StagedTasks)
def easy_tasks_precede_hard_ones() -> list[Figure]:
    """Each stage holds its tasks only, and the next one starts exactly when its updates are made or success
    passes the bound."""
    stages = StagedTasks(stages=["a", "b"], max_updates_per_stage=5, replay=0.0, solved=0.7, window=2)
    random, kinds, source = Random(0), [], _Source()
    for step in range(10):
        index = stages.choose(source, 0, step, step, random)  # type: ignore[arg-type]
        kinds.append(source.task(index).tags["kind"])
        stages.observe(_outcome(step + 1, make_group([0.0, 1.0], task=source.task(index))))
    early = StagedTasks(stages=["a", "b"], max_updates_per_stage=99, replay=0.0, solved=0.7, window=2)
    for step in range(2):
        early.observe(_outcome(step + 1, make_group([1.0, 1.0], task=source.task(0))))
    return [
        Figure("easy tasks among the first five", "=", 5, kinds[:5].count("a")),
        Figure("hard tasks among the last five", "=", 5, kinds[5:].count("b")),
        Figure("stage after two solved updates", "=", 1, early.stage),
    ]


@exact("snapshot-starts", of=start_fraction)
def starts_move_back_to_the_beginning() -> list[Figure]:
    """The fraction of groups that start from an expert's state falls in a line to 0 and stays there."""
    return [
        Figure("at update 0 of 40", "=", 1.0, start_fraction(0, 40)),
        Figure("at update 10", "=", 0.75, start_fraction(10, 40)),
        Figure("after update 40", "=", 0.0, start_fraction(60, 40)),
    ]


@exact("entropy-balanced", of=(root_count, balanced_probability))
def branching_in_a_row_is_less_probable() -> list[Figure]:
    """The budget of root samples grows with the root's entropy and never exceeds the group; each branching in a
    row lowers the probability of the next."""
    roots = [root_count(8, more, sharpness=3.0) for more in (-2.0, -0.5, 0.0, 0.5, 2.0)]
    chances = [balanced_probability(0.1, count) for count in range(11)]
    return [
        Figure("roots of 8 at equal entropy (half, and one)", "=", 5, roots[2]),
        Figure("fewest roots", ">=", 1, min(roots)),
        Figure("most roots", "<=", 8, max(roots)),
        Figure("largest change of the probability with one more in a row", "<", 0.0,
               max(after - before for before, after in itertools.pairwise(chances))),
    ]  # fmt: skip


@exact("rubric-scaffolding", of=(group_share, step_share))
def criteria_fade_over_the_group_and_the_run() -> list[Figure]:
    """The fraction of criteria in the prompt falls over the samples of a group from all to none, and over the
    updates."""
    steps = [step_share(step, 50) for step in range(50)]
    return [
        Figure("first sample of 5", "=", 1.0, group_share(0, 5)),
        Figure("third sample", "=", 0.5, group_share(2, 5)),
        Figure("last sample", "=", 0.0, group_share(4, 5)),
        Figure("largest change from one update to the next", "<", 0.0,
               max(after - before for before, after in itertools.pairwise(steps))),
        Figure("at the last update", "<", 0.01, steps[-1]),
    ]  # fmt: skip


@exact("in-context", of=DemonstrationPrompt)
def examples_in_the_prompt_fade_to_zero() -> list[Figure]:
    """The number of examples follows its schedule to 0, all samples of a group read the same ones, and none
    holds the task."""
    fade = DemonstrationPrompt(examples=["one ?", "two", "three", "four"], counts=[(0, 2), (10, 1), (20, 0)])
    opening = make_searches(0).opening

    def prompt(step: int, index: int = 0) -> str:
        state = EpisodeState(EpisodeKey(TASK, 0, step=step, index=index, group_size=4))
        return " ".join(message.text for message in fade.opening(opening, state))

    def count(step: int) -> int:
        return sum(word in prompt(step) for word in ("one", "two", "three", "four"))

    return [
        Figure("examples at update 0", "=", 2, count(0)),
        Figure("at update 10", "=", 1, count(10)),
        Figure("at update 20", "=", 0, count(20)),
        Figure("different openings in a group", "=", 1, len({prompt(0, index) for index in range(4)})),
        Figure("examples with the task's own prompt", "=", 0, int("one" in prompt(0))),
    ]


@exact("budget-aware", of=(BudgetExhausted, used_calls))
def budget_is_never_exceeded_by_more_than_one_turn() -> list[Figure]:
    """Over 200 episodes with one call per turn, no episode continues after the turn that exceeds its budget,
    and none ends within it."""
    stop, over, early = BudgetExhausted(budgets=(2, 4, 8)), 0, 0
    for seed in range(200):
        key = EpisodeKey(TASK, seed, group_size=4)
        turns: tuple[Turn, ...] = ()
        calls = 0
        while not stop(EpisodeState(key, turns=turns), Siblings()):
            turns = (*turns, make_turn("", [("search", "{}")]))
            calls += 1
        budget = key.random("budget").choice((2, 4, 8))
        over += calls > budget + 1
        early += calls <= budget
    return [
        Figure("episodes with more than one call above the budget", "=", 0, over),
        Figure("episodes that ended within it", "=", 0, early),
    ]


@exact("spear", of=(replay_weight, center_on_baseline))
def imitation_rises_and_old_successes_fade() -> list[Figure]:
    """The weight of imitation rises from 0 to 1 without a fall and stays; a stored success below the median of
    today has no positive advantage."""
    weights = [replay_weight(step, steps=60) for step in range(100)]
    return [
        Figure("weight at the start", "=", 0.0, weights[0]),
        Figure("at half its steps", "=", 0.5, weights[30]),
        Figure("from its last step on", "=", 1.0, min(weights[60:])),
        Figure("smallest change", ">=", 0.0, min(after - before for before, after in itertools.pairwise(weights))),
        Figure("advantage of a success of 0.6 at a median of 0.7", "=", -0.1, center_on_baseline([0.6], 0.7)[0]),
    ]


@exact("datamind", of=mixing_weight)
def imitation_fades_to_its_floor() -> list[Figure]:
    """The weight of imitation falls in half a cosine from its start to its floor and stays, never rising."""
    weights = [mixing_weight(step, start=0.9, end=0.05, decay=80) for step in range(120)]
    return [
        Figure("at the start", "=", 0.9, weights[0]),
        Figure("at half its steps", "=", (0.9 + 0.05) / 2, weights[40]),
        Figure("after 15 of 80 steps", "=", 0.05 + 0.85 * (1 + math.cos(math.pi * 15 / 80)) / 2, weights[15]),
        Figure("from its last step on", "=", 0.05, max(weights[80:])),
    ]
