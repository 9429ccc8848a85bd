"""What the policy reads beside what was said to it, when, and behind what it is then trained."""

import asyncio
from dataclasses import replace
from random import Random

import pytest

from tests_episodes import CHAT, LIMITS, TASK, call, collected, group, heard, in_order, path, played, turn
from whetstone.chat import Completion, assistant, system, tool_result, user
from whetstone.errors import PromptTooLong, RecipeError, TaskError
from whetstone.plugins import OptionError
from whetstone.rollout import Method
from whetstone.rollout.context_transforms import (
    BudgetLine,
    ChosenExamples,
    Demonstrations,
    Experience,
    Hint,
    Instructions,
    Lessons,
    Rubric,
)
from whetstone.rollout.context_transforms.budget_line import regime
from whetstone.rollout.context_transforms.experience import Entry, admitted, routine
from whetstone.rollout.context_transforms.instructions import softmax
from whetstone.rollout.context_transforms.lessons import Add, Merge, Modify, revised
from whetstone.rollout.context_transforms.note import appended, noted
from whetstone.rollout.context_transforms.proposers import fragments, recombined, remedies
from whetstone.rollout.context_transforms.rubric import group_share, step_share
from whetstone.rollout.protocol import EpisodeKey, EpisodeState
from whetstone.rollout.strategies import Independent
from whetstone.trajectory import Group, OffPolicy, Task

WORDS = in_order(call("12*34"), assistant("408"))


def at(step=0, index=0, size=8, task=TASK, seed=0):
    return EpisodeState(EpisodeKey(task, seed, step, index, size), (), (turn(calls=("ok",)),))


def read(view, so_far):
    return view.opening((user("go"),), so_far)[0].text


# ------------------------------------------------------------ where a text goes


def test_a_note_stands_in_the_system_message_or_in_front_of_the_first():
    assert noted((system("a"), user("b")), "n") == (system("a\n\nn"), user("b"))
    assert noted((user("b"),), "n") == (user("n\n\nb"),)
    assert noted((user("b"),), "") == (user("b"),)
    assert appended((tool_result("5", call_id="c"),), "n")[0].text == "5\nn"
    assert appended((tool_result("5", call_id="c"),), "n")[0].tool_call_id == "c"


# ------------------------------------------------------------ demonstrations


def test_icrl_worked_numbers():
    examples = [f"Compute {k}" for k in range(3)]
    view = Demonstrations(examples=examples, counts=((0, 3), (100, 2), (200, 1), (300, 0)))
    counts = [read(view, at(step)).count("Compute") for step in (0, 99, 100, 299, 300)]
    assert counts == [3, 3, 2, 1, 0]


def test_all_of_a_group_see_the_same_and_none_its_own_task():
    view = Demonstrations(examples=[f"Compute {k}" for k in range(9)], counts=((0, 2),))
    seen = {read(view, at(index=k)) for k in range(8)}
    assert len(seen) == 1
    assert {read(view, at(seed=seed)) for seed in range(9)} != seen
    telling = Demonstrations(examples=["Compute 12*34 is 408", "other"], counts=((0, 2),))
    assert read(telling, at()) == "other\n\ngo"


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        (((5, 1),), "stages begin at 5, so the steps before have no value"),
        ((), "stages are none"),
        (((0, 1), (0, 0)), "one after the other"),
        (((0, 0), (9, 1)), "as many as before or fewer"),
        (((0, 7),), "7 are to be shown and there are 1"),
    ],
)
def test_a_schedule_with_a_gap_is_refused(counts, said):
    with pytest.raises(OptionError, match=said):
        Demonstrations(examples=["a"], counts=counts)


# ------------------------------------------------------------ examples by kind

NEEDS, KNOWS = (replace(TASK, tags={"kind": kind}) for kind in ("needs", "knows"))


