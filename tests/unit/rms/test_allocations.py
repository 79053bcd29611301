"""A pilot's allocations in Slurm's queue, with a Slurm that answers as it is told to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from rms.launch.slurm import elastic
from rms.launch.slurm.commands import CommandResult, Executor, Slurm
from rms.launch.slurm.elastic import RETRY_S, Allocations
from rms.launch.slurm.ondemand import Action, Alter, GiveBack, Pending, Submit, Withdraw

NAME = "rms.cafe.pilot"
DEADLINE_S = 120.0
AWAY = "Unable to contact slurm controller"


class Site:
    """What Slurm has: rows of its queue, and what it answers to the next commands."""

    def __init__(self, folder: Path) -> None:
        self.rows: dict[int, str] = {}
        self.refusal = self.answer = ""
        self.called: list[tuple[str, ...]] = []
        self.executor = Executor(Slurm({}, "me", self.run))
        self.known = Allocations(self.executor, NAME, ("--time=60",), folder)

    def put(self, number: int, state: str, hosts: str = "", begun_s: float | None = None) -> None:
        start = "N/A" if begun_s is None else f"{begun_s:.0f}"
        row = f"{number}|{number}|N/A|{state}|2|{hosts}|Resources|1:00:00|100|{start}|me|{NAME}"
        self.rows[number] = row

    def run(
        self, command: Sequence[str], env: Mapping[str, str], deadline_s: float
    ) -> CommandResult:
        if self.refusal == AWAY:
            return CommandResult(1, "", AWAY)
        if "show" in command and int(command[-1]) not in self.rows:
            return CommandResult(1, "", "slurm_load_jobs error: Invalid job id specified")
        if command[0] == "squeue":
            return CommandResult(0, "".join(f"{row}\n" for row in self.rows.values()), "")
        self.called.append(tuple(command))
        if self.refusal:
            return CommandResult(1, "", self.refusal)
        if command[0] == "sbatch":
            number = 40 + len(self.rows)
            self.put(number, "PENDING")
            return CommandResult(0, self.answer or f"{number}\n", "")
        if command[:3] == ("scontrol", "--details", "show"):
            return CommandResult(0, DETAILS, "")
        return CommandResult(0, "", "")

    def until(self, happens: Callable[[], object]) -> None:
        end_s = time.monotonic() + DEADLINE_S
        while not happens():
            assert time.monotonic() < end_s
            self.known.poll()

    def do(self, *actions: Action) -> list[tuple[str, ...]]:
        """Have this done, and looked at; return the commands."""
        self.until(lambda: self.known.current)
        self.called.clear()
        self.known.act(actions)
        assert not self.known.current
        self.until(lambda: self.known.current)
        return self.called


DETAILS = """JobId=41 JobName=x
JobState=RUNNING Reason=None
NodeList=a,b,c BatchHost=a StartTime=100 EndTime=200

"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(elastic, "POLL_S", 0.0)
    found = Site(tmp_path)
    yield found
    found.executor.close()


def test_what_is_asked_for_is_known_once_slurm_has_it(site: Site) -> None:
    site.known.barred = frozenset(("n9", "n1"))
    (words,) = site.do(Submit(2, 5))
    assert {
        "--exclude=n1,n9",
        "--nodes=2-5",
        f"--job-name={NAME}",
        "--time=60",
        "--no-requeue",
    } <= set(words)
    assert site.known.pending == {40: Pending(40, 2, 5)}
    assert site.known.wait_reason == "allocation 40 waits in Slurm: Resources"
    assert site.do(Alter(40, 1, 3)) == [("scontrol", "update", "JobId=40", "NumNodes=1-3")]
    assert site.known.pending == {40: Pending(40, 1, 3)}
    assert site.do(Withdraw(40)) == [("scancel", "--state=PENDING", "40")]
    site.rows.clear()
    site.put(41, "RUNNING", "a,b,c", time.time())
    site.until(lambda: 41 in site.known.running)
    assert site.known.wait_reason == "" and "allocation 41 has a,b,c" in site.known.news


def test_an_answer_of_sbatch_that_is_cut_is_no_refusal(site: Site) -> None:
    site.answer = "4"
    site.do(Submit(1, 1))
    assert site.known.may_submit and list(site.known.pending) == [40]
    (said,) = site.executor.slurm.complaints
    assert said.startswith("sbatch gave no clear answer")


def test_nodes_go_back_but_that_of_the_script(site: Site) -> None:
    site.put(41, "RUNNING", "a,b,c", time.time())
    commands = site.do(GiveBack(41, ("a", "c")))
    assert ("scontrol", "update", "jobid=41", "NodeList=a,b") in commands
    assert ("scancel", "41") in site.do(GiveBack(41, ("a", "b", "c"), whole=True))
    site.put(41, "CANCELLED", "a,b,c", time.time())
    site.until(lambda: not site.known.running)
    assert site.known.may_submit  # it was let go


def test_what_is_refused_is_not_asked_for_all_the_time(site: Site) -> None:
    site.refusal = "Invalid account"
    site.do(Submit(1, 1))
    assert not site.known.may_submit
    assert site.known.wait_reason == ("Slurm refuses an allocation: sbatch failed: Invalid account")
    (said,) = site.known.news
    assert said.endswith(f"the next is asked for in {RETRY_S:.0f} s")
    site.do(Submit(1, 1))
    assert site.known.news[-1].endswith(f"the next is asked for in {2 * RETRY_S:.0f} s")


def test_one_that_ends_at_once_is_not_asked_for_again_soon(site: Site) -> None:
    site.put(41, "FAILED", "", time.time())
    site.until(lambda: site.known.current)
    assert not site.known.may_submit
    assert "allocation 41 ended at once (failed)" in site.known.wait_reason


def test_while_slurm_is_away_nothing_is_known_to_have_been_done(site: Site) -> None:
    site.until(lambda: site.known.current)
    site.refusal = AWAY
    site.known.act([Submit(1, 1)])
    site.until(lambda: site.known.silent)
    assert not site.known.current
    site.refusal = ""
    site.until(lambda: site.known.current)
    assert not site.known.silent
    assert site.known.may_submit and not site.known.news  # it was not refused
