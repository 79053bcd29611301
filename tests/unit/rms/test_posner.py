"""The workloads and strategies of Posner, Hupfeld, Finnerty 2023."""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from external import external
from hypothesis import given, settings
from hypothesis import strategies as st
from selection import all_wide_but
from specs import job_spec
from stated import assert_statements

from rms.cli.main import main
from rms.core.model.jobs import Job, JobId, JobSpec, Mode, Node, Site, Speedup
from rms.core.policies import DEFAULT
from rms.formats.config import FileError
from rms.sim.simulator import Simulation
from rms.studies.bounds import turnaround_bound_s
from rms.studies.posner import (
    DIFFER,
    KEEPING,
    MALLEABLE,
    MIXES,
    PRICED_S,
    RIGID,
    SEEDS,
    Keeping,
    Promises,
    StrategyCase,
    cases,
    computed,
    posner,
    published_results,
    read_jobs,
    row_of,
    run,
    strategy,
)

HEAD = "id,submit,type,nodes_min,nodes_pref,nodes_max,flops,parallel,iterations"
RIGID_JOB = "0,60,rigid,4,4,4,8e12,0.75,1"
MALLEABLE_JOB = "1,61.5,malleable,2,4,8,8e12,0.75,5"


def written(folder: Path, mix: str, lines: Sequence[str]) -> Path:
    (folder / "posner_2023").mkdir(exist_ok=True)
    text = "\n".join((HEAD, *lines)) + "\n"
    (folder / "posner_2023" / f"{mix}_S9.csv.gz").write_bytes(gzip.compress(text.encode()))
    return folder