def after(view, task, *rewards):
    """Groups of it are rewarded so, by how many examples they read."""
    for step in range(60):
        read_one = "one" in (text := read(view, at(step, task=task)))
        sampled = [path(str(k), rewards[read_one], opening=text) for k in range(2)]
        view.observe(heard(Group(task, tuple(sampled))))


def test_examples_are_shown_where_they_help_and_saved_where_they_do_not():
    view = ChosenExamples(examples=["one"], price=0.1, rate=0.5)
    assert read(view, at(size=1, task=NEEDS)) == "one\n\ngo"  # a kind that was never met is no reason to save
    after(view, NEEDS, 0.0, 1.0)
    after(view, KNOWS, 1.0, 1.0)
    assert read(view, at(size=1, task=NEEDS)) == "one\n\ngo"
    assert read(view, at(size=1, task=KNOWS)) == "go"
    assert view.metrics() == {"kinds": 2.0, "best_count": 0.5}


def test_what_examples_earned_is_kept():
    view, again = ChosenExamples(examples=["one"]), ChosenExamples(examples=["one"])
    after(view, KNOWS, 1.0, 1.0)
    again.load_state(view.state())
    assert again.values == view.values
    # 0.5 + 0.2 (1 − 0.5) = 0.6 behind one group that read none
    once = ChosenExamples(examples=["one"])
    once.observe(heard(Group(KNOWS, (path("p", 1.0, opening="go"),))))
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


def test_criteria_are_read_and_training_does_not_show_them():
    view = Rubric(steps=1_000_000, shared="binary", num_guided=1, rule="linear")
    method = Method(context_transforms={"rubric": view})
    first, second = collected(Independent(group_size=2), WORDS, method=method, task=SCAFFOLDED).trajectories
    assert "Good a." in first.opening[0].text
    assert "It does not:\n- Bad b." in first.opening[0].text
    assert "Good a." not in second.opening[0].text
    text = "".join(CHAT.tokenizer.decode(segment.tokens.ids) for segment in first.segments())
    assert "Good a." not in text
    assert first.off_policy is OffPolicy.RECOMPUTE
    # what is trained is what it is for one that saw nothing
    ours = {t for segment in first.segments() for t in [segment.tokens.ids]}
    plain = second.segments()[0].tokens.ids
    assert max(ours, key=len) == plain


def test_every_action_of_an_episode_is_trained_once_behind_the_plain_context():
    view = Rubric(steps=1_000_000, shared="binary", num_guided=1, rule="linear")
    trajectory = played(
        in_order(call("12*34"), call("408+0"), assistant("408")), context_transforms=(view,), task=SCAFFOLDED
    )
    assert sum(sum(segment.action_mask) for segment in trajectory.segments()) == trajectory.action_tokens
    trained = Rubric(steps=1_000_000, shared="binary", rule="linear", trained=True)
    shown = played(WORDS, context_transforms=(trained,), task=SCAFFOLDED)
    assert all(t.training_context is None for t in shown.turns)
    assert "Good a." in CHAT.tokenizer.decode(shown.segments()[0].tokens.ids)


def test_a_task_without_a_rubric_is_named():
    with pytest.raises(TaskError, match="task t: has no private `rubric`"):
        read(Rubric(steps=10), at())


# ------------------------------------------------------------ what does not fit


def test_a_view_that_does_not_fit_is_dropped_and_said_so():
    tight = replace(LIMITS, context_length=200)
    long = Hint(text="x" * 500)
    trajectory = played(WORDS, context_transforms=(long,), limits=tight)
    assert trajectory.marks == ("view_dropped",)
    assert [t.context.ids for t in trajectory.turns] == [t.context.ids for t in played(WORDS, limits=tight).turns]


def test_or_the_task_is_refused_with_its_sizes():
    with pytest.raises(PromptTooLong, match=r"task t: with what Hint shows it reads \d+ tokens, the context is 200"):
        played(
            WORDS,
            context_transforms=(Hint(text="x" * 500),),
            limits=replace(LIMITS, context_length=200),
            overflow="refuse",
        )


# ------------------------------------------------------------ budgets


