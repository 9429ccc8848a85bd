"""A placement plan follows its formulas; impossible plans are refused with their numbers."""

import json

import pytest
from click.testing import CliRunner

from whetstone.cli.plan import plan_command as command
from whetstone.errors import RecipeError
from whetstone.recipe import load_recipe
from whetstone.scaling.placement_plan import best_plan as plan
from whetstone.scaling.plan_hardware import GPUS, MODELS, find_gpu, named_model
from whetstone.scaling.plan_memory import fitting_learner, learner_memory, replica_memory, smallest_replica
from whetstone.scaling.plan_rates import EngineFacts, Rates, engine_rates, learner_rates, read_rates

GIB = 2**30
SMALL = ["reinforcement.tasks_per_step=4", "rollout.group_size=4"]


@pytest.fixture(scope="module")
def resolved():
    return load_recipe("demo", SMALL)


def test_memory_is_counted_per_component(resolved):
    recipe, size = resolved.recipe, MODELS["8b"]
    memory = learner_memory(size, recipe, recipe.reinforcement, 8)
    # the demo trains with Muon, whose states are counted as AdamW's: 4 + 4 + 8 bytes a parameter over 8 GPUs
    assert memory.parts["weights"] == pytest.approx(4 * 8.19e9 / 8 / GIB)
    assert memory.parts["optimiser"] == pytest.approx(8 * 8.19e9 / 8 / GIB)
    assert memory.parts["gathered layers"] == pytest.approx(4 * 8.19e9 / 36 / GIB)
    half = learner_memory(size, recipe, recipe.reinforcement, 16)
    assert half.parts["weights"] == pytest.approx(memory.parts["weights"] / 2)
    key = next(name for name in memory.parts if name.startswith("a pass"))
    assert half.parts[key] == memory.parts[key]  # more GPUs do not allow longer passes
    adapters = load_recipe("demo", [*SMALL, "policy.lora={rank: 16}"]).recipe
    assert learner_memory(size, adapters, adapters.reinforcement, 8).parts["gradients"] < 0.1
    replica = replica_memory(size, GPUS["h100"], 1, 4096)
    assert replica.weights == pytest.approx(2 * 8.19e9 / GIB)
    # 2 · 36 layers · 1,024 keys · 2 bytes per token, of 72 − 15.3 GiB
    assert replica.sequences == int((72 - replica.weights) * GIB / (2 * 36 * 1024 * 2 * 4096))


def test_model_is_sharded_over_the_fewest_gpus_that_hold_it(resolved):
    assert smallest_replica(MODELS["8b"], GPUS["h100"], 64, 4096).tensor_parallel == 1
    assert smallest_replica(MODELS["70b"], GPUS["h100"], 64, 4096).tensor_parallel == 4
    with pytest.raises(RecipeError, match=r"405 billion parameters fit on no replica: over 8 l40s"):
        smallest_replica(MODELS["405b"], GPUS["l40s"], 64, 4096)
    recipe = resolved.recipe
    placement, settings = fitting_learner(MODELS["8b"], recipe, recipe.reinforcement, GPUS["h100"], 64)
    assert settings.activation_checkpointing
    assert placement.total <= 72
    assert learner_memory(MODELS["8b"], recipe, settings, placement.gpus - 1).total > 72
    with pytest.raises(RecipeError, match=r"70\.6 billion parameters cannot be trained on 4 rtx-4090: each would hold"):
        fitting_learner(MODELS["70b"], recipe, recipe.reinforcement, GPUS["rtx-4090"], 4)


