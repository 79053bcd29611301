"""``--nodelist`` and ``--exclude`` of a submission: which nodes its jobs may have.

As with ``sbatch``, but that a job gets no other nodes beside those of its list.
"""

from __future__ import annotations

import asyncio
import dataclasses
import getpass
import math
import os
import re
import resource
import shutil
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from rms.core.model.events import (
    Event,
    Freed,
    HeldByUser,
    Withdrawn,
    node_words,
)
from rms.core.model.jobs import Dependency, JobId, JobSpec, JobState, Mode
from rms.core.model.speedup import OperatingPoint
from rms.core.policies.node_power import Consolidate
from rms.core.policies.placement import FirstFit
from rms.core.rules import transition
from rms.core.rules.checks import allowed, needs_s
from rms.core.rules.powercap import is_unknown, within_limit
from rms.core.rules.transition import is_met, unknown
from rms.core.state import State
from rms.daemon.store.context import Context, Handle, Notes
from rms.daemon.store.record import job_note
from rms.formats import profiles
from rms.formats.config import operating_points
from rms.formats.jobscript import (
    DEFAULT_ARRAY_OUTPUT,
    DEFAULT_OUTPUT,
    Options,
    ScriptError,
    nodes_of_tasks,
    nodes_with_gpus,
    parse_text,
    read_option,
    refuse_unsupported,
)
from rms.formats.profiles import Profile, ProfileError, Program
from rms.formats.values import (
    Array,
    expand,
    parse_array,
    parse_begin,
    parse_dependency,
    parse_signal,
)
from rms.launch.machine import hardware
from rms.launch.processes import check_output, check_own_file, check_path, check_strings
from rms.wire.files import sync_folder, write_whole
from rms.wire.messages import COOLDOWN_VARIABLE
from rms.wire.mpiexec import is_program
from rms.wire.users import JobIds, Submission, SubmitOptions

if TYPE_CHECKING:
    from rms.daemon.heart import Daemon

MOST_NAMES = 1_000_000
"""Of all tasks of an array together: each has its own list in the journal."""


@dataclass(frozen=True)
class NodeLists:
    """The lists of a submission.

    Attributes:
        sized: it says how many nodes its jobs take.
        preferred: the preferred size is set.
    """

    state: State
    only: tuple[str, ...]
    never: tuple[str, ...]
    sized: bool
    preferred: bool

    def of(self, spec: JobSpec) -> JobSpec:
        """Return a job with these lists, no wider than they allow.

        Raises:
            ScriptError: they leave it too few nodes.
        """
        spec = replace(spec, nodelist=self.only, exclude=self.never)
        most = len(allowed(self.state, spec))
        if self.only and not self.sized and most:
            return replace(spec, nodes_min=most, nodes_max=most, preferred=most)
        least = spec.preferred if self.preferred and not spec.mode.any_start else spec.nodes_min
        if most >= least:
            preferred = min(spec.preferred, most)
            spec = replace(spec, preferred=preferred, nodes_max=min(spec.nodes_max, most))
        if most < least or not spec.sizes() or spec.smallest_start > most:
            lists = "--nodelist" if self.only else "--exclude"
            raise ScriptError(f"{lists}: expected at least {least} nodes left to it, got {most}")
        return spec


def node_lists(context: Context, options: Options, tasks: int) -> NodeLists | None:
    """Return the lists of a submission of so many jobs, None where it has none.

    Raises:
        ScriptError: they cannot be heeded.
    """
    asked = {"--nodelist": options.nodelist, "--exclude": options.exclude}
    given = {name: text for name, text in asked.items() if text}
    if not given:
        return None
    name, state, policy = next(iter(given)), context.state, context.scheduler.engine.policy
    if state.lease is not None:
        raise ScriptError(f"expected no {name} where allocations come and go, got {given[name]!r}")
    if not isinstance(policy.placement, FirstFit | Consolidate):  # others pick nodes themselves
        expected = "a policy that takes nodes in order (placement first-fit)"
        raise ScriptError(f"{name}: expected {expected}, got {policy.name}")
    names = {name: tuple(dict.fromkeys(expand(text))) for name, text in given.items()}
    for name, each in names.items():
        unknown = [node for node in each if node not in context.cluster.nodes_of]
        if unknown:
            raise ScriptError(f"{name}: expected nodes of this cluster, got {unknown[0]!r}")
    if (number := sum(map(len, names.values())) * tasks) > MOST_NAMES:
        raise ScriptError(f"{name}: expected {MOST_NAMES} names for all tasks, got {number}")
    only, never = names.get("--nodelist", ()), names.get("--exclude", ())
    preferred = options.preferred is not None
    return NodeLists(state, only, never, options.nodes is not None or preferred, preferred)


