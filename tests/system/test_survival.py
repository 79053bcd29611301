"""``dmr run``: a job goes on after the death of ranks and hosts, with the bits of one that is left.

Hosts are addresses of the loopback network with keepers and proxies of their own: a host dies when
all of its processes are killed, and is silent when they are stopped.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import BIN, MPIEXEC, Run, marked, program, started, until

from dmr.memory.keeper import PREFIX, base_folder

SURVIVOR = program("survivor")
DMR_RUN = [sys.executable, "-m", "dmr", "run", "--silent", "15"]
"""Where no host is silent on purpose: with more patience than by default, for a busy machine."""
HOSTS = ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
DEADLINE_S = 120
YIELD = {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}
SHELL = """#!/bin/sh
# A remote shell that stays on this host: [-OPTION...] HOST COMMAND...
while [ "${1#-}" != "$1" ]; do shift; done
shift
exec sh -c "$*"
"""


def crc(output: str) -> str:
    """Return the only result in an output."""
    (result,) = re.findall(r"^CRC (\w+) on", output, re.MULTILINE)
    return str(result)


@pytest.fixture(scope="module")
def undisturbed() -> dict[int, str]:
    """Return the result after 30 and 60 steps."""
    env = {**os.environ, **YIELD, "SURVIVOR_PLAIN": "1"}
    results = {}
    for steps in (30, 60):
        command = [MPIEXEC, "-n", "2", *SURVIVOR, str(steps)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=DEADLINE_S, env=env, check=True
        )
        results[steps] = crc(done.stdout)
    return results


@pytest.fixture
def shell(tmp_path: Path) -> str:
    path = tmp_path / "shell"
    path.write_text(SHELL)
    path.chmod(0o755)
    return str(path)


def survives(run: Run, *words: str, env: dict[str, str] | None = None) -> tuple[str, str]:
    """Run survivor.py on two ranks to its good end; return its output and the supervisor's."""
    done = run(
        *DMR_RUN,
        "-n",
        "2",
        "--",
        *SURVIVOR,
        *words,
        deadline_s=DEADLINE_S,
        env={**YIELD, **(env or {})},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("dmr: ")]
    return done.stdout, "\n".join(lines)


# --- a rank dies --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kills", "step", "deaths"),  # step: of the newest copy that there may be
    [
        (["step:0:0"], 0, 1),
        (["step:17:1"], 16, 1),
        (["copy:9:1"], 8, 1),
        (["sent:9:0"], 8, 1),
        (["end:0:1"], 28, 1),
        (["step:13:1", "restore:0:0"], 12, 2),
        (["step:13:0", "step:13:0", "copy:17:1", "step:25:1"], 24, 4),
    ],
)
@pytest.mark.promise("survives")
def test_a_killed_rank(
    run: Run, undisturbed: dict[int, str], kills: list[str], step: int, deaths: int
) -> None:
    output, said = survives(run, "30", *kills, env={"SURVIVOR_PAUSE": "0.1"})
    assert crc(output) == undisturbed[30]
    lines = said.splitlines()
    assert len(lines) == deaths, said
    if "without a copy" not in lines[-1]:
        (at,) = re.findall(r"going on from the copy at step (\d+) with 2 ranks", lines[-1])
        assert int(at) <= step and f"restored at step {at}\n" in output
    else:
        assert step < 10, "the first copy is complete before"


@pytest.mark.parametrize("strategy", ["spawn", "merge", "restart"])
@pytest.mark.parametrize("kill", ["resize:0:1", "taken:0:1", "step:11:2", "step:25:0"])
@pytest.mark.promise("survives")
@pytest.mark.covering(1)
def test_a_killed_rank_of_a_resized_run(
    run: Run, tmp_path: Path, undisturbed: dict[int, str], strategy: str, kill: str
) -> None:
    env = {"DMR_RESIZE_AT": "10:3,22:1", "DMR_STRATEGY": strategy}
    output, said = survives(run, "30", kill, env=env)
    assert crc(output) == undisturbed[30]
    killed = list(tmp_path.glob("killed-*"))  # none where a strategy has no such place
    assert ("going on" in said or "rolled back" in output) == bool(killed)


