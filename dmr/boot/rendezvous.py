"""Why a world was booted while another one runs, and how it answers."""

from __future__ import annotations

import atexit
import contextlib
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType

import msgspec

from dmr.wire.channel import Door, Line, LineError, Refused, call
from dmr.wire.rms import RETRY_S, Manager
from rms.wire.http import UnreachableError
from rms.wire.messages import (
    JOIN_VARIABLE,
    LISTENER_VARIABLE,
    WORLD_VARIABLE,
    Failed,
    Ready,
    Report,
)

CALL_S = 10.0
PATIENCE_S = 600.0
"""A world that nobody has called by then leaves: its daemon may be gone for good."""

_heard = threading.Event()
"""Set when the old world hears from this process by other ways, or has heard why it does not."""


@dataclass(frozen=True)
class Invited:
    """How this world meets the old one.

    Attributes:
        number: the RMS's wish that it was booted for, 0 where the old world started it.
        launch: number of its launch.
        door: where the old world that started it listens, or "".
    """

    number: int
    launch: int
    door: str

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Invited | None:
        """Return what the launcher says, None for the first world of a job."""
        door, number = env.get(LISTENER_VARIABLE, ""), env.get(JOIN_VARIABLE, "")
        if not door and not number:
            return None
        return cls(int(number or 0), int(env.get(WORLD_VARIABLE, "0")), door)

    def watch(self, rank: int, manager: Manager | None) -> None:
        """Have the old world told if the program fails or ends before it reaches dmr.run."""
        if _heard.is_set() or getattr(sys.excepthook, "tells", False):
            return
        usual = sys.excepthook

        def tell(
            kind: type[BaseException], error: BaseException, trace: TracebackType | None
        ) -> None:
            usual(kind, error, trace)
            if not _heard.is_set():
                self.refuse(f"rank {rank}: {kind.__name__}: {error}", manager)

        def ended() -> None:
            if not _heard.is_set():
                self.refuse("its program ended before it reached dmr.run", manager)

        tell.tells = True  # type: ignore[attr-defined]
        sys.excepthook = tell
        if rank == 0:
            atexit.register(ended)

    @staticmethod
    def reached() -> None:
        """From now on dmr.run speaks for this process."""
        _heard.set()

    def meet(self, manager: Manager | None, port: str) -> Line:
        """Rank 0: say that this world is ready; return the line once the old one is on it.

        Raises:
            LineError: the old world does not come.
        """
        if self.door:
            return call(self.door, CALL_S)
        if manager is None:
            raise LineError("expected an RMS that booted this world, got none")
        door = Door(manager.host)
        try:
            _post(manager, Ready(self.number, self.launch, door.address, port))
            return door.wait(PATIENCE_S)
        finally:
            door.close()

    def refuse(self, why: str, manager: Manager | None) -> None:
        """Say that this world cannot take over, before it has met the old one."""
        _heard.set()
        with contextlib.suppress(LineError):
            if self.door:
                with call(self.door, CALL_S) as line:
                    line.send(Refused(why))
            elif manager is not None:
                _post(manager, Failed(self.number, self.launch, why), CALL_S)


def _post(manager: Manager, report: Report, patience_s: float = PATIENCE_S) -> None:
    """Tell the RMS something, however long it takes it to be back."""
    until = time.monotonic() + patience_s
    while True:
        try:
            manager.post("report", msgspec.json.encode(report))
            return
        except UnreachableError as error:
            if time.monotonic() > until:
                raise LineError(str(error)) from None
            time.sleep(RETRY_S)