# FUSED rms.daemon.jobs.submit: Jobs that may not start yet: held and released by users, and let go when their time has come.


class Holds:
    """Enters who is held and who may start."""

    def __init__(self, context: Context, handle: Handle) -> None:
        self._context, self._handle = context, handle
        self._next_s = -inf

    def followed(self, event: Event) -> None:
        """Take in what has happened."""
        if event.changes_holds:
            self._next_s = -inf

    def look(self) -> None:
        """Let jobs start whose time has come."""
        context = self._context
        at_s, state = context.time(), context.state
        if self._next_s > at_s:
            return
        if found := transition.due(state, at_s):
            self._handle(Freed(at_s, found))
        self._next_s = transition.next_s(state)

    def hold(self, jobs: Sequence[JobId]) -> None:
        """Hold jobs that wait."""
        self._handle(HeldByUser(self._context.time(), tuple(jobs), True))

    def withdraw(self, jobs: Sequence[JobId]) -> None:
        """Cancel jobs that wait."""
        self._handle(Withdrawn(self._context.time(), tuple(jobs)))

    def release(self, jobs: Sequence[JobId]) -> None:
        """Let jobs start that a user held, once they wait for nothing else."""
        self._handle(HeldByUser(self._context.time(), tuple(jobs), False))


# FUSED rms.daemon.jobs.submit: From a submitted script to jobs: options, array, sizes, files.

PLACING = {
    *("--deadline", "--reservation", "--nodefile", "-F", "--constraint", "-C"),
}
"""Options of sbatch that say when or where a job may run: not to heed them is no small thing."""

CHUNK = 250
"""How many tasks of an array are made at a stretch, before others have their turn."""

MOST_REPEATED = 100_000
"""Dependencies and profile points of all tasks of an array together; each task has a copy."""

MOST_CHECKED = 100
"""Of so many tasks the output is looked at; all are when they start."""

_PLAIN_SHELL = re.compile("#! *(/usr)?/bin/(env +)?(ba)?sh")
"""First line of a script whose shell reads no other file before it."""

MARGIN_BYTES = 32 << 20
JOB_BYTES = 3 << 10
"""Address space per job, and the reserve for everything else: C libraries may crash without it."""