@pytest.mark.promise("survives")
def test_a_kill_during_a_checkpoint(run: Run, undisturbed: dict[int, str]) -> None:
    env = {"SURVIVOR_SAVED": "saved", "SURVIVOR_PAUSE": "0.1"}
    output, said = survives(run, "30", "checkpoint:19:1", env=env)
    assert crc(output) == undisturbed[30]
    assert "from the copy at step" in said


def test_a_program_that_dies_again_and_again_ends(run: Run) -> None:
    kills = ["step:13:0"] * 40  # more than five after each of the copies until then
    done = run(*DMR_RUN, "-n", "1", "--", *SURVIVOR, "30", *kills, deadline_s=DEADLINE_S, env=YIELD)
    assert done.returncode == 1 and "CRC" not in done.stdout
    last = done.stderr.splitlines()[-1]
    assert last.startswith("dmr: error: expected a world that goes on, got 6 in a row that died")


@pytest.mark.promise("survives")
def test_ranks_killed_at_random(tmp_path: Path, undisturbed: dict[int, str]) -> None:
    generator = random.Random(5)
    env = {**os.environ, **YIELD, "SURVIVOR_PAUSE": "0.05"}
    command = [*DMR_RUN, "-n", "2", "--", *SURVIVOR, "60"]
    with started(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE) as process:
        for _ in range(3):
            time.sleep(generator.uniform(0.5, 2.5))  # also while a world starts
            ranks = until(
                lambda: of_host(process, "PMI_RANK") or process.poll() is not None,
                deadline_s=DEADLINE_S,
            )
            if ranks is True:
                break
            with contextlib.suppress(ProcessLookupError):
                os.kill(generator.choice(ranks), signal.SIGKILL)
        output, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, output + errors
    assert crc(output) == undisturbed[60]


# --- a host dies, or is silent ------------------------------------------------------------------


def of_host(process: subprocess.Popen[str], *words: str) -> list[int]:
    """Return the processes of a job with one of these words in environment or command."""
    pids = []
    for pid in marked(process.mark):  # type: ignore[attr-defined]
        with contextlib.suppress(OSError):
            place = Path("/proc") / str(pid)
            text = (place / "environ").read_bytes() + b"\0" + (place / "cmdline").read_bytes()
            parts = text.decode(errors="replace").split("\0")
            if pid != process.pid and any(
                part == word or part.startswith(f"{word}=") for part in parts for word in words
            ):
                pids.append(pid)
    return pids


def processes_of(process: subprocess.Popen[str], host: str) -> list[int]:
    """Return keeper and ranks of a host."""
    ranks = of_host(process, f"PMI_HOSTNAME={host}")
    keepers = [
        pid
        for pid in of_host(process, "dmr.memory.keeper")
        if host.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    ]
    assert ranks and keepers, (ranks, keepers)
    return [*ranks, *keepers]


