"""A task is the same in every process: sets of strings have one order in processes of environments."""

import asyncio
import json
import os
import subprocess
import sys

import pytest

from whetstone.environments import GameEnvironment, GameObservation
from whetstone.environments.dependencies import require_package
from whetstone.environments.external_agent import ExternalAgent
from whetstone.environments.remote import verifiers
from whetstone.errors import EpisodeError
from whetstone.trajectory import Task

DATASETS = [
    "isomorphic_strings", "knight_swap", "list_functions", "polynomial_multiplication", "ransom_note", "word_ladder",
]  # fmt: skip
"""Generators that choose from a set of strings, or use the shared random generator."""
CODE = """
import hashlib, json, sys, warnings
warnings.simplefilter("ignore")
from whetstone.environments.adapters.reasoning_gym import load_question
asked = []
for name, options, seeds in json.loads(sys.argv[1]):
    for seed in range(seeds):
        try:
            entry = load_question(name, seed, json.dumps(options)).entry
            text = f"{entry['question']}{entry['answer']}"
        except Exception as error:
            text = str(error)
        asked.append([name, seed, hashlib.sha1(text.encode()).hexdigest()])
print(json.dumps(asked))
"""


def needs_reasoning_gym():
    need = require_package("reasoning_gym", "reasoning")
    if not need.is_installed:
        pytest.skip(f"{need.name} is not installed: {need.command}")


def in_process(code, *arguments, seed):
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
    command = [sys.executable, "-c", code, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return json.loads(ran.stdout.splitlines()[-1].lstrip("."))  # some generators print dots


@pytest.mark.slow
def test_a_seed_of_reasoning_gym_is_one_question_in_every_process():
    needs_reasoning_gym()
    crossed = {"allow_cross_variable_product": True}
    every = {**crossed, "allow_multivariate_polynomials": True}
    requests = [(name, {}, 4) for name in DATASETS]
    requests += [("polynomial_multiplication", options, 3) for options in (crossed, every)]
    first, second = (in_process(CODE, json.dumps(requests), seed=seed) for seed in ("1", "2"))
    assert first == second


@pytest.mark.slow
def test_every_generator_of_reasoning_gym_asks_the_same_in_every_process():
    needs_reasoning_gym()
    from reasoning_gym.factory import DATASETS as every

    requests = [(name, {}, 2) for name in sorted(every) if name != "composite"]
    first, second = (in_process(CODE, json.dumps(requests), seed=seed) for seed in ("1", "2"))
    assert len(first) > 150
    assert first == second


class Hashes:
    """Shows the order of a set of strings."""

    def begin(self, task, seed):
        return GameObservation(" ".join({"tea", "rice", "salt", "oil", "soap", "milk", "flour", "beans"}))

    def act(self, command):
        return GameObservation(str(hash("tea")), terminated=True)

    def verdict(self):
        return {"success": True}

    def close(self):
        pass


WORDS = 'import json; print(json.dumps(" ".join({"tea", "rice", "salt", "oil", "soap", "milk", "flour", "beans"})))'


def test_a_process_of_an_environment_has_one_order_of_strings():
    async def opening():
        environment = GameEnvironment(Hashes, actions="text", isolation="process")
        seen = await environment.reset(Task("t", "?"), seed=0)
        await environment.close()
        return seen.messages[-1].text

    assert in_process(WORDS, seed="0") in asyncio.run(opening())


def test_a_process_of_verifiers_has_one_order_of_strings(tmp_path, monkeypatch):
    bridge = tmp_path / "bridge.py"
    bridge.write_text(
        'import json\nprint(json.dumps({"tasks": [{"id": str(hash("tea")), "prompt": "?", "key": "k"}]}), flush=True)\n'
    )
    monkeypatch.setattr(verifiers, "_BRIDGE", bridge)
    (task,) = verifiers.VerifiersTasks(taskset="x", held_out_fraction=1.0).held_out(1)
    assert task.id == str(in_process("print(hash('tea'))", seed="0"))


def test_a_process_of_an_agent_has_one_order_of_strings():
    async def last_line():
        environment = ExternalAgent(command=[sys.executable, "-c", "print(hash('tea'))"])
        with pytest.raises(EpisodeError, match="the agent ended without a request to its model"):
            await environment.reset(Task("t", "?"), seed=0)
        await environment.close()
        return environment.final["answer"]

    assert asyncio.run(last_line()) == str(in_process("print(hash('tea'))", seed="0"))