def test_rates_follow_their_formulas(resolved):
    size, gpu = MODELS["8b"], GPUS["h100"]
    one = engine_rates(EngineFacts(), size, gpu, tensor_parallel=1, sequences=1000, context=4096)
    assert one.step_seconds == pytest.approx(2 * 8.19e9 / (3350e9 * 0.7))
    assert one.prefill_seconds_per_token == pytest.approx(2 * 8.19e9 / (989e12 * 0.5))
    assert one.max_sequences == 256
    facts = EngineFacts(step_seconds=0.5, max_sequences=8)
    measured = engine_rates(facts, size, gpu, tensor_parallel=1, sequences=1000, context=4096)
    assert (measured.step_seconds, measured.max_sequences) == (0.5, 8)
    settings = resolved.recipe.reinforcement
    about = {"learners": 8, "travel": size.parameters, "trained": size.parameters, "tensor_parallel": 1}
    learner = learner_rates(Rates(), size, gpu, settings, context=2000, **about)
    operations = 6 * 8.19e9 + 6 * 36 * 4096 * 2000
    assert learner.seconds_per_token == pytest.approx(operations / (8 * 989e12 * 0.4))
    assert learner.transfer_seconds == pytest.approx(0.5 + 2 * 8.19e9 / (50e9 * 0.8))
    pairs = learner_rates(Rates(), size, gpu, settings, context=2000, together=2, **about)
    sent = 7 * 36 * 4096 * 2 * 2 * (2 - 1) / 2  # bytes per token, by each of a pair, of which there are four
    assert pairs.seconds_per_token - learner.seconds_per_token == pytest.approx(sent / (4 * 50e9 * 0.8))


def test_plan_uses_all_gpus_and_is_the_best(resolved):
    best_plan = plan(resolved, gpu=GPUS["h100"], gpus=16, model="8b", rates=Rates())
    balance = best_plan.balance
    taken = balance.learners if balance.colocated else balance.learners + balance.replicas * balance.tensor_parallel
    assert taken <= 16
    assert best_plan.updates_per_hour == pytest.approx(max(rate for _, rate in best_plan.others))
    assert best_plan.updates_per_hour * best_plan.seconds_per_update == pytest.approx(3600)
    assert best_plan.episodes_per_hour == pytest.approx(best_plan.updates_per_hour * 16)
    assert all(change.episodes_per_hour > 1.05 * best_plan.episodes_per_hour for change in best_plan.changes)


ON_GPUS = ["scale=ray", "engine={name: vllm, address: 'http://x'}", "scale.replica_gpus=1"]


def planned(*overrides, gpus=None, model="8b"):
    return plan(
        load_recipe("demo", [*SMALL, *ON_GPUS, *overrides]), gpu=GPUS["h100"], gpus=gpus, model=model, rates=Rates()
    )


def test_scale_of_the_recipe_is_reported_next_to_the_best_balance():
    best_plan = planned("scale.learner_processes=12", "scale.engine_replicas=2", "scale.tensor_parallel=2")
    assert best_plan.gpus == 16  # 12 + 2 · 2
    assert (best_plan.own.balance.learners, best_plan.own.balance.replicas, best_plan.own.balance.gpus) == (12, 2, 16)
    assert 0 < best_plan.own.summary.updates_per_hour <= best_plan.updates_per_hour
    best = planned(
        *(f"{key}={str(value).lower()}" for key, value in best_plan.balance.keys.items() if key != "scale.replica_gpus")
    )
    assert best.own.balance == best_plan.balance  # the reported keys give the reported balance
    assert best.own.summary.updates_per_hour == pytest.approx(best_plan.updates_per_hour)


def test_tensor_parallel_ranks_hold_full_embeddings_and_gather_less():
    best_plan = planned("scale.learner_processes=12", "scale.learner_tensor_parallel=4")
    assert best_plan.own.balance.together == 4
    assert best_plan.own.balance.keys["scale.learner_tensor_parallel"] == 4
    recipe = load_recipe("demo").recipe
    separate, four = (learner_memory(MODELS["8b"], recipe, recipe.reinforcement, 8, n).parts for n in (1, 4))
    assert four["gathered layers"] == pytest.approx(separate["gathered layers"] / 4)
    output_layer = 2 * 3 * MODELS["8b"].vocabulary * MODELS["8b"].hidden  # also a separate output layer
    assert four["gradients"] - separate["gradients"] == pytest.approx(4 * output_layer / 8 / 2**30)


def test_impossible_scale_is_refused_with_its_numbers(resolved):
    with pytest.raises(
        RecipeError, match=r"scale: places 16 GPUs \(12 for the learner and 4 replicas × 1\), and there are 8"
    ):
        planned("scale.learner_processes=12", "scale.engine_replicas=4", gpus=8)
    with pytest.raises(
        RecipeError, match=r"scale\.learner_processes: 1 GPUs of the learner: each would hold .* or more"
    ):
        planned("scale.engine_replicas=4", gpus=16)
    with pytest.raises(RecipeError, match=r"scale\.tensor_parallel: 1 GPUs per replica: 131\.\d GiB of weights do not"):
        planned("scale.learner_processes=48", gpus=64, model="70b")
    with pytest.raises(RecipeError, match="--gpus: required"):
        plan(resolved, gpu=GPUS["h100"], model="8b", rates=Rates())


