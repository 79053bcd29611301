"""Where jobs run under Slurm: an allocation that the daemon was started in, or the whole site."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from rms.core.cluster import Cluster
from rms.core.model import NodePower
from rms.formats.config import read_cluster
from rms.launch.base import Engine, Launcher
from rms.launch.machine import CORE_POWER
from rms.launch.slurm.commands import KEPT, Slurm, SlurmError
from rms.launch.slurm.executor import Executor
from rms.launch.slurm.jobs import JobsLauncher
from rms.launch.slurm.output import SiteNode
from rms.launch.slurm.pilot import PilotLauncher
from rms.launch.slurm.site import look, measures, refusals, serves, verdicts

LEAST_MARGIN_S = 20.0
"""From the last kill of a job to the end of the allocation: its steps have to be gone by then."""

MARGIN_S = 30.0


def pilot(
    env: Mapping[str, str],
    user: str,
    reach: str,
    *,
    grace_s: float,
    margin_s: float | None = None,
    tasks: int | None = None,
    file: Path | None = None,
) -> Engine:
    """Return the nodes of the allocation that this process runs in.

    Args:
        env: what Slurm has told this process.
        reach: how mpiexec starts its proxies on nodes.
        grace_s: what a job is given to end by itself.
        margin_s: how long before the end of the allocation jobs are told to end.
        tasks: slots of each node; None for what was asked of Slurm.
        file: a cluster file with the power of each node, and its slots.

    Raises:
        SlurmError: there is no allocation, or Slurm does not answer; a margin that is too short,
            or nodes of which the file says nothing.
        FileError: the cluster file is none.
    """
    margin_s = grace_s + MARGIN_S if margin_s is None else margin_s
    if not margin_s >= grace_s + LEAST_MARGIN_S:
        least = f"{grace_s + LEAST_MARGIN_S:g}"
        raise SlurmError(
            f"expected --margin of at least {least} s, as the grace is {grace_s:g} s,"
            f" got {margin_s:g}"
        )
    number = env.get("SLURM_JOB_ID", "")
    if not number.isdecimal():
        raise SlurmError("expected to run in an allocation (salloc or sbatch), got none")
    slurm = Slurm(env, user)
    within = int(number)
    details = slurm.job(within)
    if details.state != "RUNNING":
        raise SlurmError(f"expected a running allocation, got job {within}, {details.state}")
    hosts, binds = details.hosts, binding(slurm)
    known = None if file is None else read_cluster(file)
    if known is None or tasks is not None:
        slots = allocated(env, slurm, hosts, tasks)
    if known is not None:
        strange = [host for host in hosts if host not in known.nodes]
        if strange:
            raise SlurmError(
                f"expected all nodes of the allocation in {file}, got no word of"
                f" {', '.join(strange)}"
            )
        at = [known.nodes.index(host) for host in hosts]
        power = tuple(known.power[n] for n in at)
        if tasks is None:
            slots = tuple(_numbered(known.slots[n], gpus=bool(known.gpus[n])) for n in at)
    else:
        power = tuple(_power(len(own)) for own in slots)
    each = tuple(
        tuple(f"{host}/{slot}" for slot in own) for host, own in zip(hosts, slots, strict=True)
    )
    plain = {k: v for k, v in env.items() if not k.startswith(("SLURM_", "RMS_")) or k in KEPT}

    def launcher(state: Path, instance_id: str, server: str) -> Launcher:
        return PilotLauncher(
            *(state, instance_id, server, Executor(slurm), reach, binds),
            within=within,
            hosts=hosts,
            margin_s=margin_s,
            environment=plain,
        )

    return Engine(Cluster(hosts, each, power), launcher, True, f"slurm:{within}")


def site(
    env: Mapping[str, str],
    user: str,
    reach: str,
    *,
    grace_s: float,
    partition: str = "",
    tasks: int | None = None,
    file: Path | None = None,
) -> Engine:
    """Return the nodes of a partition, for jobs that each are one of Slurm's own.

    Args:
        env: this process's environment.
        reach: how mpiexec starts its proxies on nodes.
        grace_s: what a job is given to end by itself.
        partition: whose nodes; "" for that of jobs which do not say.
        tasks: slots of each node; None for its GPUs, else its CPUs.
        file: a cluster file, which says what nodes take part, with how many slots and what power.

    Raises:
        SlurmError: Slurm does not answer, has no such partition or nodes, or is too old.
        FileError: the cluster file is none.
    """
    slurm = Slurm(env, user, json_offered={"squeue": False, "sinfo": False, "sacct": False})
    found = look(slurm)
    refusal = next((v.why for v in verdicts(found) if v.what.startswith("engine slurm,")), "")
    if not serves("slurm", found):
        raise SlurmError(refusal)
    partitions = slurm.partitions()
    chosen = [p for p in partitions if p.name == partition or (p.default and not partition)]
    if not chosen:
        names = ", ".join(p.name for p in partitions)
        raise SlurmError(f"expected a partition of {names}, got {partition or 'no default one'}")
    named = {node.name: node for node in found.nodes}
    hosts = tuple(host for host in chosen[0].hosts if host in named)
    known = None if file is None else read_cluster(file)
    if known is not None:
        strange = [host for host in known.nodes if host not in hosts]
        if strange:
            raise SlurmError(
                f"expected nodes of partition {chosen[0].name} in {file}, got {', '.join(strange)}"
            )
        # In Slurm's order: a job's first node is then where it runs the job's script.
        hosts = tuple(host for host in hosts if host in known.nodes)
    slots = tuple(_slots(named[host], tasks) for host in hosts)
    power = tuple(_power(len(each)) for each in slots)
    if known is not None:
        at = [known.nodes.index(host) for host in hosts]
        power = tuple(known.power[n] for n in at)
        if tasks is None:
            slots = tuple(_numbered(known.slots[n], gpus=bool(known.gpus[n])) for n in at)
    each = tuple(
        tuple(f"{host}/{slot}" for slot in own) for host, own in zip(hosts, slots, strict=True)
    )
    binds, no = binding(slurm), refusals(found)

    def launcher(state: Path, instance_id: str, server: str) -> Launcher:
        return JobsLauncher(
            *(state, instance_id, server, Executor(slurm), reach, binds),
            partition=partition,
            default=chosen[0].name,
            limits_s={p.name: p.limit_s for p in partitions if p.limit_s is not None},
            grace_s=grace_s,
            no_grow=no.get("grow", ""),
            no_shrink=no.get("shrink", ""),
            measures=measures(found),
        )

    return Engine(Cluster(hosts, each, power), launcher, remote=True)


def _slots(node: SiteNode, tasks: int | None) -> tuple[str, ...]:
    """Return what a node holds: so many tasks, else its GPUs, else its CPUs."""
    gpus = sum(int(n) for n in re.findall(r"(?:^|,)gpu(?::[^:,(]+)?:(\d+)", node.gres))
    if tasks is not None:
        return _numbered(tasks, gpus=False)
    return _numbered(gpus or node.cpus, gpus=bool(gpus))


def _numbered(count: int, *, gpus: bool) -> tuple[str, ...]:
    return tuple(f"{'gpu' if gpus else 'core'}:{n}" for n in range(count))


def _power(cores: int) -> NodePower:
    return NodePower(
        CORE_POWER.idle_w * cores, CORE_POWER.static_w * cores, CORE_POWER.dynamic_w * cores
    )


def allocated(
    env: Mapping[str, str], slurm: Slurm, hosts: Sequence[str], tasks: int | None = None
) -> tuple[tuple[str, ...], ...]:
    """Return what each node of an allocation holds: tasks, GPUs asked for, else its CPUs.

    Args:
        tasks: so many on each node, before what was asked of Slurm.
    """
    gpus = gpus_per_node(env)
    asked = env.get("SLURM_NTASKS_PER_NODE", "")
    if tasks is None and not gpus and asked.isdecimal():
        tasks = int(asked)
    if tasks is not None or gpus:
        return (_numbered(gpus if tasks is None else tasks, gpus=tasks is None),) * len(hosts)
    cpus = counts(env.get("SLURM_JOB_CPUS_PER_NODE", ""))
    if len(cpus) != len(hosts):  # the environment of another place, or none
        known = {node.name: node.cpus for node in slurm.nodes()}
        cpus = [known.get(host, 1) for host in hosts]
    return tuple(_numbered(n, gpus=False) for n in cpus)


def gpus_per_node(env: Mapping[str, str]) -> int:
    """Return how many GPUs were asked for on each node: ``2``, ``a100:2`` or ``a100:1,h100:1``."""
    asked = env.get("SLURM_GPUS_PER_NODE") or env.get("SLURM_GPUS_ON_NODE") or "0"
    numbers = [part.rpartition(":")[2] for part in asked.split(",")]
    return sum(int(n) for n in numbers if n.isdecimal())


def counts(text: str) -> list[int]:
    """Return the numbers that Slurm writes as ``72(x2),36``, one a node; none of what it is not."""
    found: list[int] = []
    for part in filter(None, text.split(",")):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            return []
        found += [int(match[1])] * int(match[2] or 1)
    return found


def binding(slurm: Slurm) -> bool:
    """Return whether this site binds steps to CPUs of its choice unless told otherwise."""
    plugins = slurm.config().get("TaskPlugin", "")
    return "affinity" in plugins or "cgroup" in plugins
