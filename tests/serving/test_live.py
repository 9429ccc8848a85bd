"""A policy that learns from what follows its answers: what it learns from, in which order, and how it forgets."""

import asyncio

from tests_live import LiveServed, corrected, live_recipe


def test_what_follows_an_answer_is_judged_learned_from_and_served(tmp_path):
    async def run():
        async with LiveServed(tmp_path, live_recipe()) as served:
            before = served.weights()
            for number in range(2):
                await corrected(served, f"e{number}", seed=number)
            await served.settled()
            assert served.weights() != before
            assert served.engine.version == served.live.journal.version == 1
            (turn, _) = served.live.turns.turns([0, 1])
            assert turn.judgement.reward == -1
            assert turn.judgement.hint == "No, it should be B."
            decoded = served.assembly.chat.tokenizer.decode(turn.hinted)
            assert "Name a letter.\nNo, it should be B." in decoded
            status, told = await served.asked("GET", "")
            assert (status, told["learned_turns"], told["steps"]) == (200, 2, 1)

    asyncio.run(run())
