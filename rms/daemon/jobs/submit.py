"""Submissions: from a script to jobs (options, array, sizes, files), and jobs that are held.

A submission that cannot be run is refused by a :class:`ScriptError`.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import re
import resource
import shutil
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from hashlib import sha256
from math import inf
from pathlib import Path
from signal import SIGTERM

import msgspec
from msgspec.structs import replace

from rms.core.model.events import Event, Freed, Submitted, node_words
from rms.core.model.jobs import Dependency, JobId, JobSpec, JobState, Mode
from rms.core.model.speedup import OperatingPoint
from rms.core.policies.node_power import Consolidate
from rms.core.policies.placement import FirstFit
from rms.core.rules import transition
from rms.core.rules.checks import allowed, needs_s
from rms.core.rules.powercap import is_unknown, within_limit
from rms.core.rules.transition import is_met, unknown
from rms.core.state import State
from rms.daemon.store.context import Context, Handle, log
from rms.daemon.store.notes import IdempotencyNote, NextNote, Note, SubmissionNote
from rms.daemon.store.record import JobRuntime
from rms.formats import profiles
from rms.formats.config import operating_points
from rms.formats.jobscript import (
    DEFAULT_ARRAY_OUTPUT,
    DEFAULT_OUTPUT,
    Script,
    ScriptError,
    check_options,
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
from rms.launch.local import hardware
from rms.launch.processes import check_output, check_own_file, check_path, check_strings
from rms.wire.files import sync_folder, write_whole
from rms.wire.messages import COOLDOWN_VARIABLE
from rms.wire.mpiexec import is_program
from rms.wire.users import JobIds, Options, Submission

# Options of sbatch that restrict when or where a job may run: a job with them is refused.
PLACING = {"--deadline", "--reservation", "--nodefile", "-F", "--constraint", "-C"}
CHUNK = 250  # tasks of an array that are made before other requests are answered
# Limit of dependencies and profile points of all tasks together, as every task has a copy.
MOST_REPEATED = 100_000
# Number of tasks whose outputs are checked at submission; all are checked when they start.
MOST_CHECKED = 100
# First line of a script whose shell reads no other file before it.
_PLAIN_SHELL = re.compile("#! *(/usr)?/bin/(env +)?(ba)?sh")
# Address space per job, and the reserve for everything else: C libraries may crash without it.
MARGIN_BYTES = 32 << 20
JOB_BYTES = 3 << 10
# Limit of names of all tasks together, as every task has its own list in the journal.
MOST_NAMES = 1_000_000


class Submissions:
    """Takes in submissions."""

    def __init__(self, context: Context, handle: Handle) -> None:
        self._context, self._handle = context, handle
        self._turn = asyncio.Lock()

    async def submit(self, body: Submission) -> JobIds:
        """Make jobs of a submission and take them in; return their ids.

        A refused submission uses up no number and leaves nothing on the disk. A repeated one, by
        its key, gets the ids of the first. Other requests are answered while a large array is
        made; the next submission begins after this one. An OSError, JournalError or MemoryError
        means that the jobs cannot be kept now.
        """
        async with self._turn:
            key = _idempotency(self._context, body)
            return await self._admit(body, key) if key is None or not key.ids else JobIds(key.ids)

    async def _admit(self, body: Submission, key: IdempotencyNote | None) -> JobIds:
        context, number = self._context, self.next_id()
        read_option("job-name", body.name)
        script = parse_text(body.text, body.name)
        body, options, warnings = _heeded(context, body, script)
        _refuse_no_program(context, body)
        check_strings(body.cwd, body.env)
        profile = _profile(context, body, options)
        note = _note(context, number, body, options, profile)
        specs = await _specs(context, number, options, profile, note)
        _check_folders(note)
        warnings += _estimates(context, specs[0])
        ids: list[str] = [spec.id for spec in specs]
        env = dict(body.env)
        if options.cooldown_s is not None:
            env[COOLDOWN_VARIABLE] = f"{options.cooldown_s:g}"
        if key is not None:
            key.ids = ids
        notes = [NextNote(id=number + 1), *([] if key is None else [key])]
        folder = context.launcher.state / "jobs" / str(number)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            await asyncio.to_thread(_keep, context, number, body.text, env)
            self.enter(specs, note, notes)
        except BaseException:
            if self.next_id() == number:  # its jobs are not taken in
                shutil.rmtree(folder, ignore_errors=True)
            raise
        return JobIds(ids, warnings)

    def enter(
        self, specs: list[JobSpec], submission: SubmissionNote, notes: Sequence[Note] = ()
    ) -> None:
        """Take in jobs and further notes, all or nothing; they are on disk when it returns."""
        context, journal = self._context, self._context.journal
        event = Submitted(context.time(), tuple(specs))
        transition.check(context.state, event)
        with journal.whole():
            journal.note(submission, *notes)
            entry = journal.append(event)
        for spec in specs:
            context.jobs[spec.id] = JobRuntime(spec.id, submission)
        self._handle(event, number=entry)
        journal.flush()

    def next_id(self) -> int:
        """Return the next free job number. Its use must be noted by :class:`NextNote`."""
        return self._context.journal.noted(NextNote).id


def _heeded(
    context: Context, body: Submission, script: Script
) -> tuple[Submission, Options, list[str]]:
    """Return a submission in its folder and environment, its options, and warnings about them."""
    cluster, launcher, stated = context.cluster, context.launcher, script.options
    check_options(body.options)
    if body.options.nodes is not None:  # the script's tasks are ranks on the script's nodes
        stated = replace(stated, ntasks=None)
    options = body.options.over(stated)
    unheeded = launcher.nodes.unheeded(script.slurm_options)
    nodes = dict(zip(cluster.names, cluster.slots, strict=True))
    options, unheeded = nodes_with_gpus(options, unheeded, nodes)
    if "--exclusive" in unheeded:  # every job is exclusive on whole nodes
        if cluster.shared:
            raise ScriptError("expected no --exclusive, as jobs share nodes here, got --exclusive")
        unheeded.remove("--exclusive")
    warnings = _warnings(unheeded)
    if not launcher.watches_processes and (body.options.memory_mib or body.options.signal):
        raise ScriptError("expected --mem and --signal in #SBATCH lines, for Slurm, got them here")
    body = _placed(body, options)
    shared = bool(cluster.shared)
    listed = expand(options.nodelist) if options.nodelist else []
    widths = [len(nodes[name]) for name in listed if name in nodes] or cluster.widths
    refuse_unsupported(options, widths, shared=shared)
    options = nodes_of_tasks(options, widths, shared=shared)
    most_s = launcher.nodes.longest_s(script.slurm_options, body.env)
    if options.time_s and most_s < options.time_s:
        expected = f"{most_s:.0f} s, the limit of its partition"
        raise ScriptError(f"expected --time of at most {expected}, got {options.time_s:.0f} s")
    return body, options, warnings


# --- The options ----------------------------------------------------------------------------------


def _warnings(unheeded: Sequence[str]) -> list[str]:
    """Return a warning about options without effect; refuse those that restrict the job."""
    for word in unheeded:
        name = word.partition("=")[0] if word.startswith("--") else word[:2]
        if name in PLACING:
            got = f"{word}, which says when or where it may run"
            raise ScriptError(f"expected no #SBATCH option without effect here, got {got}")
    return [f"#SBATCH {' '.join(unheeded)}: without effect here"] if unheeded else []


def _placed(body: Submission, options: Options) -> Submission:
    """Return a submission with the folder and the environment of its options."""
    cwd = str(Path(body.cwd) / options.chdir) if options.chdir else body.cwd
    check_path(cwd)
    if not os.path.isdir(cwd):  # noqa: PTH112 - Path.is_dir raises without permission
        raise ScriptError(f"expected an existing folder to run in, got {cwd!r}")
    if any("\0" in word for word in options.arguments or ()):
        raise ScriptError("expected arguments of the script without NUL, got one with it")
    env = body.env if options.export is None else exported(body.env, options.export)
    return msgspec.structs.replace(body, cwd=cwd, env=env)


def exported(env: Mapping[str, str], wanted: str) -> dict[str, str]:
    """Return the environment that ``--export`` selects.

    ``wanted`` is ``ALL``, ``NONE`` or ``NIL`` (no variable), or names and ``NAME=VALUE`` with
    commas between, which are the only variables unless ``ALL`` is among them.
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


