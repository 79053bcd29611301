"""Where jobs run under Slurm: an allocation that the daemon was started in, or the whole site."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from rms.daemon import LiveCluster
from rms.ledger import NodePower
from rms.local import LocalLauncher
from rms.serving import CORE_POWER, Ground
from rms.slurm.cli import Slurm, SlurmError
from rms.slurm.desk import Desk
from rms.slurm.launcher import PilotLauncher


def pilot(env: Mapping[str, str], user: str, reach: str) -> Ground:
    """Return the nodes of the allocation that this process runs in.

    Args:
        env: what Slurm has told this process.
        reach: how mpiexec starts its proxies on nodes.

    Raises:
        SlurmError: there is no allocation, or Slurm does not answer.
    """
    number = env.get("SLURM_JOB_ID", "")
    if not number.isdecimal():
        raise SlurmError("expected to run in an allocation (salloc or sbatch), got none")
    slurm = Slurm(env, user)
    within = int(number)
    details = slurm.job(within)
    if details.state != "RUNNING":
        raise SlurmError(f"expected a running allocation, got job {within}, {details.state}")
    slots = slots_per_node(env)
    binds = binding(slurm)

    def launcher(state: Path, mark: str, server: str) -> LocalLauncher:
        return PilotLauncher(state, mark, server, Desk(slurm), reach, binds, within=within)

    return Ground(cluster(details.hosts, slots), launcher, remote=True)


def cluster(hosts: tuple[str, ...], slots: tuple[str, ...]) -> LiveCluster:
    """Return nodes that all hold the same slots, with a model of their power."""
    cores = len(slots)
    power = NodePower(
        CORE_POWER.idle_w * cores, CORE_POWER.static_w * cores, CORE_POWER.dynamic_w * cores
    )
    named = tuple(tuple(f"{host}/{slot}" for slot in slots) for host in hosts)
    return LiveCluster(hosts, named, (power,) * len(hosts))


def slots_per_node(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return what each node of an allocation holds: GPUs asked for, else tasks, else its CPUs.

    Raises:
        SlurmError: nodes with different numbers of CPUs, and none of tasks per node.
    """
    gpus = re.findall(r"\d+", env.get("SLURM_GPUS_PER_NODE", ""))
    if gpus:
        return tuple(f"gpu:{n}" for n in range(int(gpus[-1])))
    tasks = env.get("SLURM_NTASKS_PER_NODE", "")
    if not tasks:
        # "2(x4)": as many CPUs on each of four nodes
        each = {
            part.partition("(")[0] for part in env.get("SLURM_JOB_CPUS_PER_NODE", "1").split(",")
        }
        if len(each) > 1:
            got = ", ".join(sorted(each))
            raise SlurmError(f"expected as many CPUs on each node, or --ntasks-per-node, got {got}")
        (tasks,) = each
    return tuple(f"core:{n}" for n in range(int(tasks)))


def binding(slurm: Slurm) -> bool:
    """Return whether this site binds steps to CPUs of its choice unless told otherwise."""
    plugins = slurm.config().get("TaskPlugin", "")
    return "affinity" in plugins or "cgroup" in plugins