def test_bats_worked_numbers():
    left = (0.8, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05)
    assert [regime(share) for share in left] == ["high", "high", "medium", "medium", "low", "low", "critical"]


def test_what_is_left_stands_behind_each_answer_and_is_not_trained():
    trajectory = played(WORDS, context_transforms=(BudgetLine(budgets=(4,)),))
    assert trajectory.turns[0].observation[0].text == "408\n[calls 1 of 4, 3 left: explore]"
    (segment,) = trajectory.segments()
    trained = [segment.tokens.ids[k] for k, m in enumerate(segment.action_mask) if m]
    assert "calls 1" not in CHAT.tokenizer.decode(trained)
    assert "calls 1" in CHAT.tokenizer.decode(segment.tokens.ids)


def test_a_group_has_one_budget():
    view = BudgetLine(budgets=(1, 2, 3, 4, 5), advice=False)
    method = Method(context_transforms={"budget_line": view})
    seen = {
        t.turns[0].observation[0].text for t in collected(Independent(group_size=6), WORDS, method=method).trajectories
    }
    assert len(seen) == 1


# ------------------------------------------------------------ instructions


def test_inspo_worked_numbers():
    assert softmax([0.6, 0.4, 0.1], 0.2) == pytest.approx([0.6897, 0.2537, 0.0566], abs=1e-4)
    view = Instructions(texts=["only"])
    view.population[0].weight = 0.4
    view.observe(heard(Group(TASK, (path("a", 1, opening="only\n\ngo"),))))
    assert view.population[0].weight == pytest.approx(0.46)


def test_all_of_a_group_share_an_instruction_and_evaluations_take_the_best():
    view = Instructions(texts=["one", "two"])
    view.population[1].weight = 0.9
    assert len({read(view, at(index=k)) for k in range(8)}) == 1
    assert read(view, at(size=1)) == "two\n\ngo"
    alone = Instructions(texts=["one"])
    assert {read(alone, at(seed=seed)) for seed in range(9)} == {"one\n\ngo"}


def test_the_worst_goes_once_it_was_tried_and_the_first_never():
    view = Instructions(
        texts=["one", "two", "three"], proposer="tests_small:propose", interval_updates=2, trials=1, max_instructions=3
    )
    groups = [
        Group(TASK, (path("a", r, opening=f"{text}\n\ngo"),)) for text, r in (("one", 0), ("two", 0.2), ("three", 1))
    ]
    view.observe(heard(*groups, step=1))
    assert [each.text for each in view.population] == ["one", "two", "three"]
    view.observe(heard(*groups, step=2))
    assert [each.text for each in view.population] == ["one", "three", "new after 3"]
    assert view.population[-1].weight == max(each.weight for each in view.population)
    restored = Instructions(texts=["other"], max_instructions=3)
    restored.load_state(view.state())
    assert restored.state() == view.state()


def test_the_best_instruction_is_recombined_with_others_and_with_what_helps_against_failures():
    silent = "user: Compute 2*3\nassistant: 6"
    again = "user: Compute\ntool: 6\nassistant: x\ntool: 6\nassistant: 6"
    assert fragments("Look first. Then answer! Yes") == ["Look first.", "Then answer!", "Yes"]
    assert remedies([silent, silent, again]) == ["Call a tool before you answer."]
    assert remedies([again]) == ["Make no call twice."]
    assert remedies([]) == []
    assert remedies(["user: x\ntool: error: no\nassistant: 5"]) == ["Where a call fails, read why and call again."]
    texts = ["Look first. Then answer.", "Be brief. Be right."]
    for seed in range(20):
        proposed = recombined([silent], texts, Random(seed))
        assert proposed[0] == "Look first. Then answer. Call a tool before you answer."
        assert proposed == recombined([silent], texts, Random(seed))
        assert len(set(proposed)) == len(proposed) <= 2
        known = {*fragments(" ".join(texts)), "Call a tool before you answer."}
        assert all(set(fragments(text)) <= known and text not in texts for text in proposed)
    assert recombined([], ["Alone."], Random(0)) == []  # there is nothing to recombine it with
    assert recombined([], [], Random(0)) == []


