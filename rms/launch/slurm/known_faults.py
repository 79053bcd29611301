"""Known faults of Slurm that hit jobs which change their nodes, by version.

The sources are Slurm's changelogs and commits (SchedMD/slurm), issues of others, and this project's
tests on ``scripts/cluster``.
"""

from __future__ import annotations

from dataclasses import dataclass

Version = tuple[int, ...]


@dataclass(frozen=True)
class KnownFault:
    """A fault of a range of versions.

    Attributes:
        fault: what happens.
        since: the first version that has it.
        mended: the first version without it, of each branch that has one; () if none has.
        advice: what a site does about it.
        plugins: the selection plugins that it needs, () for any.
        parameter: a word of SlurmctldParameters that it needs, "" for none.
    """

    fault: str
    since: Version
    mended: tuple[Version, ...]
    advice: str
    source: str
    plugins: tuple[str, ...] = ()
    parameter: str = ""

    def affects(self, version: Version) -> bool:
        """Return whether a version has the fault."""
        branch = version[:2]
        if version < self.since or any(branch == m[:2] and version >= m for m in self.mended):
            return False
        return not self.mended or branch <= max(self.mended)[:2]

    @property
    def versions(self) -> str:
        """The versions as text: ``23.11.7; mended in 23.11.8, 24.05.0``."""
        end = f"mended in {', '.join(map(as_text, self.mended))}" if self.mended else "not mended"
        return f"since {as_text(self.since)}; {end}"


def as_text(version: Version) -> str:
    """Return a version as Slurm writes it: ``24.05.0``."""
    major, *rest = version
    return ".".join([str(major), *(f"{part:02d}" for part in rest[:1]), *map(str, rest[1:])])


CONS_TRES = ("select/cons_tres",)

KNOWN_FAULTS = (
    KnownFault(
        "a step is denied the rest of its nodes, as srun takes them exclusively",
        (20, 11, 0),
        ((20, 11, 3),),
        "upgrade, or set SLURM_WHOLE=1",
        "NEWS of Slurm 20.11.3; open-mpi/ompi#8354",
    ),
    KnownFault(
        "a job shrinks once only, and accounting mixes up the times of its resizes",
        (20, 11, 0),
        ((21, 8, 2),),
        "upgrade, or use the pilot",
        "NEWS of Slurm 21.08.2; SchedMD/slurm b648ffb8, 4751bd02",
    ),
    KnownFault(
        "slurmctld accesses foreign memory when a job with running steps shrinks",
        (20, 11, 0),
        ((21, 8, 7),),
        "upgrade, or use the pilot",
        "NEWS of Slurm 21.08.7; SchedMD/slurm 893a8c30",
    ),
    KnownFault(
        "slurmctld crashes at the end of a step with --overlap and a GRES without a file",
        (20, 11, 0),
        ((22, 5, 0),),
        "upgrade, or request no such GRES",
        "NEWS of Slurm 22.05.0; SchedMD/slurm 672cce83",
    ),
    KnownFault(
        "after a node of a --no-kill allocation fails, later steps cannot use some of the others",
        (20, 11, 0),
        ((23, 2, 3),),
        "upgrade, or start the pilot anew after a node has failed",
        "NEWS of Slurm 23.02.3; SchedMD/slurm 782d1c19",
    ),
    KnownFault(
        "slurmctld crashes at scontrol reconfigure after a job was resized",
        (23, 2, 3),
        ((23, 2, 7), (23, 11, 1)),
        "upgrade, or reconfigure only while no resized job runs",
        "changelogs of Slurm 23.02.7 and 23.11.1; SchedMD/slurm b9dd7c4a",
    ),
    KnownFault(
        "slurmctld crashes MinJobAge after the end of a job that was shrunk",
        (23, 11, 7),
        ((23, 11, 8), (24, 5, 0)),
        "upgrade, or use the pilot",
        "changelogs of Slurm 23.11.8 and 24.05.0; SchedMD/slurm 6cadfd72",
        CONS_TRES,
    ),
    KnownFault(
        "the last record of a job that was shrunk begins at the job's start, not at the shrink, so"
        " that sacct and sreport count its time twice",
        (24, 11, 0),
        ((26, 5, 0),),
        "use rms acct for the time of such jobs",
        "measured: 24.11.5 has it, 22.05.8 and 26.05.5 have not",
    ),
    KnownFault(
        "with enable_stepmgr, new steps may be placed on nodes that a job gave back",
        (24, 5, 0),
        ((26, 5, 0),),
        "unset enable_stepmgr in SlurmctldParameters",
        "SchedMD/slurm 80f78d39, c6e234b4",
        parameter="enable_stepmgr",
    ),
    KnownFault(
        "nodes merged into a job that ends in the same moment stay allocated, the job COMPLETING",
        (22, 5, 0),
        (),
        "restart slurmctld, which ends no job; rms merges only into jobs that it sees RUNNING",
        "measured on 22.05.8, 24.11.5 and 26.05.5",
        CONS_TRES,
    ),
)
