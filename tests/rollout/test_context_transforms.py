"""Texts that are added to the context of the policy: content, schedule, and the context that is trained."""

import asyncio
from dataclasses import replace
from random import Random

import pytest

from support.episodes import CHAT, LIMITS, TASK, call, collected, group, in_order, path, played, step_outcome, turn
from whetstone.chat import Completion, assistant, system, tool_result, user
from whetstone.errors import PromptTooLong, RecipeError, TaskError
from whetstone.plugins import OptionError
from whetstone.rollout import MethodComponents
from whetstone.rollout.context_transforms import (
    BudgetLine,
    DemonstrationPrompt,
    ExampleSelection,
    Experience,
    Hint,
    Instructions,
    Lessons,
    OwnEpisodes,
    RubricPrompt,
)
from whetstone.rollout.context_transforms.budget_line import budget_level
from whetstone.rollout.context_transforms.experience import ExperienceEntry, insert_entry, routine_successor
from whetstone.rollout.context_transforms.insert_text import append_to_last, prepend_to_task
from whetstone.rollout.context_transforms.lessons import Add, Merge, Modify, apply_edits
from whetstone.rollout.context_transforms.prompt_population import softmax_probabilities
from whetstone.rollout.context_transforms.prompt_proposers import (
    recombine_instructions,
    select_remedies,
    split_sentences,
)
from whetstone.rollout.context_transforms.rubric_prompt import group_share, step_share
from whetstone.rollout.protocol import EpisodeKey, EpisodeState
from whetstone.rollout.strategies import Independent
from whetstone.trajectory import EndReason, Group, OffPolicy, Task

WORDS = in_order(call("12*34"), assistant("408"))


def at(step=0, index=0, size=8, task=TASK, seed=0):
    return EpisodeState(EpisodeKey(task, seed, step, index, size), (), (turn(calls=("ok",)),))


def read(view, so_far):
    return view.opening((user("go"),), so_far)[0].text


# ------------------------------------------------------------ position of a text


def test_note_is_in_the_system_message_or_before_the_first_message():
    assert prepend_to_task((system("a"), user("b")), "n") == (system("a\n\nn"), user("b"))
    assert prepend_to_task((user("b"),), "n") == (user("n\n\nb"),)
    assert prepend_to_task((user("b"),), "") == (user("b"),)
    assert append_to_last((tool_result("5", call_id="c"),), "n")[0].text == "5\nn"
    assert append_to_last((tool_result("5", call_id="c"),), "n")[0].tool_call_id == "c"


# ------------------------------------------------------------ demonstrations


def test_icrl_worked_numbers():
    examples = [f"Compute {k}" for k in range(3)]
    view = DemonstrationPrompt(examples=examples, counts=((0, 3), (100, 2), (200, 1), (300, 0)))
    counts = [read(view, at(step)).count("Compute") for step in (0, 99, 100, 299, 300)]
    assert counts == [3, 3, 2, 1, 0]


def test_group_has_the_same_demonstrations_and_none_of_its_own_task():
    view = DemonstrationPrompt(examples=[f"Compute {k}" for k in range(9)], counts=((0, 2),))
    seen = {read(view, at(index=k)) for k in range(8)}
    assert len(seen) == 1
    assert {read(view, at(seed=seed)) for seed in range(9)} != seen
    telling = DemonstrationPrompt(examples=["Compute 12*34 is 408", "other"], counts=((0, 2),))
    assert read(telling, at()) == "other\n\ngo"


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        (((5, 1),), "the first stage starts at 5; the first one must start at 0"),
        ((), "has no stages"),
        (((0, 1), (0, 0)), "starts of stages must ascend"),
        (((0, 0), (9, 1)), "must not increase"),
        (((0, 7),), "must be at most the 1 defined examples, got 7"),
    ],
)
def test_schedule_with_a_gap_is_refused(counts, message):
    with pytest.raises(OptionError, match=message):
        DemonstrationPrompt(examples=["a"], counts=counts)


# ------------------------------------------------------------ examples by kind

NEEDS, KNOWS = (replace(TASK, tags={"kind": kind}) for kind in ("needs", "knows"))


def observe_rewards(view, task, *rewards):
    """Observe groups whose rewards depend on the number of examples in their prompt."""
    for step in range(60):
        read_one = "one" in (text := read(view, at(step, task=task)))
        sampled = [path(str(k), rewards[read_one], opening=text) for k in range(2)]
        view.observe(step_outcome(Group(task, tuple(sampled))))


