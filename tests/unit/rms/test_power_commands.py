"""Commands that power nodes off and on, under a daemon in this process: order, faults, restarts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from idle import Bench, nodes
from processes import until
from submissions import hand_in

from rms.core.model.jobs import JobId, JobSpec, Mode, NodePower
from rms.core.policies import PolicyError, adjusted, named, placing
from rms.daemon.ask import views
from rms.daemon.heart import Daemon
from rms.daemon.restart.recover import replay
from rms.daemon.store.journal import Journal
from rms.launch.base import PowerCommands


class Powered(Bench):
    """A daemon of two nodes that go off when idle; ``off`` and ``on`` are shell scripts."""

    def __init__(self, journal: Journal, folder: Path, off: str, on: str) -> None:
        (folder / "p.toml").write_text('node_power = { part = "off-when-idle" }\n')
        log = 'echo "$0 $1" >> {}; cd {}; {}'
        self.log = folder / "log"
        shell = {
            word: ("sh", "-c", log.format(self.log, folder, body), word)
            for word, body in (("off", off), ("on", on))
        }
        self.commands = PowerCommands(shell["off"], shell["on"], 60.0)
        policy = placing(str(folder / "p.toml")).key
        super().__init__(journal, folder, nodes(2, NodePower(9.0, 9.0)), policy)

    def resumed(self, **settings: Any) -> Daemon:
        return super().resumed(power_commands=self.commands, **settings)

    def submit(self, number: int, size: int) -> None:
        job = JobId(str(number))
        spec = JobSpec(job, self.now_s, size, size, size, Mode.FIXED)
        hand_in(self.daemon, [spec])

    def until(self, happens: Callable[[], bool]) -> None:
        def looked() -> bool:
            self.daemon.node_switch.tick()
            return happens()

        until(looked, lambda: self.said, 0.002)

    def asked(self) -> list[str]:
        return sorted(self.log.read_text().splitlines()) if self.log.exists() else []

    def states(self) -> list[str]:
        return [row.state for row in views.nodes(self.daemon.context)]

    def running(self) -> bool:
        return bool(self.daemon.context.state.running)

    def settled(self) -> None:
        """Wait until no command runs."""
        self.until(lambda: not self.daemon.node_switch._running)


Made = Callable[[str, str], Powered]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    benches: list[Powered] = []
    with Journal.open(tmp_path / "journal") as journal:

        def make(off: str, on: str) -> Powered:
            benches.append(Powered(journal, tmp_path, off, on))
            return benches[-1]

        yield make
        for bench in benches:
            bench.settled()


def test_nodes_go_off_when_their_time_has_come_though_nothing_happens(made: Made) -> None:
    """The daemon looks by itself; that it did is in the journal, so a replay decides the same."""
    bench = made("true", "true")
    bench.settled()
    bench.daemon.set_policy("easy")
    bench.until(lambda: bench.states() == ["idle", "idle"])
    bench.now_s += 5.0
    power = {"part": "off-when-idle", "delay_s": 50.0, "at_most": 1}
    bench.daemon.set_policy(adjusted(named("easy"), node_power=power).key)
    for more_s, states in (
        (49.0, ["idle", "idle"]),
        (1.0, ["powered_down", "idle"]),
        (59.0, ["powered_down", "idle"]),
        (1.0, ["powered_down", "powered_down"]),
    ):
        bench.now_s += more_s
        bench.daemon.tick()
        assert bench.states() == states
    assert replay(bench.journal.read()).differing == []
    spans = views.books(bench.daemon.context).power_spans
    assert [(each.node, each.job, each.start_s, each.end_s) for each in spans[-4:]] == [
        ("n1", "boot", 1000.0, 1000.0),
        ("n2", "boot", 1000.0, 1000.0),
        ("n1", "off", 1055.0, None),
        ("n2", "off", 1115.0, None),
    ]


def test_a_node_is_not_powered_on_before_the_command_that_powers_it_off_has_ended(
    made: Made,
) -> None:
    bench = made("until test -e gone; do sleep 0.01; done", "true")
    bench.until(lambda: bench.asked() == ["off n1", "off n2"])
    bench.submit(1, 1)
    assert bench.states() == ["powering_up", "powered_down"]
    bench.daemon.node_switch.tick()
    assert "on n1" not in bench.asked()
    (bench.folder / "gone").touch()
    bench.until(bench.running)
    assert bench.asked() == ["off n1", "off n2", "on n1"]
    assert replay(bench.journal.read()).differing == []


def test_a_node_that_cannot_be_powered_off_is_down_until_resumed_and_over_a_restart(
    made: Made,
) -> None:
    bench = made("test $1 = n2", "true")
    bench.until(lambda: bench.states() == ["down", "powered_down"])
    assert any("the command to power it off ended with 1" in line for line in bench.said)
    bench.settled()
    again = bench.daemon = bench.resumed()
    again.nodes.tick()
    assert bench.states() == ["down", "powered_down"]
    assert bench.asked() == ["off n1", "off n2"]  # n2 is known to be off
    bench.settled()
    bench.commands = PowerCommands(("true",), ("true",))
    bench.daemon = bench.resumed()
    bench.daemon.nodes.drain(["n1"], drained=False)
    assert bench.states() == ["powered_down", "powered_down"]


def test_a_command_that_cannot_be_run_is_a_node_that_is_down(made: Made) -> None:
    bench = made("true", "true")
    bench.settled()
    bench.commands = PowerCommands(("no-such-program",), ("no-such-program",))
    bench.daemon = bench.resumed()
    bench.submit(1, 1)
    assert bench.states() == ["down", "down"] and not bench.running()
    (row,) = views.jobs(bench.daemon.context)
    assert row.reason.startswith("Resources: waits for 1 node, 0 are free")


def test_who_is_slow_is_down_and_its_command_is_killed(made: Made) -> None:
    bench = made("true", "test $1 = n2 || { sleep 60 & echo $! >> pid; wait; }")
    bench.until(lambda: len(bench.asked()) == 2)
    bench.submit(1, 1)
    bench.until(lambda: (bench.folder / "pid").exists())
    bench.now_s += 61.0
    bench.until(bench.running)
    assert bench.states() == ["down", "allocated"]
    assert bench.asked()[2:] == ["on n1", "on n2"]


def test_nodes_of_others_are_powered_by_commands_only(made: Made) -> None:
    bench = made("true", "true")
    daemon = bench.daemon
    daemon.launcher.shared_filesystem = True
    daemon.set_policy(daemon.scheduler.engine.policy.key)
    daemon.context.settings = replace(daemon.context.settings, power_commands=None)
    with pytest.raises(PolicyError, match="expected --power-off and --power-on for a policy"):
        daemon.set_policy(daemon.scheduler.engine.policy.key)