def _refuse_no_program(context: Context, body: Submission) -> None:
    """Refuse a plain script of this machine with one command, whose program does not exist."""
    lines = [line.strip() for line in body.text.replace("\\\n", " ").split("\n")]
    commands = [line for line in lines if line and not line.startswith("#")]
    if context.launcher.shared_filesystem or len(commands) != 1 or not body.command:
        return
    if not _PLAIN_SHELL.fullmatch(lines[0]):
        return
    if not is_program(body.command[0], Path(body.cwd), body.env.get("PATH", os.defpath)):
        raise ScriptError(f"expected a program that can be run, got {body.command[0]!r}")


# --- The jobs -------------------------------------------------------------------------------------


def _note(
    context: Context, number: int, body: Submission, options: Options, profile: Profile | None
) -> SubmissionNote:
    launcher, requeue = context.launcher, options.requeue
    default = DEFAULT_OUTPUT if options.array is None else DEFAULT_ARRAY_OUTPUT
    watched = launcher.watches_processes
    signal = parse_signal(options.signal) if watched and options.signal else None
    adapter = "" if options.resize_by in (None, "messages") else options.resize_by or ""
    if adapter and signal and signal.batch and signal.number == SIGTERM:
        expected = "a signal other than B:TERM with --resize-by"
        raise ScriptError(f"expected {expected}, got {options.signal}")
    return SubmissionNote(
        str(number),
        name=options.job_name or body.name,
        cwd=body.cwd,
        output=options.output or default,
        error=options.error,
        node=context.cluster.hosts[0],
        user=getpass.getuser(),
        array=str(number),
        resize_by=adapter,
        cooldown_s=(options.cooldown_s or 0.0) if adapter else 0.0,
        requeue=launcher.nodes.requeue_by_default if requeue is None else requeue,
        survive=options.survive or ("plan" if options.no_kill else ""),
        profile="" if profile is None else f"{profile.name}, measured {profile.measured}",
        arguments=list(options.arguments or ()),
        memory_mib=options.memory_mib if watched else None,
        signal=signal,
    )


