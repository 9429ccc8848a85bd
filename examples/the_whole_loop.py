"""The training loop from its components: sampling, reward, advantage, update, weight sync.

python examples/the_whole_loop.py [STEPS]
"""

import asyncio
import sys
from collections.abc import Iterator
from itertools import count, islice

from whetstone.algorithms import ADVANTAGES, OBJECTIVES
from whetstone.chat import Chat
from whetstone.chat.formats import Compact
from whetstone.environments import ToolEnvironment
from whetstone.inference import LocalEngine, Sampling, sync_weights
from whetstone.learning.credit_assignment import CreditParts
from whetstone.learning.learner import LocalLearner
from whetstone.learning.loss_expansion import expand_loss_terms
from whetstone.learning.model_trainer import ModelTrainer
from whetstone.learning.spec import LearningSpec, UpdateBatch
from whetstone.policies import build_tiny
from whetstone.recipe import ReinforcementSettings
from whetstone.rollout import Collector, EpisodeLimits, Independent, PolicyActor, make_plans
from whetstone.trajectory import Score, Task, Trajectory


def tasks() -> Iterator[Task]:
    """Yield prompts endlessly."""
    return (Task(f"question-{n}", f"Say something about {n % 7}.") for n in count())


async def reward(trajectory: Trajectory, task: Task) -> Score:
    """Return a higher reward for a shorter response, which even a randomly initialized model can learn."""
    return Score(1.0 - trajectory.action_tokens / 16)


async def main(steps: int = 20, tasks_per_step: int = 4) -> list[float]:
    """Train and return the mean reward of each step."""
    policy = build_tiny([task.prompt for task in islice(tasks(), 50)], hidden=32, heads=2, layers=1, intermediate=48)
    chat = Chat(policy.tokenizer, Compact())
    engine = LocalEngine(policy.model, context_length=policy.context_length, detokenize=policy.tokenizer.decode)
    settings = ReinforcementSettings(steps=steps, tasks_per_step=tasks_per_step, learning_rate=1e-2)
    terms = expand_loss_terms(settings, OBJECTIVES["clipped"])
    spec = LearningSpec(settings, CreditParts(ADVANTAGES["group_relative"]), terms)
    learner = LocalLearner(ModelTrainer(policy, settings), spec)
    collector = Collector(
        environment=ToolEnvironment,
        actor=PolicyActor(engine, Sampling(max_new_tokens=16), chat.stop_ids),
        chat=chat,
        reward=reward,
        limits=EpisodeLimits(max_turns=1, context_length=policy.context_length, timeout_seconds=60.0),
        max_in_flight=64,
    )
    source, means = tasks(), []
    for step in range(steps):
        plans = make_plans(islice(source, tasks_per_step), seed=step)
        groups = [group async for group in collector.groups(plans, Independent(group_size=8))]  # sampled and scored
        result = learner.update(UpdateBatch(tuple(groups), version=step))  # advantages, loss, gradient, optimizer step
        learner.end_step()
        await sync_weights(learner.weights(), engine, step + 1)
        rewards = [reward for group in groups for reward in group.rewards]
        means.append(sum(rewards) / len(rewards))
        print(f"step {step + 1:>3}  reward {means[-1]:.3f}  entropy {result.metrics['policy/entropy']:.2f}")
    await engine.close()
    return means


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
