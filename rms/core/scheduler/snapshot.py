"""Snapshots of the scheduler, so that a restart need not replay all events.

A snapshot is MessagePack of an :class:`Image`, compressed. A job is written once and referred to by
its place in a list, as it is one object in the scheduler too. Derived fields (sorted
queues, sums of power models) are computed again. Measurements are not part of a snapshot: they are
restored from the rows of the energy books (:meth:`rms.core.books.books.EnergyBooks.restore`).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from math import inf
from typing import Any, get_type_hints

import msgspec
from msgspec.structs import replace

from rms.core.books.books import EnergyBooks, ResizeBefore, ResizeEnergy
from rms.core.books.ledger import Ledger
from rms.core.books.spans import Span
from rms.core.model.cluster import Cluster
from rms.core.model.contention import SharedNode
from rms.core.model.jobs import Job, JobId, NodePower, Site
from rms.core.policies import Policy
from rms.core.scheduler.scheduler import Scheduler
from rms.core.scheduler.twin import Twin
from rms.core.state import End, State
from rms.wire.users import Books, HistoryEntry, LostWork, NodeSpan

_STATE = get_type_hints(State)
_LEDGER = get_type_hints(Ledger)
_TWIN = get_type_hints(Twin)
_FOLLOWS = frozenset(
    (
        *("pools", "_queues", "_rankings", "awaited", "cheapest", "hour_plans", "site", "counted"),
        *("power", "host", "levels", "_slots", "allowed", "policy", "state", "returning"),
    )
)
"""Fields that are derived from the site or from other fields."""


class SnapshotError(ValueError):
    """A snapshot of another version."""


class EnergyImage(msgspec.Struct):
    """The energy books, by the model, and the holders of nodes; those without an end are open."""

    ledger: dict[str, Any]
    resizes: dict[tuple[JobId, int], ResizeEnergy]
    begun: dict[JobId, ResizeBefore]
    past_lost: LostWork
    closed: Books | None
    owners: list[Span]
    spans: list[NodeSpan]
    power_spans: list[NodeSpan]
    power_w: list[tuple[float, float]]
    held: dict[JobId, tuple[str, ...]]
    since_s: float


Nodes = tuple[
    tuple[str, ...],
    tuple[NodePower, ...],
    tuple[int, ...],
    tuple[SharedNode, ...],
    tuple[tuple[float, float], ...],
]
"""The nodes, as the arguments of :meth:`Cluster.recorded`."""


class Image(msgspec.Struct):
    """A scheduler; the policy is named by its key. ``twin`` has that of EASY and its state."""

    policy: str
    where: str
    cluster: Nodes
    site: Site
    counted: bool
    jobs: list[Job]
    state: dict[str, Any]
    energy: EnergyImage
    history: dict[JobId, list[HistoryEntry]]
    reasons: dict[JobId, str]
    resizes: dict[JobId, int]
    twin: tuple[dict[str, Any], dict[str, Any]] | None
    ranked: dict[str, dict[int, float]]


_image = msgspec.msgpack.Decoder(Image)


def freeze(scheduler: Scheduler) -> bytes:
    """Return the snapshot of a scheduler."""
    state, cluster, energy = scheduler.engine.state, scheduler.cluster, scheduler.energy
    jobs, twin = Places(), scheduler.engine.twin
    nodes = cluster.names, cluster.power, cluster.widths, cluster.shared, cluster.levels
    image = Image(
        policy=scheduler.engine.policy.key,
        where=scheduler.where,
        cluster=nodes,
        site=state.site,
        counted=state.counted,
        state=_written(state, _STATE, jobs),
        energy=_energy(energy, jobs),
        twin=None
        if twin is None
        else (_written(twin, _TWIN, jobs), _written(twin.state, _STATE, jobs)),
        ranked=state.ranked,
        jobs=list(jobs),
        history=scheduler.history,
        reasons=scheduler.reasons,
        resizes=scheduler.resizes,
    )
    return zlib.compress(msgspec.msgpack.encode(image), 1)


def thaw(body: bytes, policy_of: Callable[[str, Cluster], Policy]) -> Scheduler:
    """Return the scheduler of a snapshot.

    Args:
        policy_of: returns the policy of a key on these nodes, or a stand-in.

    Raises:
        SnapshotError: the snapshot is of another version.
    """
    try:
        image = _image.decode(zlib.decompress(body))
        cluster = Cluster.recorded(*image.cluster)
        scheduler = Scheduler(cluster, policy_of(image.policy, cluster), image.where)
        state = State(image.site, image.counted)
        _read(state, _STATE, image.state, image.jobs)
        engine = scheduler.engine
        engine.state = state
        if state.due is not None:
            state.restore_ranks(engine.policy.running_keys, image.ranked)
        if engine.twin is not None and image.twin is not None:
            of_twin, state_of_twin = image.twin
            _read(engine.twin, _TWIN, of_twin, image.jobs)
            engine.twin.state = State(Site(state.nodes), counted=True)
            _read(engine.twin.state, _STATE, state_of_twin, image.jobs)
        elif engine.policy.twin is not None:
            engine.twin = Twin.of(state, engine.policy.twin)
        _restore_energy(scheduler.energy, state, image)
    except (zlib.error, msgspec.MsgspecError, TypeError, ValueError, LookupError) as error:
        raise SnapshotError(f"expected a snapshot of this version, got: {error}") from None
    scheduler.history, scheduler.reasons = image.history, image.reasons
    scheduler.resizes = image.resizes
    return scheduler


# --- fields by their types -----------------------------------------------------------------------


Places = dict[Job, int]
"""The places of jobs in the list, in the order of their first use."""


def _written(of: object, hints: Mapping[str, Any], jobs: Places) -> dict[str, Any]:
    """Return the fields of an object, with jobs by their places."""

    def place(job: Job) -> int:
        return jobs.setdefault(job, len(jobs))

    fields: dict[str, Any] = {}
    for name, hint in hints.items():
        if name in _FOLLOWS:
            continue
        value = getattr(of, name)
        if hint == dict[JobId, Job]:
            value = [(job_id, place(job)) for job_id, job in value.items()]
        elif hint == list[Job]:
            value = [place(job) for job in value]
        elif hint == list[End]:
            value = [(key, number, place(job)) for key, number, job in value]
        elif isinstance(value, set):
            value = sorted(value)
        fields[name] = value
    return fields


def _read(of: object, hints: Mapping[str, Any], fields: Mapping[str, Any], jobs: list[Job]) -> None:
    """Set the fields of an object that were written."""
    for name, hint in hints.items():
        if name in _FOLLOWS:
            continue
        value = fields[name]
        if hint == dict[JobId, Job]:
            value = {JobId(job_id): jobs[at] for job_id, at in value}
        elif hint == list[Job]:
            value = [jobs[at] for at in value]
        elif hint == list[End]:
            value = [(float(key), number, jobs[at]) for key, number, at in value]
        else:
            value = msgspec.convert(value, hint)
        setattr(of, name, value)


# --- the books -----------------------------------------------------------------------------------


def _energy(energy: EnergyBooks, jobs: Places) -> EnergyImage:
    spans = energy.measured.spans
    plain = {"booked_s": -inf, "replaced_j": 0.0, "measured": {}, "lasted_s": 0.0}
    images = [replace(s, saved=s not in spans.changed, **plain) for s in spans.kept()]
    return EnergyImage(
        ledger=_written(energy.ledger, _LEDGER, jobs),
        resizes=energy.resizes,
        begun=energy.begun_resizes,
        past_lost=energy.past_lost,
        closed=energy.closed_by_model,
        owners=images,
        spans=spans.spans,
        power_spans=spans.power_spans,
        power_w=spans.power_w,
        held={job: tuple(nodes) for job, nodes in spans.held.items()},
        since_s=spans.totals.since_s,
    )


def _restore_energy(energy: EnergyBooks, state: State, image: Image) -> None:
    written, site = image.energy, state.site
    energy.ledger = Ledger(site.models, site.host, site.levels)
    _read(energy.ledger, _LEDGER, written.ledger, image.jobs)
    energy.resizes, energy.begun_resizes = written.resizes, written.begun
    energy.past_lost, energy.closed_by_model = written.past_lost, written.closed
    spans = energy.measured.spans
    spans.lost = energy.ledger.lost_times
    spans.totals.since_s = written.since_s
    for name in ("spans", "power_spans", "power_w", "held"):
        setattr(spans, name, getattr(written, name))
    spans.present_spans = {span.node: span for span in spans.spans if span.end_s is None}
    spans.asleep = {span.node: span for span in spans.power_spans if span.end_s is None}
    over = [span for span in spans.spans if span.end_s is not None]
    spans.past = sorted(over, key=lambda span: span.end_s or 0.0)
    spans.keep(written.owners)
