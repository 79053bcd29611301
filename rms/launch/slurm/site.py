"""The abilities of a site's Slurm, for ``rms serve --engine slurm --check``.

:func:`inspect_site` only reads; :func:`try_resize` resizes a job for two seconds, as a site may
refuse it in plugins of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from rms.launch.slurm.commands import Slurm, SlurmError
from rms.launch.slurm.known_faults import KNOWN_FAULTS, KnownFault
from rms.launch.slurm.known_faults import as_text as version_text
from rms.launch.slurm.output import JobDetails, SiteNode

OLDEST = (20, 11)
TRIED = ((22, 5), (24, 11), (26, 5))
"""The versions that the project's tests start."""

KNOWN_SELECTS = ("select/linear", "select/cons_tres", "select/cons_res")
UNFIT = ("down", "drained", "draining", "fail", "failing", "error", "unknown", "maint")


@dataclass(frozen=True)
class SlurmSite:
    """The facts of a site from which the verdicts follow."""

    version: tuple[int, ...]
    cluster: str
    select: str
    scheduler_parameters: tuple[str, ...]
    controller_parameters: tuple[str, ...]
    accounting: str
    energy: str
    nodes: tuple[SiteNode, ...]

    @property
    def fit(self) -> tuple[SiteNode, ...]:
        """Nodes that jobs can have."""
        return tuple(n for n in self.nodes if n.responds and n.state not in UNFIT)


@dataclass(frozen=True)
class Verdict:
    """Whether something is allowed on a site, and the reason or the alternative."""

    what: str
    allowed: bool
    why: str


def inspect_site(slurm: Slurm) -> SlurmSite:
    """Return the facts of a site; every command is called once."""
    version = slurm.version()
    config = slurm.config()
    nodes = tuple(slurm.nodes())
    queue = slurm.jobs("--states=all")
    if config.get("AccountingStorageType", "").endswith("/slurmdbd"):
        slurm.check_accounting(queue[0].job_id if queue else 1)

    def words(key: str) -> tuple[str, ...]:
        found = (word.strip().lower() for word in config.get(key, "").split(","))
        return tuple(word for word in found if word not in ("", "(null)"))

    return SlurmSite(
        version=version,
        cluster=config.get("ClusterName", ""),
        select=config.get("SelectType", ""),
        scheduler_parameters=words("SchedulerParameters"),
        controller_parameters=words("SlurmctldParameters"),
        accounting=config.get("AccountingStorageType", ""),
        energy=config.get("AcctGatherEnergyType", ""),
        nodes=nodes,
    )


def verdicts(site: SlurmSite) -> list[Verdict]:
    """Return the abilities of the two engines on a site."""
    engines = [engine_verdict(engine, site) for engine in ENGINES]
    return [*engines, _shrink(site), _grow(site), _books(site), _energy(site)]


def refusals(site: SlurmSite) -> dict[str, str]:
    """Return why a site changes no running job, by ``grow`` and ``shrink`` if it does not."""
    changes = {"grow": _grow(site), "shrink": _shrink(site)}
    books = _books(site)
    if not books.allowed:
        changes = {"grow": books, "shrink": books}
    return {what: verdict.why for what, verdict in changes.items() if not verdict.allowed}


def known_faults(site: SlurmSite) -> list[KnownFault]:
    """Return the known faults of a site's version and configuration."""
    return [
        fault
        for fault in KNOWN_FAULTS
        if fault.affects(site.version)
        and (not fault.plugins or site.select in fault.plugins)
        and (not fault.parameter or fault.parameter in site.controller_parameters)
    ]


def measures(site: SlurmSite) -> bool:
    """Return whether a site's Slurm measures energy."""
    return _energy(site).allowed


def try_resize(slurm: Slurm, name: str, now: Callable[[], float]) -> list[Verdict]:
    """Grow and shrink a job of one node, if two nodes are free; leave nothing.

    ``name`` is for this call's jobs alone; ``now`` is a clock for the times in the verdicts.
    """
    tried = []
    try:
        try:
            job = slurm.allocate(1, name, "--time=2")
            kept = slurm.job(job).hosts
        except SlurmError as error:
            return [Verdict("trying it on a job", False, str(error))]
        steps: tuple[tuple[str, Callable[[], JobDetails]], ...] = (
            ("growing a running job, tried", lambda: slurm.grow(job, 1, f"{name}-donor")),
            ("shrinking a running job, tried", lambda: slurm.shrink(job, kept)),
        )
        for what, act in steps:
            begun = now()
            try:
                hosts = act().hosts
                why = (
                    f"it had {len(hosts)} node{'s' * (len(hosts) > 1)} {now() - begun:.2f} s later"
                )
                tried.append(Verdict(what, True, why))
            except SlurmError as error:
                tried.append(Verdict(what, False, str(error)))
                break
    finally:
        slurm.cancel_named(name)
    return tried