async def admit(daemon: Daemon, body: Submission) -> JobIds:
    """Make jobs of a submission and hand them to the daemon; return their ids.

    One that is refused uses no number up and leaves nothing on the disk; one that is repeated, with
    its key, is the one that there is. Others have their turn while it makes a large array; the next
    submission may begin when it has returned.

    Raises:
        ScriptError: the script or its options cannot be run.
        OSError, JournalError, MemoryError: it cannot be kept now.
    """
    known, facts = _repeated(daemon, body)
    if known:
        return JobIds(known)
    number = daemon.next_id()
    read_option("job-name", body.name)
    script = parse_text(body.text, body.name)
    options, stated = _options(body.options), script.options
    if options.nodes is not None:
        stated = dataclasses.replace(
            stated, ntasks=None
        )  # they are ranks of the nodes that it states
    options = options.over(stated)
    cluster = daemon.context.cluster
    unheeded = daemon.launcher.unheeded(script.slurm_options)
    nodes = dict(zip(cluster.names, cluster.slots, strict=True))
    options, unheeded = nodes_with_gpus(options, unheeded, nodes)
    if "--exclusive" in unheeded:  # every job is exclusive on whole nodes
        if cluster.shared:
            raise ScriptError("expected no --exclusive, as jobs share nodes here, got --exclusive")
        unheeded.remove("--exclusive")
    warnings = _warnings(unheeded)
    if not daemon.launcher.watches_processes and (body.options.memory_mib or body.options.signal):
        raise ScriptError("expected --mem and --signal in #SBATCH lines, for Slurm, got them here")
    body = _placed(body, options)
    shared = bool(cluster.shared)
    listed = expand(options.nodelist) if options.nodelist else []
    widths = [len(nodes[name]) for name in listed if name in nodes] or cluster.widths
    refuse_unsupported(options, widths, shared=shared)
    options = nodes_of_tasks(options, widths, shared=shared)
    most_s = daemon.launcher.longest_s(script.slurm_options, body.env)
    if options.time_s is not None and most_s < options.time_s < math.inf:
        expected = f"{most_s:.0f} s, the limit of its partition"
        raise ScriptError(f"expected --time of at most {expected}, got {options.time_s:.0f} s")
    _refuse_no_program(daemon, body)
    note = _note(daemon, number, body, options)
    specs = await _specs(daemon, number, body, options, note)
    for option, pattern in note["outputs"].items():
        folder = Path(pattern).parent
        while "%" in str(folder):  # these folders are made for each job
            folder = folder.parent
        if not os.path.isdir(Path(body.cwd) / folder):  # noqa: PTH112 - Path.is_dir raises without permission
            raise ScriptError(f"expected an existing folder for --{option}, got {pattern}")
    if (assumed_s := specs[0].assumed_s) is not None:
        minutes, seconds = divmod(int(assumed_s), 60)
        planned = f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"
        warnings.append(f"no --time: the job is planned with {planned}, which is not a limit")
    state, policy = daemon.context.state, daemon.context.scheduler.engine.policy
    capped = state.power_cap_w is not None or policy.placement.caps_nodes
    if capped and is_unknown(state.power_models, specs[0]):
        warnings.append(
            "no --power, no profile and no power model of busy nodes: the job counts as 0 W under "
            "the power cap"
        )
    ids: list[str] = [spec.id for spec in specs]
    env = body.env | _cooldown(options)
    with _folder(daemon, number):
        await asyncio.to_thread(_keep, daemon.context, number, body.text, env)
        facts = {key: {**fact, "ids": ids} for key, fact in facts.items()}
        daemon.submit(specs, {str(number): note}, {"next": {"id": number + 1}, **facts})
    return JobIds(ids, warnings)


def _warnings(unheeded: Sequence[str]) -> list[str]:
    """Return what is to be said of options for sbatch that have no effect.

    Raises:
        ScriptError: one of them says when or where the job may run.
    """
    for word in unheeded:
        name = word.partition("=")[0] if word.startswith("--") else word[:2]
        if name in PLACING:
            got = f"{word}, which says when or where it may run"
            raise ScriptError(f"expected no #SBATCH option without effect here, got {got}")
    return [f"#SBATCH {' '.join(unheeded)}: without effect here"] if unheeded else []


def _note(daemon: Daemon, number: int, body: Submission, options: Options) -> dict[str, Any]:
    """Return what is to be kept of a submission, for its job or all tasks of its array.

    Raises:
        ScriptError: no job can be started in this folder and environment.
    """
    _check(check_strings, body.cwd, body.env)
    requeue, profile = options.requeue, _profile(daemon, body, options)
    default = DEFAULT_OUTPUT if options.array is None else DEFAULT_ARRAY_OUTPUT
    note: dict[str, Any] = {
        "name": options.job_name or body.name,
        "cwd": body.cwd,
        "outputs": {"output": options.output or default},
        "node": daemon.context.cluster.hosts[0],
        "user": getpass.getuser(),
        "array": str(number),
        "requeue": daemon.launcher.requeue_by_default if requeue is None else requeue,
        "profile": "" if profile is None else f"{profile.name}, measured {profile.measured}",
    }
    if options.error is not None:
        note["outputs"]["error"] = options.error
    if options.arguments:
        note["arguments"] = options.arguments
    if options.memory_mib and daemon.launcher.watches_processes:
        note["memory_mib"] = options.memory_mib
    if options.signal is not None and daemon.launcher.watches_processes:
        note["signal"] = asdict(parse_signal(options.signal))
    return note


