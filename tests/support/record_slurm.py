"""Record what the commands of a version of Slurm print, for the tests of their parser.

    PYTHONPATH=.:tests/support python -m record_slurm 22.05 24.11 newest

For each version (as for ``scripts/cluster up --slurm``) it brings up a cluster, calls every command
that rms calls in a fixed course of events, and writes the commands and their output to
``tests/unit/rms/slurm_samples/VERSION.json``. It needs root and takes about three minutes a
version.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accounting import records
from cluster_hosts import Cluster, hosts_up

from rms.launch.slurm.commands import CommandResult, Slurm, SlurmError, run_command

SAMPLES = Path(__file__).parents[1] / "unit" / "rms" / "slurm_samples"
DEADLINE_S = 120.0
SLEEP = ("--output=/dev/null", "--wrap", "sleep 600")


@dataclass
class Recorder:
    """Commands on a cluster's host ``login``; those called under a name are kept."""

    cluster: Cluster
    calls: list[dict[str, Any]] = field(default_factory=list)
    name: str = ""
    prefix: tuple[str, ...] = ()

    def __call__(
        self, command: Sequence[str], environment: Mapping[str, str], deadline_s: float
    ) -> CommandResult:
        variables = [f"{k}={v}" for k, v in environment.items() if k.startswith("SLURM_T")]
        full = self.cluster.command("login", *self.prefix, "env", *variables, *command)
        done = run_command(full, {"PATH": "/usr/local/bin:/usr/bin:/bin"}, deadline_s)
        if self.name:
            self.calls.append(
                {
                    "name": self.name,
                    "command": [self.plain(word) for word in command],
                    "status": done.status,
                    "out": self.plain(done.out).split("\n"),
                    "err": self.plain(done.err).split("\n"),
                }
            )
        return done

    def plain(self, text: str) -> str:
        """Return text without what differs from one cluster to the next, times aside."""
        record = self.cluster.record
        text = text.replace(str(self.cluster.folder), "/cluster").replace(
            record["cluster"], "testbed"
        )
        for number, address in enumerate(record["hosts"].values()):
            text = text.replace(address, f"10.0.0.{number + 1}")
        return re.sub(r"(?m)^(\s*WorkDir=).*", r"\1/home/user", text)

    @contextlib.contextmanager
    def named(self, name: str) -> Iterator[None]:
        """Keep what is called in the block; a refusal is a part of it."""
        self.name = name
        try:
            with contextlib.suppress(SlurmError):
                yield
        finally:
            self.name = ""

    @contextlib.contextmanager
    def as_nobody(self) -> Iterator[None]:
        """Call commands as another user."""
        self.prefix = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
        try:
            yield
        finally:
            self.prefix = ()


