"""Mistakes of users who know TRL, verl or OpenRLHF, on the command line: each message names the key and the remedy."""

import json

import pytest

from support.cli import whetstone

SHOP = '''
import torch
from whetstone.algorithms import TokenLoss
from whetstone.trajectory import Score

PRICES = {"tea": 4, "rice": 7, "salt": 2, "fish": 9}

def price(item: str) -> int:
    """Price of an item in coins."""
    return PRICES[item]

def bare(item: str) -> int:
    return PRICES[item]

def untyped(item):
    """Price of an item in coins."""
    return PRICES[item]

async def number(trajectory, task): return 0.5
async def integer(trajectory, task): return 1
async def boolean(trajectory, task): return False
async def tensor(trajectory, task): return torch.tensor(0.5)
async def nothing(trajectory, task): return None
async def nan(trajectory, task): return float("nan")
async def many(trajectory, task): return [1.0]
def of_trl(completions, answer, **kwargs): return [float(c == str(a)) for c, a in zip(completions, answer)]
def of_verl(data_source, solution_str, ground_truth, extra_info=None): return float(solution_str == str(ground_truth))
def of_nobody(a, b, c): return 1.0
def mean_loss(learner_logprobs, advantages): return TokenLoss(-(learner_logprobs * advantages).mean(), {})
def no_gradient(learner_logprobs, advantages): return TokenLoss(-learner_logprobs.detach() * advantages, {})
'''
RECIPE = """
policy: {tiny: {hidden_size: 16, num_layers: 1, num_heads: 2, intermediate_size: 16}}
chat: {format: compact}
tasks: {source: jsonl, path: shop.jsonl, held_out_fraction: 0.5}
environment: {tools: ["shop:price"], max_turns: 2}
reward: "shop:number"
rollout: {group_size: 2, max_new_tokens: 3}
reinforcement: {steps: 1, tasks_per_step: 2}
"""
ITEMS = ("tea", "rice", "salt", "fish")
ENDPOINT = "{name: endpoint, url: 'http://127.0.0.1:9/v1', model: m, max_attempts: 1}"
JUDGE = f"{{name: rules, rules: [Be right.], judge: {ENDPOINT}}}"


@pytest.fixture
def shop(tmp_path):
    rows = [{"prompt": f"Price of {item}", "answer": 4} for item in ITEMS]
    talks = [{**row, "prompt": [{"role": "system", "content": "Be short."}, {"role": "user", "content": row["prompt"]}]}
             for row in rows]  # fmt: skip
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "shop.yaml").write_text(RECIPE)
    (tmp_path / "shop.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "talks.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in talks))
    (tmp_path / "empty.jsonl").write_text("")
    return tmp_path


def last_line(done):
    return done.stderr.strip().splitlines()[-1]


REFUSED = [
    ("learning_rate=1e-5", "learning_rate: no such key; set reinforcement.learning_rate=1e-05"),
    ("num_generations=8", "num_generations: no such key; set rollout.group_size=8 (num_generations of TRL)"),
    ("beta=0.04", "set reinforcement.reference_kl=0.04, reinforcement.reference_estimator=k3 (beta of TRL)"),
    ("max_completion_length=64", "set rollout.max_new_tokens=64 (max_completion_length of TRL)"),
    ("per_device_train_batch_size=8", "set reinforcement.tasks_per_step=4 (per_device_train_batch_size of TRL)"),
    ("kl_coef=0.1", "set reinforcement.reference_kl=0.1 (kl_coef of TRL)"),
    ("clip_range=0.2", "set objective.name=clipped, objective.clip_low=0.2, objective.clip_high=0.2"),
    ("temperature=0.7", "temperature: no such key; set rollout.temperature=0.7"),
    ("advantage=dapo", 'advantage: "dapo" is a method, not an advantage; use with=dapo'),
    ("environment.tools=[shop:untyped]", "tool untyped: parameter item has no type; add a type"),
    ("reward=shop:nothing", "shop:nothing returned None; return a number, or Score(value, success=…)"),
    ("reward=shop:nan", "shop:nan returned nan; return a number"),
    ("reward=shop:many", "shop:many returned [1.0], and a reward scores one episode; return a number"),
    ("reward=shop:of_nobody", 'reward "shop:of_nobody" takes (a, b, c); a reward is async def f(trajectory, task)'),
    ("reward={name: rules, rules: [x], judge: 'shop:number'}", "is not a judge: a class with async def answer"),
    (f"reward={JUDGE}", "the request to the model at http://127.0.0.1:9/v1 failed: ConnectError"),
    ("objective=shop:mean_loss", "8 losses are expected, one per token, got a single one; do not average"),
    ("objective=shop:no_gradient", "the loss has no gradient with respect to learner_logprobs; do not detach it"),
    ("rollout.group_size=1", "set at least 2, or use an advantage without comparison"),
    ("tasks.path=empty.jsonl", "empty.jsonl: the file has no tasks; write one per line"),
    ("tasks.path=shopp.jsonl", 'shopp.jsonl: no such task file (tasks.path); did you mean "shop.jsonl"?'),
]


@pytest.mark.parametrize(("mistake", "message"), REFUSED, ids=[mistake[:40] for mistake, _ in REFUSED])
def test_mistake_is_answered_in_one_line_with_key_and_remedy(shop, impatient, mistake, message):
    done = whetstone("train", "shop.yaml", mistake, cwd=shop)  # a traceback would be raised
    assert done.returncode == 2
    assert message in last_line(done)


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("--steps 5 shop.yaml", "--steps: no such option; keys of a recipe are arguments without dashes: reinf"),
        ("shop.yaml --steps=5", "arguments without dashes: reinforcement.steps=5"),
        ("shop.yaml --max-steps 5", "reinforcement.steps=5 (max_steps of TRL)"),
        ("shop.yaml --beta", "reinforcement.reference_kl, reinforcement.reference_estimator (beta of TRL)"),
        ("shop.yaml --seed 3", "arguments without dashes: seed=3"),
        ("shop.yaml --with dapo", "arguments without dashes: with=dapo"),
        ("shop.yaml --resum", "Did you mean '--resume'?"),
    ],
)  # fmt: skip
def test_key_that_is_written_as_an_option_is_answered_with_the_argument(shop, words, remedy):
    done = whetstone("train", *words.split(), cwd=shop)
    assert done.returncode == 2
    assert remedy in last_line(done)


def test_key_of_trl_in_the_file_is_answered_with_its_line(shop):
    (shop / "shop.yaml").write_text(f"{RECIPE}num_generations: 8\n")
    done = whetstone("train", "shop.yaml", cwd=shop)
    assert "shop.yaml:9  num_generations: no such key; set rollout.group_size=8" in last_line(done)


@pytest.mark.parametrize(
    "accepted",
    [
        "reward=shop:number",
        "reward=shop:integer",
        "reward=shop:boolean",
        "reward=shop:tensor",
        "reward=shop:of_trl",
        "reward=shop:of_verl",
        "tasks.path=talks.jsonl",
    ],
)
def test_values_that_are_meant_are_accepted(shop, accepted):
    done = whetstone("train", "shop.yaml", accepted, "--json", cwd=shop)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)


def test_tool_without_a_docstring_gets_a_warning(shop):
    done = whetstone("train", "shop.yaml", "environment.tools=[shop:bare]", cwd=shop)
    assert done.returncode == 0
    assert "tools without a docstring: bare; add one" in done.stderr
