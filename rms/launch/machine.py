"""Engine ``local``: this machine's cores and GPUs as nodes."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from itertools import count
from pathlib import Path

from rms.core.model.cluster import Cluster
from rms.core.model.jobs import NodePower
from rms.formats.config import read_cluster
from rms.formats.profiles import Machine
from rms.launch.base import Engine
from rms.launch.local import LocalLauncher
from rms.power.choice import AUTO, MeterChoice
from rms.power.frequency import available

CORE_POWER = NodePower(idle_w=2.0, static_w=2.0, dynamic_w=8.0)
"""Model of one core where nothing is measured: round numbers of a server's order of magnitude."""


def this_machine(nodes: int | None = None) -> Cluster:
    """Return this machine's cores as nodes of one slot each (the first ``nodes`` of them)."""
    cores = (
        sorted(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else list(range(os.cpu_count() or 1))
    )
    chosen = cores if nodes is None else cores[:nodes]
    return Cluster(
        tuple(f"core{n}" for n in chosen),
        tuple((f"cpu:{n}",) for n in chosen),
        (CORE_POWER,) * len(chosen),
    )


@cache
def hardware() -> Machine:
    """Return what this machine is: processor model, cores, GPUs (asks nvidia-smi, once)."""
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                model = value.strip()
                break
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    gpus: list[str] = []
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10.0, check=True)
        gpus = [line.strip() for line in answer.stdout.splitlines() if line.strip()]
    return Machine(model, os.cpu_count() or 1, tuple(gpus))


def from_file(path: Path, *, shared: bool = False) -> Cluster:
    """Return a cluster file's nodes: their slots are this machine's devices, else cores in turn.

    Args:
        shared: whether slots are given one by one: then each node has as many as the file says, on
            as many cores as it says. Else a node is one core, or its GPUs.

    Raises:
        FileError: the cluster file is none.
    """
    cluster = read_cluster(path)
    cores = [slot for (slot,) in this_machine().slots]
    devices = count()
    slots: list[tuple[str, ...]] = []
    first = 0
    for n, gpus in enumerate(cluster.gpus):
        if gpus:
            slots.append(tuple(f"gpu:{next(devices)}" for _ in range(gpus)))
            continue
        width, of_node = (cluster.slots[n], cluster.cores[n]) if shared else (1, 1)
        own = [cores[(first + core) % len(cores)] for core in range(of_node)]
        slots.append(tuple(own[slot % of_node] for slot in range(width)))
        first += of_node
    columns = cluster.power, cluster.bandwidth_gb_s, (), cluster.levels, cluster.processors
    return Cluster(cluster.nodes, tuple(slots), *columns)


def with_levels(cluster: Cluster, env: Mapping[str, str]) -> Cluster:
    """Return nodes with the frequencies that their devices can be set to, where none are stated.

    Voltages are taken to be proportional to them.
    """
    gpus = any(slot.startswith("gpu:") for slot in cluster.slots[0])
    devices = [d for d in available(env) if d.name.startswith("gpu" if gpus else "cpu") and d.mhz]
    if cluster.levels or not devices:
        return cluster
    mhz = devices[0].mhz
    return replace(cluster, levels=tuple((step / 1000.0, step / mhz[-1]) for step in mhz))


def local_engine(cluster: Cluster, meters: MeterChoice = AUTO) -> Engine:
    """Return the engine that runs jobs as processes of this machine."""
    return Engine(cluster, partial(LocalLauncher, meters=meters))
