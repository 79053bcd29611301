"""A journal that goes through a scheduler again, from its beginning or from a snapshot.

For ``rms replay``, where the policies decide again and what they decide is compared, and for a
restart, which follows what is recorded.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import zip_longest

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

GONE = "a policy is gone, its decisions are taken as recorded"


class Replay(msgspec.Struct):
    """What came of feeding a journal to a fresh scheduler.

    Attributes:
        scheduler: as it was in the daemon that wrote the journal, if nothing differs.
        events: how many it was fed.
        differing: a sentence for each event on which it decided otherwise than is recorded, or
            that it refused, though it had once taken it.
        unrecorded: by sequence number, what it decided on events without recorded decisions:
            nobody has acted on it, so record it and do it.
        refused: a sentence for each of those that it refused, as it did at the time.
        missing: a sentence for each policy that cannot be made any more.
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


def replayed(journal: Journal) -> Replay:
    """Feed all that is left of a journal to a scheduler, and let the policies decide again.

    Raises:
        JournalError: there is no header.
    """
    begins = journal.begins()
    base = _thawed(journal, begins, again=True) if begins else None
    return replay(journal.read(begins), base=base)


def restored(journal: Journal, cluster: Cluster | None = None) -> Replay:
    """Return what a journal comes to, from the newest snapshot that can be read.

    Args:
        cluster: the nodes it begins with where there is no snapshot.

    Raises:
        JournalError: there is no header.
    """
    for seq in journal.snapshots():
        try:
            base = _thawed(journal, seq, again=False)
        except JournalError as error:
            journal.damage.append(str(error))
            continue
        return replay(journal.read(seq), again=False, base=base)
    with _uncollected():
        return replay(journal.read(), cluster, again=False)


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Look for no garbage meanwhile: it would be sought among all that is kept, again and again."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _thawed(journal: Journal, seq: int, *, again: bool) -> Replay:
    """Return the scheduler of a snapshot, as a beginning of a replay."""
    missing: list[str] = []

    def policy_of(key: str, cluster: Cluster) -> Policy:
        try:
            return guarded(named(key))
        except (PolicyError, RuleError) as error:
            missing.append(f"{GONE}: {error}")
            return stand_ins(cluster)[0]

    try:
        found = thaw(journal.snapshot(seq), policy_of)
    except SnapshotError as error:
        raise JournalError(f"the snapshot after entry {seq}: {error}") from None
    found.stand_ins = () if again else stand_ins(found.cluster)
    return Replay(found, missing=missing)


def replay(
    entries: Iterable[Entry],
    cluster: Cluster | None = None,
    *,
    again: bool = True,
    base: Replay | None = None,
) -> Replay:
    """Feed the events of a journal to a scheduler, under the policies as recorded.

    No event on which a policy failed is decided again, and none of a policy that is gone.

    Args:
        cluster: the nodes it begins with; by default those of the journal's first entry.
        again: whether policies decide again on events whose decisions are recorded; else those
            are followed, so that whatever has become of a policy changes nothing.
        base: what came of the entries before these; None where these are from the first on.

    Raises:
        JournalError: the journal does not begin with a header.
    """
    rest = iter(entries)
    if base is None:
        found, there = _begun(next(rest, None), cluster, again=again)
    else:
        found, there = base, not base.missing
    entry = next(rest, None)
    while entry is not None:
        after = next(rest, None)
        if isinstance(entry, Seen):
            failed = isinstance(after, PolicySet) and bool(after.reason)
            _feed(found, entry, follow=not again or failed or not there)
        else:
            there = _use(found, entry)
            if isinstance(entry, Opened):
                found.engine.state.max_concurrent_resizes = entry.at_once
                found.scheduler.use_levels(entry.levels)
        entry = after
    return found


def _begun(first: Entry | None, cluster: Cluster | None, *, again: bool) -> tuple[Replay, bool]:
    """Return a fresh scheduler, and whether the policy is to be had."""
    if not isinstance(first, Opened):
        raise JournalError(f"expected a header as first entry, got {first}")
    where = first.where if cluster is None else ""
    given = first.nodes, first.power, first.widths, first.shared
    cluster = replace(cluster or Cluster.recorded(*given), levels=first.levels)
    spare = stand_ins(cluster)
    found = Replay(Scheduler(cluster, spare[0], where))
    found.scheduler.stand_ins = () if again else spare
    there = _use(found, first)
    found.engine.state.max_concurrent_resizes = first.at_once
    return found, there


def _use(found: Replay, entry: Opened | PolicySet) -> bool:
    """Let the policy of an entry decide; return whether it is to be had."""
    try:
        found.engine.policy = guarded(named(entry.policy))
    except (PolicyError, RuleError) as error:
        found.engine.policy = stand_ins(found.scheduler.cluster)[0]
        found.missing.append(f"{GONE}: {error}")
        return False
    return True


def _feed(found: Replay, entry: Seen, *, follow: bool) -> None:
    """Feed an event, decide on it or follow what is recorded, and note what differs."""
    found.events += 1
    recorded = entry.decisions
    try:
        got = found.scheduler.feed(entry.event, recorded if follow else None)
    except (TransitionError, RuleError) as error:
        sentence = f"{_named(entry)}: expected one that the engine takes, got: {error}"
        (found.refused if recorded is None else found.differing).append(sentence)
        return
    if recorded is None:
        found.unrecorded[entry.seq] = got
    elif tuple(got) != recorded:
        old, new = next((a, b) for a, b in zip_longest(recorded, got) if a != b)
        found.differing.append(f"{_named(entry)}: expected {old} as recorded, got {new}")


def _named(entry: Seen) -> str:
    return f"event {entry.seq} ({type(entry.event).__name__})"
