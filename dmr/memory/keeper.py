"""The keeper of a host: a small process that holds pieces in shared memory and outlives the ranks.

``python -m dmr.memory.keeper NAME --silent S`` prints one line, ``NAME=ADDRESS=FOLDER``, and serves
requests over TCP; both sides of a connection authenticate by the token in the address
(:mod:`dmr.wire.channel`). It uses no MPI. The ranks of its host write their pieces themselves, into
memory that it makes and names in its folder; ranks of other hosts send theirs. A keeper that an RMS
ends has no supervisor: it ends itself once no rank has run here for ``--alone S``. Requests::

    request   from                      answer
    Hold      a rank, for as long as    nothing; the connection ends once the supervisor has given
              it runs                   up its world, or is gone: then the rank ends itself
    List      a new world, supervisor   the description of every whole piece
    Get       a new world               bytes of a piece
    Make      a rank of its host        Done: there is memory of that name
    Put       a rank of another host    Done once the piece is whole here
    Keep      rank 0                    Done; pieces that are older and not in use are removed
    Beat      supervisor                Pulse; the keeper ends itself if none comes in time
    End       supervisor                Done; the folder is removed
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import itertools
import math
import os
import re
import resource
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, NoReturn

import msgspec

from dmr.memory.piece import (
    HEAD_BYTES,
    SUFFIX,
    BrokenPieceError,
    Generation,
    NoRoomError,
    Piece,
    PieceFile,
    give_name,
    new_memory,
    read_description,
)
from dmr.memory.steps import Steps, forget, steps_of
from dmr.wire.channel import LENGTH, ChannelError, ControlChannel, Listener, PeerGoneError, connect

SHARED = Path("/dev/shm")
"""Where Linux has shared memory; elsewhere the keeper uses the folder of temporary files."""

PREFIX = "dmr-keeper-"
RECEIVED = "received-"
"""How the names of pieces begin that ranks of other hosts have sent."""

NAME = re.compile(rf"[\w.-]+{re.escape(SUFFIX)}")

OWN = re.compile(rf"(?:{RECEIVED})?\d+-(\d+)-\d+-(\d+)-\d{re.escape(SUFFIX)}")
"""Names of the files of ranks, also of those that are received, with their life and world."""

REQUEST_S = 5.0
"""Timeout of a request and of its answer."""

TRANSFER_S = 20.0
"""Timeout of the next bytes of a piece, and of a partner that makes room for one."""

SEND_BYTES = 1 << 20
"""Bytes of a piece that are sent together: the kernel's copy of them stays in the caches."""

ORPHAN = 2.0
"""A keeper ends itself once its supervisor has been silent for so many times its limit."""

LOOK_S = 0.2
"""Interval at which a keeper checks that it is still needed."""

LEAVE_S = 2.0
"""Time for the ranks of a world that was given up to end."""


# --- the messages ---------------------------------------------------------------------------------


class Hold(msgspec.Struct, tag=True):
    """A rank of a world runs here; ``life`` is that of :class:`~dmr.memory.piece.Generation`."""

    life: int


class List(msgspec.Struct, tag=True):
    """Request for the pieces."""


class Get(msgspec.Struct, tag=True):
    """Request for bytes of a file."""

    name: str
    offset: int
    nbytes: int


class Make(msgspec.Struct, tag=True):
    """Request for memory that a rank of this host maps by its name in the folder."""

    name: str


class Put(msgspec.Struct, tag=True):
    """A piece follows: ``data_bytes`` of it from the end of the head on."""

    name: str
    data_bytes: int
    description: bytes


class Keep(msgspec.Struct, tag=True):
    """Every rank has a piece of ``generation``: older ones may go.

    Attributes:
        only: whether newer ones of the same block go as well: a world has just started from it.
    """

    generation: Generation
    only: bool = False


class Beat(msgspec.Struct, tag=True):
    """The supervisor runs; ranks of an earlier ``life`` are to end."""

    life: int


class End(msgspec.Struct, tag=True):
    """The job has ended."""


Request = Hold | List | Get | Make | Put | Keep | Beat | End


class Entry(msgspec.Struct):
    """A piece in the folder of a keeper."""

    name: str
    piece: Piece


class Listed(msgspec.Struct, tag=True):
    """Answer to :class:`List`; ``kept`` is the newest generation of :class:`Keep`."""

    entries: list[Entry]
    kept: Generation | None


