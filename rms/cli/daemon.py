"""``rms serve``, ``rms pilot`` and ``rms replay``: a daemon, and its journal afterwards.

The modules of Slurm are imported by the engines that need them.
"""

from __future__ import annotations

import argparse
import getpass
import importlib
import math
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from rms.cli.options import (
    HOSTS,
    ON_DEMAND,
    add_engine,
    add_policy,
    cheap_by,
    check_engine,
    local_nodes,
)
from rms.core.policies import DEFAULT, MissingPartError, Policy, PolicyError, placing
from rms.daemon.nodes.nodes import POWERED_ELSEWHERE
from rms.daemon.restart.recover import replayed
from rms.daemon.serve import LEVELS, check_start, run_daemon, start_log
from rms.daemon.store.archive import KEEP
from rms.daemon.store.context import Settings, log
from rms.daemon.store.journal import Journal, JournalError
from rms.daemon.store.private import ServeError
from rms.formats import profiles
from rms.formats.config import read_cluster
from rms.formats.jobscript import ScriptError, parse_power_cap, parse_time
from rms.formats.prices import Prices, read_prices
from rms.kernels.served import GovernorRule
from rms.launch import local
from rms.launch.base import DEADLINE_S, PowerCommands
from rms.launch.processes import escapes
from rms.power.choice import MeterChoice
from rms.power.meter import MeterError
from rms.wire.files import state_folder
from rms.wire.terminal import (
    CommandError,
    at_least,
    columns,
    positive,
    publish,
    refuse_on,
    seconds,
)
from rms.wire.users import PowerCap


