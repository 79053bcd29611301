"""Which strategy a resize has: by the abilities of MPI, and by the memory left."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpi4py import MPI
from mpi_runs import runtime_on
from stand_in import DeviceModule

import dmr
from dmr.boot.environment import Runtime, free_on_host, held_on_host
from dmr.resize.strategy import MemoryUse, choose, merge_instead, shortage, usage

GIB = 2**30
sizes = st.integers(0, 100)
uses = st.lists(st.builds(MemoryUse, st.sampled_from("abc"), sizes, sizes), max_size=8)


@given(uses)
def test_a_copy_fits_where_all_it_holds_at_a_place_is_free(found: list[MemoryUse]) -> None:
    fits = all(
        sum(r.held for r in found if r.place == place)
        <= min(r.free for r in found if r.place == place)
        for place in {r.place for r in found}
    )
    assert (shortage(found) is None) == fits


def test_the_place_and_both_amounts_are_named() -> None:
    found = [
        MemoryUse("node n1", GIB, 9 * GIB),
        *[MemoryUse("GPU 0 of node n1", 3 * GIB, 5 * GIB)] * 2,
    ]
    assert shortage(found) == (
        "a second copy of this world needs 6 GiB on GPU 0 of node n1, where 5 GiB are free"
    )


@pytest.mark.parametrize(
    ("strategy", "ranks", "supports_merge", "best"),
    [
        ("warm", 0, True, "merge"),
        ("spawn", 9, True, "merge"),
        ("spawn", 5, True, "merge"),
        ("spawn", 2, True, "merge"),
        ("spawn", 3, True, "spawn"),  # no whole launches
        ("warm", 9, False, "warm"),  # ranks cannot stay
        ("restart", 9, True, "restart"),  # all that works here
    ],
)
def test_merge_where_ranks_can_stay(
    strategy: str, ranks: int, supports_merge: bool, best: str
) -> None:
    assert merge_instead(strategy, ranks, [(0, 2), (1, 3)], supports_merge=supports_merge) == best


def test_what_this_process_holds_and_what_is_left() -> None:
    held, free = held_on_host(), free_on_host()
    if sys.platform == "linux":
        assert held is not None and 2**20 < held < 2**40
        assert free is not None and 0 < free < 2**50
    uses = usage("n1", {})
    assert [use.place for use in uses] == ["node n1"] * (held is not None and free is not None)


@pytest.mark.parametrize(
    ("groups", "files", "free_mib"),
    [
        ("0::/", {}, 900),
        ("0::/job/step", {"job/memory.max": "max", "job/step/memory.max": "max"}, 900),
        ("0::/job/step", {"job/memory.max": "500", "job/memory.current": "450"}, 60),
        ("0::/job/step", {"job/step/memory.max": "50", "job/step/memory.current": "70"}, 0),
        ("9:cpu:/a\n4:memory:/job", {"memory/job/memory.limit_in_bytes": "300"}, 210),
        ("0::/elsewhere", {"job/memory.max": "500"}, 900),
    ],
)
def test_memory_within_the_limits_of_control_groups(
    tmp_path: Path, groups: str, files: dict[str, str], free_mib: int
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(f"MemAvailable: {900 * 1024} kB\n")
    (tmp_path / "proc/self/cgroup").write_text(groups + "\n")
    for name, value in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(int(value) << 20) if value.isdigit() else value)
        for other, text in (
            ("memory.current", "0"),
            ("memory.usage_in_bytes", str(100 << 20)),
            ("memory.stat", f"inactive_file {10 << 20}\ntotal_inactive_file {10 << 20}\n"),
        ):
            if not (path.parent / other).exists():
                (path.parent / other).write_text(text)
    assert free_on_host(tmp_path) == free_mib << 20
    assert free_on_host(tmp_path / "none") is None


class TwoDevices(DeviceModule):
    """CuPy where the present device is the second of those that this process may use."""

    cuda = SimpleNamespace(Device=lambda: SimpleNamespace(id=1, mem_info=(5, 9)))

    @staticmethod
    def get_default_memory_pool() -> Any:
        return SimpleNamespace(total_bytes=lambda: 7)


@pytest.mark.parametrize(
    ("visible", "number"), [("4,6", "6"), (None, "1"), ("", "1"), ("GPU-a,GPU-b", "GPU-b")]
)
def test_a_device_is_named_as_its_node_has_it(
    visible: str | None, number: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    spec = dmr.FieldSpec((4,), "f8", lambda _: 0.0, xp=TwoDevices)
    fields = {name: spec.block(spec.decompose((1,)), 0) for name in ("u", "v")}
    assert usage("n1", fields)[-1] == MemoryUse(f"GPU {number} of node n1", 7, 5)
    assert sum("GPU" in use.place for use in usage("n1", fields)) == 1


# --- abilities of MPI ----------------------------------------------------------------------------


def here(*, connects: bool = True, spawns: bool = True, **more: Any) -> Runtime:
    probed = {"accept_connect": connects, "spawn": spawns}
    return replace(runtime_on(MPI.COMM_SELF), probed=probed, log=io.StringIO(), **more)


MANAGED: Any = {"manager": SimpleNamespace()}
MERGED: Any = {**MANAGED, "launches": ((0, 1), (1, 2))}
NO_MEETING = "two launches of this MPI cannot meet by accept/connect"


@pytest.mark.parametrize(
    ("wanted", "runtime", "used", "why"),
    [
        ("auto", here(**MANAGED), "warm", ""),
        ("auto", here(), "spawn", ""),
        ("auto", here(connects=False, **MANAGED), "spawn", ""),
        ("auto", here(connects=False, spawns=False, **MANAGED), "restart", ""),
        ("auto", here(**MERGED), "merge", ""),
        ("warm", here(**MANAGED), "warm", ""),
        ("warm", here(connects=False, **MANAGED), "spawn", NO_MEETING),
        ("merge", here(connects=False, **MANAGED), "spawn", NO_MEETING),
        ("merge", here(connects=False), "merge", ""),
        ("merge", here(spawns=False), "restart", "MPI_Comm_spawn does not work"),
        ("spawn", here(spawns=False, **MANAGED), "warm", "MPI_Comm_spawn does not work"),
        ("restart", here(connects=False, spawns=False), "restart", ""),
    ],
)
def test_a_strategy_that_cannot_be_had_is_replaced_and_told_of(
    wanted: str, runtime: Runtime, used: str, why: str
) -> None:
    assert choose(wanted, runtime, scripted=False) == used
    said = runtime.log.getvalue()  # type: ignore[attr-defined]
    expected = f"strategy {wanted} cannot be had here ({why}); using {used}\n" if why else ""
    assert said == expected
    # The first world has said so.
    silent = replace(runtime, rendezvous=SimpleNamespace(), log=io.StringIO())  # type: ignore[arg-type]
    assert choose(wanted, silent, scripted=False) == used
    assert silent.log.getvalue() == ""  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("wanted", "launched", "mpiexec", "scripted", "expected"),
    [
        ("quick", True, "/bin/mpiexec", False, "expected a strategy of auto, spawn"),
        ("warm", True, "/bin/mpiexec", False, "strategy warm needs a launcher"),
        ("auto", False, None, True, "expected mpiexec on PATH to start a new world, got none"),
        ("auto", False, None, False, None),
        ("auto", False, "/bin/mpiexec", True, None),
        ("auto", True, None, True, None),
    ],
)
def test_what_cannot_be_had_at_all_is_refused(
    wanted: str, launched: bool, mpiexec: str | None, scripted: bool, expected: str | None
) -> None:
    runtime = replace(here(), launched=launched, mpiexec=mpiexec)
    if expected is None:
        assert choose(wanted, runtime, scripted=scripted) == "spawn"
        return
    with pytest.raises(dmr.errors.UsageError, match=expected):
        choose(wanted, runtime, scripted=scripted)


def test_without_a_probe_mpich_alone_is_taken_to_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = replace(here(**MANAGED), probed=None)
    for vendor, used in (("MPICH", "warm"), ("Open MPI", "spawn")):
        monkeypatch.setattr(MPI, "get_vendor", lambda vendor=vendor: (vendor, (5, 0, 0)))
        assert choose("auto", runtime, scripted=False) == used
