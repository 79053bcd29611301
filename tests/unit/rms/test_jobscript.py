"""Job scripts as sbatch reads them, and Slurm's forms of arrays, times, nodes and ids."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentences import one_sentence

from rms.core.model.jobs import Mode
from rms.formats.jobscript import (
    DEFAULT_ARRAY_OUTPUT,
    DEFAULT_OUTPUT,
    OutputNames,
    Script,
    ScriptError,
    expand_output,
    nodes_of_tasks,
    parse_nodes,
    parse_script,
    parse_text,
    parse_time,
    read_option,
    refuse_unsupported,
)
from rms.formats.values import MAX_TASKS, Array, IdSelection, fold_ids, parse_array, parse_ids
from rms.wire.users import Options

Read = Callable[[str], Script]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Reads a script of these lines, with its first and its command line around them."""

    def reader(lines: str) -> Script:
        path = tmp_path / "job.sh"
        path.write_text(f"#!/bin/sh\n{lines}\nsrun ./solver\n")
        return parse_script(path)

    return reader


OPTIONS = [
    *(("--array=0-3%2", Options(array="0-3%2")), ("--nodes=1-4", Options(nodes=(1, 4)))),
    ("--time=1-2:03:04", Options(time_s=93784.0)),
    ("--job-name=wind", Options(job_name="wind")),
    ("--output=%x.out", Options(output="%x.out")),
    ("--dependency=afterok:3", Options(dependency="afterok:3")),
    *(("--requeue", Options(requeue=True)), ("--no-requeue", Options(requeue=False))),
    ("--ntasks-per-node=2", Options(ntasks_per_node=2)),
    ("--ntasks=2", Options(ntasks=2)),
    ("-n 2", Options(ntasks=2)),
    *(("--hold", Options(hold=True)), ("--begin=16:00", Options(begin="16:00"))),
]
RMS_OPTIONS = [
    ("--mode=flexible", Options(mode=Mode.FLEXIBLE)),
    ("--preferred=3", Options(preferred=3)),
    ("--memory-bandwidth=12.5", Options(memory_bandwidth_gb_s=12.5)),
    ("--power=250", Options(power_w=250.0)),
    ("--survive=2.5", Options(survive="2.5")),
    ("--survive=auto", Options(survive="auto")),
    ("--resize-by=messages", Options(resize_by="messages")),
    ("--resize-by=signal", Options(resize_by="signal")),
    ("--resize-by=command:./resize", Options(resize_by="command:./resize")),
]
SHORT = [
    *(("-a", "1,3", Options(array="1,3")), ("-N", "2", Options(nodes=(2, 2)))),
    *(("-t", "10", Options(time_s=600.0)), ("-J", "wind", Options(job_name="wind"))),
    ("-o", "o-%j", Options(output="o-%j")),
    ("-d", "singleton", Options(dependency="singleton")),
    *(("-e", "e-%j", Options(error="e-%j")), ("-D", "/tmp", Options(chdir="/tmp"))),
]


@pytest.mark.parametrize("kind", ["RMS", "SBATCH"])
@pytest.mark.parametrize(("text", "expected"), OPTIONS)
def test_both_kinds_of_lines_state_the_options_of_sbatch(
    read: Read, kind: str, text: str, expected: Options
) -> None:
    script = read(f"#{kind} {text}")
    assert (script.options, script.slurm_options) == (expected, ())
    assert read(f"#{kind} {text.replace('=', ' ')}").options == expected


@pytest.mark.parametrize(("text", "expected"), RMS_OPTIONS)
def test_only_rms_lines_state_what_sbatch_does_not_know(
    read: Read, text: str, expected: Options
) -> None:
    script = read(f"#RMS {text}\n#SBATCH {text}")
    assert (script.options, script.slurm_options) == (expected, (text,))


