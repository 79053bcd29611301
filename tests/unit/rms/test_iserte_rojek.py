"""The core paper: what it states, the fitted model of its system, and array-share on its jobs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from specs import job_spec
from stated import assert_statements

from rms.core.model.events import Resize
from rms.core.model.jobs import JobId, JobSpec, Mode, NodePower, Speedup
from rms.core.policies import PolicyError, adjusted, named
from rms.sim.run import Recording, record
from rms.sim.simulator import Simulation
from rms.studies import experiment
from rms.studies import iserte_rojek as fit
from rms.studies.iserte_rojek import draw, intervals, iserte_rojek, scaling, steps

Study = tuple[dict[str, Any], list[str], bool]
DOUBLING = adjusted(named("array-share"), sizing={"sizes": "doubling"})


@pytest.fixture(scope="module")
def study() -> Study:
    return iserte_rojek(None)


@pytest.fixture(scope="module")
def data() -> experiment.Data:
    return experiment.settings("iserte-rojek")


def shared(data: experiment.Data, cluster: str, price_s: float, energy: float = 0.0) -> Recording:
    specs, where = fit.jobs(data, cluster, Mode.FLEXIBLE, 10.0, price_s)
    return record(specs, where, adjusted(named("array-share"), sizing={"energy": energy}))


@pytest.mark.promise("reproduce")
def test_every_statement_of_the_paper_has_its_status(study: Study) -> None:
    result, lines, good = study
    assert good and not result["wrong"], result["wrong"]
    assert_statements("iserte-rojek", result["values"])
    assert "statements of the paper" in lines[0]
    order = [line.split("  ")[0] for line in lines if line.startswith(("table ", "abstract"))]
    assert order == sorted(order) and "missed by -28.0 %" in "\n".join(lines)


@pytest.mark.promise("reproduce")
def test_the_published_cells_are_those_of_the_data_file(data: experiment.Data) -> None:
    """Tables 3 and 4 stand in two files: the statements, and the data that the fits read."""
    stated = {each.key: each.paper for each in experiment.statements("iserte-rojek")}
    for cluster in fit.CLUSTERS:
        for mode in Mode:
            for column, value in fit.published(data, cluster, mode).items():
                assert stated[f"{cluster} {mode} {column}"] == value


def test_a_changed_simulation_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    data: dict[str, Any] = dict(experiment.settings("iserte-rojek"))
    data["model"] = data["model"] | {"resize_every_s": 75.0}
    data["grid"] = {name: values[:1] for name, values in data["grid"].items()}
    data["grid"]["resize_every_s"] = [90.0]
    monkeypatch.setattr(experiment, "settings", lambda study: data)
    monkeypatch.setattr(fit, "shipped", lambda data: fit.all_settings(data)[0])
    result, lines, good = iserte_rojek(None)
    assert not good
    assert any("K80, malleable: time: expected fitted, got missed" in line for line in lines)
    assert result["wrong"]


def test_four_modes_and_what_each_gains(study: Study) -> None:
    result, lines, _ = study
    by = {(e["case"], e["mode"], e["sizes"]): e for e in result["modes"]}
    for cluster, gain_s in (("m2090", 0.0), ("k80", 29.0)):
        fixed, moldable, malleable, flexible = (by[cluster, str(mode), "any"] for mode in Mode)
        assert fixed["time_s"] > malleable["time_s"] > moldable["time_s"] >= flexible["time_s"]
        assert moldable["time_s"] - flexible["time_s"] == pytest.approx(gain_s, abs=0.1)
        assert moldable["cluster_kj"] <= flexible["cluster_kj"] < malleable["cluster_kj"]
    text = "\n".join(lines)
    assert "k80, resizing such jobs (flexible over moldable): time -2.3 %, energy +1.9 %" in text
    assert "m2090, resizing such jobs (flexible over moldable): time +0.0 %, energy +0.0 %" in text
    assert by["m2090", "flexible", "any"]["resizes"] == 0


def test_the_power_that_the_published_energies_imply(study: Study) -> None:
    rows = {(e["case"], e["mode"]): e for e in study[0]["powers"]}
    flexible = rows["m2090", "flexible"]
    assert flexible["nearest_size"] == 1 and flexible["size"] == 4
    assert flexible["by_allocation_w"] == pytest.approx(198.5, rel=0.002)
    assert flexible["at_size_kj"] / flexible["paper_kj"] == pytest.approx(0.713, abs=0.001)
    assert flexible["at_nearest_kj"] == pytest.approx(flexible["paper_kj"], rel=0.002)
    malleable = rows["k80", "malleable"]
    assert malleable["by_idle_w"] == pytest.approx(101.0, rel=0.002)
    assert malleable["by_allocation_w"] < 78.0, "the two figures of this row contradict each other"


def exceptions(study: Study) -> dict[tuple[str, str], float]:
    """Return the rows under array-share that take longer than published, by how much, per cent."""
    published = experiment.settings("iserte-rojek")
    slower = {}
    for row in study[0]["modes"]:
        paper = fit.published(published, row["case"], Mode(row["mode"]))
        if row["sizes"] == "any" and row["time_s"] > paper["time_s"]:
            slower[row["case"], row["mode"]] = 100.0 * (row["time_s"] / paper["time_s"] - 1.0)
    return slower


def test_no_mode_but_fixed_is_slower_under_array_share_than_published(study: Study) -> None:
    """Fixed jobs take nine times the time of tables 1 and 2, which is more than was published."""
    assert exceptions(study) == pytest.approx(
        {("m2090", "fixed"): 0.7312, ("k80", "fixed"): 1.8557}, abs=1e-3
    )


def test_no_mode_but_fixed_needs_more_energy_under_array_share_than_published(
    study: Study, data: experiment.Data
) -> None:
    more = {
        (row["case"], row["mode"]): row["cluster_kj"]
        for row in study[0]["modes"]
        if row["cluster_kj"] > fit.published(data, row["case"], Mode(row["mode"]))["cluster_kj"]
    }
    assert set(more) == {("m2090", "fixed"), ("k80", "fixed")}
    for row in study[0]["modes"]:
        assert row["owned_kj"] == pytest.approx(row["cluster_kj"], rel=1e-9)


@pytest.mark.promise("reproduce")
def test_a_fit_on_one_cluster_predicts_the_other_as_recorded(study: Study) -> None:
    fits = study[0]["fits"]["fits"]
    by = {(e["free"], tuple(e["fitted_on"])): e for e in fits}
    assert len(by) == len(fits) == 5
    whole = by["all parameters", fit.CLUSTERS]
    assert (
        whole["setting"] == str(fit.shipped(experiment.settings("iserte-rojek")))
        and whole["shipped_rank"] == 1
    )

    def off(free: str, used: str, cluster: str, column: str) -> dict[str, float]:
        rows = by[free, (used,)]["rows"]
        assert {e["time"] for e in rows if e["case"] != used} == {"predicted"}
        return {e["mode"]: e["deviation_pct"][column] for e in rows if e["case"] == cluster}

    interval, anything = "the interval of resize points", "all parameters"
    assert off(interval, "m2090", "k80", "time_s") == pytest.approx(
        {"fixed": 1.86, "moldable": -2.04, "malleable": 13.8, "flexible": 0.1}, abs=0.1
    )
    assert off(interval, "k80", "m2090", "time_s") == pytest.approx(
        {"fixed": 0.73, "moldable": 3.69, "malleable": 0.2, "flexible": 2.0}, abs=0.1
    )
    assert off(anything, "m2090", "k80", "time_s")["malleable"] == pytest.approx(13.7, abs=0.1)
    assert off(anything, "k80", "m2090", "time_s")["flexible"] == pytest.approx(20.1, abs=0.1)
    assert off(anything, "k80", "m2090", "cluster_kj")["malleable"] == pytest.approx(-31.7, abs=0.1)
    for each in fits:
        assert 0.0 < each["fit_error_pct"] <= each["shipped_error_pct"]


@pytest.mark.promise("reproduce")
def test_nine_jobs_on_36_nodes_are_optimal(data: experiment.Data) -> None:
    for price_s in (0.0, 10.0):
        run = shared(data, "m2090", price_s)
        assert (run.time_s, run.resizes) == (1192.0, 0)
        assert run.cluster_j / 1e3 == pytest.approx(6076.3, abs=0.1)


def test_nine_jobs_on_20_nodes_take_turns_at_being_wide(data: experiment.Data) -> None:
    priced, free = shared(data, "k80", 10.0), shared(data, "k80", 0.0)
    assert priced.time_s <= 1225.0 and priced.cluster_j <= 3120e3 and priced.resizes > 10
    assert free.time_s <= 1190.0 and free.resizes > priced.resizes


def test_the_weight_on_energy_keeps_jobs_narrow(data: experiment.Data) -> None:
    run = shared(data, "k80", 10.0, energy=1.0)
    assert run.cluster_j <= 2640e3 and run.resizes == 0


def test_the_interval_of_90_s_is_a_needle_on_k80(study: Study) -> None:
    by = {(e["case"], e["mode"]): e["time_s"] for e in study[0]["sensitivity"]}
    times = by["k80", "malleable"]
    assert [round(times[every]) for every in ("75", "90", "105")] == [2975, 2626, 2817]


def test_columns_and_ratios_of_a_table() -> None:
    values = scaling(Speedup((1, 2, 4), (100.0, 60.0, 50.0), (200.0, 150.0, 100.0)))
    assert values["energy a node at 2"] == 9.0 and values["energy at 2"] == 18.0
    assert values["speedup at 4"] == values["largest speedup"] == 2.0
    assert values["least ratio of time"] == 0.6 and values["largest ratio of power"] == 0.75
    assert values["least ratio of energy"] == 0.9 and values["largest energy ratio"] == 1.0
    assert values["size of least energy"] == 2.0 and values["size of least time"] == 4.0
    # Times of the form tc + t1 / n, and powers on a line over the efficiency.
    time_s = (110.0, 60.0, 35.0)
    power_w = tuple(
        50.0 + 70.0 * time_s[0] / (n * t) for n, t in zip((1, 2, 4), time_s, strict=True)
    )
    exact = scaling(Speedup((1, 2, 4), time_s, power_w))
    assert exact["deviation of times"] == pytest.approx(0.0, abs=1e-9)
    assert exact["deviation of powers"] == pytest.approx(0.0, abs=1e-9)


def test_powers_by_size_are_constant_over_a_run(data: experiment.Data) -> None:
    one, all_ = (steps(data, "k80", whole=whole) for whole in (False, True))
    assert one["16 nodes"] == ([0.0, 433.0, 433.0], [73.0, 73.0, 0.0])
    assert all_["16 nodes"][1] == [1168.0, 1168.0, 0.0]
    assert list(one) == ["1 node", "2 nodes", "4 nodes", "8 nodes", "16 nodes"]


def test_no_figure_has_the_name_of_a_measured_profile(
    data: experiment.Data, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    run = shared(data, "k80", 10.0)
    runs = {(cluster, mode): run for cluster in fit.CLUSTERS for mode in Mode}
    draw(data, {"array-share": runs}, tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert "mean-power-by-size-m2090.png" in names and "cluster-power-k80-array-share.png" in names
    assert not any(re.match("figure-(9|10)", name) for name in names)


# Sizes of equal-share


@st.composite
def workloads(draw: st.DrawFn) -> list[JobSpec]:
    """Jobs that come one after the other on twelve nodes, most of which can be resized."""
    specs = []
    for number in range(1, draw(st.integers(3, 8)) + 1):
        high = draw(st.integers(4, 12))
        specs.append(
            job_spec(
                number,
                (draw(st.integers(1, 3)), draw(st.integers(4, high)), high),
                draw(st.sampled_from([Mode.FLEXIBLE, Mode.MALLEABLE, Mode.MOLDABLE])),
                draw(st.sampled_from([0.0, 5.0, 40.0])),
                speedup=Speedup(law=(draw(st.floats(100.0, 900.0)), draw(st.floats(0.0, 5.0)))),
                resize_every_s=draw(st.sampled_from([None, 4.0])),
                resize_price_s=draw(st.sampled_from([0.0, 1.0])),
                array=draw(st.sampled_from([None, "a"])),
            )
        )
    return specs


def factors(specs: list[JobSpec], sizing: Mapping[str, Any]) -> list[float]:
    """Return by which factor every resize of a simulation on twelve nodes changes a job."""
    policy = adjusted(named("array-share"), sizing=sizing)
    simulation = Simulation(specs, (NodePower(),) * 12, policy)
    sizes: dict[JobId, int] = {}
    changes = []
    simulation.run()
    assert len(simulation.engine.state.ended) == len(specs)
    for _, decision in simulation.decisions:
        size = len(getattr(decision, "nodes", ()))
        if isinstance(decision, Resize):
            changes.append(size / sizes[decision.job])
        if size:
            sizes[decision.job] = size
    return changes


@given(workloads(), st.sampled_from([0.0, 0.5]))
@settings(max_examples=60, deadline=None)
def test_sizes_by_doubling_change_a_job_by_a_factor_of_two(
    specs: list[JobSpec], energy: float
) -> None:
    changes = factors(specs, {"sizes": "doubling", "energy": energy})
    event(f"resizes: {bool(changes)}")
    assert set(changes) <= {2.0, 0.5}


def test_sizes_by_doubling_reach_a_quarter_in_two_resizes() -> None:
    wide = JobSpec(
        JobId("1"), 0.0, 1, 8, 8, Mode.MALLEABLE, Speedup(law=(800.0, 0.0)), resize_every_s=5.0
    )
    late = JobSpec(
        JobId("2"), 20.0, 6, 6, 6, Mode.FIXED, Speedup(law=(60.0, 0.0)), resize_every_s=5.0
    )
    simulation = Simulation([wide, late], (NodePower(),) * 8, DOUBLING)
    simulation.run()
    resizes = [d for _, d in simulation.decisions if isinstance(d, Resize)]
    assert [len(d.nodes) for d in resizes] == [4, 2, 4, 8]
    any_size = Simulation([wide, late], (NodePower(),) * 8, named("array-share"))
    any_size.run()
    resizes = [d for _, d in any_size.decisions if isinstance(d, Resize)]
    assert [len(d.nodes) for d in resizes] == [2, 8]


def test_an_odd_size_is_not_halved() -> None:
    odd = JobSpec(JobId("1"), 0.0, 1, 5, 5, Mode.MALLEABLE, Speedup(law=(100.0, 0.0)))
    late = JobSpec(JobId("2"), 5.0, 3, 3, 3, Mode.FIXED, Speedup(law=(9.0, 0.0)))
    simulation = Simulation([odd, late], (NodePower(),) * 5, DOUBLING)
    simulation.run()
    assert not [d for _, d in simulation.decisions if isinstance(d, Resize)]


def test_malleable_jobs_of_the_paper_under_doubling(study: Study) -> None:
    rows = {(e["case"], e["mode"]): e for e in study[0]["modes"] if e["sizes"] == "doubling"}
    assert len(rows) == 4 and {e["largest_step"] for e in rows.values()} == {1.0, 2.0}
    assert rows["k80", "malleable"]["time_s"] == pytest.approx(2219.8, abs=0.1)
    assert rows["k80", "flexible"]["time_s"] == pytest.approx(1225.3, abs=0.1)


@pytest.mark.parametrize(
    ("policy", "sizing", "words"),
    [
        ("array-share", {"sizes": "threes"}, "threes"),
        ("backfill-share", {"sizes": "doubling"}, "expected parameters of energy, .*, got 'sizes'"),
        ("array-share-paper", {"flexible": "most"}, "most"),
        ("array-share-paper", {"malleable": "twice"}, "twice"),
    ],
)
def test_a_size_rule_that_does_not_exist_is_refused(
    policy: str, sizing: dict[str, Any], words: str
) -> None:
    with pytest.raises(PolicyError, match=words):
        adjusted(named(policy), sizing=sizing)


# The rules of paper-share


def paper_sizes(mode: Mode, **rules: object) -> list[int]:
    """Return the sizes to which two jobs on nine nodes are resized, the second 10 s later."""
    law = Speedup((1, 2, 4, 8), (800.0, 400.0, 200.0, 100.0))
    specs = [
        JobSpec(JobId(str(n)), 0.0, 1, 8, 8, mode, law, resize_every_s=20.0) for n in (1, 2, 3)
    ]
    policy = adjusted(named("array-share-paper"), sizing=rules)
    simulation = Simulation(specs, (NodePower(),) * 9, policy)
    simulation.run()
    first = JobId("1")
    resizes = [d for _, d in simulation.decisions if isinstance(d, Resize) and d.job == first]
    return [len(d.nodes) for d in resizes]


@pytest.mark.parametrize(
    ("mode", "rules", "sizes"),
    [
        (Mode.FLEXIBLE, {"flexible": "share"}, [2]),
        (Mode.FLEXIBLE, {"flexible": "half"}, [4]),
        (Mode.FLEXIBLE, {"flexible": "least"}, [1]),
        (Mode.MALLEABLE, {"malleable": "another"}, [1]),
        (Mode.MALLEABLE, {"malleable": "never"}, []),
        (Mode.MALLEABLE, {"malleable": "half"}, [4, 2, 1]),
        (Mode.MOLDABLE, {}, []),
    ],
)
def test_a_rule_decides_the_smaller_size(
    mode: Mode, rules: dict[str, object], sizes: list[int]
) -> None:
    assert paper_sizes(mode, **rules)[: len(sizes) or 1] == sizes


def test_only_the_rule_expand_expands() -> None:
    without = paper_sizes(Mode.FLEXIBLE, flexible="least")
    expanding = paper_sizes(Mode.FLEXIBLE, flexible="least", expand=True)
    assert without == [1] and expanding[:3] == [1, 2, 4]


def test_who_holds_how_many_nodes_between_two_changes() -> None:
    law = Speedup((2,), (10.0,))
    specs = [JobSpec(JobId(str(n)), 0.0, 2, 2, 2, Mode.FIXED, law) for n in (1, 2, 3)]
    run = record(specs, fit.Site(4, (NodePower(),) * 4), named("fifo"))
    assert intervals(run) == [(0.0, 10.0, {"1": 2, "2": 2}), (10.0, 20.0, {"3": 2})]
