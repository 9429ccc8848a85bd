"""The first signal saves and stops, the second stops at once; both leave a run that goes on."""

import asyncio
import os
import signal

import pytest

import crash
from whetstone.training.interruption import Interrupted, Interruption


def signalled(*, work, finish, after=0.02, grace=5.0, number=signal.SIGTERM):
    async def main():
        with Interruption(grace_seconds=grace) as interruption:
            asyncio.get_running_loop().call_later(after, os.kill, os.getpid(), number)
            return await interruption.unless_asked(work(), finish=lambda: finish)

    return asyncio.run(main())


async def short():
    await asyncio.sleep(0.1)
    return "done"


async def endless():
    await asyncio.sleep(60)


def test_what_must_be_finished_is_finished():
    assert signalled(work=short, finish=True) == "done"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_what_need_not_be_is_cut(number):
    with pytest.raises(Interrupted) as stopped:
        signalled(work=endless, finish=False, number=number)
    assert stopped.value.signal == number


def test_what_takes_longer_than_the_grace_is_cut():
    with pytest.raises(Interrupted):
        signalled(work=endless, finish=True, grace=0.1)


def test_nobody_asked_nothing_happens():
    async def main():
        with Interruption() as interruption:
            return await interruption.unless_asked(short(), finish=lambda: False)

    assert asyncio.run(main()) == "done"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.slow
@pytest.mark.parametrize("way", crash.WAYS)
def test_a_run_that_is_asked_to_stop_saves_and_goes_on_to_the_same_end(tmp_path, speaking_policy, way):
    overrides = crash.overrides_of(way, speaking_policy)
    processes = crash.Processes()
    code = processes.run(overrides, tmp_path / "run", ask_after=3)
    assert code == 0
    saved = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert not (tmp_path / "run" / "summary.json").exists()
    assert saved
    assert processes.run(overrides, tmp_path / "run") == 0
    crash.accounted(tmp_path / "run")
    if way in crash.BY_RECIPE:
        assert processes.run(overrides, tmp_path / "whole") == 0
        theirs = crash.weights(tmp_path / "whole")
        assert all((value == theirs[name]).all() for name, value in crash.weights(tmp_path / "run").items())


@pytest.mark.slow
def test_the_warm_up_stops_as_well(tmp_path, speaking_policy):
    processes, overrides = crash.Processes(), crash.overrides_of("synchronous", speaking_policy)
    assert processes.run(overrides, tmp_path / "run", ask_after=1) == 0
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-000001"]
    assert processes.run(overrides, tmp_path / "run") == 0
    crash.accounted(tmp_path / "run")


def test_who_asks_between_two_pieces_of_work_is_heard():
    async def main():
        with Interruption() as interruption:
            interruption.ask(signal.SIGTERM)
            await interruption.unless_asked(short(), finish=lambda: True)

    with pytest.raises(Interrupted):
        asyncio.run(main())


@pytest.mark.slow
def test_a_second_signal_stops_at_once_without_damage(tmp_path, speaking_policy):
    overrides = crash.overrides_of("synchronous", speaking_policy)
    processes = crash.Processes()
    code = processes.run(overrides, tmp_path / "run", ask_after=3, twice=True)
    assert code == 128 + signal.SIGTERM
    assert processes.run(overrides, tmp_path / "run") == 0
    crash.accounted(tmp_path / "run")