@pytest.mark.parametrize("kind", ["RMS", "SBATCH"])
@pytest.mark.parametrize(("letter", "value", "expected"), SHORT)
def test_short_forms(read: Read, kind: str, letter: str, value: str, expected: Options) -> None:
    assert read(f"#{kind} {letter} {value}").options == expected
    assert read(f"#{kind} {letter}{value}").options == expected


@pytest.mark.parametrize("kind", ["RMS", "SBATCH"])
def test_a_job_may_go_on_without_a_node(read: Read, kind: str) -> None:
    for text in ("--no-kill", "-k"):
        assert read(f"#{kind} {text}").options == Options(no_kill=True)
    assert read(f"#{kind} --no-kill=off -N 2").options == Options(nodes=(2, 2))
    assert read(f"#{kind} -k -N 2").options == Options(no_kill=True, nodes=(2, 2))


@pytest.mark.parametrize("text", ["--survive=often", "--survive=-1", "--survive=", "--survive=nan"])
def test_an_interval_of_copies_is_a_time_or_automatic(read: Read, text: str) -> None:
    with pytest.raises(ScriptError):
        read(f"#RMS {text}")


@pytest.mark.parametrize(
    "how", ["", "signals", "signal:USR2", "command", "command:", "'command: '"]
)
def test_a_way_to_be_told_of_a_new_size(read: Read, how: str) -> None:
    with one_sentence(ScriptError):
        read(f"#RMS --resize-by={how}")
    assert read("#RMS --resize-by='command:sh a.sh 1'").options.resize_by == "command:sh a.sh 1"


def test_an_rms_line_wins_wherever_it_is_and_the_later_of_two_alike(read: Read) -> None:
    options = read(
        "#RMS --nodes=1-8 --requeue\n#SBATCH --nodes=4 --no-requeue -t 5\n#SBATCH --time=6 -J x"
    ).options
    assert options == Options(nodes=(1, 8), requeue=True, time_s=360.0, job_name="x")


def test_what_slurm_alone_knows_is_ignored_and_named(read: Read) -> None:
    script = read("#SBATCH --mem=4G -p debug --exclusive -n 8\n#SBATCH --nice -5 --gpus 1 -N 2")
    assert script.options == Options(nodes=(2, 2), memory_mib=4096.0, ntasks=8, priority=-100)
    assert " ".join(script.slurm_options) == "--mem=4G -pdebug --exclusive --nice=100 -5 --gpus=1"


@pytest.mark.parametrize(
    "line",
    [
        *("", "   ", "# RMS --nodes=9", "##RMS --nodes=9", " #SBATCH --nodes=9"),
        *("#RMSE --nodes=9", "#SBATCHED --nodes=9", "#rms --nodes=9"),
    ],
)
def test_other_comments_state_nothing_and_end_nothing(read: Read, line: str) -> None:
    assert read(f"{line}\n#RMS --preferred=2").options == Options(preferred=2)


def test_lines_after_the_first_command_are_not_read(read: Read) -> None:
    assert read("#RMS -N 2\n  cd /tmp\n#RMS -N 3\n#RMS --nonsense").options == Options(nodes=(2, 2))


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ('#RMS --job-name="two words" # a comment that doesn\'t count', "two words"),
        ("#RMS -J 'it is # here'#RMS", "it is # here#RMS"),
        *(("#SBATCH --job-name=a#b\t#c", "a#b"), (r"#SBATCH -J a\ b", "a b")),
        ("#SBATCH--job-name=close", "close"),
    ],
)
def test_quotes_and_comments_in_a_line(read: Read, line: str, name: str) -> None:
    assert read(line).options == Options(job_name=name)


def test_a_comment_need_not_be_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    path.write_bytes(b"#!/bin/sh\n# caf\xe9\n#RMS -N 2 # caf\xe9\ntrue\n")
    assert parse_script(path) == Script(Options(nodes=(2, 2)), (), path)


