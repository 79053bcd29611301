"""Süß et al.: the study's table of statements, and what its variants print."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from stated import assert_statements

from rms.kernels.model import Governor
from rms.kernels.scheduler import ShortTerm
from rms.studies.varysched import NAMES, simulate, varysched

Study = tuple[dict[str, Any], list[str], bool]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Path]:
    figures = tmp_path_factory.mktemp("figures")
    return varysched(figures), figures


@pytest.mark.promise("reproduce")
def test_every_statement_has_its_recorded_status(study: tuple[Study, Path]) -> None:
    (result, lines, good), _ = study
    assert_statements("varysched", result["values"])
    assert good and result["wrong"] == []
    assert lines[0].startswith(f"{len(result['statements'])} statements of the paper: ")
    # (strategies, and variants) x governors x applications
    assert len(result["rows"]) == 6 * 2 * 2 + len(result["table1"])
    assert all({"case", "mode", "values"} <= set(row) for row in result["rows"])


def test_statements_hold_less_often_the_more_the_run_times_are_moved(
    study: tuple[Study, Path],
) -> None:
    (result, lines, _), _ = study
    kept = result["moved"]
    assert list(kept) == ["10", "25", "50"]
    for counted in kept.values():
        assert counted["all"] <= counted["orderings"] <= min(counted["alone"].values(), default=0)
        # a strategy that does not look at the governor holds whatever the run times are
        assert sum(number == 100 for number in counted["alone"].values()) >= 4
    numbers = [counted["orderings"] for counted in kept.values()]
    assert numbers == sorted(numbers, reverse=True) and 0 < numbers[-1] < numbers[0] < 100
    assert any(line.split()[:3] == ["all", "orderings", str(numbers[0])] for line in lines)


def test_figures_are_drawn(study: tuple[Study, Path]) -> None:
    _, figures = study
    names = {f"figure-{number}.png" for number in (6, 7, 8, 9, 12, 14)}
    assert {path.name for path in figures.iterdir()} == names


def test_kernels_on_the_cpu_share_its_cores() -> None:
    """One task on each device of a machine with 4 cores.

    Cores and core ask for 5 of them, beside the GPU's one for 6: both run at 4/6 of their speed.
    The GPU is done at 2 s, when core has done 4/3 s of 2 s. Then both run at 4/5, core ends at
    2 + (2/3) / (4/5) = 17/6 s, when cores has done 4/3 + 2/3 = 2 s of 3 s, and needs 1 s more.
    """
    machine = {"cores": 4, "host": {"gpu": 1, "cores": 4, "core": 1}}
    times = {"gpu": 2.0, "cores": 3.0, "core": 2.0}
    ran = simulate(ShortTerm(), Governor.HIGH, [NAMES] * 3, times, machine)
    assert ran.makespan_s == pytest.approx(17 / 6 + 1)
    assert ran.median_s == pytest.approx(17 / 6)
    assert (ran.last, ran.together) == ("cores", 3)
    assert dict(ran.tasks) == {"gpu": 1, "cores": 1, "core": 1}
    alone = simulate(ShortTerm(), Governor.HIGH, [("core",)] * 3, times, machine)
    assert (alone.makespan_s, dict(alone.tasks)) == (6.0, {"core": 3})
