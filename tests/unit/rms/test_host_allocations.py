"""What an allocation is: hosts and ends by the words of Grid Engine and PBS."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rms.launch.base import LaunchError
from rms.launch.hosts.allocation import (
    detect,
    grid_engine,
    parse_h_rt,
    parse_nodefile,
    parse_pe_hostfile,
    parse_qstat_f,
    reached_by,
)

PE_HOSTFILE = "n1 2 all.q@n1 UNDEFINED\nn2 1 all.q@n2 UNDEFINED\nn1 1 more.q@n1 UNDEFINED\n"

QSTAT_J = """\
==============================================================
job_number:                 12
submission_time:            Fri Nov 27 02:18:29 2026
cwd:                        /home/alice
hard resource_list:         h_vmem=2G,h_rt=600
parallel environment:  mpi range: 3
"""

QSTAT_F = """\
Job Id: 12.head
    job_state = R
    resources_used.walltime = 00:10:00
    Resource_List.nodect = 2
    Resource_List.walltime = 01:00:00
"""


def test_hosts_and_slots() -> None:
    """A host of two queues of Grid Engine has the slots of both; PBS names a host by slot."""
    assert parse_pe_hostfile(PE_HOSTFILE) == {"n1": 3, "n2": 1}
    assert parse_nodefile("n1\nn1\nn2\n\n") == {"n1": 2, "n2": 1}


def test_ends() -> None:
    assert parse_h_rt(QSTAT_J) == 600.0
    assert parse_qstat_f(QSTAT_F, 1000.0) == 1000.0 + 3000.0
    assert parse_qstat_f(QSTAT_F.replace("resources_used", "x"), 1000.0) == 1000.0 + 3600.0


@pytest.mark.parametrize("text", ["", "garbled \x00 <job_list", "hard resource_list: h_rt=soon"])
def test_ends_that_are_unknown(text: str) -> None:
    assert parse_h_rt(text) is None
    assert parse_qstat_f(text, 0.0) is None


@pytest.mark.parametrize(
    ("text", "got"),
    [
        ("", "got none"),
        ("n1\n", "expected lines HOST SLOTS QUEUE in PE_HOSTFILE, got 'n1'"),
        ("n1 two all.q\n", "got 'n1 two all.q'"),
        ("n1 0 all.q\n", "expected 1 to 65536 slots of n1 in PE_HOSTFILE, got 0"),
        ("-oProxyCommand=x 1 all.q\n", "expected names of hosts in PE_HOSTFILE"),
        ("n1;reboot 1 all.q\n", "got 'n1;reboot'"),
    ],
)
def test_a_file_of_hosts_that_is_refused(text: str, got: str) -> None:
    with pytest.raises(LaunchError) as refused:
        parse_pe_hostfile(text)
    assert got in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "$(reboot)\n", "n1 n2\n"])
def test_a_node_file_that_is_refused(text: str) -> None:
    with pytest.raises(LaunchError, match="PBS_NODEFILE, got"):
        parse_nodefile(text)


def test_an_allocation_by_its_environment(tmp_path: Path) -> None:
    """Words reach a host's shell as they are."""
    hosts, qrsh = tmp_path / "hosts", tmp_path / "qrsh"
    hosts.write_text(PE_HOSTFILE)
    os.utime(hosts, (1000.0, 1000.0))  # when the job started
    qrsh.touch(0o755)
    env = {"PE_HOSTFILE": str(hosts), "JOB_ID": "12", "PATH": str(tmp_path)}
    found = detect(env)
    assert (found.name, found.slots) == ("sge:12", {"n1": 3, "n2": 1})
    command = found.command("n2", ["echo", "a b", "$HOME"])
    assert command == [str(qrsh), "-inherit", "n2", "echo 'a b' '$HOME'"]
    assert found.end_s() is None  # there is no qstat
    qstat = tmp_path / "qstat"
    qstat.write_text(f"#!/bin/sh\n/bin/cat <<'end'\n{QSTAT_J}end\n")
    qstat.chmod(0o755)
    assert found.end_s() == 1000.0 + 600.0
    for wrong in ({"JOB_ID": "x"}, {"PATH": ""}, {"PE_HOSTFILE": str(tmp_path / "none")}):
        with pytest.raises(LaunchError, match="expected "):
            grid_engine({**env, **wrong})
    hosts.write_text("n1\nn1\n")
    found = detect({"PBS_NODEFILE": str(hosts), "PBS_JOBID": "12.head", "PATH": ""})
    assert (found.name, found.slots) == ("pbs:12.head", {"n1": 2})
    with pytest.raises(LaunchError, match=r"PE_HOSTFILE, PBS_NODEFILE.*got none"):
        detect({})


def test_a_remote_shell_that_does_not_exist() -> None:
    with pytest.raises(LaunchError, match="expected a remote shell such as ssh"):
        reached_by({"n1": 1}, "no-such-shell")
