"""Options and files accepted ``nan`` and numbers out of range; the daemon died of one later."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from processes import called

from dmr.cli import _parser as dmr_parser
from mpdata.cli.main import _parser as mpdata_parser
from rms.cli.main import COMMANDS
from rms.cli.main import _parser as rms_parser
from rms.cli.main import main as rms
from rms.core.policies import PolicyError
from rms.core.policies.compose import read_policy
from rms.formats.config import FileError, read_cluster, read_workload
from rms.formats.jobscript import OPTIONS, ScriptError, read_option
from rms.formats.swf import read_trace

NO_NUMBERS = ("nan", "inf", "-inf", "1e400", "")


def number_options() -> Iterator[tuple[str, argparse.Action, argparse.ArgumentParser]]:
    """Yield all options whose value is a number, of all commands."""
    tops = [rms_parser(name) for name in COMMANDS] + [dmr_parser(), mpdata_parser()]
    for top in tops:
        (commands,) = (a for a in top._actions if isinstance(a, argparse._SubParsersAction))
        for name, command in commands.choices.items():
            for action in command._actions:
                with contextlib.suppress(TypeError, ValueError, argparse.ArgumentTypeError):
                    kind = action.type
                    if callable(kind) and isinstance(kind("1"), int | float):
                        option = (action.option_strings or [action.dest])[0]
                        yield f"{top.prog} {name} {option}", action, command


def value_of(action: argparse.Action, command: argparse.ArgumentParser, text: str) -> object:
    """Return what an option makes of a text, None where it is refused in a sentence."""
    try:
        return command._get_value(action, text)
    except argparse.ArgumentError as error:
        assert "expected" in str(error) and f"got {text!r}" in str(error), str(error)
        return None


def test_no_option_accepts_a_number_that_is_not_finite() -> None:
    options = list(number_options())
    assert len(options) > 40
    for name, action, command in options:
        for text in NO_NUMBERS:
            assert value_of(action, command, text) is None, f"{name} {text}"


def test_no_option_of_seconds_or_watts_accepts_less_than_nothing() -> None:
    for name, action, command in number_options():
        if name != "mpdata run --angle" and isinstance(value_of(action, command, "1"), float):
            assert value_of(action, command, "-1") is None, name


@pytest.mark.parametrize("name", sorted(option.name for option in OPTIONS if option.read))
def test_lines_of_scripts_refuse_them(name: str) -> None:
    for text in NO_NUMBERS:
        with contextlib.suppress(ScriptError):
            (value,) = {*msgspec.structs.astuple(read_option(name, text))} - {None}
            assert not isinstance(value, float), f"{name} {text} is {value}"


@pytest.mark.parametrize(
    "words",
    [
        *("--grace nan", "--grace -3", "--margin -3", "--boot-deadline 0", "--boot-deadline nan"),
        *("--grace inf", "--grace 1e300", "--meter-limit nan", "--nodes 0"),
        *("--power-on-deadline inf", "--power-on-deadline 0"),
        *("--with-parent -1", "--ntasks-per-node 0", "--assumed-time nan", "--keep-events nan"),
        *("--power-cap nan", "--governor price:nan"),
    ],
)
def test_serve_refuses_them(refusal: Callable[[str], str], words: str) -> None:
    message = refusal(f"rms serve --check {words.replace(' ', '=')} --state {Path.cwd() / 's'}")
    assert "expected" in message and message.count("\n") == 1
    assert words.split()[1].removeprefix("price:") in message


@pytest.mark.parametrize(
    "line",
    [
        *("compare --delay=-1 job.sh", "compare --delay=nan job.sh", "simulate --mtbf-node=nan"),
        *("simulate --repair=-1", "simulate --processors=0", "simulate --hours=nan"),
        *("profile --window=nan -- true", "profile --slowdown=nan -- true", "web --port=65536"),
        *("profile --repeat=0 -- true", "pilot --on-demand --idle=nan", "pilot --keep=-1"),
        *("profile --window=-1 -- true", "simulate --serial=nan --malleable=0 --trace=job.sh"),
        *("submit --cooldown=nan job.sh", "submit --power=nan job.sh", "power-cap nan"),
    ],
)
def test_other_commands_refuse_them(refusal: Callable[[str], str], line: str) -> None:
    message = refusal(f"rms {line}")
    assert "expected" in message and "got" in message and message.count("\n") == 1


@pytest.mark.parametrize(
    "line",
    [
        *("run --tracers=0", "run --grid 0 8 8", "run --steps=0", "run --iterations=0"),
        *("run --threads=0", "run --every=0", "run --checkpoint-every=-1", "run --seed=-1"),
        *("run --output-every=-1", "run --cooldown=-1", "run --courant=0", "run --courant=nan"),
        *("run --winds a b --days=0", "bench --threads=0", "bench --rounds=0", "bench --ranks=-1"),
        *("bench --grid 8 -1 8", "run --boundary=fixed:nan", "run --resize-at=-1:2"),
    ],
)
def test_mpdata_refuses_them(refusal: Callable[[str], str], line: str) -> None:
    message = refusal(f"mpdata {line}")
    assert "expected" in message and "got" in message and message.count("\n") == 1


@pytest.mark.parametrize("option", ["--from=0", "--to=-1", "--mib=0", "--mib=nan"])
def test_dmr_refuses_them(refusal: Callable[[str], str], option: str) -> None:
    message = refusal(f"dmr bench {option}")
    assert "expected" in message and "got" in message and message.count("\n") == 1


@pytest.mark.parametrize("value", ["nan", "inf", "1e400"])
def test_files_refuse_them(tmp_path: Path, value: str) -> None:
    file = tmp_path / "file.toml"
    file.write_text(f'name = "c"\n[[nodes]]\nname = "n1"\nfrequencies = [1.0, {value}]\n')
    with pytest.raises(FileError, match=r"finite number in nodes\[0\]\.frequencies\[1\], got"):
        read_cluster(file)
    for key in ("time_s = [{}]\nnodes = [1]", "t1_s = {}\ntc_s = 1.0"):
        speedup = key.format(value)
        file.write_text(f"[[jobs]]\nnodes = [1, 1]\n[jobs.speedup]\n{speedup}\n")
        with pytest.raises(FileError, match=r"finite number in jobs\[0\]\.speedup"):
            read_workload(file)
    file.write_text(f'frequency = {{ part = "power-aware", slowdown = {value} }}\n')
    with pytest.raises(PolicyError, match=r"finite number in frequency\.slowdown, got"):
        read_policy(file)
    trace = tmp_path / "trace.swf"
    trace.write_text(f"1 0 0 {value} 1 -1 -1 1 10 -1 1 1 1 1 1 1 1 1\n")
    with pytest.raises(FileError, match="expected 18 numbers in line 1"):
        read_trace(trace)


def test_the_smallest_numbers_are_accepted(tmp_path: Path) -> None:
    words = ("serve", "--check", "--state", str(tmp_path / "s"))
    done = called(rms, *words, "--grace", "0", "--boot-deadline", "1e-9")
    assert done.returncode == 0, done.stderr
