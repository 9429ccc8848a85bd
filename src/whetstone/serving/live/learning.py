"""Who learns while others talk? One loop beside the server: judged turns in, updates, new weights to the engine.

    went on → judged → (approved) → due → journal → update → engine → now and then an evaluation, and maybe back

Easy to get wrong: the journal says what an update is made of before it is made, so a kill neither loses a turn nor
learns from one twice; and an update, a return and an unlearning never overlap.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from whetstone.assembly.assembly import Assembly
from whetstone.chat.api.asked import RefusedError
from whetstone.compute_thread import run_in_compute_thread
from whetstone.data.redacting import Redacting
from whetstone.errors import RunDirectoryError, explained
from whetstone.inference import Engine, publish
from whetstone.network.http_layer import Family, make_family
from whetstone.recipe import LiveSettings
from whetstone.record.checkpoint import checkpoint_path
from whetstone.reporting import Journal
from whetstone.seeding import derive_random
from whetstone.serving.live.journal import LearningJournal, Update
from whetstone.serving.live.scorers import Judgement, Scorer
from whetstone.serving.live.turns import JudgedTurn, TurnStore, followed_of, judged_turn, taken_over
from whetstone.serving.live.weights import STAGE, LiveWeights
from whetstone.serving.recording import Episode, Said
from whetstone.training.evaluating import evaluate
from whetstone.user_code import describe_exception

_SHOWN = 50
"""Turns that are told of at once."""


class Live:
    """A policy that learns from what follows its answers; a `Watcher` of the episodes of a server.

    Args:
        assembly: Of `as_reinforcement`.
        scorer: Says of each answer what followed it makes of it.
        settings: Of the recipe.
        redacting: What is taken out of a turn before it is kept, and so before it is learned from.
        run_dir: Where journal, turns, metrics and checkpoints are; what is there is gone on with.
        say: Told in a line of what matters.
    """

    def __init__(
        self,
        assembly: Assembly,
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
        """Told of each episode that is deleted or unlearned."""
        self._next = max(self.turns.next, self.journal.next_turn)
        self._alone = asyncio.Lock()
        """Held by whoever changes weights."""
        self._changed, self._rested = asyncio.Event(), asyncio.Event()
        self._failed_scorings = 0
        self._without_word = 0

    # ------------------------------------------------------------ what is learned from

    async def went_on(self, episode: Episode) -> None:
        """The answer before the last of an episode was followed by something, which is judged once; a client that hangs
        up meanwhile changes nothing."""
        last = episode.said[-1]
        if last.before is not None:
            await asyncio.shield(asyncio.ensure_future(self._judge(episode, last.before, last)))

    def ended(self, episode: Episode) -> None:
        """Answers nobody said anything of get what the episode, or they themselves, were paid."""
        for number, said in enumerate(episode.said):
            paid = episode.turn_rewards.get(number, episode.reward)
            if number in episode.judged:
                continue
            if paid is not None:
                episode.judged.add(number)
                self._keep(episode, said, said, Judgement(paid, "", "paid by the client"))
            else:
                self._let_stand(episode, number)

    def taken_over(self, episode: Episode, number: int) -> None:
        """A person said something in the place of an answer; `live.intervention` says what is learned from it."""
        person = next(place for place, each in enumerate(episode.said) if each is episode.said[number].replaced)
        episode.judged |= {number, person}  # nothing that follows, and no reward of the episode, says more of either
        if self.settings.intervention == "none":
            return
        self._add(taken_over(episode, number, self.settings.intervention, number=self._next))

    def rated(self, episode: Episode, number: int, rating: float, note: str, by: str) -> None:
        """A person says what an answer was worth, and in words what would have helped: that is what is learned from it,
        whatever follows.

        Raises:
            RefusedError: Something was made of it already.
        """
        if number in episode.judged:
            raise RefusedError(f"answer {number} was judged already", status=409, code="judged")
        said = episode.said[number]
        judgement = Judgement(rating, note.strip(), f"rated by {by}")
        if judgement.teaches:
            episode.judged.add(number)
        self._keep(episode, said, said, judgement)

    def forget(self, id: str) -> None:
        """Delete all turns of an episode.

        Raises:
            RefusedError: It was learned from.
        """
        if any(of == id for of, _ in self.journal.learned.values()):
            said = f'the episode "{id[:80]}" was learned from: POST /v1/live/episodes/{id[:80]}/unlearn'
            raise RefusedError(said, status=409, code="learned_from")
        self.journal.add({"deleted": id})
        self.turns.delete(id)
        self.forgotten(id)

    async def _judge(self, episode: Episode, said: Said, then: Said) -> None:
        number = next(place for place, each in enumerate(episode.said) if each is said)
        if number in episode.judged:
            return
        episode.judged.add(number)  # nobody else judges it meanwhile
        try:
            found = self._scorer(followed_of(said, then.heard))
            judgement = self._checked(await found if inspect.isawaitable(found) else found)
        except Exception as failure:  # a scorer of somebody else's; the conversation goes on whatever it does
            self._failed_scorings += 1
            if self._failed_scorings == 1:
                self.say(f"live.scorer failed, and its turn is not learned from: {describe_exception(failure)}")
            return
        if not judgement.teaches:
            episode.judged.discard(number)  # what is said or paid later may teach
            self._let_stand(episode, number)
        paid = episode.turn_rewards.get(number)
        if paid is not None:
            episode.judged.add(number)
            judgement = Judgement(paid, judgement.hint, f"paid by the client; {judgement.why}")
        if episode.closed and not episode.said:  # forgotten meanwhile
            return
        self._keep(episode, said, then, judgement)

    def _checked(self, result: Judgement) -> Judgement:
        low, high = self.settings.reward_range
        reward = result.reward
        if isinstance(reward, bool) or not isinstance(reward, int | float) or not low <= reward <= high:
            raise ValueError(f"reward {reward!r}: a number from {low:g} to {high:g} (live.reward_range)")
        return result

    def _let_stand(self, episode: Episode, number: int) -> None:
        """Where interventions are the reward, an answer that whoever watches let stand is worth 0: more than −1."""
        if self.settings.intervention != "reward" or not episode.watched:
            return
        if number in episode.judged or number in episode.unseen:
            return
        episode.judged.add(number)
        said = episode.said[number]
        judgement = Judgement(0.0, "", f"{episode.watched} let it stand")
        chat, room = self.assembly.chat, self.assembly.policy.context_length
        followed = followed_of(said, ())
        self._add(judged_turn(episode, said, followed, judgement, number=self._next, chat=chat, room=room))

    def _keep(self, episode: Episode, said: Said, then: Said, judgement: Judgement) -> None:
        following = () if then is said else then.heard
        if not judgement.teaches:
            self._without_word += 1
            return
        turn = judged_turn(
            episode,
            said,
            followed_of(said, following),
            judgement,
            number=self._next,
            chat=self.assembly.chat,
            room=self.assembly.policy.context_length,
        )
        self._add(turn)

    def _add(self, turn: JudgedTurn) -> None:
        if self._redacting is not None:
            try:
                redacted = turn.redacted(self._redacting)
            except Exception as failure:  # somebody's own function; what it did not read through is not kept
                self.say(f"live.redact failed, and a turn is not kept: {explained(failure)}")
                redacted = None
            if redacted is None:
                self._without_word += 1
                return
            turn = redacted
        self._next += 1
        self.turns.add(turn)
        self._admit(turn.episode, turn.number)

    def _admit(self, episode: str, number: int) -> None:
        """Let a turn be learned from, if it may."""
        if self.journal.decided.get(episode, not self.settings.require_approval):
            self.journal.add({"turn": number, "episode": episode})
            self._wake()

    # ------------------------------------------------------------ what an administrator may do

    def pause(self, paused: bool) -> None:
        """Learn nothing until told otherwise, also when started again; answers go on, and what follows is judged."""
        if paused != self.journal.paused:
            self.journal.add({"paused": paused})
        self._wake()

    def decide(self, episode: str, *, approved: bool) -> None:
        """Let an episode be learned from, what is still to come of it included, or never.

        Raises:
            RefusedError: There is none, or it is to be rejected and was learned from.
        """
        numbers = self._known(episode)
        if not approved and any(number in self.journal.learned for number in numbers):
            said = f'the episode "{episode[:80]}" was learned from; it can be unlearned'
            raise RefusedError(said, status=409, code="learned_from")
        self.journal.add({"decided": episode, "approved": approved})
        for number in numbers if approved else ():
            if number not in self.journal.learned and number not in self.journal.waiting:
                self._admit(episode, number)

    async def unlearn(self, episode: str) -> int:
        """Delete an episode, and have the weights of a run that never saw it: they begin anew at once, and what else
        was learned is learned again. How many updates that takes.

        Raises:
            RefusedError: There is none.
        """
        self._known(episode)
        async with self._alone:
            before = len(self.journal.steps)
            self.journal.add({"unlearn": episode})
            await self._begin_anew(episode)
            self.say(f'unlearned "{episode[:80]}": {before} updates are forgotten, and made again without it')
        self._wake()
        return len(self.journal.waiting) // self.settings.turns_per_update

    def told(self) -> dict[str, Any]:
        """How things stand, and what is learned from next, and why."""
        journal, best = self.journal, self.journal.best
        held = [number for numbers in self.turns.episodes.values() for number in numbers if self._is_held(number)]
        return {
            "paused": journal.paused,
            "version": journal.version,
            "steps": journal.step,
            "learned_turns": len(journal.learned),
            "waiting_turns": len(journal.waiting),
            "held_turns": len(held),
            "without_word": self._without_word,
            "failed_scorings": self._failed_scorings,
            "best": {"step": best[0], "success": best[1]} if best else None,
            "next": [turn.told() for turn in self.turns.turns(list(journal.waiting)[: self.settings.turns_per_update])],
            "next_when": f"{len(journal.waiting)} of {self.settings.turns_per_update} turns are there",
        }

    def families(self) -> Iterator[Family]:
        """Return metrics of live learning."""
        journal = self.journal
        yield make_family("live_trained_turns", "gauge", "Turns in the weights.", len(journal.learned))
        yield make_family("live_waiting_turns", "gauge", "Turns that wait for an update.", len(journal.waiting))
        yield make_family("live_steps", "gauge", "Updates in the weights.", journal.step)
        yield make_family("live_failed_scorings_total", "counter", "Failed calls of the scorer.", self._failed_scorings)

    def told_of(self, episode: str) -> dict[str, Any]:
        """What is known of an episode.

        Raises:
            RefusedError: There is none.
        """
        turns = [
            {**turn.told(), "learned_in": self.journal.learned.get(turn.number, ("", None))[1]}
            for turn in self.turns.turns(self._known(episode)[:_SHOWN])
        ]
        return {**self._summary(episode), "of": turns}

    def episodes(self) -> list[dict[str, Any]]:
        """Every episode something was kept of, in a line each."""
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
        return not known and self.journal.decided.get(self.turns.episode_of(number)) is None

    def _known(self, episode: str) -> list[int]:
        numbers = self.turns.episodes.get(episode)
        if numbers is None:
            raise RefusedError(f'nothing is kept of an episode "{episode[:80]}"', status=404, code="not_found")
        return numbers

    # ------------------------------------------------------------ learning

    async def begin(self) -> None:
        """Come to where the run stood, and have the engine draw from those weights.

        Raises:
            RunDirectoryError, SaveError: What is there cannot be gone on with.
        """
        if not checkpoint_path(self._run_dir, 0).is_dir():
            if self.journal.steps:
                raise RunDirectoryError(f"{checkpoint_path(self._run_dir, 0)}: is missing, and it learned already")
            await self.weights.save(0)
            await self.weights.written()
        if self.journal.unlearning is not None:  # a kill came between
            await self._begin_anew(self.journal.unlearning)
        elif self.journal.steps:
            await run_in_compute_thread(self.weights.bring, self.journal.step)
            self.say(f"going on after step {self.journal.step}, {len(self.journal.waiting)} turns waiting")
        known = {*self.journal.learned, *self.journal.waiting}
        left = sorted(n for numbers in self.turns.episodes.values() for n in numbers if n not in known)
        for number in left:  # a kill came between a turn and its line in the journal
            self._admit(self.turns.episode_of(number), number)
        await self._publish()

    async def settled(self) -> None:
        """Wait until all is learned that can be without more turns."""
        await self._rested.wait()

    async def run(self) -> None:
        """Learn whenever there is enough to learn from, until cancelled.

        Raises:
            WhetstoneError: Something could not be saved.
        """
        async with self._alone:
            await self._look()
        while True:
            self._changed.clear()
            while self._is_due():
                async with self._alone:
                    if self._is_due():
                        await self._update()
                        await self._look()
            if not self._changed.is_set():
                self._rested.set()
            await self._changed.wait()

    def _wake(self) -> None:
        self._rested.clear()
        self._changed.set()

    async def close(self) -> None:
        """What was learned is saved, once an update under way is made."""
        async with self._alone:
            if self.journal.step and not checkpoint_path(self._run_dir, self.journal.step).is_dir():
                await self.weights.save(self.journal.step)
            await self.weights.written()

    def _is_due(self) -> bool:
        journal = self.journal
        enough = len(journal.waiting) >= self.settings.turns_per_update
        return enough and not journal.paused and journal.step < self.settings.steps

    async def _update(self) -> None:
        journal, began = self.journal, time.perf_counter()
        step = journal.step + 1
        fresh = list(journal.waiting)[: self.settings.turns_per_update]
        earlier = [number for number in journal.learned if number in self.turns]
        draw = derive_random(self.assembly.resolved.recipe.seed, "live replay", step)
        places = sorted(draw.sample(range(len(earlier)), min(self.settings.replay_turns, len(earlier))))
        replayed = [earlier[place] for place in places]
        journal.add({"update": step, "version": journal.version + 1, "turns": fresh, "replayed": replayed})
        judged = self.turns.turns(fresh)
        try:
            metrics = await run_in_compute_thread(self.weights.learn, Update(step, tuple(fresh), tuple(replayed)))
        except Exception as failure:  # whatever it is, these turns are to blame: nothing is learned from them
            journal.add({"void": step})
            said = describe_exception(failure).splitlines()[0]
            self.say(f"update {step} failed, and its {len(fresh)} turns are left out: {said}")
            return
        await self._publish()
        metrics = _of_turns(judged) | {"live/replayed": float(len(replayed))} | dict(metrics)
        self._record(step, metrics | {"time/update": time.perf_counter() - began})
        if step % self.settings.checkpoint_interval_steps == 0:
            await self.weights.save(step)

    async def _look(self) -> None:
        """Evaluate where it is time to, and go back where success fell too far."""
        guard, journal = self.settings.guard, self.journal
        if guard is None:
            return
        step, best = journal.now, journal.best
        seen = max((each for each in journal.success if each <= step), default=None)
        if step in journal.success or (seen is not None and step - seen < guard.interval_updates):
            return
        recipe = self.assembly.resolved.recipe
        came_to, _ = await evaluate(
            self.assembly,
            self.engine,
            episodes=recipe.evaluation.interval_episodes,
            samples=1,
            temperature=recipe.evaluation.temperature,
            seed=recipe.seed,
        )
        if came_to.episodes == 0:
            self.say(f"after step {step} no held-out episode could be scored, so nobody guards what is learned")
            return
        success = came_to.success
        journal.add({"evaluated": step, "success": success})
        self._record(journal.step, {"live/held_out_success": success})
        if best is not None and success < best[1] - guard.max_drop:
            await self._go_back(best[0], f"success {success:.0%} after step {step}, {best[1]:.0%} after step {best[0]}")
        elif step:
            await self.weights.save(journal.step)

    async def _go_back(self, to: int, why: str) -> None:
        step = self.journal.step + 1
        self.journal.add({"back": step, "version": self.journal.version + 1, "to": to})
        await self.weights.written()
        await run_in_compute_thread(self.weights.bring, to)
        await self._publish()
        self._record(step, {"live/rolled_back_to": float(to)})
        self.say(f"{why}: the weights of step {to} are back; what was learned since is void, and not learned again")

    async def _begin_anew(self, without: str) -> None:
        await self.weights.written()
        self.turns.delete(without)
        self.forgotten(without)
        self.weights.forget()
        self.journal.without(without)
        self.journal.add({"begin": self.journal.version + 1})
        self._metrics.rewind({})
        await run_in_compute_thread(self.weights.bring, 0)
        await self._publish()

    async def _publish(self) -> None:
        weights, version = self.weights.learner.weights(), self.journal.version
        await publish(weights, self.engine, version, in_flight=self.settings.in_flight)

    def _record(self, step: int, metrics: Mapping[str, float]) -> None:
        self._metrics.record(STAGE, step, metrics)


def _of_turns(turns: list[JudgedTurn]) -> dict[str, float]:
    """What the turns of an update were, in the mean."""
    return {
        "reward/mean": fmean(turn.judgement.reward for turn in turns),
        "live/turns": float(len(turns)),
        "live/hinted_fraction": fmean(bool(turn.hinted) for turn in turns),
        "live/intervention_fraction": fmean(turn.intervention is not None for turn in turns),
    }
