"""What a run prints when it is done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def summary(result: Mapping[str, Any]) -> str:
    """Return the readable end of a run."""
    mass = result["mass_initial"]
    change = (result["mass_final"] - mass) / mass if mass else result["mass_final"]
    speed = result["ns_per_cell_step"]
    tracers = result.get("tracers", [])
    of_tracer = ", tracer" if tracers else ""
    lines = [
        f"case {result['case']}, grid {' x '.join(map(str, result['grid']))}, "
        f"{result['steps']} steps, {result['dtype']}, {result['backend']}, "
        f"{result['ranks']} ranks at the end",
        f"loop {result['seconds']:.3f} s"
        + (f", {speed:.2f} ns per cell{of_tracer} and step" if speed else "")
        + f", {result['bytes_per_cell']:.0f} bytes per cell",
        f"min {result['min']:.9g}, max {result['max']:.9g}, mass {result['mass_final']:.12g} "
        f"(relative change {change:.2e})",
    ]
    if result["errors"]:
        norms = ", ".join(f"{name} {value:.6g}" for name, value in result["errors"].items())
        lines.append(f"error {norms}")
    lines.append(f"sha256 {result['sha256']}")
    for tracer in tracers[1:]:
        lines.append(
            f"{tracer['name']}: min {tracer['min']:.9g}, max {tracer['max']:.9g}, "
            f"mass {tracer['mass_final']:.12g}, sha256 {tracer['sha256']}"
        )
    return "\n".join(lines)
