"""A pilot on demand ran what the name of its state folder held in ``$(...)``."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

from rms.launch.slurm.elastic import reach_script


def test_the_names_of_files_are_text(tmp_path: Path) -> None:
    folder = tmp_path / "a b'\"$(touch pwned)`touch pwned`"
    folder.mkdir()
    table, srun, reach = folder / "nodes", folder / "srun", tmp_path / "reach"
    table.write_text("n1 7\nn2 8\n")
    srun.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    srun.chmod(0o755)
    reach.write_text(reach_script(table, str(srun)))
    done = subprocess.run(
        ["sh", str(reach), "-x", "n2", shlex.join(["echo", "$(touch pwned)"])],
        capture_output=True, text=True, cwd=tmp_path, timeout=60, check=True,
    )  # fmt: skip
    words = done.stdout.splitlines()
    assert "--jobid=8" in words and words[-1] == "echo '$(touch pwned)'"
    assert not list(tmp_path.rglob("pwned"))