def test_a_script_need_not_be_executable_nor_end_its_last_line(tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    path.write_text("#!/usr/bin/env python3\nprint()")
    path.chmod(0o600)
    assert parse_script(path).options == Options()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        *(("#RMS --gpus=4", "'--gpus=4'"), ("#RMS -n 4x", "'4x'")),
        ("#RMS --requeue=yes", "'--requeue=yes'"),
        *(("#SBATCH --requeue=yes", "'--requeue=yes'"), ("#RMS nodes=4", "'nodes=4'")),
        *(("#SBATCH nodes=4", "'nodes=4'"), ("#SBATCH --mem=4G more", "'more'")),
        *(("#RMS --nodes", "--nodes: expected"), ("#SBATCH -N=4", "'=4'")),
        *(("#RMS --array=", "--array: expected"), ("#SBATCH -b soon", "--begin: expected a time")),
        *(("#RMS -d after:3", "expected dep"), ("#RMS -d afterok:3,afterok:4?5", "expected dep")),
        ("#RMS --job-name=''", "--job-name: expected"),
        *(("#RMS --job-name=a\x07b", r"a\x07b"), ("#RMS --job-name='open", "closed quotes")),
        ("#RMS -J end\\", "closed quotes"),
        ("#RMS --mode=elastic", "fixed, moldable, malleable, flexible, got 'elastic'"),
        *(("#RMS --preferred=0", "'0'"), ("#RMS --resize-factor=1.5", "'1.5'")),
        ("#RMS --resize-factor=2", "--resize-factor: expected a script without it"),
        *(("#RMS --ntasks-per-node=-1", "'-1'"), ("#RMS --memory-bandwidth=nan", "'nan'")),
        *(("#RMS --memory-bandwidth=0.0", "'0.0'"), ("#RMS --power=1e3", "'1e3'")),
    ],
)
def test_a_line_that_does_not_parse_is_named_in_one_sentence(
    read: Read, line: str, says: str
) -> None:
    for part in ("job.sh:3: ", says):
        with one_sentence(ScriptError, part):
            read(f"# first\n{line}")


def test_a_value_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    path.write_bytes(b"#!/bin/sh\n#RMS -J caf\xe9\ntrue\n")
    with one_sentence(ScriptError, "printable"):
        parse_script(path)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        *((b"", "empty"), (b" \n\n", "empty"), (b"#!/bin/sh\n", "command")),
        (b"#!/bin/sh\n#RMS --nodes=4\n\n  # end\n", "command"),
        (b"srun ./solver\n", "'srun ./solver'"),
        (b"\n#!/bin/sh\ntrue\n", "#!/bin/sh, got ''"),
        (b"\xef\xbb\xbf#!/bin/sh\ntrue\n", "first line"),
        *((b"\x7fELF\x02\0\0\0", "text file"), (b"\xff\xfe\xfd", "first line")),
        (b"#!/bin/sh\r\ntrue\r\n", "DOS"),
    ],
)
def test_a_file_that_is_no_job_script_is_refused(tmp_path: Path, data: bytes, says: str) -> None:
    path = tmp_path / "job.sh"
    path.write_bytes(data)
    with one_sentence(ScriptError, says):
        parse_script(path)


def test_a_missing_file_and_a_directory_are_refused(tmp_path: Path) -> None:
    with one_sentence(ScriptError, "which does not exist"):
        parse_script(tmp_path / "job.sh")
    with one_sentence(ScriptError, "directory"):
        parse_script(tmp_path)


def test_the_command_line_goes_over_the_script() -> None:
    script = Options(nodes=(1, 4), requeue=True, mode=Mode.FIXED, time_s=60.0)
    line = Options(nodes=(2, 2), requeue=False, job_name="x")
    assert line.over(script) == Options(
        nodes=(2, 2), requeue=False, mode=Mode.FIXED, time_s=60.0, job_name="x"
    )
    assert Options().over(script) == script.over(Options()) == script


def test_an_option_of_the_command_line_names_itself() -> None:
    assert read_option("memory-bandwidth", "3") == Options(memory_bandwidth_gb_s=3.0)
    with one_sentence(ScriptError, "--nodes: expected"):
        read_option("nodes", "4-1")