def test_examples_are_added_to_kinds_for_which_they_help():
    view = ExampleSelection(examples=["one"], price=0.1, rate=0.5)
    assert read(view, at(size=1, task=NEEDS)) == "one\n\ngo"  # an unknown kind gets the example
    observe_rewards(view, NEEDS, 0.0, 1.0)
    observe_rewards(view, KNOWS, 1.0, 1.0)
    assert read(view, at(size=1, task=NEEDS)) == "one\n\ngo"
    assert read(view, at(size=1, task=KNOWS)) == "go"
    assert view.metrics() == {"kinds": 2.0, "best_count": 0.5}


def test_learned_values_of_examples_are_restored():
    view, restored = ExampleSelection(examples=["one"]), ExampleSelection(examples=["one"])
    observe_rewards(view, KNOWS, 1.0, 1.0)
    restored.load_state(view.state())
    assert restored.values == view.values
    # 0.5 + 0.2 (1 − 0.5) = 0.6 after one group without examples
    once = ExampleSelection(examples=["one"])
    once.observe(step_outcome(Group(KNOWS, (path("p", 1.0, opening="go"),))))
    assert once.values == {"knows": [pytest.approx(0.6), 0.5]}


# ------------------------------------------------------------ rubrics


def test_ruscarl_worked_numbers():
    steps = 11

    def shares(x):
        return [group_share(i, 5) * step_share(round(x * (steps - 1)), steps) for i in range(5)]

    assert shares(0) == pytest.approx([0.9526, 0.7144, 0.4763, 0.2381, 0], abs=1e-4)
    assert shares(0.3) == pytest.approx([0.5, 0.375, 0.25, 0.125, 0])
    assert shares(1)[0] == pytest.approx(0.000911, abs=1e-6)
    assert [round(share * 7) for share in shares(0.3)] == [4, 3, 2, 1, 0]
    assert step_share(5, steps, rule="linear") == 0.5
    assert step_share(5, steps, rule="power", power=2) == 0.25
    assert [group_share(i, 4, rule="binary", num_guided=2) for i in range(4)] == [1, 1, 0, 0]
    assert group_share(0, 1) == 1


SCAFFOLDED = replace(TASK, private={**TASK.private, "rubric": ("Good a.", {"criterion": "Bad b.", "points": -1})})


def test_criteria_are_in_the_context_and_not_in_the_trained_one():
    view = RubricPrompt(steps=1_000_000, shared="binary", num_guided=1, rule="linear")
    method = MethodComponents(context_transforms={"rubric": view})
    first, second = collected(Independent(group_size=2), WORDS, method=method, task=SCAFFOLDED).trajectories
    assert "Good a." in first.opening[0].text
    assert "It does not:\n- Bad b." in first.opening[0].text
    assert "Good a." not in second.opening[0].text
    text = "".join(CHAT.tokenizer.decode(segment.tokens.ids) for segment in first.segments())
    assert "Good a." not in text
    assert first.off_policy is OffPolicy.RECOMPUTE
    # the trained context is that of an episode without criteria
    trained_tokens = {t for segment in first.segments() for t in [segment.tokens.ids]}
    plain = second.segments()[0].tokens.ids
    assert max(trained_tokens, key=len) == plain


def test_every_action_is_trained_once_after_the_plain_context():
    view = RubricPrompt(steps=1_000_000, shared="binary", num_guided=1, rule="linear")
    trajectory = played(
        in_order(call("12*34"), call("408+0"), assistant("408")), context_transforms=(view,), task=SCAFFOLDED
    )
    assert sum(sum(segment.action_mask) for segment in trajectory.segments()) == trajectory.action_tokens
    trained = RubricPrompt(steps=1_000_000, shared="binary", rule="linear", trained=True)
    processed = played(WORDS, context_transforms=(trained,), task=SCAFFOLDED)
    assert all(t.training_context is None for t in processed.turns)
    assert "Good a." in CHAT.tokenizer.decode(processed.segments()[0].tokens.ids)


def test_task_without_a_rubric_is_named():
    with pytest.raises(TaskError, match="task t: has no private `rubric`"):
        read(RubricPrompt(steps=10), at())


# ------------------------------------------------------------ what does not fit


def test_context_that_does_not_fit_is_dropped_and_marked():
    tight = replace(LIMITS, context_length=200)
    long = Hint(text="x" * 500)
    trajectory = played(WORDS, context_transforms=(long,), limits=tight)
    assert trajectory.marks == ("view_dropped",)
    assert [t.context.ids for t in trajectory.turns] == [t.context.ids for t in played(WORDS, limits=tight).turns]


