"""``SBATCH_PARTITION`` was ignored for the time limit of a job and the nodes that it grows by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from rms.launch.base import ScriptLaunch
from rms.launch.slurm.commands import CommandResult, Executor, Slurm
from rms.launch.slurm.jobs import SlurmJobs
from rms.launch.slurm.launcher import SlurmLauncher

LIMITS_S = {"short": 3600.0, "long": 86400.0, "own": 60.0}


@pytest.mark.parametrize(
    ("own", "partition", "env", "expected"),
    [
        ([], "", {}, ""),
        ([], "", {"SBATCH_PARTITION": "long"}, "long"),
        (["--partition=own"], "", {"SBATCH_PARTITION": "long"}, "own"),
        ([], "own", {"SBATCH_PARTITION": "long"}, "own"),
    ],
)
def test_limits_and_donors_are_of_the_partition_of_the_job(
    tmp_path: Path, own: list[str], partition: str, env: dict[str, str], expected: str
) -> None:
    submitted: list[Sequence[str]] = []

    def run(
        command: Sequence[str], environment: Mapping[str, str], deadline_s: float
    ) -> CommandResult:
        if command[0] == "sbatch":
            submitted.append(command)
        return CommandResult(0, "7\n", "")

    executor = Executor(Slurm({"PATH": ""}, "root", run))
    launcher = SlurmLauncher(tmp_path, "feedface", "unix:none", executor)
    site = SlurmJobs(launcher, partition=partition, default="short", limits_s=LIMITS_S)
    try:
        longest_s = LIMITS_S[expected or "short"]
        assert site.longest_s(own, env) == longest_s
        script = tmp_path / "script"
        script.write_text("\n".join(["#!/bin/sh", *(f"#SBATCH {word}" for word in own), "true\n"]))
        launch = ScriptLaunch(script, str(tmp_path), env, tmp_path / "out", [["n1/core:0"]], 60.0)
        site.start("1", launch)
        child = site.jobs["1"]
        assert child.record.donor == ([f"--partition={expected}"] if expected else [])
        assert child.submission is not None and child.submission.result(60) == 7
    finally:
        site.close()
        executor.close()
    minutes = 1 if expected == "own" else 3  # with the grace, where the partition allows it
    assert f"--time={minutes}" in submitted[0]
