"""Processes of the project imported modules from the working folder, which others may write to."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon import LocalRms, closing
from processes import MPIEXEC, ROOT, Run

from dmr.boot.bootstrap import bootstrap_command
from rms.daemon.store.sandbox import FileStrategy

ALLOWED = {
    "dmr/boot/environment.py: (sys.executable, *sys.orig_argv[1:])": "as the user started it",
    "dmr/boot/bootstrap.py: (sys.executable, *options, __file__, *program)": (
        "a file by its path; sys.path[0] becomes that of the user's program"
    ),
    "dmr/boot/bootstrap.py: [sys.executable, *split_command(sys.orig_argv[1:])[0], *words]": (
        "sys.orig_argv of the user's program, nothing is started"
    ),
    "rms/launch/local.py: shlex.quote(sys.executable)": "the shim, which has -P among its words",
}
"""Starts of Python without -P, each with the reason."""


def interpreter_starts(path: Path) -> Iterator[str]:
    """Yield the places of a file that name Python's interpreter, or a pool of processes."""
    tree = ast.parse(path.read_text())
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.executable":
            if ast.unparse(parents[node]) != "Path(sys.executable)":
                yield ast.unparse(parents[node])
        elif isinstance(node, ast.Call) and (
            re.search(r"\b(get_context|ProcessPoolExecutor|Process|Pool)$", ast.unparse(node.func))
        ):
            yield ast.unparse(node)
        elif isinstance(node, ast.Constant) and re.match(r"(exec )?python3? -", str(node.value)):
            yield repr(node.value)


def test_every_start_of_an_interpreter_leaves_out_the_working_folder() -> None:
    starts = {
        f"{path.relative_to(ROOT)}: {start}"
        for folder in ("dmr", "mpdata", "rms", "jobs")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for start in interpreter_starts(path)
    }
    safe = re.compile(r"sys\.executable, (b'', )?(\[)?'-P'|get_context\('fork'\)")
    wrong = {start for start in starts if not safe.search(start)} - ALLOWED.keys()
    assert not wrong, "\n".join(sorted(wrong))
    assert len(starts) > 10 and starts >= ALLOWED.keys()


HOSTILE = ("http", "json", "socket", "msgspec", "signal", "numpy", "runpy", "pathlib")


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """Return a folder with another user's modules, each of which creates a file when it is run."""
    folder = tmp_path / "shared"
    ran = str(tmp_path / "ran")
    code = f"import os\nos.close(os.open({ran!r}, os.O_CREAT))\nraise SystemExit(7)\n"
    folder.mkdir()
    for name in HOSTILE:
        folder.joinpath(f"{name}.py").write_text(code)
    for package in ("rms", "dmr"):
        (folder / package).mkdir()
        (folder / package / "__init__.py").write_text(code)
    return folder


def test_jobs_run_in_a_folder_with_modules_of_others(shared: Path) -> None:
    with closing(LocalRms(1)) as rms:
        script = shared / "script.sh"
        script.write_text("#!/bin/sh\nmpirun true && echo done\n")
        ids = []
        for words in ([str(script)], ["--", "true"]):
            for path in ("", ":/nowhere", "/nowhere:."):
                done = rms.rms("submit", "--json", "-", *words, folder=shared, PYTHONPATH=path)
                assert done.returncode == 0, done.stderr
                ids.append(json.loads(done.stdout)["id"])
        states = rms.over(*ids)
        assert states == ["COMPLETED"] * 6, [rms.output(job) for job in ids]
    assert not (shared.parent / "ran").exists()


def test_a_strategy_is_run_in_a_folder_with_modules_of_others(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shared)
    path = shared.parent / "mine.py"
    path.write_text("def schedule(state):\n    return ()\n")
    FileStrategy(path).close()
    assert not (shared.parent / "ran").exists()


def test_ranks_are_spawned_in_a_folder_with_modules_of_others(shared: Path) -> None:
    program = shared.parent / "mine.py"
    program.write_text(
        "import numpy as np\nfrom mpi4py import MPI\nimport dmr\n"
        "u = np.zeros((4 // MPI.COMM_WORLD.size, 4))\n"
        "plan = dmr.Plan(resizes={1: 2}, strategy='spawn')\n"
        "with dmr.malleable(MPI.COMM_WORLD, {'u': dmr.adapt(u, (4, 4))}, plan) as run:\n"
        "    for step in run.loop(3):\n        pass\n"
        "    run.say(f'on {run.world.size} after {len(run.resizes)}')\n"
    )
    command = [MPIEXEC, "-n", "1", sys.executable, str(program)]
    done = subprocess.run(command, cwd=shared, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "on 2 after 1", done.stdout
    assert not (shared.parent / "ran").exists()


@pytest.mark.parametrize("how", ["script", "-P script", "-m", "-c", "-I -c"])
def test_a_spawned_program_has_the_path_of_one_that_was_started(
    run: Run, tmp_path: Path, how: str
) -> None:
    source = "import sys; print(sys.path, sys.argv, sys.flags.safe_path, sys.orig_argv[1:])"
    (tmp_path / "mine.py").write_text(source)
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "mine.py").write_text(source)
    option = how.split()[:-1]
    target = {"script": ["below/mine.py"], "-m": ["-m", "mine"], "-c": ["-c", source]}[
        how.split()[-1]
    ]
    words = [*option, *target, "x"]
    usual = run(sys.executable, *words)
    spawned = run(*bootstrap_command(["python", *words]))
    assert usual.returncode == 0 and usual.stdout == spawned.stdout, spawned.stderr
