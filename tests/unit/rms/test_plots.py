"""What is on the figures: legends inside them, powers in units that suit them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rms.plots import (
    MOST_IN_LEGEND,
    History,
    TimeWindow,
    folded,
    gantt,
    gantt_figure,
    lanes_of,
    marks_on,
    power_figure,
    power_over_time,
    side_by_side,
)
from rms.wire.users import NodeSpan

PNG = b"\x89PNG"


def history(nodes: int, jobs: int, watts: float = 20.0) -> History:
    """Return jobs one after the other, each on all nodes for ten seconds."""
    names = [f"n{n}" for n in range(nodes)]
    spans = [
        NodeSpan(name, f"{job}_7", 10.0 * job, 10.0 * (job + 1))
        for job in range(1, jobs + 1)
        for name in names
    ]
    return History(names, spans, [(10.0, watts)], 10.0 * (jobs + 1), 10.0)


@pytest.mark.parametrize("nodes", [1, 2, 36])
@pytest.mark.parametrize("jobs", [1, 9, 25, MOST_IN_LEGEND])
@pytest.mark.covering(1)
def test_the_legend_is_inside_the_figure(nodes: int, jobs: int) -> None:
    figure = gantt_figure(history(nodes, jobs), "who held which node")
    figure.canvas.draw()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        f"{job}_7" for job in range(1, jobs + 1)
    ]
    box, whole = legend.get_window_extent(), figure.bbox
    assert box.x0 >= 0 and box.x1 <= whole.width and box.y0 >= 0 and box.y1 <= whole.height
    (axes,) = figure.axes
    beside = axes.get_window_extent()
    assert beside.x1 <= box.x0 and beside.width > 4 * figure.dpi, "beside the bars, not over them"


def test_of_many_jobs_the_bars_have_names() -> None:
    figure = gantt_figure(history(1, MOST_IN_LEGEND + 1), "who held which node")
    assert figure.legends == []
    few = gantt_figure(history(1, 9), "who held which node")
    assert len(few.axes[0].texts) == 0


@pytest.mark.parametrize(
    ("watts", "unit", "drawn"), [(20.0, "W", 20.0), (999.0, "W", 999.0), (1500.0, "kW", 1.5)]
)
def test_power_has_a_unit_that_suits_it(watts: float, unit: str, drawn: float) -> None:
    figure = power_figure({"fifo": history(2, 3, watts)}, "power")
    (axes,) = figure.axes
    assert axes.get_ylabel() == f"power of the cluster ({unit})"
    (line,) = axes.lines
    assert list(line.get_xdata()) == [0.0, 30.0] and list(line.get_ydata()) == [drawn] * 2


def test_spans_that_are_open_end_with_the_history() -> None:
    spans = [NodeSpan("a", "2", 5.0, None), NodeSpan("gone", "1", 1.0, 5.0)]
    seen = History(["a", "b"], spans, [], 9.0, 1.0)
    assert seen.rows == ["a", "b", "gone"]
    assert seen.bars() == [(0, "2", 4.0, 4.0), (2, "1", 0.0, 4.0)]


def test_power_before_the_history_counts_from_its_start() -> None:
    seen = History(["a"], [], [(0.0, 5.0), (8.0, 7.0), (12.0, 9.0), (30.0, 1.0)], 20.0, 10.0)
    assert seen.power() == ([0.0, 2.0, 10.0], [7.0, 9.0, 9.0])


def test_nodes_that_are_off_or_boot_have_patterns() -> None:
    """Of what was before the first job only the part since is drawn; what is open goes on."""
    power = [
        NodeSpan("n1", "off", 0.0, 15.0),
        NodeSpan("n1", "boot", 15.0, 18.0),
        NodeSpan("n0", "off", 0.0, 10.0),
        NodeSpan("n1", "off", 39.0, None),
    ]
    spans = [NodeSpan("n0", "1", 10.0, 40.0)]
    seen = History(["n0", "n1"], spans, [(10.0, 1.0)], 40.0, 10.0, power)
    expected = [(1, "off", 0.0, 5.0), (1, "boot", 5.0, 3.0), (1, "off", 29.0, 1.0)]
    assert seen.bars(of_power=True) == expected
    figure = gantt_figure(seen, "who held which node")
    hatches = {bar.get_hatch() for bars in figure.axes[0].containers for bar in bars}
    assert len(hatches) == 3 and None in hatches  # jobs and idle have none
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["1", "off", "boot", "idle"]


def test_every_figure_is_written(tmp_path: Path) -> None:
    seen = history(1, 3)
    gantt(seen, tmp_path / "gantt.png", "who held which node")
    power_over_time({"fifo": seen}, tmp_path / "power.png", "power")
    seen = replace(seen, power_spans=[NodeSpan("n0", "off", 0.0, 20.0)])
    side_by_side([("30.0 s", seen, 600.0)] * 2, tmp_path / "modes.png", "model")
    for path in tmp_path.iterdir():
        assert path.read_bytes().startswith(PNG)


def test_a_lane_has_the_spans_of_one_node_or_the_share_of_several() -> None:
    names, window = ["n1", "n2", "n3"], TimeWindow(0.0, 10.0)
    spans = [NodeSpan("n1", "7", 0.0, 5.0), NodeSpan("n2", "off", 0.0, None)]
    single = list(lanes_of(names, folded(names, 3), spans, window))
    assert [(lane.name, len(lane.spans), lane.held) for lane in single] == [
        *(("n1", 1, []), ("n2", 1, []), ("n3", 0, [])),
    ]
    (first, last) = lanes_of(names, folded(names, 2), spans, window, parts=2)
    assert (first.name, first.spans, first.held) == ("n1 - n2", [], [(0.0, 0.5), (5.0, 0.0)])
    assert (last.name, last.nodes) == ("n3", 1)


def test_a_mark_is_on_the_nodes_that_its_job_held_then() -> None:
    marks = {"7": [(5.5, "to 2 ranks"), (30.0, "later")]}
    spans = [NodeSpan("n1", "7", 0.0, 5.0), NodeSpan("n1", "8", 5.0, None)]
    assert marks_on(spans, marks) == []
    assert marks_on(spans, marks, 1.0) == [(5.5, "to 2 ranks")]
