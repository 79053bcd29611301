"""What a daemon counts for who watches it from outside: since it was started, kept nowhere."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence

WAITS_S = (1.0, 10.0, 60.0, 300.0, 1800.0, 7200.0, 43200.0, 172800.0)
PASSES_S = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
STALLS_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


class Histogram:
    """How many values were at most each of some bounds, and their sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds, self.counts = tuple(bounds), [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Metrics:
    """Counters and histograms.

    Attributes:
        waits_s: of jobs, from their submission to their start.
        passes_s: time that an event took, with what the policy decided on it.
        stalls_s: time that a job stood still for a resize.
        resizes: by outcome: ``done`` or ``rolled_back``.
        ended: jobs by the state in which they have ended.
    """

    def __init__(self) -> None:
        self.waits_s, self.passes_s = Histogram(WAITS_S), Histogram(PASSES_S)
        self.stalls_s = Histogram(STALLS_S)
        self.resizes = Counter[str](done=0, rolled_back=0)
        self.ended = Counter[str](COMPLETED=0, FAILED=0, CANCELLED=0, TIMEOUT=0)


def family(name: str, kind: str, words: str, samples: Iterable[tuple[str, float]]) -> list[str]:
    """Return the lines of a metric in Prometheus' text format 0.0.4.

    Args:
        samples: labels as ``state="RUNNING"``, or "", and the value of each.
    """
    lines = [f"# HELP {name} {words}", f"# TYPE {name} {kind}"]
    lines += [
        f"{name}{f'{{{labels}}}' if labels else ''} {value:.10g}" for labels, value in samples
    ]
    return lines


def label(name: str, value: str) -> str:
    """Return a label, its value escaped as the format asks for."""
    text = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'{name}="{text}"'


def histogram(name: str, words: str, seen: Histogram) -> list[str]:
    """Return the lines of a histogram."""
    total, lines = 0, [f"# HELP {name} {words}", f"# TYPE {name} histogram"]
    for bound, count in zip((*map("{:g}".format, seen.bounds), "+Inf"), seen.counts, strict=True):
        total += count
        lines.append(f'{name}_bucket{{le="{bound}"}} {total}')
    return [*lines, f"{name}_sum {seen.sum:.10g}", f"{name}_count {total}"]
