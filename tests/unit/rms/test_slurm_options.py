"""Which of a script's own options reach sbatch and salloc."""

from __future__ import annotations

from pathlib import Path

import pytest

from rms.formats.jobscript import parse_script
from rms.launch.slurm import commands


@pytest.fixture
def own(tmp_path: Path) -> list[str]:
    script = tmp_path / "job.sh"
    script.write_text(
        "#!/bin/sh\n"
        "#SBATCH --nodes=1-4 --mem=4G -p debug -A physics --qos high --exclusive\n"
        "#SBATCH -n 8 --ntasks-per-node 2 --constraint 'a&b' --requeue -D /elsewhere -e err\n"
        "#SBATCH --comment='two words' --hold --mail-user me@example.org -wn[1-2]\n"
        "true\n"
    )
    return list(parse_script(script).slurm_options)


def test_sbatch_hears_what_the_rms_does_not_decide(own: list[str]) -> None:
    assert commands.sbatch_options(own) == [
        *("--mem=4G", "-pdebug", "--account=physics", "--qos=high", "--constraint=a&b"),
        *("--comment=two words", "--mail-user=me@example.org"),
    ]


def test_a_donor_has_in_common_what_says_where_and_for_whom(own: list[str]) -> None:
    where = ["-pdebug", "--account=physics", "--qos=high", "--constraint=a&b"]
    assert commands.donor_options(own) == where
    assert commands.donor_options(own, "batch") == where


def test_the_partition_of_the_daemon_is_for_jobs_that_do_not_say(own: list[str]) -> None:
    assert commands.partition_of(own) == "debug"
    assert commands.partition_of(["--partition=a", "--partition=b"]) == "b"
    assert commands.partition_of(["--mem=1"]) == ""
    assert commands.sbatch_options(["--mem=1"], "batch") == ["--mem=1", "--partition=batch"]
    assert commands.donor_options(["--mem=1"], "batch") == ["--partition=batch"]


def test_a_jobs_environment_steers_sbatch_by_accounts_alone() -> None:
    env = {
        "SBATCH_ARRAY_INX": "1-9",
        "SBATCH_ACCOUNT": "physics",
        "SLURM_JOB_ID": "3",
        "A": "b",
    }
    assert commands.environment(env) == {"SBATCH_ACCOUNT": "physics", "A": "b"}
