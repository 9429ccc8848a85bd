"""Runs the stages of one recipe: evaluation, each stage with its checkpoints, and an evaluation after each.

Note:
    After a kill, the run continues from the last checkpoint. Metrics are rewound to that checkpoint, and everything
    after it is a function of the recipe and the step, so the result is the same as without the kill.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from whetstone.assembly.assembly import RunComponents, assemble
from whetstone.assembly.build_policy import describe_low_rates
from whetstone.assembly.evaluation_overlap import find_overlap
from whetstone.assembly.members import build_stage_learner
from whetstone.assembly.stage_datasets import (
    as_reinforcement,
    check_data,
    find_policy_limit_problems,
    read_offline_groups,
    read_preferences,
)
from whetstone.capabilities import implements_protocol
from whetstone.compute_thread import run_in_compute_thread
from whetstone.errors import (
    CreditError,
    MismatchError,
    NonFiniteError,
    NoScoredEpisodesError,
    PartialUpdateError,
    SamplingExhausted,
    TooManyFailuresError,
    WeightSyncError,
    WhetstoneError,
)
from whetstone.failure_causes import format_causes, normalize_cause
from whetstone.garbage import collect_seldom, exclude_present_objects
from whetstone.inference import MEMBERS, sync_weights
from whetstone.learning.protocol import Closes, Learner
from whetstone.policies import Policy, describe_fast_dtype
from whetstone.recipe import (
    OfflineSettings,
    OptimizerSettings,
    PreferenceSettings,
    PretrainingSettings,
    ReinforcementSettings,
    Resolved,
    SamplingSettings,
    SupervisedSettings,
)
from whetstone.recipe.resume_changes import Era
from whetstone.record.checkpoint import (
    Checkpoints,
    Position,
    checkpoint_path,
    latest_checkpoint,
    load_checkpoint,
)
from whetstone.record.run_directory import OVERLAP, read_json, write_json
from whetstone.record.run_store import RunStore
from whetstone.record.starting import load_start
from whetstone.reporting import Journal, ProgressBar, find_alarms, mismatch_limit, noise_advice
from whetstone.rewards.protocol import close_reward
from whetstone.rollout import Collector
from whetstone.scaling.start_cluster import start_cluster
from whetstone.training.background_evaluation import BackgroundEvaluations
from whetstone.training.budget import budget_fraction_spent
from whetstone.training.carry_state import restore_component_state
from whetstone.training.evaluation_loop import evaluate_policy, write_evaluation
from whetstone.training.evaluation_suites import EvaluationSuites, build_suites, summarize_suites
from whetstone.training.group_stream import discard_groups
from whetstone.training.interruption import Interrupted, Interruption
from whetstone.training.kept import best_checkpoint, check_validation, keeps_best, select_checkpoint
from whetstone.training.offline import HeldOutSchedule, OfflineTraining
from whetstone.training.reinforcement import Reinforcement
from whetstone.training.run_plan import RunPlan
from whetstone.training.run_summary import (
    SKIPPED_ROWS,
    WITHOUT_USE,
    build_summary,
    compare_stages,
    describe_unlearned,
    run_headline,
)
from whetstone.training.stage import Stage
from whetstone.training.stage_cache import copy_evaluation
from whetstone.training.stopping import STEPS, stopping_reason
from whetstone.training.supervised import Pretraining, Supervised
from whetstone.training.sync_check import check_outside_engine
from whetstone.training.watchdog import EvaluationMonitor, Watchdog

_STAGE_ERRORS = (
    CreditError,
    NonFiniteError,
    TooManyFailuresError,
    SamplingExhausted,
    MismatchError,
    PartialUpdateError,
    WeightSyncError,
)
"""Errors that end a stage; the message of the run has the remedy."""
_REWRITTEN = "the chat template rewrites"


@dataclass(frozen=True, slots=True)
class _OpenStage:
    """Stage in progress, from `SingleRun._open_stage`."""

    name: str
    """Name of the stage."""
    settings: OptimizerSettings
    """Settings of the stage."""
    learner: Learner
    """Learner of the stage."""
    work: Stage
    """Stage whose `step` makes the updates."""
    evaluations: BackgroundEvaluations
    """Evaluations that run during the stage."""


class SingleRun:
    """Training loop of a run with one recipe: evaluates, trains the stages, and saves checkpoints.

    Created by `run_plan`, once per recipe of the run: again after a change of the recipe on resume.

    Args:
        era: The recipe, and the change that ends it.
        plan: Plan of the run.
    """

    def __init__(self, era: Era, plan: RunPlan) -> None:
        self.era, self.resolved, self.is_whole = era, era.resolved, plan.is_whole
        self.run_dir, self.progress, self.feed = plan.run_dir, plan.progress, plan.feed
        run_dir, progress = plan.run_dir, plan.progress
        self.recipe = self.resolved.recipe
        self.learning = as_reinforcement(self.resolved)
        """Recipe from which the components are assembled."""
        listeners = [plan.feed.send_row, *([plan.on_metrics] if plan.on_metrics is not None else [])]
        self.journal = Journal(run_dir, listeners=listeners, warn=progress.say)
        self.position = Position("", {}, 0)
        self.optimizer: dict[str, Any] | None = None
        warm_up = self.recipe.supervised
        self.warmed_up = checkpoint_path(run_dir, warm_up.steps) if warm_up is not None else None
        self.checkpoints = Checkpoints(run_dir, keep={self.warmed_up} if self.warmed_up is not None else set())
        self.interruption = Interruption()
        self.shown: ProgressBar | None = None
        self.rows: list[dict[str, Any]] = []
        """Rows of `metrics.jsonl` of the current stage, from which alarms are computed."""
        self.told: set[str] = set()
        """Causes of failures and alarms that were reported, so that each is reported once."""

    async def run(self) -> dict[str, Any] | None:
        """Run all stages, from the last checkpoint on.

        Returns:
            The summary; None if the recipe changes after the last step, which a checkpoint has.

        Raises:
            Interrupted: If the process was interrupted; everything is saved.
        """
        with self.interruption, contextlib.ExitStack() as contexts:
            self.assembly = await run_in_compute_thread(
                lambda: assemble(self.learning, self._restored(), self._members, say=self.progress.say).check()
            )
            check_ablations(self.assembly, self.resolved)
            report_low_rates(self.assembly, self.resolved, self.progress.say)
            if not self.position.done:
                report_precision(self.assembly, self.resolved, self.progress.say)
            method, self.position = restore_component_state(
                self.assembly.method, self.resolved, self.position, log=self.progress.say
            )
            self.assembly = self.assembly.with_components(method=method)
            await run_in_compute_thread(check_validation, self.assembly, self.resolved)
            await run_in_compute_thread(check_data, self.assembly, self.resolved, self._finished_stages())
            await run_in_compute_thread(report_data, self.run_dir, self.assembly, self.resolved, self.progress.say)
            cluster = await start_cluster(self.assembly, version=0, notify=self.progress.say)
            self.assembly = self.assembly.with_components(cluster=cluster)
            self.engine = await run_in_compute_thread(self.assembly.build_engine, heard=self.progress.say)
            await self._publish(self.position.version)
            self.suites = await run_in_compute_thread(build_suites, self.learning, self.assembly, self.run_dir)
            await run_in_compute_thread(store_suite_overlap, self.run_dir, self.suites, self.assembly, self.resolved,
                                        self.progress.say)  # fmt: skip
            self.feed.follow_run(self.run_dir)
            contexts.enter_context(collect_seldom())
            try:
                checked = await check_outside_engine(self.assembly, self.engine)
                if checked is not None:
                    self.progress.say(checked)
                if not self.position.done:
                    await self._evaluate("untrained")
                for name, settings in self.recipe.own_stages.items():
                    await self._stage(name, settings)
                    if self._changes_here(name, self.position.done.get(name, 0)):
                        return None
            finally:
                for each in (self.engine if cluster is None else cluster, *self.assembly.members.values()):
                    await each.close()
                await self.checkpoints.wait_until_written()
                await close_reward(self.assembly.reward)
                await self.suites.close()
        parameters, seconds = self.assembly.policy.parameters, self.position.seconds
        suites = summarize_suites(self.resolved, self.run_dir, list(self.recipe.own_stages)) if self.is_whole else {}
        written = build_summary(
            self.resolved, self.run_dir, self.journal.read(), seconds=seconds, parameters=parameters
        )
        return {**written, "suites": suites} if suites else written

    @property
    def _members(self) -> dict[str, Any]:
        """Learner states of the other members in the last checkpoint."""
        return {MEMBERS: (self.optimizer or {}).get(MEMBERS, {})}

    def _finished_stages(self) -> set[str]:
        """Return the names of the stages that are not trained further."""
        done, current = self.position.done, self.position.stage
        return {
            name
            for name, settings in self.recipe.own_stages.items()
            if name in done and (current != name or self._standing(name, settings, done[name])[1] is not None)
        }

    def ask_to_stop(self) -> None:
        """Request a stop as SIGINT does, for a signal that another thread received."""
        self.interruption.request_stop(signal.SIGINT)

    def _restored(self) -> Policy | None:
        """Load the policy of the last checkpoint and rewind the metrics to it; None for a new run."""
        path = latest_checkpoint(self.run_dir, log=self.progress.say, set_aside=True)
        policy = None
        if path is not None:
            settings = self.recipe.policy
            policy, self.optimizer, self.position = load_checkpoint(
                path,
                trust_remote_code=settings.trust_remote_code,
                base_path=Path(settings.path) if settings.path is not None else None,
            )
            self.progress.say(f"resuming from step {self.position.steps} ({path})")
        elif self.recipe.start_from is not None:
            policy, self.optimizer = load_start(self.resolved, log=self.progress.say)
        self.journal.truncate_rows(self.position.done)
        return policy

    async def _stage(self, name: str, settings: OptimizerSettings) -> None:
        """Run the remaining steps of a stage, save checkpoints, and evaluate the result."""
        done = self.position.done.get(name, 0)
        if self.position.stage not in ("", name) and name in self.position.done:
            return  # a later stage is in progress
        share, ended = self._standing(name, settings, done)
        if ended is None:
            async with self._open_stage(name, settings, done) as stage:
                work = stage.work
                while ended is None:
                    began = time.perf_counter()
                    try:
                        metrics = await self.interruption.unless_asked(work.step(share), finish=lambda: work.is_busy)
                    except Interrupted:
                        await self._park(stage)
                        raise
                    except _STAGE_ERRORS as error:
                        raise await self._describe_failure(stage, error) from None
                    self._record(name, work, metrics, time.perf_counter() - began)
                    share, ended = await self._finish_step(stage, metrics)
                    if self._changes_here(name, work.done):
                        return
                work.conclude()
            await self._conclude_stage(name, settings, work)
        if keeps_best(settings):
            select = partial(select_checkpoint, self.run_dir, self.assembly, self.position, report=self.progress.say)
            if await run_in_compute_thread(select):
                await self._publish(self.position.version + 1)
        if isinstance(settings, SamplingSettings):  # the policy is unchanged
            copy_evaluation(self.run_dir, "untrained", self.run_dir, name)
        else:
            await self._evaluate(name)

    @contextlib.asynccontextmanager
    async def _open_stage(self, name: str, settings: OptimizerSettings, done: int) -> AsyncIterator[_OpenStage]:
        """Create the learner and the work of a stage, and close them when the block ends.

        After the block, all checkpoints are written.
        """
        learner = await run_in_compute_thread(self._learner, settings, done)
        with contextlib.ExitStack() as stack:
            if implements_protocol(learner, Closes):
                stack.callback(learner.close)
            if self.optimizer is not None and (done or not self.position.done):
                learner.load_state_dict(self.optimizer)
            self.rows = [row for row in self.journal.read() if row["stage"] == name]
            work = self._work(name, settings, learner, done, stack)
            self.shown = stack.enter_context(self.progress.stage(name, settings.steps, done=done))
            stack.enter_context(Watchdog(work, log=self.progress.say))
            evaluations = BackgroundEvaluations(
                self.assembly,
                self.run_dir,
                log=self.progress.say,
                on_result=lambda stage, step, result: self.feed.send_evaluation(stage, result.to_json(), step=step),
            )
            stage = _OpenStage(name, settings, learner, work, evaluations)
            exclude_present_objects()
            try:
                if keeps_best(settings) and not done:
                    await self._save(stage)
                    await evaluations.start_evaluation(name, 0, validates=True)
                yield stage
            finally:
                await evaluations.close()
                await work.close()
        await self.checkpoints.wait_until_written()

    async def _describe_failure(self, stage: _OpenStage, error: WhetstoneError) -> WhetstoneError:
        """Save a stage that cannot continue, and return its error with the step and the checkpoint."""
        place = f"step {stage.work.done + 1} of {stage.name}: {error}"
        remedy = resume_remedy(self.run_dir)
        if not stage.work.done or isinstance(error, PartialUpdateError):  # nothing that could be lost, or be saved
            return type(error)(f"{place}; {remedy}")
        path = await self._save(stage)
        await self.checkpoints.wait_until_written()
        return type(error)(f"{place}. The state is in {path}; {remedy}")

    async def _finish_step(self, stage: _OpenStage, metrics: Mapping[str, float]) -> tuple[float, str | None]:
        """Show a step, start evaluations, and save a checkpoint if one is due.

        Returns:
            The used fraction of the stage's budget and its stopping reason, as `_standing` does.
        """
        name, settings, work = stage.name, stage.settings, stage.work
        self._tell(name, work)
        assert self.shown is not None
        self.shown.advance(metrics)
        if self.progress.is_lost:
            self.interruption.request_stop(signal.SIGHUP)
        self._watch(work.collector)
        interval = self.recipe.evaluation.interval_steps if isinstance(settings, ReinforcementSettings) else None
        if interval is not None and work.done % interval == 0:
            await stage.evaluations.start_evaluation(name, work.done)
        share, ended = self._standing(name, settings, work.done)
        is_last = ended is not None or self._changes_here(name, work.done)
        if work.done % settings.checkpoint_interval_steps == 0 or is_last:
            if keeps_best(settings):
                await stage.evaluations.start_evaluation(name, work.done, validates=True)
            try:
                await self.interruption.unless_asked(stage.evaluations.finish_pending(), finish=lambda: True)
            except Interrupted:
                await self._park(stage)
                raise
            await work.settle()
            await self._save(stage)
        return share, ended

    async def _conclude_stage(self, name: str, settings: OptimizerSettings, work: Stage) -> None:
        """Sync the weights of a finished stage to the engine, and report why the stage ended."""
        await self._publish(work.version)
        rows = self.journal.read()
        lines = describe_unlearned(rows, name, self.run_dir, self.assembly.tool_watch.reported)
        advice = noise_advice(rows) if name == "reinforcement" else None
        for line in [*lines, *([advice] if advice is not None else [])]:
            self.progress.say(f"{name}: {line}")
        _, ended = self._standing(name, settings, work.done)
        if ended != STEPS:
            self.progress.say(f"{name} ended after step {work.done} of {settings.steps}, by {ended}")

    def _changes_here(self, stage: str, done: int) -> bool:
        """Return whether the recipe changes after this step."""
        end = self.era.end
        return end is not None and (end.stage, end.step) == (stage, done)

    def _standing(self, name: str, settings: OptimizerSettings, done: int) -> tuple[float, str | None]:
        """Return the used fraction of a stage's budget, and its stopping reason or None."""
        budget = settings.budget if isinstance(settings, ReinforcementSettings) else None
        rows = self.journal.read() if budget is not None or settings.until is not None else []
        return budget_fraction_spent(rows, budget, name), stopping_reason(rows, name, settings, done=done)

    def _work(
        self, name: str, settings: OptimizerSettings, learner: Learner, done: int, stack: contextlib.ExitStack
    ) -> Stage:
        if isinstance(settings, SupervisedSettings):
            return Supervised(self.assembly, learner, self.engine, settings, done=done, fault=self._record_fault)
        if isinstance(settings, PretrainingSettings):
            return Pretraining(self.assembly, learner, self.engine, settings, done=done)
        if isinstance(settings, PreferenceSettings):
            pairs = read_preferences(self.assembly, settings)
            return OfflineTraining(pairs, learner, self.engine, count=settings.batch_size, done=done)
        if isinstance(settings, OfflineSettings):
            stored = read_offline_groups(self.assembly, settings)
            looks = HeldOutSchedule(stored.held_out, settings.held_out_interval_steps, settings.steps)
            return OfflineTraining(stored, learner, self.engine, count=settings.tasks_per_step, done=done, looks=looks)
        learns = not isinstance(settings, SamplingSettings)
        sampled = self.assembly.resolved.recipe.reinforcement  # of other stages that sample, as their parts are made
        assert sampled is not None
        store = RunStore(self.run_dir, groups_per_file=sampled.tasks_per_step, log=self.progress.say)
        stack.callback(store.close)
        state = self.position.sampling
        for change in self.era.changes[-1:]:
            if change.discards_groups and (change.stage, change.step) == (name, done):
                state = discard_groups(store, state, change)
        return Reinforcement(
            self.assembly,
            learner,
            self.engine,
            sampled,
            store=store,
            base_version=self.position.version - (done if learns else 0),
            state=state,
            done=done,
            learns=learns,
        )

    def _record_fault(self, kind: str, text: str, /, *, episode: str) -> None:
        """Record a fault of a stage that does not sample and therefore has no open journal."""
        store = RunStore(self.run_dir, groups_per_file=1, log=self.progress.say)
        try:
            store.record_fault(kind, text, episode=episode)
        finally:
            store.close()

    async def _park(self, stage: _OpenStage) -> None:
        """Save a run that was interrupted, if the remaining time suffices."""
        work = stage.work
        self.progress.say(f"stopping after step {work.done} of {stage.name}; a second signal stops immediately")
        try:
            async with asyncio.timeout(self.interruption.seconds_left):
                await stage.evaluations.finish_pending()
                await work.settle()
                if work.done:
                    await self._save(stage)
                    await self.checkpoints.wait_until_written()
        except TimeoutError:
            self.progress.say("running groups did not finish in time; their finished turns are recorded")

    def _record(self, stage: str, work: Stage, metrics: dict[str, float], seconds: float) -> None:
        spent = {**self.position.seconds, stage: self.position.seconds.get(stage, 0.0) + seconds}
        done = {**self.position.done, stage: work.done}
        self.position = replace(self.position, stage=stage, done=done, seconds=spent, version=work.version)
        metrics["time/elapsed_seconds"] = sum(spent.values())
        if "sampler/mismatch_kl" in metrics:
            dtype, engine = self.assembly.policy.dtype, self.recipe.engine.name
            metrics["sampler/mismatch_limit"] = mismatch_limit(dtype, engine=engine)
        if self.era.changes:
            metrics["run/recipe_changes"] = float(len(self.era.changes))
        self.rows.append({"stage": stage, "step": work.done, **metrics})
        alarms = find_alarms(self.rows)
        metrics |= {alarm.metric_name: 1.0 for alarm in alarms}
        self.journal.record(stage, work.done, metrics)
        assert self.shown is not None
        self.shown.show_alarms(alarms)
        for alarm in alarms:
            if alarm.metric_name not in self.told:
                self.told.add(alarm.metric_name)
                self.progress.say(f"step {work.done} of {stage}: ALARM {alarm.line}")

    def _tell(self, stage: str, work: Stage) -> None:
        """Report new causes of failures; report once that the chat template rewrites the history."""
        rewritten = self.assembly.chat.rewritten if self.assembly is not None else ""
        if rewritten and _REWRITTEN not in self.told:
            self.told.add(_REWRITTEN)
            self.progress.say(
                f"step {work.done} of {stage}: the chat template rewrites earlier messages ({rewritten}); each time a "
                "new segment starts, which is exact and slower (episode/context_resets)"
            )
        new = {cause: count for cause, count in work.causes.items() if normalize_cause(cause) not in self.told}
        self.told |= {normalize_cause(cause) for cause in new}
        if new:
            what = WITHOUT_USE.get(stage, "episodes have no score")
            self.progress.say(f"step {work.done} of {stage}: {sum(new.values())} {what}: {format_causes(new)}")

    async def _save(self, stage: _OpenStage) -> Path:
        settings = stage.settings
        self.position = replace(self.position, sampling=stage.work.state, memory=stage.work.memory)
        if keeps_best(settings):
            always = {self.warmed_up} if self.warmed_up is not None else set()
            self.checkpoints.keep = always | best_checkpoint(self.run_dir, self.position)
        return await self.checkpoints.save(
            self.assembly.policy,
            stage.learner.state_dict(),
            self.position,
            last=settings.keep_last,
            every=settings.keep_interval_steps,
        )

    def _watch(self, collector: Collector | None) -> None:
        if self.shown is not None and collector is not None:
            self.shown.watch(lambda: collector.status().line())

    def _learner(self, settings: OptimizerSettings, done: int) -> Learner:
        first = self.recipe.supervised.steps if self.recipe.supervised is not None else 0
        is_start, staging = not done and self.position.steps == first, self.run_dir / "checkpoints"
        return build_stage_learner(self.assembly, settings, self.warmed_up, staging=staging, is_start=is_start)

    async def _publish(self, version: int) -> None:
        await sync_weights(dict(self.assembly.policy.model.named_parameters()), self.engine, version)
        for member in self.assembly.trained.values():
            if member.engine.version != version:
                await sync_weights(member.learner.weights(), member.engine, version)

    async def _evaluate(self, name: str) -> None:
        """Evaluate the policy, store the result in `evaluations/`, and compare it with the start of the stage.

        An evaluation that exists is not repeated. The end of a stage is the start of the next.
        """
        if not (self.run_dir / "evaluations" / f"{name}.json").is_file():
            await self._evaluate_tasks(name)
        run = partial(self.interruption.unless_asked, finish=lambda: False)
        await self.suites.evaluate(self.engine, name, log=self.progress.say, run=run)

    async def _evaluate_tasks(self, name: str) -> None:
        """Evaluate the policy on the tasks of the recipe; see `_evaluate`."""
        path = self.run_dir / "evaluations" / f"{name}.json"
        called = "before" if name == "untrained" and self.recipe.policy.path is not None else name
        settings = self.recipe.evaluation
        count = len(self.assembly.source.held_out(settings.episodes)) * settings.samples
        playing = EvaluationMonitor()
        with (
            self.progress.stage(f"evaluation ({called})", count) as stage_progress,
            Watchdog(playing, log=self.progress.say),
        ):
            self.shown = stage_progress

            def watched(collector: Collector) -> None:
                playing.collector = collector
                self._watch(collector)

            evaluating = evaluate_policy(
                self.assembly,
                self.engine,
                episodes=settings.episodes,
                samples=settings.samples,
                temperature=settings.temperature,
                seed=self.recipe.seed,
                on_group=lambda group: stage_progress.advance({}, by=len(group.trajectories)),
                watched=watched,
                every_member=True,
            )
            result, groups = await self.interruption.unless_asked(evaluating, finish=lambda: False)
        if result.episodes == 0 and (result.causes or result.too_long):
            what = f"none of {result.invalid} episodes could be scored" if result.causes else "nothing was played"
            why = format_causes(result.causes) or "no prompt leaves room for an answer in the model's context"
            remedy = f"; {resume_remedy(self.run_dir)}" if self.position.done else ""
            raise NoScoredEpisodesError(f"evaluation ({called}): {what}: {why}{remedy}")
        write_evaluation(self.run_dir / "trajectories", f"evaluation-{name}", groups, self.assembly.member)
        write_json(path, result.to_json())
        self.feed.send_evaluation(name, result.to_json())
        self.progress.say(f"{called}: {run_headline(result.to_json())}")
        for compared in compare_stages(self.recipe, self.run_dir):
            if compared.name == name:
                self.progress.say(compared.sentence)


