"""Jobs that run on nodes whose processes share bandwidth, on the virtual clock."""

from __future__ import annotations

from rms.core.events import Ended, ResizePoint
from rms.core.model import Job, JobId
from rms.core.rates import Contention, processes
from rms.core.state import State


class Beside:
    """Runs jobs beside one another: what they have done is what their rates have brought so far.

    Attributes:
        contention: who runs how fast; there are pools of processors in the state.
    """

    def __init__(self, state: State) -> None:
        assert state.pools is not None
        self._state, self.contention = state, Contention(state.pools)

    def start(self, job: Job, now: float) -> None:
        """Let a job run from now on, at its size and with what is left of it."""
        spec, whole_s = job.spec, job.time_s(job.size)
        if whole_s is None:
            raise ValueError(f"expected a run time of job {spec.id} to simulate, got none")
        left_s = whole_s * job.remaining_share(now) if job.done else whole_s
        counts = self.contention.counts(job.nodes, job.frequencies)
        levels, asked_gb_s = self._state.site.levels, spec.bandwidth_gb_s or 0.0
        self.contention.start(spec.id, processes(counts, left_s, asked_gb_s, levels), now)
        if spec.resize_parts is not None and spec.mode.resizable:
            self.contention.followed.add(spec.id)

    def stop(self, job: Job, now: float) -> None:
        """Let a job stand still while it is resized."""
        self.contention.stop(job.spec.id, now)

    def progress(self, job: Job, now: float) -> tuple[float, float]:
        """Return the share of its work that a job has done, and how much a second it does now."""
        whole_s = job.time_s(job.size)
        if not whole_s:
            return 1.0, 0.0
        left_s = self.contention.left_s(job.spec.id, now)
        return max(0.0, 1.0 - left_s / whole_s), self.contention.rate(job.spec.id) / whole_s

    def told(self, event: ResizePoint) -> ResizePoint:
        """Return a resize point with what the job has done by then."""
        done, _ = self.progress(self._state.running[event.job], event.at_s)
        return ResizePoint(event.at_s, event.job, done)

    def first_end(self, until_s: float, *, included: bool) -> Ended | None:
        """Return the end of a job before a time, or at it too, if it is the first to end.

        Also stops, with None, where :meth:`moved` tells of jobs.
        """
        over = self.contention.run(until_s, included=included)
        return None if over is None else Ended(over[0], JobId(over[1]), "COMPLETED")

    def moved(self) -> tuple[float, list[Job]]:
        """Return whose rates have changed that come to resize points by their work, and when."""
        found = sorted(self.contention.moved)
        self.contention.moved.clear()
        running = self._state.running
        jobs = [running[JobId(job_id)] for job_id in found if self.contention.runs(job_id)]
        return self.contention.now_s, jobs
