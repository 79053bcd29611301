"""The short options of sbatch, squeue, scancel and sacct were refused; options had no help."""

from __future__ import annotations

import argparse
import getpass
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon import Rms, served

from dmr.cli import _parser as dmr
from mpdata.cli.main import _parser as mpdata
from rms.cli.main import _parser as rms_parser

USER = getpass.getuser()


@pytest.fixture(scope="module")
def rms() -> Iterator[Rms]:
    with served(2) as opened:
        yield opened


@pytest.fixture(scope="module")
def jobs(rms: Rms) -> list[str]:
    """Two jobs: one that runs for long, one that is held."""
    (rms.work / "w").mkdir()
    options = ["-N", "2", "-t", "5", "-J", "x", "-o", "o-%j", "-e", "e-%j", "-D", "w", "-A", "us"]
    runs = rms.submit("echo out; echo err >&2; sleep 600", *options)
    held = rms.submit("true", "-n", "1", "-a", "3,5", "-t", "0", "-J", "y", "-H", "-b", "now+1hour")
    rms.until(lambda: (rms.work / "w" / f"e-{runs}").exists(), "a job that runs")
    return [runs, held]


def test_those_of_sbatch(rms: Rms, jobs: list[str]) -> None:
    row = rms.row(jobs[0])
    assert (row["name"], row["size"], row["limit_s"], row["account"]) == ("x", 2, 300.0, "us")
    assert Path(row["output"]) == rms.work / "w" / f"o-{jobs[0]}"
    assert [each["limit_s"] for each in rms.rows(jobs[1])] == [None, None]
    assert [each["id"] for each in rms.rows(jobs[1])] == [f"{jobs[1]}_3", f"{jobs[1]}_5"]
    done = rms.rms("submit", "-p", "debug", "-c", "4", "-w", "n1", "-x", "n2", "-H", "--", "true")
    assert done.returncode == 0 and "--partition=debug --cpus-per-task=4" in done.stderr
    assert rms.row(done.stdout.strip())["exclude"] == ["n2"]
    rms.ask("cancel", done.stdout.strip())


def queue(rms: Rms, *words: str) -> list[list[str]]:
    done = rms.rms("queue", *words)
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


def test_those_of_squeue(rms: Rms, jobs: list[str]) -> None:
    runs, held = jobs
    heads, first, second = queue(rms)
    shown = dict(zip(heads, first, strict=False))
    assert (shown["USER"], shown["TIME_LIMIT"], shown["NODES"]) == (USER, "5:00", "2")
    assert second[:7] == [f"{held}_[3,5]", "y", USER, "PENDING", "fixed", "0:00", "UNLIMITED"]
    form = ("-o", "%i|%u|%l|%Q", "--noheader")
    assert queue(rms, *form, "-u", USER, "-t", "R") == [[f"{runs}|{USER}|5:00|0"]]
    assert queue(rms, *form, "--me", "-n", "y") == [[f"{held}_[3,5]|{USER}|UNLIMITED|0"]]
    assert queue(rms, *form, "-j", runs) == queue(rms, *form, runs)
    assert len(queue(rms, *form, runs, held)) == 2 and queue(rms, *form, "-u", "nobody-here") == []
    ((time,),) = queue(rms, "-o", "%M", "--noheader", runs)
    assert time[0].isdigit() and ":" in time


def test_those_of_sacct_and_scancel(rms: Rms, jobs: list[str]) -> None:
    runs, held = jobs
    assert [row["id"] for row in rms.ask("acct", "-j", runs)] == [runs]
    ids = {row["id"] for row in rms.ask("acct", "--me", "-t", "PD", "-n", "y")}
    assert ids == {f"{held}_3", f"{held}_5"} and rms.ask("acct", "-u", "nobody-here") == []
    assert rms.ask("cancel", "-u", USER, "-n", "y")["ids"] == [f"{held}_3", f"{held}_5"]
    assert {row["id"] for row in rms.ask("acct", held)} == ids
    done = rms.rms("acct", "-j", "99")
    assert done.returncode == 2 and "got 99, which is not known" in done.stderr


@pytest.mark.parametrize("parser", [rms_parser("--print-completion"), dmr(), mpdata()])
def test_every_option_has_help(parser: argparse.ArgumentParser) -> None:
    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    lacking = [
        f"{name} {(action.option_strings or [action.dest])[-1]}"
        for name, command in commands.choices.items()
        for action in command._actions
        if not action.help
    ]
    assert not lacking