@pytest.mark.parametrize(
    ("spec", "indices", "limit"),
    [
        *(("7", (7,), None), ("0-3%2", (0, 1, 2, 3), 2), ("1,3,5-9:2", (1, 3, 5, 7, 9), None)),
        *(("0-10:4", (0, 4, 8), None), ("9,1-3,2", (1, 2, 3, 9), None), ("3-3%12", (3,), 12)),
        ("9999999", (9999999,), None),
    ],
)
def test_arrays(spec: str, indices: tuple[int, ...], limit: int | None) -> None:
    assert parse_array(spec) == Array(indices, limit)


def test_the_largest_array() -> None:
    assert len(parse_array(f"1-{MAX_TASKS},5-9").indices) == MAX_TASKS
    assert len(parse_array(f"0-{2 * MAX_TASKS - 1}:2").indices) == MAX_TASKS
    for spec in (f"0-{MAX_TASKS}", "0-9999999", f"1-{MAX_TASKS},0"):
        with one_sentence(ScriptError, str(MAX_TASKS)):
            parse_array(spec)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("90", 5400), ("1:30", 90), ("0:90", 90), ("2:03:04", 7384), ("1-2", 93600)),
        *(("1-2:03", 93780), ("1-02:03:04", 93784), ("0-0:1", 60), ("UNLIMITED", math.inf)),
        *(("infinite", math.inf), ("0", math.inf), ("0-0:0:0", math.inf)),
    ],
)
def test_times(text: str, seconds: float) -> None:
    assert parse_time(text) == seconds


@given(st.tuples(*[st.integers(1, 59)] * 4))
def test_a_time_reads_the_same_with_and_without_days(time: tuple[int, int, int, int]) -> None:
    days, hours, minutes, seconds = time
    with_days = parse_time(f"{days}-{hours:02}:{minutes:02}:{seconds:02}")
    assert with_days == parse_time(f"{days * 24 + hours}:{minutes:02}:{seconds:02}")
    assert with_days == parse_time(f"{(days * 24 + hours) * 60 + minutes}:{seconds}")
    assert with_days % 60 == seconds


@pytest.mark.parametrize(("text", "nodes"), [("4", (4, 4)), ("1-4", (1, 4)), ("3-3", (3, 3))])
def test_nodes(text: str, nodes: tuple[int, int]) -> None:
    assert parse_nodes(text) == nodes


@pytest.mark.parametrize(
    ("text", "job", "indices"),
    [
        *(("7", 7, None), ("7_3", 7, {3}), ("7_0", 7, {0}), ("7_[1-3,5]", 7, {1, 2, 3, 5})),
        *(("7_[4]", 7, {4}), ("7_[1-3%2]", 7, {1, 2, 3})),
    ],
)
def test_ids(text: str, job: int, indices: set[int] | None) -> None:
    assert parse_ids(text) == IdSelection(job, None if indices is None else frozenset(indices))


@pytest.mark.parametrize(
    ("text", "matches", "others"),
    [
        ("7", {"7", "7_0", "7_12"}, {"70", "17", "70_7", "1_7", "", "x", "7_"}),
        ("7_3", {"7_3"}, {"7", "7_30", "7_13", "70_3", "3"}),
        ("7_[1-3,5]", {"7_1", "7_2", "7_3", "7_5"}, {"7", "7_0", "7_4", "7_6", "8_1"}),
    ],
)
def test_what_an_id_selects(text: str, matches: set[str], others: set[str]) -> None:
    chosen = parse_ids(text)
    assert {job_id for job_id in matches | others if chosen.matches(job_id)} == matches