def until(ready: Callable[[], Any], what: str) -> Any:
    """Return what ``ready`` returns once that is true; a refusal is not yet."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        with contextlib.suppress(SlurmError):
            if found := ready():
                return found
        time.sleep(0.2)
    raise TimeoutError(f"not within {DEADLINE_S:g} s: {what}")


def record(cluster: Cluster, with_gres: Cluster) -> tuple[str, list[dict[str, Any]]]:
    """Return a cluster's version of Slurm and the calls of the course of events."""
    recorder = Recorder(cluster)
    slurm = Slurm({}, "root", recorder)
    named = recorder.named

    def running(job: int) -> int:
        until(lambda: slurm.job(job).state == "RUNNING", f"job {job} runs")
        return job

    def next_second() -> None:
        time.sleep(1.05 - time.time() % 1)

    with named("version"):
        version = ".".join(f"{part:02d}" for part in slurm.version()[:2])
        version += f".{slurm.version()[2]}"
    recorder.calls[1:] = []
    with named("config"):
        slurm.config()
    with named("ping"):
        slurm.ping()
    with named("partitions"):
        slurm.partitions()

    odd = running(
        slurm.submit(
            *["--nodelist=n4", "--exclusive", "--job-name=wide | odd=name", "--time=1-02:04:00"],
            *SLEEP,
        )
    )
    slurm.call("scontrol", "update", "nodename=n4", "state=drain", "reason=bad | fan = 1")
    with named("submit"):
        array = slurm.submit(
            *["--array=1-2", "--nodes=1", "--exclusive", "--job-name=winds", "--time=10", *SLEEP]
        )
    slurm.submit(f"--dependency=afterok:{odd}", "--job-name=later", "--exclusive", *SLEEP)
    until(lambda: len(slurm.jobs("--states=RUNNING")) == 3, "three jobs run")
    waiting = slurm.submit(
        *["--array=1-3", "--nodes=2", "--exclusive", "--job-name=winds", "--time=10", *SLEEP]
    )
    until(
        lambda: {j.reason for j in slurm.jobs() if j.array_id == waiting} <= {"Resources"},
        "their reason",
    )
    with named("queue"):
        slurm.jobs("--states=all")
    with named("nodes"):
        slurm.nodes()
    with named("job-odd"):
        slurm.job(odd)
    first, other = (
        next(j.job_id for j in slurm.jobs() if (j.array_id, j.task) == (array, task))
        for task in (1, 2)
    )

    with named("grow-others-wait"):
        slurm.grow(first, 1, "rms-donor-test")
    with named("cancel-pending"):
        slurm.cancel(waiting, only_pending=True)
    until(lambda: not [j for j in slurm.jobs() if j.array_id == waiting], "their end")
    next_second()
    with named("grow"):
        slurm.grow(first, 1, "rms-donor-test")
    with named("grow-busy"):
        slurm.grow(first, 1, "rms-donor-test")
    with named("job"):
        slurm.job(first)
    with named("shrink-of-an-array"):
        slurm.shrink(array, ["n2"])
    slurm.call("scancel", f"{array}_2")  # by its raw id, which is the array's, it is the array
    until(lambda: len(records(slurm, [first])) == 2, "accounting has the grow")
    until(lambda: records(slurm, [other])[0].state == "CANCELLED", "accounting has the end")
    with named("sacct"):
        records(slurm, [first, other])
    with named("check-accounting"):
        slurm.check_accounting(first)
    next_second()
    kept = slurm.job(first).batch_host
    assert kept is not None
    with named("shrink"):
        slurm.shrink(first, [kept])
    until(lambda: len(records(slurm, [first])) == 3, "accounting has the shrink")
    with named("sacct-shrunk"):
        records(slurm, [first])
    with named("donors"):
        slurm.jobs("--states=all", "--user=root", "--name=rms-donor-test")

    second = running(slurm.submit("--nodes=1", "--exclusive", "--time=10", *SLEEP))
    with named("shrink-to-others"):
        slurm.shrink(second, ["n4"])
    step = ["srun", f"--jobid={second}", "--overlap", "--nodes=1", "--ntasks=1"]
    with cluster.popen("login", *step, "--job-name=rms.step", "sleep", "600"):
        until(lambda: [s for s, name in slurm.steps(second) if name == "rms.step"], "a step")
        with named("steps"):
            steps = slurm.steps(second)
        with named("end-steps"):
            slurm.end_steps([s for s, name in steps if name == "rms.step"])
        until(lambda: "rms.step" not in [name for _, name in slurm.steps(second)], "its end")
        with named("end-steps-ended"):
            slurm.end_steps([s for s, name in steps if name == "rms.step"])
    with recorder.as_nobody():
        with named("denied-cancel"):
            slurm.cancel(second)
        with named("denied-update"):
            slurm.call("scontrol", "update", f"jobid={second}", "NodeList=n1")
    with named("signal"):
        slurm.send_signal(second, "TERM")
    until(lambda: slurm.job(second).state not in ("RUNNING", "COMPLETING"), "its end")
    with named("job-ended"):
        slurm.job(second)
    with named("cancel-ended"):
        slurm.cancel(second)
    with named("signal-ended"):
        slurm.send_signal(second, "TERM")
    with named("shrink-ended"):
        slurm.shrink(second, ["n1"])
    with named("grow-ended"):
        slurm.allocate(1, "rms-donor-test", f"--dependency=expand:{second}")
    with named("steps-ended"):
        slurm.steps(second)
    with named("job-unknown"):
        slurm.job(4_000_000)
    with named("steps-unknown"):
        slurm.steps(4_000_000)
    with named("cancel-unknown"):
        slurm.cancel(4_000_000)
    with named("shrink-unknown"):
        slurm.shrink(4_000_000, ["n1"])
    with named("submit-no-such-partition"):
        slurm.submit("--partition=nosuch", *SLEEP)
    with named("update-running-nodes"):
        slurm.call("scontrol", "update", f"JobId={odd}", "NumNodes=9")
    with named("allocate-no-such-node"):
        slurm.allocate(1, "rms-donor-test", "--nodelist=n77")
    with named("cancel-named"):
        slurm.cancel_named("rms-donor-test")
    with named("consumed"):
        slurm.consumed_j(second)
    for job in (odd, first):
        slurm.cancel(job)

    record_gres(recorder, with_gres)
    record_absence(recorder, slurm, cluster, first)
    return version, recorder.calls


