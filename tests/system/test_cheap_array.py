"""An array with --cheap-within over a curve of prices that is compressed to seconds."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from daemon import served
from price_curve import SLOT_S, check_cheap, write_curve


@pytest.mark.promise("cheap-hours")
def test_an_array_runs_in_the_cheap_time_and_its_books_show_it(tmp_path: Path) -> None:
    """The journal again with flat prices: the array runs at once, in the dear time."""
    prices = tmp_path / "p.csv"
    begin_s = write_curve(prices)
    with served(2, "--policy", "cheap-hours", "--prices", str(prices)) as rms:
        script = rms.work / "array.sh"
        script.write_text(
            "#!/bin/sh\n#RMS --cheap-within 3m\n#RMS --time 0:20 --array 0-3\nsleep 1\n"
        )
        done = rms.rms("submit", str(script))
        assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
        at_once = rms.submit("true")
        assert rms.over(at_once) == ["COMPLETED"]  # they hold up no other job
        text = rms.rms("explain", "1_0").stdout
        assert "CheapHours: put off by " in text and ", saves 7" in text
        check_cheap(rms, [f"1_{n}" for n in range(4)], begin_s)
        done = rms.rms("acct", "--gain", "--cost")
        assert done.returncode == 0 and "Waiting for cheap hours saves " in done.stdout
        rms.end(signal.SIGTERM)
        out = tmp_path / "out"
        words = ["--journal", str(rms.state / "journal.sqlite"), "--prices", str(prices)]
        done = rms.rms("report", str(out), *words, "--json", str(tmp_path / "r.json"))
        assert done.returncode == 0, done.stderr
        assert "What cheap hours have saved" in (out / "report.html").read_text()
        hours = json.loads((tmp_path / "r.json").read_text())["hours"]
        assert (hours["jobs"], hours["patient"]) == (5, 4)
        real, priced, flat = hours["real"], hours["priced"], hours["flat"]
        assert priced["price"] < flat["price"]
        assert priced["mean_turnaround_s"] > flat["mean_turnaround_s"] + SLOT_S / 2
        assert priced["busy_j"] == pytest.approx(real["busy_j"], rel=0.2)
        assert priced["mean_turnaround_s"] == pytest.approx(real["mean_turnaround_s"], abs=2.0)


def test_a_deadline_that_has_passed_is_refused() -> None:
    with served(1) as rms:
        script = rms.work / "job.sh"
        script.write_text("#!/bin/sh\ntrue\n")
        for words, expected in (
            (("--deadline", "2020-01-01"), "expected a time after the job may start"),
            (("--deadline", "soon"), "--deadline: expected a time like now+1hour"),
            (("--cheap-within", "12"), "--cheap-within: expected a time like 90m, 12h or 2d"),
        ):
            done = rms.rms("submit", *words, str(script))
            assert done.returncode == 2 and expected in done.stderr, done.stderr
            assert len(done.stderr.splitlines()) == 1
        assert rms.ask("queue") == []
