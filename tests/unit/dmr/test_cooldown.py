"""The engine does not resize a job that rests; seconds of a cooldown are read or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from dmr.errors import UsageError
from dmr.plan import check_seconds
from rms.core.model.events import (
    Later,
    Resize,
    ResizeAsked,
    Resized,
    ResizePoint,
    ResizeRolledBack,
    Started,
    Submitted,
)
from rms.core.model.jobs import JobId, JobSpec, Mode
from rms.core.policies import placing
from rms.core.scheduler.engine import Engine
from rms.formats.jobscript import ScriptError, parse_script

JOB = JobId("1")


@pytest.mark.parametrize("ending", [Resized, ResizeRolledBack])
@pytest.mark.parametrize("rests", [False, True])
def test_a_job_that_rests_is_not_resized_before_its_next_point(
    ending: type[Resized | ResizeRolledBack], rests: bool
) -> None:
    engine = Engine(4, placing("fifo"))
    spec = JobSpec(JOB, 0.0, 1, 4, preferred=1, mode=Mode.MALLEABLE)
    for event in (Submitted(0.0, (spec,)), Started(1.0, JOB), ResizePoint(2.0, JOB)):
        engine.handle(event)
    assert isinstance(engine.handle(ResizeAsked(3.0, JOB, 2))[0], Resize)
    engine.handle(ending(4.0, JOB, rests=rests))
    (said,) = engine.handle(ResizeAsked(5.0, JOB, 3))
    if not rests:
        assert isinstance(said, Resize)
        return
    assert isinstance(said, Later) and "rests" in said.reason
    engine.handle(ResizePoint(6.0, JOB))
    assert isinstance(engine.handle(ResizeAsked(7.0, JOB, 3))[0], Resize)


@pytest.mark.parametrize("given", [0, 0.5, "3", "1e-9"])
def test_seconds_are_read(given: float | str) -> None:
    assert check_seconds(given, "a cooldown") == float(given)


@pytest.mark.parametrize("given", [-1, "soon", "nan", "inf", float("nan")])
def test_what_is_no_cooldown_is_refused(given: float | str) -> None:
    with pytest.raises(UsageError, match="expected a cooldown of at least 0 seconds, got"):
        check_seconds(given, "a cooldown")


def test_a_job_script_may_ask_for_one(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#RMS --cooldown=2.5\ntrue\n")
    assert parse_script(script).options.cooldown_s == 2.5
    script.write_text("#!/bin/sh\n#RMS --cooldown=soon\ntrue\n")
    with pytest.raises(ScriptError, match="expected a number above 0"):
        parse_script(script)
