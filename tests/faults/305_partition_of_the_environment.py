"""``SBATCH_PARTITION`` of a job was ignored for its time limit: that of the default one counted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rms.launch.slurm.jobs import JobsLauncher

LIMITS_S = {"short": 3600.0, "long": 86400.0, "own": 60.0}


@pytest.mark.parametrize(
    ("own", "partition", "env", "longest_s"),
    [
        ([], "", {}, 3600.0),
        ([], "", {"SBATCH_PARTITION": "long"}, 86400.0),
        (["--partition=own"], "", {"SBATCH_PARTITION": "long"}, 60.0),
        ([], "own", {"SBATCH_PARTITION": "long"}, 60.0),
    ],
)
def test_the_limit_is_that_of_the_partition_of_the_job(
    own: list[str], partition: str, env: dict[str, str], longest_s: float
) -> None:
    site: Any = SimpleNamespace(partition=partition, default="short", limits_s=LIMITS_S)
    assert JobsLauncher.longest_s(site, own, env) == longest_s
