"""A daemon that went on with other nodes powered them off at once, whatever time it was to wait."""

from __future__ import annotations

from rms.core.model.events import PowerOff, Reopened, Ticked
from rms.core.model.jobs import NodePower, Site
from rms.core.policies import POLICIES, adjusted
from rms.core.scheduler.engine import Engine

POWER = NodePower(100.0, 200.0, 0.0, off_w=10.0, boot_s=20.0, boot_j=3000.0)


def test_they_are_idle_from_then_on() -> None:
    part = {"part": "off-when-idle", "delay_s": 300.0}
    engine = Engine(Site(2, (POWER,) * 2), adjusted(POLICIES["easy"], node_power=part))
    assert engine.handle(Ticked(1000.0)) == []
    others = Reopened(2000.0, "elsewhere", ("a", "b", "c"), (POWER,) * 3, (1, 1, 1))
    assert engine.handle(others) == []
    assert engine.handle(Ticked(2299.0)) == []
    (off,) = engine.handle(Ticked(2300.0))
    assert isinstance(off, PowerOff) and off.nodes == (0, 1, 2)
