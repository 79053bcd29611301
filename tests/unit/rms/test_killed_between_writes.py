"""A daemon killed before and after every write of its journal: jobs end as if it never was.

What happens to it is a story in steps. Whoever tells the daemon something tells it again where it
was not answered, as clients and jobs do; processes go on meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest
from faults import Fault
from killed import COMMAND, Bench, KilledError, Outliving
from killed import bench as opened

from rms.core.model.events import Resize as ResizeDecision
from rms.core.model.jobs import JobId, JobState, Mode
from rms.daemon.restart.recover import replayed
from rms.daemon.store.archive import EVERY
from rms.daemon.store.record import REQUEUED, ResizeNote
from rms.launch.base import LaunchError, ManagedProcess, ScriptLaunch, WorldLaunch
from rms.wire.messages import (
    Begun,
    CompletionRecord,
    Done,
    Poll,
    Ready,
    Report,
    ResizeReport,
    write_completion,
)

ONE = JobId("1")
Step = Callable[[Bench], None]


# --- steps: each may be taken again --------------------------------------------------------------


def submits(bench: Bench) -> None:
    if bench.daemon.context.state.job(ONE) is None:
        bench.submit("1", (1, 4, 2), Mode.MALLEABLE)


def launches(key: str) -> Step:
    def step(bench: Bench) -> None:
        bench.daemon.worlds.launch(bench.daemon.jobs[ONE], COMMAND, key)
        bench.daemon.worlds.poll(
            bench.daemon.jobs[ONE], Poll(1, 100, 0, "warm", ((0, 2),), restartable=True)
        )

    return step


def wants(size: int) -> Step:
    def step(bench: Bench) -> None:
        running = bench.daemon.context.state.running[ONE]
        if size not in (running.size, running.requested_size):
            bench.daemon.worlds.poll(
                bench.daemon.jobs[ONE], Poll(2, 100, 0, "warm", ((0, 2),), restartable=True)
            )
            assert isinstance(bench.daemon.resize(ONE, size, "warm"), ResizeDecision)

    return step


def reports(make: Callable[[int, tuple[int, ...]], list[Report]]) -> Step:
    def step(bench: Bench) -> None:
        resize = bench.daemon.jobs[ONE].resize
        for report in [] if resize is None else make(resize.number, tuple(resize.new.slots)):
            bench.daemon.worlds.report(bench.daemon.jobs[ONE], report)

    return step


def moved(size: int) -> list[Step]:
    """Return the steps of a resize."""
    row = ResizeReport(5, 2, size, "warm", 1.0, 0.5, 0.1, 8, 1.0)
    return [
        wants(size),
        looks,
        reports(lambda n, new: [Ready(n, launch, "addr", "port") for launch in new]),
        reports(lambda n, new: [Begun(n)]),
        reports(lambda n, new: [Done(n, row, new)]),
        leaves,
        looks,
        looks,
    ]


def leaves(bench: Bench) -> None:
    """Let the launches end that are no more the job's."""
    (step,) = bench.daemon.jobs[ONE].steps
    for launch in [n for n in step.worlds if n not in step.current]:
        bench.machine.end("1", launch)


def looks(bench: Bench) -> None:
    for _ in range(3):
        bench.now_s += 0.1
        bench.daemon.tick()


def stops(bench: Bench) -> None:
    """Let the world end at a checkpoint, as it was told."""
    job = bench.daemon.jobs[ONE]
    if bench.machine.of("1") and job.resize is not None and job.resize.state == "stopping":
        ended(bench, "CANCELLED")


def ends(bench: Bench) -> None:
    """Let the job come to its end."""
    ended(bench, "COMPLETED")
    bench.machine.end("1", None)


def ended(bench: Bench, state: str) -> None:
    record = CompletionRecord(state, 0, "", 42, 1, 1)  # type: ignore[arg-type]
    write_completion(bench.launcher.completion_file("1", 0), record)
    for _, launch, _ in list(bench.machine.live.values()):
        if launch is not None:
            bench.machine.end("1", launch)


def told_to_wait_again(bench: Bench) -> None:
    if bench.machine.begun.count(("1", None)) == 1:
        bench.daemon.scripts.cancel(bench.daemon.jobs[ONE], REQUEUED)


def gives_up(bench: Bench) -> None:
    if bench.machine.begun.count(("1", None)) == 1:
        for launch in bench.machine.of("1"):
            bench.machine.end("1", bench.machine.live[launch][1], 1)


def fixed(bench: Bench) -> None:
    bench.machine.refusal = "fixed nodes"


def cancelled(bench: Bench) -> None:
    if ONE in bench.daemon.context.state.running:
        bench.daemon.scripts.cancel(bench.daemon.jobs[ONE], if_journalled=True)


def late(bench: Bench) -> None:
    bench.now_s += 100.0


def drained(bench: Bench) -> None:
    bench.daemon.nodes.drain(["n1", "n4"], drained=True)


def resumed(bench: Bench) -> None:
    bench.daemon.nodes.drain(["n1"], drained=False)


AGAIN = [looks, looks, launches("b"), ends, looks, late, looks]
STORIES: dict[str, tuple[list[Step], str, int]] = {
    "resized twice": (
        [submits, launches("a"), *moved(1), *moved(3), ends, looks, late, looks],
        "COMPLETED",
        1,
    ),
    "relaunched": ([submits, launches("a"), fixed, wants(1), stops, *AGAIN], "COMPLETED", 2),
    "requeued": (
        [submits, launches("a"), told_to_wait_again, gives_up, *AGAIN],
        "COMPLETED",
        2,
    ),
    "cancelled": ([submits, launches("a"), cancelled, looks, late, looks, looks], "CANCELLED", 1),
    "on nodes that are drained": (
        [submits, drained, launches("a"), resumed, ends, looks, late, looks],
        "COMPLETED",
        1,
    ),
}
"""By name: the steps, the state of the job at their end, and how often its script was started."""