class Done(msgspec.Struct, tag=True):
    """The request is done; ``nbytes`` follow."""

    nbytes: int = 0


class Pulse(msgspec.Struct, tag=True):
    """Answer to :class:`Beat`.

    Attributes:
        entered: whether a rank of this life has entered its block here.
        kept: the newest generation of :class:`Keep`.
        steps: how far the ranks of this life have come; None before their first step.
    """

    entered: bool
    kept: Generation | None
    steps: Steps | None = None


class Failed(msgspec.Struct, tag=True):
    """The request cannot be done, for lack of room or for another reason; one sentence."""

    why: str
    no_room: bool = False


Answer = Listed | Done | Pulse | Failed

_requests, _answers = msgspec.json.Decoder(Request), msgspec.json.Decoder(Answer)


def _send(channel: ControlChannel, message: Request | Answer) -> None:
    body = msgspec.json.encode(message)
    channel.write(LENGTH.pack(len(body)) + body)


def _receive(channel: ControlChannel, decoder: msgspec.json.Decoder[Any], wait_s: float) -> Any:
    until = time.monotonic() + wait_s
    (length,) = LENGTH.unpack(channel.read(LENGTH.size, until, wait_s))
    return decoder.decode(channel.read(length, until, wait_s))


# --- the side of ranks and of the supervisor ----------------------------------------------------


@dataclass(frozen=True)
class Place:
    """Where a keeper is: name of its host, address for connections, folder on that host."""

    host: str
    address: str
    folder: Path

    def __str__(self) -> str:
        return f"{self.host}={self.address}={self.folder}"


def places_of(text: str) -> list[Place]:
    """Return the keepers of ``DMR_KEEPERS``, in their ring.

    Raises:
        ValueError: it is another text.
    """
    places = []
    for word in text.split():
        host, _, rest = word.partition("=")
        address, _, folder = rest.partition("=")
        if not host or address.count(":") < 2 or not folder:
            raise ValueError(f"expected HOST=ADDRESS=FOLDER of a keeper, got {word!r}")
        places.append(Place(host, address, Path(folder)))
    return places


class KeeperError(Exception):
    """A keeper cannot be reached, or does not do what it is requested to; one sentence."""


class KeeperGoneError(KeeperError):
    """The process of a keeper has ended."""


