"""What can an estimator ask for? Columns of a batch, by name: one number a trajectory, a turn, or an action token.

    groups that count → trajectories [N] → turns [M] → action tokens [K], each behind the other

Columns are made when they are asked for: log-probs, beliefs and values cost a forward pass, the rest is read.

Easy to get wrong: action tokens stand turn by turn here, whatever segments hold them; `scattered` takes numbers back to
where their tokens lie.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from whetstone.algorithms import Level, columns_of
from whetstone.algorithms.advantages import implicit_rewards
from whetstone.algorithms.modulation import covariances
from whetstone.algorithms.returns import last_of
from whetstone.chat import Chat, assistant
from whetstone.errors import CreditError
from whetstone.learning.model_trainer import ModelTrainer
from whetstone.learning.probes import behind, context_of, probe
from whetstone.learning.token_index import Held
from whetstone.trajectory import EndReason, Segment, Tokens

READ_AT = {
    "values": "first",
    "twin_values": "first",
    "potentials": "first",
    "action_values": "last",
    "twin_action_values": "last",
    "contributions": "last",
    "token_values": "every",
}
"""What critics can foretell, and in front of which of a turn's action tokens they are asked."""
FROM_MODELS = frozenset({
    "old_logprobs", "reference_logprobs", "model_logprobs", "implicit", "answer_beliefs", "covariance_rank",
})  # fmt: skip
"""Columns that cost a forward pass, beside critics' values."""
_INDICES = frozenset(
    {"group", "trajectory", "turn_index", "turn", "token_trajectory", "nodes", "state_keys", "roles", "action_keys"}
)


def empty_column(name: str) -> Tensor:
    """[0] a column of nothing."""
    return torch.empty(0, dtype=torch.long if name in _INDICES else torch.float64)


def from_record(columns: Iterable[str]) -> bool:
    """Whether columns can be read from trajectories alone, without a model."""
    return not critic_heads(columns) and not FROM_MODELS & set(columns)


def critic_heads(columns: Iterable[str]) -> tuple[str, ...]:
    """The heads a critic must have to give these columns: those that are trained, then slow copies."""
    asked = [name.removeprefix("last_") for name in columns]
    asked = [name for name in asked if name.removeprefix("slow_") in READ_AT]
    trained = sorted({name.removeprefix("slow_") for name in asked})
    return (*trained, *sorted({name for name in asked if name.startswith("slow_")}))