async def _specs(
    daemon: Daemon, number: int, body: Submission, options: Options, note: dict[str, Any]
) -> list[JobSpec]:
    """Return the jobs of a submission; others have their turn now and then.

    Raises:
        ScriptError: they cannot be.
    """
    array = None if options.array is None else parse_array(options.array)
    indices: list[int | None] = [None] if array is None else list(array.indices)
    now_s, profile, begin_s = (
        daemon.time(),
        _profile(daemon, body, options),
        _begin_s(daemon, options),
    )
    after, any_of = _after(daemon, options, note["name"])
    _check_memory(len(indices))
    lists = node_lists(daemon.context, options, len(indices))
    points = () if profile is None else profile.points
    if (repeated := (len(after) + len(points)) * len(indices)) > MOST_REPEATED:
        expected = f"at most {MOST_REPEATED} dependencies and profile points for all tasks"
        raise ScriptError(f"expected {expected}, got {repeated}")
    ids = [JobId(str(number) if index is None else f"{number}_{index}") for index in indices]
    spec = _spec(ids[0], now_s, options, array, profile)
    spec = replace(spec, begin_s=begin_s, after=after, after_any=any_of)
    if spec.is_assumed and options.time_s is None:
        spec = replace(spec, assumed_s=daemon.context.settings.assumed_s)
    spec = spec if lists is None else lists.of(spec)
    if options.preferred is None:
        spec = _at_most(spec, _most(daemon.context.state))
    spec = _limited(spec, options, daemon.context.state)
    _refuse_impossible(daemon, spec)
    specs: list[JobSpec] = []
    for job_id in ids:  # the tasks of an array differ in their ids only
        specs.append(replace(spec, id=job_id))
        if len(specs) <= MOST_CHECKED:
            _check_outputs(job_note(note, job_id), daemon.launcher.state)
        if len(specs) % CHUNK == 0:
            await asyncio.sleep(0)
    return specs


def _most(state: State) -> int:
    """Return the maximum number of nodes of a job, including nodes that are down or drained."""
    return state.nodes if state.lease is None else min(state.nodes, state.lease.most)


def _at_most(spec: JobSpec, most: int) -> JobSpec:
    """Return a job with its preferred size reduced to the largest size of at most ``most`` nodes.

    A job that waits for more nodes keeps its size; without such a size the smallest is preferred.
    """
    if spec.preferred <= most or spec.wait_for_nodes:
        return spec
    sizes = spec.sizes()
    fitting = bisect_right(sizes, most)
    return replace(spec, preferred=sizes[fitting - 1] if fitting else spec.nodes_min)


def _refuse_impossible(daemon: Daemon, spec: JobSpec) -> None:
    """Refuse a job that could never start, also with the nodes that are down or drained.

    Raises:
        ScriptError: it requests more than the cluster has, or than an allocation may have.
    """
    state, policy = daemon.context.state, daemon.context.scheduler.engine.policy
    lease, least = state.lease, spec.smallest_start
    most = _most(state)
    if least > most and not spec.wait_for_nodes:
        there = "as the cluster has" if lease is None else "as are held at once"
        raise ScriptError(
            f"expected a job of at most {node_words(most)}, {there} "
            f"(--wait-for-nodes waits for more), got {least}"
        )
    if lease is not None and needs_s(spec) > lease.longest_s and not spec.wait_for_nodes:
        most_s = f"{lease.longest_s:.0f} s, as allocations last"
        raise ScriptError(f"expected --time of at most {most_s}, got {spec.limit_s:.0f} s")
    if least <= state.nodes:
        why = policy.placement.refusal(state.site, spec)
        if why is not None:
            raise ScriptError(
                f"expected a job that policy {policy.name} can place, got one that {why}"
            )


