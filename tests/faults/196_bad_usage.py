"""Refusals of wrong usage named neither the wrong value nor the option that is close to it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from processes import Run, called

from dmr.cli import main as dmr
from mpdata.cli.main import main as mpdata
from rms.cli.main import main as rms

Main = Callable[[list[str]], int]
USAGE = [
    ("rms queu", "rms: error: expected a command, got 'queu'; did you mean queue?"),
    ("rms zzz", "rms: error: expected a command of serve, pilot, submit"),
    ("rms queue --formt x", "unrecognized arguments: --formt; did you mean --format?"),
    ("rms nodes --zzz", "unrecognized arguments: --zzz (rms nodes --help lists all options)"),
    ("rms resize 4", "rms resize: error: expected NODES, got none"),
    ("rms submit nofile.sh", "expected a job script, got nofile.sh, which does not exist"),
    ("rms submit -a 5-1 job.sh", "--array: expected rising indices like 1-5, got '5-1'"),
    ("rms submit -a 0,5-1 job.sh", "expected rising indices like 1-5 in '0,5-1', got '5-1'"),
    ("rms submit --mode malleabel x", "expected fixed, moldable, malleable, flexible, got 'mal"),
    ("dmr chek", "dmr: error: expected a command, got 'chek'; did you mean check?"),
    ("dmr bench --from 0", "expected --from of at least 1, got 0"),
    ("dmr bench --mib x", "argument --mib: expected a whole number, got 'x'"),
    ("mpdata rnu", "mpdata: error: expected a command, got 'rnu'; did you mean run?"),
    ("mpdata run --grid 10 10", "argument --grid: expected 3 values, got 2"),
    ("mpdata run --courant x", "argument --courant: expected a number above 0, got 'x'"),
]


@pytest.mark.parametrize(("line", "expected"), USAGE)
def test_wrong_usage_is_refused_in_one_sentence(
    refusal: Callable[[str], str], line: str, expected: str
) -> None:
    message = refusal(line)
    assert expected in message and message.count("\n") == 1


@pytest.mark.parametrize(("main", "name"), [(rms, "rms"), (dmr, "dmr"), (mpdata, "mpdata")])
def test_a_command_alone_prints_its_help(main: Main, name: str) -> None:
    done = called(main)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: {name} ") and "positional arguments:" in done.stdout


def test_a_run_without_a_case_names_the_default(mpdata_here: Run) -> None:
    grid = ("--grid", "12", "10", "4", "--steps", "2", "--backend", "numpy")
    note = "using the default case sphere; mpdata cases lists all cases\n"
    assert note in mpdata_here("run", *grid).stdout
    assert note not in mpdata_here("run", *grid, "--case", "sphere").stdout
