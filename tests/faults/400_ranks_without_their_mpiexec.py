"""With ``--reach ssh`` a node had two jobs, where ranks were left of an mpiexec that was killed.

A seed of ``scripts/simulate-faults`` shows it: a job was over once it had no processes on the
daemon's machine, and after a restart a host was up before what had ended meanwhile was gone there.
"""

from __future__ import annotations

from pathlib import Path

from rms.launch.hosts.agent import Answer
from rms.launch.hosts.allocation import Allocation
from rms.launch.hosts.launcher import HostAgent, HostsLauncher

RANKS = [("1", "0")]


def launcher_of(folder: Path, *others: str) -> tuple[HostsLauncher, HostAgent]:
    allocation = Allocation("", dict.fromkeys(("a", *others), 1), ("ssh",), (), relayed=False)
    launcher = HostsLauncher(folder, "instance", "unix:none", allocation, 0.0)
    return launcher, launcher.nodes.agents["a"]


def test_a_job_is_not_over_before_they_are(tmp_path: Path) -> None:
    launcher, own = launcher_of(tmp_path)
    own._take(Answer(own._number, live=RANKS, text=own.text))
    assert launcher.members("1") and launcher.members("1", 0)
    assert not launcher.members("1", 1) and not launcher.members("2")
    launcher.kill("1")
    (order,) = own._orders
    assert order.kill == [("1", "")]
    own._take(Answer(order.number - 1, live=RANKS))
    assert launcher.members("1")
    own._take(Answer(order.number))
    assert not launcher.members("1")


def test_a_host_is_not_up_before_they_are_gone(tmp_path: Path) -> None:
    launcher, own = launcher_of(tmp_path)
    launcher.kill("1")  # ended while the daemon was away
    (order,) = own._orders
    own._take(Answer(order.number, RANKS, ending=[("1", "")], text=own.text))
    assert launcher.nodes.unavailable() == {"a"}
    own._take(Answer(order.number + 1, text=own.text))
    assert launcher.nodes.unavailable() == set()


def test_a_host_that_does_not_answer_holds_back_no_kill_on_others(tmp_path: Path) -> None:
    launcher, own = launcher_of(tmp_path, "b")
    own._take(Answer(own._number, text=own.text))
    launcher.kill("1")  # noted for b
    own._take(Answer(own._number, text=own.text))
    assert not launcher.members("1")
    own._take(Answer(own._number, RANKS))  # the next run of the job
    launcher.kill("1")
    assert [order.kill for order in own._orders] == [[("1", "")], [("1", "")]]