def _check_folders(note: SubmissionNote) -> None:
    """Refuse outputs in folders that do not exist. Folders named after the job are made later."""
    for option, pattern in (("output", note.output), ("error", note.error)):
        if pattern is None:
            continue
        folder = Path(pattern).parent
        while "%" in str(folder):
            folder = folder.parent
        if not os.path.isdir(Path(note.cwd) / folder):  # noqa: PTH112 - Path.is_dir raises without permission
            raise ScriptError(f"expected an existing folder for --{option}, got {pattern}")


def _estimates(context: Context, spec: JobSpec) -> list[str]:
    """Return warnings about the run time and the power that a job is planned with."""
    warnings, state = list[str](), context.state
    if spec.assumed_s is not None:
        minutes, seconds = divmod(int(spec.assumed_s), 60)
        planned = f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"
        warnings.append(f"no --time: the job is planned with {planned}, which is not a limit")
    capped = state.power_cap_w is not None or context.scheduler.engine.policy.placement.caps_nodes
    if capped and is_unknown(state.power_models, spec):
        warnings.append(
            "no --power, no profile and no power model of busy nodes: the job counts as 0 W under "
            "the power cap"
        )
    return warnings


def _keep(context: Context, number: int, text: str, env: dict[str, str]) -> None:
    """Write script and environment; later changes of the user's files do not matter."""
    folder = context.launcher.state / "jobs" / str(number)
    write_whole(folder / "script", text, sync=True, mode=0o700)
    context.private.keep(f"{number}/environment", env, sync=True)
    sync_folder(folder)
    sync_folder(folder.parent)