def _check_memory(jobs: int) -> None:
    """Refuse jobs if the address space limit of the process (``ulimit -v``) is nearly reached.

    Raises:
        MemoryError: too little is left; it may suffice after other jobs have ended.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    statm = Path("/proc/self/statm")
    if limit == resource.RLIM_INFINITY or not statm.exists():  # macOS has none
        return
    pages = int(statm.read_text().split()[0])
    left, needed = limit - pages * resource.getpagesize(), MARGIN_BYTES + jobs * JOB_BYTES
    if left < needed:
        expected = f"{needed >> 20} MiB of memory left to the daemon for {jobs} jobs"
        raise MemoryError(f"expected {expected}, got {left >> 20} MiB")


def _refuse_no_program(daemon: Daemon, body: Submission) -> None:
    """Refuse a script with a single command whose program does not exist.

    Scripts of several commands, shells with options (``bash -l``) and other machines may provide
    it.

    Raises:
        ScriptError: the program does not exist.
    """
    lines = [line.strip() for line in body.text.replace("\\\n", " ").split("\n")]
    commands = [line for line in lines if line and not line.startswith("#")]
    if daemon.launcher.shared_filesystem or len(commands) != 1 or not body.command:
        return
    if not _PLAIN_SHELL.fullmatch(lines[0]):
        return
    if not is_program(body.command[0], Path(body.cwd), body.env.get("PATH", os.defpath)):
        raise ScriptError(f"expected a program that can be run, got {body.command[0]!r}")


def _check_outputs(note: Mapping[str, Any], state: Path) -> None:
    """Refuse files of output that no job can be started with.

    Raises:
        ScriptError: they are something else.
    """
    for output in filter(None, (note["output"], note.get("error"))):
        _check(check_path, output)
        _check(check_own_file, Path(output), state)
        _check(check_output, Path(output))


def _check(check: Callable[..., None], *arguments: object) -> None:
    """Call a check of files or strings; raise its ValueError as ScriptError."""
    try:
        check(*arguments)
    except ValueError as error:
        raise ScriptError(str(error)) from None


def _repeated(daemon: Daemon, body: Submission) -> tuple[list[str], Notes]:
    """Return the ids that a submission has from before, else what is to be kept of its key.

    Raises:
        ScriptError: its key is that of another submission.
    """
    key = body.options.idempotency_key
    if not key:
        return [], {}
    digest = sha256(msgspec.json.encode((body.text, body.name, body.cwd, body.options))).hexdigest()
    found = daemon.journal.noted("submitted", key)
    if found and found["sha256"] != digest:
        first = found["ids"][0]
        raise ScriptError(
            f"--idempotency-key: expected another one for another submission, got that of {first}"
        )
    return found.get("ids", []), {f"submitted/{key}": {"sha256": digest}}


@contextmanager
def _folder(daemon: Daemon, number: int) -> Iterator[None]:
    """Make the folder of a submission; it goes again where its jobs are not taken in after all."""
    folder = daemon.launcher.state / "jobs" / str(number)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        if daemon.next_id() == number:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _placed(body: Submission, options: Options) -> Submission:
    """Return a submission with the folder and the environment that its options ask for.

    Raises:
        ScriptError: the folder is not there; a job is not to make one.
    """
    cwd = str(Path(body.cwd) / options.chdir) if options.chdir else body.cwd
    _check(check_path, cwd)
    if not os.path.isdir(cwd):  # noqa: PTH112 - Path.is_dir raises without permission
        raise ScriptError(f"expected an existing folder to run in, got {cwd!r}")
    if any("\0" in word for word in options.arguments or ()):
        raise ScriptError("expected arguments of the script without NUL, got one with it")
    env = body.env if options.export is None else exported(body.env, options.export)
    return msgspec.structs.replace(body, cwd=cwd, env=env)


def exported(env: Mapping[str, str], wanted: str) -> dict[str, str]:
    """Return what ``--export`` leaves of an environment.

    Args:
        wanted: ``ALL``, ``NONE`` or ``NIL`` (no variable), or names and ``NAME=VALUE`` with commas
            between; only these are left, unless ``ALL`` is among them.
    """
    variables: dict[str, str] = {}
    words = wanted.split(",")
    for word in words:
        name, equals, value = word.partition("=")
        if not equals and name in ("ALL", "NONE", "NIL"):
            if name != "ALL" and name != wanted:
                raise ScriptError(f"--export: expected {name} alone, got {wanted!r}")
            continue
        if not name:
            form = "ALL, NONE, or names and NAME=VALUE with commas between"
            raise ScriptError(f"--export: expected {form}, got {wanted!r}")
        if equals or name in env:
            variables[name] = value if equals else env[name]
    return {**env, **variables} if "ALL" in words else variables


def _keep(context: Context, number: int, text: str, env: dict[str, str]) -> None:
    """Write script and environment as they are now; what becomes of the user's does not matter."""
    folder = context.launcher.state / "jobs" / str(number)
    write_whole(folder / "script", text, sync=True, mode=0o700)
    context.private.keep(f"{number}/environment", env, sync=True)
    sync_folder(folder)
    sync_folder(folder.parent)


_READ_LATER = ("begin", "dependency", "signal", "account", "nodelist", "exclude")


def _options(given: SubmitOptions) -> Options:
    for option in ("job_name", "output", "error", "chdir", "export", *_READ_LATER):
        text = getattr(given, option)
        if text is not None:
            read_option(option.replace("_", "-"), text)
    try:
        options = msgspec.convert(given, Options, from_attributes=True)
    except msgspec.ValidationError as error:
        raise ScriptError(str(error)) from None
    return dataclasses.replace(options, time_s=math.inf) if options.time_s == 0.0 else options


