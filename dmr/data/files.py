"""State that is a file, which the application writes and reads.

The bytes are a list on rank 0, so they move, are hashed, are checkpointed and are copied in memory
as those of any list. Where they are needed as a file, each node gets one, in memory.
"""

from __future__ import annotations

import mmap
import os
import secrets
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from mpi4py import MPI

from dmr.data.decomposition import Decomposition
from dmr.data.distributed import Array, StoredPieces
from dmr.data.particles import ANYWHERE, Items, ListSpec
from dmr.errors import outside_block, raise_on_all, words_of
from dmr.system.watch import WATCH

LEAST_FREE_BYTES = 1 << 30
"""Of ``/dev/shm``; where it has less, files are in the folder of temporary files (``TMPDIR``)."""

PART_BYTES = 16 << 20
"""Bytes of a broadcast."""

REMOVE = 'read _; rm -rf -- "$1"'
"""Script of a shell that removes a folder once its input ends, as it does when a process dies."""

REMOVE_S = 30.0
"""Timeout of the removal of a folder."""


class File(ListSpec):
    """State of the application, or of a library, that is a file::

        restart = dmr.File(
            write=lambda path: lmp.command(f"write_restart {path}"),
            read=lambda path: lmp.command(f"read_restart {path}"),
        )
        with dmr.malleable(comm, state={"melt": restart}) as run:

    Attributes:
        write: ``write(path)`` is called on all ranks before a resize, a checkpoint and a copy in
            memory, after ``save``, with one path. The file there, on the node of rank 0, travels.
        read: ``read(path)`` is called on all ranks of a world that goes on, after ``build`` and
            before ``load``, with one path. Each node has the file there until all ranks return.

    The path is in memory (``/dev/shm``), or among the temporary files where less than 1 GiB is
    free. Its folder is removed after each call, also if the ranks are killed.
    """

    write: Callable[[str], object]
    read: Callable[[str], object]

    def __init__(self, write: Callable[[str], object], read: Callable[[str], object]) -> None:
        super().__init__(
            (ANYWHERE,), np.uint8, lambda box: np.empty(0, np.uint8), split=(0,), owner=_first
        )
        object.__setattr__(self, "write", write)
        object.__setattr__(self, "read", read)

    def block(self, decomposition: Decomposition, rank: int) -> FileBytes:
        """Return a rank's part, empty."""
        return FileBytes(self, decomposition, rank)


def _first(items: Array, decomposition: Decomposition) -> Array:
    return np.zeros(len(items), np.int64)


class FileBytes(Items):
    """The bytes of a file, on rank 0 from :meth:`update` until :meth:`release`."""

    spec: File
    ordered = True

    def update(self) -> None:
        """Have the application write the file; take its bytes (collective).

        Raises:
            UsageError: on all ranks together: there is no file, or an empty one.
        """
        comm = self._joined()
        with _folder(comm) as (folder, _):
            path = folder / "state"
            self.spec.write(str(path))
            problem = None
            with WATCH.within("a file of the state", patient=True):
                comm.Barrier()
                if comm.rank == 0:
                    try:
                        self.items = _mapped(path)
                    except (OSError, ValueError) as error:
                        problem = (
                            "expected write(path) to make a file with bytes on the node of rank "
                            f"0, got {words_of(error)}"
                        )
            raise_on_all(comm, problem)

    def deliver(self) -> None:
        """Have the application read the file, from one copy on each node (collective).

        Raises:
            UsageError: on all ranks together: a node has no room for the file.
        """
        comm = self._joined()
        with _folder(comm) as (folder, is_maker):
            path = folder / "state"
            with WATCH.within("a file of the state", patient=True):
                problem = self._put_on_nodes(comm, path if is_maker else None)
            raise_on_all(comm, problem)
            self.spec.read(str(path))
            with WATCH.within("a file of the state", patient=True):
                comm.Barrier()
        self.release()

    def release(self) -> None:
        """Free the memory of the bytes."""
        self.items = self.none()

    def _joined(self) -> MPI.Intracomm:
        if self.comm is None:
            raise outside_block("dmr.File")
        return self.comm

    def _put_on_nodes(self, comm: MPI.Intracomm, path: Path | None) -> str | None:
        """Broadcast the bytes to the ranks with a path, which write them; return a problem."""
        takes = path is not None or comm.rank == 0
        makers = comm.Split(0 if takes else MPI.UNDEFINED, comm.rank)
        if makers == MPI.COMM_NULL:
            return None
        problem = None
        nbytes = makers.bcast(len(self.items))
        try:
            file = None if path is None else path.open("wb")
        except OSError as error:
            file, problem = None, words_of(error)
        for at in range(0, nbytes, PART_BYTES):
            count = min(PART_BYTES, nbytes - at)
            part = self.items[at : at + count] if makers.rank == 0 else np.empty(count, np.uint8)
            makers.Bcast(part)
            WATCH.restart()  # the timeout applies to each part
            if file is not None and problem is None:
                try:
                    file.write(part.data)
                    file.flush()
                except OSError as error:
                    problem = words_of(error)
        if file is not None:
            file.close()
        makers.Free()
        return problem and f"expected room for a file of {nbytes >> 20} MiB in memory: {problem}"

    # --- the list: all bytes are on rank 0 --------------------------------------------------------

    def parts(self, decomposition: Decomposition) -> dict[int, Array]:
        """Return the bytes by their rank, which is the first."""
        return {0: self.items} if len(self.items) else {}

    def keep(self, old: Items) -> int:
        """Take the bytes if they stay on this rank; return how many (merge)."""
        self._before = old
        mine = old.items if self.rank == 0 else self.none()
        self._kept[self.rank] = mine
        return int(mine.nbytes)

    def restore(self, read: StoredPieces) -> None:
        """Take the bytes of a checkpoint, on rank 0."""
        pieces = [values.copy() for _, values in read(None)] if self.rank == 0 else []
        self.items = np.concatenate([self.none(), *pieces])


def _mapped(path: Path) -> Array:
    """Return the bytes of a file, which stay when it is removed."""
    with path.open("rb") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)


@contextmanager
def _folder(comm: MPI.Intracomm) -> Iterator[tuple[Path, bool]]:
    """Give a new folder of one path on every node, and whether this rank has made it (collective).

    Of the ranks that share a folder one makes it. A shell removes it when this block ends, or the
    process.

    Raises:
        UsageError: on all ranks together: a node has no such folder.
    """
    path = Path(comm.bcast(str(_place() / f"dmr-{secrets.token_hex(8)}")))
    problem, remover = None, None
    try:
        try:
            path.mkdir(0o700)
            remover = subprocess.Popen(
                ["/bin/sh", "-c", REMOVE, "sh", str(path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={"PATH": os.defpath},
                cwd="/",
                start_new_session=True,
            )
        except FileExistsError:
            pass
        except OSError as error:
            problem = f"expected a folder {path.parent} for files, got {words_of(error)}"
        raise_on_all(comm, problem)
        yield path, remover is not None
    finally:
        if remover is not None:
            remover.communicate(timeout=REMOVE_S)


def _place() -> Path:
    """Return the folder for files: in memory, if there is room."""
    shared = Path("/dev/shm")
    if os.access(shared, os.W_OK | os.X_OK):
        status = os.statvfs(shared)
        if status.f_bavail * status.f_frsize >= LEAST_FREE_BYTES:
            return shared
    return Path(tempfile.gettempdir())
