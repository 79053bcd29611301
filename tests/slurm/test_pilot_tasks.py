"""Engine slurm-pilot: a kernel for another node runs as a step of the allocation."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import remote_kernels
from daemon import DEADLINE_S
from slurm_bed import Slurm
from slurm_daemon import piloted

from rms.kernels import Affinity, Kernel, KernelCollection, Resource
from rms.kernels import connection as link

pytestmark = pytest.mark.parametrize("session_slurm", ["cons_tres"], indirect=True)


@pytest.mark.wide
@pytest.mark.promise("remote-kernels")
def test_a_kernel_is_a_step_on_another_node(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with piloted(slurm, 2) as pilot:
        monkeypatch.setenv("RMS_SERVER", pilot.server)
        monkeypatch.delenv("SLURM_JOB_ID", raising=False)
        monkeypatch.setattr(link, "_connection", None)
        u = np.arange(4.0)
        filled: dict[str, Any] = {"u": u}
        kernels = Kernel(remote_kernels.fill, Resource.NODE, Affinity.LOW)
        KernelCollection(filled, kernels).run()
        assert filled["u"] is u and list(u) == [0.0, 2.0, 3.0, 4.0]
        assert filled["by"][0] != os.getpid() and filled["by"][1].startswith("node-n")
        log, go = tmp_path / "log", tmp_path / "go"
        data = {"at": 0, "log": str(log), "go": str(go)}
        running = KernelCollection(data, Kernel(remote_kernels.steps, Resource.NODE)).start()
        pilot.until(lambda: log.exists() and "\n" in log.read_text(), "a kernel on another node")
        node = log.read_text().split()[0].removeprefix("node-")

        def tasks() -> list[set[str]]:
            return [nodes for name, (_, nodes) in pilot.steps().items() if ".task-" in name]

        pilot.until(lambda: tasks() == [{node}], "one step, on its node")
        job = pilot.submit("true", "--nodes", "2", "--mode", "fixed")
        assert pilot.row(job)["state"] == "PENDING"  # one of its nodes is the task's
        go.touch()
        assert running.result(DEADLINE_S)["at"] > 0
        assert pilot.over(job) == ["COMPLETED"]
        pilot.until(lambda: not tasks(), "no step left")