def report_data(run_dir: Path, assembly: RunComponents, resolved: Resolved, log: Callable[[str], None]) -> None:
    """Report problems of the data: skipped rows, limits, evaluation tasks in the training data.

    Demonstrations that exceed the policy's limits are reported as well.

    Args:
        run_dir: Run directory, which stores the findings.
        assembly: Components of the run.
        resolved: Recipe of the run.
        log: Receives one line per finding.
    """
    store_skipped_rows(run_dir, assembly, log)
    for problem in find_policy_limit_problems(assembly, resolved):
        log(problem)
    store_overlap(run_dir, assembly, resolved, log)


def store_skipped_rows(run_dir: Path, assembly: RunComponents, log: Callable[[str], None]) -> None:
    """Store and report how many invalid rows were skipped, by recipe key of their file.

    A resumed run keeps the stored numbers.
    """
    path, skipped = run_dir / SKIPPED_ROWS, assembly.skipped_rows
    for key, count in skipped.items():
        if not key.endswith("tasks"):  # reported when the tasks are read
            log(f"{key}: {count} invalid rows are skipped ({key}.on_bad_row: skip)")
    if skipped:
        write_json(path, {**(read_json(path) or {}), **skipped})


def store_overlap(run_dir: Path, assembly: RunComponents, resolved: Resolved, log: Callable[[str], None]) -> None:
    """Store and report the evaluation tasks that are also in the training data, once per run."""
    path = run_dir / OVERLAP
    if path.is_file():
        return
    entries = find_overlap(assembly, resolved)
    for entry in entries:
        log(entry["sentence"])
    if entries:
        write_json(path, entries)