@contextlib.contextmanager
def on_hosts(
    tmp_path: Path, shell: str, *options: str, **env: str
) -> Iterator[subprocess.Popen[str]]:
    """Start survivor.py on three hosts; give it once it has copies."""
    command = [*DMR_RUN, "-n", "3", "--hosts", ",".join(HOSTS), "--rsh", shell, "--silent", "4"]
    environment = {**os.environ, **YIELD, "SURVIVOR_PAUSE": "0.1", **env}
    with started(
        [*command, *options, "--", *SURVIVOR, "60"],
        cwd=tmp_path,
        env=environment,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("copies in memory: "):
                break
        else:
            assert process.stderr is not None
            raise AssertionError(process.stderr.read())
        yield process


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.promise("survives")
def test_a_lost_host(
    tmp_path: Path, shell: str, undisturbed: dict[int, str], how: signal.Signals
) -> None:
    report = tmp_path / "report.json"
    with on_hosts(tmp_path, shell, "--json", str(report)) as process:
        pids = processes_of(process, HOSTS[1])
        for pid in pids:
            os.kill(pid, how)
        process.wait(DEADLINE_S)
        for pid in pids:  # stopped ones hold the pipes of the output
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        output, errors = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, output + errors
    assert crc(output) == undisturbed[60] and not list(tmp_path.glob(".dmr-run-*"))
    assert f"dmr: host {HOSTS[1]} is lost; going on from the copy at step" in errors
    assert output.strip().endswith("on 2 ranks")
    (death,) = json.loads(report.read_text())["deaths"]
    assert death["ranks"] == 2 and death["step"] is not None


@pytest.mark.parametrize("saved", ["", "saved"])
@pytest.mark.promise("survives")
def test_both_copies_of_a_piece_are_lost(
    tmp_path: Path, shell: str, undisturbed: dict[int, str], saved: str
) -> None:
    with on_hosts(tmp_path, shell, SURVIVOR_SAVED=saved) as process:
        if saved:
            until(lambda: list(tmp_path.glob("saved/*.h5")), deadline_s=DEADLINE_S)
        for pid in [*processes_of(process, HOSTS[0]), *processes_of(process, HOSTS[1])]:
            os.kill(pid, signal.SIGKILL)
        output, errors = process.communicate(timeout=DEADLINE_S)
    assert "note: the copies in memory are lost with their hosts" in output
    if saved:
        assert process.returncode == 0, output + errors
        assert crc(output) == undisturbed[60] and "restarted from saved/checkpoint-" in output
    else:
        assert process.returncode == 2 and "CRC" not in output
        assert (
            "expected a checkpoint to go on from without copies in memory, got a plan without "
            "checkpoints"
        ) in errors


def test_fewer_hosts_than_the_least_ranks_end_the_job(tmp_path: Path, shell: str) -> None:
    with on_hosts(tmp_path, shell, "--least", "3") as process:
        for pid in processes_of(process, HOSTS[1]):
            os.kill(pid, signal.SIGKILL)
        _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    last = errors.strip().splitlines()[-1]
    assert last == "dmr: error: expected room for 3 ranks on the hosts left, got 2"


# --- the supervisor -----------------------------------------------------------------------------


@pytest.mark.promise("survives")
def test_a_killed_supervisor_takes_everything_with_it(tmp_path: Path, shell: str) -> None:
    with on_hosts(tmp_path, shell) as process:
        folders = {
            line.split("=")[-1]
            for pid in of_host(process, "PMI_RANK")
            for word in Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
            if word.startswith("DMR_KEEPERS=")
            for line in word.split()
        }
        assert len(folders) == 3 and all(Path(folder).is_dir() for folder in folders)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(DEADLINE_S)
        until(lambda: not marked(process.mark), deadline_s=DEADLINE_S)  # type: ignore[attr-defined]
        assert not any(Path(folder).exists() for folder in folders)
        assert all(Path(folder).name.startswith(PREFIX) for folder in folders)
        assert {Path(folder).parent for folder in folders} == {base_folder()}


@pytest.mark.parametrize("victim", ["mpiexec", "keeper"])
def test_a_killed_launcher_or_keeper(
    tmp_path: Path, undisturbed: dict[int, str], victim: str
) -> None:
    env = {**os.environ, **YIELD, "SURVIVOR_PAUSE": "0.05"}
    command = [*DMR_RUN, "-n", "2", "--", *SURVIVOR, "60"]
    with started(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("copies in memory: "):
                break
        launcher = (MPIEXEC, str(BIN / "prterun"))  # the latter is that of Open MPI
        (pid,) = of_host(process, *(launcher if victim == "mpiexec" else ["dmr.memory.keeper"]))
        os.kill(pid, signal.SIGKILL)
        output, errors = process.communicate(timeout=DEADLINE_S)
        until(lambda: not marked(process.mark), deadline_s=DEADLINE_S)  # type: ignore[attr-defined]
    if victim == "mpiexec":
        assert process.returncode == 0 and crc(output) == undisturbed[60], output + errors
        assert "dmr: mpiexec has ended by SIGKILL; going on from the copy at step" in errors
    else:
        assert process.returncode == 1
        assert "expected a host that is left, got none: host 127.0.0.1 is lost" in errors


def test_sigterm_ends_the_job(tmp_path: Path) -> None:
    env = {**os.environ, **YIELD, "SURVIVOR_PAUSE": "0.05", "DMR_COMPLETION": "done.json"}
    with started([*DMR_RUN, "-n", "2", "--", *SURVIVOR, "2000"], cwd=tmp_path, env=env) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("copies in memory: "):
                break
        process.terminate()
        output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 143 and "ended by SIGTERM at step" in output
    assert json.loads((tmp_path / "done.json").read_text())["state"] == "CANCELLED"


@pytest.mark.parametrize(
    ("code", "status"), [("raise SystemExit(3)", 3), ("print('good')", 0), ("import nothing", 1)]
)
def test_a_program_that_has_no_block_ends_as_it_does(run: Run, code: str, status: int) -> None:
    done = run(*DMR_RUN, "--", sys.executable, "-c", code, deadline_s=DEADLINE_S)
    assert done.returncode == status, done.stderr
    assert "going on" not in done.stderr


def test_an_error_of_the_program_ends_the_job(run: Run) -> None:
    code = (
        "import dmr; from mpi4py import MPI\n"
        "with dmr.malleable(MPI.COMM_WORLD, {}) as run:\n"
        "    for step in run.loop(30):\n"
        "        assert step < 20, 'too far'\n"
    )
    done = run(*DMR_RUN, "--", sys.executable, "-c", code, deadline_s=DEADLINE_S, env=YIELD)
    assert done.returncode == 1 and done.stderr.count("too far") >= 1
    assert "going on" not in done.stderr


def test_without_a_supervisor_copies_are_refused_in_a_line(run: Run) -> None:
    done = run(MPIEXEC, "-n", "1", *SURVIVOR, "4", deadline_s=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    assert "no copies in memory: expected the program to be started by dmr run" in done.stdout


@pytest.mark.parametrize(
    ("value", "why"),
    [("0", "more than 0 seconds, got 0"), ("soon", "more than 0 seconds, got soon")],
)
def test_a_wrong_interval_is_refused(run: Run, value: str, why: str) -> None:
    env = {"DMR_MEMORY": value}
    done = run(*DMR_RUN, "--", *SURVIVOR, "4", deadline_s=DEADLINE_S, env=env)
    assert done.returncode == 2
    assert f"DMR_MEMORY={value}: expected an interval of copies of {why}" in done.stderr


def test_a_wrong_rate_is_refused(run: Run) -> None:
    words = ["--", *SURVIVOR, "4"]
    done = run(*DMR_RUN, *words, deadline_s=DEADLINE_S, env={"DMR_MEMORY_GB_S": "0"})
    assert done.returncode == 2
    why = "expected a rate of copies of at least 0.001 GB/s, got '0'"
    assert f"DMR_MEMORY_GB_S=0: {why}" in done.stderr
    done = run(*DMR_RUN, "--rate", "0", *words, deadline_s=DEADLINE_S)
    assert done.returncode == 2 and f"--rate: {why}" in done.stderr


def test_a_host_that_cannot_be_reached_is_named(run: Run, tmp_path: Path) -> None:
    shell = tmp_path / "shell"
    shell.write_text("#!/bin/sh\nexit 255\n")
    shell.chmod(0o755)
    words = ["--hosts", "127.0.0.9", "--rsh", str(shell), "--", *SURVIVOR, "4"]
    done = run(*DMR_RUN, *words, deadline_s=DEADLINE_S)
    assert done.returncode == 1
    line = "dmr: error: expected a keeper on host 127.0.0.9 within 30 s, got 'none'"
    assert done.stderr.strip() == line