class Pace:
    """Spreads what is sent over time.

    Args:
        bytes_s: bytes per second, at most; ``math.inf`` for no limit.
        clock: monotonic seconds.
        sleep: waits for so many seconds.
    """

    def __init__(
        self,
        bytes_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.bytes_s, self._clock, self._sleep = bytes_s, clock, sleep
        self._free_s = -math.inf

    def wait(self, nbytes: int) -> None:
        """Wait until the time of the bytes before is over, and count these."""
        now_s = self._clock()
        if now_s < self._free_s:
            self._sleep(self._free_s - now_s)
        self._free_s = max(now_s, self._free_s) + nbytes / self.bytes_s


class Keeper:
    """A connection to a keeper, a context manager that closes it."""

    def __init__(self, place: Place, wait_s: float = REQUEST_S) -> None:
        self.place = place
        with self._errors():
            self._channel = connect(place.address, wait_s)

    def hold(self, life: int) -> None:
        """Let the keeper know that a rank runs, and return once it is to end."""
        with contextlib.suppress(ChannelError):
            _send(self._channel, Hold(life))
            self._channel.readable_within(None)

    def list(self) -> Listed:
        """Return the whole pieces of this keeper."""
        listed: Listed = self._request(List(), Listed)
        return listed

    def get(self, name: str, offset: int, nbytes: int) -> bytearray:
        """Return bytes of a piece."""
        done = self._request(Get(name, offset, nbytes), Done)
        data = bytearray(done.nbytes)
        with self._errors():
            self._channel.read_into(memoryview(data), TRANSFER_S)
        return data

    def make(self, name: str) -> None:
        """Make memory for pieces of a rank of this host."""
        self._request(Make(name), Done)

    def put(
        self,
        name: str,
        data: memoryview,
        description: bytes,
        before: Callable[[int], None] = lambda nbytes: None,
    ) -> None:
        """Send a piece.

        Args:
            data: of the piece, without its head.
            before: called with the number of bytes that are sent next.

        Raises:
            NoRoomError: the keeper has no room for it.
        """
        with self._errors():
            _send(self._channel, Put(name, len(data), description))
            self._answer(Done, TRANSFER_S)  # there is room
            for at in range(0, len(data), SEND_BYTES):
                part = data[at : at + SEND_BYTES]
                before(len(part))
                self._channel.write(part)
            self._answer(Done, TRANSFER_S)

    def keep(self, generation: Generation, *, only: bool = False) -> None:
        """Have older pieces removed; ``only`` as in :class:`Keep`."""
        self._request(Keep(generation, only), Done)

    def beat(self, life: int, wait_s: float) -> Pulse:
        """Let the keeper know that the supervisor runs, and with which world."""
        pulse: Pulse = self._request(Beat(life), Pulse, wait_s)
        return pulse

    def end(self) -> None:
        """End the keeper."""
        self._request(End(), Done)

    def _request(self, message: Request, kind: type[Any], wait_s: float = REQUEST_S) -> Any:
        with self._errors():
            _send(self._channel, message)
            return self._answer(kind, wait_s)

    def _answer(self, kind: type[Any], wait_s: float) -> Any:
        answer = _receive(self._channel, _answers, wait_s)
        if isinstance(answer, Failed):
            raise (NoRoomError if answer.no_room else KeeperError)(answer.why)
        if not isinstance(answer, kind):
            raise KeeperError(f"expected {kind.__name__} of {self._name}, got {answer}")
        return answer

    @property
    def _name(self) -> str:
        return f"the keeper of {self.place.host}"

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except PeerGoneError:
            raise KeeperGoneError(f"{self._name} has ended") from None
        except (ChannelError, msgspec.DecodeError) as error:
            raise KeeperError(f"{self._name} does not answer ({error})") from None

    def shut(self) -> None:
        """End the connection, also while another thread waits in :meth:`hold`."""
        self._channel.shut()

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def __enter__(self) -> Keeper:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class Held:
    """A piece, and a keeper that has it."""

    place: Place
    name: str
    piece: Piece


class Inventory(NamedTuple):
    """What several keepers hold.

    Attributes:
        held: all pieces.
        kept: the newest generation of :class:`Keep`.
        silent: why one of them does not answer; "" if all do.
    """

    held: list[Held]
    kept: Generation | None
    silent: str


def listed(places: Sequence[Place]) -> Inventory:
    """Return what the keepers that answer hold."""
    held: list[Held] = []
    kept: list[Generation] = []
    silent = ""
    for place in places:
        try:
            with Keeper(place) as keeper:
                answer = keeper.list()
        except KeeperError as error:
            silent = str(error)
            continue
        held += [Held(place, entry.name, entry.piece) for entry in answer.entries]
        kept += [] if answer.kept is None else [answer.kept]
    return Inventory(held, max(kept, default=None), silent)


# --- the folder ---------------------------------------------------------------------------------


def base_folder() -> Path:
    """Return the folder of shared memory."""
    return SHARED if SHARED.is_dir() else Path(tempfile.gettempdir())


def make_folder(base: Path) -> tuple[Path, int]:
    """Make a keeper's folder, and lock it; return it and its descriptor.

    The lock ends with this process; :func:`sweep` of another keeper then removes the folder.
    """
    while True:
        folder = base / f"{PREFIX}{secrets.token_hex(4)}"
        folder.mkdir(mode=0o700)
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # another keeper has swept it
            continue
        fcntl.flock(handle, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):  # swept before it was locked
            if folder.stat().st_ino == os.fstat(handle).st_ino:
                return folder, handle
        os.close(handle)


def sweep(base: Path) -> list[Path]:
    """Remove the folders of this user's keepers that were killed; return them."""
    swept = []
    for folder in base.glob(f"{PREFIX}*"):
        try:
            if folder.lstat().st_uid != os.geteuid():
                continue
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
            swept.append(folder)
        except BlockingIOError:
            pass
        finally:
            os.close(handle)
    return swept


# --- the process ----------------------------------------------------------------------------------


class Server:
    """Serves the requests to the keeper of this host, each connection in a thread.

    Args:
        folder: of the pieces.
        listener: for connections.
        orphan_s: time without a supervisor after which the keeper ends itself.
        supervised: whether there is a supervisor; without one a rank counts in its place.
    """

    def __init__(
        self, folder: Path, listener: Listener, orphan_s: float, *, supervised: bool = True
    ) -> None:
        self.folder, self.listener, self.orphan_s = folder, listener, orphan_s
        self.supervised = supervised
        self._ended = threading.Event()
        self._lock = threading.Lock()  # of the lines below
        self._beat_at = time.monotonic()
        self._life, self._entered = 0, -1
        self._kept: Generation | None = None
        self._ranks: dict[ControlChannel, tuple[int, threading.Event]] = {}
        self._numbers = itertools.count()
        self._made: dict[str, int] = {}  # memory of ranks by name
        self._received: dict[str, PieceFile] = {}
        self._spare: list[int] = []  # memory of ranks that have died, for the next world

    def serve(self) -> None:
        """Serve until the job has ended, or its supervisor is gone."""
        while not self._ended.is_set():
            with self._lock:
                if self._ranks and not self.supervised:
                    self._beat_at = time.monotonic()
                silent_s = time.monotonic() - self._beat_at
            if silent_s > self.orphan_s:
                break
            self._close_removed()
            with contextlib.suppress(ChannelError):
                channel = self.listener.accept(LOOK_S)
                threading.Thread(target=self._talk, args=(channel,), daemon=True).start()
        self._give_up(sys.maxsize)

    def _talk(self, channel: ControlChannel) -> None:
        """Answer the requests of one connection."""
        with channel:
            while True:
                try:
                    channel.readable_within(None)
                    request = _receive(channel, _requests, REQUEST_S)
                    if isinstance(request, Hold):
                        self._hold(channel, request.life)
                        return
                    self._answer(channel, request)
                except NoRoomError as error:
                    with contextlib.suppress(ChannelError):
                        _send(channel, Failed(str(error), no_room=True))
                except (BrokenPieceError, OSError, ValueError, msgspec.MsgspecError) as error:
                    with contextlib.suppress(ChannelError):
                        _send(channel, Failed(str(error)))
                    return
                except ChannelError:
                    return

    def _answer(self, channel: ControlChannel, request: Request) -> None:
        match request:
            case List():
                _send(channel, Listed(self._entries(), self._kept))
            case Get():
                self._give(channel, request)
            case Make():
                self._make(request.name)
                _send(channel, Done())
            case Put():
                self._take(channel, request)
            case Keep():
                self._keep(request)
                _send(channel, Done())
            case Beat():
                self._beat(request.life)
                steps = steps_of(self.folder, request.life)
                _send(channel, Pulse(self._entered == request.life, self._kept, steps))
            case End():
                self._ended.set()
                _send(channel, Done())

    # --- ranks and the supervisor ---

    def _hold(self, channel: ControlChannel, life: int) -> None:
        gone = threading.Event()
        with self._lock:
            self._entered = max(self._entered, life)
            if life < self._life or self._ended.is_set():
                return
            self._ranks[channel] = life, gone
        try:
            channel.readable_within(None)  # the rank sends nothing: its end
        finally:
            gone.set()
            with self._lock:
                del self._ranks[channel]

    def _beat(self, life: int) -> None:
        with self._lock:
            self._beat_at = time.monotonic()
            given_up = life > self._life
            self._life = max(self._life, life)
        if given_up:
            self._give_up(life)
            forget(self.folder, life)
        with self._lock:
            self._beat_at = time.monotonic()

    def _give_up(self, life: int) -> None:
        """End the ranks of earlier lives, and wait until they have ended."""
        with self._lock:
            ranks = [(channel, gone) for channel, (own, gone) in self._ranks.items() if own < life]
        for channel, _ in ranks:
            channel.end_sending()
        until = time.monotonic() + LEAVE_S
        for _, gone in ranks:
            gone.wait(max(0.0, until - time.monotonic()))

    # --- pieces ---

    def _entries(self) -> list[Entry]:
        entries = []
        for path in sorted(self.folder.glob(f"*{SUFFIX}")):
            with contextlib.suppress(BrokenPieceError):
                entries.append(Entry(path.name, read_description(path)[0]))
        return entries

    def _path(self, name: str) -> Path:
        if not NAME.fullmatch(name):
            raise ValueError(f"expected the name of a piece, got {name!r}")
        return self.folder / name

    def _give(self, channel: ControlChannel, request: Get) -> None:
        with self._path(request.name).open("rb") as file:
            file.seek(request.offset)
            data = file.read(request.nbytes)
        _send(channel, Done(len(data)))
        for at in range(0, len(data), SEND_BYTES):
            channel.write(data[at : at + SEND_BYTES])

    def _memory(self, path: Path) -> int:
        """Return memory, that of an earlier world if there is some: its pages are there."""
        with self._lock:
            if self._spare:
                memory = self._spare.pop()
                os.pwrite(memory, bytes(HEAD_BYTES), 0)
                return memory
        return new_memory(path)

    def _make(self, name: str) -> None:
        path = self._path(name)
        memory = self._memory(path)
        with self._lock:
            older = self._made.pop(name, None)
            self._made[name] = memory
            give_name(path, memory)
        if older is not None:
            os.close(older)

    def _close_removed(self) -> None:
        """Close the memory whose name a rank has removed."""
        with self._lock:
            gone = [name for name in self._made if not os.path.lexists(self.folder / name)]
            for name in gone:
                os.close(self._made.pop(name))

    def _take(self, channel: ControlChannel, request: Put) -> None:
        """Receive a piece, which gets its name once it is whole.

        It replaces an older one of this name, and takes its memory: new memory costs more than the
        transfer.
        """
        end, final = HEAD_BYTES + request.data_bytes, self._path(RECEIVED + request.name)
        part = self.folder / f"{next(self._numbers)}.part"
        with self._lock:
            older = self._received.pop(final.name, None)
            if older is not None:
                older.move(part)
        file = PieceFile(part, self._memory(part)) if older is None else older
        try:
            memory = file.reserve(end + len(request.description))
            _send(channel, Done())
            channel.read_into(memory[HEAD_BYTES:end], TRANSFER_S)
            file.seal(end, request.description)
            with self._lock:
                file.move(final)
                other, self._received[final.name] = self._received.get(final.name), file
        except BaseException:
            file.close(unlink=True)
            raise
        if other is not None:  # of a connection that was given up
            other.close()
        _send(channel, Done())

    def _keep(self, request: Keep) -> None:
        """Remove what is older than a generation, but for files that ranks of it still use.

        Where a world has just started from it, its ranks get the memory: new pages cost time. No
        rank of an earlier world may run then, which could still write there.
        """
        kept = request.generation
        with self._lock:
            self._kept = kept if self._kept is None else max(self._kept, kept)
            if request.only:
                self._kept = kept
            again = request.only and all(life == self._entered for life, _ in self._ranks.values())
        for path in self.folder.glob(f"*{SUFFIX}"):
            own = OWN.fullmatch(path.name)
            world = (kept.life, kept.world) if own is None else (int(own[1]), int(own[2]))
            in_use = own is not None and world >= (kept.life, kept.world) and not request.only
            try:
                one = read_description(path)[0].generation
                old = one < kept or (request.only and one != kept and one.block == kept.block)
            except BrokenPieceError:  # its writer was killed, or still writes
                old = world < (kept.life, kept.world)
            if old and not in_use:
                with self._lock:
                    file = self._received.pop(path.name, None)
                    memory = self._made.pop(path.name, None) if file is None else file.released()
                    path.unlink(missing_ok=True)
                    if memory is not None:
                        self._spare.append(memory)
        if not again:
            with self._lock:
                spare, self._spare = self._spare, []
            for memory in spare:
                os.close(memory)


def main(words: Sequence[str] | None = None) -> int:
    """Keep pieces until the job ends."""
    parser = argparse.ArgumentParser(prog="dmr.memory.keeper")
    parser.add_argument("host", help="its name, by which ranks and other keepers reach it")
    parser.add_argument("--silent", type=float, default=5.0, help="limit of the supervisor, s")
    parser.add_argument("--alone", type=float, help="limit without ranks, with no supervisor, s")
    parser.add_argument("--base", type=Path, default=base_folder(), help="parent of its folder")
    arguments = parser.parse_args(words)

    def end(number: int, frame: FrameType | None) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # another one would interrupt the removal
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the supervisor
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a few for each rank
    folder, handle = make_folder(arguments.base)
    try:
        sweep(arguments.base)
        listener = Listener(arguments.host)
        print(Place(arguments.host, listener.address, folder), flush=True)
        alone_s, orphan_s = arguments.alone, ORPHAN * arguments.silent
        supervised = alone_s is None
        Server(
            folder, listener, orphan_s if alone_s is None else alone_s, supervised=supervised
        ).serve()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
