"""``rms profile`` for real, and what is planned by a profile afterwards."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from daemon import served
from powercap import Counters
from processes import Run, called

from rms.cli.main import main
from rms.studies import bandwidth
from rms.studies import profile as study

RMS = [sys.executable, "-m", "rms"]

WORK = "#!/bin/sh\nsleep 0.2\n"


@pytest.mark.promise("profile")
def test_a_profiled_command_needs_no_table(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work.sh").write_text(WORK)
    (tmp_path / "work.sh").chmod(0o755)
    kept = {"RMS_PROFILES": str(tmp_path / "kept")}
    size = min(2, len(os.sched_getaffinity(0)))
    done = run(
        *RMS, "profile", "--nodes", str(size), "--json", "out.json", "--", "./work.sh", env=kept
    )
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads((tmp_path / "out.json").read_text())
    (point,) = found["points"]
    assert point["nodes"] == size and point["source"] == "model"
    # A busy core of the model: 10 W, 8 W of them above idle.
    assert point["energy_j"][0] == pytest.approx(10.0 * size * point["time_s"][0], rel=1e-6)
    assert (point["peak_w"], point["idle_w"]) == pytest.approx((8.0 * size, 2.0 * size))
    assert "least energy" in done.stdout and "energy from: model" in done.stdout
    shown = run(*RMS, "profile", "--show", "--", "./work.sh", env=kept)
    assert shown.returncode == 0 and shown.stdout == done.stdout
    monkeypatch.setenv("RMS_PROFILES", kept["RMS_PROFILES"])
    with served(2) as rms:
        (rms.work / "work.sh").symlink_to(tmp_path / "work.sh")

        def submit(*options: str) -> str:
            said = rms.rms("submit", "--json", "-", *options, "--", "./work.sh")
            assert said.returncode == 0, said.stderr
            number: str = json.loads(said.stdout)["id"]
            rms.over(number)
            return number

        by_profile = submit("--nodes", "1-2", "--mode", "moldable")
        assert rms.row(by_profile)["profile"].startswith("work.sh, measured 2")
        assert rms.row(submit("--profile", "none"))["profile"] == ""
        refused = rms.rms("submit", "--profile", "nobody", "--", "./work.sh")
        assert refused.returncode == 2 and "--profile: expected a file or" in refused.stderr
        rms.ends_well()


MOVES = """import sys, time, numpy as np
a, b, begun = np.ones(4_000_000), np.ones(4_000_000), time.perf_counter()
while time.perf_counter() < begun + 0.4:
    a += b
