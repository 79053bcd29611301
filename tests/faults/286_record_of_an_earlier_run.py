"""A run that was refused for its limits left the record of an earlier one, which succeeded."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import Run, called, program

from dmr.cli import main as dmr
from rms.wire.messages import read_completion


@pytest.mark.parametrize("name", ["DMR_SIGTERM_S", "DMR_COLLECTIVE_S"])
def test_the_record_is_that_of_the_refused_run(run: Run, tmp_path: Path, name: str) -> None:
    record = tmp_path / "end.json"
    done = run(*program("edge_halo"), env={"DMR_COMPLETION": str(record)})
    assert done.returncode == 0 and called(dmr, "completion", str(record)).returncode == 0
    done = run(*program("edge_halo"), env={"DMR_COMPLETION": str(record), name: "soon"})
    assert done.returncode == 2
    completion = read_completion(record)
    assert (completion.state, completion.exit_code) == ("FAILED", 2)
    assert completion.message.startswith(f"{name}=soon: expected ")
    assert called(dmr, "completion", str(record)).returncode == 2
