"""``rms top`` and ``rms report`` of a daemon with jobs of every kind."""

from __future__ import annotations

from pathlib import Path

import pytest
from daemon import served
from processes import MPDATA

LONG = " ".join(
    ["mpirun", *MPDATA, "run", "--case", "random", "--grid", "24", "20", "8", "--steps", "3000"]
)


@pytest.mark.promise("monitor")
def test_a_look_and_a_report() -> None:
    with served(2) as rms:
        over = rms.submit("true", "--job-name", "<short>")
        assert rms.over(over) == ["COMPLETED"]
        long = rms.submit(LONG, "--nodes", "2", "--job-name", "long")
        waits = rms.submit("true", "--nodes", "2", "--job-name", "patient")
        rms.running(long)

        look = rms.rms("top")
        assert look.returncode == 0, look.stderr
        assert "1 jobs run, 1 wait, 1 are over" in look.stdout
        assert "n1,n2" in look.stdout and "long" in look.stdout
        assert "(Resources" in look.stdout and "<short>" not in look.stdout
        assert [job["id"] for job in rms.ask("top")["jobs"]] == [over, long, waits]

        done = rms.rms("report", "out")
        page = Path(done.stdout.strip())
        text = (rms.work / page).read_text()
        assert text.count("data:image/png;base64,") == 2
        assert "&lt;short&gt;" in text and "<short>" not in text
        for job in ("long", "patient"):
            assert f"<td>{job}</td>" in text

        (rms.work / "file").touch()
        wrong = rms.rms("report", "file/x")
        assert wrong.returncode == 2
        assert wrong.stderr.startswith("rms: error: cannot write a report to file/x")
        assert len(wrong.stderr.splitlines()) == 1


def test_no_daemon_is_said(tmp_path: Path) -> None:
    with served(1) as rms:
        for command in (["top"], ["report", str(tmp_path)]):
            done = rms.rms(*command, "--server", f"unix:{tmp_path}/none")
            assert done.returncode == 1
            assert "expected a running daemon (rms serve)" in done.stderr
        assert list(tmp_path.iterdir()) == []
