"""A daemon on host login of ``scripts/cluster``, for nodes that a remote shell reaches."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from cluster_hosts import Cluster, command_line
from daemon import DEADLINE_S, POWER, Rms
from processes import BIN, RMS, ROOT, program

from rms.launch.processes import children

MPDATA = " ".join([*program("paced"), str(ROOT / "mpdata" / "__main__.py")])
SMALL = "--case random --grid 24 20 8 --backend numpy --every 2"
STEPS = 300


class HostsRms(Rms):
    """A daemon of ``rms serve --reach ssh`` with the nodes of a cluster."""

    at = "login"

    def __init__(self, cluster: Cluster, *options: str) -> None:
        self.cluster = cluster
        super().__init__(*options)

    def prepare(self) -> None:
        self.file = self.folder / "hosts.toml"
        nodes = self.cluster.record["nodes"]
        self.file.write_text(f'name = "h"\n[[nodes]]\nname = "n[1-{nodes}]"\npower = {POWER}\n')

    def words(self) -> list[str]:
        """Return the command of the daemon and its options."""
        return ["serve", "--cluster", str(self.file), "--reach", "ssh"]

    def variables(self) -> list[str]:
        """Return more variables of the daemon, and its search path."""
        return [f"PATH={BIN}:{os.environ['PATH']}"]

    def serve_command(self) -> list[str]:
        words = [*self.words(), "--state", str(self.state), *self._options]
        own = [f"PYTHONPATH={ROOT}", *self.variables()]
        return self.cluster.command(self.at, "env", *own, *RMS, *words)

    def daemon(self) -> int:
        """Return the process of the daemon, which is a child of the command that runs it."""
        assert self.process is not None
        (pid,) = children(self.process.pid)
        return pid

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        os.kill(self.daemon(), number)
        return self.process.wait(DEADLINE_S)

    def surroundings(self) -> str:
        log = self.state / "agents.log"
        return log.read_text() if log.exists() else ""

    def up(self, *hosts: str) -> None:
        """Wait until these nodes, and no others, are up."""

        def those() -> bool:
            states = {row["name"]: row["state"] for row in self.get("/nodes")}
            return {name for name, state in states.items() if "down" not in state} == set(hosts)

        self.until(those, f"{hosts} up")

    def mpdata(self, *more: str, pace_s: float = 0.02, steps: int = STEPS) -> str:
        """Return a launcher line of a run that takes its time until there is a file ``go``."""
        return f"PACE_S={pace_s:g} mpirun {MPDATA} run {SMALL} --steps {steps} {' '.join(more)}"


PILOT = """\
#!/bin/sh
#$ -S /bin/sh -V -cwd -j y -o {log} -pe mpi {hosts} -l h_rt={limit_s}
exec {words}
"""


class GridEngineRms(HostsRms):
    """A daemon of ``rms pilot`` in a job of Grid Engine."""

    def __init__(self, cluster: Cluster, hosts: int, *options: str, limit_s: int = 600) -> None:
        self.hosts, self.limit_s = hosts, limit_s
        super().__init__(cluster, *options)

    def prepare(self) -> None:
        self.printed = self.folder / "pilot.log"

    def serve_command(self) -> list[str]:
        own = [f"PYTHONPATH={ROOT}", f"PATH={Path(RMS[0]).parent}:$PATH", *RMS, "pilot"]
        words = " ".join(["env", *own, "--state", str(self.state), *self._options])
        script = self.folder / "pilot.sh"
        script.write_text(
            PILOT.format(log=self.printed, hosts=self.hosts, limit_s=self.limit_s, words=words)
        )
        return self.cluster.command(self.at, "qsub", "-sync", "y", str(script))

    def said(self) -> str:
        printed = self.printed.read_text() if self.printed.exists() else ""
        return super().said() + printed

    def daemon(self) -> int:
        state = str(self.state).encode()
        lines = {
            int(path.name): command_line(int(path.name)) for path in Path("/proc").glob("[0-9]*")
        }
        (pid,) = (pid for pid, line in lines.items() if state in line and b"pilot\0" in line)
        return pid

    def close(self) -> None:
        self.cluster.run(self.at, "qdel", "-u", "*")
        super().close()


STAND_IN = """\
#!/bin/sh
echo "${{0##*/}} $1" >> {calls}
{line}
"""


class PbsRms(HostsRms):
    """A daemon of ``rms pilot`` on n1, with the environment and commands of a job of PBS.

    The commands are stand-ins, which record what they are called with: pbs_tmrsh is ssh, and qstat
    prints a text in the form of ``qstat -f`` (written by hand).
    """

    at = "n1"

    def prepare(self) -> None:
        self.calls, self.hosts, self.stand_ins = (
            self.folder / name for name in ("calls", "hosts", "bin")
        )
        nodes = range(1, self.cluster.record["nodes"] + 1)
        self.hosts.write_text("".join(f"n{node}\n" for node in nodes))
        self.stand_ins.mkdir()
        printed = ROOT / "tests" / "cluster" / "pbs_qstat.txt"
        for name, line in (("pbs_tmrsh", 'exec ssh "$@"'), ("qstat", f"cat {printed}")):
            command = self.stand_ins / name
            command.write_text(STAND_IN.format(calls=self.calls, line=line))
            command.chmod(0o755)

    def variables(self) -> list[str]:
        path = f"PATH={self.stand_ins}:{BIN}:{os.environ['PATH']}"
        return [path, f"PBS_NODEFILE={self.hosts}", "PBS_JOBID=7.ctl"]

    def words(self) -> list[str]:
        return ["pilot"]