def record_gres(recorder: Recorder, with_gres: Cluster) -> None:
    """Record a job and the nodes of a site whose nodes have GRES."""
    other = Recorder(with_gres)
    slurm = Slurm({}, "root", other)
    job = slurm.submit("--nodes=1", "--exclusive", *SLEEP)
    until(lambda: slurm.job(job).state == "RUNNING", "the job with GRES runs")
    with other.named("job-gres"):
        slurm.job(job)
    with other.named("nodes-gres"):
        slurm.nodes()
    with other.named("config-gres"):
        slurm.config()
    recorder.calls += other.calls


def record_absence(recorder: Recorder, slurm: Slurm, cluster: Cluster, job: int) -> None:
    """Record what is printed while a node, the controller's daemon or its host is away."""
    cluster("kill", "n3")
    until(lambda: [n for n in slurm.nodes() if n.state == "down"], "a node that is down")
    with recorder.named("nodes-down"):
        slurm.nodes()
    cluster.on("ctl", "pkill -TERM -x slurmctld; while pgrep -x slurmctld; do sleep 0.1; done")
    calls: tuple[tuple[str, Callable[[], Any]], ...] = (
        ("ping", slurm.ping),
        ("queue", lambda: slurm.jobs("--states=all")),
        ("nodes", slurm.nodes),
        ("job", lambda: slurm.job(job)),
        ("submit", lambda: slurm.submit(*SLEEP)),
        ("allocate", lambda: slurm.allocate(1, "rms-donor-test")),
        ("shrink", lambda: slurm.shrink(job, ["n1"])),
        ("cancel", lambda: slurm.cancel(job)),
    )
    for name, call in calls:
        with recorder.named(f"away-{name}"):
            call()
    cluster("kill", "ctl")
    for name, call in calls[:2]:
        with recorder.named(f"off-{name}"):
            call()
    with recorder.named("off-accounting"):
        slurm.check_accounting(job)


def main(versions: Sequence[str]) -> None:
    for version in versions:
        with (
            hosts_up("--hosts", "4", "--slurm", version) as cluster,
            hosts_up(
                *["--hosts", "2", "--slurm", version, "--select", "cons_tres", "--tokens", "2"]
            ) as with_gres,
        ):
            number, calls = record(cluster, with_gres)
        text = json.dumps({"version": number, "calls": calls}, indent=1)
        (SAMPLES / f"{number}.json").write_text(text + "\n")
        print(f"{number}: {len(calls)} calls")


if __name__ == "__main__":
    main(sys.argv[1:] or ["22.05", "24.11", "newest"])
