"""A node's meter, on a tree of files like the kernel's."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rms.power.agent import run
from rms.power.meter import MeterError, NodeMeter
from rms.power.nvidia_smi import Devices
from rms.power.rapl import Rapl
from rms.wire.messages import Metered

RANGE_UJ = 262_143_328_850


def zone(folder: Path, name: str, what: str, energy_uj: int) -> Path:
    place = folder / name
    place.mkdir(parents=True, exist_ok=True)
    (place / "name").write_text(f"{what}\n")
    (place / "energy_uj").write_text(f"{energy_uj}\n")
    (place / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
    return place


@pytest.fixture
def powercap(tmp_path: Path) -> Path:
    """Two packages, of which one shows a part of itself, and a zone that is none."""
    zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    zone(tmp_path, "intel-rapl:0:0", "core", 900_000)
    zone(tmp_path, "intel-rapl:1", "package-1", 5_000_000)
    zone(tmp_path, "intel-rapl:2", "psys", 7_000_000)
    zone(tmp_path, "intel-rapl-mmio:0", "package-0", 1_000_000)
    return tmp_path


def meter(folder: Path, program: str = "no-such-program") -> NodeMeter:
    return NodeMeter("n1", [Rapl(folder), Devices(program)])


def test_packages_only_are_summed(powercap: Path) -> None:
    rapl = Rapl(powercap)
    assert rapl.read(10.0) is None
    zone(powercap, "intel-rapl:0", "package-0", 1_000_000 + 40_000_000)
    zone(powercap, "intel-rapl:0:0", "core", 900_000 + 30_000_000)
    zone(powercap, "intel-rapl:1", "package-1", 5_000_000 + 20_000_000)
    zone(powercap, "intel-rapl:2", "psys", 7_000_000 + 99_000_000)
    assert rapl.read(12.0) == pytest.approx(30.0)
    assert rapl.read(12.0) is None  # no time has gone by
    assert rapl.read(14.0) == 0.0


def test_a_counter_wraps_around(powercap: Path) -> None:
    rapl = Rapl(powercap)
    zone(powercap, "intel-rapl:0", "package-0", RANGE_UJ - 3_000_000)
    assert rapl.read(0.0) is None
    zone(powercap, "intel-rapl:0", "package-0", 7_000_000)
    assert rapl.read(0.5) == pytest.approx(20.0)


@given(st.lists(st.integers(0, RANGE_UJ - 1), min_size=1, max_size=8), st.integers(0, RANGE_UJ - 1))
def test_wraps_lose_no_energy(
    tmp_path_factory: pytest.TempPathFactory, steps_uj: list[int], begun_uj: int
) -> None:
    folder = tmp_path_factory.mktemp("powercap")
    rapl, at_uj, joules = Rapl(folder), begun_uj, 0.0
    zone(folder, "intel-rapl:0", "package-0", at_uj)
    rapl.read(0.0)
    for second, step in enumerate(steps_uj, 1):
        at_uj = (at_uj + step) % RANGE_UJ
        zone(folder, "intel-rapl:0", "package-0", at_uj)
        joules += rapl.read(float(second)) or 0.0
    assert joules == pytest.approx(sum(steps_uj) * 1e-6)


def test_a_package_that_comes_or_goes_begins_anew(powercap: Path) -> None:
    rapl = Rapl(powercap)
    rapl.read(0.0)
    zone(powercap, "intel-rapl:3", "package-3", 9_000_000)
    assert rapl.read(1.0) is None
    assert rapl.read(2.0) == 0.0


def test_what_can_not_be_read_is_said(powercap: Path, tmp_path: Path) -> None:
    with pytest.raises(MeterError, match="no processor package"):
        Rapl(tmp_path / "nothing").read(0.0)
    (powercap / "intel-rapl:1" / "energy_uj").write_text("much\n")
    with pytest.raises(MeterError, match=r"expected a number .* got 'much'"):
        Rapl(powercap).read(0.0)


def test_counters_for_root_alone(powercap: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path, *_: object) -> str:
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied")
        return "package-0"

    monkeypatch.setattr(Path, "read_text", refused)
    told: list[Metered] = []
    run(meter(powercap), told.append, 0.0, threading.Event())
    assert len(told) == 1 and told[0].watts is None and told[0].source == "model"
    assert f"{powercap}: its counters may not be read by this user" in told[0].reason


def test_a_node_without_counters_says_so_once(tmp_path: Path) -> None:
    told: list[Metered] = []
    run(meter(tmp_path / "none"), told.append, 0.0, threading.Event())
    (said,) = told
    assert (said.node, said.source, said.watts) == ("n1", "model", None)
    assert (
        "no processor package" in said.reason and "no-such-program reads no device" in said.reason
    )


def test_packages_and_devices_are_one_node(powercap: Path, tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    line = "2024/05/06 12:34:56.000, {}, {}.00"
    lines = f"{line.format(0, 60)}\n{line.format(1, 40)}"
    program.write_text(
        f"#!/bin/sh\necho '{lines}'\ncase \"$*\" in *-lms*) exec sleep 1000 ;; esac\n"
    )
    program.chmod(0o755)
    over, told = threading.Event(), list[Metered]()
    found = meter(powercap, str(program))
    clock = iter(float(n) for n in range(10_000))

    def tell(said: Metered) -> None:
        told.append(said)
        over.set()

    try:
        run(found, tell, 0.01, over, lambda: next(clock))
    finally:
        found.close()
    assert told == [Metered("n1", "rapl and nvidia-smi", 100.0)]


LISTS_MODULES = "import sys; print('\\n'.join(sys.modules))"


def modules_after(code: str) -> set[str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("RMS_")}
    command = [sys.executable, "-c", f"{code}\n{LISTS_MODULES}"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


def test_a_compute_node_imports_the_messages_and_msgspec_only() -> None:
    """The agent is started, up to where it finds no daemon to tell."""
    started = "import rms.power.agent as agent; assert agent.main([]) == 1"
    found = modules_after(started) - modules_after("")
    own = {name for name in found if name.partition(".")[0] in ("rms", "dmr", "mpdata")}
    allowed = ("rms.power", "rms.wire")
    assert {name for name in own if not name.startswith(allowed)} <= {"rms", "rms._version"}
    others = {name.partition(".")[0] for name in found - own}
    foreign = others - set(sys.stdlib_module_names)
    assert foreign <= {"msgspec", "typing_extensions"}  # the second by msgspec, where it is there
    assert not others & {"asyncio", "sqlite3"}