def test_without_a_model_the_population_renews_itself_and_stays_within_its_bound():
    view = Instructions(
        texts=["Look first. Then answer.", "Be brief. Be right."], interval_updates=1, trials=1, max_instructions=4
    )
    seen = set()
    for step in range(1, 12):
        groups = [
            Group(TASK, (path(f"{k}", float(k == 0), opening=f"{each.text}\n\ngo"),))
            for k, each in enumerate(view.population)
        ]
        view.observe(heard(*groups, step=step))
        seen |= {each.text for each in view.population}
        assert len(view.population) <= 4
        assert view.population[0].text == "Look first. Then answer."
    assert len(seen) > 4  # some were put out for others


def test_a_proposer_that_cannot_be_asked_is_counted_and_takes_no_run_with_it():
    asked = {"name": "endpoint", "url": "http://127.0.0.1:9/v1", "model": "m", "seconds": 0.2}
    view = Instructions(texts=["one", "two"], proposer=asked, interval_updates=1)
    view.proposer.endpoint.tries = 1
    view.observe(heard(Group(TASK, (path("a", 0, opening="one\n\ngo"),))))
    assert (view.metrics()["unanswered"], len(view.population)) == (1.0, 2)
    with pytest.raises(RecipeError, match='no proposer named "recombine"; did you mean "recombined"'):
        Instructions(texts=["one"], proposer="recombine")


def test_a_model_reads_failures_and_writes_instructions():
    asked = []

    async def complete(messages, **options):
        asked.append((messages[0]["content"], options["temperature"]))
        return Completion({"content": 'Here: ["Call the tool.", " Read it. "]'})

    view = Instructions(
        texts=["one", "two"], proposer={"name": "endpoint", "url": "http://x/v1", "model": "m"}, interval_updates=1
    )
    view.proposer.endpoint.complete = complete

    async def inside_a_loop():
        view.observe(heard(Group(TASK, (path("a", 0, opening="one\n\ngo"),))))

    asyncio.run(inside_a_loop())
    assert [each.text for each in view.population] == ["one", "two", "Call the tool.", "Read it."]
    ((question, temperature),) = asked
    assert "It failed here:\nEpisode 1:\nuser: one" in question
    assert temperature == 0.7


# ------------------------------------------------------------ lessons


def test_youtu_worked_numbers():
    proposed = [Add("c"), Modify("G1", "b2"), Modify("G9", "x")]
    plan = [Merge(("G0", "C0"), "ac"), Modify("G1", "b2")]
    assert revised(["a", "b"], proposed, plan) == ["b2", "ac"]
    assert revised(["a"], [], [Merge(("G0", "G7"), "x")]) == ["a"]


def test_lessons_come_from_groups_that_were_half_right_and_are_bounded():
    view = Lessons(max_lessons=2)
    view.observe(heard(group(1, 1), group(0, 0)))
    assert view.entries == []
    assert read(view, at()) == "go"
    solved = path("a", 1, [turn(calls=("ok",)), turn("4")])
    tasks = [Task(f"t{k}", f"Compute {k}") for k in range(3)]
    for task in tasks:
        view.observe(heard(Group(task, (solved, path("b", 0)))))
    assert [text[:14] for text in view.entries] == ["For: Compute 1", "For: Compute 2"]
    assert read(view, at()).startswith("Lessons from before:\n[0] For: Compute 1")
    restored = Lessons(max_lessons=2)
    restored.load_state(view.state())
    assert restored.entries == view.entries


# ------------------------------------------------------------ experience


def test_slea_rl_worked_numbers():
    level = [Entry("a", "x", 0.5), Entry("b", "y", 0.9)]
    assert admitted(level, Entry("c", "z", 0.5), 2) == level
    assert [e.score for e in admitted(level, Entry("c", "z", 0.7), 2)] == [0.9, 0.7]
    assert admitted(level, Entry("a", "x", 1.0), 2) == level  # known already


