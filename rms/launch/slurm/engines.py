"""The engines of Slurm: the nodes of an allocation, of a partition, or of a pilot on demand."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rms.core.model.cluster import Cluster
from rms.core.rules.checks import LEAST_S
from rms.formats.config import ClusterFile, read_cluster
from rms.launch.local import JobEngine, host_cluster, numbered
from rms.launch.slurm.commands import Executor, Slurm, SlurmError
from rms.launch.slurm.elastic import OnDemandNodes
from rms.launch.slurm.jobs import SlurmJobs
from rms.launch.slurm.launcher import SlurmLauncher, SlurmNodes
from rms.launch.slurm.ondemand import PilotLimits
from rms.launch.slurm.output import Partition, SiteNode
from rms.launch.slurm.pilot import OneAllocation
from rms.launch.slurm.site import SlurmSite, engine_verdict, inspect_site, measures, refusals
from rms.power.choice import AUTO, MeterChoice

LEAST_MARGIN_S = 20.0
"""Time between the last kill of a job and the end of the allocation, in which its steps end."""

MARGIN_S = 30.0


@dataclass(frozen=True)
class EngineOptions:
    """Options of the engines of Slurm.

    Attributes:
        reach: the way in which mpiexec starts its proxies on nodes.
        tasks: slots per node; None for those requested of Slurm, else for its GPUs or CPUs.
    """

    reach: str
    grace_s: float
    tasks: int | None = None
    file: Path | None = None
    meters: MeterChoice = AUTO


def pilot(
    env: Mapping[str, str], user: str, options: EngineOptions, margin_s: float | None = None
) -> JobEngine:
    """Return the nodes of the allocation that this process runs in.

    Raises:
        SlurmError: there is no allocation, or Slurm does not answer; the margin is too short, or
            the cluster file lacks nodes.
    """
    margin_s = _margin(margin_s, options.grace_s)
    number = env.get("SLURM_JOB_ID", "")
    if not number.isdecimal():
        raise SlurmError("expected to run in an allocation (salloc or sbatch), got none")
    slurm, within = Slurm(env, user), int(number)
    details = slurm.job(within)
    if details.state != "RUNNING":
        raise SlurmError(f"expected a running allocation, got job {within}, {details.state}")
    hosts = details.hosts
    file = None if options.file is None else read_cluster(options.file)
    missing = [] if file is None else [host for host in hosts if host not in file.nodes]
    if missing:
        raise SlurmError(
            f"expected all nodes of the allocation in {options.file}, got no word of"
            f" {', '.join(missing)}"
        )
    slots = None
    if file is None or options.tasks is not None:
        slots = allocated(env, slurm, hosts, options.tasks)
    nodes = partial(OneAllocation, number=within, hosts=hosts, margin_s=margin_s)
    return _engine(slurm, options, host_cluster(hosts, slots, file), nodes, f"slurm:{within}")


def site(
    env: Mapping[str, str], user: str, options: EngineOptions, partition: str = ""
) -> JobEngine:
    """Return the nodes of a partition, for jobs that are jobs of Slurm's own.

    Args:
        partition: partition of the nodes; "" for the default one.

    Raises:
        SlurmError: Slurm does not answer, has no such partition or nodes, or is too old.
    """
    slurm, facts, chosen, cluster = _partition(env, user, options, partition)
    refused, partitions = refusals(facts), slurm.partitions()
    verdict = engine_verdict("slurm", facts)
    if not verdict.allowed:
        raise SlurmError(verdict.why)
    nodes = partial(
        SlurmJobs,
        partition=partition,
        default=chosen.name,
        limits_s={p.name: p.limit_s for p in partitions if p.limit_s is not None},
        grace_s=options.grace_s,
        no_grow=refused.get("grow", ""),
        no_shrink=refused.get("shrink", ""),
        measures=measures(facts),
    )
    return _engine(slurm, options, cluster, nodes)


def on_demand(
    env: Mapping[str, str],
    user: str,
    options: EngineOptions,
    limits: PilotLimits,
    margin_s: float | None = None,
) -> JobEngine:
    """Return the nodes of a partition, for a pilot that requests them by demand.

    Args:
        limits: the user's limits; ``most`` 0 for all nodes of the partition, which is "" for the
            default one.

    Raises:
        SlurmError: Slurm does not answer, or has no such partition or nodes; a margin that is too
            short, or limits beyond those of the partition.
    """
    margin_s = _margin(margin_s, options.grace_s)
    slurm, _, chosen, cluster = _partition(env, user, options, limits.partition)
    there = len(cluster.hosts)
    minutes = math.ceil(limits.time_s / 60)  # Slurm counts in these
    most = limits.most or there
    limits = replace(limits, most=most, margin_s=margin_s, time_s=60.0 * minutes)
    if not limits.keep <= limits.most <= there:
        if limits.most > there:
            raise SlurmError(
                f"expected --max-nodes of at most {there}, the nodes of partition {chosen.name}, "
                f"got {limits.most}"
            )
        raise SlurmError(
            f"expected --keep of at most {limits.most}, as --max-nodes, got {limits.keep}"
        )
    if limits.longest_s < LEAST_S or limits.time_s > (chosen.limit_s or math.inf):
        raise SlurmError(
            f"expected --time from {margin_s + LEAST_S:g} s, as the margin is {margin_s:g} s, to "
            f"{chosen.limit_s or math.inf:g} s, the limit of partition {chosen.name}, got "
            f"{limits.time_s:g} s"
        )
    nodes = partial(
        OnDemandNodes,
        limits=limits,
        cluster=tuple(cluster.hosts),
        options=(f"--partition={chosen.name}", f"--time={minutes}", *limits.options),
        excluded=frozenset(chosen.hosts).difference(cluster.hosts),
    )
    return _engine(slurm, options, cluster, nodes, f"slurm pilots of {chosen.name}")


def _engine(
    slurm: Slurm,
    options: EngineOptions,
    cluster: Cluster,
    nodes: Callable[[SlurmLauncher], SlurmNodes],
    where: str = "",
) -> JobEngine:
    """Return an engine, whose launcher gets its nodes."""
    plugins = slurm.config().get("TaskPlugin", "")
    binds = "affinity" in plugins or "cgroup" in plugins  # of Slurm's choice, by default

    def launcher(state: Path, instance_id: str, server: str) -> SlurmLauncher:
        own = state, instance_id, server, Executor(slurm), options.reach, binds
        made = SlurmLauncher(*own, meters=options.meters)
        made.nodes = nodes(made)
        return made

    return JobEngine(cluster, launcher, True, where)


def _partition(
    env: Mapping[str, str], user: str, options: EngineOptions, partition: str
) -> tuple[Slurm, SlurmSite, Partition, Cluster]:
    """Return Slurm's commands, the facts of this site, the chosen partition, and its nodes."""
    slurm = Slurm(env, user)
    facts = inspect_site(slurm)
    chosen = _chosen(slurm.partitions(), partition)
    file = None if options.file is None else read_cluster(options.file)
    named = {node.name: node for node in facts.nodes}
    hosts = _hosts(chosen, named.keys(), file, options.file)
    slots = None
    if file is None or options.tasks is not None:
        slots = tuple(_slots(named[host], options.tasks) for host in hosts)
    return slurm, facts, chosen, host_cluster(hosts, slots, file)


