"""While slurmctld was away the daemon logged nothing, and jobs that waited for it had no reason."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from processes import called
from routed import Routed
from said import Said

from rms.cli.main import main
from rms.core.model.cluster import Cluster
from rms.core.model.jobs import NodePower
from rms.daemon.restart.recover import resume
from rms.daemon.store.context import Settings
from rms.daemon.store.journal import Journal
from rms.launch.slurm import commands, queue
from rms.launch.slurm.commands import CommandResult, Executor, Slurm
from rms.launch.slurm.jobs import SlurmJobs
from rms.launch.slurm.launcher import SlurmLauncher

NAMES = ("n1", "n2")
DEADLINE_S = 60.0
REFUSAL = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"


class Controller:
    """Commands of a Slurm of idle nodes: a job that is submitted runs on those that it names."""

    def __init__(self) -> None:
        self.jobs: dict[int, dict[str, str]] = {}
        self.numbers = itertools.count(1)

    def __call__(
        self, command: Sequence[str], env: Mapping[str, str], deadline_s: float
    ) -> CommandResult:
        given = dict(re.findall(r"--([a-z-]+)=(.*)", "\n".join(command)))
        busy = {row["%N"] for row in self.jobs.values()}
        nodes = [
            {"%N": name, "%n": name, "%T": "allocated" if name in busy else "idle", "%P": "all*"}
            | {"%c": "1", "%G": "(null)", "%E": "none", "%l": "infinite"}
            for name in NAMES
        ]
        if command[0] == "sbatch":
            number = next(self.numbers)
            self.jobs[number] = dict.fromkeys(("%A", "%F", "%i"), str(number)) | {
                "%j": given["job-name"], "%T": "RUNNING", "%N": given["nodelist"], "%K": "N/A",
                "%D": "1", "%r": "None", "%l": "10:00", "%u": "root", "%V": f"{time.time():.0f}",
                "%S": f"{time.time():.0f}",
            }  # fmt: skip
            return CommandResult(0, f"{number}\n", "")
        if command[0] == "scontrol":
            return CommandResult(0, "Slurmctld(primary) at a is UP\n", "")
        rows = {"squeue": [*self.jobs.values()], "sinfo": nodes}.get(command[0])
        if rows is None:
            return CommandResult(1, "", f"{command[0]}: error: Connection refused\n")
        lines = [re.sub("%.", lambda key: row[key[0]], given.get("format", "")) for row in rows]  # noqa: B023
        return CommandResult(0, "".join(f"{line}\n" for line in lines), "")


class Site:
    """A daemon on the stand-in for slurmctld, which can stop answering.

    Attributes:
        away: "" while it answers; it ``refuses``, or ``hangs`` until it answers again.
    """

    def __init__(self, folder: Path, journal: Journal) -> None:
        self.controller, self.away, self.back = Controller(), "", threading.Event()
        self.messages = Said()
        slurm = Slurm({"PATH": ""}, "root", self.run)
        launcher = SlurmLauncher(folder, "feedface", "unix:none", Executor(slurm))
        launcher.nodes = SlurmJobs(launcher, default="all")
        slots = tuple((f"{name}/core:0",) for name in NAMES)
        cluster = Cluster(NAMES, slots, (NodePower(2.0, 2.0),) * 2)
        settings = Settings(policy="fifo", now=time.time)
        self.server = Routed(resume(cluster, journal, launcher, settings), [0.0])
        self.launcher = launcher

    def run(
        self, command: Sequence[str], env: Mapping[str, str], deadline_s: float
    ) -> CommandResult:
        if self.away == "hangs":
            self.back.wait(DEADLINE_S)
        if self.away == "refuses":
            return CommandResult(1, "", REFUSAL)
        return self.controller(command, env, deadline_s)

    def until(self, happens: Callable[[], Any]) -> None:
        end = time.monotonic() + DEADLINE_S
        while not happens():
            assert time.monotonic() < end, self.messages
            self.server.daemon.tick()
            time.sleep(0.01)

    def logged(self, words: str) -> bool:
        return any(words in message for message in self.messages)

    def reasons(self) -> dict[str, str]:
        return {row["id"]: row["reason"] for row in self.server.ask("GET", "/jobs")[1]}

    def nodes(self) -> str:
        """Return the table that ``rms nodes`` prints."""

        def ask(kind: Any, *_: object) -> Any:
            return msgspec.convert(self.server.ask("GET", "/nodes")[1], kind)

        with patch("rms.cli.client.ask", ask):
            return called(main, "nodes").stdout


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(commands, "SILENT_S", DEADLINE_S)
    monkeypatch.setattr(queue, "SUBMIT_AGAIN_S", 0.05)
    for pause in ("CALM_S", "AWAY_S"):
        monkeypatch.setattr(queue, pause, 0.05)
    with Journal.open(tmp_path / "journal.sqlite") as journal:
        site = Site(tmp_path, journal)
        try:
            yield site
        finally:
            site.away = ""
            site.back.set()
            site.launcher.close()
            site.server.loop.close()


@pytest.mark.parametrize("how", ["refuses", "hangs"])
def test_it_is_logged_and_shown_until_the_controller_is_back(
    slurm: Site, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    slurm.until(lambda: slurm.launcher.nodes.unavailable() is not None)
    assert "REASON" not in slurm.nodes()
    slurm.away = how
    starts, waits = slurm.server.submit(nodes=[1, 1]), slurm.server.submit(nodes=[2, 2])
    assert not any("Slurmctld" in reason for reason in slurm.reasons().values())
    monkeypatch.setattr(commands, "SILENT_S", 0.4)
    slurm.until(lambda: slurm.logged("slurmctld has not answered for"))
    reasons = slurm.reasons()
    assert reasons[starts].startswith("SlurmctldDown: no answer for ")
    assert "; SlurmctldDown: no answer for " in reasons[waits]
    last = slurm.server.ask("GET", f"/history/{starts}")[1][-1]
    assert (last["code"], last["kind"]) == ("SlurmctldDown", "later")
    assert slurm.nodes().count("SlurmctldDown: no answer for ") == len(NAMES)
    slurm.away = ""
    slurm.back.set()
    slurm.until(lambda: slurm.logged("slurmctld answers again, after "))
    monkeypatch.setattr(commands, "SILENT_S", DEADLINE_S)
    slurm.until(lambda: slurm.server.ask("GET", f"/jobs?id={starts}")[1][0]["state"] == "RUNNING")
    assert not any("Slurmctld" in reason for reason in slurm.reasons().values())
    assert "REASON" not in slurm.nodes()
    assert sum("slurmctld" in message for message in slurm.messages) == 2


def test_commands_without_the_controller_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"scontrol": CommandResult(0, "Slurmctld(primary) at a is DOWN", "")}
    slurm = Slurm({}, "root", lambda command, *_: answers.get(command[0], CommandResult(0, "", "")))
    monkeypatch.setattr(commands, "SILENT_S", 0.0)
    assert not slurm.ping() and slurm.silent_s() > 0.0
    slurm.call("sacct", "--jobs=1")
    slurm.call("sinfo", "--version")
    assert slurm.silent_s() > 0.0
    slurm.call("squeue")
    assert slurm.silent_s() == 0.0
