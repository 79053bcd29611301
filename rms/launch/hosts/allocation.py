"""What an allocation is: its hosts, its time, and how a process starts on one of its hosts.

More hosts are requested, and unused ones returned, by :meth:`rms.launch.base.EngineNodes.follow`,
which Slurm's engines implement. A job of Grid Engine keeps its hosts to its end; PBS can release
hosts of a job (``pbs_release_nodes``), which is not used here.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rms.launch.base import LaunchError

SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5")
"""A shell that never waits for a password, and for a silent host 5 s."""

QSTAT_S = 10.0
MOST_SLOTS = 65536
HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
KINDS = ("SLURM_JOB_ID", "PE_HOSTFILE", "PBS_NODEFILE")
"""Variables of an allocation of Slurm, Grid Engine and PBS."""


@dataclass(frozen=True)
class Allocation:
    """Hosts that a daemon has, for good or until a time.

    Attributes:
        name: identifies it, as ``sge:12``; "" for hosts that are there for good.
        slots: its hosts, with their numbers of slots.
        shell: words that run a command on the host named next (``ssh``, ``qrsh -inherit``).
        mpiexec: options by which MPICH's mpiexec reaches these hosts.
        relayed: whether the shell starts the agents only, and these all other processes.
        end_s: returns the time at which it ends, by the wall clock, None without a limit; it may
            take seconds.
    """

    name: str
    slots: Mapping[str, int]
    shell: Sequence[str]
    mpiexec: Sequence[str]
    relayed: bool
    end_s: Callable[[], float | None] = lambda: None

    def command(self, host: str, words: Sequence[str]) -> list[str]:
        """Return the command that runs words on a host, whose shell may read them again."""
        return [*self.shell, host, shlex.join(words)]


def reached_by(slots: Mapping[str, int], reach: str) -> Allocation:
    """Return hosts that are there for good.

    Args:
        reach: ``ssh``, or a program that is called as ``PROGRAM HOST COMMAND``.

    Raises:
        LaunchError: there is no such program, or a host has the name of an option.
    """
    check_hosts(slots, "the cluster file")
    program = shutil.which(reach)
    if program is None:
        raise LaunchError(f"expected a remote shell such as ssh for --reach, got {reach!r}")
    if reach == "ssh":
        return Allocation("", slots, (program, *SSH[1:]), ("-launcher", "ssh"), relayed=False)
    rsh = ("-launcher", "rsh", "-launcher-exec", program)
    return Allocation("", slots, (program,), rsh, relayed=False)


def detect(env: Mapping[str, str]) -> Allocation:
    """Return the allocation of Grid Engine or PBS that this process runs in.

    Raises:
        LaunchError: there is none, or its file of hosts is not as expected.
    """
    if "PE_HOSTFILE" in env:
        return grid_engine(env)
    if "PBS_NODEFILE" in env:
        return pbs(env)
    raise LaunchError(f"expected an allocation ({', '.join(KINDS)}), got none")


def grid_engine(env: Mapping[str, str]) -> Allocation:
    """Return the hosts of a parallel environment of Grid Engine (``qsub -pe``).

    There, as many processes of ``qrsh -inherit`` run on a host as the job has slots on it.
    """
    number, qrsh = env.get("JOB_ID", ""), shutil.which("qrsh", path=env.get("PATH"))
    if not number.isdecimal():
        raise LaunchError(f"expected the number of a job in JOB_ID, got {number!r}")
    if qrsh is None:
        raise LaunchError("expected Grid Engine's qrsh on PATH, got none")
    slots = parse_pe_hostfile(_read(env["PE_HOSTFILE"]))

    begun_s = Path(env["PE_HOSTFILE"]).stat().st_mtime

    def end_s() -> float | None:
        limit_s = parse_h_rt(_printed(env, "qstat", "-j", number))
        return None if limit_s is None else begun_s + limit_s

    return Allocation(f"sge:{number}", slots, (qrsh, "-inherit"), (), relayed=True, end_s=end_s)


def pbs(env: Mapping[str, str]) -> Allocation:
    """Return the hosts of a job of PBS, reached by pbs_tmrsh, else by ssh."""
    number = env.get("PBS_JOBID", "")
    slots = parse_nodefile(_read(env["PBS_NODEFILE"]))
    whole = reached_by(slots, "pbs_tmrsh" if shutil.which("pbs_tmrsh") else "ssh")

    def end_s() -> float | None:
        return parse_qstat_f(_printed(env, "qstat", "-f", number), time.time())

    return replace(whole, name=f"pbs:{number}", end_s=end_s)


# --- files and output of batch systems -----------------------------------------------------------


def parse_pe_hostfile(text: str) -> dict[str, int]:
    """Return the slots by host of ``HOST SLOTS QUEUE PROCESSORS`` lines (sge_pe(5)).

    A host with several queues has several lines.
    """
    slots: dict[str, int] = {}
    for line in filter(str.strip, text.splitlines()):
        words = line.split()
        if len(words) < 2 or not words[1].isdecimal():
            raise LaunchError(f"expected lines HOST SLOTS QUEUE in PE_HOSTFILE, got {line!r}")
        slots[words[0]] = slots.get(words[0], 0) + int(words[1])
    return check_hosts(slots, "PE_HOSTFILE")


def parse_nodefile(text: str) -> dict[str, int]:
    """Return the slots by host of PBS_NODEFILE, which names a host once for each slot."""
    slots: dict[str, int] = {}
    for line in filter(str.strip, text.splitlines()):
        slots[line.strip()] = slots.get(line.strip(), 0) + 1
    return check_hosts(slots, "PBS_NODEFILE")


def check_hosts(slots: Mapping[str, int], where: str) -> dict[str, int]:
    """Return the slots by host; refuse none, too many, and names that are no host's."""
    for host, number in slots.items():
        if not HOST.fullmatch(host):
            raise LaunchError(f"expected names of hosts in {where}, got {host!r}")
        if not 0 < number <= MOST_SLOTS:
            expected = f"1 to {MOST_SLOTS} slots of {host} in {where}"
            raise LaunchError(f"expected {expected}, got {number}")
    if not slots:
        raise LaunchError(f"expected hosts in {where}, got none")
    return dict(slots)


def parse_h_rt(text: str) -> float | None:
    """Return the time limit in what ``qstat -j`` of Grid Engine prints, None without one."""
    match = re.search(r"^hard resource_list:.*?\bh_rt=(\d+)", text, re.MULTILINE)
    return None if match is None else float(match[1])


def parse_qstat_f(text: str, now_s: float) -> float | None:
    """Return when a job ends by what ``qstat -f`` of PBS prints, None if that is unknown."""
    limit = re.search(r"Resource_List\.walltime = (\d+):(\d\d):(\d\d)", text)
    used = re.search(r"resources_used\.walltime = (\d+):(\d\d):(\d\d)", text)
    if limit is None:
        return None
    begun_s = 0.0 if used is None else _seconds(used)
    return now_s + _seconds(limit) - begun_s


def _seconds(match: re.Match[str]) -> float:
    hours, minutes, seconds = map(int, match.groups())
    return 3600.0 * hours + 60.0 * minutes + seconds


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchError(f"expected a readable file of hosts, got {path} ({error})") from None


def _printed(env: Mapping[str, str], *command: str) -> str:
    """Return what a command prints, "" if it fails or does not end in time."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=QSTAT_S,
            check=True,
            env=dict(env),
            stdin=subprocess.DEVNULL,
        ).stdout
    return ""
