"""Adapter for Whetstone: plays a scenario with `whetstone.training.train`."""

from __future__ import annotations

import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from conformance_suite.scenario import Recorder, Scenario
from whetstone.inference.local_engine import LocalEngine
from whetstone.learning import learner
from whetstone.learning.learner import LocalLearner
from whetstone.learning.model_trainer import ModelTrainer
from whetstone.policies import has_adapters, without_adapters
from whetstone.reporting import Progress
from whetstone.training import train
from whetstone.trajectory import Score, Task, Trajectory

RECORDER: Recorder


def look_up(key: str) -> str:
    """Look up a key.

    Args:
        key: The key.
    """
    return RECORDER.look_up(key)


async def judge(trajectory: Trajectory, task: Task) -> Score:
    """Return the reward of the scenario; episodes of evaluations have no faults."""
    if not trajectory.id.startswith("group-"):
        return Score(0.0)
    results = [message.text for turn in trajectory.turns for message in turn.observation if message.role == "tool"]
    value = RECORDER.judge(trajectory.final_text, results)
    return Score(value) if value is not None else Score.unknown("the judge does not answer")


def build_recipe(scenario: Scenario) -> dict[str, Any]:
    """Return the recipe of a scenario."""
    world, steps = Path(scenario.world), scenario.updates // scenario.updates_per_batch
    optimizer = {
        "steps": steps,
        "learning_rate": scenario.learning_rate,
        "warmup_fraction": 0,
        "checkpoint_interval_steps": 1,
        "keep_last": 100,
    }
    recipe: dict[str, Any] = {
        "seed": scenario.seed,
        "policy": {"path": scenario.model, "dtype": "float32", "device": "cpu"},
        "tasks": {"source": "jsonl", "path": str(world / "tasks.jsonl"), "held_out_fraction": 0.02},
        "environment": {"max_turns": 2 if scenario.tool else 1, "tools": []},
        "reward": "conformance_suite.whetstone_adapter:judge",
        "evaluation": {"episodes": 1},
    }
    if scenario.tool:
        recipe["environment"] |= {
            "tools": ["conformance_suite.whetstone_adapter:look_up"],
            "tool_timeout_seconds": 2,
            "effects": {"look_up": "read"},
        }
    if scenario.lora_rank:
        recipe["policy"]["lora"] = {"rank": scenario.lora_rank, "alpha": 2.0 * scenario.lora_rank}
    if scenario.processes > 1:
        recipe["scale"] = {"learner_processes": scenario.processes}
    if scenario.stage == "supervised":
        recipe["supervised"] = {**optimizer, "data": str(world / "chats.jsonl"), "batch_size": 4}
        return recipe
    recipe["rollout"] = {"group_size": scenario.group_size, "max_new_tokens": scenario.max_turn_tokens}
    tasks = scenario.tasks_per_update * scenario.updates_per_batch
    recipe["reinforcement"] = {**optimizer, "tasks_per_step": tasks, "minibatches": scenario.updates_per_batch}
    return recipe


def observe(recorder: Recorder) -> None:
    """Record generations, sequences and weights of the running process."""
    scenario = recorder.scenario
    observed: Any = learner
    generate, split, step = LocalEngine.generate, observed.split_minibatches, ModelTrainer.step
    imitate, num_updates = LocalLearner.imitate, 0

    async def generate_recorded(self: Any, request: Any) -> Any:
        generation = await generate(self, request)
        if request.episode.startswith("group-"):
            recorder.sampled(request.prompt.ids, generation.tokens)
        return generation

    def split_recorded(spec: Any, trainer: Any, *rest: Any, **options: Any) -> Any:
        minibatches = split(spec, trainer, *rest, **options)
        first = trainer.optimizers.done * scenario.updates_per_batch
        for number, minibatch in enumerate(minibatches):
            for segment in minibatch.segments:
                advantage = max(segment.advantages or (0.0,), key=abs)
                task = segment.trajectory_id.partition("/")[2].rpartition("#")[0]
                record = (first + number, segment.tokens.ids, segment.action_mask)
                recorder.trained(*record, advantage=advantage, task=task)
        return minibatches

    def imitate_recorded(self: Any, segments: Any) -> Any:
        for segment in segments:
            recorder.trained(self.trainer.optimizers.done, segment.tokens.ids, segment.action_mask)
        return imitate(self, segments)

    def step_recorded(self: Any, *rest: Any, **options: Any) -> Any:
        nonlocal num_updates
        done = self.optimizers.done * scenario.updates_per_batch
        if done == 0 and num_updates == 0:
            record_weights(self, 0)
        report = step(self, *rest, **options)
        num_updates += 1
        record_weights(self, done + (num_updates - 1) % scenario.updates_per_batch + 1)
        time.sleep(scenario.seconds_per_update)
        return report

    def record_weights(trainer: Any, updates: int) -> None:
        model = trainer.policy.model
        merged = without_adapters(model, merge=True) if has_adapters(model) else model
        recorder.weights(updates, dict(merged.named_parameters()))

    observed.split_minibatches = split_recorded
    LocalEngine.generate = generate_recorded  # type: ignore[method-assign]
    LocalLearner.imitate, ModelTrainer.step = imitate_recorded, step_recorded  # type: ignore[method-assign]


def main(path: str) -> None:
    """Play the scenario in a file."""
    global RECORDER
    scenario = Scenario.load(path)
    RECORDER = sys.modules["conformance_suite.whetstone_adapter"].RECORDER = Recorder(scenario)  # type: ignore[attr-defined]
    RECORDER.trainer("Whetstone", version("whetstone-rl"))
    observe(RECORDER)
    train(build_recipe(scenario), Path(scenario.out) / "run", resume=scenario.resume, progress=Progress(quiet=True))


if __name__ == "__main__":
    sys.modules["conformance_suite.whetstone_adapter"] = sys.modules["__main__"]
    main(sys.argv[1])