def _cooldown(options: Options) -> dict[str, str]:
    return {} if options.cooldown_s is None else {COOLDOWN_VARIABLE: f"{options.cooldown_s:g}"}


def _profile(daemon: Daemon, body: Submission, options: Options) -> Profile | None:
    """Return the measured profile of a submission: the one it names, or that of its program.

    Raises:
        ScriptError: it names one that there is not.
    """
    base, wanted = daemon.context.settings.profiles, options.profile
    if wanted == "none" or (wanted is None and (base is None or not body.program)):
        return None
    if wanted is not None:
        try:
            if wanted.endswith(".json"):  # its client has read it
                return profiles.parsed(body.profile.encode(), wanted)
            return profiles.named(base, wanted)
        except ProfileError as error:
            raise ScriptError(f"--profile: {error}") from None
    try:
        return profiles.find(base, Program(tuple(body.command), body.program), hardware)
    except ProfileError as error:
        daemon.say(f"no profile of {body.name}: {error}")  # it runs without one as well
        return None


def _spec(
    job_id: JobId, now: float, options: Options, array: Array | None, profile: Profile | None
) -> JobSpec:
    low, high = options.nodes or (1, 1)
    preferred = high if options.preferred is None else options.preferred
    if not low <= preferred <= high:
        expected = f"--preferred from {low} to {high}, the job's fewest and most nodes"
        raise ScriptError(f"expected {expected}, got {preferred}")
    speedup, gb_s = None, options.memory_bandwidth_gb_s
    points: tuple[OperatingPoint, ...] = ()
    if profile is not None:
        gb_s = profile.memory_bandwidth_gb_s if gb_s is None else gb_s
        speedup = profile.speedup(low, high, power=options.power_w is None)
        points = operating_points(profile)
    try:
        return JobSpec(
            id=job_id,
            submit_s=now,
            nodes_min=low,
            nodes_max=high,
            preferred=preferred,
            mode=options.mode or Mode.FIXED,
            limit_s=None if options.time_s in (None, math.inf) else options.time_s,
            array=None if array is None else job_id.partition("_")[0],
            array_limit=None if array is None else array.limit,
            power_w=options.power_w,
            speedup=speedup,
            bandwidth_gb_s=gb_s,
            operating_points=points,
            hold=bool(options.hold),
            wait_for_nodes=bool(options.wait_for_nodes),
            account=options.account or "",
            priority=options.priority or 0,
        )
    except ValueError as error:
        raise ScriptError(str(error)) from None


def _begin_s(daemon: Daemon, options: Options) -> float | None:
    """Return when jobs may start at the earliest, by the daemon's clock; None for now."""
    if options.begin is None:
        return None
    skew_s = daemon.context.skew_s  # a user's times are those of the day
    return parse_begin(options.begin, daemon.context.now() + skew_s) - skew_s


def _after(daemon: Daemon, options: Options, name: str) -> tuple[tuple[Dependency, ...], bool]:
    """Return what jobs of a submission wait for, and whether any of it is enough.

    Raises:
        ScriptError: there is no such job.
    """
    if options.dependency is None:
        return (), False
    asked, state = parse_dependency(options.dependency), daemon.context.state
    after = []
    for kind, job in asked.after:
        over = daemon.journal.archived(job) if unknown(state, [job]) else []
        if not over and unknown(state, [job]):
            raise ScriptError(f"--dependency: expected the id of a job, got {job}, not known")
        if not over or not is_met(kind, [JobState(each.row.state) for each in over]):
            after.append(Dependency(kind, job))
        elif asked.any_of:
            return (), False
    if asked.singleton:
        notes = [daemon.jobs[job_id].shared for job_id in (*state.waiting, *state.running)]
        same = dict.fromkeys(note["array"] for note in notes if note.get("name") == name)
        after += [Dependency("afterany", job) for job in same]
    return tuple(after), asked.any_of


def _limited(spec: JobSpec, options: Options, state: State) -> JobSpec:
    """Return a job without the sizes that its own power limit rules out."""
    if options.power_limit_w is None:
        return spec
    try:
        return within_limit(
            spec, state.power_models, options.power_limit_w, slots=state.least_slots
        )
    except ValueError as error:
        raise ScriptError(f"--power-limit: {error}") from None
