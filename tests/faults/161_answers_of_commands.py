"""explain of an array, attach to a waiting job, and changes of no job printed nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from daemon import Rms, served
from processes import RMS, started


@pytest.fixture(scope="module")
def rms() -> Iterator[Rms]:
    with served(1) as opened:
        yield opened


@pytest.fixture(scope="module")
def blocker(rms: Rms) -> str:
    """A job that has the only node."""
    job = rms.submit("sleep 600")
    rms.until(lambda: rms.row(job)["state"] == "RUNNING", "a job that runs")
    return job


def test_explain_of_an_array(rms: Rms, blocker: str) -> None:
    array = rms.submit("true", "--array", "0-4")
    assert rms.rms("hold", f"{array}_[3-4]").returncode == 0
    done = rms.rms("explain", array)
    assert done.returncode == 0
    heads, *rows = (line.split() for line in done.stdout.splitlines())
    assert heads == ["JOBID", "STATE", "NODES", "REASON"]
    reasons = {row[0]: " ".join(row[1:]) for row in rows}
    assert reasons[f"{array}_[3-4]"] == "PENDING JobHeldUser"
    assert any("PENDING Resources" in reason for reason in reasons.values())
    assert f"rms explain {array}_0 shows all decisions" in done.stderr
    assert "TIME" in rms.rms("explain", f"{array}_0").stdout
    assert rms.rms("explain", f"{array}_9").returncode == 2
    done = rms.rms("explain", "abc")
    assert done.returncode == 2 and "expected a job id like 7, 7_3 or 7_[1-3,5], got 'abc'" in (
        done.stderr
    )
    assert rms.rms("cancel", array).stdout.split() == ["CANCELLED", f"{array}_[0-4]"]


def test_attach_reports_that_a_job_waits(rms: Rms, blocker: str) -> None:
    job = rms.submit("echo hello", "--hold")
    messages = rms.work / "messages"
    with (
        messages.open("w") as file,
        started([*RMS, "attach", job], env=rms.env(), stderr=file) as attach,
    ):
        expected = f"rms: job {job} waits: JobHeldUser\n"
        rms.until(lambda: messages.read_text() == expected, expected)
        rms.ask("cancel", job)
        assert attach.wait(120) == 1