class Columns:
    """A batch as columns.

    Args:
        held: Its trajectories, group by group.
        learner: Gives log-probs and values, under the weights before the update.
        temperature: What the sampler divided its logits by.
        chat: Writes gold answers as tokens.
        roles: The task tag that names the role a trajectory is played in, beside its seat; None: the seat alone.
        scorer: A process model, for implicit rewards.
        draw: Where chance comes from, the same for the same step of a run.
    """

    def __init__(
        self,
        held: Sequence[Held],
        *,
        learner: ModelTrainer | None = None,
        temperature: float = 1.0,
        chat: Chat | None = None,
        roles: str | None = None,
        scorer: ModelTrainer | None = None,
        draw: torch.Generator | None = None,
    ) -> None:
        self.held, self.temperature, self.chat, self.roles, self.scorer = held, temperature, chat, roles, scorer
        self._learner, self._draw = learner, draw
        self._made: dict[str, Tensor] = {}
        self._values: dict[str, list[Tensor]] | None = None
        self._last_values: dict[str, Tensor] | None = None

    def __getitem__(self, name: str) -> Tensor:
        """The column of this name, on the CPU; numbers in float64.

        Raises:
            CreditError: Nothing in the batch gives it.
        """
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def replaced(self, name: str, column: Tensor) -> None:
        """Put rewards that were made over in the place of those read; what is made of them is made anew."""
        self._made[name] = column
        for made_of_them in ("rewards", "turn_rewards", "token_rewards"):
            if made_of_them != name:
                self._made.pop(made_of_them, None)

    def ask(self, function: Callable[..., Any], **given: Tensor) -> Any:
        """What a function of columns says; `given` take the place of columns of their names."""
        return function(*(given[name] if name in given else self[name] for name in columns_of(function)))

    def spread(self, numbers: Tensor, level: Level, to: Level) -> Tensor:
        """Numbers of one level at a finer one: every turn of a trajectory, every token of a turn has the same."""
        if level == to:
            return numbers
        if level == "trajectory":
            return numbers[self["trajectory" if to == "turn" else "token_trajectory"]]
        if level == "turn" and to == "token":
            return numbers[self["turn"]]
        raise ValueError(f"numbers of a {level} cannot become those of a {to}")

    def at_actions(self, numbers: Tensor) -> list[list[Tensor]]:
        """Per trajectory and segment, [A] numbers [K] of action tokens in the order they lie in it."""
        parts = torch.split(numbers, [len(held) for held in self.held])
        return [
            [mine[torch.from_numpy(held.segment == k)] for k in range(len(held.segments))]
            for held, mine in zip(self.held, parts, strict=True)
        ]

    def scattered(self, numbers: Tensor) -> list[list[Tensor]]:
        """Per trajectory and segment, [T] numbers [K] of action tokens where their tokens lie; 0 elsewhere."""
        found = []
        for held, at_actions in zip(self.held, self.at_actions(numbers), strict=True):
            rows = [torch.zeros(len(segment), dtype=numbers.dtype) for segment in held.segments]
            for k, row in enumerate(rows):
                row[torch.from_numpy(held.place[held.segment == k])] = at_actions[k]
            found.append(rows)
        return found

    def _make(self, name: str) -> Tensor:
        if name.startswith("last_") and name.removeprefix("last_").removeprefix("slow_") in READ_AT:
            return self._last_value(name.removeprefix("last_"))
        if name.removeprefix("slow_") in READ_AT:
            return self._value(name)
        maker = _MADE.get(name)
        found = maker(self) if maker is not None else self._from_reward(name)
        if isinstance(found, Tensor):
            return found
        return torch.tensor(list(found), dtype=torch.long if name in _INDICES else torch.float64)

    def _turns(self) -> Iterable[tuple[int, Held, int]]:
        """(number of its trajectory, the trajectory, number of the turn) of every turn."""
        for i, held in enumerate(self.held):
            for t in range(len(held.trajectory.turns)):
                yield i, held, t

    def _of_tokens(self, read: Callable[[int, Held], np.ndarray]) -> Tensor:
        """[K] from [A] numbers of each trajectory."""
        parts = [read(i, held) for i, held in enumerate(self.held)]
        return torch.from_numpy(np.concatenate([*parts, np.empty(0, dtype=parts[0].dtype if parts else float)]))

    def _outcomes(self) -> Iterable[float]:
        return (held.trajectory.score.value if held.trajectory.score is not None else 0.0 for held in self.held)

    def _process_rewards(self) -> Iterable[float]:
        for _, held, t in self._turns():
            score = held.trajectory.score
            if score is None or score.turns is None:
                raise CreditError(f"process_rewards: {held.trajectory.id}: its reward says nothing of its turns")
            yield score.turns[t]

    def _of_turns(self) -> Tensor:
        """Process rewards, made over or as they are; 0 where the reward gives none and nobody asked for them."""
        if "process_rewards" in self._made:
            return self._made["process_rewards"]
        scores = ((held.trajectory.score, t) for _, held, t in self._turns())
        said = [score.turns[t] if score is not None and score.turns is not None else 0.0 for score, t in scores]
        return torch.tensor(said, dtype=torch.float64)

    def _rewards(self) -> Tensor:
        return self["outcomes"].clone().index_add_(0, self["trajectory"], self._of_turns())

    def _turn_rewards(self) -> Tensor:
        ends = last_of(self["trajectory"])
        return self._of_turns() + torch.where(ends, self["outcomes"][self["trajectory"]], 0.0)

    def _token_rewards(self) -> Tensor:
        """A turn's reward on its last action token, the outcome on the last of all."""
        turn, owner = self["turn"], self["token_trajectory"]
        of_turn = torch.where(last_of(turn), self._of_turns()[turn], 0.0)
        return of_turn + torch.where(last_of(owner), self["outcomes"][owner], 0.0)

    def _state_keys(self) -> Iterable[int]:
        """By what the turn began from: the opening, or what came back last. Equal texts are one state."""
        known: dict[tuple[str, ...], int] = {}
        for _, held, t in self._turns():
            trajectory = held.trajectory
            seen = trajectory.opening if t == 0 else trajectory.turns[t - 1].observation
            yield known.setdefault(tuple(message.text for message in seen), len(known))

    def _nodes(self) -> Iterable[int]:
        known: dict[int, int] = {}
        for _, held, t in self._turns():
            yield known.setdefault(id(held.trajectory.turns[t]), len(known))

    def _turn(self) -> Tensor:
        begins = np.cumsum([0, *(len(held.trajectory.turns) for held in self.held)])
        return self._of_tokens(lambda i, held: begins[i] + held.turn).long()

    def _token_trajectory(self) -> Tensor:
        return self._of_tokens(lambda i, held: np.full(len(held), i)).long()

    def _group(self) -> Iterable[int]:
        """Those of one task, and of one seat where there are several: what is compared."""
        known: dict[tuple[int, str], int] = {}
        for held in self.held:
            yield known.setdefault((held.number, held.trajectory.role), len(known))

    def _roles(self) -> Iterable[int]:
        """By the seat it played, where there are several, and the tag of the task, where the recipe names one."""
        known: dict[tuple[str, str], int] = {}
        for held in self.held:
            tag, tags, seat = self.roles, held.group.task.tags, held.trajectory.role
            if tag is None and not seat:
                raise CreditError(
                    f"roles: {held.trajectory.id} played no seat (rollout.strategy: self_play), and the recipe does "
                    "not say which tag of a task names them (roles: TAG)"
                )
            if tag is not None and tag not in tags:
                raise CreditError(f'roles: task {held.group.task.id} has no tag "{tag}"')
            yield known.setdefault((seat, tags[tag] if tag is not None else ""), len(known))

    def _hardness(self) -> Iterable[float]:
        for held in self.held:
            try:
                yield float(held.group.task.tags["difficulty"])
            except (KeyError, ValueError):
                raise CreditError(f"hardness: task {held.group.task.id} has no number for its tag difficulty") from None

    def _greedy_rewards(self) -> Iterable[float]:
        for held in self.held:
            yield next((t.score.value for t in held.group.trajectories if t.greedy and t.score is not None), math.nan)

    def _written(self, column: Callable[[Tokens], Sequence[float]]) -> Tensor:
        """[K] of what stands beside each token."""

        def read(_: int, held: Held) -> np.ndarray:
            found = np.empty(len(held))
            for k, segment in enumerate(held.segments):
                here = held.segment == k
                found[here] = np.asarray(column(segment.tokens))[held.place[here]]
            return found

        return self._of_tokens(read)

    def _turn_entropies(self) -> Tensor:
        turn = self["turn"]
        zeros = torch.zeros(len(self["trajectory"]), dtype=torch.float64)
        sums = zeros.index_add(0, turn, self["entropies"])
        return sums / zeros.index_add(0, turn, torch.ones_like(self["entropies"]))

    def _call_tokens(self) -> Tensor:
        calls = [float(bool(held.trajectory.turns[t].message.tool_calls)) for _, held, t in self._turns()]
        return torch.tensor(calls, dtype=torch.float64)[self["turn"]]

    def _grounded(self) -> Iterable[float]:
        """1 where every call of a turn could be done; a turn that calls nothing asks nothing that could fail."""
        for _, held, t in self._turns():
            turn = held.trajectory.turns[t]
            yield float(all(call.outcome == "ok" for call in turn.calls) and not turn.message.malformed)

    def _void(self) -> Iterable[float]:
        """1 where a turn neither calls a tool nor answers: not the last, or cut off, and without a call."""
        for _, held, t in self._turns():
            trajectory = held.trajectory
            turn = trajectory.turns[t]
            over = not trajectory.ended.cut_short and trajectory.ended is not EndReason.STOPPED
            answers = t + 1 == len(trajectory.turns) and over and bool(turn.message.text)
            yield float(not turn.message.tool_calls and not answers and not turn.aside)

    def _cut_short(self) -> Iterable[float]:
        return (float(held.trajectory.ended.cut_short) for held in self.held)

    def _answer_beliefs(self) -> Tensor:
        """Probability of the gold answer in front of each turn; of several answers the likeliest."""
        assert self.chat is not None
        asked: list[Segment] = []
        rows: list[int] = []
        for m, (_, held, t) in enumerate(self._turns()):
            answers = held.group.task.private.get("answer")
            if answers is None:
                raise CreditError(f"answer_beliefs: task {held.group.task.id} has no gold answer (private `answer`)")
            context = context_of(held, t)
            for answer in answers if isinstance(answers, list | tuple) else [answers]:
                ids = self.chat.write(assistant(str(answer)), ())
                asked.append(probe(context, ids))
                rows.append(m)
        beliefs = torch.full((len(self["trajectory"]),), -math.inf, dtype=torch.float64)
        if asked:
            means = [of.double().mean().cpu() for of in self._logprobs_of(asked)]
            beliefs.scatter_reduce_(0, torch.tensor(rows), torch.stack(means), "amax")
        return beliefs.exp()

    def _action_keys(self) -> Iterable[int]:
        """Equal exactly where two trajectories did the same, token by token."""
        known: dict[tuple[tuple[int, ...], ...], int] = {}
        for held in self.held:
            did = tuple(turn.action.ids for turn in held.trajectory.turns)
            yield known.setdefault(did, len(known))

    def _draws(self) -> Tensor:
        return torch.rand(len(self["turn"]), generator=self._draw, dtype=torch.float64)

    def _covariance_rank(self) -> Tensor:
        """The share of tokens whose covariance of credit and log-prob is as large or larger; 0 for the largest."""
        covariance = covariances(self["advantages"], self["old_logprobs"])
        order = torch.argsort(covariance, descending=True, stable=True)
        rank = torch.empty(len(order), dtype=torch.float64)
        rank[order] = torch.arange(1, len(order) + 1, dtype=torch.float64) / max(1, len(order))
        rank[order[:1]] = 0.0
        return rank

    def _old_logprobs(self) -> Tensor:
        return self._in_order(self._logprobs_of(self._segments()))

    def _reference_logprobs(self) -> Tensor:
        return self._in_order(self._logprobs_of(self._segments(), of="reference"))

    def _model_logprobs(self) -> Tensor:
        if self.scorer is None:
            raise CreditError("implicit: the recipe has no process_model")
        return self._in_order(self.scorer.logprobs(self._segments(), temperature=self.temperature))

    def _implicit(self) -> Tensor:
        return implicit_rewards(self["model_logprobs"], self["old_logprobs"], self["turn"], len(self["trajectory"]))

    def _from_reward(self, name: str) -> Iterable[float]:
        """A signal of the reward, one a turn, or a part of its score, one a trajectory."""
        scores = [held.trajectory.score for held in self.held]
        if any(score is not None and name in score.signals for score in scores):
            for held in self.held:
                score = held.trajectory.score
                if score is None or name not in score.signals:
                    raise CreditError(f"{held.trajectory.id}: the reward says no {name} of its turns")
                yield from score.signals[name]
            return
        for held in self.held:
            score = held.trajectory.score
            if score is None or name not in score.parts:
                raise CreditError(f"{held.trajectory.id}: neither the run nor its reward gives {name}")
            yield score.parts[name]

    def _segments(self) -> list[Segment]:
        return [segment for held in self.held for segment in held.segments]

    def _logprobs_of(
        self, segments: Sequence[Segment], *, of: Literal["policy", "reference"] = "policy"
    ) -> list[Tensor]:
        assert self._learner is not None
        return self._learner.logprobs(segments, temperature=self.temperature, of=of)

    def _in_order(self, per_segment: Sequence[Tensor]) -> Tensor:
        """[K] or [K, H] of values per segment [A, …], turn by turn."""
        found, begin = [], 0
        for held in self.held:
            mine = per_segment[begin : begin + len(held.segments)]
            begin += len(held.segments)
            if mine:
                found.append(torch.cat(list(mine)).double().cpu()[torch.from_numpy(held.order)])
        return torch.cat(found) if found else torch.empty(0, dtype=torch.float64)

    @property
    def heads(self) -> tuple[str, ...]:
        """What critics foretell."""
        return self._learner.heads if self._learner is not None else ()

    def head(self, name: str) -> Tensor:
        """[K] what a critic's head says in front of each action token."""
        if self._values is None:
            assert self._learner is not None
            said = self._in_order(self._learner.values(self._segments(), temperature=self.temperature))
            self._values = {head: [] for head in self._learner.heads}
            for h, head in enumerate(self._learner.heads):
                self._values[head] = [said[:, h]] if said.ndim == 2 else [said]
        return self._values[name][0]

    def _value(self, name: str) -> Tensor:
        said, where = self.head(name), READ_AT[name.removeprefix("slow_")]
        if where == "every":
            return said
        turn, owner = self["turn"], self["trajectory"]
        found = torch.full((len(owner),), torch.nan, dtype=torch.float64)
        asked = self.asked_at(where)
        found[turn[asked]] = said[asked]
        behind = self[f"last_{name}"]
        for m in reversed(range(len(found))):  # a turn without action tokens is worth what comes behind it
            if found[m].isnan():
                found[m] = found[m + 1] if m + 1 < len(found) and owner[m + 1] == owner[m] else behind[owner[m]]
        return found

    def asked_at(self, where: str) -> Tensor:
        """[K] at which action tokens a critic is asked: the first of each turn, its last, or every one."""
        turn = self["turn"]
        if where == "every":
            return torch.ones_like(turn, dtype=torch.bool)
        if where == "last":
            return last_of(turn)
        found = torch.ones_like(turn, dtype=torch.bool)
        found[1:] = turn[1:] != turn[:-1]
        return found

    def _last_value(self, name: str) -> Tensor:
        """[N] what a head says behind the last turn where a limit cut the episode short; 0 where it was over."""
        if self._last_values is None:
            assert self._learner is not None
            cut = [i for i, held in enumerate(self.held) if held.trajectory.ended.cut_short and len(held)]
            length = self._learner.policy.context_length
            probes = [probe(behind(self.held[i]).ids[: length - 1], (0,)) for i in cut]
            said = self._learner.values(probes, temperature=self.temperature)
            zeros = torch.zeros(len(self.held), dtype=torch.float64)
            self._last_values = {head: zeros.clone() for head in self._learner.heads}
            for i, values in zip(cut, said, strict=True):
                for h, head in enumerate(self._learner.heads):
                    self._last_values[head][i] = values[0, h].double().cpu()
        return self._last_values[name]


