"""The cluster, jobs and policies of Guim et al., and `rms reproduce guim` on a small log."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rms.cli.main import main
from rms.core.model import Job, JobId, JobSpec, Mode
from rms.sim.simulator import Simulation
from rms.studies import guim
from rms.studies.guim import DATA
from rms.studies.guim_model import POLICIES, Case, Variant, policy, run, site, with_bandwidth
from rms.studies.guim_queue import JobClass


@pytest.fixture(scope="module")
def paper() -> dict[str, Any]:
    return msgspec.toml.decode((DATA / "guim.toml").read_bytes(), type=dict[str, Any])


def jobs(number: int, widest: int, seed: int = 3) -> list[JobSpec]:
    draw, at_s, found = Random(seed), 0.0, []
    for each in range(1, number + 1):
        at_s += draw.expovariate(1 / 200.0)
        size, run_s = draw.randint(1, widest), float(draw.randint(1, 3000))
        limit_s = run_s * draw.choice((1.0, 2.0, 5.0))
        name = JobId(str(each))
        found.append(
            JobSpec(name, at_s, size, size, size, Mode.FIXED, limit_s=limit_s, run_s=run_s)
        )
    return found


def test_blue_is_24_pairs_of_nodes(paper: dict[str, Any]) -> None:
    where = site(paper, 1152, Variant(size="cores"))
    assert (where.nodes, len(where.shared)) == (1152, 48)
    assert where.shared[0].processors[1].socket_gb_s == pytest.approx(64.0 / 9.0)
    assert site(paper, 1152, Variant()).nodes == 72 * 48
    assert len(where.levels) == 13 and where.levels[-1] == (4.0, 1.0)


def test_the_same_jobs_whatever_the_error(paper: dict[str, Any]) -> None:
    specs = jobs(2000, 8)
    found = {e: with_bandwidth(specs, paper, Case("", "sdsc", "mem", e)) for e in (10, 100)}
    for exact, off in zip(found[10], found[100], strict=True):
        assert exact.bandwidth_gb_s == off.bandwidth_gb_s is not None
        assert off.expected_bandwidth_gb_s in (0.0, 2.0 * off.bandwidth_gb_s)
    share = sum(spec.bandwidth_gb_s == 16.0 for spec in found[10]) / len(specs)
    assert share == pytest.approx(0.4, abs=0.04)


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        *((name, Variant()) for name in POLICIES),
        ("lc-pa", Variant(threshold=1.5)),
        ("lc-pa", Variant(forecast=True)),
    ],
)
def test_long_queues_are_decided_as_easy_does(
    paper: dict[str, Any], name: str, variant: Variant
) -> None:
    number = 60 if variant != Variant() else 150
    specs = with_bandwidth(jobs(number, 30), paper, Case(name, "sdsc", "hybrid", 50))
    where, ends = site(paper, 60, Variant(size="cores")), []
    for long_queue in (False, True):
        made = policy(name, variant, long_queue=long_queue)
        simulation = Simulation(specs, where, made)
        simulation.run()
        ends.append({job.spec.id: (job.nodes, job.end_s) for job in _ended(simulation)})
    assert ends[0] == ends[1] and len(ends[0]) == len(specs)


@given(
    st.lists(st.tuples(st.sampled_from([5.0, 20.0, 300.0]), st.booleans()), max_size=40),
    st.integers(1, 45),
    st.sampled_from([1.0, 15.0]),
)
def test_first_of_a_class_that_ends_in_time(
    waiting: list[tuple[float, bool]], number: int, slowdown: float
) -> None:
    """The same as looking at each one."""
    specs, found = jobs(len(waiting), 1), JobClass(1, 0.0)
    for at, (spec, (span_s, _)) in enumerate(zip(specs, waiting, strict=True)):
        found.add(Job(spec, at + 1), span_s)
    for job, (_, gone) in zip(list(found.jobs), waiting, strict=True):
        if gone:
            found.remove(job)
    fits = [
        at
        for at, (span_s, gone) in enumerate(waiting)
        if not gone and at + 1 >= number and 100.0 + span_s * slowdown <= 400.0
    ]
    assert found.first(number, slowdown, 100.0, 400.0) == (fits[0] if fits else None)


def _ended(simulation: Simulation) -> list[Any]:
    return list(simulation.engine.state.ended.values())


def test_less_bandwidth_asked_for_costs_less_time(paper: dict[str, Any]) -> None:
    paper = {**paper, "logs": {"sdsc": {"processors": 32}}}
    specs = jobs(60, 8)
    stretch = [
        run(Case("easy-reg", "sdsc", mix, 10, Variant(size="cores")), paper, specs)["stretch"]
        for mix in ("mem", "comp")
    ]
    free = replace(Variant(size="cores"), socket=False)
    assert stretch[0] > stretch[1] >= 1.0
    assert run(Case("easy-reg", "sdsc", "mem", 10, free), paper, specs)["stretch"] < stretch[0]


def _write_log(folder: Path) -> None:
    lines = ["; MaxProcs: 128"]
    for spec in jobs(40, 16):
        fields = [
            spec.id,
            f"{spec.submit_s:.0f}",
            -1,
            f"{spec.run_s:.0f}",
            spec.preferred,
            *[-1] * 2,
        ]
        fields += [spec.preferred, f"{spec.limit_s:.0f}", *[-1] * 9]
        lines.append(" ".join(map(str, fields)))
    with gzip.open(folder / "SDSC-SP2-1998-4.2-cln.swf.gz", "wt") as file:
        file.write("\n".join(lines) + "\n")


@pytest.mark.promise("reproduce")
def test_tables_beside_the_paper(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _write_log(tmp_path)
    options = ["--data", str(tmp_path), "--logs", "sdsc", "--mixes", "mem", "--errors", "10,100"]
    out = tmp_path / "out.json"
    code = main(["reproduce", "guim", *options, "--jobs", "1", "--json", str(out)])
    printed = capsys.readouterr().out
    assert code == 0 and "What the paper leaves open, for sdsc mem 10 %" in printed
    result = json.loads(out.read_text())
    assert len(result["rows"]) == 6 and not result["wrong"] and result["cpu_s"] > 0.0
    assert {row["mode"] for row in result["rows"]} == set(POLICIES)
    regular = [row["values"] for row in result["rows"] if row["mode"] == "easy-reg"]
    assert regular[0]["bsld"] == regular[1]["bsld"] and regular[0]["saved_pct"]["ours"] == 0.0


def test_what_is_kept_is_not_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_log(tmp_path)
    kept = tmp_path / "kept"
    options = ["--data", str(tmp_path), "--logs", "sdsc", "--mixes", "mem", "--errors", "10"]
    command = ["reproduce", "guim", *options, "--jobs", "1", "--keep", str(kept)]
    assert main(command) == 0
    printed, lines = capsys.readouterr().out, kept.read_bytes().splitlines(keepends=True)
    kept.write_bytes(b"".join(lines[:-1]) + lines[-1][:-2])  # a crash in the middle of a line
    again = []
    monkeypatch.setattr(guim, "run", lambda *case: again.append(case[0]) or run(*case))
    assert main(command) == 0
    without_times = [text.partition("simulations took")[0] for text in printed.splitlines()]
    assert len(again) == 1 and len(kept.read_bytes().splitlines()) == len(lines)
    assert without_times == [
        text.partition("simulations took")[0] for text in capsys.readouterr().out.splitlines()
    ]
    kept.write_text("{}\n")
    assert main(command) == 2 and "expected simulations of guim" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["guim", "--logs", "kth"], "expected --logs of ctc, sdsc, blue, got 'kth'"),
        (["guim", "--errors", "x"], "expected --errors from 0 to 100 (per cent), got 'x'"),
        (["guim", "--seeds", "S0"], "expected --seeds with posner only, got it with guim"),
        (["chiesi", "--jobs", "2"], "expected --jobs with posner or guim only"),
        (["guim"], "expected SDSC-SP2-1998-4.2-cln.swf.gz in"),
    ],
)
def test_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], says: str
) -> None:
    more = [] if "--logs" in options else ["--logs", "sdsc"] if options[0] == "guim" else []
    code = main(["reproduce", *options, *more, "--data", str(tmp_path)])
    assert code == 2 and says in capsys.readouterr().err
