"""A run whose engine is a server of another process: weights go there, tokens come back, and the run learns."""

import asyncio
import json

import pytest

from tests_servers import VLLM, SGLang, served
from whetstone.assembly import preflight
from whetstone.assembly.assembly import assemble
from whetstone.errors import RecipeError
from whetstone.evaluation.checks import CheckStatus
from whetstone.policies import save_policy
from whetstone.reporting import Progress
from whetstone.training import train

QUIET = Progress(quiet=True)


@pytest.fixture
def folder(tmp_path, small_demo):
    path = tmp_path / "policy"
    path.mkdir()
    save_policy(assemble(small_demo("supervised=null")).policy, path)
    return path


def rows(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(("name", "kind"), [("vllm", VLLM), ("sglang", SGLang)])
def test_what_a_server_draws_is_learned_from_with_the_weights_it_was_given(tmp_path, small_demo, folder, name, kind):
    with served(kind, folder) as server:
        engine = f"engine={{name: {name}, address: '{server.url}'}}"
        recipe = small_demo(engine, "reward=tests_small:alternating", "rollout.group_size=4")
        train(recipe, tmp_path / "run", progress=QUIET)
    learned = [row for row in rows(tmp_path / "run") if row["stage"] == "reinforcement"]
    assert [row["update/skipped_fraction"] for row in learned] == [0.0, 0.0]
    assert all(row["sampler/mismatch_kl"] < 1e-6 for row in learned)
    assert server.loaded > 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["reinforcement.deterministic=true", "reinforcement.admit_ahead=1", "reinforcement.max_staleness=1"],
         "needs draws that a seed decides, which engine vllm does not give; engine local does"),
        (["rollout.strategy=entropy_branching", "rollout.group_size=4"], "needs entropies of whole distributions"),
        (["advantage_transforms=[entropy_modulated]"], "needs entropies of whole distributions"),
    ],
)  # fmt: skip
def test_what_it_does_not_give_is_refused_before_anything_is_sampled(tmp_path, small_demo, changes, said):
    with pytest.raises(RecipeError, match=said):
        train(
            small_demo("engine={name: vllm, address: 'http://127.0.0.1:1'}", *changes), tmp_path / "run", progress=QUIET
        )


def test_neither_an_address_nor_an_interpreter_is_no_server(tmp_path, small_demo):
    with pytest.raises(RecipeError, match="either `address`, of a server that is there, or `python`"):
        train(small_demo("engine=vllm"), tmp_path / "run", progress=QUIET)


@pytest.mark.slow
def test_it_is_tried_before_a_run_relies_on_it(small_demo, folder):
    async def checks(url):
        # the weights of the policy here, which the stand-in loaded from its folder
        return {check.name: check async for check in preflight(small_demo(f"engine={{name: vllm, address: '{url}'}}"))}

    with served(VLLM, folder) as server:
        found = asyncio.run(checks(server.url))
    verdicts = {name: check.verdict for name, check in found.items() if name.startswith("engine")}
    assert set(verdicts) == {f"engine: {name}" for name in ("log-probs", "tokenizer", "prefix cache", "weights")}
    assert CheckStatus.FAIL not in verdicts.values(), {name: found[name].said for name in verdicts}
    (gone,) = (
        check for check in asyncio.run(checks("http://127.0.0.1:1")).values() if check.name == "engine: log-probs"
    )
    assert gone.verdict is CheckStatus.FAIL
