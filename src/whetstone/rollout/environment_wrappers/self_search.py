"""Environment wrapper in which the policy itself writes search results, so that training needs no search engine.

    search(query) → request for the page → the policy's own page → request to continue → …

Note:
    The policy's pages may be wrong, and no index corrects them. Evaluations use the real search.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from whetstone.capabilities import implements_protocol
from whetstone.chat import Message, ToolCall, tool_result, user
from whetstone.environments import Environment, Observation, StepResult
from whetstone.environments.protocol import HoldsTools
from whetstone.errors import RecipeError, did_you_mean
from whetstone.provenance import Provenance
from whetstone.rollout.environment_wrappers.delegating_wrapper import EnvironmentProxy
from whetstone.rollout.protocol import RewardCallback
from whetstone.trajectory import CallRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfSearch:
    """Lets the policy write the results of one tool in training; evaluations execute the tool (SSRL).

    After a call of the tool the policy receives a request to write the result. Its next message without a call is the
    result. It is trained like all messages of the policy, and uses a turn. Calls of other tools in the same turn are
    refused with a message.

    Source: Fan et al. 2025 (SSRL), arXiv:2508.10874, whose policy writes query and page in one turn, and whose reward
    includes the format; here they are two turns, and the reward is the recipe's.
    """

    tool: str = "search"
    """Name of the tool whose calls are not executed."""
    ask: str = "Nothing is looked up here. Write what a page on this would say, from what you know: {query}"
    """Tool result of such a call; `{query}` is replaced by the query."""
    go_on: str = "Go on with that."
    """User message after the page that the policy wrote."""

    @property
    def at_evaluation(self) -> bool:
        """Return False: evaluations execute the real tool."""
        return False

    def __call__(self, environment: Environment, judge: RewardCallback, /) -> Environment:
        """Wrap the environment of an episode; see `EnvironmentWrapper.__call__`.

        Raises:
            RecipeError: If there is no such tool.
        """
        if implements_protocol(environment, HoldsTools):
            names = [spec.name for spec in environment.toolset.specs]
            if self.tool not in names:
                raise RecipeError(f'self_search: there is no tool "{self.tool}"{did_you_mean(self.tool, names)}')
        return _Knows(environment, judge, self)


class _Knows(EnvironmentProxy):
    provenance = Provenance.IMAGINED

    def __init__(self, environment: Environment, judge: RewardCallback, how: SelfSearch) -> None:
        super().__init__(environment, judge)
        self.how, self.writing = how, False

    async def step(self, action: Message) -> StepResult:
        writing, self.writing = self.writing, False
        if any(call.name == self.how.tool for call in action.tool_calls):
            self.actions.append(action)
            self.writing = True
            results = tuple(tool_result(self._answer(call), call_id=call.id or None) for call in action.tool_calls)
            records = tuple(CallRecord(call.name, self._outcome(call), 0.0) for call in action.tool_calls)
            return StepResult(Observation(results), calls=records)
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
