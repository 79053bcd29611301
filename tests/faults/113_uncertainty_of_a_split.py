"""A split of a shared node by the model, 45 % wrong, was stated with an uncertainty of 0 J."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from routed import Routed, routed

from rms.core.books.measured import Measured
from rms.core.books.spans import IDLE, Span
from rms.core.model.cluster import Cluster
from rms.core.model.jobs import NodePower
from rms.core.policies import adjusted, named
from rms.daemon.ask import views
from rms.formats.energy import check_energies, owner_energies
from rms.wire.messages import DeviceEnergy, Metered
from rms.wire.users import EnergyPart

SHARED = Cluster(
    ("n1",), (("cpu:0", "cpu:1"),), (NodePower(idle_w=20.0, static_w=40.0),), (10.0,)
).split()
POLICY = adjusted(named("easy"), placement={"part": "first-fit-shared"}).text


def measure(server: Routed, watts: float, begin: int = 0) -> None:
    """Let an agent report for 10 s."""
    for second in range(begin, begin + 11):
        energy = DeviceEnergy("package-0", "rapl", watts * second)
        devices = [energy] if second > begin or begin else []
        metered = Metered("n1", "a", second, server.clock[0], "boot", devices)
        server.daemon.meters.take_report(metered)
        server.clock[0] += 1.0
    server.clock[0] -= 1.0


def part(server: Routed, job: str) -> EnergyPart:
    (row,) = [row for row in views.jobs(server.daemon.context) if row.id == job]
    return next(part for part in row.energy if part.source == "rapl")


@pytest.mark.parametrize("stated", [(None, None), (40.0, None), (40.0, 1.0)])
def test_the_true_energy_is_within_the_uncertainty(
    tmp_path: Path, stated: tuple[float | None, ...]
) -> None:
    """A busy loop of 400 J beside a sleeper of 0 J: 60 W of a node that draws 20 W idle."""
    with routed(tmp_path, SHARED, POLICY) as server:
        names = [server.submit(**({} if w is None else {"power_w": w})) for w in stated]
        measure(server, 60.0)
        for name, true_j in zip(names, (400.0, 0.0), strict=True):
            energy = part(server, name)
            assert energy.estimate and energy.uncertainty_j > 0.0
            assert abs(energy.joules - true_j) <= energy.uncertainty_j + 1e-6
        context = server.daemon.context
        accounting = views.acct(context)
        check_energies(accounting, owner_energies(accounting.rows), whole=True)
        whole = next(part for part in accounting.energy.sources if part.source == "rapl")
        assert whole.uncertainty_j == 0.0  # the sum was measured, whichever job drew it


def test_the_energy_of_a_job_that_is_alone_is_certain(tmp_path: Path) -> None:
    with routed(tmp_path, SHARED, POLICY) as server:
        name = server.submit()
        measure(server, 30.0)
        assert part(server, name).uncertainty_j == pytest.approx(0.0, abs=1e-6)


PIECES = st.lists(
    st.tuples(st.sampled_from(["1", "2", "3", IDLE]), st.floats(0.0, 500.0), st.floats(0.0, 9.0)),
    min_size=1,
    max_size=6,
)


@given(PIECES, st.floats(0.0, 1e4), st.floats(0.0, 100.0))
def test_both_ends_are_within_the_uncertainty(
    drawn: list[tuple[str, float, float]], joules: float, idle_w: float
) -> None:
    measured = Measured()
    pieces = []
    for number, (owner, watts, seconds) in enumerate(drawn):
        node = f"n{number}"
        measured.idle_w[node] = idle_w
        watts = idle_w if owner == IDLE else watts
        pieces.append((Span(node, owner, None, 0, watts, 0.0), seconds))
    modelled = [span.watts * seconds for span, seconds in pieces]
    whole = sum(modelled)
    weights = [j / whole for j in modelled] if whole > 0.0 else [1.0 / len(pieces)] * len(pieces)
    errors = measured.split_errors(pieces, weights, joules)
    assert all(error >= 0.0 for error in errors)
    running = {span.owner for span, _ in pieces} - {IDLE}
    scale = min(1.0, joules / whole) if whole else 0.0
    idle_j = {
        owner: sum(
            scale * min(span.watts, idle_w) * seconds
            for span, seconds in pieces
            if span.owner == owner
        )
        for owner in {*running, IDLE}
    }
    dynamic_j = joules - sum(idle_j.values())
    if len(running) > 1:
        for owner in running:
            own = [n for n, (span, _) in enumerate(pieces) if span.owner == owner]
            part_j = sum(weights[n] * joules for n in own)
            error_j = sum(errors[n] for n in own)
            for end_j in (idle_j[owner], idle_j[owner] + dynamic_j):
                assert abs(part_j - end_j) <= error_j + 1e-8 * max(1.0, joules)
