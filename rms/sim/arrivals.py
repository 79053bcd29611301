"""What is handed in, and when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rms.core.events import Submitted
from rms.core.model import JobSpec


def submissions(specs: Sequence[JobSpec]) -> Iterator[Submitted]:
    """Yield what is handed in together: the jobs of one array at one time, else one job."""
    together: list[JobSpec] = []
    for spec in specs:
        if together and (spec.array, spec.submit_s) != (together[0].array, together[0].submit_s):
            yield Submitted(together[0].submit_s, tuple(together))
            together = []
        if spec.array is None:
            yield Submitted(spec.submit_s, (spec,))
        else:
            together.append(spec)
    if together:
        yield Submitted(together[0].submit_s, tuple(together))