@pytest.mark.parametrize(
    ("ids", "rows"),
    [
        *(([], []), (["7_0", "7_1", "7_3"], ["7_[0-1,3]"]), (["7_3"], ["7_3"])),
        *((["7_0"], ["7_0"]), (["9", "7_2", "8", "7_1", "9"], ["9", "7_[1-2]", "8"])),
        (["7", "7_1", "70_1"], ["7", "7_1", "70_1"]),
        *((["7_5", "7_5", "7_4", "7_6"], ["7_[4-6]"]), (["7_9", "7_10"], ["7_[9-10]"])),
    ],
)
def test_folding(ids: list[str], rows: list[str]) -> None:
    assert fold_ids(ids) == rows


def test_what_cannot_be_folded() -> None:
    with one_sentence(ScriptError, "'7_[1-2]'"):
        fold_ids(["7", "7_[1-2]"])


INDICES = st.sets(st.integers(0, 60) | st.integers(0, 9_999_999), min_size=1, max_size=40)


@given(job=st.integers(1, 10**9), indices=INDICES, limit=st.none() | st.integers(1, 99))
def test_a_folded_array_is_read_as_it_was(job: int, indices: set[int], limit: int | None) -> None:
    (row,) = fold_ids([f"{job}_{index}" for index in indices])
    assert parse_ids(row) == IdSelection(job, frozenset(indices))
    spec = row.removeprefix(f"{job}_").strip("[]") + ("" if limit is None else f"%{limit}")
    assert parse_array(spec) == Array(tuple(sorted(indices)), limit)


@given(low=st.integers(0, 10**6), tasks=st.integers(1, 300), step=st.integers(1, 50))
def test_a_stepped_range_is_that_of_python(low: int, tasks: int, step: int) -> None:
    high = low + (tasks - 1) * step + step // 2
    assert parse_array(f"{low}-{high}:{step}").indices == tuple(range(low, high + 1, step))


TASKS = st.just("") | st.integers(0, 12).map("_{}".format)
JOB_IDS = st.builds("{}{}".format, st.integers(1, 4), TASKS)


@given(ids=st.lists(JOB_IDS), others=st.lists(JOB_IDS))
def test_rows_name_their_jobs_and_no_others(ids: list[str], others: list[str]) -> None:
    rows = fold_ids(ids)
    assert len(rows) == len(set(rows)) <= len(set(ids))
    arrays = [parse_ids(row) for row in rows if "_" in row]
    for job_id in {*ids, *others}:
        named = job_id in rows or any(chosen.matches(job_id) for chosen in arrays)
        assert named == (job_id in ids)


REFUSED: dict[Callable[[str], object], list[str]] = {
    parse_array: [
        *("", "%4", ",", "1,", ",1", "1,,2", "a", "1-", "-1", "-3--1", "3-1", "1-2-3", "1:2"),
        *("0-9:0", "0-9:", "1%", "1%0", "1%-1", "1%x", "1%2%3", "1 2", " 1", "1\n", "0x3"),
        *("1.5", "\u0661", "[0-3]", "10000000", "1" * 5000),
    ],
    parse_time: [
        *("", "-1", "1-", "1:", ":1", "1:2:3:4", "1-2:3:4:5", "1-2-3", "1.5", "1h", "10 ", "9" * 99)
    ],
    parse_nodes: ["", "0", "0-4", "4-1", "1-", "-4", "1-2-3", "1,2", "2k", "1.0", " 4", "4\n"],
    parse_ids: [
        *("", "x", "7_", "_3", "7_x", "7_[]", "7_[3-1]", "7_[1", "7_1-3", "7_3_4", "-7", "7.0"),
        *("7\n", "9" * 400),
    ],
}


@pytest.mark.parametrize(("parse", "text"), [(kind, t) for kind in REFUSED for t in REFUSED[kind]])
def test_what_is_of_another_form_is_refused(parse: Callable[[str], object], text: str) -> None:
    with one_sentence(ScriptError):
        parse(text)


