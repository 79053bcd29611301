"""The meters of a node: those that the user chooses, or all that can be read."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path

from rms.power.meter import Ladder, Meter, MeterError, NodeMeter

POWERCAP = Path("/sys/class/powercap")
POWERCAP_VARIABLE = "RMS_POWERCAP"
"""Environment variable that names another folder than the kernel's, for tests."""

DRIVER = Path("/dev/nvidiactl")
RAPL = "rapl"
REPLAY = "replay:"

GPUS = ("nvml", "nvidia-smi")
"""Meters of GPUs, the best first."""


@dataclass(frozen=True)
class MeterChoice:
    """The meters that are read.

    Attributes:
        command: a program of the user's that prints readings, "" for none.
        most_w: bound of the power of a device; None for twice its limit.
    """

    names: tuple[str, ...] = ()
    auto: bool = True
    command: str = ""
    most_w: float | None = None

    @classmethod
    def parse(
        cls, text: str, command: str | None = None, most_w: float | None = None
    ) -> MeterChoice:
        """Read ``auto``, ``none``, or names of meters separated by commas.

        Raises:
            MeterError: an unknown meter, a missing recording, an empty command, or a bound that is
                not a positive power.
        """
        if most_w is not None and not 0.0 < most_w < inf:
            raise MeterError(f"expected a --meter-limit above 0 W, got {most_w:g}")
        if command is not None and not command.strip():
            raise MeterError(f"expected a command that prints readings, got {command!r}")
        command = command or ""
        if text in ("auto", "none"):
            return cls((), text == "auto", command, most_w)
        names: list[str] = []
        for name in text.split(","):
            if name.startswith(REPLAY):
                file = Path(name.removeprefix(REPLAY)).absolute()
                from rms.power.command import ReplayMeter

                ReplayMeter(file).open()
                names.append(f"{REPLAY}{file}")
            elif name == RAPL or name in GPUS:
                names.append(name)
            else:
                meters = ", ".join((RAPL, *GPUS))
                raise MeterError(
                    f"expected meters auto, none, or names of {meters}, {REPLAY}FILE, got {name!r}"
                )
        return cls(tuple(names), False, command, most_w)

    def check_command(self) -> None:
        """Refuse a command whose program the shell does not find."""
        program = re.match(r"[\w./+-]+(?=\s|$)", self.command.strip())
        if program is not None and shutil.which(program[0]) is None:
            find = ["/bin/sh", "-c", 'command -v "$1"', "sh", program[0]]  # a word of the shell
            if "/" in program[0] or subprocess.run(find, stdout=subprocess.DEVNULL).returncode:
                expected = "a --meter-command that can be started"
                raise MeterError(f"expected {expected}, got {self.command!r}: no {program[0]}")

    @property
    def none(self) -> bool:
        """Whether nothing is read: the model is used for all."""
        return not (self.auto or self.names or self.command)

    @property
    def arguments(self) -> list[str]:
        """The options of an agent for this choice."""
        names = "auto" if self.auto else ",".join(self.names) or "none"
        command = ["--meter-command", self.command] if self.command else []
        limit = [] if self.most_w is None else ["--meter-limit", f"{self.most_w:g}"]
        return ["--meters", names, *command, *limit]

    def worth_starting(self, env: Mapping[str, str]) -> bool:
        """Return whether an agent may find meters on this machine."""
        if not self.auto or self.command:
            return not self.none
        return has_gpus(env) or any(_powercap(env).glob("intel-rapl*:*"))

    def open(self, env: Mapping[str, str]) -> NodeMeter:
        """Return this machine's meters; a command comes first, for the devices that it names."""
        from rms.power.command import Command, ReplayMeter
        from rms.power.nvidia_smi import Devices
        from rms.power.nvml import Nvml
        from rms.power.rapl import Rapl

        ladders: list[list[Meter]] = []
        if self.command:
            ladders.append([Command(self.command)])
        ladders += [
            [ReplayMeter(Path(name.removeprefix(REPLAY)))]
            for name in self.names
            if name.startswith(REPLAY)
        ]
        if self.auto or RAPL in self.names:
            ladders.append([Rapl(_powercap(env), most_w=self.most_w)])
        gpus, makers = self.auto and has_gpus(env), zip(GPUS, (Nvml, Devices), strict=True)
        ladders.append(
            [make(most_w=self.most_w) for name, make in makers if gpus or name in self.names]
        )
        return NodeMeter([Ladder(ladder) for ladder in ladders if ladder], self.most_w)


AUTO = MeterChoice()
NONE = MeterChoice(auto=False)


def has_gpus(env: Mapping[str, str]) -> bool:
    """Return whether this machine has NVIDIA's driver or its program."""
    return DRIVER.exists() or shutil.which("nvidia-smi", path=env.get("PATH")) is not None


def _powercap(env: Mapping[str, str]) -> Path:
    return Path(env.get(POWERCAP_VARIABLE) or POWERCAP)