def test_prompt_that_does_not_fit_is_refused_with_its_sizes():
    with pytest.raises(
        PromptTooLong, match=r"task t: with Hint its prompt has \d+ tokens, and the model's context 200"
    ):
        played(
            WORDS,
            context_transforms=(Hint(text="x" * 500),),
            limits=replace(LIMITS, context_length=200),
            overflow="refuse",
        )


# ------------------------------------------------------------ budgets


def test_bats_worked_numbers():
    left = (0.8, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05)
    assert [budget_level(share) for share in left] == ["high", "high", "medium", "medium", "low", "low", "critical"]


def test_remaining_budget_follows_each_result_and_is_not_trained():
    trajectory = played(WORDS, context_transforms=(BudgetLine(budgets=(4,)),))
    assert trajectory.turns[0].observation[0].text == "408\n[calls 1 of 4, 3 left: explore]"
    (segment,) = trajectory.segments()
    trained = [segment.tokens.ids[k] for k, m in enumerate(segment.action_mask) if m]
    assert "calls 1" not in CHAT.tokenizer.decode(trained)
    assert "calls 1" in CHAT.tokenizer.decode(segment.tokens.ids)


def test_group_has_one_budget():
    view = BudgetLine(budgets=(1, 2, 3, 4, 5), advice=False)
    method = MethodComponents(context_transforms={"budget_line": view})
    seen = {
        t.turns[0].observation[0].text for t in collected(Independent(group_size=6), WORDS, method=method).trajectories
    }
    assert len(seen) == 1


# ------------------------------------------------------------ instructions


def test_inspo_worked_numbers():
    assert softmax_probabilities([0.6, 0.4, 0.1], 0.2) == pytest.approx([0.6897, 0.2537, 0.0566], abs=1e-4)
    view = Instructions(texts=["only"])
    view.population[0].weight = 0.4
    view.observe(step_outcome(Group(TASK, (path("a", 1, opening="only\n\ngo"),))))
    assert view.population[0].weight == pytest.approx(0.46)


def test_group_has_one_instruction_and_evaluations_use_the_best():
    view = Instructions(texts=["one", "two"])
    view.population[1].weight = 0.9
    assert len({read(view, at(index=k)) for k in range(8)}) == 1
    assert read(view, at(size=1)) == "two\n\ngo"
    alone = Instructions(texts=["one"])
    assert {read(alone, at(seed=seed)) for seed in range(9)} == {"one\n\ngo"}


def test_worst_tried_instruction_is_replaced_and_the_first_never():
    view = Instructions(
        texts=["one", "two", "three"],
        proposer="support.small:propose",
        interval_updates=2,
        trials=1,
        max_instructions=3,
    )
    groups = [
        Group(TASK, (path("a", r, opening=f"{text}\n\ngo"),)) for text, r in (("one", 0), ("two", 0.2), ("three", 1))
    ]
    view.observe(step_outcome(*groups, step=1))
    assert [each.text for each in view.population] == ["one", "two", "three"]
    view.observe(step_outcome(*groups, step=2))
    assert [each.text for each in view.population] == ["one", "three", "new after 3"]
    assert view.population[-1].weight == max(each.weight for each in view.population)
    restored = Instructions(texts=["other"], max_instructions=3)
    restored.load_state(view.state())
    assert restored.state() == view.state()


def test_best_instruction_is_recombined_with_others_and_remedies_of_failures():
    silent = "user: Compute 2*3\nassistant: 6"
    transcript = "user: Compute\ntool: 6\nassistant: x\ntool: 6\nassistant: 6"
    assert split_sentences("Look first. Then answer! Yes") == ["Look first.", "Then answer!", "Yes"]
    assert select_remedies([silent, silent, transcript]) == ["Call a tool before you answer."]
    assert select_remedies([transcript]) == ["Make no call twice."]
    assert select_remedies([]) == []
    assert select_remedies(["user: x\ntool: error: no\nassistant: 5"]) == [
        "Where a call fails, read why and call again."
    ]
    texts = ["Look first. Then answer.", "Be brief. Be right."]
    for seed in range(20):
        proposed = recombine_instructions([silent], texts, Random(seed))
        assert proposed[0] == "Look first. Then answer. Call a tool before you answer."
        assert proposed == recombine_instructions([silent], texts, Random(seed))
        assert len(set(proposed)) == len(proposed) <= 2
        known = {*split_sentences(" ".join(texts)), "Call a tool before you answer."}
        assert all(set(split_sentences(text)) <= known and text not in texts for text in proposed)
    assert recombine_instructions([], ["Alone."], Random(0)) == []  # it has no other to combine with
    assert recombine_instructions([], [], Random(0)) == []