def add_serve(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add(
        "--cluster",
        type=Path,
        metavar="FILE.toml",
        help="nodes: names, cores, slots or kinds of processors, memory bandwidth, power (default: "
        "this machine's cores)",
    )
    add("--nodes", type=at_least(1), metavar="N", help="only the first N nodes there are")
    add_engine(add)
    add(
        "--check",
        nargs="?",
        type=Path,
        const=Path(),
        metavar="FILE.toml",
        help="start nothing; print the nodes and settings of these options (and this cluster "
        "file); with Slurm's engines, what this site allows",
    )
    add(
        "--reach",
        metavar="NAME",
        help="remote shell to the hosts of --cluster: ssh, or a program that is called as NAME "
        "HOST COMMAND; with Slurm's engines, how mpiexec reaches nodes (-launcher, default: slurm)",
    )
    add("--partition", default="", metavar="NAME", help="of engine slurm (default: Slurm's own)")
    add("--ntasks-per-node", type=at_least(1), metavar="N", help="slots of a node (default: CPUs)")
    add_policy(add)
    add(
        "--policy-modules",
        default="",
        metavar="MODULE|FILE.py[,...]",
        help="of one's own, whose functions rms policy FILE.toml may name later; no others are "
        "imported (but those of --policy)",
    )
    add(
        "--grace",
        type=seconds,
        default=10.0,
        metavar="S",
        help="from SIGTERM to SIGKILL of a job (default 10)",
    )
    add(
        "--margin",
        type=seconds,
        metavar="S",
        help="of a pilot: from the end of its jobs to that of its allocation (default grace + 30)",
    )
    add(
        "--boot-deadline",
        type=positive,
        default=60.0,
        metavar="S",
        help="for a world that boots beside a running one (default 60)",
    )
    add(
        "--stall-limit",
        type=positive,
        metavar="S",
        help="end and requeue a job that makes no step for so long, and for 20 times the mean time "
        "of its steps (default: never; after 30 s a warning)",
    )
    add(
        "--silent",
        type=seconds,
        metavar="S",
        help="hosts of a remote shell: one is down if it is silent for so long (default 15)",
    )
    add(
        "--mtbf-node",
        type=positive,
        metavar="H",
        help="hours between failures of a node in the mean, for jobs with --survive auto (default "
        "8760)",
    )
    add(
        "--with-parent", nargs="?", type=at_least(1), const=os.getppid(), metavar="PID",
        help="end when the parent ends; PID: of the parent, which may have ended by now",
    )  # fmt: skip
    add(
        "--assumed-time",
        default="1:00:00",
        metavar="TIME",
        help="run time assumed for a job without --time; no limit (default 1:00:00, or UNLIMITED)",
    )
    add(
        "--state",
        type=Path,
        metavar="DIR",
        help="journal, sockets, jobs (default: RMS_STATE, else ~/.local/state/rms)",
    )
    add(
        "--log-level",
        choices=tuple(LEVELS),
        default="info",
        help="lines on standard error: debug (all events and decisions), info, warning",
    )
    add(
        "--listen",
        metavar="unix:PATH|tcp:HOST:PORT",
        help="default: a socket in the state folder; TCP on this machine alone (127.0.0.1), or "
        "where an engine's jobs on other nodes are to reach the daemon",
    )
    add(
        "--keep-events",
        type=_number_kept,
        default=KEEP,
        metavar="N|all",
        help=f"events that the journal keeps, at least, for replay and report (default {KEEP})",
    )
    _add_energy(command)


OPTIONS_OF = {
    "reach": ("local", "slurm-pilot", "slurm"),
    "ntasks-per-node": ("slurm-pilot", "slurm", HOSTS),
    "partition": ("slurm",),
    "margin": ("slurm-pilot", HOSTS),
    "silent": (HOSTS,),
}
"""Engines of options that others do not have."""

MOST_KEPT = 10**12


def _number_kept(text: str) -> int | None:
    """Return the number of events that are kept, None for all."""
    if text == "all":
        return None
    if not text.isdecimal() or not 1 <= int(text) <= MOST_KEPT:
        raise argparse.ArgumentTypeError(f"expected 1 to {MOST_KEPT} events, or all, got {text!r}")
    return int(text)


def _add_energy(command: argparse.ArgumentParser) -> None:
    add = command.add_argument_group("energy and power").add_argument
    add(
        "--meters",
        default="auto",
        metavar="auto|none|NAME[,NAME]",
        help="meters of energy: rapl, nvml, nvidia-smi, replay:FILE (default: all there are)",
    )
    add(
        "--meter-command",
        metavar="CMD",
        help="a program that prints a line for every reading, such as node 4711 J or node 61.7 W",
    )
    add(
        "--meter-limit",
        type=positive,
        metavar="W",
        help="power of a device above which a reading is refused (default: twice its limit)",
    )
    add(
        "--power-cap",
        metavar="W|none",
        help="power cap of the cluster (default: as before a restart, else none)",
    )
    add(
        "--power-off",
        default="",
        metavar="CMD",
        help="run as CMD NODE to power an idle node off (policies with node_power off-when-idle)",
    )
    add(
        "--power-on",
        default="",
        metavar="CMD",
        help="run as CMD NODE to power it on; returns 0 once the node is up",
    )
    add(
        "--power-on-deadline",
        type=positive,
        default=DEADLINE_S,
        metavar="S",
        help=f"a node that is not up by then is down (default {DEADLINE_S:g})",
    )
    add(
        "--set-frequencies",
        choices=("auto", "no"),
        default="auto",
        help="whether frequencies that a policy decides are set, where this user may (cpufreq, "
        "locked clocks of GPUs), and put back afterwards (default: auto)",
    )
    add(
        "--governor",
        default="",
        metavar="RULE",
        help="how much of the machine tasks may use: high, low, price[:LIMIT], co2[:LIMIT] (low "
        "above the limit per kWh, default: the mean of --prices), cap (low while the power cap "
        "leaves less than tasks would take); default: as before a restart, else high",
    )
    add(
        "--prices",
        type=Path,
        metavar="FILE",
        help="what electricity costs and emits: TOML (constant, by hour of day) or CSV of times",
    )
    add(
        "--cheap-by",
        choices=("price", "co2"),
        help="what cheap hours of a policy are cheap in (default: price, where --prices has it)",
    )


def serve(arguments: argparse.Namespace) -> int:
    """``rms serve``: run the daemon until it receives a signal or ``rms shutdown``."""
    if arguments.engine not in (ON_DEMAND, HOSTS):
        check_engine(arguments.engine)
        if arguments.engine == "local" and arguments.reach is not None:
            arguments.engine = HOSTS
            if arguments.cluster is None:
                raise CommandError("expected --cluster FILE.toml with --reach, got none")
        else:
            _check_options(arguments)
    if arguments.check is not None and arguments.check != Path():
        arguments.cluster = arguments.check
    if arguments.check is not None and arguments.engine not in ("local", ON_DEMAND, HOSTS):
        return _check_site(arguments)
    start_log(arguments.log_level, os.environ)
    state = (arguments.state or state_folder(os.environ)).absolute()
    cap, refused = arguments.power_cap, (MeterError, PolicyError, JournalError)
    with refuse_on(*refused, *_of_slurm(arguments.engine), ServeError, OSError):
        policy = _policy(arguments, (state / "journal.sqlite").exists())
        commands = _power_commands(arguments)
        if arguments.engine != "local" and commands is None and not policy.always_on:
            raise PolicyError(POWERED_ELSEWHERE)
        shared = policy.placement.shared and arguments.engine != "slurm"
        if policy.placement.pooled and not shared:
            got = f"{policy.name}, whose jobs share nodes"
            raise PolicyError(f"expected a policy that gives whole nodes with Slurm's, got {got}")
        prices = None if arguments.prices is None else read_prices(arguments.prices)
        settings = Settings(
            policy=arguments.policy,
            listen=arguments.listen or f"unix:{state / 'socket'}",
            parent=arguments.with_parent,
            grace_s=arguments.grace,
            boot_s=arguments.boot_deadline,
            stall_s=arguments.stall_limit,
            mtbf_h=arguments.mtbf_node,
            assumed_s=_assumed_s(arguments.assumed_time),
            policy_modules=_policy_modules(arguments.policy_modules),
            profiles=profiles.folder(os.environ, state_folder(os.environ)),
            prices=prices,
            cheap_by=cheap_by(arguments.cheap_by, prices),
            power_cap=None if cap is None else PowerCap(parse_power_cap(cap)),
            power_commands=commands,
            set_frequencies=arguments.set_frequencies == "auto",
            meter_limit_w=arguments.meter_limit,
            governor=_governor(arguments, prices),
            keep_entries=arguments.keep_events,
        )
        engine = _engine(arguments, shared=shared)
        if policy.clocked and arguments.engine == "local":
            engine = replace(engine, cluster=local.with_levels(engine.cluster, os.environ))
        engine = engine.sharing() if shared else engine
        if arguments.check is None:
            run_daemon(state, engine, settings)
        else:
            check_start(state, engine, settings)
            result = _checked(state, engine, settings)
            rows = [[name, f"{value}"] for name, value in result.items()]
            publish(arguments.json, result, columns(["ITEM", "VALUE"], rows))
    return 0


def _of_slurm(engine: str) -> tuple[type[Exception], ...]:
    """Return the error of Slurm's engines, which their launchers raise too."""
    if engine in ("local", HOSTS):
        return ()
    from rms.launch.slurm.commands import SlurmError

    return (SlurmError,)


def _check_options(arguments: argparse.Namespace) -> None:
    for option, having in OPTIONS_OF.items():
        value = getattr(arguments, option.replace("-", "_"))
        if value not in (None, "") and arguments.engine not in having:
            words = " or ".join("--reach ssh" if name == HOSTS else name for name in having)
            expected = f"--engine {words} for --{option}"
            raise CommandError(f"expected {expected}, got --engine {arguments.engine}")


def _checked(state: Path, engine: local.JobEngine, settings: Settings) -> dict[str, Any]:
    cluster, goes_on = engine.cluster, (state / "journal.sqlite").exists()
    return {
        "nodes": len(cluster.hosts),
        "slots": sum(map(len, cluster.slots)),
        "idle_w": sum(node.idle_w for node in cluster.power),
        "policy": placing(settings.policy).name,
        "state": str(state),
        "journal": "goes on" if goes_on else "new",
        "listens": settings.listen,
        "contained": escapes(os.environ) or "all that a job starts ends with it",
    }


def _assumed_s(text: str) -> float | None:
    """Return the seconds of ``--assumed-time``, None for UNLIMITED."""
    try:
        seconds = parse_time(text)
    except ScriptError as error:
        raise ScriptError(f"--assumed-time: {error}") from None
    return None if seconds == math.inf else seconds


def _governor(arguments: argparse.Namespace, prices: Prices | None) -> str:
    if not arguments.governor:
        return ""
    if arguments.engine == "slurm":
        raise CommandError("expected --governor with --engine local or slurm-pilot, got slurm")
    with refuse_on(ValueError):
        GovernorRule.parse(arguments.governor).check(prices)
    return str(arguments.governor)


def _policy_modules(text: str) -> frozenset[str]:
    """Import a user's modules; return their names."""
    names = set()
    for word in filter(None, text.split(",")):
        name = word
        if word.endswith(".py"):
            sys.path.append(str(Path(word).absolute().parent))
            name = Path(word).stem
        try:
            importlib.import_module(name)
        except Exception as error:  # the module may raise anything
            expected = "a module that can be imported for --policy-modules"
            raise PolicyError(f"expected {expected}, got {word}: {error}") from None
        names.add(name)
    return frozenset(names)


def _policy(arguments: argparse.Namespace, goes_on: bool) -> Policy:
    """Return the policy; the default if the policy of a restarted daemon no longer exists."""
    try:
        return placing(arguments.policy)
    except MissingPartError as error:
        if not goes_on:
            raise
        log.warning(f"policy {DEFAULT} decides instead: {error}")
        arguments.policy = DEFAULT
        return placing(DEFAULT)


def _power_commands(arguments: argparse.Namespace) -> PowerCommands | None:
    off, on, deadline_s = arguments.power_off, arguments.power_on, arguments.power_on_deadline
    if (off or on) and arguments.engine not in ("local", "slurm"):
        reached = "--reach" if arguments.engine == HOSTS else f"--engine {arguments.engine}"
        expected = "expected --power-off and --power-on with --engine local or slurm"
        raise CommandError(f"{expected}, got {reached}")
    try:
        return PowerCommands.parse(off, on, deadline_s)
    except ValueError as error:
        raise CommandError(str(error)) from None


def _engine(arguments: argparse.Namespace, *, shared: bool) -> local.JobEngine:
    meters = MeterChoice.parse(arguments.meters, arguments.meter_command, arguments.meter_limit)
    if arguments.engine == "local":
        meters.check_command()
        cluster = (
            local.this_machine(local_nodes(arguments.nodes))
            if arguments.cluster is None
            else local.from_file(arguments.cluster, shared=shared)
        )
        engine = local.local_engine(cluster, meters)
        return engine if arguments.cluster is None else engine.first(arguments.nodes)
    if arguments.engine == HOSTS:
        return _hosts(arguments, meters)
    from rms.launch.slurm import engines

    options = engines.EngineOptions(
        arguments.reach or "slurm",
        arguments.grace,
        arguments.ntasks_per_node,
        arguments.cluster,
        meters,
    )
    user = getpass.getuser()
    if arguments.engine == ON_DEMAND:
        return engines.on_demand(os.environ, user, options, arguments.limits, arguments.margin)
    if arguments.engine == "slurm":
        engine = engines.site(os.environ, user, options, partition=arguments.partition)
    else:
        engine = engines.pilot(os.environ, user, options, margin_s=arguments.margin)
    return engine.first(arguments.nodes)


def _hosts(arguments: argparse.Namespace, meters: MeterChoice) -> local.JobEngine:
    """Return the hosts of the cluster file, or those of the allocation that this process is in."""
    from rms.launch.hosts import allocation, launcher

    margin_s = arguments.margin
    if margin_s is None:
        margin_s = arguments.grace + 30.0
    if arguments.reach is not None:
        file = read_cluster(arguments.cluster)
        slots = dict(zip(file.nodes, file.slots, strict=True))
        hosts = allocation.reached_by(slots, arguments.reach)
    else:
        hosts = allocation.detect(os.environ)
    tasks = arguments.ntasks_per_node
    cluster = launcher.cluster_of(hosts.slots, arguments.cluster, tasks)
    silent_s = launcher.DOWN_S if arguments.silent is None else arguments.silent
    if silent_s < launcher.LEAST_DOWN_S:
        least = f"expected --silent of at least {launcher.LEAST_DOWN_S:g} s"
        raise CommandError(f"{least}, got {silent_s:g}")
    return launcher.engine(cluster, hosts, margin_s, meters, silent_s).first(arguments.nodes)


def _check_site(arguments: argparse.Namespace) -> int:
    from rms.launch.slurm.commands import Slurm, SlurmError
    from rms.launch.slurm.site import as_json, as_text, engine_verdict, inspect_site, try_resize

    if arguments.cluster is not None:
        read_cluster(arguments.cluster)
    slurm = Slurm(os.environ, getpass.getuser())
    with refuse_on(SlurmError, exit_code=1):
        site = inspect_site(slurm)
        tried = try_resize(slurm, f"rms-check-{os.getpid()}", time.monotonic)
    publish(arguments.json, as_json(site, tried), as_text(site, tried))
    return 0 if engine_verdict(arguments.engine, site).allowed else 1


def add_replay(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "journal", type=Path, metavar="JOURNAL", help="journal.sqlite of a daemon's state folder"
    )


def replay(arguments: argparse.Namespace) -> int:
    """``rms replay JOURNAL``: exit 1 if any decision differs."""
    if not arguments.journal.is_file():
        raise CommandError(f"expected a journal, got {arguments.journal}, which does not exist")
    with refuse_on(JournalError, PolicyError), Journal.open(arguments.journal) as journal:
        pruned, result = journal.begins(), replayed(journal)
    summary = f"{result.events} events, {len(result.differing)} decided otherwise"
    if pruned:
        summary += f"; those of the first {pruned} entries are gone"
    row = {"events": result.events, "differing": result.differing, "pruned": pruned}
    publish(arguments.json, row, [summary, *result.differing, *result.missing])
    return 1 if result.differing else 0


def add_pilot(command: argparse.ArgumentParser) -> None:
    command.epilog = "Options of sbatch for its allocations (--account=x) may follow after --."
    add = command.add_argument_group("allocations").add_argument
    add("--on-demand", action="store_true", help="request nodes while jobs wait for them")
    add("--keep", type=at_least(0), default=0, metavar="N", help="hold N nodes whatever waits")
    add(
        "--max-nodes",
        type=at_least(1),
        metavar="M",
        help="never more than these at once (default: --keep, on demand the partition's)",
    )
    add("--time", default="60", metavar="T", help="of an allocation, as Slurm's (default 1 h)")
    add(
        "--idle",
        type=seconds,
        default=60.0,
        metavar="S",
        help="how long an unused node is kept (default 60)",
    )
    add(
        "--backlog",
        type=at_least(1),
        default=1,
        metavar="N",
        help="allocations that wait in Slurm's queue at once (default 1)",
    )
    add_serve(command)


def _within(arguments: argparse.Namespace) -> int:
    """Serve on the nodes of the allocation that this process runs in."""
    from rms.launch.hosts.allocation import KINDS

    if not any(name in os.environ for name in KINDS):
        expected = f"--on-demand, --keep N, or an allocation ({', '.join(KINDS)})"
        raise CommandError(f"expected {expected}, got none")
    arguments.engine = "slurm-pilot" if KINDS[0] in os.environ else HOSTS
    return serve(arguments)


def pilot(arguments: argparse.Namespace) -> int:
    """``rms pilot``: serve in an allocation, or on nodes that the daemon requests from Slurm."""
    from rms.launch.slurm.ondemand import PilotLimits

    if arguments.engine != "local":
        raise CommandError(f"expected no --engine for rms pilot, got {arguments.engine}")
    if arguments.nodes is not None:
        raise CommandError(f"expected --max-nodes for rms pilot, got --nodes {arguments.nodes}")
    keep, most = arguments.keep, arguments.max_nodes
    if not (arguments.on_demand or keep):
        return _within(arguments)
    if most is not None and most < keep:
        raise CommandError(f"expected --max-nodes of at least {keep}, got {most}")
    time_s = parse_time(arguments.time)
    if time_s == math.inf:
        raise CommandError("expected a --time at which allocations end, got none")
    if most is None:
        most = 0 if arguments.on_demand else keep
    arguments.engine = ON_DEMAND
    arguments.limits = PilotLimits(
        on_demand=arguments.on_demand,
        keep=keep,
        most=most,
        time_s=time_s,
        idle_s=arguments.idle,
        backlog=arguments.backlog,
        partition=arguments.partition,
        options=tuple(arguments.command_line),
    )
    return serve(arguments)
