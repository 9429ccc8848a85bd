"""Registry of environments by their names in recipes, and of the tasks that belong to them.

A name in both `ENVIRONMENTS` and `TASKS_OF_WORLDS` is used for both: `tasks: {source: sokoban}`, `environment: {name:
sokoban}`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

from whetstone.environments.adapters.gymnasium import Gymnasium, GymnasiumTasks
from whetstone.environments.adapters.jericho import Jericho
from whetstone.environments.adapters.openspiel import OpenSpiel, OpenSpielTasks
from whetstone.environments.adapters.pettingzoo import PettingZooTasks, play_pettingzoo
from whetstone.environments.adapters.reasoning_gym import ReasoningGym, ReasoningGymTasks
from whetstone.environments.adapters.scienceworld import ScienceWorld, ScienceWorldTasks
from whetstone.environments.adapters.textarena import TextArena, TextArenaTasks
from whetstone.environments.adapters.textworld import TextWorld, TextWorldTasks
from whetstone.environments.advisor import Advised
from whetstone.environments.bfcl import BfclConversation, ConversationTasks, Memory, MemoryTasks
from whetstone.environments.built_in.adventure import Adventure, AdventureTasks
from whetstone.environments.built_in.apis import ApisTasks, Services
from whetstone.environments.built_in.bargaining import DealingTasks, bargaining
from whetstone.environments.built_in.battleship import Battleship, BattleshipTasks
from whetstone.environments.built_in.bug_repair import BugRepairTasks, HiddenTests
from whetstone.environments.built_in.chores import ChoresTasks, FolderCheck
from whetstone.environments.built_in.frozen_lake import FrozenLake, FrozenLakeTasks
from whetstone.environments.built_in.household import Household, HouseholdTasks
from whetstone.environments.built_in.knapsack import Knapsack, KnapsackTasks
from whetstone.environments.built_in.multi_hop_search import Encyclopaedia, EncyclopaediaTasks
from whetstone.environments.built_in.negotiation import Negotiation, NegotiationTasks
from whetstone.environments.built_in.sokoban import Sokoban, SokobanTasks
from whetstone.environments.built_in.support import SupportDesk, SupportTasks, SupportUser
from whetstone.environments.built_in.table_qa import TablesTasks
from whetstone.environments.built_in.text_to_sql import TextToSqlTasks
from whetstone.environments.built_in.twenty_questions import TwentyQuestions, TwentyQuestionsTasks
from whetstone.environments.built_in.web_pages import WebPages, WebPagesTasks
from whetstone.environments.built_in.web_shop import WebShop, WebShopTasks
from whetstone.environments.built_in.wordle import Wordle, WordleTasks
from whetstone.environments.external_agent import ExternalAgent
from whetstone.environments.function_calls import FunctionCallEnvironment
from whetstone.environments.harbor.harbor_environment import HarborEnvironment
from whetstone.environments.harbor.harbor_tasks import HarborTasks
from whetstone.environments.planner import Planner
from whetstone.environments.remote.agentgym import AgentGym
from whetstone.environments.remote.environment_client import Remote, RemoteTasks
from whetstone.environments.remote.nemo_gym import NemoGym, NemoGymTasks
from whetstone.environments.remote.openenv import OpenEnv
from whetstone.environments.remote.verifiers import Verifiers, VerifiersTasks
from whetstone.environments.remote.verifiers_harness import VerifiersHarness
from whetstone.environments.tau2 import (
    AirlineDesk,
    AirlineTasks,
    Caller,
    Desk,
    RetailDesk,
    RetailTasks,
    TelecomDesk,
    TelecomTasks,
)
from whetstone.environments.tool_environment import ToolEnvironment
from whetstone.environments.user_simulators import Requests, ScenarioUser
from whetstone.errors import RecipeError
from whetstone.plugins import get_component_options
from whetstone.tools import Files, Python, Shell, Sql


def make_tau2_factory(
    desk: type[Desk], *, policies: Sequence[str] = ("policy.md",), customer: Any = ScenarioUser
) -> Callable[..., ToolEnvironment]:
    """Return the environment factory of a domain of tau2-bench.

    Args:
        desk: Class with the database and the tools of the domain.
        policies: Names of the files of the domain's policy; if there are several, each is enclosed in a tag of its
            name.
        customer: Simulated customer, unless a recipe names another.
    """

    def environment(
        *, path: str, policy: bool = True, user: Any = None, max_result_characters: int = 4000
    ) -> ToolEnvironment:
        """Create an environment of a domain of tau2-bench, over the folder with its data.

        Args:
            path: The folder with the database, the policy and the tasks.
            policy: Show the policy of the domain to the agent.
            user: Simulated customer; none: a script.
            max_result_characters: Maximum length of a tool result; longer results keep their head and tail.

        Raises:
            RecipeError: If a file is missing.
        """
        return ToolEnvironment(
            tools=[partial(desk, path=path)],
            instruction=_policy(Path(path), policies) if policy else "",
            max_result_characters=max_result_characters,
            user=user or customer,
        )

    return environment


def _policy(folder: Path, names: Sequence[str]) -> str:
    """Return the text of the policy of a tau2-bench domain.

    Raises:
        RecipeError: If a file is missing.
    """
    for name in names:
        if not (folder / name).is_file():
            raise RecipeError(
                f"{folder / name}: no such file; set path to a domain's folder of tau2-bench, or policy: false"
            )
    texts = [(folder / name).read_text(encoding="utf-8") for name in names]
    if len(texts) == 1:
        return texts[0]
    tags = [Path(name).stem for name in names]
    return "\n".join(f"<{tag}>\n{text}\n</{tag}>" for tag, text in zip(tags, texts, strict=True))


def make_tools_factory(*own: Any, user: Any = None) -> Callable[..., ToolEnvironment]:
    """Return the factory of a `ToolEnvironment` with fixed tools.

    The tools of the recipe follow the fixed tools.

    Args:
        own: The fixed tools.
        user: Simulated user, unless a recipe names another.
    """

    def environment(*, tools: Sequence[Any] = (), **options: Any) -> ToolEnvironment:
        return ToolEnvironment(tools=[*own, *tools], **{"user": user, **options})

    known = get_component_options(ToolEnvironment)
    environment.__signature__ = inspect.Signature([*known.values()])  # type: ignore[attr-defined]
    environment.__annotations__ = get_type_hints(ToolEnvironment.__init__)
    return environment


ENVIRONMENTS: dict[str, Any] = {
    "advisor": Advised,
    "agent": ExternalAgent,
    "planner": Planner,
    "tools": ToolEnvironment,
    # games: one command per turn
    "adventure": Adventure,
    "battleship": Battleship,
    "frozen_lake": FrozenLake,
    "household": Household,
    "negotiation": Negotiation,
    "sokoban": Sokoban,
    "twenty_questions": TwentyQuestions,
    "web_pages": WebPages,
    "web_shop": WebShop,
    "wordle": Wordle,
    # games with several seats
    "bargaining": bargaining,
    # games of other packages
    "gymnasium": Gymnasium,
    "jericho": Jericho,
    "openspiel": OpenSpiel,
    "pettingzoo": play_pettingzoo,
    "reasoning_gym": ReasoningGym,
    "scienceworld": ScienceWorld,
    "textarena": TextArena,
    "textworld": TextWorld,
    # servers
    "agentgym": AgentGym,
    "nemo_gym": NemoGym,
    "openenv": OpenEnv,
    "remote": Remote,
    "verifiers": Verifiers,
    "verifiers_harness": VerifiersHarness,
    # tools over the state of a task
    "airline": make_tau2_factory(AirlineDesk),
    "apis": make_tools_factory(Services, user=Requests),
    "bfcl_memory": Memory,
    "bfcl_multi_turn": BfclConversation,
    "bug_repair": make_tools_factory(Files, Shell, HiddenTests),
    "chores": make_tools_factory(Shell, FolderCheck),
    "function_calls": FunctionCallEnvironment,
    "harbor": HarborEnvironment,
    "multi_hop_search": make_tools_factory(Encyclopaedia),
    "knapsack": make_tools_factory(Knapsack),
    "retail": make_tau2_factory(RetailDesk),
    "support": make_tools_factory(SupportDesk, user=SupportUser),
    "tables": make_tools_factory(Python),
    "telecom": make_tau2_factory(TelecomDesk, policies=("main_policy.md", "tech_support_manual.md"), customer=Caller),
    "text_to_sql": make_tools_factory(partial(Sql, url="task")),
}
"""Environments and games by their name in a recipe (`environment.name`)."""
REWARD_OF = {
    "airline": "tau2",
    "multi_hop_search": "exact_match",
    "function_calls": "bfcl",
    "retail": "tau2",
    "tables": "exact_number",
    "telecom": "tau2",
    "text_to_sql": "exact_match",
}
"""Default reward of an environment, if it is not the environment's verdict."""
TASKS_OF_WORLDS: dict[str, Any] = {
    "adventure": AdventureTasks,
    "airline": AirlineTasks,
    "apis": ApisTasks,
    "battleship": BattleshipTasks,
    "bfcl_memory": MemoryTasks,
    "bfcl_multi_turn": ConversationTasks,
    "bug_repair": BugRepairTasks,
    "chores": ChoresTasks,
    "bargaining": DealingTasks,
    "multi_hop_search": EncyclopaediaTasks,
    "frozen_lake": FrozenLakeTasks,
    "gymnasium": GymnasiumTasks,
    "harbor": HarborTasks,
    "household": HouseholdTasks,
    "knapsack": KnapsackTasks,
    "negotiation": NegotiationTasks,
    "nemo_gym": NemoGymTasks,
    "openspiel": OpenSpielTasks,
    "pettingzoo": PettingZooTasks,
    "reasoning_gym": ReasoningGymTasks,
    "remote": RemoteTasks,
    "retail": RetailTasks,
    "scienceworld": ScienceWorldTasks,
    "sokoban": SokobanTasks,
    "support": SupportTasks,
    "tables": TablesTasks,
    "telecom": TelecomTasks,
    "text_to_sql": TextToSqlTasks,
    "textarena": TextArenaTasks,
    "textworld": TextWorldTasks,
    "twenty_questions": TwentyQuestionsTasks,
    "verifiers": VerifiersTasks,
    "web_pages": WebPagesTasks,
    "web_shop": WebShopTasks,
    "wordle": WordleTasks,
}
"""Task sources that belong to an environment, by their name in a recipe (`tasks.source`)."""
