"""The command ``rms profile`` without its runs: what is set meanwhile, kept and printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rms.cli.main import main
from rms.client.commands import script_of
from rms.formats.profiles import MALLEABLE, Point
from rms.studies import profile as study
from rms.wire.users import Books, BooksAnswer, EnergyRow, JobRow, SeenSteps, SlurmRow

MHZ = (800, 1000, 2000)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RMS_PROFILES", str(tmp_path / "kept"))
    monkeypatch.setenv("RMS_CPUFREQ", str(tmp_path / "none"))
    monkeypatch.setattr(study, "warm_up", lambda setup: None)
    return tmp_path


def measured(
    setup: study.ProfilingSetup, mhz: float | None = None, way: str = "separate"
) -> list[Point]:
    """A law of time and one of power, exact."""
    clock = 1.0 if mhz is None else mhz / 2000.0
    found = []
    for n in setup.sizes:
        time_s = (2.0 + 10.0 / n) / clock
        node_w = 3.0 + 5.0 * (12.0 / (n * (2.0 + 10.0 / n))) * clock**3
        joules = n * node_w * time_s
        found.append(
            Point(
                n,
                way,
                (time_s,) * setup.repeat,
                (joules,) * setup.repeat,
                "rapl",
                7.0,
                2.0,
                mhz,
                0.5,
            )
        )
    return found


@pytest.fixture
def processors(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    policy = folder / "cpufreq" / "policy0"
    policy.mkdir(parents=True)
    khz = " ".join(str(1000 * each) for each in reversed(MHZ))
    for name, text in (
        *(("scaling_available_frequencies", khz), ("scaling_min_freq", "800000")),
        *(("scaling_max_freq", "2000000"), ("cpuinfo_min_freq", "800000")),
        ("cpuinfo_max_freq", "2000000"),
    ):
        (policy / name).write_text(f"{text}\n")
    monkeypatch.setenv("RMS_CPUFREQ", str(policy.parent))
    return policy


def limits(policy: Path) -> tuple[int, int]:
    low, high = (int((policy / f"scaling_{end}_freq").read_text()) for end in ("min", "max"))
    return low // 1000, high // 1000


def test_clocks_are_set_for_a_run_and_left_as_found(
    processors: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = []

    def run(setup: study.ProfilingSetup, mhz: float | None = None) -> list[Point]:
        seen.append((mhz, limits(processors)))
        return measured(setup, mhz)

    monkeypatch.setattr(study, "separate", run)
    assert main(["profile", "--nodes", "1", "--json", "out.json", "--", "true"]) == 0
    assert seen == [(None, (800, 2000)), *((float(f), (f, f)) for f in MHZ)]
    assert limits(processors) == (800, 2000)
    found = json.loads(Path("out.json").read_text())["ways"]["separate"]
    assert [row["mhz"] for row in found["rows"]] == [None, 2000.0, 1000.0, 800.0]
    best = min(found["rows"], key=lambda row: row["energy_j"])
    assert found["operating_points"]["energy"]["mhz"] == best["mhz"] == 1000.0
    assert "P(n, f) = n (3 " in capsys.readouterr().out.replace("(3 +-", "3 (+-")
    seen.clear()
    assert main(["profile", "--nodes", "1", "--mhz", "1000", "--", "true"]) == 0
    assert [mhz for mhz, _ in seen] == [None, 1000.0]
    assert main(["profile", "--nodes", "1", "--mhz", "900", "--", "true"]) == 2
    sentence = capsys.readouterr().err
    assert "expected --mhz auto, none or some of 800, 1000, 2000, got '900'" in sentence


def test_a_failed_run_leaves_clocks_as_found_and_no_profile(
    processors: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(setup: study.ProfilingSetup, mhz: float | None = None) -> list[Point]:
        if mhz is not None:
            raise study.ProfilingError("expected the command to end with status 0, got FAILED")
        return measured(setup)

    monkeypatch.setattr(study, "separate", run)
    assert main(["profile", "--nodes", "1", "--", "true"]) == 1
    assert limits(processors) == (800, 2000)
    assert not (folder / "kept").exists()


def test_clocks_that_cannot_be_set_are_refused_when_asked_for(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", "--nodes", "1", "--mhz", "1000", "--", "true"]) == 2
    assert "expected --mhz none here, got '1000': cpu: no frequencies in" in capsys.readouterr().err


def test_launchers_are_left_out_and_the_program_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a job script, where a launcher line is the RMS's."""
    monkeypatch.setattr(study, "separate", measured)
    Path("solve.py").write_text("")
    assert main(["profile", "--nodes", "1", "--", "mpirun", "-n", "4", "python3", "solve.py"]) == 0
    (kept,) = (folder / "kept").glob("*.json")
    assert kept.name.startswith("solve.py-")
    assert json.loads(kept.read_text())["program"]["words"] == ["python3", "solve.py"]
    assert script_of(["mpirun", "-n", "4", "x"]) == "#!/bin/sh\nexec mpirun -n 4 x\n"


