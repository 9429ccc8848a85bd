"""Online learner: one loop next to the server that trains on judged turns and syncs weights to the engine.

    following messages → judged → (approved) → due → journal → update → weight sync → evaluation → rollback if it drops

Note:
    The journal names the turns of an update before the update starts, so that a crash neither loses a turn nor trains
    on it twice. An update, a rollback and an unlearning never overlap.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from whetstone.assembly.assembly import RunComponents
from whetstone.chat.api.requests import RefusedError
from whetstone.compute_thread import run_in_compute_thread
from whetstone.data.redacting import Redacting
from whetstone.errors import RunDirectoryError, summarize_exception
from whetstone.inference import Engine, sync_weights
from whetstone.network.http_layer import Family, make_family
from whetstone.recipe import LiveSettings
from whetstone.record.checkpoint import checkpoint_path
from whetstone.reporting import Journal
from whetstone.seeding import derive_random
from whetstone.serving.conversation_matching import RecordedAnswer, ServerEpisode
from whetstone.serving.online.feedback_journal import LearningJournal, Update
from whetstone.serving.online.scorers import Feedback, Scorer
from whetstone.serving.online.turns import JudgedTurn, TurnStore, build_judged_turn, intervention_turn, make_follow_up
from whetstone.serving.online.weights import STAGE, LiveWeights
from whetstone.training.evaluation_loop import evaluate_policy
from whetstone.user_code import describe_exception

_MAX_SHOWN = 50
"""Maximum number of turns in a response."""


class OnlineLearner:
    """Trains a served policy on the feedback to its answers. Created by `LiveService`, as `Watcher` of its episodes.

    Args:
        assembly: Components of `convert_live_recipe`.
        scorer: Returns a judgement of each answer from the messages after it.
        settings: Settings of the recipe.
        redacting: Removes sensitive text from a turn before it is stored, and thus before training.
        run_dir: Folder of the journal, turns, metrics and checkpoints; an existing run is resumed.
        say: Receives important events, one line each.
    """

    def __init__(
        self,
        assembly: RunComponents,
        engine: Engine,
        scorer: Scorer,
        run_dir: Path,
        *,
        settings: LiveSettings,
        redacting: Redacting | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.assembly, self.engine, self.say = assembly, engine, say
        self._redacting = redacting
        self.settings = settings
        self._scorer, self._run_dir = scorer, run_dir
        self.turns = TurnStore(run_dir / "live" / "episodes")
        self.journal = LearningJournal(run_dir / "live" / "journal.jsonl")
        self.weights = LiveWeights(assembly, self.settings, run_dir, self.journal, self.turns)
        self._metrics = Journal(run_dir)
        self.forgotten: Callable[[str], None] = lambda episode: None
        """Callback that receives each deleted or unlearned episode."""
        self._next = max(self.turns.next, self.journal.next_turn)
        self._weights_lock = asyncio.Lock()
        """Lock for changes of the weights."""
        self._changed, self._is_idle = asyncio.Event(), asyncio.Event()
        self._failed_scorings = 0
        self._num_unjudged = 0

    # ------------------------------------------------------------ judged turns

    async def on_answer(self, episode: ServerEpisode) -> None:
        """Judge the previous answer of an episode by the messages that followed it, once per answer.

        The judgement continues if the client disconnects.
        """
        last = episode.answers[-1]
        if last.before is not None:
            await asyncio.shield(asyncio.ensure_future(self._judge(episode, last.before, last)))

    def on_end(self, episode: ServerEpisode) -> None:
        """Judge the answers of an ended episode that have no feedback, by their own reward or that of the episode."""
        for number, answer in enumerate(episode.answers):
            reward = episode.turn_rewards.get(number, episode.reward)
            if number in episode.judged:
                continue
            if reward is not None:
                episode.judged.add(number)
                self._store_feedback(episode, answer, answer, Feedback(reward, "", "paid by the client"))
            else:
                self._reward_accepted(episode, number)

    def on_intervention(self, episode: ServerEpisode, number: int) -> None:
        """Store a human intervention; `live.intervention` specifies how it is trained on."""
        person = next(place for place, each in enumerate(episode.answers) if each is episode.answers[number].replaced)
        episode.judged |= {number, person}  # later messages and rewards of the episode do not judge them again
        if self.settings.intervention == "none":
            return
        self._add(intervention_turn(episode, number, self.settings.intervention, number=self._next))

    def on_rating(self, episode: ServerEpisode, number: int, rating: float, note: str, by: str) -> None:
        """Store a person's rating and note as the feedback on an answer; later feedback is ignored.

        Raises:
            RefusedError: The answer was judged already.
        """
        if number in episode.judged:
            raise RefusedError(f"answer {number} was judged already", status=409, code="judged")
        answer = episode.answers[number]
        feedback = Feedback(rating, note.strip(), f"rated by {by}")
        if feedback.is_trainable:
            episode.judged.add(number)
        self._store_feedback(episode, answer, answer, feedback)

    def forget_episode(self, id: str) -> None:
        """Delete all stored turns of an episode.

        Raises:
            RefusedError: The policy was trained on the episode; see `unlearn_episode`.
        """
        if any(of == id for of, _ in self.journal.learned.values()):
            problem = f'the episode "{id[:80]}" was trained on; POST /v1/live/episodes/{id[:80]}/unlearn'
            raise RefusedError(problem, status=409, code="learned_from")
        self.journal.add({"deleted": id})
        self.turns.delete(id)
        self.forgotten(id)

    async def _judge(self, episode: ServerEpisode, answer: RecordedAnswer, following: RecordedAnswer) -> None:
        number = next(index for index, each in enumerate(episode.answers) if each is answer)
        if number in episode.judged:
            return
        episode.judged.add(number)  # it is not judged twice
        try:
            result = self._scorer(make_follow_up(answer, following.new_messages))
            feedback = self._check_reward(await result if inspect.isawaitable(result) else result)
        except Exception as failure:  # a user-defined scorer; its failure must not end the conversation
            self._failed_scorings += 1
            if self._failed_scorings == 1:
                self.say(f"live.scorer failed, and its turn is not trained on: {describe_exception(failure)}")
            return
        if not feedback.is_trainable:
            episode.judged.discard(number)  # later feedback may be informative
            self._reward_accepted(episode, number)
        paid = episode.turn_rewards.get(number)
        if paid is not None:
            episode.judged.add(number)
            feedback = Feedback(paid, feedback.hint, f"paid by the client; {feedback.why}")
        if episode.closed and not episode.answers:  # deleted meanwhile
            return
        self._store_feedback(episode, answer, following, feedback)

    def _check_reward(self, result: Feedback) -> Feedback:
        low, high = self.settings.reward_range
        reward = result.reward
        if isinstance(reward, bool) or not isinstance(reward, int | float) or not low <= reward <= high:
            raise ValueError(f"reward {reward!r}: a number from {low:g} to {high:g} (live.reward_range)")
        return result

    def _reward_accepted(self, episode: ServerEpisode, number: int) -> None:
        """Judge an answer that its reviewer accepted with reward 0, if `live.intervention` is `reward`.

        Answers that a reviewer replaced have the reward −1.
        """
        if self.settings.intervention != "reward" or not episode.reviewer:
            return
        if number in episode.judged or number in episode.unreviewed:
            return
        episode.judged.add(number)
        answer = episode.answers[number]
        feedback = Feedback(0.0, "", f"accepted by {episode.reviewer}")
        chat, room = self.assembly.chat, self.assembly.policy.context_length
        context = make_follow_up(answer, ())
        self._add(build_judged_turn(episode, answer, context, feedback, number=self._next, chat=chat, room=room))

    def _store_feedback(
        self, episode: ServerEpisode, answer: RecordedAnswer, following_answer: RecordedAnswer, feedback: Feedback
    ) -> None:
        following = () if following_answer is answer else following_answer.new_messages
        if not feedback.is_trainable:
            self._num_unjudged += 1
            return
        turn = build_judged_turn(
            episode,
            answer,
            make_follow_up(answer, following),
            feedback,
            number=self._next,
            chat=self.assembly.chat,
            room=self.assembly.policy.context_length,
        )
        self._add(turn)

    def _add(self, turn: JudgedTurn) -> None:
        if self._redacting is not None:
            try:
                redacted = turn.redact_turn(self._redacting)
            except Exception as failure:  # a user-defined function; text that it did not process is not stored
                self.say(f"live.redact failed, and a turn is not stored: {summarize_exception(failure)}")
                redacted = None
            if redacted is None:
                self._num_unjudged += 1
                return
            turn = redacted
        self._next += 1
        self.turns.add(turn)
        self._admit(turn.episode, turn.number)

    def _admit(self, episode: str, number: int) -> None:
        """Queue a turn for training, unless its episode still needs approval or was rejected."""
        if self.journal.decided.get(episode, not self.settings.require_approval):
            self.journal.add({"turn": number, "episode": episode})
            self._notify()

    # ------------------------------------------------------------ administration

    def set_paused(self, paused: bool) -> None:
        """Pause or resume training. Answers and judgements continue, and the setting survives a restart."""
        if paused != self.journal.paused:
            self.journal.add({"paused": paused})
        self._notify()

    def review_episode(self, episode: str, *, approved: bool) -> None:
        """Approve an episode for training, including its later turns, or reject it permanently.

        Raises:
            RefusedError: The episode has no stored turns, or it is rejected after the policy was trained on it.
        """
        numbers = self._turn_numbers(episode)
        if not approved and any(number in self.journal.learned for number in numbers):
            problem = f'the episode "{episode[:80]}" was trained on; unlearn it instead'
            raise RefusedError(problem, status=409, code="learned_from")
        self.journal.add({"decided": episode, "approved": approved})
        for number in numbers if approved else ():
            if number not in self.journal.learned and number not in self.journal.waiting:
                self._admit(episode, number)

    async def unlearn_episode(self, episode: str) -> int:
        """Delete an episode and train again without it, from the initial weights (exact unlearning).

        Returns:
            Number of updates to recompute.

        Raises:
            RefusedError: The episode has no stored turns.
        """
        self._turn_numbers(episode)
        async with self._weights_lock:
            before = len(self.journal.steps)
            self.journal.add({"unlearn": episode})
            await self._restart_without(episode)
            self.say(f'unlearned "{episode[:80]}": {before} updates are recomputed without it')
        self._notify()
        return len(self.journal.waiting) // self.settings.turns_per_update

    def to_json(self) -> dict[str, Any]:
        """Return the state of training as a JSON object: steps, turns, success, and the turns of the next update."""
        journal, best = self.journal, self.journal.best
        held_numbers = [
            number for numbers in self.turns.episodes.values() for number in numbers if self._is_held(number)
        ]
        return {
            "paused": journal.paused,
            "version": journal.version,
            "steps": journal.step,
            "learned_turns": len(journal.learned),
            "waiting_turns": len(journal.waiting),
            "held_turns": len(held_numbers),
            "without_word": self._num_unjudged,
            "failed_scorings": self._failed_scorings,
            "best": {"step": best[0], "success": best[1]} if best else None,
            "next": [
                turn.to_json() for turn in self.turns.get_turns(list(journal.waiting)[: self.settings.turns_per_update])
            ],
            "next_when": f"{len(journal.waiting)} of {self.settings.turns_per_update} turns are there",
        }

    def families(self) -> Iterator[Family]:
        """Yield the Prometheus metrics of online learning, for `GET /metrics`."""
        journal = self.journal
        yield make_family("live_trained_turns", "gauge", "Turns in the weights.", len(journal.learned))
        yield make_family("live_waiting_turns", "gauge", "Turns that wait for an update.", len(journal.waiting))
        yield make_family("live_steps", "gauge", "Updates in the weights.", journal.step)
        yield make_family("live_failed_scorings_total", "counter", "Failed calls of the scorer.", self._failed_scorings)

    def episode_to_json(self, episode: str) -> dict[str, Any]:
        """Return the stored turns of an episode as a JSON object.

        Raises:
            RefusedError: The episode has no stored turns.
        """
        turns = [
            {**turn.to_json(), "learned_in": self.journal.learned.get(turn.number, ("", None))[1]}
            for turn in self.turns.get_turns(self._turn_numbers(episode)[:_MAX_SHOWN])
        ]
        return {**self._summary(episode), "of": turns}

    def list_episodes(self) -> list[dict[str, Any]]:
        """Return a summary of every episode with stored turns."""
        return [self._summary(episode) for episode in self.turns.episodes]

    def _summary(self, episode: str) -> dict[str, Any]:
        numbers = self.turns.episodes[episode]
        return {
            "id": episode,
            "object": "live.episode",
            "turns": len(numbers),
            "learned": sum(number in self.journal.learned for number in numbers),
            "waiting": sum(number in self.journal.waiting for number in numbers),
            "held": sum(map(self._is_held, numbers)),
            "approved": self.journal.decided.get(episode),
        }

    def _is_held(self, number: int) -> bool:
        known = number in self.journal.learned or number in self.journal.waiting
        return not known and self.journal.decided.get(self.turns.find_episode(number)) is None

    def _turn_numbers(self, episode: str) -> list[int]:
        numbers = self.turns.episodes.get(episode)
        if numbers is None:
            raise RefusedError(f'no stored turns of an episode "{episode[:80]}"', status=404, code="not_found")
        return numbers

    # ------------------------------------------------------------ training

    async def begin(self) -> None:
        """Restore the state of the run and sync its weights to the engine.

        Raises:
            RunDirectoryError, SaveError: The run cannot be resumed.
        """
        if not checkpoint_path(self._run_dir, 0).is_dir():
            if self.journal.steps:
                raise RunDirectoryError(
                    f"{checkpoint_path(self._run_dir, 0)}: is missing, although the run has updates"
                )
            await self.weights.save(0)
            await self.weights.wait_written()
        if self.journal.unlearning is not None:  # the unlearning was interrupted
            await self._restart_without(self.journal.unlearning)
        elif self.journal.steps:
            await run_in_compute_thread(self.weights.restore, self.journal.step)
            self.say(f"resuming after step {self.journal.step}; {len(self.journal.waiting)} turns are waiting")
        known = {*self.journal.learned, *self.journal.waiting}
        left = sorted(n for numbers in self.turns.episodes.values() for n in numbers if n not in known)
        for number in left:  # turns that were stored without their line in the journal
            self._admit(self.turns.find_episode(number), number)
        await self._publish()

    async def wait_idle(self) -> None:
        """Wait until every update that is possible with the queued turns is finished."""
        await self._is_idle.wait()

    async def run(self) -> None:
        """Run updates whenever enough turns are queued, until the task is cancelled.

        Raises:
            WhetstoneError: The journal or a checkpoint could not be saved.
        """
        async with self._weights_lock:
            await self._evaluate_if_due()
        while True:
            self._changed.clear()
            while self._is_due():
                async with self._weights_lock:
                    if self._is_due():
                        await self._update()
                        await self._evaluate_if_due()
            if not self._changed.is_set():
                self._is_idle.set()
            await self._changed.wait()

    def _notify(self) -> None:
        self._is_idle.clear()
        self._changed.set()

    async def close(self) -> None:
        """Wait for the running update, and save a checkpoint of the weights."""
        async with self._weights_lock:
            if self.journal.step and not checkpoint_path(self._run_dir, self.journal.step).is_dir():
                await self.weights.save(self.journal.step)
            await self.weights.wait_written()

    def _is_due(self) -> bool:
        journal = self.journal
        enough = len(journal.waiting) >= self.settings.turns_per_update
        return enough and not journal.paused and journal.step < self.settings.steps

    async def _update(self) -> None:
        journal, started = self.journal, time.perf_counter()
        step = journal.step + 1
        fresh = list(journal.waiting)[: self.settings.turns_per_update]
        earlier = [number for number in journal.learned if number in self.turns]
        draw = derive_random(self.assembly.resolved.recipe.seed, "live replay", step)
        places = sorted(draw.sample(range(len(earlier)), min(self.settings.replay_turns, len(earlier))))
        replayed = [earlier[place] for place in places]
        journal.add({"update": step, "version": journal.version + 1, "turns": fresh, "replayed": replayed})
        judged = self.turns.get_turns(fresh)
        try:
            metrics = await run_in_compute_thread(
                self.weights.apply_update, Update(step, tuple(fresh), tuple(replayed))
            )
        except Exception as failure:  # the turns of the update caused it, and are excluded from training
            journal.add({"void": step})
            reason = describe_exception(failure).splitlines()[0]
            self.say(f"update {step} failed, and its {len(fresh)} turns are excluded: {reason}")
            return
        await self._publish()
        metrics = _turn_metrics(judged) | {"live/replayed": float(len(replayed))} | dict(metrics)
        self._record(step, metrics | {"time/update": time.perf_counter() - started})
        if step % self.settings.checkpoint_interval_steps == 0:
            await self.weights.save(step)

    async def _evaluate_if_due(self) -> None:
        """Evaluate if an evaluation is due, and roll back the weights if success dropped below the guard."""
        guard, journal = self.settings.guard, self.journal
        if guard is None:
            return
        step, best = journal.now, journal.best
        last_evaluated = max((each for each in journal.success if each <= step), default=None)
        if step in journal.success or (last_evaluated is not None and step - last_evaluated < guard.interval_updates):
            return
        recipe = self.assembly.resolved.recipe
        evaluation, _ = await evaluate_policy(
            self.assembly,
            self.engine,
            episodes=recipe.evaluation.interval_episodes,
            samples=1,
            temperature=recipe.evaluation.temperature,
            seed=recipe.seed,
        )
        if evaluation.episodes == 0:
            self.say(f"after step {step} no held-out episode could be scored; live.guard is not effective")
            return
        success = evaluation.success
        journal.add({"evaluated": step, "success": success})
        self._record(journal.step, {"live/held_out_success": success})
        if best is not None and success < best[1] - guard.max_drop:
            await self._go_back(best[0], f"success {success:.0%} after step {step}, {best[1]:.0%} after step {best[0]}")
        elif step:
            await self.weights.save(journal.step)

    async def _go_back(self, to: int, why: str) -> None:
        step = self.journal.step + 1
        self.journal.add({"back": step, "version": self.journal.version + 1, "to": to})
        await self.weights.wait_written()
        await run_in_compute_thread(self.weights.restore, to)
        await self._publish()
        self._record(step, {"live/rolled_back_to": float(to)})
        self.say(f"{why}: the weights of step {to} are restored; later turns are excluded from training")

    async def _restart_without(self, without: str) -> None:
        await self.weights.wait_written()
        self.turns.delete(without)
        self.forgotten(without)
        self.weights.delete_checkpoints()
        self.journal.restart_without(without)
        self.journal.add({"begin": self.journal.version + 1})
        self._metrics.truncate_rows({})
        await run_in_compute_thread(self.weights.restore, 0)
        await self._publish()

    async def _publish(self) -> None:
        weights, version = self.weights.learner.weights(), self.journal.version
        await sync_weights(weights, self.engine, version, in_flight=self.settings.in_flight)

    def _record(self, step: int, metrics: Mapping[str, float]) -> None:
        self._metrics.record(STAGE, step, metrics)


def _turn_metrics(turns: list[JudgedTurn]) -> dict[str, float]:
    """Compute mean metrics of the judged turns of an update, such as their reward."""
    return {
        "reward/mean": fmean(turn.feedback.reward for turn in turns),
        "live/turns": float(len(turns)),
        "live/hinted_fraction": fmean(bool(turn.hinted) for turn in turns),
        "live/intervention_fraction": fmean(turn.intervention is not None for turn in turns),
    }