def store_suite_overlap(
    run_dir: Path,
    suites: EvaluationSuites,
    assembly: RunComponents,
    resolved: Resolved,
    log: Callable[[str], None],
) -> None:
    """Report tasks of suites that are also in the training data, once per run; see `store_overlap`."""
    stored = read_json(run_dir / OVERLAP) or []
    known = {entry["where"] for entry in stored}
    entries = [
        {**entry, "where": f"evaluation.suites.{name}", "sentence": f"evaluation.suites.{name}: {entry['sentence']}"}
        for name, suite in suites.assemblies.items()
        if f"evaluation.suites.{name}" not in known
        for entry in find_overlap(assembly, resolved, evaluated=suite)
    ]
    for entry in entries:
        log(entry["sentence"])
    if entries:
        write_json(run_dir / OVERLAP, [*stored, *entries])


def report_precision(assembly: RunComponents, resolved: Resolved, log: Callable[[str], None]) -> None:
    """Report the precision of Muon's iteration, which was measured at the start of the run."""
    stages = resolved.recipe.own_stages.values()
    chosen = {stage.optimizer for stage in stages if stage.optimizer.startswith("muon_")}
    if chosen:
        device = assembly.policy.device
        log(f"optimizer: {', '.join(sorted(chosen))} (faster here: {describe_fast_dtype(device)})")