def test_without_a_model_the_population_is_renewed_within_its_bound():
    view = Instructions(
        texts=["Look first. Then answer.", "Be brief. Be right."], interval_updates=1, trials=1, max_instructions=4
    )
    seen = set()
    for step in range(1, 12):
        groups = [
            Group(TASK, (path(f"{k}", float(k == 0), opening=f"{each.text}\n\ngo"),))
            for k, each in enumerate(view.population)
        ]
        view.observe(step_outcome(*groups, step=step))
        seen |= {each.text for each in view.population}
        assert len(view.population) <= 4
        assert view.population[0].text == "Look first. Then answer."
    assert len(seen) > 4  # some were replaced


def test_unreachable_proposer_is_counted_and_the_run_continues():
    endpoint = {"name": "endpoint", "url": "http://127.0.0.1:9/v1", "model": "m", "seconds": 0.2}
    view = Instructions(texts=["one", "two"], proposer=endpoint, interval_updates=1)
    view.proposer.endpoint.tries = 1
    view.observe(step_outcome(Group(TASK, (path("a", 0, opening="one\n\ngo"),))))
    assert (view.metrics()["unanswered"], len(view.population)) == (1.0, 2)
    with pytest.raises(RecipeError, match='no proposer named "recombine"; did you mean "recombined"'):
        Instructions(texts=["one"], proposer="recombine")


def test_model_reads_failures_and_writes_instructions():
    requests = []

    async def complete(messages, **options):
        requests.append((messages[0]["content"], options["temperature"]))
        return Completion({"content": 'Here: ["Call the tool.", " Read it. "]'})

    view = Instructions(
        texts=["one", "two"], proposer={"name": "endpoint", "url": "http://x/v1", "model": "m"}, interval_updates=1
    )
    view.proposer.endpoint.complete = complete

    async def inside_a_loop():
        view.observe(step_outcome(Group(TASK, (path("a", 0, opening="one\n\ngo"),))))

    asyncio.run(inside_a_loop())
    assert [each.text for each in view.population] == ["one", "two", "Call the tool.", "Read it."]
    ((question, temperature),) = requests
    assert "It failed here:\nEpisode 1:\nuser: one" in question
    assert temperature == 0.7


# ------------------------------------------------------------ lessons


def test_youtu_worked_numbers():
    proposed = [Add("c"), Modify("G1", "b2"), Modify("G9", "x")]
    plan = [Merge(("G0", "C0"), "ac"), Modify("G1", "b2")]
    assert apply_edits(["a", "b"], proposed, plan) == ["b2", "ac"]
    assert apply_edits(["a"], [], [Merge(("G0", "G7"), "x")]) == ["a"]


def test_lessons_are_from_partly_solved_groups_and_bounded():
    view = Lessons(max_lessons=2)
    view.observe(step_outcome(group(1, 1), group(0, 0)))
    assert view.entries == []
    assert read(view, at()) == "go"
    solved = path("a", 1, [turn(calls=("ok",)), turn("4")])
    tasks = [Task(f"t{k}", f"Compute {k}") for k in range(3)]
    for task in tasks:
        view.observe(step_outcome(Group(task, (solved, path("b", 0)))))
    assert [text[:14] for text in view.entries] == ["For: Compute 1", "For: Compute 2"]
    assert read(view, at()).startswith("Lessons from before:\n[0] For: Compute 1")
    restored = Lessons(max_lessons=2)
    restored.load_state(view.state())
    assert restored.entries == view.entries


# ------------------------------------------------------------ own episodes


def test_own_episodes_of_the_task_are_shown_from_low_to_high_reward():
    view = OwnEpisodes(episodes=2)
    assert read(view, at()) == "go"
    right = path("a", 1, [turn(calls=("ok",), observation="408"), turn("it is 408")])
    wrong, between = path("b", 0, [turn("7")]), path("c", 0.5, [turn("8")])
    view.observe(step_outcome(Group(TASK, (right, between, wrong))))
    assert read(view, at()) == (
        "Attempt 1, reward 0:\n7\n\nAttempt 2, reward 1:\npocket_calculator({})\n408\nit is 408\n\ngo"
    )
    assert read(view, at(task=Task("other", "?"))) == "go"
    restored = OwnEpisodes(episodes=2)
    restored.load_state(view.state())
    assert read(restored, at()) == read(view, at())
    view.observe(step_outcome(Group(TASK, (path("d", 0.25, [turn("9")]),))))
    assert "reward 0.25" in read(view, at())
    assert "reward 0:" not in read(view, at())


