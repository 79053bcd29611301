"""Frequencies of cores and GPUs held for those who use them, on files like the kernel's."""

from __future__ import annotations

from pathlib import Path

import pytest
from cpufreq import CPUFREQ_VARIABLE, limits, restored_here, tree
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rms.power import frequency
from rms.power.frequency import Clocks, FrequencyError

FOUND = (800, 2000)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Cores 0 and 1 have a frequency each, 2 and 3 one together."""
    return tree(tmp_path / "cpufreq", {0: (0,), 1: (1,), 2: (2, 3)})


def clocks_of(folder: Path) -> Clocks:
    return Clocks({CPUFREQ_VARIABLE: str(folder)})


def cores(*shares: float | None) -> dict[str, float | None]:
    return {f"cpu:{n}": share for n, share in enumerate(shares)}


@pytest.mark.promise("frequency")
def test_a_core_is_set_and_put_back(folder: Path) -> None:
    """The step taken is the lowest that is no slower than asked for."""
    clocks = clocks_of(folder)
    assert clocks.refusal(["cpu:0"]) == ""
    clocks.set(cores(0.5, None, None, None))
    assert limits(folder) == [(1000, 1000), FOUND, FOUND] and clocks.mhz == {"cpu:0": 1000}
    clocks.set(cores(0.41, 0.75, None, None))
    assert limits(folder) == [(1000, 1000), (1500, 1500), FOUND]
    clocks.set(cores(0.1, None, None, None))
    assert limits(folder) == [(800, 800), FOUND, FOUND]
    clocks.set(cores(None, None, None, None))
    assert limits(folder) == [FOUND] * 3 and clocks.mhz == {}
    clocks.set(cores(1.0, 0.5, None, None))
    assert limits(folder) == [FOUND, (1000, 1000), FOUND]  # the highest is as it was found
    clocks.close()
    assert limits(folder) == [FOUND] * 3


def test_cores_with_one_frequency_have_the_highest_asked_for(folder: Path) -> None:
    clocks = clocks_of(folder)
    try:
        clocks.set(cores(None, None, 0.5, 0.75))
        assert limits(folder) == [FOUND, FOUND, (1500, 1500)]
        assert clocks.mhz == {"cpu:2": 1500, "cpu:3": 1500}
        clocks.set(cores(None, None, 0.5, None))
        assert limits(folder)[2] == (1000, 1000)
        clocks.set(cores(None, None, 0.5, 1.0))
        assert limits(folder)[2] == FOUND
    finally:
        clocks.close()


def test_what_cannot_be_set_is_said_and_nothing_is_left_set(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = clocks_of(folder)
    clocks.set(cores(0.5, None, None, None))
    write = Path.write_text

    def refuse(path: Path, text: str) -> int:
        if path.parent.name == "policy1" and "1500" in text:
            raise PermissionError(1, "Operation not permitted")
        return write(path, text)

    monkeypatch.setattr(Path, "write_text", refuse)
    with pytest.raises(FrequencyError, match=r"could not write .*policy1.*not permitted"):
        clocks.set(cores(0.5, 0.75, None, None))
    assert limits(folder) == [FOUND] * 3 and clocks.mhz == {}


def test_a_machine_that_has_none_says_so(tmp_path: Path) -> None:
    clocks = clocks_of(tmp_path)
    assert "the kernel shows none here" in clocks.refusal(["cpu:0"])
    clocks.set(cores(1.0, None))  # nothing is to be set
    with pytest.raises(FrequencyError, match="the kernel shows none here"):
        clocks.set(cores(0.5, None))
    assert "expected frequencies of gpu, got none here" in clocks.refusal(["gpu:0"])


def test_one_holder_at_a_time(folder: Path) -> None:
    first, second = clocks_of(folder), clocks_of(folder)
    first.set(cores(0.5, None, None, None))
    with pytest.raises(FrequencyError, match="another process holds it"):
        second.set(cores(None, 0.5, None, None))
    assert limits(folder) == [(1000, 1000), FOUND, FOUND]
    first.close()


share = st.one_of(st.none(), st.sampled_from([0.4, 0.5, 0.75, 1.0]))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(asked=st.lists(st.lists(share, min_size=4, max_size=4), max_size=4))
def test_whatever_is_asked_one_after_the_other_cores_are_as_asked_last(
    folder: Path, monkeypatch: pytest.MonkeyPatch, asked: list[list[float | None]]
) -> None:
    monkeypatch.setattr(frequency, "restored", restored_here)
    clocks = clocks_of(folder)
    try:
        for shares in asked:
            clocks.set(cores(*shares))
            for policy, own in zip(limits(folder), ((0,), (1,), (2, 3)), strict=True):
                users = [each for core in own if (each := shares[core]) is not None]
                mhz = {0.4: 800, 0.5: 1000, 0.75: 1500}.get(max(users, default=1.0))
                assert policy == (FOUND if mhz is None else (mhz, mhz))
    finally:
        clocks.close()
    assert limits(folder) == [FOUND] * 3