def report_low_rates(assembly: RunComponents, resolved: Resolved, log: Callable[[str], None]) -> None:
    """Report the learning rates of stages that are too low for a small pretrained policy."""
    if assembly.resolved.recipe.policy.path is not None:
        stages = resolved.recipe.own_stages.items()
        rates = {kind: stage.learning_rate for kind, stage in stages if kind != "sampling"}
        for line in describe_low_rates(assembly.policy, rates):
            log(line)


def resume_remedy(run_dir: Path) -> str:
    """Return the remedy in messages of a failed run: the command that resumes it."""
    return f"`whetstone train {run_dir} --resume` continues the run when the cause is removed"


def check_ablations(assembly: RunComponents, resolved: Resolved) -> None:
    """Check that every ablation can be assembled, before the run starts.

    Raises:
        WhetstoneError: If an ablation is invalid or changes nothing; the message names it.
    """
    recipe = resolved.recipe
    for name, changes in recipe.ablations.items():
        if not changes:
            raise resolved.error(f"ablations.{name}", "changes nothing; set the keys that are different")
        variant = resolved.with_changes({"ablations": None, **changes})
        other = variant.recipe
        if (other.policy, other.chat, other.critic) == (recipe.policy, recipe.chat, recipe.critic):
            try:
                assemble(variant, assembly.policy).check()
            except WhetstoneError as error:
                raise type(error)(f"ablation {name}: {error}") from None
