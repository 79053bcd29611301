"""``rms top`` and ``rms report`` of a daemon with jobs of every kind."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import pytest
from daemon import DEADLINE_S, Rms, served
from powercap import Counters
from processes import MPDATA
from wide_flexible import CASE, PACED

from rms.cli import screen

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
        assert "Running 1, Pending 1, Completed 1" in look.stdout
        assert "n1,n2" in look.stdout and "long" in look.stdout
        assert "(Resources" in look.stdout and "<short>" not in look.stdout
        assert [job["id"] for job in rms.ask("top")["jobs"]] == [over, long, waits]

        done = rms.rms("report", "out")
        page = Path(done.stdout.strip())
        text = (rms.work / page).read_text()
        assert text.count('class="bar ') >= 3 and "data:image" not in text
        assert (rms.work / "out" / "nodes.png").is_file()
        assert "&lt;short&gt;" in text and "<short>" not in text
        for job in ("long", "patient"):
            assert f"<td>{job}</td>" in text

        (rms.work / "file").touch()
        wrong = rms.rms("report", "file/x")
        assert wrong.returncode == 2
        assert wrong.stderr.startswith(
            "rms: error: expected a folder that can be written, got file/x"
        )
        assert len(wrong.stderr.splitlines()) == 1


@pytest.mark.promise("cost")
def test_a_job_says_at_its_end_what_it_took_and_the_costs_add_up(tmp_path: Path) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text("currency = 'EUR'\nprice_per_kwh = 0.5\nco2_g_per_kwh = 90\n")
    with served(2, "--prices", str(prices)) as rms:
        script = rms.work / "short.sh"
        script.write_text("#!/bin/sh\nprintf 'no end of line'\n")
        done = rms.rms("submit", "-N", "2", "-t", "5", "--wait", str(script))
        assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
        row = rms.row("1")
        text = Path(row["output"]).read_text()
        assert text == f"no end of line\nrms: {row['summary']}\n"
        assert done.stderr == f"rms: {row['summary']}\n"
        run_s = row["end_s"] - row["start_s"]
        said = f"job 1 COMPLETED: {run_s:.1f} s on 2 nodes, {row['energy_j']:.1f} J (model), "
        assert row["summary"].startswith(said)
        assert row["summary"].endswith(" g CO2") and " EUR, " in row["summary"]

        found = rms.ask("acct", "--cost")
        sums = found["sums"]
        for each, per_kwh in (("cost", 0.5), ("co2_g", 90.0)):
            parts = sum(sums[part][each] for part in ("jobs", "idle", "off", "boot"))
            whole = sums["cluster"][each]
            assert parts == pytest.approx(whole, rel=1e-9)
            assert whole == pytest.approx(sums["cluster"]["energy_j"] / 3.6e6 * per_kwh, rel=1e-9)
        (job,) = found["jobs"]
        assert job["cost"] == sums["jobs"]["cost"] > 0


@pytest.mark.promise("cost")
def test_measured_joules_are_told_with_their_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RMS_POWERCAP", str(tmp_path / "powercap"))
    with Counters(tmp_path / "powercap", 50.0) as counters, served(1) as rms:
        rms.until(lambda: rms.get("/nodes")[0]["power_source"] == "rapl", "a reading")
        rms.submit("sleep 5")
        assert rms.over("1") == ["COMPLETED"]
        row = rms.until(lambda: (found := rms.row("1"))["summary"] and found, "the last line")
        run_s = row["end_s"] - row["start_s"]
        assert row["summary"] == (
            f"job 1 COMPLETED: {run_s:.1f} s on 1 node, {row['energy_j']:.1f} J (rapl)"
        )
        assert row["energy_j"] == pytest.approx(50.0 * run_s, rel=0.6)
        found = rms.ask("acct", "--energy")
        sums = found["sums"]
        assert sums["jobs"]["by_source_j"]["rapl"] == pytest.approx(row["energy_j"], rel=1e-9)
        whole = sum(part["joules"] for part in found["rows"])
        assert whole == pytest.approx(sums["cluster"]["energy_j"], rel=1e-9)
        assert sums["cluster"]["by_source_j"]["rapl"] <= counters.joules
        assert {part["device"] for part in found["rows"] if part["owner"] == "1"} >= {"package-0"}
        assert " rapl" in rms.rms("top").stdout


@pytest.mark.wide
@pytest.mark.promise("top")
def test_the_view_in_a_terminal_outlives_its_daemon() -> None:
    async def looked(rms: Rms) -> None:
        app = screen.Top(rms.server)
        async with app.run_test():

            async def until(part: str, words: str) -> None:
                end_s = time.monotonic() + DEADLINE_S
                while words not in (said := str(app.query_one(part).content)):
                    assert time.monotonic() < end_s, said
                    await asyncio.sleep(0.05)

            await until("#details", "1 <b>long</b>, fixed")
            await asyncio.to_thread(rms.end, signal.SIGKILL)
            await until("#summary", "no daemon: no answer")
            await asyncio.to_thread(rms.start)
            await until("#summary", "Running 1, Pending 0")
            await until("#details", "1 <b>long</b>, fixed")

    with served(1) as rms:
        rms.submit("sleep 600", "--job-name", "<b>long</b>")
        asyncio.run(looked(rms))


@pytest.mark.promise("monitor")
def test_what_a_resize_has_brought() -> None:
    """A resized job lends a node; ``rms acct --gain`` and the report replay it without."""
    with served(2) as rms:
        body = f"mpirun {PACED} run {CASE}"
        long = rms.submit(body, "--nodes", "1-2", "--mode", "malleable", "--job-name", "lender")
        rms.running(long)
        short = rms.submit("sleep 3", "--mode", "fixed", "--nodes", "1", "--time", "1")
        assert rms.over(short) == ["COMPLETED"]
        assert (2, 1) in rms.resizes(long)

        brought = rms.ask("acct", "--gain")
        assert brought["jobs"] == 2 and brought["left_out"] == 0
        by_id = {row["id"]: row for row in brought["rows"]}
        assert 3600 > by_id[long]["lent_node_s"] >= 2.5 and by_id[short]["lent_node_s"] == 0.0
        assert brought["real"]["resizes"] >= 1 and brought["without"]["resizes"] == 0
        # without the resize, the short job starts when the long one is over: not before now
        assert by_id[short]["without_s"] > by_id[short]["with_s"]
        assert brought["later"] == 1

        text = rms.rms("acct", "--gain").stdout
        assert "REPLAY WITHOUT RESIZES" in text and "lent by 1 job to other jobs" in text
        wrong = rms.rms("acct", "--gain", long)
        assert wrong.returncode == 2 and "expected --gain alone" in wrong.stderr

        page = Path(rms.rms("report", "out").stdout.strip())
        text = (rms.work / page).read_text()
        assert "<h2>What resizes have brought</h2>" in text and 'class="step wait"' in text
        assert "2→1" in text and (rms.work / "out" / "gain-by-job.csv").is_file()
        rms.hurry()
        assert rms.over(long) == ["COMPLETED"]
