"""Nodes powered off and on by commands, with a real daemon: virtual nodes of this machine."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from daemon import LocalRms, closing
from power_windows import write_policies
from processes import ROOT, program

POLICY = """admission = { part = "easy" }
node_power = { part = "off-when-idle" }
"""
PACED = [*program("paced"), str(ROOT / "mpdata" / "__main__.py")]
SMALL = ["--case", "random", "--grid", "24", "20", "8", "--backend", "numpy", "--every", "2"]
POWER = (
    "{ idle_w = 30.0, static_w = 50.0, dynamic_w = 0.0, off_w = 2.0, boot_s = 0.2, boot_j = 9.0 }"
)
COMMAND = """#!/bin/sh
# Notes what it is asked for; waits while there is a file of the node's name.
echo $2 >> {folder}/$1
while test -e {folder}/holds-$2; do sleep 0.05; done
"""


class Powered(LocalRms):
    """Nodes that go off when idle, by commands that only note it, or in the books only."""

    nodes_text = f'[[nodes]]\nname = "n[1-{{}}]"\npower = {POWER}\n'

    def __init__(
        self, nodes: int, *options: str, commands: bool = True, policy: str = "off.toml"
    ) -> None:
        self.commands, self.policy = commands, policy
        super().__init__(nodes, *options)

    def prepare(self) -> None:
        super().prepare()
        (self.folder / "off.toml").write_text(POLICY)
        write_policies(self.folder)
        command = self.folder / "power"
        command.write_text(COMMAND.format(folder=self.folder))
        command.chmod(0o755)

    def serve_command(self) -> list[str]:
        found = [*super().serve_command(), "--policy", str(self.folder / self.policy)]
        if self.commands:
            for word in ("off", "on"):
                found += [f"--power-{word}", f"{self.folder / 'power'} {word}"]
        return found

    def held(self, node: str) -> Path:
        """Return the file that holds the commands for a node up."""
        return self.folder / f"holds-{node}"

    def noted(self, word: str) -> list[str]:
        """Return the nodes for which a command was run."""
        path = self.folder / word
        return path.read_text().split() if path.exists() else []

    def states(self) -> dict[str, str]:
        return {row["name"]: row["state"] for row in self.get("/nodes")}

    def all_are(self, state: str) -> None:
        self.until(lambda: set(self.states().values()) == {state}, f"nodes that are {state}")

    def energy(self) -> dict[str, Any]:
        found: dict[str, Any] = self.get("/books")["energy"]
        return found


@pytest.mark.promise("node-power")
@pytest.mark.parametrize("commands", [True, False])
def test_nodes_go_off_and_come_back_for_who_waits(commands: bool) -> None:
    with closing(Powered(4, commands=commands)) as rms:
        rms.all_are("powered_down")
        job = rms.submit("sleep 0.3", "--nodes", "2", "--mode", "fixed")
        assert rms.over(job) == ["COMPLETED"]
        rms.all_are("powered_down")
        energy = rms.energy()
        assert energy["boot_j"] > 0.0 and energy["off_j"] > 0.0 and energy["idle_j"] >= 0.0
        parts = [energy[f"{part}_j"] for part in ("busy", "idle", "off", "boot")]
        assert sum(parts) == pytest.approx(energy["cluster_j"], rel=1e-9)
        owners = {row["owner"] for row in rms.get("/acct")["rows"]}
        assert {job, "off", "boot"} <= owners
        if commands:
            assert sorted(rms.noted("on")) == ["n1", "n2"]
            assert sorted(rms.noted("off")) == sorted([*("n1", "n2", "n3", "n4"), "n1", "n2"])
        else:
            assert "in the books only" in rms.said()


@pytest.mark.promise("node-power")
def test_a_node_that_does_not_come_back_in_time_is_down_and_the_job_runs_on_another() -> None:
    with closing(Powered(2, "--power-on-deadline", "5")) as rms:
        rms.all_are("powered_down")
        rms.held("n1").touch()
        job = rms.submit("echo it ran", "--nodes", "1", "--mode", "fixed")
        assert rms.over(job) == ["COMPLETED"] and rms.output(job) == "it ran\n"
        assert rms.noted("on") == ["n1", "n2"]
        assert rms.states()["n1"] == "down"
        assert "n1 is down: the command to power it on is not done in time" in rms.said()
        rms.held("n1").unlink()
        assert rms.rms("resume", "n1").returncode == 0
        rms.all_are("powered_down")


@pytest.mark.promise("node-power")
def test_a_daemon_killed_while_nodes_boot_powers_them_on_again() -> None:
    with closing(Powered(2)) as rms:
        rms.all_are("powered_down")
        rms.held("n1").touch()
        job = rms.submit("true", "--nodes", "2", "--mode", "fixed")
        rms.until(lambda: rms.states()["n2"] == "idle", "a node that is up")
        assert rms.states()["n1"] == "powering_up"
        assert rms.row(job)["reason"] == "Resources: waits for 1 of 2 nodes to boot"
        rms.end(signal.SIGKILL)
        rms.held("n1").unlink()
        rms.start()
        assert rms.over(job) == ["COMPLETED"]
        assert rms.noted("on") == ["n1", "n2", "n1"] or rms.noted("on") == ["n2", "n1", "n1"]
        rms.all_are("powered_down")
        rms.post("/policy", {"name": "easy"})
        rms.all_are("idle")
        rms.accounts_balance()
        rms.end()
        rms.replays()


@pytest.mark.promise("node-power")
def test_a_running_job_makes_room_for_a_window_and_grows_after_it() -> None:
    with closing(Powered(4, policy="later.toml")) as rms:
        run = f"PACE_S=0.25 mpirun {' '.join(PACED)} run {' '.join(SMALL)} --steps 400"
        job = rms.submit(run, "--mode", "malleable", "--nodes", "1-4", "--preferred", "4")
        rms.until(lambda: rms.running(job)["size"] == 4, "a job on four nodes")
        assert rms.rms("policy", str(rms.folder / "now.toml")).returncode == 0
        rms.until(lambda: rms.row(job)["size"] == 2, "a job on two nodes")
        rms.until(lambda: list(rms.states().values()).count("powered_down") == 2, "two nodes off")
        assert sorted(rms.noted("off")) == ["n3", "n4"] and not rms.noted("on")
        wide = rms.submit("true", "--nodes", "4", "--mode", "fixed")
        rms.end(signal.SIGKILL)
        rms.policy = "now.toml"
        rms.start()
        assert list(rms.states().values()).count("powered_down") == 2
        assert rms.rms("cancel", wide).returncode == 0
        assert rms.rms("policy", str(rms.folder / "later.toml")).returncode == 0
        rms.until(lambda: rms.row(job)["size"] == 4, "a job on four nodes")
        assert sorted(rms.noted("on")) == ["n3", "n4"]
        rms.hurry()
        assert rms.over(job) == ["COMPLETED"]
        assert rms.resizes(job) == [(4, 2), (2, 4)]
        rms.accounts_balance()
        rms.end()
        rms.replays()
