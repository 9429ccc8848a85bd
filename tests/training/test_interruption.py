"""The first signal saves and stops, the second stops immediately; both leave a run that can be resumed."""

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


def test_protected_work_is_finished():
    assert signalled(work=short, finish=True) == "done"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_interruptible_work_is_cancelled(number):
    with pytest.raises(Interrupted) as stopped:
        signalled(work=endless, finish=False, number=number)
    assert stopped.value.signal == number


def test_work_beyond_the_grace_period_is_cancelled():
    with pytest.raises(Interrupted):
        signalled(work=endless, finish=True, grace=0.1)


def test_without_a_signal_nothing_happens():
    async def main():
        with Interruption() as interruption:
            return await interruption.unless_asked(short(), finish=lambda: False)

    assert asyncio.run(main()) == "done"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.slow
@pytest.mark.parametrize("way", crash.WAYS)
def test_interrupted_run_saves_and_resumes_to_the_same_end(tmp_path, speaking_policy, way):
    overrides = crash.build_overrides(way, speaking_policy)
    processes = crash.Processes()
    code = processes.run(overrides, tmp_path / "run", ask_after=3)
    assert code == 0
    saved = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert not (tmp_path / "run" / "summary.json").exists()
    assert saved
    assert processes.run(overrides, tmp_path / "run") == 0
    crash.check_accounting(tmp_path / "run")
    if way in crash.BY_RECIPE:
        assert processes.run(overrides, tmp_path / "whole") == 0
        expected = crash.load_weights(tmp_path / "whole")
        assert all((value == expected[name]).all() for name, value in crash.load_weights(tmp_path / "run").items())


@pytest.mark.slow
def test_warm_up_can_be_interrupted(tmp_path, speaking_policy):
    processes, overrides = crash.Processes(), crash.build_overrides("synchronous", speaking_policy)
    assert processes.run(overrides, tmp_path / "run", ask_after=1) == 0
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-000001"]
    assert processes.run(overrides, tmp_path / "run") == 0
    crash.check_accounting(tmp_path / "run")


def test_signal_between_two_pieces_of_work_is_handled():
    async def main():
        with Interruption() as interruption:
            interruption.request_stop(signal.SIGTERM)
            await interruption.unless_asked(short(), finish=lambda: True)

    with pytest.raises(Interrupted):
        asyncio.run(main())


@pytest.mark.slow
def test_second_signal_stops_immediately_without_damage(tmp_path, speaking_policy):
    overrides = crash.build_overrides("synchronous", speaking_policy)
    processes = crash.Processes()
    code = processes.run(overrides, tmp_path / "run", ask_after=3, twice=True)
    assert code == 128 + signal.SIGTERM
    assert processes.run(overrides, tmp_path / "run") == 0
    crash.check_accounting(tmp_path / "run")
