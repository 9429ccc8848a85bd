"""Preflight checks, which try each component of a recipe before a long run.

    the policy loads → its template keeps history → tools respond → the reward separates right from wrong
    → episodes are sampled → sampler and learner agree → the largest step fits

`whetstone doctor RECIPE` prints the results.

Note:
    A failed check must not hide the others. Each check runs separately, and states a remedy.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import torch

from whetstone.algorithms import mismatch_metrics
from whetstone.assembly.assembly import RunComponents, assemble
from whetstone.assembly.environment import find_tool_effects
from whetstone.assembly.largest_step import DryPasses, measure_largest_step
from whetstone.assembly.memory_estimate import MemoryShare, check_fits, estimate_memory_shares
from whetstone.assembly.stage_datasets import check_data, read_demonstrations
from whetstone.assembly.trackers import build_trackers
from whetstone.chat import Message, ToolCall, ToolSpec, assistant, tool_result, user
from whetstone.compute_thread import run_in_compute_thread
from whetstone.data import Demonstrations
from whetstone.data.policy_limits import PolicyLimits
from whetstone.errors import WhetstoneError
from whetstone.evaluation.check_result import Check, CheckStatus
from whetstone.failure_causes import count_failure_causes, format_causes
from whetstone.inference import check_engine, describe_forward, uses_merged_weights
from whetstone.learning.flops import peak_memory_gib
from whetstone.learning.model_trainer import ModelTrainer
from whetstone.policies import CPU, free_memory, without_adapters
from whetstone.recipe import OptimizerSettings, Resolved, SupervisedSettings
from whetstone.recipe.stage_settings import get_data
from whetstone.reporting.alarms import mismatch_limit
from whetstone.rollout import ExpertActor, GroupPlan, Independent, make_plans
from whetstone.tasks import Expert
from whetstone.tool_calls import (
    ToolStatistics,
    compute_tool_statistics,
    describe_failing_tools,
    may_be_caused_by_arguments,
)
from whetstone.tools import CallPolicy, Effect
from whetstone.tools.side_effects import describe_effects, describe_remedy
from whetstone.tools.thread_runner import call_user_function
from whetstone.trajectory import CallRecord, Task, TokenSequence, Trajectory
from whetstone.user_code import describe_exception

_CHECK_CALLS = CallPolicy(calls_unknown=False)
_NOTHING: Mapping[str, Effect | None] = {}
_PLAYS = ("prompts", "tools and expert", "reward", "episodes", "sampler and learner")
"""Names of the checks that step the environment."""
_EPISODES = 8
_CHECK_SECONDS = 15.0
"""Deadline of each check after the policy is loaded, in seconds."""
_LARGE_PARAMETERS = 20_000_000
"""Number of parameters at which a policy on a CPU is sampled with `_LARGE_EPISODES` and `_LARGE_TOKENS` only."""
_LARGE_EPISODES, _LARGE_TOKENS = 2, 4
"""Number of one-turn episodes, and of tokens in each, that are sampled from a large policy."""
_PROMPTS = 50
"""Number of training tasks and of held-out tasks whose prompts are measured."""
_NO_RESPONSE = ("timeout", "stopped")
"""Outcomes of a call with example arguments that count as failures. Other outcomes mean that the tool responded."""
_PROMPT_SECONDS = 1.0
"""Time in seconds after which no further prompts are measured."""


async def run_preflight_checks(
    resolved: Resolved,
    *,
    check_seconds: float = _CHECK_SECONDS,
    calls: CallPolicy = _CHECK_CALLS,
    effects: Mapping[str, Effect | None] | None = None,
) -> AsyncIterator[Check]:
    """Try each component that a run of this recipe needs, and yield one result per check.

    A large policy on a CPU is tried on few tokens, and the largest update is extrapolated from smaller ones. If a check
    exceeds its deadline, its result is a warning, and the remaining checks are not tried.

    Args:
        resolved: Recipe.
        check_seconds: Deadline of each check after the policy is loaded, in seconds.
        calls: Policy that decides which tools are really called. Default: only tools that declare that they read.
        effects: Side effects of the tools; None: effects that are known without a connection to a server.
    """
    began = time.perf_counter()
    try:
        plan = await run_in_compute_thread(estimate_memory_shares, resolved, trains=True)
        for planned in _of_memory(plan, resolved):
            yield replace(planned, seconds=time.perf_counter() - began)
        await run_in_compute_thread(lambda: check_fits(resolved, trains=True))
        build_trackers(resolved)
        assembly = await run_in_compute_thread(lambda: assemble(resolved, calls=calls).check())
    except WhetstoneError as error:
        yield Check("parts", CheckStatus.FAIL, str(error), seconds=time.perf_counter() - began)
        return
    policy = assembly.policy
    trained = sum(p.numel() for p in policy.trainable_parameters())
    sizes = f"{policy.parameters:,} parameters, {trained:,} trained, context of {policy.context_length:,} tokens"
    yield Check("policy", CheckStatus.PASS, sizes, seconds=time.perf_counter() - began)
    if resolved.recipe.engine.name != "local":
        async for tried in _of_engine(assembly):
            yield tried
    else:
        began = time.perf_counter()
        is_fast, description = await run_in_compute_thread(_describe_sampling, assembly)
        status = CheckStatus.PASS if is_fast else CheckStatus.WARN
        yield Check("sampling", status, description, seconds=time.perf_counter() - began)
    name = resolved.recipe.environment.name
    known = find_tool_effects(assembly.environment(), resolved.recipe.environment) if effects is None else effects
    refused = calls.refused(known)
    if refused:
        remedy = describe_remedy(refused, for_check=True)
        yield Check("side effects", CheckStatus.WARN, f"not called: {describe_effects(refused)}", remedy)
    unlisted = await _try_to_list_tools(assembly)
    if unlisted is not None:
        yield unlisted
    probe = _Probe(assembly, plan, refused)
    checks: list[tuple[str, Callable[[], Awaitable[Check]]]] = [
        ("template", probe.template),
        ("prompts", probe.prompts),
        *((("stage data", partial(check_stage_data, assembly)),) if has_data(resolved) else ()),
        ("tools and expert", probe.tools),
        ("reward", probe.reward),
        ("episodes", probe.episodes),
        ("sampler and learner", probe.agreement),
        ("largest step", probe.largest_step),
    ]
    late = ""
    for check_name, check in checks:
        began = time.perf_counter()
        if name in refused and check_name in _PLAYS:
            yield Check(check_name, CheckStatus.WARN, f"not tried: the environment {name} is not played")
            continue
        if unlisted is not None and check_name != "largest step":
            yield Check(check_name, CheckStatus.WARN, f'not tried, because "{unlisted.name}" failed')
            continue
        if late:
            reason = f'not tried, because "{late}" is not finished'
            yield Check(check_name, CheckStatus.WARN, reason, is_finished=False)
            continue
        trial = asyncio.ensure_future(check())
        await asyncio.wait([trial], timeout=check_seconds)
        if not trial.done():
            trial.cancel()  # without waiting: arithmetic cannot be cancelled
            late, reason = check_name, f"not finished in {check_seconds:g} s"
            result = Check(check_name, CheckStatus.WARN, reason, is_finished=False)
        else:
            try:
                result = trial.result()
            except Exception as error:  # a plug-in may raise any exception
                result = Check(check_name, CheckStatus.FAIL, describe_exception(error).splitlines()[0])
        yield replace(result, name=check_name, seconds=time.perf_counter() - began)


async def _try_to_list_tools(assembly: RunComponents) -> Check | None:
    """List the tools of the environment, which starts MCP servers; return a failure, or None.

    Without the list, every check that renders a prompt or plays an episode would fail for the same reason.
    """
    began = time.perf_counter()
    try:
        await run_in_compute_thread(lambda: assembly.offered_tools)
    except Exception as error:  # a plug-in may raise any exception
        seconds = time.perf_counter() - began
        return Check("tools", CheckStatus.FAIL, describe_exception(error).splitlines()[0], seconds=seconds)
    return None


def _describe_sampling(assembly: RunComponents) -> tuple[bool, str]:
    """Return (whether the local engine samples the policy by its fastest forward pass, description)."""
    policy = assembly.policy
    if uses_merged_weights(policy):  # as in `MergedLoraEngine`
        return describe_forward(without_adapters(policy.model, merge=False).to(policy.dtype))
    return describe_forward(assembly.sampled_model())


async def run_engine_checks(resolved: Resolved) -> AsyncIterator[Check]:
    """Check only the engine of a recipe, with its policy; yield one result per check."""
    began = time.perf_counter()
    try:
        assembly = assemble(resolved)
        await run_in_compute_thread(lambda: assembly.policy)
    except WhetstoneError as error:
        yield Check("policy", CheckStatus.FAIL, str(error), seconds=time.perf_counter() - began)
        return
    async for tried in _of_engine(assembly):
        yield tried


def _of_memory(plan: Sequence[MemoryShare], resolved: Resolved) -> Iterator[Check]:
    """Yield one check per device: the estimated memory of a run compared with the free memory."""
    for device in dict.fromkeys(share.device for share in plan):
        on_device = [share for share in plan if share.device == device and share.bytes]
        free = free_memory(device)
        permanent = sum(share.bytes for share in on_device if share.is_permanent)
        passing = sum(share.bytes for share in on_device if not share.is_permanent)
        text = f"permanent {_gib(permanent)}: {_listed([share for share in on_device if share.is_permanent])}"
        if passing:
            text += f"; temporary, at most: {_listed([share for share in on_device if not share.is_permanent])}"
        verdict, mend = CheckStatus.PASS, ""
        if free is not None:
            text += f"; {_gib(free)} free"
            if permanent > free:
                verdict = CheckStatus.FAIL
            elif permanent + passing > free:
                tokens = [f"{stage}.micro_batch_tokens" for stage in list(resolved.recipe.own_stages)[-1:]]
                keys = ["rollout.max_in_flight", "engine.cache_gib", *tokens]
                verdict, mend = CheckStatus.WARN, f"reduce {', '.join(keys[:-1])} or {keys[-1]}"
        yield Check(f"memory on {device}", verdict, text, mend)


def _listed(shares: Sequence[MemoryShare]) -> str:
    """Format memory shares as `name size, name size`."""
    return ", ".join(f"{share.what} {_gib(share.bytes)}" for share in shares) or "nothing"


def _gib(size: int) -> str:
    return f"{size / 2**30:.3g} GiB" if size >= 2**30 / 100 else f"{size / 2**20:.2g} MiB"


async def _of_engine(assembly: RunComponents) -> AsyncIterator[Check]:
    """Check that the engine samples with the policy's weights and accepts new ones."""
    began = time.perf_counter()
    try:
        engine = await run_in_compute_thread(assembly.build_engine)
    except WhetstoneError as error:
        yield Check("engine", CheckStatus.FAIL, str(error), seconds=time.perf_counter() - began)
        return
    try:
        for finding in await check_engine(engine, assembly.policy):
            verdict = {True: CheckStatus.PASS, False: CheckStatus.FAIL, None: CheckStatus.WARN}[finding.passed]
            yield Check(f"engine: {finding.name}", verdict, finding.text, seconds=time.perf_counter() - began)
            began = time.perf_counter()
    finally:
        await engine.close()