async def _specs(
    context: Context, number: int, options: Options, profile: Profile | None, note: SubmissionNote
) -> list[JobSpec]:
    """Return the jobs of a submission; other requests are answered meanwhile."""
    array = None if options.array is None else parse_array(options.array)
    indices: list[int | None] = [None] if array is None else list(array.indices)
    now_s, begin_s = context.time(), None
    if options.begin is not None:
        skew_s = context.skew_s  # a user's times are those of the day
        begin_s = parse_begin(options.begin, context.now() + skew_s) - skew_s
    deadline_s = _deadline_s(context, options, now_s if begin_s is None else begin_s)
    after, any_of = _after(context, options, note.name)
    _check_memory(len(indices))
    only, never = _node_lists(context, options, len(indices))
    points = () if profile is None else profile.points
    if (repeated := (len(after) + len(points)) * len(indices)) > MOST_REPEATED:
        expected = f"at most {MOST_REPEATED} dependencies and profile points for all tasks"
        raise ScriptError(f"expected {expected}, got {repeated}")
    ids = [JobId(str(number) if index is None else f"{number}_{index}") for index in indices]
    spec = _spec(ids[0], now_s, options, array, profile)
    spec = replace(spec, begin_s=begin_s, after=after, after_any=any_of, deadline_s=deadline_s)
    if spec.is_assumed and options.time_s is None:
        spec = replace(spec, assumed_s=context.settings.assumed_s)
    if only or never:
        spec = _listed(replace(spec, nodelist=only, exclude=never), context.state, options)
    if options.preferred is None:
        spec = _at_most(spec, _most(context.state))
    spec = _limited(spec, options, context.state)
    _refuse_impossible(context, spec)
    specs: list[JobSpec] = []
    for job_id in ids:  # the tasks of an array differ in their ids only
        specs.append(replace(spec, id=job_id))
        if len(specs) <= MOST_CHECKED:
            for path in filter(None, note.files(job_id)):
                check_path(str(path))
                check_own_file(path, context.launcher.state)
                check_output(path)
        if len(specs) % CHUNK == 0:
            await asyncio.sleep(0)
    return specs


