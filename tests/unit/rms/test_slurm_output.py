"""Slurm's output as recorded on a real one (22.05), and refusals as it words them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from accounting import records_from_text

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

SAMPLES = Path(__file__).parent / "slurm_samples"


def sample(name: str) -> str:
    if name == "config-gres.txt":  # nothing else that is read differs from the first
        return sample("config.txt").replace("select/linear", "select/cons_tres")
    return (SAMPLES / name).read_text()


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


def printed(name: str) -> CommandResult:
    return CommandResult(0, sample(name), "")


# -- What is printed -------------------------------------------------------------------------


def test_a_queued_job() -> None:
    rows = {row.job_id: row for row in output.queue_from_text(sample("squeue.txt"))}
    odd = rows[2]
    assert (odd.name, odd.state, odd.hosts, odd.nodes) == ("wide | odd=name", "RUNNING", ("n4",), 1)
    assert odd.limit_s == 26 * 3600 + 4 * 60
    assert (odd.array_id, odd.task) == (None, None)
    assert (rows[4].array_id, rows[4].task) == (1, 1)
    assert (rows[3].reason, rows[3].limit_s, rows[3].start_s) == ("Dependency", math.inf, None)


def test_waiting_tasks_are_a_row_each() -> None:
    rows = output.queue_from_text(sample("squeue.txt"))
    assert len(rows) == 14
    assert sorted(row.task or 0 for row in rows if row.job_id == 9) == [1, 2, 3, 4, 5, 6]


def test_a_draining_node() -> None:
    node = output.nodes_from_text(sample("sinfo.txt"))[3]
    assert (node.name, node.state, node.reason) == ("n4", "draining", "bad | fan = 1")
    assert node.responds


def test_a_node_of_two_partitions_that_does_not_answer() -> None:
    text = "n1|all*|down*|2|(null)|Not responding\nn1|long|down*|2|(null)|Not responding\n"
    (node,) = output.nodes_from_text(text)
    assert (node.partitions, node.state, node.responds) == (("all", "long"), "down", False)


def test_records_are_in_order_where_several_begin_in_one_second() -> None:
    text = records_from_text(sample("sacct.txt"))
    assert [row.job_id for row in text] == [10, 11, 12, 11]


def test_a_resized_job_in_the_records() -> None:
    rows = records_from_text(sample("sacct.txt"))
    stretches = [(row.state, row.nodes, row.hosts) for row in rows if row.job_id == 11]
    assert stretches == [("RESIZING", 1, ("n1",)), ("RUNNING", 2, ("n1", "n3"))]
    first, then = (row for row in rows if row.job_id == 11)
    assert first.end_s == then.start_s
    assert then.end_s is None
    assert [row.state for row in rows if row.job_id == 10] == ["CANCELLED"]
    assert [(row.nodes, row.hosts) for row in rows if row.name == "rms-donor-11"] == [(0, ())]


def test_details_of_a_resized_job() -> None:
    job = output.details_from_text(sample("job.txt"))
    assert (job.job_id, job.state, job.hosts) == (11, "RUNNING", ("n1", "n3"))
    assert job.batch_host == "n1"
    assert not job.has_gres
    assert job.start_s is not None
    assert job.resized_s is not None
    assert job.end_s == job.start_s + 600


def test_a_name_cannot_pass_for_a_field() -> None:
    text = sample("job-odd.txt").replace("wide | odd=name", "NodeList=n9 JobState=FAILED")
    job = output.details_from_text(text)
    assert (job.job_id, job.state, job.hosts, job.resized_s) == (2, "RUNNING", ("n4",), None)


def test_details_of_a_job_with_gres() -> None:
    assert output.details_from_text(sample("job-gres.txt")).has_gres


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
    site = Recorded(("sacct", printed("sacct.txt")), ("scontrol", printed("job.txt")))
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
    said = (
        f"JobId={job} JobName=x\n JobState={state} Reason=None\n StartTime=1 EndTime=2\n"
        f" NodeList={hosts}\n BatchHost=n1\n JOB_GRES={gres or '(null)'}\n"
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
        (CommandResult(0, "", "what?"), OK, details(9, "n2"), Meaning.NEVER),
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
    with pytest.raises(SlurmError, match="expected a job id"):
        Slurm({}, "me", Recorded(("sbatch", CommandResult(0, "ok\n", "")))).submit("job.sh")


def test_a_command_that_is_missing_or_hangs() -> None:
    with pytest.raises(SlurmError, match="on PATH"):
        run_command(["squeue-that-is-not-here"], {}, 5)
    assert run_command(["sleep", "60"], {"PATH": "/bin:/usr/bin"}, 0.1).status is None
    assert run_command(["sh", "-c", "echo a; exit 3"], {"PATH": "/bin"}, 5) == CommandResult(
        3, "a\n", ""
    )


# -- The check -------------------------------------------------------------------------------


def looked(kind: str = "", **changes: str) -> probe.SlurmSite:
    config = sample(f"config{kind}.txt")
    for key, value in changes.items():
        lines = config.splitlines()
        config = "\n".join(f"{key} = {value}" if ln.startswith(f"{key} ") else ln for ln in lines)
    site = Recorded(
        ("sinfo --version", CommandResult(0, "slurm-wlm 22.05.8\n", "")),
        ("scontrol config", CommandResult(0, config, "")),
        ("sinfo", printed(f"sinfo{kind}.txt")),
        ("squeue", printed("squeue.txt")),
        ("sacct", printed("sacct.txt")),
    )
    return probe.inspect_site(Slurm({}, "me", site))


def allowed(site: probe.SlurmSite) -> dict[str, bool]:
    return {verdict.what.split()[0]: verdict.allowed for verdict in probe.verdicts(site)}


def test_a_site_that_allows_all() -> None:
    site = looked()
    words = probe.as_text(site)
    assert words[0] == "Slurm 22.05.8, cluster testbed, select/linear: 3 of 4 nodes fit for work"
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


def test_trying_it_where_nothing_is_free() -> None:
    site = Recorded(("salloc", CommandResult(1, "", "Requested nodes are busy")), ("scancel", OK))
    (verdict,) = probe.try_resize(Slurm({}, "me", site), "try", lambda: 0.0)
    assert not verdict.allowed
    assert "busy" in verdict.why
    assert site.commands[-1] == "scancel --user=me --name=try"
