"""The virtual clock, processes that die on it, histories of calls, and worlds made of them."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Iterator

import pytest
from virtual import acts, seeds
from virtual.history import Call, JobModel, SwitchModel, first_misfit, fits
from virtual.loop import KilledError, Life, StuckError, VirtualLoop
from virtual.world import played


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop(random.Random(1))
    yield loop
    loop.close()


def test_a_day_takes_no_time(loop: VirtualLoop) -> None:
    begun = time.monotonic()
    loop.run_until_complete(asyncio.sleep(86_400.0))
    assert loop.time() == 86_400.0 and time.monotonic() < begun + 60.0


def test_a_wait_that_nothing_ends_is_an_error(loop: VirtualLoop) -> None:
    with pytest.raises(StuckError):
        loop.run_until_complete(loop.create_future())


def test_a_function_in_a_thread_ends_later(loop: VirtualLoop) -> None:
    loop.slow_s = 2.0

    async def call() -> int:
        return await loop.run_in_executor(None, lambda: 3)

    assert loop.run_until_complete(call()) == 3 and loop.time() >= 2.0


def test_a_killed_process_runs_nothing_more(loop: VirtualLoop) -> None:
    life, ran = Life(loop), list[str]()

    async def work() -> None:
        try:
            ran.append("begins")
            await asyncio.sleep(1.0)
            life.point("before a write")
            ran.append("writes")
        finally:
            ran.append("cleans up")

    task = life.start(work())
    life.kill_at = 2  # the first point is the await
    loop.run_until_complete(asyncio.wait([task]))
    assert task.cancelled() and life.dead and life.at == "before a write"
    with pytest.raises(KilledError):
        life.point("any")
    assert ran == ["begins", "cleans up"]


def test_a_stopped_process_goes_on_where_it_was(loop: VirtualLoop) -> None:
    life = Life(loop)

    async def work() -> float:
        await asyncio.sleep(1.0)
        return loop.time()

    task = life.start(work())
    loop.call_later(0.5, life.freeze)
    loop.call_later(9.0, life.thaw)
    assert loop.run_until_complete(task) == 9.0


# --- histories ------------------------------------------------------------------------------------


def test_what_was_set_is_read() -> None:
    drain, read_up = Call("drained", 1.0, 2.0, "ok"), Call("read", 3.0, 4.0, "up")
    during = Call("read", 1.5, 1.6, "up")
    assert fits(SwitchModel("up"), [drain, during])
    assert first_misfit(SwitchModel("up"), [drain, read_up, during]) == [drain, during, read_up]
    lost = Call("up", 2.5, math.inf, None)  # it may have happened, or not
    assert fits(SwitchModel("up"), [drain, lost, read_up])
    assert fits(SwitchModel("up"), [drain, lost, Call("read", 3.0, 4.0, "drained")])


@pytest.mark.parametrize(
    "calls, right",
    [
        ([("submit", "ok"), ("read", "PENDING"), ("read", "RUNNING"), ("read", "OVER")], True),
        ([("submit", "ok"), ("read", "ABSENT")], False),
        ([("submit", "ok"), ("read", "OVER"), ("read", "RUNNING")], False),
        ([("submit", "ok"), ("cancel", "ok"), ("read", "PENDING")], False),
        ([("submit", "ok"), ("cancel", None), ("read", "PENDING")], True),
        ([("submit", "ok"), ("hold", "ok"), ("read", "RUNNING")], False),
        ([("submit", "ok"), ("hold", "ok"), ("release", "ok"), ("read", "RUNNING")], True),
        ([("submit", "ok"), ("release", "ok")], False),
    ],
)
def test_answers_about_a_job(calls: list[tuple[str, str | None]], right: bool) -> None:
    history = [
        Call(kind, float(n), math.inf if answer is None else n + 0.5, answer)
        for n, (kind, answer) in enumerate(calls)
    ]
    assert fits(JobModel(), history) is right
    assert bool(first_misfit(JobModel(), history)) is not right


# --- worlds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [5, 6, 7])
def test_a_seed_is_played_the_same_way_twice(seed: int) -> None:
    setup, sequence = acts.made(seed, 0.3)
    one, two = played(sequence, setup, seed), played(sequence, setup, seed)
    assert setup.engine == acts.ENGINES[seed % 3]
    assert one.wrong == two.wrong == [] and len(one.plans) > 5
    assert one.logged == two.logged and one.counted == two.counted
    assert one.loop.time() == two.loop.time()


@pytest.mark.parametrize("seed", [0, 1])
def test_jobs_with_copies_are_played_the_same_way_twice(seed: int) -> None:
    setup, sequence = acts.survivors(seed, 0.2)
    one, two = played(sequence, setup, seed), played(sequence, setup, seed)
    assert one.wrong == two.wrong == [] and one.counted == two.counted
    assert one.logged == two.logged and one.loop.time() == two.loop.time()


def test_the_acts_that_matter_are_left() -> None:
    sequence = [acts.Look(at_s=float(n)) for n in range(40)]

    def fails(some: object) -> bool:
        return sequence[7] in some and sequence[31] in some  # type: ignore[operator]

    assert seeds.shrunk(sequence, fails, time.monotonic() + 60) == [sequence[7], sequence[31]]


def test_the_source_of_an_act_is_that_act() -> None:
    for act in [*acts.made(3, 1.0)[1], *acts.survivors(1, 1.0)[1]]:
        assert eval(seeds.source(act), {"acts": acts, "math": math}) == act


@pytest.mark.parametrize(
    "words, sentence",
    [
        (["--seeds", "0"], "expected --seeds above 0, got 0"),
        (["--hours", "-1"], "expected --hours above 0, got -1"),
        (["--processes", "-2"], "expected --processes above 0, got -2"),
        (["--json", "/missing/out.json"], "in a folder that exists, got /missing/out.json"),
    ],
)
def test_a_wrong_option_is_one_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as error:
        seeds.main(words)
    assert error.value.code == 2
    assert sentence in capsys.readouterr().err.splitlines()[-1]
