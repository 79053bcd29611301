"""``rms profile``: time, power and energy of a command at each size, kept for those who plan."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rms.cli.engines import ENGINES, check_engine, local_nodes
from rms.client.connection import ServerError, state_folder
from rms.formats import profiles
from rms.formats.profiles import MALLEABLE, SEPARATE, Point, Profile, ProfileError, Program
from rms.launch.machine import hardware
from rms.studies import operating_points as found_in
from rms.wire.terminal import CommandError, check_writable, columns, publish, refuse_on, say

WAYS = (SEPARATE, MALLEABLE)


def add_profile(command: argparse.ArgumentParser) -> None:
    """Add the options of ``rms profile``."""
    command.description = (
        "Run a command on 1, 2, 4, ... nodes of a fresh embedded RMS each, after one run that is "
        "counted nowhere, and keep time, power and energy at each size for rms submit, rms "
        "simulate (speedup = {profile = NAME}) and the policies. A profile holds for the same "
        "words, the same program file and the same machine (see rms submit --help). With --mode "
        "malleable the program (one on dmr) runs once and is resized from size to size."
    )
    add = command.add_argument
    add("name", nargs="?", metavar="NAME", help="with --show: a profile, or its file")
    add("--nodes", metavar="1,2,4", help="sizes (default: doublings, and all nodes there are)")
    add("--repeat", type=int, default=1, metavar="K", help="runs at each size (default 1)")
    add("--mode", choices=WAYS, default=SEPARATE, help="how it is measured (default: separate)")
    add("--window", type=float, default=5.0, metavar="S", help="at a size of a malleable run")
    add("--show", action="store_true", help="print what is known, run nothing")
    add("--slowdown", type=float, default=1.1, metavar="X", help="bound of an operating point")
    add("--engine", default="local", metavar="|".join(ENGINES))
    add("--save-as", metavar="NAME", help="how the profile is called (default: as the program)")
    add("--out", type=Path, metavar="FILE.json", help="keep it there instead")
    add("--figure", type=Path, metavar="FILE.png")
    add("--folder", type=Path, default=Path("profile"), metavar="D", help="output of the runs")


def profile(arguments: argparse.Namespace) -> int:
    """``rms profile -- COMMAND``: measure, keep and print; ``--show``: print."""
    base = profiles.folder(os.environ, state_folder(os.environ))
    if arguments.slowdown < 1.0:
        raise CommandError(f"expected --slowdown of at least 1, got {arguments.slowdown:g}")
    for target, option in ((arguments.out, "--out"), (arguments.figure, "--figure")):
        problem = check_writable(target, option)
        if problem is not None:
            raise CommandError(problem)
    with refuse_on(ProfileError):
        if arguments.show and arguments.name is None and not arguments.command_line:
            return _list(arguments, base)
        shown = _known(arguments, base) if arguments.show else _measure(arguments, base)
    if arguments.figure is not None:
        _draw(shown, arguments.figure)
    publish(arguments.json, _json(shown, arguments.slowdown), _lines(shown, arguments.slowdown))
    return 0


# --- measuring -----------------------------------------------------------------------------------


def _measure(arguments: argparse.Namespace, base: Path | None) -> Profile:
    """Run the command, and keep what was measured."""
    from rms.studies import profile as study

    program = _program(arguments)
    if arguments.name is not None:
        raise CommandError(f"expected -- COMMAND, got {arguments.name!r} before it")
    target = arguments.out
    name = profiles.check_name(arguments.save_as or Path(program.words[0]).name)
    if target is None and base is None:
        raise CommandError("expected a folder in RMS_PROFILES, or --out FILE.json, got neither")
    check_engine(arguments.engine)
    setup = study.Setup(
        command=program.words,
        sizes=_sizes(arguments.nodes, arguments.engine),
        repeat=_at_least(arguments.repeat, 1, "--repeat"),
        engine=arguments.engine,
        serve=[],
        folder=arguments.folder,
        env=os.environ,
        window_s=_at_least(arguments.window, 0.5, "--window"),
        say=say if arguments.verbose else lambda _: None,
    )
    steps = 0
    with refuse_on(study.ProfilingError, ServerError, exit_code=1):
        if arguments.mode == MALLEABLE:
            points, steps = study.malleable(setup)
        else:
            study.warm_up(setup)
            points = study.separate(setup)
    date = time.strftime("%Y-%m-%d %H:%M")
    new = Profile(name, program, hardware(), tuple(points), steps, date)
    if target is None:
        assert base is not None
        target = profiles.path_of(base, new)
    found = profiles.merged(profiles.read(target) if target.exists() else None, new)
    profiles.write(target, found)
    return found


def _program(arguments: argparse.Namespace) -> Program:
    words = arguments.command_line
    if not words:
        raise CommandError("expected -- COMMAND, got none")
    found = Program.find(words, Path.cwd(), os.environ.get("PATH", os.defpath))
    if found is None:
        raise CommandError(f"expected a command that can be run, got {words[0]!r}")
    return found


def _sizes(text: str | None, engine: str) -> tuple[int, ...]:
    """Read ``1,2,4``; by default doublings up to all nodes of this machine, and those."""
    if text is None:
        if engine != "local":
            raise CommandError(f"expected --nodes with the engine {engine}, got none")
        most = local_nodes(None)
        return tuple(sorted({most, *(1 << k for k in range(most.bit_length()))} - {0}))
    parts = text.split(",")
    if not all(part.isdecimal() and 1 <= int(part) <= 10**6 for part in parts):
        raise CommandError(f"expected --nodes as sizes like 1,2,4, got {text!r}")
    sizes = tuple(sorted({int(part) for part in parts}))
    if engine == "local":
        local_nodes(sizes[-1])
    return sizes


def _at_least(value: Any, least: float, option: str) -> Any:
    if not value >= least:
        raise CommandError(f"expected {option} of at least {least:g}, got {value:g}")
    return value


# --- what is known -------------------------------------------------------------------------------


def _known(arguments: argparse.Namespace, base: Path | None) -> Profile:
    """Return the profile that is asked for, by its name, file or program."""
    name = arguments.name
    if name is not None:
        return profiles.read(Path(name)) if name.endswith(".json") else profiles.named(base, name)
    program = _program(arguments)
    found = profiles.find(base, program, hardware)
    if found is None:
        raise ProfileError(
            "expected a command that was profiled on this machine, with the same words and the "
            f"same program file, got {' '.join(program.words)}"
        )
    return found


def _list(arguments: argparse.Namespace, base: Path | None) -> int:
    """Print the profiles there are."""
    rows, result = [], []
    for path in sorted(base.glob("*.json")) if base is not None else []:
        found = profiles.read(path)
        sizes = ",".join(str(n) for n in sorted({point.nodes for point in found.points}))
        words = " ".join(found.program.words)
        rows.append([path.stem, sizes, found.measured, str(found.machine), words])
        result.append({"name": path.stem, **msgspec.to_builtins(found)})
    publish(arguments.json, result, columns(["NAME", "NODES", "DATE", "MACHINE", "COMMAND"], rows))
    return 0


# --- what is printed -----------------------------------------------------------------------------


def _matrices(shown: Profile) -> dict[str, list[Point]]:
    """Return the points of each way that there are, by frequency and size."""
    found = {way: [p for p in shown.points if p.way == way] for way in WAYS}
    return {
        way: sorted(points, key=lambda p: (p.mhz is not None, -(p.mhz or 0.0), p.nodes))
        for way, points in found.items()
        if points
    }


def _lines(shown: Profile, slowdown: float) -> list[str]:
    """Return the matrices, the laws and the operating points as text."""
    lines = [
        f"{shown.name}: {' '.join(shown.program.words)}",
        f"on {shown.machine}; program {shown.program.sha256[:12]}; {shown.measured}",
    ]
    matrices = _matrices(shown)
    for way, points in matrices.items():
        how = "separate runs" if way == SEPARATE else "one malleable run, seconds per step x steps"
        lines += ["", f"{how}:", *_table(points), *_laws(points), *_points(points, slowdown)]
    if len(matrices) == 2:
        lines += ["", "malleable over separate, less 1:", *_difference(shown)]
    return lines


def _table(points: Sequence[Point]) -> list[str]:
    first = {point.mhz: point for point in reversed(points)}
    rows = []
    for p in points:
        base = first[p.mhz]
        rows.append(
            [
                str(p.nodes),
                "as is" if p.mhz is None else f"{p.mhz:g}",
                f"{p.run_s:.3f}",
                f"{p.spread_s:.3f}",
                f"{p.node_w:.1f}",
                f"{p.run_j:.1f}",
                f"{100 * base.nodes * base.run_s / (p.nodes * p.run_s):.0f}",
                f"{p.idle_w:.1f}",
                f"{p.peak_w:.1f}",
                str(len(p.time_s)),
                p.source,
            ]
        )
    heads = ["NODES", "MHZ", "TIME_S", "SPREAD_S", "W/NODE", "ENERGY_J", "EFF_%", "IDLE_W"]
    return columns([*heads, "PEAK_W", "RUNS", "SOURCE"], rows)


def _laws(points: Sequence[Point]) -> list[str]:
    lines = []
    for mhz in dict.fromkeys(point.mhz for point in points):
        own = [point for point in points if point.mhz == mhz]
        if len({point.nodes for point in own}) < 2:
            continue
        law = found_in.fit_time([p.nodes for p in own], [p.run_s for p in own])
        at = "" if mhz is None else f" at {mhz:g} MHz"
        terms = f"{_term(law.second, law.second_error)} s + {_term(law.first, law.first_error)} s/n"
        lines.append(f"t(n){at} = {terms}{_off(law)}")
    power = found_in.fit_power(points)
    if power is not None:
        terms = f"{_term(power.second, power.second_error)} W + "
        terms += f"{_term(power.first, power.first_error)} W Eff(n) (f/f_max)^3"
        lines.append(f"P(n, f) = n ({terms}){_off(power)}")
    return lines


def _term(value: float, error: float) -> str:
    return f"{value:.4g}" if error != error else f"({value:.4g} +- {error:.2g})"


def _off(law: found_in.Law) -> str:
    if law.first_error != law.first_error:
        return ", through two points: their error is not known"
    return f", off by {100 * law.mean_off:.1f} % on average, {100 * law.most_off:.1f} % at most"


def _points(points: Sequence[Point], slowdown: float) -> list[str]:
    best = found_in.operating_points(points, slowdown)
    source = " and ".join(dict.fromkeys(point.source for point in points))

    def row(what: str, p: Point) -> str:
        clock = "" if p.mhz is None else f" at {p.mhz:g} MHz"
        nodes = f"{p.nodes} node{'s' * (p.nodes != 1)}{clock}"
        return f"{what}: {nodes}, {p.run_s:.3f} s, {p.run_j:.1f} J"

    return [
        row("fastest", best.fastest),
        row("least energy", best.energy),
        row("least energy x time", best.delay_product),
        row(f"least energy up to {slowdown:g} times the fastest", best.bounded),
        f"energy from: {source}",
    ]


def _difference(shown: Profile) -> list[str]:
    found = found_in.differences(shown.matrix(SEPARATE), shown.matrix(MALLEABLE))
    return columns(
        ["NODES", "TIME_%", "POWER_%", "ENERGY_%"],
        [[str(d.nodes), *(f"{100 * x:+.1f}" for x in (d.time, d.power, d.energy))] for d in found],
    )


def _json(shown: Profile, slowdown: float) -> dict[str, Any]:
    """Return the profile with what follows from it."""
    found: dict[str, Any] = {**msgspec.to_builtins(shown), "ways": {}}
    for way, points in _matrices(shown).items():
        plain = [point for point in points if point.mhz is None]
        best = found_in.operating_points(points, slowdown)
        time_law = None
        if len({point.nodes for point in plain}) > 1:
            law = found_in.fit_time([p.nodes for p in plain], [p.run_s for p in plain])
            time_law = {
                "tc_s": law.second,
                "t1_s": law.first,
                "mean_off": law.mean_off,
                "most_off": law.most_off,
            }
        found["ways"][way] = {
            "rows": [
                {
                    "nodes": p.nodes,
                    "mhz": p.mhz,
                    "time_s": p.run_s,
                    "power_w": p.node_w * p.nodes,
                    "energy_j": p.run_j,
                    "source": p.source,
                }
                for p in points
            ],
            "time_law": time_law,
            "operating_points": {
                name: {"nodes": point.nodes, "mhz": point.mhz}
                for name, point in (
                    ("fastest", best.fastest),
                    ("energy", best.energy),
                    ("energy_delay_product", best.delay_product),
                    ("energy_bounded", best.bounded),
                )
            },
        }
    return found


def _draw(shown: Profile, path: Path) -> None:
    """Draw time, power and energy against the number of nodes."""
    from rms.plots import Panel, draw_panels

    figures: dict[str, Callable[[Point], float]] = {
        "time (s)": lambda point: point.run_s,
        "power of a node (W)": lambda point: point.node_w,
        "energy (J)": lambda point: point.run_j,
    }
    panels = []
    for title, value in figures.items():
        series: dict[str, tuple[Sequence[Any], Sequence[float]]] = {}
        for way, points in _matrices(shown).items():
            for mhz in dict.fromkeys(point.mhz for point in points):
                own = [point for point in points if point.mhz == mhz]
                name = way if mhz is None else f"{way}, {mhz:g} MHz"
                series[name] = [p.nodes for p in own], [value(p) for p in own]
        panels.append(Panel(title, series, "nodes"))
    draw_panels(panels, path, f"{shown.name}, {shown.points[0].source}", columns=3)
