"""A killed job stayed for good with ``--reach ssh``, if its hosts did not answer at the same time.

Found by a seed of ``scripts/simulate-faults``: as long as one host was ending the processes, all
hosts were asked again, also those that had done so.
"""

from __future__ import annotations

from pathlib import Path

from rms.launch.hosts.agent import Answer
from rms.launch.hosts.allocation import Allocation
from rms.launch.hosts.launcher import HostAgent, HostsLauncher


def no_start(host: str) -> None:
    raise OSError


def test_hosts_that_answer_in_turn(tmp_path: Path) -> None:
    allocation = Allocation("", {"a": 1, "b": 1}, ("ssh",), (), relayed=False)
    launcher = HostsLauncher(tmp_path, "instance", "unix:none", allocation, 0.0)
    agents = launcher.nodes.agents
    for host in allocation.slots:
        agents[host] = HostAgent(host, no_start, tmp_path, "", up=True)  # type: ignore[arg-type]
    asked = 0
    for at in range(10):
        if launcher.members("1"):
            launcher.kill("1")
        if launcher.members("1", 2) or not at:
            launcher.kill("1", 2)
        asked += 1
        own = agents["ab"[at % 2]]
        own._take(Answer(own._number))
        if not launcher.members("1"):
            break
    assert not launcher.members("1") and asked < 6
