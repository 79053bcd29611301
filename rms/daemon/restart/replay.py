"""Replay a journal through a scheduler, from its beginning or from a snapshot.

For ``rms replay`` the policies decide again and their decisions are compared with the recorded
ones; a restart follows the recorded decisions. A journal without a header is a JournalError.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, pairwise, zip_longest

import msgspec

from rms.core.model.cluster import Cluster
from rms.core.model.events import Decision
from rms.core.policies import Policy, PolicyError, named
from rms.core.rules.checks import RuleError
from rms.core.rules.transition import TransitionError
from rms.core.scheduler.engine import Engine
from rms.core.scheduler.scheduler import Scheduler
from rms.core.scheduler.snapshot import SnapshotError, thaw
from rms.daemon.store.journal import Entry, Journal, JournalError, Opened, PolicySet, Seen
from rms.daemon.store.sandbox import guarded, stand_ins


class Replayed(msgspec.Struct):
    """The result of feeding a journal to a scheduler.

    Attributes:
        scheduler: in the state of the daemon that wrote the journal, if nothing differs.
        events: number of events.
        differing: a sentence per event on which the decisions differ from the recorded ones, or
            that is refused although it was accepted before.
        unrecorded: by sequence number, the decisions on events without recorded decisions: these
            have not been acted on, so they are to be recorded and carried out.
        refused: a sentence per refused event without recorded decisions.
        missing: a sentence per missing policy.
    """

    scheduler: Scheduler
    events: int = 0
    differing: list[str] = []
    unrecorded: dict[int, list[Decision]] = {}
    refused: list[str] = []
    missing: list[str] = []

    @property
    def engine(self) -> Engine:
        """The scheduler's engine."""
        return self.scheduler.engine


def replayed(journal: Journal) -> Replayed:
    """Replay all entries of a journal, and let the policies decide again."""
    begins = journal.begins()
    base = _thawed(journal, begins, again=True) if begins else None
    return replay(journal.read(begins), base=base)


def restored(journal: Journal, cluster: Cluster | None = None) -> Replayed:
    """Replay a journal from the newest readable snapshot, following the recorded decisions."""
    for seq in journal.snapshots():
        try:
            base = _thawed(journal, seq, again=False)
        except JournalError as error:
            journal.damage.append(str(error))
            continue
        return replay(journal.read(seq), again=False, base=base)
    with uncollected():
        return replay(journal.read(), cluster, again=False)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Disable automatic garbage collection, which would visit all kept objects repeatedly."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _thawed(journal: Journal, seq: int, *, again: bool) -> Replayed:
    """Return a replay that begins with a snapshot."""
    missing: list[str] = []

    def policy_of(key: str, cluster: Cluster) -> Policy:
        return _policy(key, missing) or stand_ins(cluster)[0]

    try:
        scheduler = thaw(journal.snapshot(seq), policy_of)
    except SnapshotError as error:
        raise JournalError(f"the snapshot after entry {seq}: {error}") from None
    scheduler.stand_ins = () if again else stand_ins(scheduler.cluster)
    return Replayed(scheduler, missing=missing)


def replay(
    entries: Iterable[Entry],
    cluster: Cluster | None = None,
    *,
    again: bool = True,
    base: Replayed | None = None,
) -> Replayed:
    """Feed the events of a journal to a scheduler, under the policies as recorded.

    An event on which a policy failed is not decided again, nor an event of a missing policy.

    Args:
        cluster: the nodes it begins with; by default those of the journal's first entry.
        again: whether policies decide again on events with recorded decisions; else these are
            followed, so that a changed policy changes nothing.
        base: the result of the entries before these; None at the beginning of the journal.
    """
    rest = iter(entries)
    if base is None:
        result, has_policy = _begun(next(rest, None), cluster, again=again)
    else:
        result, has_policy = base, not base.missing
    for entry, after in pairwise(chain(rest, [None])):
        if isinstance(entry, Seen):
            failed = isinstance(after, PolicySet) and bool(after.reason)
            _feed(result, entry, follow=not again or failed or not has_policy)
        elif entry is not None:
            has_policy = _use(result, entry)
            if isinstance(entry, Opened):
                result.engine.state.max_concurrent_resizes = entry.at_once
                result.scheduler.use_levels(entry.levels)
    return result


def _begun(first: Entry | None, cluster: Cluster | None, *, again: bool) -> tuple[Replayed, bool]:
    """Return a fresh scheduler, and whether the policy exists."""
    if not isinstance(first, Opened):
        raise JournalError(f"expected a header as first entry, got {first}")
    where = first.where if cluster is None else ""
    recorded = Cluster.recorded(first.nodes, first.power, first.widths, first.shared)
    cluster = replace(cluster or recorded, levels=first.levels)
    spare = stand_ins(cluster)
    result = Replayed(Scheduler(cluster, spare[0], where))
    result.scheduler.stand_ins = () if again else spare
    has_policy = _use(result, first)
    result.engine.state.max_concurrent_resizes = first.at_once
    return result, has_policy


def _use(result: Replayed, entry: Opened | PolicySet) -> bool:
    """Let the policy of an entry decide; return whether it exists."""
    policy = _policy(entry.policy, result.missing)
    result.engine.policy = policy or stand_ins(result.scheduler.cluster)[0]
    return policy is not None


def _policy(key: str, missing: list[str]) -> Policy | None:
    """Return the policy of a key; None, and a sentence in ``missing``, if it is gone."""
    try:
        return guarded(named(key))
    except (PolicyError, RuleError) as error:
        missing.append(f"a policy is gone, its decisions are taken as recorded: {error}")
        return None


def _feed(result: Replayed, entry: Seen, *, follow: bool) -> None:
    """Feed an event, decide on it or follow the recorded decisions; note differences."""
    result.events += 1
    recorded, name = entry.decisions, f"event {entry.seq} ({type(entry.event).__name__})"
    try:
        decisions = result.scheduler.feed(entry.event, recorded if follow else None)
    except (TransitionError, RuleError) as error:
        sentence = f"{name}: expected one that the engine takes, got: {error}"
        (result.refused if recorded is None else result.differing).append(sentence)
        return
    if recorded is None:
        result.unrecorded[entry.seq] = decisions
    elif tuple(decisions) != recorded:
        old, new = next((a, b) for a, b in zip_longest(recorded, decisions) if a != b)
        result.differing.append(f"{name}: expected {old} as recorded, got {new}")
