"""Context limits, masks, wrappers, search and admission: counts over simulated episodes."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import torch
from torch import Tensor

from paper_properties import exact
from paper_properties.enumeration import TREE, enumerate_groups, gradient_of, max_gap, numbers
from paper_properties.episodes import TASK, make_group, make_turn
from whetstone.algorithms.advantages import leave_one_out
from whetstone.algorithms.objectives import policy_gradient
from whetstone.analysis.exact import Figure
from whetstone.chat import Message, ToolCall, user
from whetstone.environments.protocol import Observation, StepResult
from whetstone.rewards.answers.confidence import brier_score, separated_score
from whetstone.rewards.process.unary_feedback import unary_return
from whetstone.rollout.context_rewrites.memory_folding import Fold
from whetstone.rollout.context_rewrites.summarization import Summary
from whetstone.rollout.context_transforms.example_selection import ExampleSelection
from whetstone.rollout.context_transforms.prompt_population import Instructions
from whetstone.rollout.environment_wrappers.self_search import SelfSearch
from whetstone.rollout.protocol import Ask, EpisodeKey, EpisodeState, RestartContext, StepOutcome
from whetstone.rollout.staleness_control import Admission
from whetstone.rollout.start_states.expert_prefix import ExpertPrefix, as_untrained_turns
from whetstone.rollout.strategies.revised_trajectories import build_revision, first_wrong_turn
from whetstone.rollout.strategies.tree_search import TreeSearch
from whetstone.tools import FrozenModel
from whetstone.trajectory import Author, CallRecord, EndReason, Group, Score, Task, Tokens, Trajectory, Turn


def _simulate(rewrite: Any, random: Random, limit: int, folds: bool) -> tuple[int, int]:
    """Play 30 turns of 5 to 40 tokens; return the largest context and the number of times the context was reopened."""
    turns: tuple[Turn, ...] = ()
    opening, context, largest, reopened = 20, 20, 0, 0
    for _ in range(30):
        context += random.randint(5, 40)
        largest = max(largest, context)
        call = [("fold_memory", "{}")] if folds and context > limit - 80 else [("search", "{}")]
        turns = (*turns, make_turn("", call))
        while True:
            state = EpisodeState(EpisodeKey(TASK, 0), turns=turns, context_tokens=context, context_length=limit)
            change = asyncio.run(rewrite(state))
            if isinstance(change, Ask):
                context += 24
                largest = max(largest, context)
                turns = (*turns[: len(turns) - change.drop], replace(make_turn('{"working": "x"}'), aside=True))
                continue
            if isinstance(change, RestartContext):
                context, reopened = opening + 24, reopened + 1
            break
    return largest, reopened


@exact("supo", of=Summary)
def summaries_keep_the_context_below_its_limit() -> list[Figure]:
    """Over 10 simulated episodes that are three times as long as the limit, the context never exceeds it, and
    episodes below the threshold are not changed."""
    random = Random(0)
    rewrite = Summary(tokens=130, max_summaries=30, room=24)
    rows = [_simulate(rewrite, random, 200, folds=False) for _ in range(10)]
    untouched = _simulate(Summary(tokens=10**6), Random(0), 10**6, folds=False)
    return [
        Figure("largest context in tokens (limit 200)", "<=", 200, max(row[0] for row in rows)),
        Figure("fewest summaries of an episode", ">=", 3, min(row[1] for row in rows)),
        Figure("summaries below the threshold", "=", 0, untouched[1]),
    ]


@exact("deepagent", of=Fold)
def folding_keeps_the_context_below_its_limit() -> list[Figure]:
    """If the policy folds its memory near the limit, the context never exceeds it, and two folds in a row are
    one."""
    random = Random(1)
    rewrite = Fold(writer="policy", room=24)
    rows = [_simulate(rewrite, random, 200, folds=True) for _ in range(10)]
    fold = make_turn("", [("fold_memory", "{}")])
    state = EpisodeState(EpisodeKey(TASK, 0), turns=(fold, fold), context_tokens=50, context_length=200)
    return [
        Figure("largest context in tokens (limit 200)", "<=", 200, max(row[0] for row in rows)),
        Figure("fewest folds of an episode", ">=", 3, min(row[1] for row in rows)),
        Figure("changes after a second fold in a row", "=", 0, asyncio.run(rewrite(state)) is not None),
    ]


class _Index:
    """An environment with a search index that counts its use."""

    def __init__(self) -> None:
        self.searches = 0

    def step(self, action: Message) -> StepResult:
        """Answer a search, or end the episode."""
        self.searches += sum(call.name == "search" for call in action.tool_calls)
        return StepResult(Observation((user("page"),)), terminated=not action.tool_calls)


@exact("ssrl", of=SelfSearch)
def training_makes_no_outside_call() -> list[Figure]:
    """Over 1,000 searches the policy answers each itself and the index is not used; other tools are, and an
    answer ends the episode."""

    async def play() -> tuple[int, int, int]:
        index, pages, ended = _Index(), 0, 0
        wrapped: Any = SelfSearch()(index, None)  # type: ignore[arg-type]
        for k in range(1000):
            call = ToolCall("search", json.dumps({"query": str(k)}))
            result = await wrapped.step(Message("assistant", (), (call,)))
            pages += f"{k}" in result.observation.messages[0].text
            await wrapped.step(make_turn("a page").message)
        ended += (await wrapped.step(make_turn("7").message)).terminated
        return index.searches, pages, ended

    searches, pages, ended = asyncio.run(play())
    return [
        Figure("calls of the index", "=", 0, searches),
        Figure("searches that the policy was asked to answer", "=", 1000, pages),
        Figure("answers that ended the episode", "=", 1, ended),
    ]


def _turn(read: Sequence[int], sampled: Sequence[int], **options: Any) -> Turn:
    """Build a turn of tokens that were read and tokens that the policy sampled."""
    count = len(sampled)
    action = Tokens.from_samples(sampled, logprobs=(-1.0,) * count, versions=(0,) * count, entropies=(0.0,) * count)
    return Turn(Tokens.from_ids(read, Author.ENVIRONMENT), action, make_turn("a").message, **options)


@exact("r1-code-interpreter", of=(Trajectory.segments, policy_gradient))
def tool_output_has_no_loss() -> list[Figure]:
    """The loss mask is 1 exactly on sampled tokens; with observations trained, tokens of tools have the
    episode's credit, whose expected gradient on a wrong model of the tool is not 0 and has nothing to do with
    the reward."""
    turns = (
        _turn([1, 2, 3], [4, 5], opens_segment=True),
        _turn([6, 7, 8, 9], [10]),
    )
    episode = Trajectory("e", "t", (), turns, EndReason.TERMINATED)
    (masked,), (unmasked,) = episode.segments(), episode.segments(observations=True)
    trained = [token for token, mask in zip(masked.tokens.ids, masked.action_mask, strict=True) if mask]

    def bias(mask: float) -> float:
        """The tool prints 0 or 1 evenly, the model predicts 0 with 0.8, and the reward is 1 whatever is printed."""

        def slope(sign: int) -> float:
            def loss(z: Tensor) -> Tensor:
                return mask * policy_gradient((sign * z).sigmoid().log().reshape(1), numbers([1.0])).loss.sum()

            return float(gradient_of(loss, torch.tensor(0.8, dtype=torch.float64).logit()))

        return (slope(1) + slope(-1)) / 2

    return [
        Figure("trained tokens that were sampled", "=", 3, len({4, 5, 10} & set(trained))),
        Figure("trained tokens of tools, masked", "=", 0, len(set(trained) - {4, 5, 10})),
        Figure("trained tokens of tools, unmasked", "=", 4, sum(unmasked.action_mask) - 3),
        Figure("expected gradient on the tool's logit, masked", "=", 0.0, bias(masked.action_mask[5])),
        # the mean of -(1 - 0.8) and 0.8
        Figure("the same, unmasked", "=", 0.3, bias(unmasked.action_mask[5])),
    ]


@exact("learning-generate-better-than-your-llm", of=(as_untrained_turns, leave_one_out))
def guided_starts_train_the_policy_where_the_guide_arrives() -> list[Figure]:
    """Turns of the guide have no loss; the expected gradient of the policy's own turns is that of its value in
    the states to which the guide leads."""
    guide = (_turn([1], [2, 3], opens_segment=True),)
    own = _turn([4], [5, 6])
    (segment,) = Trajectory("e", "t", (), (*as_untrained_turns(guide), own), EndReason.TERMINATED).segments()
    gap = 0.0
    for first in range(2):
        index = [2 * first, 2 * first + 1]
        chances = TREE.logits[1 + first].softmax(0)
        groups = enumerate_groups(chances, 3)
        rewards = TREE.rewards[index]
        credit = leave_one_out(rewards[groups.flat], groups.group).view(-1, 3)
        scores = (torch.eye(2, dtype=torch.float64) - chances)[groups.members]
        expected = groups.mean_of((credit.unsqueeze(2) * scores).mean(1))
        gap = max(gap, max_gap(expected, chances * (rewards - (chances * rewards).sum())))
    return [
        Figure("trained tokens of the guide", "=", 0, sum(segment.action_mask[1:3])),
        Figure("trained tokens of the policy", "=", 2, sum(segment.action_mask)),
        Figure("largest bias in two guided states", "=", 0.0, gap),
    ]


class _Guide:
    """Demonstrator that plays a frozen model on a lock of `length` digits, which it opens except for the last one."""

    def __init__(self, length: int) -> None:
        self.length = length

    async def demonstration(self, task: Task, *, model: FrozenModel | None = None) -> tuple[Trajectory, int]:
        """See `Demonstrator`."""
        assert model is not None
        answers = [await model.answer((user(f"digit {k}"),)) for k in range(self.length)]
        turns = tuple(replace(make_turn(), message=answer) for answer in answers)
        return Trajectory("guide", task.id, (), turns, EndReason.TERMINATED), 0


def _answer_all_but_the_last(conversation: Sequence[Message], tools: Any, seed: int) -> str:
    """Name the right digit, 1, except for the last one."""
    return "0" if conversation[-1].text == "digit 5" else "1"


def _train_on_lock(*, anneal_updates: int, updates: int = 600) -> float:
    """Return the success on a lock of 6 binary digits after exact policy gradient, with starts of a frozen model."""
    start = ExpertPrefix(
        anneal_updates=anneal_updates, model="guide", models={"guide": FrozenModel("guide", _answer_all_but_the_last)}
    )
    logits = torch.full((6,), -2.0, dtype=torch.float64)  # of the right digit against the wrong one, at each place
    for step in range(updates):
        prefix = asyncio.run(start(EpisodeKey(TASK, 0, step), _Guide(6)))
        begin = 0 if prefix is None else len(prefix.turns)
        right = logits.sigmoid()
        success = right[begin:].prod()
        gradient = success * (1 - right)
        gradient[:begin] = 0.0
        logits = logits + 5.0 * gradient
    return float(logits.sigmoid().prod())


@exact("learning-generate-better-than-your-llm", of=ExpertPrefix, note="a lock of six digits and a tabular policy")
def frozen_guide_is_surpassed_after_its_starts() -> list[Figure]:
    """A frozen model opens a lock of six digits except for the last one, so it never succeeds. A policy that starts
    after its turns, with a prefix that shrinks, opens the lock; the same policy gradient from the reset state does
    not."""
    guided, plain = _train_on_lock(anneal_updates=300), _train_on_lock(anneal_updates=1)
    return [
        Figure("success after starts of the guide", ">", 0.9, guided),
        Figure("success without them (the guide succeeds with 0)", "<", 0.01, plain),
    ]


class _Graph:
    """A tree of calls, three deep and three wide, with one valid plan; counts the paths that were sampled until it."""

    max_turns = 4

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.plan = tuple(self.random.randrange(3) for _ in range(3))
        self.expansions, self.solved_after = 0, 0
        self.children: Counter[tuple[int, ...]] = Counter()

    def estimate(self, path: tuple[int, ...]) -> float:
        """Noisy number of right calls at the start of a path."""
        right = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(path, self.plan, strict=False))))
        return right + Random(f"{self.plan}{path}").uniform(-1.0, 1.0)

    def depth_first(self) -> int:
        """Expansions of depth-first search in the order of the calls."""
        order = [path for depth in range(3) for path in itertools.product(range(3), repeat=depth)]
        return sum(path < self.plan for path in order)  # the plan's own states and all before them

    async def sample(self, task: Task, *, index: int, max_turns: int) -> Trajectory:
        """Make the first call."""
        return self._continue((), index)

    async def fork(self, task: Task, path: Trajectory, *, turns: int, index: int, max_turns: int = 0) -> Trajectory:
        """Make one more call after a path."""
        return self._continue(tuple(int(turn.message.text) for turn in path.turns), index)

    def _continue(self, path: tuple[int, ...], index: int) -> Trajectory:
        call = self.children[path]
        self.children[path] += 1
        self.expansions += call == 0
        taken = (*path, call)
        if taken == self.plan and not self.solved_after:
            self.solved_after = self.expansions
        ended = EndReason.TERMINATED if len(taken) == 3 else EndReason.MAX_TURNS
        return Trajectory(f"{index}", "t", (user("?"),), tuple(make_turn(str(k)) for k in taken), ended)


@exact(
    "toolchain-star", of=TreeSearch, note="costs are a verifier's value and a cost per turn, not the paper's g and h"
)
def best_first_search_expands_fewer_nodes() -> list[Figure]:
    """On 40 graphs of 27 plans with a noisy estimate of progress, A* finds the valid plan with fewer expansions
    than depth-first search."""
    informed, depth_first, missing = [], [], 0
    for seed in range(40):
        graph = _Graph(seed)

        async def verifier(trajectory: Trajectory, task: Task, graph: _Graph = graph) -> Score:
            return Score(graph.estimate(tuple(int(turn.message.text) for turn in trajectory.turns)))

        search = TreeSearch(verifier=verifier, method="a_star", expansions=12, width=3, turn_cost=0.1)
        asyncio.run(search(TASK, graph))  # type: ignore[arg-type]
        missing += graph.solved_after == 0
        informed.append(graph.solved_after)
        depth_first.append(graph.depth_first())
    return [
        Figure("graphs without the plan", "=", 0, missing),
        Figure("mean expansions of A*, bound: depth-first", "<", sum(depth_first) / 40, sum(informed) / 40),
        Figure("graphs of 40 on which A* needs more", "<", 20,
               sum(a > b for a, b in zip(informed, depth_first, strict=True))),
    ]  # fmt: skip


@exact("try-again", of=unary_return)
def later_answers_pay_less() -> list[Figure]:
    """The reward halves with each wrong answer before the right one, and equal wrong answers cost."""
    paid = [unary_return([str(k) for k in range(n + 1)], solved_at=n) for n in range(5)]
    return [
        Figure("right at once", "=", 1.0, paid[0]),
        Figure("right at the fifth answer", "=", 1 / 16, paid[4]),
        Figure("two different wrong answers less two equal ones", "=", 0.25,
               unary_return(["1", "2"], solved_at=None) - unary_return(["1", "1"], solved_at=None)),
    ]  # fmt: skip


@exact("confidence-dichotomy", of=(brier_score, separated_score))
def honest_confidence_pays_most() -> list[Figure]:
    """The expected reward is largest if the stated confidence is the probability of a right answer, in both
    forms; the separated form keeps every right answer above every wrong one."""
    grid = [k / 100 for k in range(101)]

    def best(form: Any, chance: float) -> float:
        return max(grid, key=lambda q: chance * form(True, q) + (1 - chance) * form(False, q))

    gaps = [abs(best(form, chance) - chance) for form in (brier_score, separated_score) for chance in grid]
    return [
        Figure("largest gap of the best confidence to the probability", "=", 0.0, max(gaps)),
        Figure("least of right less most of wrong, separated", "=", 1.0,
               min(separated_score(True, q) for q in grid) - max(separated_score(False, q) for q in grid)),
    ]  # fmt: skip


def _outcome(step: int, group: Group) -> StepOutcome:
    return StepOutcome(step, (group,), {}, Random(step))


@exact("inspo", of=Instructions)
def better_instruction_takes_the_population() -> list[Figure]:
    """The better one of two instructions with known success is sampled more and more, and the first is never
    removed."""
    part = Instructions(texts=["plain", "careful"], proposer=None, temperature=0.1, rate=0.2)
    success, used = {"plain": 0.2, "careful": 0.8}, []
    for step in range(60):
        state = EpisodeState(EpisodeKey(TASK, step, group_size=4))
        opening = part.opening((user("?"),), state)
        text = opening[0].text.split("\n")[0]
        used.append(text)
        group = make_group([success[text]] * 4)
        group = replace(group, trajectories=tuple(replace(t, opening=opening) for t in group.trajectories))
        part.observe(_outcome(step + 1, group))
    return [
        Figure("uses of the better one in the last 30, bound: in the first 10 times 3", ">=",
               min(29, 3 * used[:10].count("careful")), used[30:].count("careful")),
        Figure("gap of its weight to its success", "<", 0.01, abs(part.population[1].weight - 0.8)),
        Figure("first instruction still there", "=", 1, part.population[0].text == "plain"),
    ]  # fmt: skip


@exact("efficient-prompting-dynamic-context-learning", of=ExampleSelection)
def examples_are_shown_to_the_kind_that_needs_them() -> list[Figure]:
    """On two kinds of task with known gain, the controller ends with no example for the one and all for the
    other."""
    part = ExampleSelection(examples=["one", "two"], price=0.05, temperature=0.2)
    easy, hard = (Task(name, "?", tags={"kind": name}) for name in ("easy", "hard"))
    gain = {"easy": (0.9, 0.9, 0.9), "hard": (0.1, 0.4, 0.9)}

    def read(task: Task, seed: int, size: int) -> tuple[int, tuple[Message, ...]]:
        opening = part.opening((user("?"),), EpisodeState(EpisodeKey(task, seed, group_size=size)))
        return sum(word in opening[0].text for word in ("one", "two")), opening

    for step in range(300):
        task = (easy, hard)[step % 2]
        count, opening = read(task, step, 4)
        group = make_group([gain[task.id][count]] * 4, task=task)
        part.observe(_outcome(step + 1, replace(group, trajectories=tuple(
            replace(t, opening=opening) for t in group.trajectories))))  # fmt: skip
    return [
        Figure("examples for the kind that is solved without", "=", 0, read(easy, 0, 1)[0]),
        Figure("examples for the kind that needs them", "=", 2, read(hard, 0, 1)[0]),
    ]


@exact("asyncflow", "rollart", of=Admission)
def staleness_is_bounded_by_admission() -> list[Figure]:
    """Over 300 updates with groups of random duration, groups that are consumed in the order of admission are
    at most `admit_ahead` updates old, and with 0 they are fresh."""

    def largest(ahead: int) -> int:
        async def play() -> int:
            gate, number, age, random = Admission(4, admit_ahead=ahead), 0, 0, Random(0)
            finished: set[int] = set()
            while gate.version < 300:
                while gate.free_slots > 0:
                    await gate.admit_group(number)
                    number += 1
                running = sorted(set(gate.live) - finished)
                finished |= {k for k in running if random.random() < 0.5}
                due = sorted(gate.live)[:4]
                if set(due) <= finished:
                    age = max(age, max(gate.version - gate.live[k] for k in due))
                    gate.record_update(due)
            return age

        return asyncio.run(play())

    return [
        Figure("largest age in updates, one ahead", "=", 1, largest(1)),
        Figure("three ahead", "=", 3, largest(3)),
        Figure("none ahead", "=", 0, largest(0)),
    ]


class _Writer:
    """Turns a text into tokens, as a rollout does."""

    def tokenize(self, text: str) -> tuple[int, ...]:
        """One token per word."""
        return tuple(range(100, 100 + len(text.split())))


@exact("agent-r", of=(first_wrong_turn, build_revision))
def failures_continue_as_their_sibling() -> list[Figure]:
    """For each place of the first failed call, the failed path is cut right after it and continues with the
    turns of the successful sibling; the wrong turns have no loss, the reflection and the sibling's turns do."""
    shared = _turn([1], [2], opens_segment=True)
    rest = tuple(_turn([10 + k], [20 + k]) for k in range(3))
    good = Trajectory("g", "t", (user("?"),), (shared, *rest), EndReason.TERMINATED, score=Score(1.0, success=True))
    cuts, trained, rewards = [], [], []
    for place in range(3):
        own = [_turn([30 + k], [40 + k]) for k in range(4)]
        failed = CallRecord("search", "failed", 0.0)
        own = [replace(turn, calls=(failed,)) if k >= place else turn for k, turn in enumerate(own)]
        bad = Trajectory("b", "t", (user("?"),), (shared, *own), EndReason.TERMINATED, score=Score(0.0, success=False))
        joined = build_revision(bad, good, "Another way:", _Writer())  # type: ignore[arg-type]
        assert joined is not None
        assert joined.score is not None
        (segment,) = joined.segments()
        tokens = [t for t, mask in zip(segment.tokens.ids, segment.action_mask, strict=True) if mask]
        cuts.append(first_wrong_turn(own))
        trained.append([t for t in tokens if t not in (2, 100, 101, 20, 21, 22)])
        rewards.append(joined.score.value + (len(tokens) == 6))
    return [
        Figure("failed calls at 0, 1 and 2 that were not located", "=", 0, sum(k != cut for k, cut in enumerate(cuts))),
        Figure("trained tokens of wrong turns", "=", 0, sum(map(len, trained))),
        Figure("revisions of 3 with the sibling's reward and its tokens trained", "=", 3, rewards.count(2.0)),
    ]
