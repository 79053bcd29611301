"""Energy by NVML, on a stand-in for it whose GPUs have the faults that real ones have."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from device_runs import stand_in_nvml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rms.power.meter import MeterError
from rms.power.nvml import (
    COUNTER_PERIOD_S,
    Counter,
    Nvml,
    in_words,
    instant_w,
    load,
)
from rms.wire.messages import DeviceEnergy


class Machine:
    """The stand-in, its GPUs and its time."""

    def __init__(self, nvml: Any) -> None:
        self.nvml, self.now_s = nvml, 1000.0
        nvml.now = lambda: self.now_s

    def gpu(self, uuid: str = "GPU-0", watts: float = 200.0, **more: Any) -> Any:
        """Add a GPU; without more, of constant power, with a counter that began long ago."""
        given = {"watts": lambda _: watts, "joules": lambda at_s: 5e6 + watts * at_s}
        self.nvml.gpus.append(self.nvml.Gpu(uuid, **(given | more)))
        return self.nvml.gpus[-1]

    def read(self, meter: Nvml, seconds: float, step_s: float = 0.5) -> list[DeviceEnergy]:
        """Read for so long, and return the news of the last second."""
        end_s, news = self.now_s + seconds, dict[str, DeviceEnergy]()
        meter.read(self.now_s)
        while self.now_s < end_s - step_s / 2:
            self.now_s += step_s
            found = meter.read(self.now_s)
            if self.now_s > end_s - 1.0:
                news |= {device.device: device for device in found}
        return [news[name] for name in sorted(news)]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.delenv("STAND_IN_NVML", raising=False)
    return Machine(stand_in_nvml(monkeypatch))


def no_counter(**more: int) -> dict[str, int]:
    return {"nvmlDeviceGetTotalEnergyConsumption": 3, **more}


def test_a_counter_is_read_from_its_first_reading_on(machine: Machine) -> None:
    machine.gpu()
    meter = Nvml()
    (first,) = meter.read(machine.now_s)
    assert (first.device, first.source, first.joules) == ("gpu-0", "nvml-counter", 0.0)
    assert first.counter == 5e6 + 200.0 * 1000.0
    (last,) = machine.read(meter, 60.0)
    assert last.joules == pytest.approx(200.0 * 60.0, abs=1e-3)
    assert last.unseen_s == 0.0 and 0.05 <= last.uncertainty_j / last.joules < 0.06
    assert meter.every_s >= 1.0 and meter.trouble == ""
    meter.close()
    assert machine.nvml._inits == 0


def test_a_counter_is_not_read_more_often_than_it_is_renewed(machine: Machine) -> None:
    calls = []
    machine.gpu(joules=lambda at_s: calls.append(at_s) or at_s)
    meter = Nvml()
    machine.read(meter, 10.0, 0.1)
    assert len(calls) <= 10.0 / 0.45 + 2


@pytest.mark.parametrize("instant", [True, False])
def test_power_is_integrated_where_nothing_counts(machine: Machine, instant: bool) -> None:
    refuses = no_counter(**({} if instant else {"nvmlDeviceGetFieldValues": 3}))
    gpu = machine.gpu(refuses=refuses)
    gpu.watts = lambda at_s: 100.0 + 200.0 * (at_s >= 1010.0)
    if instant:
        gpu.refuses["nvmlDeviceGetPowerUsage"] = 3
    meter = Nvml()
    (found,) = machine.read(meter, 60.0, 0.1)
    assert found.source == "nvml-power" and found.counter is None
    assert found.joules == pytest.approx(10 * 100.0 + 50 * 300.0, rel=0.01)
    assert meter.every_s == 0.1


def test_each_gpu_by_the_best_it_has(machine: Machine) -> None:
    machine.gpu("GPU-a")
    machine.gpu("GPU-b", refuses=no_counter())
    machine.gpu("GPU-c", refuses=no_counter(nvmlDeviceGetFieldValues=3, nvmlDeviceGetPowerUsage=3))
    meter = Nvml()
    found = machine.read(meter, 10.0, 0.1)
    assert [(one.device, one.source) for one in found] == [
        ("gpu-0", "nvml-counter"),
        ("gpu-1", "nvml-power"),
    ]
    assert [one.joules for one in found] == pytest.approx([2000.0, 2000.0], rel=0.05)
    assert meter.trouble == (
        "gpu-2: neither its energy nor its power can be read: "
        "it is not supported on this GPU (a virtual one, or too old)"
    )


def test_a_gpu_divided_by_mig_is_said(machine: Machine) -> None:
    machine.gpu(mig=True)
    meter = Nvml()
    assert len(meter.read(0.0)) == 1
    assert "gpu-0: it is divided by MIG" in meter.trouble


def test_nothing_to_read_is_an_error_in_words(machine: Machine) -> None:
    machine.gpu(refuses={"*": 3, "nvmlDeviceGetHandleByIndex": 0})
    gpu = machine.nvml.gpus[0]
    del gpu.refuses["nvmlDeviceGetHandleByIndex"]
    gpu.refuses = no_counter(nvmlDeviceGetPowerUsage=3, nvmlDeviceGetFieldValues=3)
    with pytest.raises(MeterError, match="neither its energy nor its power"):
        Nvml().read(0.0)
    gpu.refuses = {"nvmlInit": 9}
    with pytest.raises(MeterError, match="the NVIDIA driver is not loaded"):
        Nvml().read(0.0)


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(MeterError, match=r"nvidia-ml-py .*pip install 'malleable-mpi\[nvml\]'"):
        load()


def test_errors_that_have_no_words_keep_their_own(machine: Machine) -> None:
    assert in_words(machine.nvml, machine.nvml.NVMLError(77)) == "NVML says: NVML error 77"


def test_a_lost_gpu_is_a_gap_and_its_counter_goes_on(machine: Machine) -> None:
    gpu = machine.gpu()
    other = machine.gpu("GPU-b")
    meter = Nvml()
    machine.read(meter, 10.0)
    gpu.refuses["*"] = 15
    found = machine.read(meter, 20.0)
    assert [one.device for one in found] == ["gpu-1"]
    assert meter.trouble == "gpu-0: the GPU has fallen off the bus or is not reachable"
    gpu.refuses.clear()
    found = machine.read(meter, 30.0)
    assert [one.joules for one in found] == pytest.approx([12_000.0] * 2, abs=100.0)
    assert [one.unseen_s for one in found] == [0.0, 0.0]
    assert meter.trouble == ""
    assert other.uuid == "GPU-b"


def test_a_driver_that_goes_away_comes_back(machine: Machine) -> None:
    gpu = machine.gpu()
    meter = Nvml()
    machine.read(meter, 10.0)
    gpu.refuses = {"*": 1, "nvmlInit": 9}
    assert machine.read(meter, 20.0) == []
    assert meter.trouble == "the NVIDIA driver is not loaded"
    gpu.refuses = {}
    gpu.joules = lambda at_s: 200.0 * (at_s - 1030.0)
    (found,) = machine.read(meter, 20.0)
    assert found.joules + 200.0 * found.unseen_s == pytest.approx(200.0 * 50.0, abs=1.0)
    assert 20.0 <= found.unseen_s <= 31.0


def test_a_counter_that_stands_still_gives_way_to_the_power(machine: Machine) -> None:
    machine.gpu(joules=lambda _: 1234.0)
    meter = Nvml()
    (found,) = machine.read(meter, 60.0, 0.1)
    assert found.source == "nvml-power" and "stands still" in meter.trouble
    assert found.joules + 200.0 * found.unseen_s == pytest.approx(12_000.0, rel=1e-2)
    assert found.unseen_s == pytest.approx(10.0, abs=1.0)


def test_a_gpu_keeps_its_energy_where_its_number_changes(machine: Machine) -> None:
    machine.gpu("GPU-a")
    machine.gpu("GPU-b", watts=50.0)
    meter = Nvml()
    machine.read(meter, 10.0)
    machine.nvml.gpus.reverse()
    meter.close()
    found = {one.device: one.joules for one in machine.read(meter, 10.0)}
    assert found == pytest.approx({"gpu-0": 4000.0, "gpu-1": 1000.0}, abs=1.0)


KNOWN = DeviceEnergy("gpu-0", "nvml-counter", 700.0, 3.0, 40.0, 5e6 + 200.0 * 980.0)


def test_a_later_agent_goes_on_by_the_counter(machine: Machine) -> None:
    machine.gpu()
    meter = Nvml()
    meter.resume([KNOWN], 20.0, True)
    (found,) = meter.read(machine.now_s)
    assert found.joules == pytest.approx(700.0 + 200.0 * 20.0) and found.unseen_s == 3.0
    assert found.uncertainty_j > 40.0
    (found,) = machine.read(meter, 10.0)
    assert found.joules == pytest.approx(700.0 + 200.0 * 30.0)


def test_the_instantaneous_field_may_be_wide_or_missing(machine: Machine) -> None:
    gpu = machine.gpu(watts=123.0)
    nvml = load()
    assert instant_w(nvml, gpu) == 123.0
    gpu.refuses = {"nvmlDeviceGetFieldValues": 3}
    assert instant_w(nvml, gpu) is None
    del nvml.NVML_FI_DEV_POWER_INSTANT
    assert instant_w(nvml, gpu) is None


@given(st.lists(st.tuples(st.floats(0.5, 60.0), st.floats(0.0, 1500.0)), min_size=1))
@example([(23.7, 0.0), (1.5, 1353.0)])
def test_a_counter_loses_nothing(steps: list[tuple[float, float]]) -> None:
    counter, at_s, counted_j = Counter(), 0.0, 9e6
    counter.add(at_s, counted_j)
    for seconds, watts in steps:
        at_s, counted_j = at_s + seconds, counted_j + watts * seconds
        counter.add(at_s, counted_j)
    spent_j = sum(seconds * watts for seconds, watts in steps)
    assert counter.joules == pytest.approx(spent_j, abs=1e-3) and counter.unseen_s == 0.0
    most_w = max(watts for _, watts in steps)
    assert counter.uncertainty_j() >= COUNTER_PERIOD_S * most_w * 0.99 - 1e-6


@given(st.floats(1.0, 100.0), st.floats(1.0, 1e6), st.floats(0.0, 1.0))
def test_a_counter_that_begins_anew_is_a_gap(seconds: float, before_j: float, part: float) -> None:
    counter = Counter()
    counter.add(0.0, before_j)
    counter.add(seconds, part * before_j * 0.999)
    assert (counter.joules, counter.unseen_s) == (0.0, seconds)


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            ["read"] * 4 + ["lose", "find", "reload the driver", "new agent", "reboot"]
        ),
        st.floats(0.5, 1.9),
    ),
    min_size=1,
    max_size=40,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ACTIONS, st.booleans())
def test_all_time_is_measured_or_unseen(
    machine: Machine, actions: list[tuple[str, float]], counts: bool
) -> None:
    """Whatever happens: at constant power, joules and unseen time are all the time there was."""
    machine.nvml.gpus.clear()
    gpu = machine.gpu(watts=100.0, joules=lambda at_s: 100.0 * at_s)
    working = {} if counts else no_counter()
    gpu.refuses = dict(working)
    meter, begun_s = Nvml(), machine.now_s
    (last,), last_s = meter.read(begun_s), begun_s
    for action, seconds in actions:
        machine.now_s += seconds
        if action == "lose":
            gpu.refuses = {"*": 15}
        elif action != "read":
            gpu.refuses = dict(working)
        if action in ("reload the driver", "reboot") and (last.counter or 0.0) > 1000.0:
            gpu.joules = lambda at_s, since_s=machine.now_s: 100.0 * (at_s - since_s)
        if action in ("new agent", "reboot"):
            meter.close()
            meter = Nvml()
            meter.resume([last], machine.now_s - last_s, action == "new agent")
        for device in meter.read(machine.now_s):
            assert device.joules >= last.joules and device.unseen_s >= last.unseen_s
            assert device.uncertainty_j >= last.uncertainty_j
            last, last_s = device, machine.now_s
        known_s = last.joules / 100.0 + last.unseen_s
        assert known_s == pytest.approx(last_s - begun_s, abs=0.01)
    meter.close()
    assert machine.nvml._inits == 0


def test_time_of_a_gpu_by_process(machine: Machine) -> None:
    """The mean of the samples of a process, of all the time since the last reading."""
    gpu = machine.gpu()
    other = machine.gpu("GPU-1", refuses={"nvmlDeviceGetProcessUtilization": 3})
    meter = Nvml()
    assert meter.processes(machine.now_s) == {}  # it is not open yet
    machine.read(meter, 1.0)
    gpu.samples = [(machine.now_s - 0.5, 7, 90)]
    assert meter.processes(machine.now_s) == {"gpu-0": {7: 0.0}}  # from here on
    assert other.refuses  # its processes cannot be read
    gpu.samples = [(machine.now_s + each, 7, 50) for each in (0.2, 1.2)]
    gpu.samples += [(machine.now_s + 1.0, 8, 100), (machine.now_s + 1.4, 8, 0)]
    machine.now_s += 2.0
    assert meter.processes(machine.now_s) == {"gpu-0": {7: 1.0, 8: 1.0}}
    machine.now_s += 1.0
    assert meter.processes(machine.now_s) == {"gpu-0": {}}  # nothing uses it
    meter.close()
    assert meter.processes(machine.now_s) == {}
