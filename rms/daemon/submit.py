"""From a submitted script to jobs: options, array, sizes, files."""

from __future__ import annotations

import asyncio
import dataclasses
import getpass
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from rms.core.dependencies import is_met, unknown
from rms.core.model import Dependency, JobId, JobSpec, JobState, Mode
from rms.core.powercap import within_limit
from rms.core.speedup import OperatingPoint
from rms.core.state import State
from rms.daemon.context import Context, Notes
from rms.daemon.daemon import Daemon
from rms.daemon.jobs import job_note
from rms.daemon.node_lists import node_lists
from rms.formats import profiles
from rms.formats.begin import parse_begin
from rms.formats.config import operating_points
from rms.formats.dependency import parse_dependency
from rms.formats.ids import Array, parse_array
from rms.formats.jobscript import (
    DEFAULT_ARRAY_OUTPUT,
    DEFAULT_OUTPUT,
    Options,
    ScriptError,
    nodes_of_tasks,
    parse_text,
    read_option,
    refuse_unsupported,
)
from rms.formats.profiles import Profile, ProfileError, Program
from rms.formats.signals import parse_signal
from rms.launch.machine import hardware
from rms.launch.outputs import check_output, check_strings
from rms.wire.files import sync_folder, write_whole
from rms.wire.messages import COOLDOWN_VARIABLE
from rms.wire.users import JobIds, Submission, SubmitOptions

PLACING = {
    *("--deadline", "--reservation", "--nodefile", "-F", "--constraint", "-C"),
}
"""Options of sbatch that say when or where a job may run: not to heed them is no small thing."""

CHUNK = 250
"""How many tasks of an array are made at a stretch, before others have their turn."""

MOST_CHECKED = 100
"""Of so many tasks the output is looked at; all are when they start."""


async def admit(daemon: Daemon, body: Submission) -> JobIds:
    """Make jobs of a submission and hand them to the daemon; return their ids.

    One that is refused uses no number up and leaves nothing on the disk; one that is repeated, with
    its key, is the one that there is. Others have their turn while it makes a large array; the next
    submission may begin when it has returned.

    Raises:
        ScriptError: the script or its options cannot be run.
        OSError, JournalError: it cannot be kept now.
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
    warnings = _warnings(daemon.launcher.unheeded(script.slurm_options))
    if not daemon.launcher.watches_processes and (body.options.memory_mib or body.options.signal):
        raise ScriptError("expected --mem and --signal in #SBATCH lines, for Slurm, got them here")
    body = _placed(body, options)
    cluster = daemon.context.cluster
    shared = bool(cluster.shared)
    refuse_unsupported(options, cluster.widths, shared=shared)
    options = nodes_of_tasks(options, cluster.widths, shared=shared)
    note = _note(daemon, number, body, options)
    specs = await _specs(daemon, number, body, options, note)
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
    try:
        check_strings(body.cwd, body.env)
    except ValueError as error:
        raise ScriptError(str(error)) from None
    requeue, profile = options.requeue, _profile(daemon, body, options)
    default = DEFAULT_OUTPUT if options.array is None else DEFAULT_ARRAY_OUTPUT
    note: dict[str, Any] = {
        "script": str(daemon.launcher.state / "jobs" / str(number) / "script"),
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
    lists = node_lists(daemon.context, options, len(indices))
    specs: list[JobSpec] = []
    for index in indices:
        job_id = JobId(str(number) if index is None else f"{number}_{index}")
        spec = _spec(job_id, now_s, options, array, profile)
        spec = replace(spec, begin_s=begin_s, after=after, after_any=any_of)
        spec = spec if lists is None else lists.of(spec)
        specs.append(_limited(spec, options, daemon.context.state))
        if len(specs) <= MOST_CHECKED:
            _check_outputs(job_note(note, job_id))
        if len(specs) % CHUNK == 0:
            await asyncio.sleep(0)
    return specs


def _check_outputs(note: Mapping[str, Any]) -> None:
    """Refuse files of output that no job can be started with.

    Raises:
        ScriptError: they are something else.
    """
    for output in filter(None, (note["output"], note.get("error"))):
        try:
            check_strings(output, {})
            check_output(Path(output))
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
    if not Path(cwd).is_dir() and "\0" not in cwd:
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
    found: dict[str, str] = {}
    for word in wanted.split(","):
        name, given, value = word.partition("=")
        if not given and name in ("ALL", "NONE", "NIL"):
            if name != "ALL" and name != wanted:
                raise ScriptError(f"--export: expected {name} alone, got {wanted!r}")
            found = {**(env if name == "ALL" else {}), **found}
        elif not name:
            form = "ALL, NONE, or names and NAME=VALUE with commas between"
            raise ScriptError(f"--export: expected {form}, got {wanted!r}")
        elif given or name in env:
            found[name] = value if given else env[name]
    return found


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
        return msgspec.convert(given, Options, from_attributes=True)
    except msgspec.ValidationError as error:
        raise ScriptError(str(error)) from None


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
            preferred=high if options.preferred is None else options.preferred,
            mode=options.mode or Mode.FIXED,
            limit_s=None if options.time_s in (None, math.inf) else options.time_s,
            array=None if array is None else job_id.partition("_")[0],
            array_limit=None if array is None else array.limit,
            power_w=options.power_w,
            speedup=speedup,
            bandwidth_gb_s=gb_s,
            operating_points=points,
            hold=bool(options.hold),
            account=options.account or "",
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
