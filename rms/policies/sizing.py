"""Part ``sizing``: how many nodes each job should have."""

from __future__ import annotations

from dataclasses import dataclass, field

from rms.model import Job, JobId, State


@dataclass(frozen=True)
class Sizes:
    """Wanted sizes: at which a pending job should start, and which a running one should have."""

    pending: dict[JobId, int] = field(default_factory=dict)
    running: dict[JobId, int] = field(default_factory=dict)


def as_asked(state: State, queue: list[Job]) -> Sizes:
    """Every job at its preferred size; moldable and flexible ones at what fits now.

    Nothing that runs is resized: without an eye on the other jobs there is no reason to.
    """
    free = len(state.free)
    sizes = {}
    for job in queue:
        fitting = [n for n in job.spec.sizes() if n <= min(free, job.spec.preferred)]
        narrower = job.spec.mode.any_start and fitting
        sizes[job.spec.id] = fitting[-1] if narrower else job.spec.preferred
        free -= min(free, sizes[job.spec.id])
    return Sizes(sizes)


def equal_share(state: State, queue: list[Job]) -> Sizes:
    """Share all nodes over all jobs that can run (Iserte & Rojek, section 3).

    As many jobs in parallel as possible, each as narrow as that takes; then, while nodes are
    left, the job with the longest time still to go gets its next size. Running jobs are narrowed
    only to let waiting ones in, and widened where that saves more than the resize costs.
    """
    sharing = [job for job in state.running.values() if job.resizable_now]
    here = [(job, len(job.nodes)) for job in sharing]
    free = len(state.free) + state.coming
    admitted = _admit(queue, free)
    if queue and len(admitted) < len(queue):
        # Not all fit beside the running jobs as they are: see who does if these shrink.
        narrow = [(job, min(job.spec.sizes()[0], len(job.nodes))) for job in sharing]
        spare = sum(len(job.nodes) for job in sharing) - sum(size for _, size in narrow)
        more = _admit(queue, free + spare)
        if len(more) > len(admitted):
            here, admitted = narrow, more
    sizes = {job.spec.id: size for job, size in (*here, *admitted)}
    nodes = free + sum(len(job.nodes) for job in sharing)
    _raise(state, [job for job, _ in (*here, *admitted)], sizes, nodes - sum(sizes.values()))
    return Sizes(
        {job.spec.id: sizes[job.spec.id] for job, _ in admitted},
        {job.spec.id: sizes[job.spec.id] for job in sharing},
    )


def smallest_start(job: Job) -> int:
    """Return the fewest nodes on which a job may start."""
    return job.spec.sizes()[0] if job.spec.mode.any_start else job.spec.preferred


def _admit(queue: list[Job], nodes: int) -> list[tuple[Job, int]]:
    """Return the first jobs of the queue that fit at their least size, nobody overtaking."""
    admitted = []
    for job in queue:
        least = smallest_start(job)
        if least > nodes:
            break
        admitted.append((job, least))
        nodes -= least
    return admitted


def _raise(state: State, jobs: list[Job], sizes: dict[JobId, int], spare: int) -> None:
    """Deal the spare nodes out, one size at a time, to whoever has longest to go."""
    able = {job.spec.id: job for job in jobs if job.start_s is not None or job.spec.mode.any_start}
    while able and spare > 0:
        job = max(able.values(), key=lambda job: _to_go(state, job, sizes[job.spec.id]))
        wider = next((n for n in job.spec.sizes() if n > sizes[job.spec.id]), None)
        if (
            wider is None
            or wider - sizes[job.spec.id] > spare
            or not _pays(state, job, sizes[job.spec.id], wider)
        ):
            del able[job.spec.id]
            continue
        spare -= wider - sizes[job.spec.id]
        sizes[job.spec.id] = wider


def _to_go(state: State, job: Job, size: int) -> tuple[float, int]:
    """Return the time a job still needs; of jobs of which nothing is known, the narrowest first."""
    known = job.remaining_s(size, state.now_s)
    return (known if known is not None else float("inf"), -size)


def _pays(state: State, job: Job, size: int, wider: int) -> bool:
    """Return whether going over to ``wider`` saves more than it costs."""
    slow, fast = job.remaining_s(size, state.now_s), job.remaining_s(wider, state.now_s)
    if slow is None or fast is None:
        return True
    price = 0.0 if job.start_s is None or len(job.nodes) == wider else job.spec.resize_price_s
    return slow - fast > price