def test_sit_graph_worked_numbers():
    assert routine({"read": 7, "answer": 3}) == "read"
    assert routine({"read": 6, "answer": 4}) is None
    assert routine({}) is None


def test_the_most_alike_is_shown_behind_an_observation_once_there_is_enough():
    view = Experience(golden=1, warning=1, warm_up=2, min_entries=2)
    shown = (tool_result("door open"),)
    good = path("a", 1, [turn(calls=("ok",), observation="door open"), turn(calls=("ok",), observation="x"), turn("4")])
    bad = path("b", 0, [turn(calls=("tool_error",), observation="y")])
    view.observe(heard(Group(TASK, (good, bad)), step=1))
    assert view.observation(shown, at()) == shown  # still warming up
    view.observe(heard(step=2))
    text = view.observation(shown, at())[0].text
    assert text.startswith("door open\nworked before: pocket_calculator({})")
    assert "failed before: pocket_calculator({})" in text
    restored = Experience(golden=1, warning=1, warm_up=2, min_entries=2)
    restored.load_state(view.state())
    assert restored.observation(shown, at())[0].text == text


def test_where_one_tool_always_follows_nothing_is_looked_up():
    view = Experience(warm_up=0, min_entries=1, routine_fraction=0.7)
    good = path("a", 1, [turn(calls=("ok",)), turn(calls=("ok",)), turn("4")])
    view.observe(heard(Group(TASK, (good,))))
    shown = (tool_result("5"),)
    assert view.observation(shown, at()) == shown
    assert Experience(warm_up=0, min_entries=1).observation(shown, at()) == shown  # knows nothing yet


def test_zones_are_bounded():
    view = Experience(capacity=3, warm_up=0, min_entries=1)
    for k in range(9):
        view.observe(
            heard(
                Group(
                    TASK, (path(str(k), k + 1, [turn(calls=("ok",), observation=str(k)), turn("4")], opening=str(k)),)
                )
            )
        )
    assert view.metrics() == {"golden": 3.0, "warning": 0.0}
    assert {entry.score for entry in view.zones["golden"]} == {7, 8, 9}


SILENT = {
    "demonstrations": Demonstrations(examples=["a"], counts=((0, 0),)),
    "rubric": Rubric(steps=10, shared="binary", num_guided=0),
    "lessons": Lessons(),
    "experience": Experience(),
    "instructions": Instructions(texts=[""]),
}


@pytest.mark.parametrize("name", SILENT)
def test_what_shows_nothing_is_as_if_it_was_not_there(name):
    plain = collected(Independent(group_size=3), WORDS, task=SCAFFOLDED)
    viewed = collected(
        Independent(group_size=3), WORDS, task=SCAFFOLDED, method=Method(context_transforms={name: SILENT[name]})
    )
    for ours, theirs in zip(viewed.trajectories, plain.trajectories, strict=True):
        assert ours.opening == theirs.opening
        assert [t.context for t in ours.turns] == [t.context for t in theirs.turns]
        assert [t.action.ids for t in ours.turns] == [t.action.ids for t in theirs.turns]
        assert all(t.training_context is None for t in ours.turns)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: BudgetLine(budgets=()), "one or more calls"),
        (lambda: Instructions(texts=[]), "one to 8"),
        (lambda: ChosenExamples(examples=[]), "one or more"),
        (lambda: ChosenExamples(examples=["a"], temperature=0), "above 0"),
        (lambda: Instructions(texts=["a"], temperature=0), "above 0"),
        (lambda: Lessons(texts=["a", "b"], max_lessons=1), "at most 1"),
        (lambda: Experience(golden=0, warning=0), "one entry or more"),
    ],
)
def test_options_that_cannot_be(made, said):
    with pytest.raises(OptionError, match=said):
        made()
