"""Copies of a run in memory: taken between two steps, and restored by the world after a death.

At a resize point every rank copies its blocks into shared memory of its host, in a file in the
folder of its keeper; the application waits for that copy only. A thread then hashes it, writes its
head, and sends it to the keepers of the partner hosts. A rank has two files here and two at each
partner, and uses them in turn: the older generation stays until every rank has the newer one, here
and at its partners, so that a host that is lost at any moment leaves one of them whole.

The ranks agree on a copy by the reduction that every resize point has (:mod:`dmr.loop.decide`):
rank 0 reports that one is due, and every rank whether its thread still works on the one before.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import msgspec
import numpy as np

from dmr.checkpoint.format import (
    BrokenCheckpointError,
    Index,
    Part,
    check_options,
    fill,
)
from dmr.data.decomposition import Box
from dmr.data.distributed import Distributed
from dmr.errors import UsageError, words_of
from dmr.memory.interval import interval_s
from dmr.memory.keeper import (
    REQUEST_S,
    Held,
    Keeper,
    KeeperError,
    KeeperGoneError,
    Pace,
    Place,
    listed,
)
from dmr.memory.piece import (
    HEAD_BYTES,
    SUFFIX,
    Array,
    Block,
    BrokenPieceError,
    Generation,
    Job,
    NoRoomError,
    Piece,
    PieceFile,
    cells_of,
    digest,
    layout,
    partner_shifts,
    whole,
)
from dmr.plan import AUTO, Limits, Schedule
from dmr.state.progress import Progress, decode, encode
from dmr.state.values import ValuesError
from dmr.system.watch import WATCH
from dmr.world import World

DEFAULT = Schedule(every_s=10.0)
"""Of a program whose plan has none, under ``dmr run``."""

SPARE_BYTES = 64 << 10
"""Room for progress and description that a piece is given beforehand."""

MTBF_S = 8760 * 3600.0
"""Mean time between failures of a host where none is stated: a year."""

LEAST_S = 1e-3
"""Shortest time that a copy counts as, for its interval."""

Note = Callable[[str], None]


class Problem(IntEnum):
    """Why a rank has no copy of a generation; the ranks agree on the largest."""

    NONE = 0
    TRANSFER = 1
    NO_ROOM = 2


@dataclass(frozen=True)
class Terms:
    """What is copied, and when, as the plan has it.

    Attributes:
        schedule: of the copies.
        partners: other hosts that have a copy.
        options, limits, sizes: of the plan, for the next world.
        mtbf_s: mean time between failures of a host, in seconds.
        partner_bytes_s: rate at which a rank sends to partners, at most.
    """

    schedule: Schedule
    partners: int
    options: Mapping[str, Any]
    limits: Limits
    sizes: tuple[int, ...]
    mtbf_s: float = MTBF_S
    partner_bytes_s: float = math.inf


class Copies:
    """The copies of one process; its methods are called on all ranks of a world together.

    Args:
        places: the keepers of the job, in their ring.
        host: number of this rank's keeper among them.
        life, block: of :class:`~dmr.memory.piece.Generation`.
        clock: monotonic seconds, of rank 0.
        note: prints a line, on rank 0.
    """

    def __init__(
        self,
        places: Sequence[Place],
        host: int,
        life: int,
        block: int,
        terms: Terms,
        clock: Callable[[], float],
        note: Note,
    ) -> None:
        self.life, self.block, self.terms = life, block, terms
        self._clock, self._note = clock, note
        self.be_at(places, host)
        self._sender = Sender(Pace(terms.partner_bytes_s))
        self._keeper: Keeper | None = None
        self._world: World | None = None
        self._files: list[PieceFile] = []
        self._next = 0
        self._taken: Generation | None = None
        self._begun_s: float | None = None
        self._cost_s = 0.0
        self._noted: set[str] = set()
        self._stopped = False
        self.nbytes = 0

    # --- the world --------------------------------------------------------------------------------

    def be_at(self, places: Sequence[Place], host: int) -> None:
        """Use these keepers from the next world on, ``host`` as that of this rank."""
        self.places, self._place = places, places[host]
        shifts = partner_shifts(len(places), self.terms.partners)
        self._partners = [places[(host + shift) % len(places)] for shift in shifts]

    def connect(self) -> None:
        """Let this rank's keeper know of it; from now on the rank ends if that gives it up.

        Raises:
            KeeperError: the keeper cannot be reached.
        """
        self._keeper = keeper = Keeper(self._place)

        def wait() -> None:
            keeper.hold(self.life)
            if self._keeper is not None:
                WATCH.abandon(
                    f"expected the keeper of {self._place.host}, which has ended or given this "
                    "world up"
                )

        threading.Thread(target=wait, name="dmr-keeper", daemon=True).start()

    def enter(self, world: World, generation: int, fields: Mapping[str, Distributed]) -> None:
        """Copy this world from now on, first at a resize point soon.

        A thread gets the pages of the memory meanwhile. Pieces of the world before stay until this
        one has a generation.

        Args:
            generation: of the world.
            fields: of this rank.
        """
        self._release()
        self._world, self._taken, self._begun_s, self._stopped = world, None, None, False
        name = f"{world.rank}-{self.life}-{self.block}-{generation}"
        paths = [self._place.folder / f"{name}-{turn}{SUFFIX}" for turn in range(2)]
        self._next = 0
        parts = {key: part.carried() for key, part in moving(fields).items()}
        self.nbytes = layout(parts, SPARE_BYTES)[2]

        try:
            with Keeper(self._place) as keeper:
                for path in paths:
                    keeper.make(path.name)
            self._files = files = [PieceFile(path) for path in paths]
        except (KeeperError, NoRoomError, OSError) as error:  # the keeper is gone
            self._stopped = True
            self._note(f"note: no copies in memory: {words_of(error)}")
            return
        nbytes = self.nbytes

        def prepare() -> None:
            for file in files:
                file.reserve(nbytes)

        self._sender.do(prepare)

    def close(self) -> None:
        """End the copies; the pieces stay for the next world."""
        keeper, self._keeper = self._keeper, None
        self._release()
        self._sender.close()
        if keeper is not None:
            keeper.shut()

    def _release(self) -> None:
        self._sender.drop()
        for file in self._files:
            file.close()
        self._files.clear()

    def restore(self, world: World, fields: Mapping[str, Distributed]) -> Restored:
        """Fill the fields from the newest whole generation, as :func:`restore` does."""
        options = self.terms.options
        restored = restore(self.places, self._place, self.block, world, fields, options)
        generation = restored.generation
        if generation is not None:
            # Here at once: the memory of what goes is for the copies of this world.
            with contextlib.suppress(KeeperError, NoRoomError), Keeper(self._place) as keeper:
                keeper.keep(generation, only=True)
            if world.rank == 0:
                self._sender.keep(self.places, generation, only=True)
        return restored

    # --- at a resize point ------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Whether this is rank 0, and the ranks have not agreed yet that a copy is complete."""
        return self._taken is not None and self._world is not None and self._world.rank == 0

    def is_due(self, step: int) -> bool:
        """Return whether rank 0 is to have a copy taken."""
        if self._world is None or self._world.rank or self._stopped:
            return False
        if self._begun_s is None or self.terms.schedule.due(step):
            return True
        every_s = self._every_s
        return bool(every_s) and self._clock() - self._begun_s >= every_s

    @property
    def _every_s(self) -> float:
        """Seconds between two copies, by the time of the one before where that is automatic."""
        every_s = self.terms.schedule.every_s
        if every_s == AUTO:
            return interval_s(max(self._cost_s, LEAST_S), self.terms.mtbf_s / len(self.places))
        return every_s

    @property
    def state(self) -> tuple[int, int]:
        """Whether this rank still works on its newest copy, and the :class:`Problem` with it."""
        return int(self._sender.busy), int(self._sender.problem)

    def agreed(self, due: int, busy: int, problem: int) -> bool:
        """Take note of the largest values of all ranks; return whether they take a copy now."""
        if busy or self._stopped:
            return False
        generation, self._taken = self._taken, None
        if generation is not None and problem == Problem.NONE:
            self._confirm(generation)
        elif problem == Problem.NO_ROOM or generation is not None:
            self._fail(Problem(problem))
        return bool(due) and not self._stopped

    def _confirm(self, generation: Generation) -> None:
        """Every rank has this generation twice: the older one may go."""
        self._next = 1 - self._next
        if self._world is not None and self._world.rank == 0:
            self._sender.keep(self.places, generation)
            count = len(self._partners)
            where = f"2 at each of {count} partner hosts" if count else "none on another host"
            self._say_once(
                f"copies in memory: {self._mib} a rank and generation; 2 on its host, {where}"
            )
            if self.terms.schedule.every_s == AUTO and AUTO not in self._noted:
                self._noted.add(AUTO)
                self._note(
                    f"a copy in memory took {self._cost_s:.3g} s, and is taken every "
                    f"{self._every_s:.3g} s"
                )

    def _fail(self, problem: Problem) -> None:
        why = self._sender.why
        if problem == Problem.NO_ROOM:
            self._stopped = True
            for file in self._files:
                file.close(unlink=True)
            self._files.clear()
            self._say_once(
                f"note: no copies in memory: expected room for {self._mib} a rank and generation"
                f"{': ' + why if why else ', got less on a host'}; the run goes on without"
            )
        else:
            self._say_once(f"note: a copy in memory is not complete{': ' + why if why else ''}")

    @property
    def _mib(self) -> str:
        return f"{self.nbytes / 2**20:.1f} MiB"

    def _say_once(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            self._note(text)

    def skip(self) -> None:
        """Take note that the program refuses a copy at this step."""
        self._begun_s = self._clock()

    def take(self, fields: Mapping[str, Distributed], progress: Progress) -> None:
        """Copy this rank's blocks into shared memory; a thread does the rest.

        Args:
            progress: with merged values on rank 0.
        """
        world = self._world
        if world is None:
            raise RuntimeError("expected a world to copy, got none")
        self._begun_s = begun_s = self._clock()
        self._taken = Generation(self.block, progress.step, self.life, progress.generation)
        try:
            job = self._copy(world, self._taken, fields, progress)
        except NoRoomError as error:
            self._sender.fail(Problem.NO_ROOM, str(error))
        except (ValuesError, BrokenPieceError, OSError) as error:
            self._sender.fail(Problem.TRANSFER, words_of(error))
        else:
            self._sender.send(job)
        self._cost_s = self._clock() - begun_s

    def _copy(
        self,
        world: World,
        generation: Generation,
        fields: Mapping[str, Distributed],
        progress: Progress,
    ) -> Transfer:
        edges = {name: part.edges for name, part in fields.items() if part.edges}
        signature = {name: part.spec.signature() for name, part in fields.items()}
        parts = {name: part.carried() for name, part in moving(fields).items()}
        encoded = encode(progress) if world.rank == 0 else b""
        blocks, at, end = layout(parts, len(encoded))
        piece = Piece(generation, world.rank, world.size, blocks)
        if world.rank == 0:
            terms = self.terms
            options = dict(terms.options)
            piece.job = Job(
                offset=at,
                nbytes=len(encoded),
                digest=digest(encoded),
                options=options,
                ranks=world.size,
                limits=terms.limits,
                sizes=terms.sizes,
                signature=signature,
                edges=edges,
            )
        length = len(msgspec.json.encode(piece))  # that of the description with all hashes
        self.nbytes = end + length
        file = self._files[self._next]
        memory = file.reserve(self.nbytes)
        for name, block in blocks.items():
            nbytes = block.box.size * block.itemsize
            raw = np.frombuffer(memory, np.uint8, nbytes, block.offset)
            parts[name].store_into(raw.view(parts[name].dtype).reshape(block.shape))
        memory[at:end] = encoded
        return Transfer(file, memory, piece, end, self._partners)


def moving(fields: Mapping[str, Distributed]) -> dict[str, Distributed]:
    """Return the fields that are copied: constant ones are made again by every set of ranks."""
    return {name: part for name, part in fields.items() if not part.spec.constant}


# --- the thread that hashes and sends ---------------------------------------------------------


@dataclass(frozen=True)
class Transfer:
    """A copy whose head is not written yet.

    Attributes:
        file, memory: of it.
        piece: its description, without hashes.
        end: offset of the description.
        partners: keepers that it is sent to.
    """

    file: PieceFile
    memory: memoryview
    piece: Piece
    end: int
    partners: Sequence[Place]

    def seal(self) -> bytes:
        """Hash the blocks, and write the description and the head; return the description."""
        for name, block in self.piece.blocks.items():
            hashes = [digest(self.memory[at : at + count]) for at, count in block.chunks()]
            self.piece.blocks[name] = msgspec.structs.replace(block, digests=hashes)
        description = msgspec.json.encode(self.piece)
        self.file.seal(self.end, description)
        return description


class Sender:
    """A thread that finishes copies, one at a time.

    Args:
        pace: of what it sends.

    Attributes:
        busy: whether it has work on the newest copy.
        problem, why: what has gone wrong with that.
    """

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self.busy, self.problem, self.why = False, Problem.NONE, ""
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._keepers: dict[Place, Keeper] = {}
        self._serial = 0
        self._thread = threading.Thread(target=self._run, name="dmr-copies", daemon=True)
        self._thread.start()

    def send(self, transfer: Transfer) -> None:
        """Finish a copy."""
        serial = self._serial + 1

        def before(nbytes: int) -> None:
            if serial != self._serial:
                raise KeeperError("the world of the copy has ended")
            self._pace.wait(nbytes)

        self.do(lambda: self._finish(transfer, before))

    def do(self, action: Callable[[], None]) -> None:
        """Do something, and be busy until it is done."""
        self._serial += 1
        serial = self._serial
        self.busy, self.problem, self.why = True, Problem.NONE, ""

        def work() -> None:
            problem, why = Problem.NONE, ""
            try:
                if serial == self._serial:
                    action()
            except NoRoomError as error:
                problem, why = Problem.NO_ROOM, str(error)
            except (KeeperError, BrokenPieceError, OSError) as error:
                problem, why = Problem.TRANSFER, str(error)
            if serial == self._serial:
                self.problem, self.why, self.busy = problem, why, False

        self._work.put(work)

    def fail(self, problem: Problem, why: str) -> None:
        """Take note of a copy that could not be begun."""
        self._serial += 1
        self.busy, self.problem, self.why = False, problem, why

    def keep(self, places: Sequence[Place], generation: Generation, *, only: bool = False) -> None:
        """Let keepers know that a generation is complete."""

        def work() -> None:
            for place in places:
                with contextlib.suppress(KeeperError, NoRoomError):  # it keeps more than it must
                    self._to(place).keep(generation, only=only)

        self._work.put(work)

    def drop(self) -> None:
        """Forget the newest copy: its world has ended."""
        self._serial += 1
        self.busy, self.problem, self.why = False, Problem.NONE, ""

    def close(self) -> None:
        """End the thread, also while it sends."""
        self._serial += 1
        self._work.put(None)
        for keeper in list(self._keepers.values()):
            keeper.shut()
        self._thread.join(REQUEST_S)

    def _finish(self, transfer: Transfer, before: Callable[[int], None]) -> None:
        description = transfer.seal()
        name = transfer.file.path.name
        for place in transfer.partners:
            try:
                keeper = self._to(place)
                data = transfer.memory[HEAD_BYTES : transfer.end]
                keeper.put(name, data, description, before)
            except KeeperError:
                self._forget(place)
                raise

    def _to(self, place: Place) -> Keeper:
        if place not in self._keepers:
            self._keepers[place] = Keeper(place)
        return self._keepers[place]

    def _forget(self, place: Place) -> None:
        keeper = self._keepers.pop(place, None)
        if keeper is not None:
            keeper.close()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
        for place in list(self._keepers):
            self._forget(place)


# --- restore ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Restored:
    """The result of :func:`restore`.

    Attributes:
        progress: of the generation that the fields are filled from; None for none.
        generation: that one.
        lost: whether there were copies of this block, none of which is whole any more.
        silent: why a keeper does not answer, if there is no whole generation without it; else "".
    """

    progress: Progress | None
    generation: Generation | None
    lost: bool
    silent: str = ""


def restore(
    places: Sequence[Place],
    own: Place,
    block: int,
    world: World,
    fields: Mapping[str, Distributed],
    options: Mapping[str, Any],
) -> Restored:
    """Fill the fields from the newest whole generation of a block (collective).

    Args:
        places: the keepers of the job.
        own: the keeper of this rank's host.

    Raises:
        UsageError: the program has other fields or options than its copies.
    """
    comm = world.internal_comm
    held, kept, silent = comm.bcast(listed(places) if world.rank == 0 else None)
    held = [one for one in held if one.piece.generation.block == block]
    held.sort(key=lambda one: one.place != own)  # this host's first
    for generation in whole(one.piece for one in held):
        pieces = [one for one in held if one.piece.generation == generation]
        progress, broken = _fill(pieces, own, world, fields, options)
        if all(problem is None for problem in comm.allgather(broken)):
            return Restored(progress, generation, lost=False)
    return Restored(None, None, kept is not None and kept.block == block, silent)


def _fill(
    held: Sequence[Held],
    own: Place,
    world: World,
    fields: Mapping[str, Distributed],
    options: Mapping[str, Any],
) -> tuple[Progress | None, str | None]:
    """Fill this rank's fields; return the progress, or None and why it cannot be done."""
    firsts = [(one, one.piece.job) for one in held if one.piece.job is not None]
    job = next(job for _, job in firsts if job is not None)
    wanted = {name: part.spec.signature() for name, part in fields.items()}
    for name in sorted({*wanted, *job.signature}):
        stored, here = job.signature.get(name), wanted.get(name)
        if json.loads(json.dumps(here)) != stored:
            raise UsageError(f"copies in memory: expected field {name} of {stored}, got {here}")
    check_options(options, job.options, "copies in memory")
    pieces = Pieces(held, own)
    progress, broken = None, None
    try:
        with pieces:
            parts = moving(fields)
            fill(parts, pieces.index(parts, job.edges), pieces.read)
            progress = pieces.progress()
    except (BrokenPieceError, BrokenCheckpointError, KeeperError) as error:
        broken = str(error)
    except ValuesError as error:
        raise UsageError(f"copies in memory: {error}") from None
    return progress, broken


class Pieces:
    """The pieces of one generation, of which each may be at several keepers.

    Args:
        own: the keeper of this host, whose files are read without it.
    """

    def __init__(self, held: Sequence[Held], own: Place) -> None:
        self._own = own
        self._by_rank: dict[int, list[Held]] = {}
        for one in held:
            self._by_rank.setdefault(one.piece.rank, []).append(one)
        self._own_pieces: dict[str, memoryview] = {}
        self._keepers: dict[Place, Keeper] = {}
        self._gone: set[Place] = set()
        self._dtypes: dict[str, np.dtype[Any]] = {}

    def __enter__(self) -> Pieces:
        return self

    def __exit__(self, *_: object) -> None:
        for keeper in self._keepers.values():
            keeper.close()

    def index(self, fields: Mapping[str, Distributed], edges: Mapping[str, Any]) -> Index:
        """Return where the cells of all fields are."""
        index = Index("", dict(edges), {})
        for name, own in fields.items():
            self._dtypes[name] = own.dtype
            blocks = {
                rank: copies[0].piece.blocks[name]
                for rank, copies in sorted(self._by_rank.items())
                if name in copies[0].piece.blocks
            }
            boxes = own.spec.extents_in_checkpoint([block.box for block in blocks.values()])
            index.fields[name] = [
                Part(str(rank), box, 0, "") for rank, box in zip(blocks, boxes, strict=True)
            ]
        return index

    def progress(self) -> Progress:
        """Return the progress of the generation."""
        for one in self._by_rank[0]:
            job = one.piece.job
            with contextlib.suppress(BrokenPieceError, KeeperError, NoRoomError):
                if job is not None:
                    data = self._get(one, job.offset, job.nbytes)
                    if digest(data) == job.digest:
                        return decode(bytes(data), trusted=True)
        raise BrokenPieceError("the progress does not have its hash")

    def read(self, name: str, part: Part, extent: Box, wanted: Box) -> Iterator[tuple[Box, Array]]:
        """Yield the wanted cells of a field in one piece, as :mod:`dmr.checkpoint.format` does."""
        copies = self._by_rank[int(part.file)]
        block = copies[0].piece.blocks[name]
        axis = block.order[0]
        first = extent.start[axis]
        number = (wanted.start[axis] - first) // block.rows
        begin = first + number * block.rows
        for at in range(begin, wanted.stop[axis], block.rows):
            box = extent.cut(axis, at, min(at + block.rows, extent.stop[axis]))
            values = self._chunk(copies, name, number)
            number += 1
            shared = box.intersect(wanted)
            yield shared, values[shared.slices(box.start)]

    def _chunk(self, copies: Sequence[Held], name: str, number: int) -> Array:
        """Return the cells of a chunk from the first copy that has it whole."""
        why = ""
        for one in copies:
            block: Block = one.piece.blocks[name]
            at = block.offset + number * block.rows * block.row_bytes
            rows = min(block.rows, block.shape[0] - number * block.rows)
            try:
                data = self._get(one, at, rows * block.row_bytes)
                return cells_of(data, block, number, self._dtypes[name])
            except (BrokenPieceError, KeeperError, NoRoomError, ValueError) as error:
                why = f"{one.place.host}: {error}"
        raise BrokenPieceError(f"field {name} of rank {copies[0].piece.rank}: {why}")

    def _get(self, one: Held, offset: int, nbytes: int) -> memoryview | bytearray:
        place = one.place
        if place == self._own:
            if one.name not in self._own_pieces:
                try:
                    with (place.folder / one.name).open("rb") as file:
                        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                except (OSError, ValueError) as error:  # ValueError: it is empty
                    raise BrokenPieceError(words_of(error)) from None
                self._own_pieces[one.name] = memoryview(memory)
            return self._own_pieces[one.name][offset : offset + nbytes]
        if place in self._gone:
            raise KeeperGoneError(f"the keeper of {place.host} does not answer")
        try:
            if place not in self._keepers:
                self._keepers[place] = Keeper(place)
            return self._keepers[place].get(one.name, offset, nbytes)
        except KeeperError:
            self._gone.add(place)
            raise


# --- entering a run ---------------------------------------------------------------------------


def own_place(places: Sequence[Place], host: str) -> int | None:
    """Return the number of the keeper of this host, by its name or its folder; None for none."""
    here = [at for at, place in enumerate(places) if place.folder.is_dir()]
    return next((at for at in here if places[at].host == host), next(iter(here), None))
