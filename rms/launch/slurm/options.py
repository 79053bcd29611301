"""Which of a user's own ``#SBATCH`` options reach Slurm, and how. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_RMS_OPTIONS = """
--array --batch --begin --chdir --contiguous --dependency --distribution --error --exclude
--exclusive --export --export-file --get-user-env --hold --immediate --input --job-name
--kill-on-invalid-dep --no-kill --no-requeue --nodefile --nodelist --nodes --ntasks
--ntasks-per-core --ntasks-per-node --ntasks-per-socket --open-mode --output --oversubscribe
--overcommit --parsable --quiet --requeue --share --signal --spread-job --test-only --time
--time-min --uid --use-min-nodes --verbose --version --wait --wrap
-B -D -F -H -I -N -O -Q -V -W -a -b -d -e -h -i -J -k -m -n -o -s -t -v -w -x
"""
RMS_OPTIONS = frozenset(_RMS_OPTIONS.split())
"""What the RMS decides itself, or what would contradict it."""

_DONOR_OPTIONS = "--partition -p --account -A --qos -q --reservation --constraint -C --wckey"
DONOR_OPTIONS = frozenset(_DONOR_OPTIONS.split())
"""What a donor of nodes must have in common with the job they are for."""

VARIABLES = frozenset(
    f"SBATCH_{name}"
    for name in ("ACCOUNT", "CONSTRAINT", "PARTITION", "QOS", "RESERVATION", "WCKEY")
)
"""Of a user's environment, what says where jobs may run."""


def sbatch_options(own: Sequence[str], partition: str = "") -> list[str]:
    """Return those of a script's own options that sbatch gets.

    Args:
        own: one word each, as :func:`rms.formats.jobscript.parse_script` has them.
        partition: where it is to run if it names none, "" for Slurm's own choice.
    """
    found = [word for word in own if _name(word) not in RMS_OPTIONS]
    if partition and not partition_of(own):
        found.append(f"--partition={partition}")
    return found


def donor_options(own: Sequence[str], partition: str = "") -> list[str]:
    """Return those that salloc gets for a donor."""
    return [word for word in sbatch_options(own, partition) if _name(word) in DONOR_OPTIONS]


def partition_of(own: Sequence[str]) -> str:
    """Return the partition that a script asks for, "" for none."""
    for word in reversed(own):
        found = re.fullmatch(r"(?:--partition=|-p)(.+)", word)
        if found:
            return found[1]
    return ""


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return a job's environment without what would steer sbatch, a site's accounts aside."""
    return {
        key: value
        for key, value in env.items()
        if key in VARIABLES or not key.startswith(("SLURM_", "SBATCH_"))
    }


def _name(word: str) -> str:
    return word.partition("=")[0] if word.startswith("--") else word[:2]
