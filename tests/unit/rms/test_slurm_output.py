"""Slurm's output as recorded of each version by ``record_slurm``, and refusals as it words them."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from accounting import records_from_text
from processes import ROOT

from rms.launch.slurm import output
from rms.launch.slurm import site as probe
from rms.launch.slurm.commands import (
    CommandResult,
    Meaning,
    Slurm,
    SlurmError,
    meaning_of,
    run_command,
)
from rms.launch.slurm.known_faults import KNOWN_FAULTS

SAMPLES = Path(__file__).parent / "slurm_samples"
VERSIONS = [path.stem for path in sorted(SAMPLES.glob("*.json"))]
OLDEST = VERSIONS[0]


@functools.cache
def calls(version: str) -> list[tuple[str, str, CommandResult]]:
    """Return (name, command, result) of what ``record_slurm`` has recorded of a version."""
    rows = json.loads((SAMPLES / f"{version}.json").read_text())["calls"]
    return [
        (
            row["name"],
            " ".join(row["command"]),
            CommandResult(row["status"], "\n".join(row["out"]), "\n".join(row["err"])),
        )
        for row in rows
    ]


def result(name: str, version: str = OLDEST) -> CommandResult:
    """Return the last result under a name."""
    return [done for recorded, _, done in calls(version) if recorded == name][-1]


def sample(name: str, version: str = OLDEST) -> str:
    return result(name, version).out


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    """Each recorded version of Slurm."""
    found: str = request.param
    return found


class Recorded:
    """Answers as the first of its rules says whose words all occur in the command."""

    def __init__(self, *rules: tuple[str, CommandResult]) -> None:
        self.rules = rules
        self.commands: list[str] = []
        self.environments: list[Mapping[str, str]] = []

    def __call__(
        self, command: Sequence[str], environment: Mapping[str, str], deadline_s: float
    ) -> CommandResult:
        said = " ".join(command)
        self.commands.append(said)
        self.environments.append(environment)
        for words, done in self.rules:
            if all(word in said.split() for word in words.split()):
                return done
        raise AssertionError(f"not recorded: {said}")


# -- What is printed, by every recorded version -----------------------------------------------


def test_the_recorded_versions() -> None:
    numbers = [output.version_from_text(sample("version", version)) for version in VERSIONS]
    assert numbers == [tuple(map(int, version.split("."))) for version in VERSIONS]
    assert tuple(number[:2] for number in numbers) == probe.TRIED


def test_the_queue(version: str) -> None:
    rows = {(row.array_id or row.job_id, row.task): row for row in queue(version)}
    assert len(rows) == 7
    odd = rows[1, None]
    assert (odd.name, odd.state, odd.hosts, odd.nodes) == ("wide | odd=name", "RUNNING", ("n4",), 1)
    assert odd.limit_s == 26 * 3600 + 4 * 60
    assert odd.start_s is not None
    assert (rows[2, 1].state, rows[2, 1].hosts) == ("RUNNING", ("n1",))
    (later,) = (row for row in rows.values() if row.name == "later")
    assert (later.reason, later.limit_s, later.start_s) == ("Dependency", math.inf, None)
    waiting = [row for row in rows.values() if row.reason == "Resources"]
    assert sorted(row.task or 0 for row in waiting) == [1, 2, 3]
    assert {(row.nodes, row.state, row.hosts) for row in waiting} == {(2, "PENDING", ())}


def queue(version: str) -> list[output.QueuedJob]:
    return output.queue_from_text(sample("queue", version))


def test_a_donor_in_the_queue(version: str) -> None:
    """One that was merged, and those that were refused."""
    rows = output.queue_from_text(sample("donors", version))
    assert {row.name for row in rows} == {"rms-donor-test"}
    assert [row.state for row in rows if row.state != "FAILED"] == ["COMPLETED"]
    assert {row.hosts for row in rows} == {()}


def test_nodes(version: str) -> None:
    nodes = {node.name: node for node in output.nodes_from_text(sample("nodes", version))}
    assert {name: node.state for name, node in nodes.items()} == {
        "n1": "allocated",
        "n2": "allocated",
        "n3": "idle",
        "n4": "draining",
    }
    assert all(node.responds and node.cpus == 2 and not node.gres for node in nodes.values())
    assert [node.reason for node in nodes.values() if node.reason] == ["bad | fan = 1"]
    assert {node.partitions for node in nodes.values()} == {("all",)}


def test_a_node_that_is_down(version: str) -> None:
    nodes = {node.name: node for node in output.nodes_from_text(sample("nodes-down", version))}
    assert (nodes["n3"].state, nodes["n3"].responds) == ("down", False)
    assert nodes["n3"].reason == "Not responding"
    assert (nodes["n4"].state, nodes["n1"].responds) == ("drained", True)


def test_partitions(version: str) -> None:
    (found,) = output.partitions_from_text(sample("partitions", version))
    assert found == output.Partition("all", True, ("n1", "n2", "n3", "n4"), math.inf)


def test_a_node_of_two_partitions_that_does_not_answer() -> None:
    text = "n1|all*|down*|2|(null)|Not responding\nn1|long|down*|2|(null)|Not responding\n"
    (node,) = output.nodes_from_text(text)
    assert (node.partitions, node.state, node.responds) == (("all", "long"), "down", False)


def test_a_resized_job_in_the_records(version: str) -> None:
    rows = [row for row in records_from_text(sample("sacct", version)) if row.name == "winds"]
    (ended,) = (row for row in rows if row.state == "CANCELLED")
    first, then = (row for row in rows if row.job_id != ended.job_id)
    assert (first.state, first.nodes, first.hosts) == ("RESIZING", 1, ("n1",))
    assert (then.state, then.nodes, then.hosts) == ("RUNNING", 2, ("n1", "n3"))
    assert first.end_s == then.start_s
    assert then.end_s is None
    assert ended.end_s is not None


def test_a_job_that_was_grown_and_shrunk_in_the_records(version: str) -> None:
    rows = records_from_text(sample("sacct-shrunk", version))
    assert [(row.state, row.nodes) for row in rows] == [
        ("RESIZING", 1),
        ("RESIZING", 2),
        ("RUNNING", 1),
    ]
    assert [row.end_s for row in rows[:-1]] == [row.start_s for row in rows[1:]]


def test_details_of_a_resized_job(version: str) -> None:
    job = output.details_from_text(sample("job", version))
    assert (job.state, job.hosts, job.batch_host) == ("RUNNING", ("n1", "n3"), "n1")
    assert not job.has_gres
    assert job.start_s is not None
    assert job.resized_s is not None
    assert job.resized_s >= job.start_s
    assert job.end_s == job.start_s + 600


def test_details_of_a_job_that_has_ended(version: str) -> None:
    job = output.details_from_text(sample("job-ended", version))
    assert job.state in ("FAILED", "CANCELLED")
    assert job.end_s is not None


def test_a_name_cannot_pass_for_a_field(version: str) -> None:
    odd = "NodeList=n9 JobState=FAILED ResizeTime=7 Gres=a:1"
    text = sample("job-odd", version).replace("wide | odd=name", odd)
    job = output.details_from_text(text)
    assert (job.job_id, job.state, job.hosts, job.resized_s) == (1, "RUNNING", ("n4",), None)
    assert not job.has_gres


def test_details_of_a_job_with_gres(version: str) -> None:
    assert output.details_from_text(sample("job-gres", version)).has_gres
    nodes = output.nodes_from_text(sample("nodes-gres", version))
    assert [node.gres for node in nodes] == ["token:2", "token:2"]


def test_steps(version: str) -> None:
    site = Recorded(("squeue", result("steps", version)))
    steps = {name: step for step, name in Slurm({}, "me", site).steps(9)}
    assert set(steps) == {"rms.step", "batch"}
    assert steps["rms.step"] == "9.0"


# -- The commands' exchange with a controller, repeated ----------------------------------------


class Repeated:
    """The recorded results under a name, in their order; each command has to be the recorded."""

    def __init__(self, name: str, version: str) -> None:
        self.left = [row[1:] for row in calls(version) if row[0] == name]

    def __call__(
        self, command: Sequence[str], environment: Mapping[str, str], deadline_s: float
    ) -> CommandResult:
        expected, done = self.left.pop(0)
        assert " ".join(command) == expected
        return done


def repeated(name: str, version: str) -> Slurm:
    return Slurm({}, "root", Repeated(name, version))


def number(version: str, task: int) -> int:
    return next(row.job_id for row in queue(version) if (row.array_id, row.task) == (2, task))


@pytest.mark.promise("slurm-versions")
def test_growing_and_shrinking_as_recorded(version: str) -> None:
    job = number(version, 1)
    assert repeated("grow", version).grow(job, 1, "rms-donor-test").hosts == ("n1", "n3")
    assert repeated("shrink", version).shrink(job, ["n1"]).hosts == ("n1",)
    assert Slurm({}, "me", Recorded(("sbatch", result("submit", version)))).submit("job.sh") == 2
    assert repeated("ping", version).ping()
    assert not repeated("away-ping", version).ping()
    assert not repeated("off-ping", version).ping()


REFUSALS = {
    "grow-others-wait": Meaning.LATER,
    "grow-busy": Meaning.LATER,
    "shrink-of-an-array": Meaning.NEVER,
    "shrink-to-others": Meaning.NEVER,
    "denied-cancel": Meaning.DENIED,
    "denied-update": Meaning.DENIED,
    "signal-ended": Meaning.GONE,
    "shrink-ended": Meaning.GONE,
    "grow-ended": Meaning.GONE,
    "job-unknown": Meaning.GONE,
    "shrink-unknown": Meaning.GONE,
    "submit-no-such-partition": Meaning.NEVER,
    "update-running-nodes": Meaning.NEVER,
    "allocate-no-such-node": Meaning.NEVER,
    "away-queue": Meaning.UNREACHABLE,
    "away-nodes": Meaning.UNREACHABLE,
    "away-job": Meaning.UNREACHABLE,
    "away-submit": Meaning.UNREACHABLE,
    "away-allocate": Meaning.UNREACHABLE,
    "away-shrink": Meaning.UNREACHABLE,
    "away-cancel": Meaning.UNREACHABLE,
    "off-queue": Meaning.UNREACHABLE,
    "off-accounting": Meaning.UNREACHABLE,
}
PINGS = ("away-ping", "off-ping")


@pytest.mark.promise("slurm-versions")
def test_what_every_recorded_refusal_means(version: str) -> None:
    found = {
        name: meaning_of(done.err)
        for name, _, done in calls(version)
        if done.status and name not in PINGS
    }
    assert found == REFUSALS


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("(null)", ()),
        ("None assigned", ()),
        ("n4", ("n4",)),
        ("n[1,4]", ("n1", "n4")),
        ("n[09-11],gpu[1-2,5]x,login", ("n09", "n10", "n11", "gpu1x", "gpu2x", "gpu5x", "login")),
    ],
)
def test_lists_of_nodes(text: str, names: tuple[str, ...]) -> None:
    assert output.hosts(text) == names


@pytest.mark.parametrize(
    ("text", "version"), [("slurm-wlm 22.05.8", (22, 5, 8)), ("slurm 24.11.0-0rc1", (24, 11, 0))]
)
def test_versions(text: str, version: tuple[int, ...]) -> None:
    assert output.version_from_text(text) == version


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (output.queue_from_text, "1|2|3\n"),
        (output.queue_from_text, "x|9|1|PENDING|1||None|1|1|1|root|winds\n"),
        (records_from_text, "1|2\n"),
        (output.details_from_text, "JobId=1 JobName=x\n"),
        (output.hosts, "n[1-"),
        (output.hosts, "n[3-1]"),
        (output.version_from_text, "no"),
    ],
)
def test_other_shapes_are_refused_in_one_sentence(read, text) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=r"expected .* got "):
        read(text)


# -- The commands ----------------------------------------------------------------------------


def test_a_controller_that_is_away() -> None:
    away = CommandResult(
        1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    )
    with pytest.raises(SlurmError) as refused:
        Slurm({}, "me", Recorded(("squeue", away))).jobs()
    assert refused.value.meaning is Meaning.UNREACHABLE


def test_an_allocation_around_us_is_not_handed_on() -> None:
    site = Recorded(("sacct", result("sacct")), ("scontrol", result("job")))
    outer = {
        "SLURM_JOB_ID": "7",
        "SQUEUE_FORMAT": "%i",
        "SLURM_CONF": "/x/slurm.conf",
        "HOME": "/h",
    }
    slurm = Slurm(outer, "me", site)
    slurm.check_accounting(11)
    slurm.job(11)
    kept = {"SLURM_CONF": "/x/slurm.conf", "HOME": "/h", "SLURM_TIME_FORMAT": "%s"}
    assert site.environments == [kept, kept]


@pytest.mark.parametrize(
    ("words", "meaning"),
    [
        ("salloc: error: Unable to allocate resources: Requested nodes are busy", Meaning.LATER),
        (
            "salloc: error: Unable to allocate resources: Immediate execution impossible,"
            " insufficient priority",
            Meaning.LATER,
        ),
        ("salloc: error: Job submit/allocate failed: Job dependency problem", Meaning.GONE),
        ("Job has already finished for job 6", Meaning.GONE),
        ("slurm_load_jobs error: Invalid job id specified", Meaning.GONE),
        ("Invalid user id for job 15", Meaning.DENIED),
        ("scancel: error: Kill job error on job id 15: Access/permission denied", Meaning.DENIED),
        ("Unable to contact slurm controller (connect failure)", Meaning.UNREACHABLE),
        ("Invalid node name specified for job 2", Meaning.NEVER),
        ("Job step already exists for job 12", Meaning.NEVER),
        ("Unspecified error for job 8", Meaning.NEVER),
    ],
)
def test_what_a_refusal_means(words: str, meaning: Meaning) -> None:
    assert meaning_of(words) is meaning


def details(job: int, hosts: str, gres: str = "", state: str = "RUNNING") -> CommandResult:
    name = "rms-donor-7" if job == 9 else "x"
    said = (
        f"JobId={job} JobName={name}\n JobState={state} Reason=None\n StartTime=1 EndTime=2\n"
        f" NodeList={hosts}\n BatchHost=n1\n JOB_GRES={gres or '(null)'}\n\n"
    )
    return CommandResult(0, said, "")


GRANTED = CommandResult(
    0, "", "salloc: Pending job allocation 9\nsalloc: Granted job allocation 9\n"
)
OK = CommandResult(0, "", "")


class Changing(Recorded):
    """A job that shows other nodes once something was merged into it."""

    def __init__(self, after: CommandResult, *rules: tuple[str, CommandResult]) -> None:
        super().__init__(*rules)
        self.after = after

    def __call__(
        self, command: Sequence[str], environment: Mapping[str, str], deadline_s: float
    ) -> CommandResult:
        merged = any("NumNodes=0" in said for said in self.commands)
        done = super().__call__(command, environment, deadline_s)
        return self.after if merged and "show job 7" in self.commands[-1] else done


def test_growing() -> None:
    site = Changing(
        details(7, "n[1-3]"),
        ("scontrol show 7", details(7, "n1")),
        ("scontrol show 9", details(9, "n[2-3]")),
        ("salloc", GRANTED),
        ("scontrol jobid=9 NumNodes=0", OK),
    )
    assert Slurm({}, "me", site).grow(7, 2, "rms-donor-7").hosts == ("n1", "n2", "n3")
    assert "--dependency=expand:7" in site.commands[1]
    assert not any("scancel" in command for command in site.commands)


@pytest.mark.parametrize(
    ("salloc", "merge", "donor", "meaning"),
    [
        (CommandResult(1, "", "Requested nodes are busy"), OK, details(9, "n2"), Meaning.LATER),
        (
            CommandResult(None, "", "Pending job allocation 9"),
            OK,
            details(9, "n2"),
            Meaning.UNREACHABLE,
        ),
        (CommandResult(0, "", "what?"), OK, details(9, "n2"), Meaning.UNCLEAR),
        (GRANTED, CommandResult(1, "", "Job has already finished"), details(9, "n2"), Meaning.GONE),
        (GRANTED, CommandResult(None, "", ""), details(9, "n2"), Meaning.UNREACHABLE),
        (GRANTED, OK, details(9, "n2", gres="gpu:2"), Meaning.NEVER),
    ],
)
def test_no_donor_is_left_where_growing_fails(
    salloc: CommandResult, merge: CommandResult, donor: CommandResult, meaning: Meaning
) -> None:
    site = Recorded(
        ("scontrol show 7", details(7, "n1")),
        ("scontrol show 9", donor),
        ("salloc", salloc),
        ("scontrol jobid=9 NumNodes=0", merge),
        ("scancel", OK),
    )
    with pytest.raises(SlurmError) as refused:
        Slurm({}, "me", site).grow(7, 1, "rms-donor-7")
    assert refused.value.meaning is meaning
    assert site.commands[-1] == "scancel --user=me --name=rms-donor-7"


def test_a_job_with_gres_is_never_given_a_donor() -> None:
    site = Recorded(("scontrol show 7", details(7, "n1", gres="token:2")))
    with pytest.raises(SlurmError, match="GRES"):
        Slurm({}, "me", site).grow(7, 1, "rms-donor-7")
    assert len(site.commands) == 1


def test_a_merge_into_a_job_that_just_ended_is_noticed() -> None:
    site = Changing(
        details(7, "n1", state="COMPLETED"),
        ("scontrol show 7", details(7, "n1")),
        ("scontrol show 9", details(9, "n2")),
        ("salloc", GRANTED),
        ("scontrol jobid=9 NumNodes=0", OK),
        ("scancel", OK),
    )
    with pytest.raises(SlurmError) as refused:
        Slurm({}, "me", site).grow(7, 1, "rms-donor-7")
    assert refused.value.meaning is Meaning.GONE


def test_shrinking_is_checked() -> None:
    rules = ("scontrol update", OK), ("scontrol show", details(7, "n[1,3]"))
    assert Slurm({}, "me", Recorded(*rules)).shrink(7, ["n3", "n1"]).hosts == ("n1", "n3")
    with pytest.raises(SlurmError, match="expected job 7 on n1, got n1,n3"):
        Slurm({}, "me", Recorded(*rules)).shrink(7, ["n1"])


def test_cancelling_what_has_ended_is_no_failure() -> None:
    gone = CommandResult(
        1, "", "scancel: error: Kill job error on job id 5: Invalid job id specified"
    )
    Slurm({}, "me", Recorded(("scancel", gone))).cancel(5)
    denied = CommandResult(
        210, "", "scancel: error: Kill job error on job id 5: Access/permission denied"
    )
    with pytest.raises(SlurmError) as refused:
        Slurm({}, "me", Recorded(("scancel", denied))).cancel(5)
    assert refused.value.meaning is Meaning.DENIED


def test_submitting() -> None:
    site = Recorded(("sbatch", CommandResult(0, "12;cluster\n", "")))
    assert Slurm({}, "me", site).submit("job.sh") == 12
    with pytest.raises(SlurmError, match="expected a job's number"):
        Slurm({}, "me", Recorded(("sbatch", CommandResult(0, "ok\n", "")))).submit("job.sh")


def test_a_command_that_is_missing_or_hangs() -> None:
    with pytest.raises(SlurmError, match="on PATH"):
        run_command(["squeue-that-is-not-here"], {}, 5)
    assert run_command(["sleep", "60"], {"PATH": "/bin:/usr/bin"}, 0.1).status is None
    assert run_command(["sh", "-c", "echo a; exit 3"], {"PATH": "/bin"}, 5) == CommandResult(
        3, "a\n", ""
    )


# -- The check -------------------------------------------------------------------------------


def looked(kind: str = "", version: str = OLDEST, **changes: str) -> probe.SlurmSite:
    config = sample(f"config{kind}", version)
    for key, value in changes.items():
        lines = config.splitlines()
        config = "\n".join(f"{key} = {value}" if ln.startswith(f"{key} ") else ln for ln in lines)
    site = Recorded(
        ("sinfo --version", result("version", version)),
        ("scontrol config", CommandResult(0, config, "")),
        ("sinfo", result(f"nodes{kind}", version)),
        ("squeue", result("queue", version)),
        ("sacct", result("check-accounting", version)),
    )
    return probe.inspect_site(Slurm({}, "me", site))


def allowed(site: probe.SlurmSite) -> dict[str, bool]:
    return {verdict.what.split()[0]: verdict.allowed for verdict in probe.verdicts(site)}


def test_a_site_that_allows_all(version: str) -> None:
    site = looked(version=version)
    words = probe.as_text(site)
    assert words[0] == f"Slurm {version}, cluster testbed, select/linear: 3 of 4 nodes fit for work"
    assert {verdict.what: verdict.allowed for verdict in probe.verdicts(site)} == {
        "engine slurm-pilot": True,
        "engine slurm, jobs of their own": True,
        "shrinking running jobs": True,
        "growing running jobs": True,
        "more than one resize of a job, and sacct's agreement": True,
        "Slurm's own ConsumedEnergy": False,
    }
    assert json.loads(json.dumps(probe.as_json(site)))["select"] == "select/linear"


@pytest.mark.parametrize(
    ("changes", "refused", "why"),
    [
        ({"SchedulerParameters": "bf_interval=1"}, "growing", "permit_job_expansion"),
        ({"SchedulerParameters": "disable_job_shrink"}, "shrinking", "disable_job_shrink"),
        ({"SelectType": "select/other"}, "growing", "select/other"),
        ({"AccountingStorageType": "accounting_storage/none"}, "more", "no slurmdbd"),
    ],
)
def test_a_site_that_refuses(changes: dict[str, str], refused: str, why: str) -> None:
    site = looked(**changes)
    assert not allowed(site)[refused]
    assert why in " ".join(probe.as_text(site))


def test_a_site_whose_nodes_all_have_gres() -> None:
    site = looked("-gres")
    assert not allowed(site)["growing"]
    assert allowed(site)["shrinking"]
    assert "use the pilot" in " ".join(probe.as_text(site))


def test_an_old_site() -> None:
    site = looked()
    old = probe.SlurmSite(**{**vars(site), "version": (19, 5, 2)})
    assert not any(v.allowed for v in probe.verdicts(old) if v.what.startswith("engine"))
    assert probe.as_text(old)[0].startswith("Slurm 19.05.2,")


# -- Known faults ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "affected"),
    [
        ((23, 2, 2), False),
        ((23, 2, 3), True),
        ((23, 2, 6), True),
        ((23, 2, 7), False),
        ((23, 11, 0), True),
        ((23, 11, 1), False),
        ((24, 5, 0), False),
    ],
)
def test_versions_of_a_fault(version: tuple[int, ...], affected: bool) -> None:
    (fault,) = (f for f in KNOWN_FAULTS if "scontrol reconfigure" in f.fault)
    assert fault.affects(version) == affected
    assert fault.versions == "since 23.02.3; mended in 23.02.7, 23.11.1"


def test_known_faults_of_a_site_are_printed() -> None:
    site = probe.SlurmSite(**{**vars(looked()), "version": (23, 11, 7)})
    assert probe.known_faults(site) == []
    assert probe.as_text(site)[-2:] == [
        "rms is tested with Slurm 22.05, 24.11, 26.05, not with this version",
        "no known fault of this version hits jobs that resize",
    ]
    site = probe.SlurmSite(**{**vars(site), "select": "select/cons_tres"})
    crash, leak = probe.as_text(site)[-2:]
    assert crash.startswith("fault  slurmctld crashes MinJobAge after")
    assert "(since 23.11.7; mended in 23.11.8, 24.05.0): upgrade" in crash
    assert "not mended): restart slurmctld" in leak
    rows = probe.as_json(site)["known_faults"]
    assert [row["source"] != "" for row in json.loads(json.dumps(rows))] == [True, True]


def test_a_fault_that_needs_a_parameter() -> None:
    site = looked(SlurmctldParameters="enable_stepmgr,power_save_interval=9")
    assert not any("stepmgr" in fault.fault for fault in probe.known_faults(site))
    newer = probe.SlurmSite(**{**vars(site), "version": (24, 11, 5)})
    assert any("stepmgr" in fault.fault for fault in probe.known_faults(newer))


def test_every_known_fault_is_in_the_page() -> None:
    page = " ".join((ROOT / "docs" / "rms" / "slurm-admins.md").read_text().split())
    for fault in KNOWN_FAULTS:
        assert f"| {fault.fault} |" in page
        assert f"| {fault.versions} |" in page
        assert fault.advice in page


def test_trying_it_where_nothing_is_free() -> None:
    site = Recorded(("salloc", CommandResult(1, "", "Requested nodes are busy")), ("scancel", OK))
    (verdict,) = probe.try_resize(Slurm({}, "me", site), "try", lambda: 0.0)
    assert not verdict.allowed
    assert "busy" in verdict.why
    assert site.commands[-1] == "scancel --user=me --name=try"
