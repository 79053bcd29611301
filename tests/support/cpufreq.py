"""Files like those by which the kernel tells of frequencies and takes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from processes import until

from rms.formats import profiles
from rms.formats.profiles import Machine, Point, Profile, Program
from rms.power import frequency
from rms.power.frequency import CPUFREQ_VARIABLE as CPUFREQ_VARIABLE

MHZ = (800, 1000, 1500, 2000)


def tree(folder: Path, policies: Mapping[int, Sequence[int]]) -> Path:
    """Make policies, each of the cores that have one frequency together, 800 to 2000 MHz."""
    for policy, cores in policies.items():
        place = folder / f"policy{policy}"
        place.mkdir(parents=True)
        for name, text in (
            ("related_cpus", " ".join(map(str, cores))),
            ("scaling_available_frequencies", " ".join(str(mhz * 1000) for mhz in MHZ)),
            ("scaling_min_freq", "800000"),
            ("scaling_max_freq", "2000000"),
            ("cpuinfo_min_freq", "800000"),
            ("cpuinfo_max_freq", "2000000"),
        ):
            (place / name).write_text(f"{text}\n")
    return folder


@contextmanager
def restored_here(_: object, policies: Sequence[Path], __: object) -> Iterator[None]:
    """Put back what is found, as the process that does so would, without starting it."""
    found = {policy: frequency.limits_of(policy) for policy in policies}
    yield
    for policy, each in found.items():
        frequency.set_limits(policy, *each)


def found_again(folder: Path) -> None:
    """Wait until all is as it was made: a process puts that back, a moment after another's end."""
    until(lambda: set(limits(folder)) == {(MHZ[0], MHZ[-1])}, "frequencies were not put back")


def profile_of(path: Path, best: int) -> Path:
    """Write the profile of a program that needs least energy at so many MHz."""
    points = [
        Point(1, "separate", (time_s,), (time_s * mhz / 50.0,), "model", mhz=mhz_set)
        for mhz, mhz_set in [(MHZ[-1], None), *((mhz, float(mhz)) for mhz in MHZ)]
        for time_s in (100.0 if mhz >= best else 400.0,)
    ]
    program, machine = Program(("prog",), "f" * 64), Machine("a processor", 2)
    profiles.write(path, Profile("p", program, machine, tuple(points)))
    return path


def limits(folder: Path) -> list[tuple[int, int]]:
    """Return the least and largest frequency of each policy, MHz."""

    def limit(policy: Path, end: str) -> int:
        return int((policy / f"scaling_{end}_freq").read_text() or -1000) // 1000

    return [(limit(p, "min"), limit(p, "max")) for p in sorted(folder.glob("policy*"))]