def test_gain_over_episodes_worked_numbers():
    """Task a: mean reward 1/4, then 1/2, then 3/4: a gain of 1/2. Task b: 1 and 1/2. Task c has one visit."""
    view, tasks = OwnEpisodes(), [Task(name, name) for name in "abc"]
    view.observe(step_outcome(group(1, 0, 0, 0, task=tasks[0]), group(1, 1, task=tasks[1])))
    assert "gain" not in view.metrics()
    view.observe(step_outcome(group(1, 1, 0, 0, task=tasks[0]), group(1, 0, task=tasks[2])))
    view.observe(step_outcome(group(1, 1, 1, 0, task=tasks[0]), group(1, 0, task=tasks[1])))
    assert view.metrics()["gain"] == pytest.approx((0.5 - 0.5) / 2)
    assert view.visits == {"a": [0.25, 0.75], "b": [1.0, 0.5], "c": [0.5]}


def test_episodes_longer_than_the_context_are_left_out_and_counted():
    view = OwnEpisodes(episodes=3, max_characters=100)
    long, short = path("a", 1, [turn("x" * 5000)]), path("b", 0, [turn("8")])
    view.observe(step_outcome(Group(TASK, (long, short))))
    assert read(view, at()) == "Attempt 1, reward 0:\n8\n\ngo"
    assert view.metrics() == {"stored": 2.0, "left_out": 1.0}
    narrow = OwnEpisodes(max_characters=10**6)
    narrow.observe(step_outcome(Group(TASK, (long,))))
    words = played(WORDS, context_transforms=(narrow,))  # a context of 2,000 tokens
    assert words.ended is EndReason.TERMINATED
    assert "xxx" not in CHAT.tokenizer.decode(words.turns[0].context.ids)
    narrow.observe(step_outcome(Group(TASK, (long,))))
    assert narrow.metrics()["left_out"] == 2


def test_group_is_not_in_its_own_context():
    view = OwnEpisodes()
    method = MethodComponents(context_transforms={"own_episodes": view})
    first = collected(Independent(group_size=2), WORDS, method=method)
    assert all("Attempt" not in t.opening[0].text for t in first.trajectories)
    view.observe(step_outcome(first))
    second = collected(Independent(group_size=2), WORDS, method=method)
    texts = {t.opening[0].text for t in second.trajectories}
    assert len(texts) == 1
    assert "Attempt 2, reward 1" in texts.pop()


# ------------------------------------------------------------ experience


def test_slea_rl_worked_numbers():
    level = [ExperienceEntry("a", "x", 0.5), ExperienceEntry("b", "y", 0.9)]
    assert insert_entry(level, ExperienceEntry("c", "z", 0.5), 2) == level
    assert [e.score for e in insert_entry(level, ExperienceEntry("c", "z", 0.7), 2)] == [0.9, 0.7]
    assert insert_entry(level, ExperienceEntry("a", "x", 1.0), 2) == level  # known already


def test_sit_graph_worked_numbers():
    assert routine_successor({"read": 7, "answer": 3}) == "read"
    assert routine_successor({"read": 6, "answer": 4}) is None
    assert routine_successor({}) is None


def test_most_similar_entry_follows_an_observation_after_the_warm_up():
    view = Experience(golden=1, warning=1, warm_up=2, min_entries=2)
    observation = (tool_result("door open"),)
    good = path("a", 1, [turn(calls=("ok",), observation="door open"), turn(calls=("ok",), observation="x"), turn("4")])
    bad = path("b", 0, [turn(calls=("tool_error",), observation="y")])
    view.observe(step_outcome(Group(TASK, (good, bad)), step=1))
    assert view.observation(observation, at()) == observation  # still warming up
    view.observe(step_outcome(step=2))
    text = view.observation(observation, at())[0].text
    assert text.startswith("door open\nworked before: pocket_calculator({})")
    assert "failed before: pocket_calculator({})" in text
    restored = Experience(golden=1, warning=1, warm_up=2, min_entries=2)
    restored.load_state(view.state())
    assert restored.observation(observation, at())[0].text == text


