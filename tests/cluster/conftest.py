"""A cluster of namespaces without a batch system; see scripts/cluster."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest
from cluster_hosts import Cluster, hosts_up


@pytest.fixture(scope="session")
def asked(request: pytest.FixtureRequest) -> None:
    """Skip what starts a cluster unless that is wanted."""
    if not request.config.getoption("--slurm"):
        pytest.skip("starts a cluster on this machine: expected --slurm")


@pytest.fixture(scope="session")
def four_hosts(asked: None) -> Iterator[Cluster]:
    """Four hosts that share the folder of temporary files, and nothing else."""
    words = ("--hosts", "4", "--slurm", "none", "--share", tempfile.gettempdir())
    with hosts_up(*words) as cluster:
        yield cluster


@pytest.fixture
def cluster(four_hosts: Cluster) -> Iterator[Cluster]:
    """Hosts without faults, before and after."""
    yield four_hosts
    four_hosts("heal")
    for host in ("n1", "n2", "n3", "n4"):
        four_hosts("start", host)
