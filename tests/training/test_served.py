"""A run whose engine is a server in another process: weights are sent to it, tokens returned, and the run trains."""

import asyncio
import json
from functools import partial

import pytest

from support.inference_servers import VLLM, SGLang, delay_weights, ignore_weights, keep_stale_prefixes, served
from whetstone.assembly import run_preflight_checks
from whetstone.assembly.assembly import assemble
from whetstone.errors import RecipeError, WeightSyncError
from whetstone.evaluation.check_result import CheckStatus
from whetstone.inference.engine_check import check_weight_sync
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
def test_tokens_sampled_by_a_server_are_trained_with_the_weights_it_received(tmp_path, small_demo, folder, name, kind):
    with served(kind, folder) as server:
        engine = f"engine={{name: {name}, address: '{server.url}'}}"
        recipe = small_demo(engine, "reward=support.small:alternating", "rollout.group_size=4")
        train(recipe, tmp_path / "run", progress=QUIET)
    learned = [row for row in rows(tmp_path / "run") if row["stage"] == "reinforcement"]
    assert [row["update/skipped_fraction"] for row in learned] == [0.0, 0.0]
    assert all(row["sampler/mismatch_kl"] < 1e-6 for row in learned)
    assert server.loaded > 2


@pytest.mark.parametrize(
    ("break_server", "cause"),
    [
        (ignore_weights, "have no effect"),
        (lambda server: delay_weights(server, requests=2), "are applied late"),
        (keep_stale_prefixes, "a cached prompt has keys of the old weights"),
    ],
)
def test_run_does_not_start_with_a_server_that_does_not_play_the_policy(
    tmp_path, small_demo, folder, monkeypatch, break_server, cause
):
    monkeypatch.setattr("whetstone.inference.engine_check.check_weight_sync", QUICK_CHECK)
    with served(VLLM, folder) as server:
        break_server(server)
        with pytest.raises(
            WeightSyncError, match=rf"^engine: vllm does not sample from the trained policy: weights .*{cause}"
        ):
            train(small_demo(f"engine={{name: vllm, address: '{server.url}'}}"), tmp_path / "run", progress=QUIET)
    assert not list((tmp_path / "run").glob("evaluations/*"))


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [0, 1])
def test_weight_sync_is_checked_at_the_interval_and_stops_the_run(tmp_path, small_demo, folder, monkeypatch, ahead):
    monkeypatch.setattr("whetstone.inference.engine_check.check_weight_sync", QUICK_CHECK)
    with served(SGLang, folder) as server:
        recipe = small_demo(
            f"engine={{name: sglang, address: '{server.url}'}}",
            "supervised=null",
            "reward=support.small:alternating",
            "reinforcement.steps=6",
            "reinforcement.sync_check_interval_steps=2",
            *([f"reinforcement.{key}=1" for key in ("admit_ahead", "max_staleness")] if ahead else []),
        )
        with pytest.raises(WeightSyncError) as raised:
            train(recipe, tmp_path / "run", progress=QUIET, on_metrics=lambda row: break_after(server, row, step=3))
    assert "step 5 of reinforcement: engine: sglang does not sample from the trained policy" in str(raised.value)
    assert "updates since the last check, after step 2, are suspect. The state is in" in str(raised.value)
    learned = [row for row in rows(tmp_path / "run") if row["stage"] == "reinforcement"]
    assert ["time/sync_check" in row for row in learned] == [False, False, True, False]
    # no other request saw the perturbed weights
    assert all(row.get("sampler/mismatch_kl", 0.0) < 1e-6 for row in learned[:3])
    stored = [path.read_text() for path in (tmp_path / "run" / "trajectories").glob("*.jsonl")]
    assert any('"versions"' in text for text in stored)
    assert not any("1000000" in text for text in stored)


def break_after(server, row, *, step):
    if row.get("step") == step:
        ignore_weights(server)


QUICK_CHECK = partial(check_weight_sync, late_seconds=0.5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["reinforcement.deterministic=true", "reinforcement.admit_ahead=1", "reinforcement.max_staleness=1"],
         "requires reproducible sampling by seed, which engine vllm does not support; use engine local"),
        (["rollout.strategy=entropy_branching", "rollout.group_size=4"], "requires entropies of full distributions"),
        (["advantage_transforms=[entropy_modulated]"], "requires entropies of full distributions"),
    ],
)  # fmt: skip
def test_unsupported_features_of_a_server_are_refused_before_sampling(tmp_path, small_demo, changes, message):
    with pytest.raises(RecipeError, match=message):
        train(
            small_demo("engine={name: vllm, address: 'http://127.0.0.1:1'}", *changes), tmp_path / "run", progress=QUIET
        )


def test_missing_address_and_interpreter_are_no_server(tmp_path, small_demo):
    with pytest.raises(RecipeError, match=r"set either `address` \(existing server\) or `python`"):
        train(small_demo("engine=vllm"), tmp_path / "run", progress=QUIET)


@pytest.mark.slow
def test_server_is_checked_before_the_run_uses_it(small_demo, folder):
    async def checks(url):
        # the weights of the policy here, which the fake server loaded from its folder
        return {
            check.name: check
            async for check in run_preflight_checks(small_demo(f"engine={{name: vllm, address: '{url}'}}"))
        }

    with served(VLLM, folder) as server:
        results = asyncio.run(checks(server.url))
    verdicts = {name: check.verdict for name, check in results.items() if name.startswith("engine")}
    assert set(verdicts) == {f"engine: {name}" for name in ("log-probs", "tokenizer", "prefix cache", "weights")}
    assert CheckStatus.FAIL not in verdicts.values(), {name: results[name].said for name in verdicts}
    (unreachable,) = (
        check for check in asyncio.run(checks("http://127.0.0.1:1")).values() if check.name == "engine: log-probs"
    )
    assert unreachable.verdict is CheckStatus.FAIL