"""


@pytest.mark.wide
@pytest.mark.promise("profile-bandwidth")
def test_copies_and_probes_run_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What they tell of is the machine's; here that all were run, each told, and all was kept."""
    for name, value in (("ROUNDS", 2), ("PROBE_S", 0.3), ("SHORTEST_S", 0.1)):
        monkeypatch.setattr(bandwidth, name, value)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RMS_PROFILES", str(tmp_path / "kept"))
    (tmp_path / "moves.py").write_text(MOVES)
    words = [sys.executable, "moves.py"]
    assert main(["profile", "--nodes", "1", "--bandwidth", "--json", "o.json", "--", *words]) == 0
    kept = json.loads((tmp_path / "o.json").read_text())
    found, cores = kept["bandwidth"], len(os.sched_getaffinity(0))
    runs = {(run["copies"], run["probes"]): run for run in found["runs"]}
    assert list(runs) == bandwidth.cases(cores) and found["rounds"] == 2
    assert all((run["time_s"] > 0.0) == (copies > 0) for (copies, _), run in runs.items())
    assert all((run["probe_gb_s"] > 0.0) == (probes > 0) for (_, probes), run in runs.items())
    assert 0.0 < found["probe_gb_s"] <= found["node_gb_s"] == kept["node_bandwidth_gb_s"]
    bound = found["process_at_most"]
    assert kept["memory_bandwidth_gb_s"] == (None if bound else found["process_gb_s"])
    assert "a process asks for " in capsys.readouterr().out
    assert not list((tmp_path / "profile" / "bandwidth").glob("probe-?"))
    (tmp_path / "moves.py").write_text("import sys; sys.exit(3)")
    monkeypatch.setattr(study, "warm_up", lambda setup: None)
    monkeypatch.setattr(study, "separate", lambda setup, mhz=None: [])
    assert main(["profile", "--nodes", "1", "--bandwidth", "--", *words]) == 1
    assert "copies of the command to end with status 0, got FAILED" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--"], "expected -- COMMAND, got none"),
        (["--", "no-such-command"], "expected a command that can be run, got 'no-such-command'"),
        (["--nodes", "0", "--", "true"], "expected --nodes as sizes like 1,2,4, got '0'"),
        (["--nodes", "4096", "--", "true"], "an oversubscribed timing is no result"),
        (["--repeat", "0", "--", "true"], "expected a whole number of at least 1, got '0'"),
        (["--slowdown", "0.5", "--", "true"], "expected --slowdown of at least 1, got 0.5"),
        (["--save-as", "a/b", "--", "true"], "expected a name of letters"),
        (["--out", "/no/such/folder/x.json", "--", "true"], "expected an existing folder"),
        (["--show", "nobody"], "expected a file or the name of one profile, got 'nobody' of: none"),
        (["--show", "none.json"], "expected a profile, got none.json, which does not exist"),
    ],
)
def test_bad_usage_is_one_sentence(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from rms.cli.main import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RMS_PROFILES", str(tmp_path / "kept"))
    done = called(main, "profile", *words)
    assert done.returncode == 2 and not done.stdout
    assert said in done.stderr and len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_energy_is_what_the_meters_counted(run: Run, tmp_path: Path) -> None:
    """One node, so the package is all the job's while it runs: 40 W, whatever the model says.

    The first and the last report, of a second each, are of the idle node too, and shared out.
    """
    with Counters(tmp_path / "powercap", 40.0):
        env = {"RMS_PROFILES": str(tmp_path / "kept"), "RMS_POWERCAP": str(tmp_path / "powercap")}
        words = ["profile", "--nodes", "1", "--meters", "rapl", "--json", "out.json"]
        done = run(*RMS, *words, "--", "sleep", "1.5", env=env)
    assert done.returncode == 0, done.stderr + done.stdout
    (point,) = json.loads((tmp_path / "out.json").read_text())["points"]
    assert point["source"] == "rapl"
    assert point["energy_j"][0] == pytest.approx(
        40.0 * point["time_s"][0], abs=point["uncertainty_j"]
    )
    assert point["uncertainty_j"] < 40.0
    assert "energy from: rapl" in done.stdout


@pytest.mark.parametrize(
    ("mode", "command", "said"),
    [
        ("separate", "false", "expected the command to end with status 0 on 1 node, got FAILED"),
        ("malleable", "true", "expected a program on dmr, which tells of its steps, got one that"),
    ],
)
def test_a_command_that_cannot_be_measured_leaves_no_profile(
    mode: str, command: str, said: str, run: Run, tmp_path: Path
) -> None:
    kept = {"RMS_PROFILES": str(tmp_path / "kept")}
    done = run(*RMS, "profile", "--nodes", "1", "--mode", mode, "--", command, env=kept)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert said in done.stderr
    assert not (tmp_path / "kept").exists()


@pytest.mark.wide
@pytest.mark.promise("profile-malleable")
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core leaves nothing to resize")
def test_one_malleable_run_gives_the_same_matrix(run: Run, tmp_path: Path) -> None:
    command = "mpdata run --case gaussian --grid 48 48 32 --every 5 --steps 100000"
    kept = {"RMS_PROFILES": str(tmp_path / "kept")}
    words = "profile --mode malleable --nodes 1,2 --repeat 2 --window 1 --json out.json --"
    done = run(*RMS, *words.split(), *command.split(), env=kept)
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads((tmp_path / "out.json").read_text())
    assert [p["nodes"] for p in found["points"]] == [1, 2] and found["steps"] == 100000
    for p in found["points"]:
        assert p["way"] == "malleable" and len(p["time_s"]) == 2
        watts = sum(p["energy_j"]) / sum(p["time_s"]) / p["nodes"]
        assert watts == pytest.approx(10.0, rel=0.1)