def _margin(margin_s: float | None, grace_s: float) -> float:
    """Return the time between the end of jobs and that of their allocation."""
    if margin_s is None:
        return grace_s + MARGIN_S
    if not margin_s >= grace_s + LEAST_MARGIN_S:
        least = f"{grace_s + LEAST_MARGIN_S:g}"
        raise SlurmError(
            f"expected --margin of at least {least} s, as the grace is {grace_s:g} s,"
            f" got {margin_s:g}"
        )
    return margin_s


def _chosen(partitions: Sequence[Partition], name: str) -> Partition:
    """Return the partition of a name, for "" the default one."""
    for partition in partitions:
        if partition.name == name or (partition.default and not name):
            return partition
    names = ", ".join(partition.name for partition in partitions)
    raise SlurmError(f"expected a partition of {names}, got {name or 'no default one'}")


def _hosts(
    partition: Partition, there: Collection[str], file: ClusterFile | None, path: Path | None
) -> tuple[str, ...]:
    """Return the nodes of a partition that take part: all, or those that the file names.

    They are in Slurm's order: a job's first node is then the one on which Slurm runs its script.
    """
    hosts = tuple(host for host in partition.hosts if host in there)
    if file is None:
        return hosts
    unknown = [host for host in file.nodes if host not in hosts]
    if unknown:
        raise SlurmError(
            f"expected nodes of partition {partition.name} in {path}, got {', '.join(unknown)}"
        )
    return tuple(host for host in hosts if host in file.nodes)


def _slots(node: SiteNode, tasks: int | None) -> tuple[str, ...]:
    """Return the slots of a node: so many tasks, else its GPUs, else its CPUs."""
    gpus = sum(int(n) for n in re.findall(r"(?:^|,)gpu(?::[^:,(]+)?:(\d+)", node.gres))
    if tasks is not None:
        return numbered(tasks, gpus=False)
    return numbered(gpus or node.cpus, gpus=bool(gpus))


def allocated(
    env: Mapping[str, str], slurm: Slurm, hosts: Sequence[str], tasks: int | None = None
) -> tuple[tuple[str, ...], ...]:
    """Return the slots of an allocation's nodes: tasks, requested GPUs, else CPUs.

    Args:
        tasks: their number per node, in place of the request to Slurm.
    """
    gpus = gpus_per_node(env)
    requested = env.get("SLURM_NTASKS_PER_NODE", "")
    if tasks is None and not gpus and requested.isdecimal():
        tasks = int(requested)
    if tasks is not None or gpus:
        return (numbered(gpus if tasks is None else tasks, gpus=tasks is None),) * len(hosts)
    cpus = counts(env.get("SLURM_JOB_CPUS_PER_NODE", ""))
    if len(cpus) != len(hosts):  # the environment of another place, or none
        cpus_of = {node.name: node.cpus for node in slurm.nodes()}
        cpus = [cpus_of.get(host, 1) for host in hosts]
    return tuple(numbered(n, gpus=False) for n in cpus)


def gpus_per_node(env: Mapping[str, str]) -> int:
    """Return the number of requested GPUs of a node: ``2``, ``a100:2`` or ``a100:1,h100:1``."""
    requested = env.get("SLURM_GPUS_PER_NODE") or env.get("SLURM_GPUS_ON_NODE") or "0"
    numbers = [part.rpartition(":")[2] for part in requested.split(",")]
    return sum(int(n) for n in numbers if n.isdecimal())


def counts(text: str) -> list[int]:
    """Return the numbers of ``72(x2),36``, one per node; none of another text."""
    numbers: list[int] = []
    for part in filter(None, text.split(",")):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            return []
        numbers += [int(match[1])] * int(match[2] or 1)
    return numbers
