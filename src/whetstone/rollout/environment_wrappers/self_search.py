"""A search that costs nothing while one trains: the policy writes what would be found, from what it knows.

    search(query) → "write what is found on …" → the policy's own page → "go on" → …

Easy to get wrong: what the policy wrote may be wrong, and no index says so. Evaluations search for real.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from whetstone.chat import Message, ToolCall, tool_result, user
from whetstone.contracts import fulfils
from whetstone.environments import Environment, Observation, StepResult
from whetstone.environments.protocol import HoldsTools
from whetstone.errors import RecipeError, did_you_mean
from whetstone.provenance import Provenance
from whetstone.rollout.environment_wrappers.answering import Answering
from whetstone.rollout.protocol import Judge
from whetstone.trajectory import CallRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfSearch:
    """Calls of one tool are answered by the policy itself in training, by the tool in evaluations (SSRL).

    A call of it asks the policy for what it would find; its next words without a call are that, trained like all it
    says, and cost a turn. Calls of other tools beside it in the same turn are not carried out, and told so.

    Source: Fan et al. 2025 (SSRL), arXiv:2508.10874, whose policy writes query and page in one go, and whose reward
        pays the form beside the answer; here they are two turns, and the reward is the recipe's.
    """

    tool: str = "search"
    """Whose calls are not carried out."""
    ask: str = "Nothing is looked up here. Write what a page on this would say, from what you know: {query}"
    """What such a call is answered; `{query}` is what was asked for."""
    go_on: str = "Go on with that."
    """What the page is answered."""

    @property
    def at_evaluation(self) -> bool:
        """What was learned without an index is to do with one."""
        return False

    def __call__(self, environment: Environment, judge: Judge, /) -> Environment:
        """See `EnvironmentWrapper`.

        Raises:
            RecipeError: There is no such tool.
        """
        if fulfils(environment, HoldsTools):
            names = [spec.name for spec in environment.toolset.specs]
            if self.tool not in names:
                raise RecipeError(f'self_search: there is no tool "{self.tool}"{did_you_mean(self.tool, names)}')
        return _Knows(environment, judge, self)


class _Knows(Answering):
    provenance = Provenance.IMAGINED

    def __init__(self, environment: Environment, judge: Judge, how: SelfSearch) -> None:
        super().__init__(environment, judge)
        self.how, self.writing = how, False

    async def step(self, action: Message) -> StepResult:
        writing, self.writing = self.writing, False
        if any(call.name == self.how.tool for call in action.tool_calls):
            self.actions.append(action)
            self.writing = True
            said = tuple(tool_result(self._answer(call), call_id=call.id or None) for call in action.tool_calls)
            records = tuple(CallRecord(call.name, self._outcome(call), 0.0) for call in action.tool_calls)
            return StepResult(Observation(said), calls=records)
        if writing and not action.tool_calls and not action.malformed:
            self.actions.append(action)
            return StepResult(Observation((user(self.how.go_on),)))
        return await super().step(action)

    def _outcome(self, call: ToolCall) -> str:
        return "ok" if call.name == self.how.tool else "refused_by_policy"

    def _answer(self, call: ToolCall) -> str:
        if call.name != self.how.tool:
            return f"not carried out: call nothing else beside {self.how.tool}"
        try:
            read = json.loads(call.arguments)
        except ValueError:
            read = call.arguments
        query = " ".join(map(str, read.values())) if isinstance(read, dict) else str(read)
        return self.how.ask.replace("{query}", query)
