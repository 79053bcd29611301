"""``rms reproduce chauhan``: the model of programs and nodes, and one stream of jobs both ways."""

from __future__ import annotations

import json
from math import inf
from pathlib import Path

import msgspec
import pytest

from rms.cli.main import main
from rms.studies import chauhan as study
from rms.studies.chauhan import _best, compared
from rms.studies.chauhan_model import WITH, WITHOUT, Variant, Way, jobs, levels, pet, run

DATA = msgspec.toml.decode((study.DATA / "chauhan.toml").read_bytes())


def test_time_and_power_of_a_program_over_frequency() -> None:
    volts = levels(DATA, Variant())
    assert volts[0] == (1.596, 0.8625) and volts[-1] == (2.394, 0.9375)
    low, *_, high = pet({"arithmetic": 0.5, "cores_w": 80.0, "memory_w": 20.0}, volts)
    assert (high.time, high.power) == (1.0, 1.0)
    assert low.time == pytest.approx(0.5 * 1.5 + 0.5)
    assert low.power == pytest.approx((80.0 * (0.8625 / 0.9375) ** 2 / 1.5 + 20.0) / 100.0)


def test_operating_points_are_where_the_paper_has_them() -> None:
    """Figures 2 and 5, in words: LINPACK needs least energy at the top, STREAM at the bottom."""
    assert _best(DATA, "linpack")["ghz"] == 2.394 and _best(DATA, "stream")["ghz"] == 1.596


def test_a_stream_is_the_same_with_and_without() -> None:
    first, again = jobs(DATA, Variant(), 3), jobs(DATA, Variant(), 3)
    assert first == again != jobs(DATA, Variant(), 4)
    without, with_it = run(DATA, WITHOUT, Variant(), 3), run(DATA, WITH, Variant(), 3)
    assert without.moves == without.boots == 0 and with_it.moves > 0 and with_it.boots > 0
    found = compared([without], [with_it])
    assert found["saved_pct"] > 0.0 and found["longer_pct"] > 0.0
    assert found["saved_pct"] == pytest.approx(found["saved_low_pct"])
    assert compared([without], [without])["saved_pct"] == 0.0


def test_the_bound_holds_the_slowdown() -> None:
    """Alone at its operating point no job is slower than the bound, neighbours make none slower."""
    for bound in (1.0, 1.05):
        found = run(DATA, Way(slowdown=bound), Variant(), 1)
        nominal = run(DATA, WITHOUT, Variant(), 1)
        assert nominal.run_s <= found.run_s <= bound * nominal.run_s * (1.0 + 1e-9)
    assert run(DATA, Way(slowdown=inf), Variant(), 1).run_s > nominal.run_s


@pytest.mark.wide
def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three streams, not ten."""
    text = (study.DATA / "chauhan.toml").read_text()
    (tmp_path / "chauhan.toml").write_text(text.replace("seeds = 10", "seeds = 3"))
    monkeypatch.setattr(study, "DATA", tmp_path)
    out = tmp_path / "out.json"
    assert main(["reproduce", "chauhan", "--json", str(out), "--figures", str(tmp_path)]) == 0
    found = json.loads(out.read_text())
    assert found["seeds"] == [1, 2, 3] and found["wrong"] == [] and len(found["curve"]) == 6
    (row,) = (row for row in found["rows"] if row["mode"] == "the algorithm")
    assert row["values"]["saved_pct"]["paper"] == 21.2
    assert {"figure-13.png", "figures-2-and-5.png", "curve.png"} <= {
        path.name for path in tmp_path.iterdir()
    }
