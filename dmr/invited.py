"""Why a world was booted while another one runs, and how it answers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from dmr.client import RETRY_S, Manager
from dmr.line import Door, Line, LineError, Refused, call
from rms.protocol import DOOR_VARIABLE, JOIN_VARIABLE, WORLD_VARIABLE, Failed, Ready, Report
from rms.transport import UnreachableError

CALL_S = 10.0
PATIENCE_S = 600.0
"""A world that nobody has called by then leaves: its daemon may be gone for good."""


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
        door, number = env.get(DOOR_VARIABLE, ""), env.get(JOIN_VARIABLE, "")
        if not door and not number:
            return None
        return cls(int(number or 0), int(env.get(WORLD_VARIABLE, "0")), door)

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
        """Rank 0: say that this world cannot take over, before it has met the old one."""
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