def test_an_empty_meter_command_is_none(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "--nodes", "1", "--meter-command", " ", "--", "true"]) == 2
    assert "expected a command that prints readings, got ' '" in capsys.readouterr().err


def test_bandwidth_is_of_this_machines_cores(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("c.toml").write_text('[[nodes]]\nname = "n1"\n')
    assert main(["profile", "--bandwidth", "--cluster", "c.toml", "--", "true"]) == 2
    said = capsys.readouterr().err
    assert "expected --bandwidth with the cores of this machine, got --cluster" in said


def test_both_ways_are_printed_with_their_difference(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rms.cli.profile.local_nodes", lambda asked: 8)
    monkeypatch.setattr(study, "separate", measured)

    def one_run(setup: study.ProfilingSetup) -> tuple[list[Point], int]:
        return measured(setup, way=MALLEABLE), 50

    monkeypatch.setattr(study, "malleable", one_run)
    assert main(["profile", "--repeat", "3", "--", "true"]) == 0
    said = capsys.readouterr().out
    assert "t(n) = (2 +- " in said and "(10 +- " in said and "off by 0.0 % on average" in said
    assert "least energy up to 1.1 times the fastest: 8 nodes" in said
    assert "energy from: rapl" in said
    words = ["profile", "--mode", "malleable", "--figure", "p.png", "--json", "-", "--", "true"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["ways"]) == {"separate", "malleable"} and found["steps"] == 50
    assert found["ways"]["separate"]["time_law"]["t1_s"] == pytest.approx(10.0)
    assert Path("p.png").read_bytes().startswith(b"\x89PNG")
    assert main(["profile", "--show", "true", "--slowdown", "2"]) == 0
    said = capsys.readouterr().out
    assert "malleable over separate, less 1:" in said and "+0.0" in said
    (kept,) = (folder / "kept").glob("*.json")
    assert main(["profile", "--show", str(kept)]) == 0
    assert main(["profile", "--show", "--", "true", "more"]) == 2
    assert "expected a command that was profiled on this machine" in capsys.readouterr().err
    assert main(["profile", "--show"]) == 0
    assert "1,2,4,8" in capsys.readouterr().out


def test_a_profile_that_cannot_be_read_is_not_overwritten(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(study, "warm_up", lambda setup: pytest.fail("it has run"))
    target = folder / "mine.json"
    target.write_text("something else")
    assert main(["profile", "--nodes", "1", "--out", "mine.json", "--", "true"]) == 2
    assert "expected a profile, got mine.json" in capsys.readouterr().err
    assert target.read_text() == "something else"


# --- what is made of the books -------------------------------------------------------------------


def books_with(curve: list[tuple[float, float]]) -> BooksAnswer:
    none = Books(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, "model")
    return BooksAnswer(none, [], ["n1", "n2"], 0.0, "fifo", curve, None)


def test_a_kernels_peak_is_above_what_its_nodes_draw_idle() -> None:
    curve = [(0.0, 4.0), (1.0, 12.0), (3.0, 30.0), (4.0, 10.0), (6.0, 90.0)]
    assert study.peak_and_idle(books_with(curve), [(1.0, 6.0)], 1.0) == (26.0, 2.0)
    assert study.peak_and_idle(books_with(curve), [(4.5, 5.0)], 1.0) == (6.0, 2.0)
    assert study.peak_and_idle(books_with([]), [(0.0, 1.0)], 0.0) == (0.0, 0.0)


def test_power_at_a_size_is_that_of_its_world() -> None:
    def row(world: int, begin_s: float, end_s: float, joules: float, resize: int = 0) -> EnergyRow:
        times = begin_s, end_s
        return EnergyRow("1", world, resize, "n1", "node", "rapl", *times, joules, 1.0, False, 0.0)

    rows = [row(0, 0.0, 10.0, 50.0), row(1, 10.0, 12.0, 99.0, resize=1), row(1, 12.0, 22.0, 70.0)]
    rows.append(row(1, 12.0, 22.0, 80.0))  # of another node
    first, second = study.StepsWindow(1, 2.0, 8.0, 0.1), study.StepsWindow(2, 13.0, 20.0, 0.1)
    assert first.power_w(rows) == pytest.approx((5.0, 0.1 + 5.0 * 0.08))
    assert second.power_w(rows) == pytest.approx((15.0, 0.2 + 15.0 * 0.08))


def test_energy_of_a_step_of_a_job_beside_others_by_its_size() -> None:
    """Two nodes for 10 s, a resize, then one for 20 s, of which a meter's uncertainty is known."""

    def row(
        node: str, begin_s: float, end_s: float, joules: float, source: str = "rapl by cpu time"
    ) -> EnergyRow:
        resize = 1 if begin_s == 10.0 else 0
        error_j = 0.0 if source == "model" else joules / 10.0
        key = "7", 0, resize, node, "package-0", source
        return EnergyRow(*key, begin_s, end_s, joules, error_j, True, 0.0)

    rows = [
        *(row("n1", 0.0, 10.0, 300.0), row("n2", 0.0, 10.0, 200.0)),
        *(row("n1", 10.0, 15.0, 999.0), row("n2", 10.0, 15.0, 999.0)),
        row("n1", 15.0, 35.0, 600.0),
        EnergyRow("8", 0, 0, "n1", "package-0", "rapl", 0.0, 35.0, 77.0, 1.0, True, 0.0),
    ]
    seen = [SeenSteps(1, 8, 16.0), SeenSteps(2, 9, 9.0), SeenSteps(4, 3, 1.0)]
    job = JobRow(
        **dict.fromkeys(("name", "reason", "answer", "resizing", "output", "energy_source"), ""),
        **dict.fromkeys(("step", "steps", "nodes_min", "nodes_max", "size"), 1),
        **dict.fromkeys(("submit_s", "start_s", "end_s", "energy_j"), 0.0),
        id="7",
        state="COMPLETED",
        mode="malleable",
        nodes=[],
        resizes=[],
        slurm=SlurmRow(),
        seen=seen,
    )
    one, two = study.steps_of_job(job, rows)
    assert (one.nodes, one.step_s, one.joules) == (1, 2.0, pytest.approx(60.0))
    assert (two.nodes, two.step_s, two.joules) == (2, 1.0, pytest.approx(50.0))
    assert one.uncertainty_j == pytest.approx(6.0) and one.source == "rapl by cpu time"
    rows[0] = row("n1", 0.0, 10.0, 300.0, "model")
    _, two = study.steps_of_job(job, rows)
    assert two.uncertainty_j is None and two.source == "model and rapl by cpu time"
    lines = study.job_lines([one, two])
    assert lines[0].split() == ["NODES", "STEPS", "S/STEP", "W", "J/STEP", "+-", "SOURCE"]
    assert lines[2].split()[:6] == ["2", "9", "1", "50.0", "50", "unknown"]
