"""The cluster of namespaces: it starts, its hosts are apart, and it leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_hosts import Cluster, command_line, hosts_up
from slurm_bed import SCRIPT, Slurm, brought_up, call_script

one_select = pytest.mark.parametrize("session_slurm", ["linear"], indirect=True)


def processes(folder: Path) -> list[str]:
    """Return the command lines of processes that have a folder there or in the environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes()
            if str(folder).encode() in command + (entry / "environ").read_bytes():
                found.append(command.decode().replace("\0", " "))
    return found


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that is not there yet, on a path short enough for sockets."""
    place = Path(tempfile.mkdtemp(prefix="slurm-"))
    yield place / "bed"
    shutil.rmtree(place)


@one_select
def test_up_twice_is_harmless(slurm: Slurm) -> None:
    again = call_script(
        *["up", "--folder", str(slurm.folder), "--json", "-"],
        *["--hosts", str(slurm.record["nodes"]), "--select", slurm.record["select"]],
    )
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["running"] == slurm.record["running"]


@one_select
def test_up_differently_is_refused(slurm: Slurm) -> None:
    again = call_script("up", "--folder", str(slurm.folder), "--hosts", "2", "--select", "linear")
    assert again.returncode == 1
    assert "bring it down first" in again.stderr
    assert len(slurm.idle()) == slurm.record["nodes"]


@one_select
def test_status_names_what_runs(slurm: Slurm) -> None:
    said = call_script("status", "--folder", str(slurm.folder)).stdout
    for name in ("munged", "mariadbd", "slurmdbd", "slurmctld", "n1", "n4", "host@n1", "sshd@n4"):
        assert f"{name:12s} pid " in said
    assert "4 of 4" in said


@one_select
def test_what_up_prints_is_for_eval(slurm: Slurm) -> None:
    words = f"--hosts {slurm.record['nodes']} --select {slurm.record['select']}"
    shell = (
        f'eval "$({" ".join(SCRIPT)} up --folder {slurm.folder} {words})"; exec sinfo --noheader'
    )
    done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, timeout=300)
    assert done.stdout.split()[:2] == ["all*", "up"], done.stderr


@one_select
def test_two_at_once_and_nothing_left_of_one(slurm: Slurm) -> None:
    with brought_up("--hosts", "1") as other:
        assert other.idle() == {"n1"}
        assert other.record["cluster"] != slurm.record["cluster"]
        # Slurm loses sight of a process whose parent is gone; the cluster does not.
        job = other.submit(script="sh -c 'setsid sleep 600 &'; sleep 600")
        assert job in other("squeue", "--noheader")
        assert not slurm("squeue", "--noheader", "--states=PENDING,RUNNING")
        assert len(processes(other.folder)) >= 5
    assert not other.folder.exists()
    assert processes(other.folder) == []
    assert len(slurm.idle()) == slurm.record["nodes"]


@pytest.mark.usefixtures("asked")
def test_down_cleans_up_after_a_crash() -> None:
    with brought_up("--hosts", "1") as slurm:
        for name in ("slurmctld", "slurmdbd", "munged", "n1"):
            os.kill(slurm.record["running"][name], signal.SIGKILL)
        again = call_script("up", "--folder", str(slurm.folder), "--hosts", "1")
        assert again.returncode == 1
        assert "bring it down first" in again.stderr
    assert not slurm.folder.exists()
    assert processes(slurm.folder) == []


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_up_ended_midway(folder: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        [*SCRIPT, "up", "--folder", str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as up:
        while up.poll() is None and not (folder / "log" / "munged@ctl.out").exists():
            time.sleep(0.02)
        up.send_signal(number)
        up.communicate(timeout=300)
    assert folder.exists() == (number == signal.SIGKILL)
    assert call_script("down", "--folder", str(folder)).returncode == 0
    assert not folder.exists()
    assert processes(folder) == []


def test_down_when_nothing_runs(folder: Path) -> None:
    done = call_script("down", "--folder", str(folder))
    assert (done.returncode, done.stderr) == (0, "nothing was running\n")
    assert call_script("status", "--folder", str(folder)).stdout == f"no cluster in {folder}\n"
    assert not folder.exists()


@pytest.mark.parametrize("action", ["up", "down", "status"])
def test_a_folder_of_something_else_is_left_alone(folder: Path, action: str) -> None:
    folder.mkdir()
    (folder / "thesis.tex").touch()
    done = call_script(action, "--folder", str(folder))
    assert done.returncode == 1
    assert done.stderr.startswith("error: expected ")
    assert [path.name for path in folder.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    "words", [["--hosts", "0"], ["--folder", "/tmp/" + "x" * 90], ["--folder", "/tmp/a b"]]
)
def test_bad_words_are_refused(words: list[str]) -> None:
    done = call_script("up", *words)
    assert done.returncode == 2
    assert "expected" in done.stderr
    assert "Traceback" not in done.stderr


# --- hosts and their faults ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def bare(asked: None) -> Iterator[Cluster]:
    """Three hosts without a batch system, each with a home of its own."""
    with hosts_up("--hosts", "3", "--slurm", "none", "--no-shared-home") as cluster:
        yield cluster


@pytest.fixture
def cluster(bare: Cluster) -> Iterator[Cluster]:
    """Hosts without faults, before and after."""
    yield bare
    bare("heal")


@pytest.mark.promise("cluster")
def test_hosts_are_apart(cluster: Cluster) -> None:
    """Names, addresses, processes, /tmp, /run, /dev/shm and homes are those of one host."""
    assert cluster.on("n1", "hostname") == "n1"
    assert cluster.on("n1", "ssh n2 hostname") == "n2"
    mine = cluster.record["hosts"]["n1"]
    assert cluster.on("n2", "getent hosts n1").split()[0] == mine
    for place in ("/tmp", "/run", "/dev/shm", f"{cluster.folder}/home", "/root", "/var/tmp"):
        cluster.on("n1", f"touch {place}/only-here-35")
        assert cluster.on("n2", f"ls {place} | grep -c only-here-35 || :") == "0"
        assert not Path(place, "only-here-35").exists()
    assert int(cluster.on("n1", "ls /proc | grep -c '^[0-9]'")) < 12
    assert cluster.on("n1", f"ls {cluster.folder}/etc/ssh_config") != ""


@pytest.mark.promise("cluster")
def test_a_host_without_power(cluster: Cluster) -> None:
    """Its peers hear nothing: no end of a connection; all its processes are gone; it comes back."""
    server = "import socket; s=socket.create_server(('',7000)); c,_=s.accept(); c.recv(1)"
    with cluster.popen("n1", "python3", "-c", server):
        client = (
            "import socket,time\n"
            "while True:\n"
            "    try: s=socket.create_connection(('n1',7000),1); break\n"
            "    except OSError: time.sleep(0.05)\n"
            "print('connected',flush=True); s.settimeout(2)\n"
            "try: print('heard', s.recv(1))\n"
            "except TimeoutError: print('silence')\n"
        )
        with cluster.popen("n2", "python3", "-c", client) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "connected\n"
            cluster.on("n1", "echo kept > /var/kept")
            cluster("kill", "n1")
            assert other.stdout.read() == "silence\n"
    assert "host@n1" not in cluster.running()
    assert "expected a host that is on" in cluster.refused("exec", "n1", "true")
    cluster("start", "n1")
    assert cluster.on("n2", "ssh n1 cat /var/kept") == "kept"  # its disk is as it was
    assert cluster.on("n1", "ls /tmp | wc -l") == cluster.on("n3", "ls /tmp | wc -l")


def test_cut_and_one_way_loss(cluster: Cluster) -> None:
    def reaches(a: str, b: str) -> bool:
        code = f"import socket; socket.create_connection(('{b}', 22), 0.5)"
        done = cluster.run(a, "python3", "-c", code)
        return done.returncode == 0

    def datagram(a: str, b: str) -> bool:
        receive = "import socket; s=socket.socket(2,2); s.bind(('',7001)); s.settimeout(1.5)\n"
        receive += "print('ready',flush=True); print(s.recv(9).decode())"
        send = f"import socket; socket.socket(2,2).sendto(b'word',('{b}',7001))"
        with cluster.popen(b, "python3", "-c", receive) as receiver:
            assert receiver.stdout is not None
            assert receiver.stdout.readline() == "ready\n"
            cluster.run(a, "python3", "-c", send)
            return receiver.stdout.read() == "word\n"

    cluster("cut", "n1", "n2")
    assert not reaches("n1", "n2")
    assert reaches("n1", "n3")
    cluster("heal")
    assert reaches("n1", "n2")
    cluster("cut", "n1", "n2", "--one-way")
    assert not datagram("n1", "n2")
    assert datagram("n2", "n1")
    assert not reaches("n2", "n1")  # no answer arrives
    cluster("heal")
    cluster("cut", "login", "n3")
    assert not reaches("login", "n3")
    assert reaches("n1", "n3")


def test_a_slow_host(cluster: Cluster) -> None:
    code = (
        "import socket,time; t=time.monotonic(); socket.create_connection(('n1',22),5);"
        "print(time.monotonic()-t)"
    )
    cluster("slow", "n1", "40ms")
    assert float(cluster.on("n2", f'python3 -c "{code}"')) >= 0.08  # there and back
    assert cluster.on("n2", "ssh n1 head -c 3000000 /dev/zero | wc -c") == "3000000"
    cluster("heal")
    assert cluster.on("n2", "ssh n1 echo well") == "well"


def test_a_paused_host(cluster: Cluster) -> None:
    count = "i=0; while :; do i=$((i+1)); echo $i > /tmp/count; sleep 0.02; done"
    with cluster.popen("n3", "sh", "-c", count) as counter:
        while not cluster.on("n3", "cat /tmp/count 2>/dev/null || :"):
            time.sleep(0.05)
        cluster("pause", "n3")
        (pid,) = {p for p in cluster.processes("n3") if b"i=$((i+1))" in command_line(p)}
        before = Path(f"/proc/{pid}/stat").read_text()
        time.sleep(0.3)
        assert Path(f"/proc/{pid}/stat").read_text() == before
        cluster("continue", "n3")
        first = int(cluster.on("n3", "cat /tmp/count") or 0)
        while int(cluster.on("n3", "cat /tmp/count") or 0) <= first:
            time.sleep(0.05)
        counter.kill()


def test_a_home_that_hangs(asked: None) -> None:
    """Its files do not answer, on one host or on all, until it is healed; power off ends all."""
    with hosts_up("--hosts", "2", "--slurm", "none", "--served-home") as cluster:
        file = cluster.folder / "home" / "file"
        cluster.on("n1", f"echo kept > {file}")
        assert cluster.on("n2", f"cat {file}") == file.read_text().strip() == "kept"
        cluster("hang-home", "n1")
        with cluster.popen("n1", "sh", "-c", f"cat {file}; cat {file}") as reader:
            with pytest.raises(subprocess.TimeoutExpired):
                reader.wait(0.5)
            assert cluster.on("n2", f"cat {file}") == "kept"
            cluster("hang-home")
            with cluster.popen("n2", "cat", str(file)) as other:
                with pytest.raises(subprocess.TimeoutExpired):
                    other.wait(0.5)
                cluster("heal")  # what waits for a file cannot be killed
                assert other.stdout is not None and reader.stdout is not None
                assert (other.stdout.read(), reader.stdout.read()) == ("kept\n", "kept\nkept\n")
        cluster("hang-home", "n1")
        with cluster.popen("n1", "cat", str(file)):
            cluster("kill", "n1")
        cluster("start", "n1")
        assert cluster.on("n1", f"cat {file}") == "kept"
        cluster("hang-home")


def test_a_wrong_clock(cluster: Cluster) -> None:
    try:
        cluster("clock", "n2", "-300s")
        shifted = int(cluster.on("n2", "date +%s")) - time.time()
        assert -310 < shifted < -290
        assert abs(int(cluster.on("n1", "date +%s")) - time.time()) < 10
    finally:
        cluster("clock", "n2", "0s")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["kill", "n9"], "expected a host of ctl, login, n1"),
        (["cut", "n1", "n1"], "expected two hosts"),
        (["slow", "n1", "fast"], "expected a delay such as 50ms"),
        (["slow", "login", "5ms"], "expected a host with a network of its own"),
        (["pause", "login"], "expected a host with a network of its own"),
        (["hang-home"], "expected a cluster that was started with --served-home"),
        (["clock", "n1", "noon"], "expected a shift such as -300s"),
        (["exec", "n1"], "expected a command to run"),
    ],
)
def test_faults_that_cannot_be(cluster: Cluster, words: list[str], reason: str) -> None:
    assert reason in cluster.refused(*words)


@pytest.mark.usefixtures("asked")
def test_grid_engine() -> None:
    """A parallel job runs on all nodes by its own remote shell; a killed host ends nothing else."""
    with hosts_up("--hosts", "2", "--slurm", "none", "--gridengine") as cluster:
        assert {"sge_qmaster", "sge_execd@n1", "sge_execd@n2"} <= set(cluster.running())
        lines = (
            "#!/bin/bash",
            "#$ -pe mpi 2 -cwd -j y -o out -l h_rt=120",
            "for h in n1 n2; do qrsh -inherit $h hostname; done",
        )
        script = "\\n".join(lines)
        cluster.on("login", f"cd && printf '{script}\\n' > job.sh && qsub -sync y job.sh")
        assert cluster.on("login", "cd && cat out").split() == ["n1", "n2"]