class _Probe:
    """Preflight checks that share state: components, expert's and sampled episodes.

    Each check is a method that returns its result without a name; `run_preflight_checks` adds the name.

    Args:
        assembly: Components of the run.
        plan: Estimated memory of the run.
        refused: Tools that must not be called, with their effects.
    """

    def __init__(
        self, assembly: RunComponents, plan: Sequence[MemoryShare] = (), refused: Mapping[str, Effect | None] = _NOTHING
    ) -> None:
        self.assembly, self.recipe, self.plan = assembly, assembly.resolved.recipe, plan
        self.refused = refused
        """Tools that are not called."""
        self.shown: Trajectory | None = None
        self.sampled: list[Trajectory] = []
        self._trainer: ModelTrainer | None = None

    async def template(self) -> Check:
        """Check whether the tokens of each turn's context extend those of the previous one.

        A conversation of three turns is rendered. Other templates work, but each rewritten context opens a new segment.
        """
        chat = self.assembly.chat
        specs = self._specs()
        context = chat.open([user("A question?")], specs)
        opened = 0
        for turn in range(3):
            ids = chat.write(assistant("Thinking of it."), specs)
            answer: Message = user("And then?")
            if specs:
                answer = tool_result("42", call_id=f"call_{turn}_0")
            grown = chat.extend(context, ids, [answer])
            opened += grown.opens_segment
            if not grown.opens_segment and not grown.tokens.startswith(context.tokens + TokenSequence(ids)):
                return Check("", CheckStatus.FAIL, "the tokens of a context do not extend those of the previous one")
            context = grown
        if opened:
            text = f"rewrites history in {opened} of 3 turns; each opens a segment, which is exact and slower"
            return Check("", CheckStatus.WARN, text, "use a chat template that keeps earlier turns unchanged")
        return Check("", CheckStatus.PASS, f"keeps history; a turn ends with {_named(self.assembly)}")

    async def prompts(self) -> Check:
        """Compare the lengths of initial prompts, in tokens, with the context length of the policy."""
        source, most = self.assembly.source, self.assembly.policy.context_length
        lengths, seen, began = [], set(), time.perf_counter()
        for task in itertools.chain(map(source.task, range(_PROMPTS)), source.held_out(_PROMPTS)):
            if task.id in seen:
                continue
            seen.add(task.id)
            environment = self.assembly.environment()
            try:
                first = await call_user_function(environment.reset, task, seed=0)
                lengths.append(len(self.assembly.chat.open(first.messages, first.tools).ids))
            finally:
                await call_user_function(environment.close)
            if time.perf_counter() - began > _PROMPT_SECONDS:
                break
        beyond = sum(length >= most for length in lengths)
        text = f"{median(lengths):.0f} tokens (median of {len(lengths)}), {max(lengths)} at most, of {most}"
        mend = "use a model with a longer context (policy.tiny.context_length), or shorter prompts"
        if beyond == len(lengths):
            return Check("", CheckStatus.FAIL, f"{text}: none leaves tokens for an answer", mend)
        if beyond:
            text = f"{text}: {beyond} of {len(lengths)} leave no tokens for an answer and are skipped"
            return Check("", CheckStatus.WARN, text, mend)
        longest = self.recipe.rollout.max_new_tokens
        if min(lengths) + longest > most:
            text = f"{text}: none leaves the {longest:,} tokens of rollout.max_new_tokens for an answer"
            return Check("", CheckStatus.WARN, text, f"reduce rollout.max_new_tokens; or {mend}")
        return Check("", CheckStatus.PASS, text)

    async def tools(self) -> Check:
        """Play the expert's episode of one task, and call all other tools with example arguments."""
        source = self.assembly.demonstration_source
        if not isinstance(source, Expert):
            failed, called = await self._call_each(self._specs())
            if failed is not None:
                return failed
            summary = f"; {called} tools respond to a call with example arguments" if called else ""
            return Check("", CheckStatus.WARN, f"the source has no expert, so no correct call is known{summary}")
        collector = self.assembly.build_demonstration_collector()
        self.shown = await collector.sample(GroupPlan(source.task(0), seed=0))
        failing = describe_failing_tools(compute_failing_statistics(self.shown.calls))
        if failing:
            return Check("", CheckStatus.FAIL, f"{'; '.join(failing)} (calls of the expert)")
        if not self.shown.ended.valid or self.shown.ended.cut_short:
            why = f": {self.shown.error}" if self.shown.error else ""
            return Check("", CheckStatus.FAIL, f"the expert's episode ended by {self.shown.ended}{why}")
        refused = list(dict.fromkeys(call.name for call in self.shown.calls if call.outcome == "not_called"))
        if refused:
            self.shown = None  # the reward cannot be checked with it
            return Check("", CheckStatus.WARN, f"not tried: the expert calls {', '.join(refused)}")
        for turn in self.shown.turns:
            amiss = [place for place, call in enumerate(turn.calls) if call.outcome != "ok"]
            if amiss:
                call, answer = turn.calls[amiss[0]], turn.observation[amiss[0] : amiss[0] + 1]
                text = f": {answer[0].text[:200]}" if answer else ""
                return Check("", CheckStatus.FAIL, f"the expert's call of {call.name} returned {call.outcome}{text}")
        untold = [spec.name for spec in self._specs() if not spec.description]
        if untold:
            mend = "add a docstring: the model reads it as the description"
            return Check("", CheckStatus.WARN, f"{', '.join(untold)}: no description", mend)
        used = {call.name for call in self.shown.calls}
        failed, called = await self._call_each([spec for spec in self._specs() if spec.name not in used])
        if failed is not None:
            return failed
        seconds = sum(call.seconds for call in self.shown.calls)
        summary = f"{len(self.shown.calls)} calls of one task answered in {1000 * seconds:.1f} ms"
        summary += f"; {called} more tools respond to a call with example arguments" if called else ""
        for problem in PolicyLimits.of_recipe(self.recipe).add([self.shown]).find_problems("the expert"):
            return Check("", CheckStatus.WARN, f"{problem.text}; {summary}", problem.remedy)
        return Check("", CheckStatus.PASS, summary)

    async def _call_each(self, specs: Sequence[ToolSpec]) -> tuple[Check | None, int]:
        """Call each tool once with example arguments, in separate episodes.

        A tool may refuse example arguments; only a call without a response is a failure. Tools whose effects are not
        permitted are left out.

        Returns:
            (first failure or None, number of tools that were called).
        """
        specs = [spec for spec in specs if spec.name not in self.refused]
        for spec in specs:
            actor = ExpertActor(OneCall(spec), self.assembly.chat)
            played = await self.assembly.build_collector(actor).sample(GroupPlan(self.assembly.source.task(0), seed=0))
            failing = judge_failures(played.calls)
            if failing is not None and not any(call.outcome in _NO_RESPONSE for call in played.calls):
                return failing, 0
            if not played.ended.valid or any(call.outcome in _NO_RESPONSE for call in played.calls):
                why = played.error or next((str(call.outcome) for call in played.calls), str(played.ended))
                return Check("", CheckStatus.FAIL, f"a call of {spec.name} with example arguments failed: {why}"), 0
        return None, len(specs)

    async def reward(self) -> Check:
        """Compare the reward of the expert's episode with that of a wrong answer ("I do not know.")."""
        if self.shown is None or not self.shown.turns or self.shown.ended.cut_short:
            return Check("", CheckStatus.WARN, "skipped: without an expert's episode no correct answer is known")
        warm_up = self.recipe.supervised
        if warm_up is not None and not warm_up.solved_only and not self.shown.solved:
            text = "skipped: the expert's episode did not solve its task, which supervised.solved_only: false permits"
            return Check("", CheckStatus.WARN, text)
        actor = ExpertActor(Clueless(), self.assembly.chat)
        wrong = await self.assembly.build_collector(actor).sample(
            GroupPlan(self.assembly.demonstration_source.task(0), seed=0)
        )
        for who, played in (("the expert's", self.shown), ("a wrong", wrong)):
            if played.score is None:
                return Check("", CheckStatus.FAIL, f"{who} episode has no score: {played.error}")
        assert self.shown.score is not None
        assert wrong.score is not None
        right, other = self.shown.score, wrong.score
        text = f"{right.value:g} for the expert, {other.value:g} for a wrong answer"
        if right.value <= other.value or (other.success and not right.success):
            return Check("", CheckStatus.FAIL, text, "make the reward larger for a correct answer")
        return Check("", CheckStatus.PASS, text)

    def _is_large(self) -> bool:
        """Return whether the policy is so large that a few hundred tokens take seconds on the CPU."""
        policy = self.assembly.policy
        return policy.device == CPU and policy.parameters >= _LARGE_PARAMETERS

    def _specs(self) -> Sequence[ToolSpec]:
        return self.assembly.offered_tools

    async def episodes(self) -> Check:
        """Sample a few episodes with the initial policy.

        Failing tools, invalid end reasons and equal rewards are reported.
        """
        engine = await run_in_compute_thread(self.assembly.build_engine)
        try:
            actor = self.assembly.policy_actor(engine, temperature=self.recipe.rollout.temperature)
            collector, count, size = self.assembly.build_collector(actor), 2, _EPISODES // 2
            if self._is_large():
                length = min(_LARGE_TOKENS, actor.sampling.max_new_tokens)
                short = replace(actor, sampling=replace(actor.sampling, max_new_tokens=length))
                collector = replace(collector, actor=short, limits=replace(collector.limits, max_turns=1))
                count, size = 1, _LARGE_EPISODES
            tasks = [self.assembly.source.task(i) for i in range(count)]
            strategy = Independent(group_size=size)
            groups = [group async for group in collector.groups(make_plans(tasks, seed=0, name="preflight/"), strategy)]
        finally:
            await engine.close()
        self.sampled = [trajectory for group in groups for trajectory in group.trajectories]
        failing = judge_failures([call for t in self.sampled for call in t.calls])
        if failing is not None:
            return failing
        failed = [t for t in self.sampled if not t.ended.valid]
        if failed:
            text = f"{len(failed)} of {len(self.sampled)} ended by {failed[0].ended}: {failed[0].error}"
            return Check("", CheckStatus.FAIL, text)
        rewards = [reward for group in groups for reward in group.rewards]
        tokens = sum(t.action_tokens for t in self.sampled) / len(self.sampled)
        refusals = sum(call.outcome == "not_called" for t in self.sampled for call in t.calls)
        note = f"; {refusals} calls were not made" if refusals else ""
        interval = f"{min(rewards):g} to {max(rewards):g}"
        text = f"{len(self.sampled)} sampled, {tokens:.0f} tokens each, rewards {interval}{note}"
        compares = (
            self.recipe.reinforcement is not None and self.recipe.critic is None and self.recipe.supervised is None
        )
        if compares and not refusals and len(set(rewards)) == 1:
            return Check(
                "",
                CheckStatus.WARN,
                f"{text}: all rewards are equal, so there is nothing to learn from",
                "add a warm-up (supervised) or easier tasks",
            )
        return Check("", CheckStatus.PASS, text)

    async def agreement(self) -> Check:
        """Compare the sampler's log-probs of sampled tokens with the learner's."""
        segments = [segment for trajectory in self.sampled for segment in trajectory.segments()]
        if not segments:
            return Check("", CheckStatus.WARN, "skipped: no token was sampled whose log-probs could be compared")
        temperature = self.recipe.rollout.temperature
        learner = await run_in_compute_thread(self._learner)
        logprobs = torch.cat(await run_in_compute_thread(learner.logprobs, segments, temperature=temperature))
        drawn = [
            logprob
            for segment in segments
            for place, logprob in enumerate(segment.tokens.logprobs)
            if place > 0 and segment.action_mask[place]
        ]
        mismatches = mismatch_metrics(logprobs, torch.tensor(drawn, device=logprobs.device))
        most, kl = mismatches["sampler/mismatch_max"], mismatches["sampler/mismatch_kl"]
        message = f"log-probs of {len(drawn)} tokens differ by {most:.1e} at most, k3 {kl:.1e}"
        limit = mismatch_limit(self.assembly.policy.dtype, engine=self.recipe.engine.name)
        message += f" (limit {limit:.0e})"
        if not learner.shares:
            message += f"; the layout of the forward pass is {learner.layout}, not tree: prefixes are not shared"
        if kl > limit:
            return Check(
                "",
                CheckStatus.FAIL,
                message,
                "policy.dtype: float32, and the same weights and temperature on both sides",
            )
        return Check("", CheckStatus.PASS, message)

    async def largest_step(self) -> Check:
        """Measure a forward and backward pass of the largest micro-batch.

        Updates of growing size are measured. If the largest one would take too long, its duration is extrapolated, and
        its memory is the bound of the memory estimate.
        """
        settings = self._settings()
        length = self.assembly.policy.context_length
        largest = max(1, settings.micro_batch_tokens // length) * length
        try:
            seconds, tokens = await run_in_compute_thread(
                lambda: measure_largest_step(self._learner(), self.assembly.policy, largest)
            )
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            # on a CPU an allocation that fails is a plain RuntimeError
            if type(error) is RuntimeError and "memory" not in str(error).lower():
                raise
            key = next(reversed(self.assembly.resolved.recipe.own_stages), "reinforcement")
            mend = (
                f"reduce {key}.micro_batch_tokens or {key}.logits_memory_mb, or set "
                f"{key}.activation_checkpointing: true or policy.lora"
            )
            return Check("", CheckStatus.FAIL, "a micro-batch of the longest segments does not fit into memory", mend)
        peak = peak_memory_gib(self.assembly.policy.device)
        text = f"{tokens:,} tokens forward and backward in {seconds:.2f} s, {peak:.2f} GiB at most so far"
        if tokens < largest:
            total = settings.micro_batch_tokens
            text += f"; {total:,} would take up to {seconds * total / tokens:.0f} s"
            passing = sum(share.bytes for share in self.plan if not share.is_permanent and "pass of" in share.what)
            text += f" and at most {_gib(passing)}" if passing else ""
        if self.assembly.policy.context_length > settings.micro_batch_tokens:
            text += (
                f"; segments beyond micro_batch_tokens ({settings.micro_batch_tokens:,}) get a separate forward pass"
            )
        return Check("", CheckStatus.PASS, text)

    def _learner(self) -> ModelTrainer:
        """Return the learner that several checks share. It must be called in the compute thread."""
        if self._trainer is None:
            policy, settings = self.assembly.policy, self._settings()
            self._trainer = ModelTrainer(policy, settings, passes=DryPasses(policy, settings))
        return self._trainer

    def _settings(self) -> OptimizerSettings:
        settings = next(reversed(self.recipe.own_stages.values()), None)
        assert settings is not None  # a recipe without a stage is refused
        return settings


def _named(assembly: RunComponents) -> str:
    """Format the tokens that end a turn, such as `'<|im_end|>'`."""
    return " or ".join(sorted(map(repr, map(assembly.policy.tokenizer.decode, assembly.chat.stop_ids))))


class Clueless:
    """Expert that answers every task with "I do not know.", for a wrong answer in the reward check."""

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Answer "I do not know."; see `Expert.demonstrate`."""
        return assistant("I do not know.")


class OneCall:
    """Expert that calls one tool with example arguments, then ends the episode.

    Args:
        spec: Tool to call.
    """

    def __init__(self, spec: ToolSpec) -> None:
        self.spec = spec

    def demonstrate(self, task: Task, conversation: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """Return the tool call as the first message, then "Done."; see `Expert.demonstrate`."""
        if any(message.role == "assistant" for message in conversation):
            return assistant("Done.")
        return assistant(
            "", ToolCall(self.spec.name, json.dumps(build_example_value(self.spec.parameters)), "call_0_0")
        )


def build_example_value(schema: Mapping[str, Any]) -> Any:
    """Build a small value that a JSON schema allows, as an example argument of a tool.

    Supported keywords: `const`, `default`, `enum`, `examples`, `anyOf`, `oneOf`, `type`, `required`, and minimum sizes.
        For
    other schemas the value may be invalid.
    """
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    for key in ("enum", "examples"):
        if schema.get(key):
            return schema[key][0]
    for key in ("anyOf", "oneOf"):
        if schema.get(key):
            return build_example_value(schema[key][0])
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        known = schema.get("properties", {})
        return {name: build_example_value(known.get(name, {})) for name in schema.get("required", ())}
    if kind == "array":
        return [build_example_value(schema.get("items", {}))] * schema.get("minItems", 0)
    if kind in ("integer", "number"):
        return schema.get("minimum", 1)
    return {"boolean": False, "null": None}.get(str(kind), "1" * max(1, schema.get("minLength", 1)))


def judge_failures(calls: Sequence[CallRecord]) -> Check | None:
    """Return the check result for tools of which no call succeeded, with example arguments or those of a policy.

    Returns:
        An undecided warning if the arguments may have caused every error; otherwise a failure. None if no tool failed
        in all of its calls.
    """
    failing = compute_failing_statistics(calls)
    if not failing:
        return None
    text = "; ".join(describe_failing_tools(failing))
    errors = [call.error for call in calls if call.name in failing]
    if all(map(may_be_caused_by_arguments, errors)):
        return Check("", CheckStatus.WARN, text, is_decided=False)
    return Check("", CheckStatus.FAIL, text)


def compute_failing_statistics(calls: Sequence[CallRecord]) -> dict[str, ToolStatistics]:
    """Return the statistics of each tool that failed in all of these calls, at least once by an exception."""
    statistics = compute_tool_statistics(calls)
    return {
        name: tool for name, tool in statistics.items() if tool.failed and tool.failed + tool.rejected == tool.calls
    }


_SECONDS = 5.0
"""Time limit for tokenizing demonstrations, in seconds; the number of checked demonstrations is reported."""


def has_data(resolved: Resolved) -> bool:
    """Return whether a stage of the recipe reads data from a file or run (`data`)."""
    return any(get_data(settings) is not None for settings in resolved.recipe.own_stages.values())


async def check_stage_data(assembly: RunComponents) -> Check:
    """Read the data of each stage, and tokenize its demonstrations as the stage does.

    A demonstration that is longer than the context is a failure. A demonstration that the stage skips, or that the
    policy cannot reproduce within its limits, is a warning.
    """
    check_data(assembly, assembly.resolved)
    for key, settings in assembly.resolved.recipe.own_stages.items():
        if isinstance(settings, SupervisedSettings) and settings.data is not None:
            drawn = read_demonstrations(assembly, settings.data, f"{key}.data")
            if isinstance(drawn, Demonstrations):
                return _check_demonstrations(assembly, f"{key}.data", drawn)
    return Check("", CheckStatus.PASS, "the files of all stages are readable")


def _check_demonstrations(assembly: RunComponents, key: str, demonstrations: Demonstrations) -> Check:
    """Compare tokenized demonstrations with the context length and the policy's limits."""
    context_length = assembly.policy.context_length
    began, episodes = time.perf_counter(), []
    for episode in demonstrations.iterate_episodes():
        episodes.append(episode)
        if time.perf_counter() - began > _SECONDS:
            break
    lengths = [_length(episode) for episode in episodes]
    long = [number for number, length in enumerate(lengths) if length > context_length]
    if long:
        longest = max(long, key=lengths.__getitem__)
        text = (
            f"{key}: {len(long)} of {len(episodes)} demonstrations are longer than the context of {context_length:,} "
            f"tokens; {episodes[longest].id} has {lengths[longest]:,}"
        )
        remedy = "shorten or split them, or use a model with a longer context (policy.tiny.context_length)"
        return Check("", CheckStatus.FAIL, text, remedy)
    skipped = [episode for episode in episodes if episode.score is None]
    if skipped:
        causes = format_causes(count_failure_causes(skipped))
        text = f"{key}: {len(skipped)} of {len(episodes)} demonstrations are skipped: {causes}"
        return Check("", CheckStatus.WARN, text)
    for problem in PolicyLimits.of_recipe(assembly.resolved.recipe).add(episodes).find_problems(key):
        return Check("", CheckStatus.WARN, problem.text, problem.remedy)
    return Check("", CheckStatus.PASS, f"{key}: {len(episodes)} demonstrations, {max(lengths):,} tokens at most")


def _length(episode: Trajectory) -> int:
    """Return the number of tokens in the longest segment of an episode."""
    return max(map(len, episode.segments()), default=0)