def as_text(site: SlurmSite, tried: Iterable[Verdict] = ()) -> list[str]:
    """Return the verdicts as lines of text."""
    head = (
        f"Slurm {version_text(site.version)}, cluster {site.cluster or '(no name)'},"
        f" {site.select or 'select unknown'}:"
        f" {len(site.fit)} of {len(site.nodes)} nodes fit for work"
    )
    lines = [
        f"{'yes' if v.allowed else 'no ':3s}  {v.what}: {v.why}" for v in [*verdicts(site), *tried]
    ]
    if site.version[:2] not in TRIED:
        tried_with = ", ".join(map(version_text, TRIED))
        lines.append(f"rms is tested with Slurm {tried_with}, not with this version")
    faults = [
        f"fault  {known.fault} ({known.versions}): {known.advice} [{known.source}]"
        for known in known_faults(site)
    ]
    return [head, *lines, *(faults or ["no known fault of this version hits jobs that resize"])]


def as_json(site: SlurmSite, tried: Iterable[Verdict] = ()) -> dict[str, Any]:
    """Return the facts and the verdicts as JSON."""
    rows = [asdict(verdict) for verdict in [*verdicts(site), *tried]]
    faults = [{**asdict(known), "versions": known.versions} for known in known_faults(site)]
    return {**asdict(site), "verdicts": rows, "known_faults": faults}


ENGINES = {
    "slurm-pilot": (
        "engine slurm-pilot",
        "steps share nodes (--overlap) only since Slurm 20.11",
        "resizes within one allocation need nothing of the site",
    ),
    "slurm": (
        "engine slurm, jobs of their own",
        "expected Slurm 20.11 or newer",
        "every array task becomes a job; any resize may go by a checkpoint",
    ),
}
"""The engines: title, reason on a site that is too old, and reason on others."""


def engine_verdict(engine: str, site: SlurmSite) -> Verdict:
    """Return whether an engine, ``slurm-pilot`` or ``slurm``, can work on a site at all."""
    what, too_old, allowed = ENGINES[engine]
    if site.version < OLDEST:
        return Verdict(what, False, too_old)
    if not site.fit:
        return Verdict(what, False, "no node is fit for work now")
    return Verdict(what, True, allowed)


def _shrink(site: SlurmSite) -> Verdict:
    what = "shrinking running jobs"
    if "disable_job_shrink" in site.scheduler_parameters:
        return Verdict(what, False, "SchedulerParameters has disable_job_shrink: by checkpoint")
    if site.select not in KNOWN_SELECTS:
        return Verdict(what, False, _untried(site))
    return Verdict(what, True, "scontrol update NodeList=, on jobs of one's own")


def _grow(site: SlurmSite) -> Verdict:
    what, fit = "growing running jobs", len(site.fit)
    free = sum(not node.gres for node in site.fit)
    if "permit_job_expansion" not in site.scheduler_parameters:
        reason = "SchedulerParameters lacks permit_job_expansion: by checkpoint, or pilot"
        return Verdict(what, False, reason)
    if site.select not in KNOWN_SELECTS:
        return Verdict(what, False, _untried(site))
    if not free:
        return Verdict(what, False, "every node has GRES, and such jobs cannot grow: use the pilot")
    if free < fit:
        return Verdict(what, True, f"by donors, on the {free} of {fit} nodes without GRES")
    return Verdict(what, True, "by donors (salloc --dependency=expand)")


def _untried(site: SlurmSite) -> str:
    return f"{site.select or 'this selection'} was never tried: by checkpoint"


def _books(site: SlurmSite) -> Verdict:
    what = "more than one resize of a job, and sacct's agreement"
    if not site.accounting.endswith("/slurmdbd"):
        return Verdict(what, False, "no slurmdbd: a job's second resize fails: use the pilot")
    return Verdict(what, True, "slurmdbd keeps every resize, in whole seconds")


def _energy(site: SlurmSite) -> Verdict:
    what = "Slurm's own ConsumedEnergy"
    plugin = site.energy.rpartition("/")[2]
    if plugin in ("", "none", "(null)"):
        return Verdict(what, False, "no AcctGatherEnergyType: rms measures or models by itself")
    return Verdict(what, True, f"shown beside, from {plugin}")