@given(
    text=st.text(st.sampled_from("0123456789-,:%_[]"), max_size=12),
    parse=st.sampled_from(list(REFUSED)),
)
def test_garbage_is_read_or_refused_in_words(text: str, parse: Callable[[str], object]) -> None:
    try:
        assert parse(text) is not None
    except ScriptError as error:
        assert "expected" in str(error)
        assert "got" in str(error)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        *(("plain.out", "plain.out"), (DEFAULT_ARRAY_OUTPUT, "rms-7_3.out")),
        *((DEFAULT_OUTPUT, "rms-42.out"), ("%x/%u-%N", "wind/ann-n1"), ("%j%%%a", "42%3")),
        *(("%%j", "%j"), ("100%", "100%"), ("%q-%t", "%q-%t"), ("%4A_%3a_%1j", "0007_003_42")),
        *(("%20a", "0000000003"), ("%5x", "wind"), ("%4%j", "%442")),
    ],
)
def test_output_patterns(pattern: str, expected: str) -> None:
    assert expand_output(pattern, OutputNames("7", 3, "42", "wind", "n1", "ann")) == expected


def test_a_job_of_no_array_has_slurms_number_for_its_index() -> None:
    job = OutputNames("42", None, "42", "%j%%", "n1", "ann")
    assert expand_output("%A_%a", job) == "42_4294967294"
    assert expand_output("%x", job) == "%j%%"  # what was put in stays


@pytest.mark.parametrize(
    ("options", "got"),
    [
        (Options(ntasks_per_node=4), "expected --ntasks-per-node=1 or 2, .* got 4"),
        (Options(ntasks_per_node=2), "expected --ntasks-per-node=1 or 2, .* got 2"),
    ],
)
def test_what_would_have_no_effect_is_refused(options: Options, got: str) -> None:
    with pytest.raises(ScriptError, match=got):
        refuse_unsupported(options, (1, 2, 2))


def test_as_many_tasks_as_nodes_hold_are_what_a_job_gets() -> None:
    refuse_unsupported(Options(ntasks_per_node=2, requeue=True, power_w=80.0), (2, 2))


def test_what_a_script_or_a_list_may_cost_is_bounded() -> None:
    options = f"#!/bin/sh\n{'#SBATCH ' + '-x ' * 3_000}\n"
    with one_sentence(ScriptError, "expected 65536 characters of options, got more"):
        parse_text(options + options[10:] * 8 + "true\n", "long")
    assert parse_array("0," * 30_000 + "7").indices == (0, 7)
    with one_sentence(ScriptError, "MAX <= 100000"):
        parse_nodes("1-100001")


@pytest.mark.parametrize(
    ("options", "widths", "shared", "nodes"),
    [
        (Options(), {1, 2}, False, None),
        (Options(ntasks=4), {1}, False, (4, 4)),
        (Options(ntasks=4), {2}, False, (2, 2)),
        (Options(ntasks=4), {8}, True, (4, 4)),
        (Options(ntasks=4, nodes=(2, 2)), {2}, False, (2, 2)),
        (Options(ntasks=4, nodes=(1, 3)), {2}, False, (1, 3)),
        (Options(ntasks=4), {1, 2}, False, "whole nodes of 1 or 2 slots, got 4"),
        (Options(ntasks=3), {2}, False, "whole nodes of 2 slots, got 3"),
        (Options(ntasks=3, nodes=(2, 2)), {1}, False, "--ntasks of 2 .*slot.*, got 3; -n 3 alone"),
        (
            Options(ntasks=9, nodes=(1, 4)),
            {2},
            False,
            "--ntasks of 2 to 8 .1 to 4 nodes with 2 slots., got 9$",
        ),
    ],
)
def test_ranks_say_how_many_nodes(
    options: Options, widths: set[int], shared: bool, nodes: tuple[int, int] | str | None
) -> None:
    if isinstance(nodes, str):
        with pytest.raises(ScriptError, match=nodes):
            nodes_of_tasks(options, widths, shared=shared)
    else:
        assert nodes_of_tasks(options, widths, shared=shared).nodes == nodes
