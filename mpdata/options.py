"""What scheme is run, and on which boundaries."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

from mpdata.errors import InputError

KINDS = ("periodic", "open", "wall", "fixed", "pole")

EPSILON = {4: 2.0**-23, 8: 2.0**-52}
"""Machine epsilon, by item size."""

SMALLEST = {4: 2.0**-126, 8: 2.0**-1022}
"""Smallest normal number, by item size: values below it have no relative precision."""

ROUND_OFF = 4096
"""Largest value of the opposite sign that counts as round-off, in units in the last place of the
largest value. A run leaves less than one unit of its initial largest value, which may be a thousand
times the largest value of its result. Where psi has left the domain, values below :data:`SMALLEST`
remain, which count as round-off too."""

LARGEST = {
    "ratios": {4: 1e12, 8: 1e100},
    "infinite gauge": {4: 1e18, 8: 1e150},
    "upwind": {4: 1e37, 8: 1e307},
}
"""Largest |psi| by item size: products of three sums (two, one) must not overflow."""


@dataclass(frozen=True)
class Boundary:
    """What lies outside the grid at one end of an axis.

    ``periodic``: the other end. ``open``: psi and h of the nearest cell. ``wall``: the same,
    and no flux through it. ``fixed``: psi is ``value``, the rest as open. ``pole``: the cells
    of the same latitude on the other side of the pole (axis 1 is latitude, axis 0 longitude).
    """

    kind: str
    value: float = 0.0

    def __str__(self) -> str:
        return f"fixed:{self.value!r}" if self.kind == "fixed" else self.kind


class BoundaryPair(NamedTuple):
    """The boundaries at the lower and the upper end of an axis."""

    low: Boundary
    high: Boundary

    @property
    def periodic(self) -> bool:
        """Whether the axis is periodic: then both ends are."""
        return self.low.kind == "periodic"

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}/{self.high}"


Boundaries = tuple[BoundaryPair, BoundaryPair, BoundaryPair]

LONGITUDE, LATITUDE = 0, 1
"""The axes of a grid with poles."""


def with_outside(boundaries: Boundaries, low: float, high: float) -> tuple[float, float]:
    """Return the range of a field and of its fixed boundary values."""
    outside = [end.value for pair in boundaries for end in pair if end.kind == "fixed"]
    return min([low, *outside]), max([high, *outside])


def polar(grid: tuple[int, int, int], boundaries: Boundaries) -> bool:
    """Return whether a grid reaches a pole: one with a latitude of one cell does not."""
    return grid[LATITUDE] > 1 and any(end.kind == "pole" for end in boundaries[LATITUDE])


def check_poles(grid: tuple[int, int, int], boundaries: Boundaries) -> None:
    """Refuse poles at the ends of another axis than latitude, or without whole circles around.

    Raises:
        InputError: there are such poles.
    """
    for axis, pair in enumerate(boundaries):
        if axis != LATITUDE and any(end.kind == "pole" for end in pair):
            raise InputError(
                f"expected poles along axis 1 only (axis 0 longitude, axis 1 latitude), got "
                f"{pair} along axis {axis}"
            )
    if not polar(grid, boundaries):
        return
    around, along = grid[LONGITUDE], boundaries[LONGITUDE]
    if not along.periodic or around % 2:
        raise InputError(
            f"expected a periodic axis 0 of an even number of cells with a pole along axis 1, "
            f"got {along} and {around} cells"
        )


def parse_boundaries(text: str, axes: int = 3) -> Boundaries:
    """Read ``B`` or ``B,B,B``, each B for both ends of an axis or, as ``LOW/HIGH``, one for each.

    An end is periodic, open, wall, fixed:VALUE or pole; a periodic axis has no other end. Of fewer
    axes the others, of one cell, are periodic.

    Raises:
        InputError: other text.
    """
    parts = [_parse_pair(part) for part in text.split(",")]
    if len(parts) == 1:
        parts *= axes
    if len(parts) != axes:
        number = {1: "", 2: " or two", 3: " or three"}[axes]
        raise InputError(f"expected one boundary{number}, got {len(parts)} in {text!r}")
    periodic = Boundary("periodic")
    parts += [BoundaryPair(periodic, periodic)] * (3 - axes)
    return parts[0], parts[1], parts[2]


def _parse_pair(text: str) -> BoundaryPair:
    ends = [_parse_end(end) for end in text.split("/")]
    if len(ends) > 2:
        raise InputError(f"expected one boundary or LOW/HIGH for an axis, got {text!r}")
    pair = BoundaryPair(ends[0], ends[-1])
    if "periodic" in (pair.low.kind, pair.high.kind) and pair.low != pair.high:
        raise InputError(f"expected both ends of an axis periodic or none, got {text!r}")
    return pair


def _parse_end(text: str) -> Boundary:
    kind, _, value = text.strip().partition(":")
    if kind == "fixed":
        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        if not isfinite(number):
            raise InputError(f"expected a number in fixed:VALUE, got {text!r}")
        return Boundary("fixed", number)
    if kind not in KINDS or value:
        raise InputError(
            f"expected a boundary of periodic, open, wall, fixed:VALUE, pole, got {text!r}"
        )
    return Boundary(kind)


@dataclass(frozen=True)
class Scheme:
    """The options of MPDATA.

    Attributes:
        iterations: donor-cell passes; 1 is upwind, 2 the basic scheme.
        limiter: the non-oscillatory option (no effect on one pass).
        infinite_gauge: the scheme linearised about an infinite background: psi may change sign.
        third_order: the third-order terms.
        divergent_flow: the term for flows whose face values do not balance in every cell.
    """

    iterations: int = 2
    limiter: bool = True
    infinite_gauge: bool = False
    third_order: bool = False
    divergent_flow: bool = False

    def __post_init__(self) -> None:
        if self.iterations not in (1, 2, 3):
            raise InputError(f"expected 1 to 3 iterations, got {self.iterations}")

    @property
    def passes(self) -> int:
        """Donor-cell passes that are computed.

        In the infinite gauge a third one vanishes: its velocity is of the order 1 / a^2 for a
        background a, its flux of the order 1 / a.
        """
        return min(self.iterations, 2) if self.infinite_gauge else self.iterations

    @property
    def halo(self) -> int:
        """Cells of psi needed around a block for one exchange a step.

        Every pass needs one cell more, a limited corrective pass two: its betas look at the
        faces and extrema of the neighbouring cells. So 1; 2 or 3 limited; 3 or 5 limited. The
        third-order terms, in the first corrective pass only, look one cell further.
        """
        corrective = self.passes - 1
        reach = 2 if self.limiter else 1
        return 1 + corrective * reach + (self.third_order and corrective > 0)

    @property
    def any_sign(self) -> bool:
        """Whether psi may be of both signs: nothing is divided by it."""
        return self.passes == 1 or self.infinite_gauge

    def range_error(
        self, name: str, low: float, high: float, size: int, *, single: bool = False
    ) -> str | None:
        """Return a sentence if the scheme cannot advance a field of this range.

        The ratios of the standard gauge need a psi of one sign, up to :data:`ROUND_OFF`.

        Args:
            size: item size of the scheme in bytes, 4 or 8.
            single: whether the values come from a float32 file.
        """
        got = f"got values from {low:g} to {high:g}"
        if not (isfinite(low) and isfinite(high)):
            return f"expected finite numbers in {name}, {got}"
        kind = "ratios"
        if self.any_sign:
            kind = "upwind" if self.passes == 1 else "infinite gauge"
        most, limit = max(-low, high), LARGEST[kind][size]
        if most > limit:
            other = {"ratios": " (or --gauge infinite)", "infinite gauge": "", "upwind": ""}[kind]
            return f"expected |{name}| of at most {limit:g} in f{size}{other}, {got}"
        size = 4 if single else size
        slack = max(ROUND_OFF * EPSILON[size] * most, SMALLEST[size])
        if not self.any_sign and min(-low, high) > slack:
            expected = f"{name} of one sign (or --gauge infinite, or --iterations 1)"
            return f"expected {expected}, {got}, where up to {slack:g} counts as round-off"
        return None
