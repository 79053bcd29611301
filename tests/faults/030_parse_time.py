"""Lists of ids, arrays and #SBATCH lines took quadratic time to read, in the daemon's loop."""

from __future__ import annotations

import contextlib
import shlex
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import Request

from dmr.plan import parse_resizes
from mpdata.options import parse_boundaries
from rms.client.commands import launcher_words
from rms.daemon.jobs.submit import exported
from rms.formats import jobscript, prices
from rms.formats.config import parse_criteria
from rms.formats.joblog import Clock, records
from rms.formats.jobscript import ScriptError, parse_nodes, parse_power_cap, parse_text, parse_time
from rms.formats.profiles import parsed
from rms.formats.values import (
    expand,
    fold_ids,
    parse_array,
    parse_begin,
    parse_dependency,
    parse_id_list,
    parse_ids,
    parse_signal,
)
from rms.kernels.served import GovernorRule

SHORT, LONG = 15_000, 60_000
"""Characters: a parser of linear time takes 4 times as long for the second, a quadratic one 16."""

FLOOR_S = 0.2
"""Of processor time. A quadratic parser takes seconds for so many characters."""


def script(line: str) -> object:
    return parse_text(f"#!/bin/sh\n{line}\ntrue\n", "job.sh")


def query(text: str) -> object:
    scope = {"type": "http", "headers": [], "query_string": text.encode()}
    return dict(Request(scope).query_params)


def price_table(text: str) -> object:
    return prices._from_csv(text.encode(), "prices.csv")


def price_file(text: str) -> object:
    return prices._from_toml(text.encode(), "prices.toml")


def accounting(text: str) -> object:
    return list(records(text.splitlines(keepends=True), Path("log"), Clock(), Counter()))


def profile(text: str) -> object:
    return parsed(text.encode(), "profile.json")


PARSERS: Mapping[Callable[[str], object], list[str]] = {
    parse_array: ["1", "1-9999", "-", ":", ",", "%", "[", "9" * 9],
    parse_ids: ["7", "_", "[", "]", ",", "1-9999", "%"],
    parse_id_list: ["7", "_", "[", "]", ",", "1-9999,", "7,8_[1-3],"],
    expand: ["n", "[", "]", ",", "-", "1", "n[1-3],", "n[1-99999],", "[1]"],
    parse_dependency: ["afterok", ":", "7", "_8", ",", "?", "singleton", "afterok:7:8,"],
    lambda text: parse_begin(text, 0.0): ["now", "+", "1", "hour", ":", "-", "t", " "],
    parse_signal: ["USR1", "B:", "@", "1", ":", "SIG"],
    parse_time: ["1", "-", ":"],
    parse_nodes: ["1", "-"],
    parse_power_cap: ["1", ".", "0"],
    lambda text: script(f"#SBATCH {text}"): ["-n1 ", '"', "'", "\\", " ", "a", "-H ", "--x "],
    lambda text: script(f"#RMS {text}"): ["--nodes=1 ", "-a0-9999 ", "-wn[0-99999] ", "-n ", "1 "],
    script: ["#", "\n", "#SBATCH", "#RMS -n1\n", " ", "\t", "#x\n", "true"],
    launcher_words: ["srun", "\n", " ", "'", '"', "\\", "#", "exec "],
    lambda text: exported({f"V{n}": "" for n in range(999)}, text): ["ALL,", "A", "=", ",", "NONE"],
    lambda text: fold_ids(text.split(",")): ["7", "_", ",", "7_1,", "8,"],
    parse_criteria: ["user=a,", "nodes=1-4,", "name=*", ",", "=", "-", "hours=1,"],
    GovernorRule.parse: ["price", ":", "1", "co2", "cap"],
    lambda text: parse_resizes(text): ["1", ":", ",", "@", "x", " "],
    lambda text: parse_resizes(",".join(f"{n}:1" for n in range(len(text) // 6))): ["x"],
    parse_boundaries: ["open", "=", "3", ",", ":", " "],
    query: ["id", "=", "&", "%", "41", ";", "+"],
    price_table: ["time (UTC),EUR/kWh\n", "2026-01-01T00:00,1\n", ",", "\n", '"', "(", "/kWh"],
    price_file: ["currency = ", '"EUR"', "\n", "price_per_kwh = ", "[", "1,", "]", "{", "#"],
    accounting: ["JobID|Submit|Start|End|", "1_[1-3]", "|", "\n", "2026-01-01T00:00:00", "1-0:0:0"],
    profile: ["{", '"points"', ":", "[", "]", ",", "1", '"', "\\"],
}


def seconds(parse: Callable[[str], object], text: str) -> float:
    """Return the processor time of reading, or refusing, a text: the best of three."""
    taken = []
    for _ in range(3):
        begun = process_time()
        with contextlib.suppress(ValueError):
            parse(text)
        taken.append(process_time() - begun)
        if taken[-1] < FLOOR_S:
            break
    return min(taken)


@pytest.mark.parametrize("parse", PARSERS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_the_time_of_a_parser_grows_with_the_length_of_its_input(
    parse: Callable[[str], object], data: st.DataObject
) -> None:
    words = st.sampled_from(PARSERS[parse])
    head = data.draw(st.just("") | words)
    unit = "".join(data.draw(st.lists(words, min_size=1, max_size=4)))
    tail = data.draw(st.just("") | words)
    short, long = (head + unit * (size // len(unit)) + tail for size in (SHORT, LONG))
    long_s = seconds(parse, long)
    assert long_s < max(FLOOR_S, 8.0 * seconds(parse, short)), (head, unit, tail, long_s)


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_id_list, ",".join(map(str, range(1, 10_000)))),
        (parse_id_list, "," * (1 << 18)),
        (parse_array, "1-9999," * 37_000),
        (expand, "n" * 200_000 + "[1-99999]"),
        (expand, "a" * 100_000 + "[1][2]"),
        (lambda text: script(f"#SBATCH {text}"), "-wn[0-99999] " * 5_000),
        (lambda text: script(f"#SBATCH {text}"), "-n1 " * 16_000),
        (script, "#\n" * (1 << 19)),
    ],
)
def test_a_long_input_is_read_or_refused_at_once(parse: Callable[[str], object], text: str) -> None:
    assert seconds(parse, text) < 1.0


@given(st.text(st.sampled_from("""ab\\"' #-="""), max_size=12))
def test_words_of_a_line_are_those_of_a_shell(text: str) -> None:
    try:
        words = shlex.split(text)
    except ValueError:
        words = None
    if "#" in text or words is None:
        return
    if all(word.strip() for word in words):
        assert jobscript._words(text) == words
    else:
        with pytest.raises(ScriptError):
            jobscript._words(text)