def test_a_job_of_each_kind(tmp_path: Path) -> None:
    data = written(tmp_path, "50-0-50", [RIGID_JOB, MALLEABLE_JOB])
    rigid, malleable = read_jobs(data, "50-0-50", "S9")
    assert (rigid.nodes_min, rigid.nodes_max, rigid.preferred) == (4, 4, 4)
    assert (rigid.mode, rigid.resize_parts, rigid.limit_s) == (Mode.FIXED, None, 3.5)
    assert (malleable.nodes_min, malleable.nodes_max, malleable.preferred) == (2, 8, 4)
    assert (malleable.mode, malleable.resize_parts) == (Mode.FLEXIBLE, 5)
    assert (malleable.submit_s, malleable.time_s(2), malleable.resize_price_s) == (61.5, 5.0, 0.0)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("0,60,rigid,4,4,4,8e12,0.75", "line 2"),
        ("0,60,evolving,4,4,4,8e12,0.75,1", "evolving"),
        ("0,60,rigid,4,x,4,8e12,0.75,1", "nodes_pref"),
        ("0,60,malleable,4,2,8,8e12,0.75,1", "min <= preferred"),
        ("0,60,malleable,4,8,129,8e12,0.75,1", "at most 128 nodes, got 129"),
        ("0,60,malleable,1,2,8,8e12,1.5,1", "parallel share of 0 to 1"),
        ("0,-1,malleable,1,2,8,8e12,0.5,1", "submit of at least 0"),
    ],
)
def test_what_is_no_job_is_refused(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(FileError, match=said):
        read_jobs(written(tmp_path, "50-0-50", [line]), "50-0-50", "S9")


@pytest.mark.parametrize(("mix", "malleable"), [("0-0-100", 2317), ("100-0-0", 0)])
def test_the_published_jobs(mix: str, malleable: int) -> None:
    specs = read_jobs(external(f"posner_2023/{mix}_S0.csv.gz"), mix, "S0")
    assert len(specs) == 2317
    assert sum(spec.mode is Mode.FLEXIBLE for spec in specs) == malleable
    assert [spec.submit_s for spec in specs] == sorted(spec.submit_s for spec in specs)


def run_all(todo: Sequence[StrategyCase]) -> list[dict[str, Any]]:
    """Run some of the published cases; return their rows."""
    data = external("posner_2023/published.csv")
    results, rows = published_results(data), []
    for case in todo:
        specs = read_jobs(data, case.mix, case.seed)
        rows.append(row_of(case, run(case, specs), results, sum(s.mode.resizable for s in specs)))
    return rows


@pytest.mark.promise("reproduce-posner")
def test_published_results_of_a_strategy_of_each_kind() -> None:
    names = {
        "rigid_backfill": "100-0-0",
        "rigid_easy_backfill": "100-0-0",
        "min_agreement": "0-0-100",
        "pref_steal_agreement": "50-0-50",
        "average_common_pool": "80-0-20",
    }
    rows = run_all([StrategyCase(mix, "S0", name) for name, mix in names.items()])
    values = computed(rows)
    assert values.pop("S0 as published") == len(names)
    assert_statements("posner", values, whole=False)


@pytest.mark.wide
@pytest.mark.promise("reproduce-posner")
@pytest.mark.parametrize("seed", SEEDS)
def test_all_published_results(seed: str) -> None:
    theirs = [case for case in cases([seed]) if case.name in (*RIGID, *MALLEABLE)]
    rows = run_all(theirs)
    assert_statements("posner", computed(rows), whole=False)
    differ = {each["case"]: each["mode"] for each in rows if each["note"]}
    assert differ == {f"{mix} {own}": name for mix, own, name in DIFFER if own == seed}


def test_their_easy_is_slower_than_fcfs_and_easy_is_not() -> None:
    specs = read_jobs(external("posner_2023/100-0-0_S0.csv.gz"), "100-0-0", "S0")
    theirs, fifo, easy = (
        run(StrategyCase("100-0-0", "S0", name), specs)["turnaround_s"]
        for name in ("rigid_easy_backfill", "fifo", "easy")
    )
    assert theirs == pytest.approx(212_877, abs=1)
    assert fifo == pytest.approx(210_841, abs=1)
    assert easy == pytest.approx(47_532, abs=1)


@pytest.mark.promise("policy-stream")
@pytest.mark.parametrize(
    ("mix", "most"),
    all_wide_but([("80-0-20", 0.75), ("50-0-50", 0.88), ("0-0-100", 0.97)], ("80-0-20", 0.75)),
)
def test_the_default_is_ahead_of_their_nine_and_of_easy(mix: str, most: float) -> None:
    specs = read_jobs(external(f"posner_2023/{mix}_S0.csv.gz"), mix, "S0")
    file = external("posner_2023/published.csv") / "posner_2023" / "published.csv"
    with file.open(newline="") as lines:
        best = min(
            float(row["turnaround"])
            for row in csv.DictReader(lines)
            if (row["mix"], row["seed"]) == (mix, "S0") and row["strategy"] in MALLEABLE
        )
    found = run(StrategyCase(mix, "S0", DEFAULT), specs)
    assert found["turnaround_s"] <= most * best
    assert 1.0 < found["resizes_per_malleable_job"] < 4.0
    assert found["turnaround_s"] < run(StrategyCase(mix, "S0", "easy"), specs)["turnaround_s"]
    assert run(StrategyCase(mix, "S0", DEFAULT, PRICED_S), specs)["turnaround_s"] < best
    assert found["turnaround_s"] > turnaround_bound_s(specs, 128)


# --- promises ------------------------------------------------------------------------------------


def waiting(*names: str) -> list[Job]:
    return [Job(JobSpec(JobId(name), 0.0, 1, 1, 1, Mode.FIXED)) for name in names]


@pytest.mark.parametrize(
    ("keeping", "free", "starts", "left"),
    [
        # 1 was promised nodes 0 and 1, 2 was promised 2 and 3.
        ("agreement", [0, 2], {}, 4),
        ("steal_agreement", [0, 2], {"1": [0, 2]}, 2),
        ("agreement", [2, 3, 7], {"2": [2, 3]}, 2),
        ("steal_agreement", [2, 7], {}, 4),
        ("common_pool", [2, 7], {"1": [2, 7]}, 2),
        ("common_pool", [7, 8, 9], {"1": [7, 8]}, 2),
        ("common_pool", [6, 7, 8, 9], {"1": [6, 7], "2": [8, 9]}, 0),
    ],
)
def test_who_starts_on_promised_nodes(
    keeping: Keeping, free: list[Node], starts: dict[str, list[Node]], left: int
) -> None:
    promises = Promises(keeping)
    promises.add(JobId("1"), [Node(0), Node(1)])
    promises.add(JobId("2"), [Node(2), Node(3)])
    before = list(free)
    found = promises.keep(waiting("0", "1", "2"), free)
    assert {job.spec.id: nodes for job, nodes in found} == starts
    assert free == [node for node in before if all(node not in nodes for _, nodes in found)]
    assert len(promises.nodes) == sum(promises.counts.values()) == left
    if keeping != "common_pool":  # a job that takes another one's node leaves it one of its own
        assert Counter(promises.nodes.values()) == promises.counts


@st.composite
def workloads(draw: st.DrawFn) -> list[JobSpec]:
    specs = []
    for number in range(draw(st.integers(1, 12))):
        low = draw(st.integers(1, 4))
        preferred = draw(st.integers(low, 6))
        high = draw(st.integers(preferred, 8))
        malleable = draw(st.booleans())
        specs.append(
            job_spec(
                number,
                (low, preferred, high) if malleable else preferred,
                Mode.FLEXIBLE if malleable else Mode.FIXED,
                float(draw(st.integers(0, 400))),
                speedup=Speedup(law=(draw(st.floats(1.0, 900.0)), draw(st.floats(0.1, 30.0)))),
                resize_parts=draw(st.integers(1, 6)) if malleable else None,
            )
        )
    return specs


@pytest.mark.parametrize("name", [*RIGID, *MALLEABLE])
@given(specs=workloads())
@settings(max_examples=25)
def test_all_jobs_end_and_no_promise_is_left(name: str, specs: list[JobSpec]) -> None:
    policy: Any = strategy(name)
    simulation = Simulation(specs, Site(8), policy, passes="ends-first")
    simulation.run()  # a node given twice or a size that is not allowed would be a RuleError
    state = simulation.engine.state
    assert len(state.ended) == len(specs) and not state.pending and state.free_count == 8
    if name in MALLEABLE:
        assert not policy.sizing.promises.counts and not policy.sizing.promises.nodes
        assert simulation.resized <= policy.sizing.changes
    else:
        assert simulation.resized == 0


# --- the experiment ------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder like the study's, with a few jobs and the means that ours come to."""
    rigid = [f"{n},{40 * n},rigid,64,64,64,6e15,0.99,1" for n in range(6)]
    malleable = [f"{n},{40 * n},malleable,32,64,128,6e15,0.99,5" for n in range(6)]
    for mix in MIXES:
        written(tmp_path, mix, rigid if mix == "100-0-0" else [*rigid[:3], *malleable[3:]])
    columns = "wait,turnaround,run"
    lines = [f"mix,seed,strategy,{columns},makespan,utilisation,expand_events,shrink_events"]
    for case in cases(["S9"]):
        if case.name in (*RIGID, *MALLEABLE):
            found = run(case, read_jobs(tmp_path, case.mix, case.seed))
            means = ",".join(f"{found[f'{column}_s']:.4f}" for column in columns.split(","))
            whole = f"{found['makespan_s']:g},{found['utilization']:.4f}"
            resizes = round(3 * found["resizes_per_malleable_job"])
            lines.append(f"{case.mix},S9,{case.name},{means},{whole},{resizes},0")
    (tmp_path / "posner_2023" / "published.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_its_json_tables_and_figures(data: Path, tmp_path: Path) -> None:
    figures, told = tmp_path / "figures", []
    figures.mkdir()
    result, lines, good = posner(data, ["S9"], 1, figures, told.append)
    assert good and result["experiment"] == "posner" and result["wrong"] == []
    assert len(result["rows"]) == len(told) == len(cases(["S9"]))
    row = next(row for row in result["rows"] if row["mode"] == "pref_agreement")
    assert set(row["values"]["turnaround_s"]) == {"paper", "ours", "deviation_pct", "note"}
    assert {row["mode"] for row in result["rows"]} >= {"easy", "array-share", "array-share, 10 s"}
    assert any("is not EASY" in line for line in lines)
    assert len(list(figures.glob("posner-*.png"))) == 3


def test_what_does_not_agree_is_said_and_the_status_is_1(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = data / "posner_2023" / "published.csv"
    with path.open() as file:
        rows = list(csv.DictReader(file))
    rows[3]["turnaround"] = "1.5"
    with path.open("w") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    command = ["reproduce", "posner", "--data", str(data), "--seeds", "S9", "--jobs", "2"]
    assert main([*command, "--json", str(tmp_path / "out.json")]) == 1
    said = f"80-0-20 S9 {rows[3]['strategy']}: expected turnaround_s of 1.5000, got "
    assert said in capsys.readouterr().out
    assert len(json.loads((tmp_path / "out.json").read_text())["wrong"]) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["posner", "--seeds", "S9,S10"], r"100-0-0_S10\.csv\.gz, which does not exist"),
        (["posner", "--seeds", "S9,,"], "expected names like S0,S1"),
        (["posner", "--jobs", "0"], "expected a whole number of at least 1, got '0'"),
        (
            ["chiesi", "--seeds", "S9"],
            "expected --seeds with posner or schaefer only, got it with chiesi",
        ),
    ],
)
def test_bad_options_are_refused_in_one_sentence(
    data: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    try:
        status = main(["reproduce", *options, "--data", str(data)])
    except SystemExit as exit_:
        status = exit_.code  # type: ignore[assignment]
    error = capsys.readouterr().err
    assert status == 2 and error.count("\n") == 1 and re.search(said, error)


def test_a_strategy_is_for_one_simulation() -> None:
    assert {strategy(name).name for name in (*RIGID, *MALLEABLE)} == {*RIGID, *MALLEABLE}
    one, other = (strategy("min_agreement") for _ in range(2))
    assert one.sizing is not other.sizing and len(MALLEABLE) == 3 * len(KEEPING)