def told(
    folder: Path, name: str, at: int | None, *, after: bool = False, keep: int | None = None
) -> int:
    """Tell a story; return how many writes the first daemon made.

    Args:
        keep: how many entries are kept, with a snapshot after every one; None for all without any.
    """
    steps, state, scripts = STORIES[name]
    every = EVERY if keep is None else 1
    with patch("rms.daemon.store.archive.EVERY", every), opened(folder, keep=keep) as bench:
        try:
            bench.start(at, after=after)
        except KilledError:
            bench.start()
        db = bench.first
        for step in steps:
            try:
                step(bench)
            except KilledError:
                bench.start()
                step(bench)
        context = bench.daemon.context
        where = f"{'after' if after else 'before'} write {at}: {bench.said}"
        (job,) = context.state.ended.values()
        assert job.state is JobState(state), where
        down = {"on nodes that are drained": {3}}.get(name, set())
        assert (context.state.free_count, context.state.down) == (4 - len(down), down), where
        assert bench.machine.live == {}, where
        assert bench.machine.begun.count(("1", None)) == scripts, where
        worlds = [launch for _, launch in bench.machine.begun if launch is not None]
        assert len(set(worlds)) == len(worlds), where
        rows = [row.number for row in context.jobs[ONE].resizes]
        assert rows == {"resized twice": [1, 2], "relaunched": [1]}.get(name, []), where
        assert context.jobs[ONE].summary, where
        assert context.journal.noted(ResizeNote, "1").resize is None, where
        found = replayed(context.journal)
        assert (found.differing, found.refused, found.unrecorded) == ([], [], {}), where
        return db.writes


def test_a_job_that_runs_again_is_adopted_though_its_second_start_was_not_noted(
    tmp_path: Path,
) -> None:
    """The number of the process that ran its first script is not taken for the second's."""

    def start(launcher: Outliving, job: str, launch: ScriptLaunch) -> ManagedProcess:
        launcher.machine.start(job, None, launcher.status_file(job))
        raise KilledError

    with opened(tmp_path) as bench:
        submits(bench)
        told_to_wait_again(bench)
        bench.machine.end("1", None, 143)
        with patch.object(Outliving, "start_script", start), pytest.raises(KilledError):
            looks(bench)
        bench.start()
        looks(bench)
        state = bench.daemon.context.state
        assert bench.machine.begun == [("1", None)] * 2
        assert state.running[ONE].state is JobState.RUNNING, bench.said
        bench.machine.end("1", None)
        looks(bench)
        assert state.ended[ONE].state is JobState.COMPLETED


@pytest.mark.parametrize("lives", [True, False])
def test_a_first_world_whose_start_was_not_noted_is_the_steps(tmp_path: Path, lives: bool) -> None:
    """Its ranks live, or have ended while there was no daemon: it is not started a second time."""

    def boot(launcher: Outliving, job: str, launch: WorldLaunch) -> ManagedProcess:
        kept = launcher.world_status_file(job, launch.launch)
        launcher.machine.start(job, launch.launch, kept)
        raise KilledError

    with opened(tmp_path) as bench:
        submits(bench)
        with patch.object(Outliving, "boot_world", boot), pytest.raises(KilledError):
            bench.daemon.worlds.launch(bench.daemon.jobs[ONE], COMMAND, "key")
        if not lives:
            bench.machine.end("1", 0, 3)
        bench.start()
        looks(bench)
        bench.daemon.worlds.launch(bench.daemon.jobs[ONE], COMMAND, "key")
        (step,) = bench.daemon.jobs[ONE].steps
        assert (step.current, step.exit_code) == ((0,), None if lives else 3), bench.said
        assert bench.machine.begun == [("1", None), ("1", 0)]


def test_a_line_that_could_not_be_started_has_failed_for_a_restarted_daemon_too(
    tmp_path: Path,
) -> None:
    """Its launcher, which asks again, is told so: the line is not run behind the script's back."""

    def boot(launcher: Outliving, job: str, launch: WorldLaunch) -> ManagedProcess:
        raise LaunchError("no mpiexec")

    with opened(tmp_path) as bench:
        submits(bench)
        with patch.object(Outliving, "boot_world", boot):
            bench.daemon.worlds.launch(bench.daemon.jobs[ONE], COMMAND, "key")
        bench.start()
        job = bench.daemon.jobs[ONE]
        assert bench.daemon.worlds.launch(job, COMMAND, "key") == 0
        assert [(step.exit_code, step.message) for step in job.steps] == [(1, "no mpiexec")]
        assert bench.machine.begun == [("1", None)]


ROWS = [(name, after, None) for name in STORIES for after in (True, False)]
PRUNED = [("resized twice", after, 4) for after in (True, False)]


@pytest.mark.promise("killed-anywhere")
@pytest.mark.parametrize(
    ("name", "after", "keep"),
    [ROWS[0], *(pytest.param(*row, marks=pytest.mark.wide) for row in (*ROWS[1:], *PRUNED))],
)
def test_a_kill_at_any_write_changes_nothing(
    tmp_path: Path, name: str, after: bool, keep: int | None, fault: Fault
) -> None:
    (tmp_path / "whole").mkdir()
    writes = told(tmp_path / "whole", name, None, keep=keep)
    for at in range(1, writes + 1):
        folder = tmp_path / str(at)
        folder.mkdir()
        told(folder, name, at, after=after, keep=keep)
    side = "after" if after else "before"
    pruned = "" if keep is None else ", snapshots and pruning among them"
    done = f"killed {side} each of {writes} writes{pruned}, a job being {name}"
    fault(done, "each end as without")