def _deadline_s(context: Context, options: Options, begin_s: float) -> float | None:
    """Return the time by which a job is to be over: the first of those that are stated."""
    deadlines = []
    if options.deadline is not None:
        skew_s = context.skew_s
        deadlines.append(parse_begin(options.deadline, context.now() + skew_s) - skew_s)
        if deadlines[0] <= begin_s:
            raise ScriptError(
                f"--deadline: expected a time after the job may start, got {options.deadline}"
            )
    if options.cheap_within_s is not None:
        deadlines.append(begin_s + options.cheap_within_s)
    return min(deadlines, default=None)


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
    return JobSpec(
        id=job_id,
        submit_s=now,
        nodes_min=low,
        nodes_max=high,
        preferred=preferred,
        mode=Mode(options.mode or Mode.FIXED),
        limit_s=options.time_s or None,
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


def _after(context: Context, options: Options, name: str) -> tuple[tuple[Dependency, ...], bool]:
    """Return the dependencies of a submission, and whether any of them is enough."""
    if options.dependency is None:
        return (), False
    dependency, state = parse_dependency(options.dependency), context.state
    after = []
    for kind, job in dependency.after:
        over = context.journal.archived(job) if unknown(state, [job]) else []
        if not over and unknown(state, [job]):
            raise ScriptError(f"--dependency: expected the id of a job, got {job}, unknown here")
        if not over or not is_met(kind, [JobState(entry.row.state) for entry in over]):
            after.append(Dependency(kind, job))
        elif dependency.any_of:
            return (), False
    if dependency.singleton:
        notes = [context.jobs[job_id].submission for job_id in (*state.waiting, *state.running)]
        same = dict.fromkeys(note.array for note in notes if note.name == name)
        after += [Dependency("afterany", job) for job in same]
    return tuple(after), dependency.any_of


def _most(state: State) -> int:
    """Return the maximum number of nodes of a job, including nodes that are down or drained."""
    return state.nodes if state.lease is None else min(state.nodes, state.lease.most)


def _at_most(spec: JobSpec, most: int) -> JobSpec:
    """Return a job that prefers the largest size of at most ``most`` nodes, else its smallest."""
    if spec.preferred <= most or spec.wait_for_nodes:
        return spec
    sizes = spec.sizes()
    fitting = bisect_right(sizes, most)
    return replace(spec, preferred=sizes[fitting - 1] if fitting else spec.nodes_min)


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


def _profile(context: Context, body: Submission, options: Options) -> Profile | None:
    """Return the measured profile that a submission names, or the profile of its program."""
    base, wanted = context.settings.profiles, options.profile
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
        log.info(f"no profile of {body.name}: {error}")  # it runs without one as well
        return None


def _node_lists(
    context: Context, options: Options, tasks: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of ``--nodelist`` and ``--exclude`` of a submission of ``tasks`` jobs."""
    texts = {"--nodelist": options.nodelist, "--exclude": options.exclude}
    names = {name: tuple(dict.fromkeys(expand(text))) for name, text in texts.items() if text}
    if not names:
        return (), ()
    name, state, policy = next(iter(names)), context.state, context.scheduler.engine.policy
    if state.lease is not None:
        raise ScriptError(f"expected no {name} where allocations come and go, got {texts[name]!r}")
    if not isinstance(policy.placement, FirstFit | Consolidate):  # others pick nodes themselves
        expected = "a policy that takes nodes in order (placement first-fit)"
        raise ScriptError(f"{name}: expected {expected}, got {policy.name}")
    for name, nodes in names.items():
        unknown = [node for node in nodes if node not in context.cluster.nodes_of]
        if unknown:
            raise ScriptError(f"{name}: expected nodes of this cluster, got {unknown[0]!r}")
    if (number := sum(map(len, names.values())) * tasks) > MOST_NAMES:
        raise ScriptError(f"{name}: expected {MOST_NAMES} names for all tasks, got {number}")
    return names.get("--nodelist", ()), names.get("--exclude", ())


def _listed(spec: JobSpec, state: State, options: Options) -> JobSpec:
    """Return a job with node lists, no larger than they allow.

    As with ``sbatch``, but the job gets no nodes beside those of its ``--nodelist``.
    """
    most, has_preferred = len(allowed(state, spec)), options.preferred is not None
    if spec.nodelist and options.nodes is None and not has_preferred and most:
        return replace(spec, nodes_min=most, nodes_max=most, preferred=most)
    least = spec.preferred if has_preferred and not spec.mode.any_start else spec.nodes_min
    if most >= least:
        preferred = min(spec.preferred, most)
        spec = replace(spec, preferred=preferred, nodes_max=min(spec.nodes_max, most))
    if most < least or not spec.sizes() or spec.smallest_start > most:
        lists = "--nodelist" if spec.nodelist else "--exclude"
        raise ScriptError(f"{lists}: expected at least {least} nodes left to it, got {most}")
    return spec


# --- Refusals and warnings ------------------------------------------------------------------------


def _refuse_impossible(context: Context, spec: JobSpec) -> None:
    """Refuse a job that could never start, also with the nodes that are down or drained."""
    state, policy = context.state, context.scheduler.engine.policy
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
    """Raise a MemoryError if the address space limit (``ulimit -v``) is nearly reached."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    statm = Path("/proc/self/statm")
    if limit == resource.RLIM_INFINITY or not statm.exists():  # macOS has none
        return
    pages = int(statm.read_text().split()[0])
    left, needed = limit - pages * resource.getpagesize(), MARGIN_BYTES + jobs * JOB_BYTES
    if left < needed:
        expected = f"{needed >> 20} MiB of memory left to the daemon for {jobs} jobs"
        raise MemoryError(f"expected {expected}, got {left >> 20} MiB")


def _idempotency(context: Context, body: Submission) -> IdempotencyNote | None:
    """Return the note of a submission's key, with ids if it was taken in; None without a key."""
    key = body.options.idempotency_key
    if not key:
        return None
    digest = sha256(msgspec.json.encode((body.text, body.name, body.cwd, body.options))).hexdigest()
    note = context.journal.noted(IdempotencyNote, key)
    if note.ids and note.sha256 != digest:
        first = note.ids[0]
        raise ScriptError(
            f"--idempotency-key: expected another one for another submission, got that of {first}"
        )
    note.sha256 = digest
    return note


class Holds:
    """Frees held jobs when their time has come."""

    def __init__(self, context: Context, handle: Handle) -> None:
        self._context, self._handle = context, handle
        self._next_s = -inf

    def on_event(self, event: Event) -> None:
        """Check at the next tick, if the event may change which job is due next."""
        if event.changes_holds:
            self._next_s = -inf

    def tick(self) -> None:
        """Free the jobs whose time has come."""
        context = self._context
        at_s, state = context.time(), context.state
        if self._next_s > at_s:
            return
        if jobs := transition.due(state, at_s):
            self._handle(Freed(at_s, jobs))
        self._next_s = transition.next_s(state)