@pytest.mark.slow
def test_large_cluster_is_simulated_as_a_slice():
    wide = load_recipe("demo", ["reinforcement.tasks_per_step=512", "rollout.max_in_flight=16384"])
    best_plan = plan(wide, gpu=GPUS["h100"], gpus=1024, model="8b", rates=Rates())
    assert best_plan.simulated_share == pytest.approx(384 / 4096)
    assert best_plan.episodes_per_hour == pytest.approx(best_plan.updates_per_hour * 512 * 8, rel=0.01)


def test_rates_are_read_from_a_file_and_errors_in_it_are_one_line(tmp_path):
    path = tmp_path / "rates.yaml"
    path.write_text("episode: {tool_seconds: 3}\nlearner: {mfu: 0.3}\n")
    assert read_rates(path).episode.tool_seconds == 3
    for text, message in (
        ("episode: {tool_second: 3}", 'episode.tool_second: no such key; did you mean "tool_seconds"'),
        ("learner: {mfu: 2}", "learner.mfu"),
        ("[1, 2]", "rates are a mapping of keys to values: episode, engine"),
    ):
        path.write_text(text)
        with pytest.raises(RecipeError) as refused:
            read_rates(path)
        assert message in str(refused.value)


def test_recorded_episodes_of_a_run_are_used(tmp_path):
    def turn(context, action, seconds):
        context_row, action_row = ({"ids": [0] * count, "authors": []} for count in (context, action))
        return {
            "context": context_row, "action": action_row, "observation": 0, "reward": 0.0, "calls": [],
            "opens_segment": False, "training_context": None, "seconds": [1.0, 0.0, seconds],
        }  # fmt: skip

    episodes = [[turn(100, 10, 2.0), turn(20, 30, 4.0)], [turn(50, 20, 3.0)]]
    (tmp_path / "trajectories").mkdir()
    row = {"task_id": "a", "ended": "terminated", "messages": [], "opening": 0, "seconds": 1.0}
    row |= dict.fromkeys(("error", "score", "removal", "parent", "fork_turn"))
    lines = "".join(json.dumps({**row, "id": f"a#{k}", "turns": turns}) + "\n" for k, turns in enumerate(episodes))
    (tmp_path / "trajectories" / "step-000001.jsonl").write_text(lines + '{"torn')
    episode = read_rates(tmp_path).episode
    assert (episode.turns, episode.prompt_tokens, episode.turn_tokens) == (1.5, 75, 20)
    assert (episode.observation_tokens, episode.tool_seconds) == (20, 3)
    (tmp_path / "trajectories" / "step-000001.jsonl").unlink()
    with pytest.raises(RecipeError, match="no recorded episode"):
        read_rates(tmp_path)


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(RecipeError, match=r'no GPU "h10" among a100-40, .*did you mean "h100"'):
        find_gpu("h10")
    assert named_model("9b").layers == MODELS["8b"].layers
    assert named_model("9b").parameters == 9_000_000_000
    assert named_model("eight") is None


def test_command_reports_balance_memory_and_bottleneck():
    words = ["demo", *SMALL, "--gpus", "8", "--model", "8b"]
    output = CliRunner().invoke(command, words, catch_exceptions=False).output
    for text in ("8.19 billion parameters on 8 h100", "balance: ", "memory of a replica GPU", "bottleneck: "):
        assert text in output
    report = json.loads(CliRunner().invoke(command, [*words, "--json"], catch_exceptions=False).output)
    assert report["balance"]["tensor_parallel"] == 1
    assert report["summary"]["bottleneck"] in output
    for wrong, text in (
        (["--gpus", "0"], "--gpus: must be at least 1"),
        (["--gpus", "8", "--gpu", "h1000"], "no GPU"),
        (["--gpus", "8", "--model", "huge"], "is not a size"),
    ):
        refused = CliRunner().invoke(command, ["demo", "--model", "8b", *wrong])
        assert isinstance(refused.exception, RecipeError)
        assert text in str(refused.exception)
