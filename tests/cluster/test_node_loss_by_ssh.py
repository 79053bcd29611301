"""``dmr run`` on hosts that ssh reaches: hosts are lost, replaced, and come back."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_hosts import Cluster
from processes import BIN, DEADLINE_S, ROOT, program

wide = pytest.mark.wide
HOSTS = ("n1", "n2", "n3", "n4")
STEPS = 60
YIELD = {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}
SURVIVOR = program("survivor")


@pytest.fixture(scope="module")
def undisturbed(asked: None) -> str:
    """Return the result after all steps."""
    env = {**os.environ, **YIELD, "SURVIVOR_PLAIN": "1"}
    done = subprocess.run(
        [*SURVIVOR, str(STEPS)], capture_output=True, text=True, timeout=DEADLINE_S, env=env
    )
    return crc(done.stdout)


def crc(output: str) -> str:
    """Return the only result in an output."""
    (result,) = re.findall(r"^CRC (\w+) on", output, re.MULTILINE)
    return str(result)


class Job:
    """A ``dmr run`` on host login, once it has copies."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self.process, self.folder, self.said = process, folder, ""

    def line(self, text: str) -> None:
        """Wait for a line that has a text."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line
            if text in line:
                return
        raise AssertionError(self.said)

    def end(self) -> int:
        """Wait for the end; return the exit status."""
        self.said += self.process.communicate(timeout=DEADLINE_S)[0]
        return self.process.returncode

    @property
    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "report.json").read_text())
        return found


@contextlib.contextmanager
def job(cluster: Cluster, *options: str, pause_s: float = 0.15, **env: str) -> Iterator[Job]:
    """Start survivor.py under ``dmr run``, and wait for its first complete copy."""
    variables = {**YIELD, "PYTHONPATH": str(ROOT), "SURVIVOR_PAUSE": str(pause_s), **env}
    variables["PATH"] = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    words = [f"{name}={value}" for name, value in variables.items()]
    run = [sys.executable, "-m", "dmr", "run", *options, "--json", "report.json"]
    with tempfile.TemporaryDirectory() as name:
        line = shlex.join(["env", *words, *run, "--", *SURVIVOR, str(STEPS)])
        with cluster.popen("login", "sh", "-c", f"cd {name} && exec {line} 2>&1") as process:
            started = Job(process, Path(name))
            started.line("copies in memory: ")
            yield started


ALL = ("-n", "4", "--hosts", ",".join(HOSTS))


@pytest.mark.promise("survives")
@pytest.mark.parametrize(
    "fault", ["kill", *(pytest.param(fault, marks=wide) for fault in ("cut", "pause"))]
)
def test_a_host_is_lost(cluster: Cluster, undisturbed: str, fault: str) -> None:
    with job(cluster, *ALL, "--silent", "4") as run:
        if fault == "cut":
            for host in ("n1", "n3", "n4", "login"):
                cluster("cut", "n2", host)
        else:
            cluster(fault, "n2")
        status = run.end()
        if fault == "pause":
            cluster("continue", "n2")
        assert status == 0, run.said
        assert crc(run.said) == undisturbed
        (death,) = run.report["deaths"]
    assert death["why"] == "host n2 is lost" and death["ranks"] == 3
    assert f"going on from the copy at step {death['step']} with 3 ranks" in run.said
    assert death["noticed_s"] < death["started_s"] < death["computing_s"] < death["stepped_s"]
    assert death["step"] <= death["reached"] < STEPS and death["nbytes"] > 0


@pytest.mark.promise("survives")
@wide
def test_two_hosts_that_are_not_partners(cluster: Cluster, undisturbed: str) -> None:
    """The second one dies while the job recovers from the loss of the first."""
    with job(cluster, *ALL, "--silent", "4") as run:
        cluster("kill", "n2")
        run.line("host n2 is lost; going on from the copy at step")
        cluster("kill", "n1")
        assert run.end() == 0, run.said
        assert crc(run.said) == undisturbed
        assert [death["ranks"] for death in run.report["deaths"]][-1] == 2


@pytest.mark.promise("survives")
@pytest.mark.parametrize("saved", ["saved", pytest.param("", marks=wide)])
def test_both_partners(cluster: Cluster, undisturbed: str, saved: str) -> None:
    with job(cluster, *ALL, "--silent", "4", SURVIVOR_SAVED=saved) as run:
        while saved and not list(run.folder.glob("saved/*.h5")):
            run.process.poll()
            assert run.process.returncode is None, run.said
        cluster("kill", "n1")
        cluster("kill", "n3")
        status = run.end()
        if saved:
            assert status == 0, run.said
            assert crc(run.said) == undisturbed
            assert "restarted from saved/checkpoint-" in run.said
        else:
            assert status == 2 and "CRC" not in run.said
            assert "expected a checkpoint to go on from without copies in memory" in run.said


@pytest.mark.promise("survives")
def test_a_spare_takes_the_place_of_a_lost_host(cluster: Cluster, undisturbed: str) -> None:
    options = ("-n", "3", "--hosts", "n1,n2,n3", "--spare", "n4", "--silent", "4")
    with job(cluster, *options) as run:
        cluster("kill", "n2")
        assert run.end() == 0, run.said
        assert crc(run.said) == undisturbed
        (death,) = run.report["deaths"]
    assert death["ranks"] == 3 and death["step"] is not None
    assert run.said.strip().endswith("on 3 ranks")


@pytest.mark.promise("survives")
@wide
def test_a_host_that_is_back_widens_the_job(cluster: Cluster, undisturbed: str) -> None:
    with job(cluster, *ALL, "--silent", "4", pause_s=0.6) as run:
        cluster("kill", "n2")
        run.line("host n2 is lost; going on from the copy at step")
        cluster("start", "n2")
        run.line("host n2 is back, as a spare")
        run.line("there is room for 4 ranks; going on from the copy at step")
        assert run.end() == 0, run.said
        assert crc(run.said) == undisturbed
        report = run.report
    assert [death["ranks"] for death in report["deaths"]] == [3]
    (widened,) = report["widened"]
    assert widened["ranks"] == 4 and widened["step"] == widened["complete"]
    assert run.said.strip().endswith("on 4 ranks")