def test_state_with_one_routine_tool_has_no_lookup():
    view = Experience(warm_up=0, min_entries=1, routine_fraction=0.7)
    good = path("a", 1, [turn(calls=("ok",)), turn(calls=("ok",)), turn("4")])
    view.observe(step_outcome(Group(TASK, (good,))))
    observation = (tool_result("5"),)
    assert view.observation(observation, at()) == observation
    assert Experience(warm_up=0, min_entries=1).observation(observation, at()) == observation  # has no entries yet


def test_cluster_of_an_observation_selects_entries():
    view = Experience(golden=2, warning=1, warm_up=0, min_entries=1, clusters=True, next_tool=True)
    steps = [turn(calls=("ok",), observation="Door 1 is open"), turn(calls=("ok",), observation="a wall"), turn("4")]
    view.observe(step_outcome(Group(TASK, (path("a", 1, steps),))))
    assert view.observation((tool_result("DOOR 27  is open"),), at())[0].text == (
        "DOOR 27  is open\nusually next: pocket_calculator\nworked before: pocket_calculator({})"
    )
    assert view.observation((tool_result("Door 1 is shut"),), at())[0].text == "Door 1 is shut"
    assert view.predict_next_tool("pocket_calculator", "door 3 is open") == "pocket_calculator"
    assert view.predict_next_tool("pocket_calculator", "a wall") is None


def test_one_lookup_per_episode_is_in_the_first_messages():
    view = Experience(golden=1, warning=0, warm_up=0, min_entries=1, lookup="episode")
    view.observe(step_outcome(Group(TASK, (path("a", 1, [turn(calls=("ok",)), turn("4")]),))))
    assert "worked before" in read(view, at())
    observation = (tool_result("5"),)
    assert view.observation(observation, at()) == observation
    assert "worked before" not in read(Experience(warm_up=0, min_entries=1), at())


def test_zones_are_bounded():
    view = Experience(capacity=3, warm_up=0, min_entries=1)
    for k in range(9):
        view.observe(
            step_outcome(
                Group(
                    TASK, (path(str(k), k + 1, [turn(calls=("ok",), observation=str(k)), turn("4")], opening=str(k)),)
                )
            )
        )
    assert view.metrics() == {"golden": 3.0, "warning": 0.0}
    assert {entry.score for entry in view.zones["golden"]} == {7, 8, 9}


SILENT = {
    "demonstrations": DemonstrationPrompt(examples=["a"], counts=((0, 0),)),
    "rubric": RubricPrompt(steps=10, shared="binary", num_guided=0),
    "lessons": Lessons(),
    "own_episodes": OwnEpisodes(),
    "experience": Experience(),
    "instructions": Instructions(texts=[""]),
}


@pytest.mark.parametrize("name", SILENT)
def test_transform_without_text_changes_nothing(name):
    plain = collected(Independent(group_size=3), WORDS, task=SCAFFOLDED)
    viewed = collected(
        Independent(group_size=3),
        WORDS,
        task=SCAFFOLDED,
        method=MethodComponents(context_transforms={name: SILENT[name]}),
    )
    for transformed, expected in zip(viewed.trajectories, plain.trajectories, strict=True):
        assert transformed.opening == expected.opening
        assert [t.context for t in transformed.turns] == [t.context for t in expected.turns]
        assert [t.action.ids for t in transformed.turns] == [t.action.ids for t in expected.turns]
        assert all(t.training_context is None for t in transformed.turns)


@pytest.mark.parametrize(
    ("create", "message"),
    [
        (lambda: BudgetLine(budgets=()), "at least 1 call each"),
        (lambda: Instructions(texts=[]), "must have 1 to 8 texts"),
        (lambda: ExampleSelection(examples=[]), "at least one example"),
        (lambda: ExampleSelection(examples=["a"], temperature=0), "above 0"),
        (lambda: Instructions(texts=["a"], temperature=0), "above 0"),
        (lambda: Lessons(texts=["a", "b"], max_lessons=1), "at most 1"),
        (lambda: OwnEpisodes(episodes=0), "from 1 to capacity"),
        (lambda: OwnEpisodes(max_characters=0), "1 or more"),
        (lambda: OwnEpisodes(context_fraction=0), "above 0 and at most 1"),
        (lambda: Experience(golden=0, warning=0), "must be at least 1"),
    ],
)
def test_invalid_options_are_refused(create, message):
    with pytest.raises(OptionError, match=message):
        create()