_MADE: dict[str, Callable[[Columns], Iterable[float] | Iterable[int] | Tensor]] = {
    "outcomes": lambda c: c._outcomes(),
    "rewards": lambda c: c._rewards(),
    "group": lambda c: c._group(),
    "action_keys": lambda c: c._action_keys(),
    "draws": lambda c: c._draws(),
    "covariance_rank": lambda c: c._covariance_rank(),
    "lengths": lambda c: (len(held) for held in c.held),
    "greedy_rewards": lambda c: c._greedy_rewards(),
    "roles": lambda c: c._roles(),
    "hardness": lambda c: c._hardness(),
    "cut_short": lambda c: c._cut_short(),
    "replayed": lambda c: (float("replayed" in held.trajectory.marks) for held in c.held),
    "trajectory": lambda c: (i for i, _, _ in c._turns()),
    "turn_index": lambda c: (t for _, _, t in c._turns()),
    "process_rewards": lambda c: c._process_rewards(),
    "turn_rewards": lambda c: c._turn_rewards(),
    "state_keys": lambda c: c._state_keys(),
    "nodes": lambda c: c._nodes(),
    "turn_entropies": lambda c: c._turn_entropies(),
    "grounded": lambda c: c._grounded(),
    "void": lambda c: c._void(),
    "answer_beliefs": lambda c: c._answer_beliefs(),
    "implicit": lambda c: c._implicit(),
    "turn": lambda c: c._turn(),
    "token_trajectory": lambda c: c._token_trajectory(),
    "token_rewards": lambda c: c._token_rewards(),
    "entropies": lambda c: c._written(lambda tokens: tokens.entropies),
    "sampler_logprobs": lambda c: c._written(lambda tokens: tokens.logprobs),
    "call_tokens": lambda c: c._call_tokens(),
    "old_logprobs": lambda c: c._old_logprobs(),
    "reference_logprobs": lambda c: c._reference_logprobs(),
    "model_logprobs": lambda c: c._model_logprobs(),
}


MADE_BY_THE_RUN = frozenset(_MADE) - {"process_rewards"}
"""Columns that need nothing of a reward; some need another part of the recipe (`needs.py`)."""


def with_advantages(segment: Segment, advantages: Tensor) -> Segment:
    """A segment with its credit, [T]."""
    return replace(segment, advantages=tuple(advantages.tolist()))
