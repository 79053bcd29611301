"""Energy in words, and books that must add up."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rms.core.books.spans import BalanceError
from rms.formats.energy import (
    OwnerEnergy,
    amount,
    check_energies,
    cost_words,
    owner_energies,
    source_words,
)
from rms.formats.prices import JOULES_PER_KWH, Cost, Prices, Series
from rms.wire.users import AcctAnswer, Books, EnergyPart, EnergyRow, JobRow, SlurmRow

PRICES = Prices("p.toml", "EUR", "UTC", Series((0.5,)), Series((100.0,)))


def row(owner: str, joules: float, source: str = "model", uncertainty_j: float = 0.0) -> EnergyRow:
    shared = source == "rapl"
    whose = owner, 0, 0, "n1", "package-0", source, 0.0, 9.0
    return EnergyRow(*whose, joules, uncertainty_j, shared, 0.0)


def job(name: str, joules: float) -> JobRow:
    return JobRow(
        **dict.fromkeys(("name", "reason", "answer", "resizing", "output"), ""),
        **dict.fromkeys(("step", "steps", "nodes_min", "nodes_max", "size"), 1),
        id=name,
        state="COMPLETED",
        mode="fixed",
        submit_s=0.0,
        start_s=0.0,
        end_s=9.0,
        nodes=[],
        resizes=[],
        slurm=SlurmRow(),
        energy_j=joules,
        energy_source="model",
    )


def books(rows: list[EnergyRow], jobs: list[str]) -> AcctAnswer:
    """Return what a daemon would tell of these rows."""
    sums = {owner: account.joules for owner, account in owner_energies(rows).items()}
    busy_j = math.fsum(sums.get(name, 0.0) for name in jobs)
    parts = [sums.get(name, 0.0) for name in ("idle", "off", "boot")]
    energy = Books(9.0, busy_j, *parts, math.fsum([busy_j, *parts]), 9.0, "model")
    return AcctAnswer([job(name, sums.get(name, 0.0)) for name in jobs], energy, rows)


def test_sources_with_shares_where_they_are_mixed() -> None:
    assert source_words({}) == source_words({"model": 0.0}) == "model"
    assert source_words({"rapl": 5.0, "model": 0.0}) == "rapl"
    assert source_words({"model": 19.0, "rapl": 81.0}) == "81 % rapl, 19 % model"
    assert source_words({"model": 0.1, "rapl": 99.9}) == ">99 % rapl, <1 % model"
    assert source_words({"model": 1e-12, "rapl": 9.0}) == "rapl"
    assert source_words({"model": -1.0, "rapl": 3.0}) == "75 % rapl, 25 % model"


def test_an_account_says_how_certain_it_is_and_when_it_is_an_estimate() -> None:
    found = owner_energies([row("1", 100.0, "nvml-counter", 1.25), row("2", 9.0, "rapl", 0.5)])
    assert found["1"].words == "100.0 +- 1.2 J (nvml-counter)"
    assert found["2"].words == "9.0 +- 0.5 J (rapl; an estimate, from devices that were shared)"
    both = found["1"] + found["2"]
    assert (both.joules, both.uncertainty_j, both.estimate) == (109.0, 1.75, True)
    assert both.sources == "92 % nvml-counter, 8 % rapl"
    assert both.cells == ("109.0 +- 1.8", "92 % nvml-counter, 8 % rapl (estimate)")
    assert OwnerEnergy().words == "0.0 J (model)"
    parts = [EnergyPart("model", 2.0), EnergyPart("rapl", 8.0, 0.5, True)]
    assert OwnerEnergy.of(parts).cells == ("10.0 +- 0.5", "80 % rapl, 20 % model (estimate)")


def test_cost_in_words() -> None:
    found = owner_energies([row("1", 2 * JOULES_PER_KWH)], PRICES)["1"]
    assert found.cost == Cost(1.0, 200.0)
    assert cost_words(found.cost, PRICES) == ["1.00 EUR", "200.00 g CO2"]
    gap = Cost(0.000123456, 0.0, 5.0, 7.0)
    said = ["0.000123 EUR (unknown for 5.0 J)", "0.00 g CO2 (unknown for 7.0 J)"]
    assert cost_words(gap, PRICES) == said
    assert cost_words(gap, msgspec.structs.replace(PRICES, price=None)) == said[1:]
    assert [amount(x) for x in (0.0, 1234.5, -0.5, 1e-7)] == [
        "0.00",
        "1234.50",
        "-0.5",
        "0.0000001",
    ]


@given(st.lists(st.tuples(st.sampled_from(["1", "2", "idle", "off"]), st.floats(0.0, 1e9))))
def test_whatever_adds_up_is_taken(given_rows: list[tuple[str, float]]) -> None:
    rows = [row(owner, joules) for owner, joules in given_rows]
    found = books(rows, ["1", "2"])
    check_energies(found, owner_energies(rows), whole=True)


@pytest.mark.parametrize("owner", ["1", "2", "idle"])
def test_a_joule_that_nobody_owns_or_two_do_is_found(owner: str) -> None:
    rows = [row("1", 1e6), row("2", 2e6), row("idle", 3e6)]
    found = books(rows, ["1", "2"])
    lost = [each for each in rows if each.owner != owner]
    for wrong in (lost, [*rows, row(owner, 0.01)]):
        with pytest.raises(BalanceError, match=r"expected .*, got .* J and .* J"):
            check_energies(found, owner_energies(wrong), whole=True)
    check_energies(found, owner_energies([*rows, row(owner, 0.001)]), whole=True)  # 1e-9 of 6 MJ
    sums = msgspec.structs.replace(found.energy, busy_j=found.energy.busy_j + 1.0)
    with pytest.raises(BalanceError, match="busy"):
        check_energies(AcctAnswer(found.jobs, sums, rows), owner_energies(rows), whole=True)
