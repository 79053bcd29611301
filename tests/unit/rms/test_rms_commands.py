"""The command ``rms`` against a daemon in this process: tables, JSON, exit statuses, refusals."""

from __future__ import annotations

import getpass
import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from terminals import HERE, Terminal, terminals

from rms.cli.main import COMMANDS
from rms.client import commands
from rms.core.model.events import Ended, WorkLost
from rms.core.model.jobs import JobId
from rms.formats import profiles
from rms.formats.profiles import Machine, Point, Profile, Program
from rms.wire.terminal import clock
from rms.wire.users import SlurmRow

HEADS = ["JOBID", "NAME", "STATE", "MODE", "SUBMITTED", "WAITED", "RAN", "RESIZES", "ENERGY"]
HEADS += ["SOURCE"]


@pytest.fixture
def terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Terminal]:
    with terminals(tmp_path, monkeypatch, capsys) as found:
        (tmp_path / "empty.sh").write_text("")
        (tmp_path / "comments.sh").write_text("#!/bin/sh\n# nothing\n\n")
        (tmp_path / "plain.sh").write_text("echo\n")
        (tmp_path / "bytes.sh").write_bytes(b"#!/bin/sh\n\xff\xfe\0\n")
        (tmp_path / "wrong.sh").write_text("#!/bin/sh\n#RMS --nodes=3-1\ntrue\n")
        yield found


# --- what is printed ----------------------------------------------------------------------------


def test_jobs_in_tables(terminal: Terminal, tmp_path: Path) -> None:
    assert terminal.lines("submit", "--job-name", "runs", "--nodes", "1", "good.sh") == [["1"]]
    array = ["submit", "--array", "2-4,6%2", "--nodes", "2", "--mode", "malleable"]
    assert terminal.lines(*array, "--", "sleep", "9") == [["2"]]
    heads, runs, first, others = terminal.lines("queue")
    assert heads[:7] == ["JOBID", "NAME", "USER", "STATE", "MODE", "TIME", "TIME_LIMIT"]
    assert heads[7:] == ["NODES", "STEP", "NODELIST(REASON)"]
    user = getpass.getuser()
    assert runs[:5] == ["1", "runs", user, "RUNNING", "fixed"]
    assert runs[6:] == ["UNLIMITED", "1", "n1"]
    waits = [user, "PENDING", "malleable", "0:00", "UNLIMITED", "2"]
    assert first[:9] == ["2_2", "sleep", *waits, "(Resources:"]
    assert others[:9] == ["2_[3-4,6]", "sleep", *waits, "(Priority:"]
    assert [row[0] for row in terminal.lines("queue", "2_[3-4]")] == ["JOBID", "2_[3-4]"]
    heads, runs = terminal.lines("acct", "1")
    assert heads == HEADS and runs[4:6] == clock(1000.0, day=True).split()
    assert runs[:4] == ["1", "runs", "RUNNING", "fixed"]
    assert runs[6:] == ["0.0", "s", "0.0", "s", "0", "0.0", "J", "model"]
    assert terminal.run("show", "1") == 0
    shown = {
        row[0]: row[1].strip() for row in (line.split(" ", 1) for line in terminal.out.splitlines())
    }
    assert (shown["JOB"], shown["state"], shown["nodes"]) == ("1 runs", "RUNNING", "1 (n1), fixed")
    assert shown["output"] == str(tmp_path / "rms-1.out") and ", after 0.0 s" in shown["started"]
    assert "None" not in terminal.out and "[" not in terminal.out
    (heads, decision) = terminal.lines("explain", "1")
    assert heads == ["TIME", "DECISION", "NODES", "REASON"]
    assert decision[2:4] == ["start", "n1"]
    script = terminal.server.daemon.launcher.state / "jobs" / "2" / "script"
    assert script.read_text().endswith("exec srun -- sleep 9\n")


@pytest.mark.promise("holds")
def test_jobs_are_held_and_released(terminal: Terminal) -> None:
    daemon = terminal.server.daemon
    assert terminal.lines("submit", "--hold", "--array", "1-3", "good.sh") == [["1"]]
    assert terminal.lines("submit", "--begin", "now+1hour", "good.sh") == [["2"]]
    (_, *rows) = terminal.lines("queue")
    assert sorted(row[0] + row[8] for row in rows) == ["1_[1-3](JobHeldUser)", "2(BeginTime:"]
    assert terminal.lines("release", "1_[1-2]") == [["RELEASED"], ["1_[1-2]"]]
    assert set(daemon.context.state.running) == {"1_1", "1_2"}
    assert "expected a job that waits" in terminal.refused(2, "hold", "1_1")
    assert terminal.lines("requeue", "1_1") == [["REQUEUED"], ["1_1"]]
    assert daemon.jobs[JobId("1_1")].ending == "REQUEUED"
    assert "expected a running job, got 2, PENDING" in terminal.refused(2, "requeue", "2")
    terminal.lines("cancel", "1")
    assert daemon.jobs[JobId("1_1")].ending == "CANCELLED"
    terminal.server.clock[0] += 3601.0
    daemon.holds.tick()
    assert JobId("2") in daemon.context.state.pending
    assert [row[0] for row in terminal.lines("hold", "2")] == ["HELD", "2"]
    assert [row[-1] for row in terminal.lines("explain", "2")] == ["REASON", "JobHeldUser"]


@pytest.mark.promise("holds")
def test_jobs_wait_for_others(terminal: Terminal) -> None:
    daemon = terminal.server.daemon
    state = daemon.context.state
    assert terminal.lines("submit", "--array", "0-1", "good.sh") == [["1"]]
    assert terminal.lines("submit", "-d", "singleton", "good.sh") == [["2"]]
    assert terminal.lines("submit", "--dependency", "afterok:1_0,aftercorr:1", "good.sh") == [["3"]]
    (_, *rows) = terminal.lines("queue", "2")
    assert rows[0][8:] == ["(Dependency:", "afterany:1)"]
    daemon.handle(Ended(1000.0, JobId("1_0"), "COMPLETED"))
    daemon.holds.tick()
    assert set(state.held) == {"2", "3"}
    daemon.handle(Ended(1000.0, JobId("1_1"), "FAILED"))
    daemon.holds.tick()
    assert set(state.running) == {"2"} and set(state.held) == {"3"}
    assert terminal.lines("queue", "3")[1][8] == "(DependencyNeverSatisfied:"
    said = terminal.refused(2, "submit", "--dependency", "afterok:99", "good.sh")
    assert "--dependency: expected the id of a job, got 99" in said
    assert "expected dependencies like afterok:7" in terminal.refused(
        2, "submit", "-d", "expand:1", "good.sh"
    )


def test_lost_work(terminal: Terminal) -> None:
    for _ in range(2):
        terminal.run("submit", "good.sh")
    terminal.server.clock[0] += 5.0
    at_s = terminal.server.clock[0]
    terminal.server.daemon.handle(WorkLost(at_s, JobId("1"), at_s - 4.0, at_s - 1.0, 1, "n3 died"))
    words = "1 step, 4.0 s, 20.0 J in 1 failure (15.0 J of lost steps, 5.0 J of recovery)"
    heads, first, second, *_ = terminal.lines("acct")
    assert heads == [*HEADS, "LOST"]
    assert (first[-2:], second[-1]) == (["20.0", "J"], "model")
    assert terminal.out.splitlines()[-1] == f"lost work of jobs: {words}"
    assert ["lost", "work", *words.split()] in terminal.lines("show", "1")
    assert terminal.lines("explain", "1")[-1][-2:] == ["n3", "died"]
    assert terminal.run("acct", "--json", "-") == 0
    lost = {"times": 1, "steps": 1, "seconds": 4.0, "recomputed_j": 15.0, "recovery_j": 5.0}
    lost |= {"energy_source": "model", "uncertainty_j": None}
    assert [job["lost"] for job in json.loads(terminal.out)] == [lost, None]
    _, metrics = terminal.server.request("GET", "/metrics")
    assert 'rms_lost_energy_joules{part="recomputed"} 15.0' in metrics.decode()
    assert "rms_survived_failures_total 1.0" in metrics.decode()


def test_energy_and_what_it_costs(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "prices.toml").write_text(
        'currency = "EUR"\nprice_per_kwh = 3600.0\nco2_g_per_kwh = 7200.0\n'
    )
    terminal.run("submit", "good.sh")
    terminal.server.clock[0] += 5.0
    (heads, _, gap, sums) = terminal.lines("acct")
    assert (heads, gap) == (HEADS, [])
    assert " ".join(sums) == "cluster 50.0 J (model) = jobs 25.0 + idle 25.0 + off 0.0 + boot 0.0"
    table = terminal.lines("acct", "--energy", "1")
    assert table[3:] == [["OWNER", "WORLD", "NODE", "DEVICE", "ENERGY_J", "SOURCE"], table[4]]
    assert table[4][0] == "1" and table[4][-2:] == ["25.0", "model"]

    priced = ["acct", "--cost", "--prices", "prices.toml"]
    table = terminal.lines(*priced)
    assert table[0] == [*HEADS, "EUR", "CO2_G"] and table[1][-2:] == ["0.025", "0.05"]
    said = [" ".join(line) for line in table[4:]]
    assert said[0] == "OWNER ENERGY_J SOURCE EUR CO2_G"
    assert said[1] == "jobs 25.0 model 0.025 0.05"
    assert said[-2] == "cluster 50.0 model 0.05 0.1"
    assert said[-1] == "prices of prices.toml: EUR/kWh constant, g CO2/kWh constant"
    assert terminal.run(*priced, "--json", "-") == 0
    found = json.loads(terminal.out)
    parts = [found["sums"][part]["cost"] for part in ("jobs", "idle", "off", "boot")]
    assert sum(parts) == pytest.approx(found["sums"]["cluster"]["cost"]) == pytest.approx(0.05)
    assert found["jobs"][0]["cost"] == sum(row["cost"] for row in found["jobs"])
    assert terminal.run("acct", "--json", "-") == 0
    (job,) = json.loads(terminal.out)
    assert sum(row["joules"] for row in job["energy"]) == job["energy_j"] == 25.0

    past = "time (UTC),EUR/kWh\n1970-01-01T00:00,1\n1970-01-01T00:08,1\n"  # it is 0:16:40
    (tmp_path / "past.csv").write_text(past)
    assert terminal.run("acct", "1", "--cost", "--prices", "past.csv") == 0
    assert "25.0 J before their first time, after their last or in a gap have no price" in (
        terminal.out
    )
    assert terminal.run("acct", "1", "--cost", "--prices", "past.csv", "--json", "-") == 0
    (job,) = json.loads(terminal.out)["jobs"]
    assert (job["cost"], job["unpriced_j"]) == (0.0, 25.0)

    assert "expected --prices FILE" in terminal.refused(2, "acct", "--cost")
    assert "expected --cost" in terminal.refused(2, "acct", "--prices", "prices.toml")
    assert "does not exist" in terminal.refused(2, "acct", "--cost", "--prices", "none")
    said = terminal.refused(2, "acct", "--cost", "--prices", "plain.sh")
    assert said.startswith("rms: error: plain.sh: ")
    assert terminal.refused(2, "serve", "--prices", "plain.sh", "--state", "new") == said
    assert not Path("new").exists()
    said = terminal.refused(2, "serve", "--state", "plain.sh")
    file = tmp_path / "plain.sh"
    assert f"expected a folder for --state, got {file}, which is a file" in said


def test_what_slurm_says_stands_beside_ours(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal.run("submit", "good.sh")
    terminal.server.clock[0] += 5.0
    details = SlurmRow(slurm_job=7, consumed_energy_j=20.0)
    monkeypatch.setattr(terminal.server.daemon.launcher.nodes, "job_details", lambda job: details)
    said = "20.0 J by Slurm's ConsumedEnergy, unverified, 0.80 of ours"
    for words in (["show", "1"], ["acct", "--energy"]):
        assert terminal.run(*words) == 0 and said in terminal.out
    assert terminal.run("show", "1", "--json", "-") == 0
    assert json.loads(terminal.out)[0]["slurm"]["consumed_energy_ratio"] == 20.0 / 25.0


def test_books_that_do_not_balance_are_told(terminal: Terminal) -> None:
    terminal.run("submit", "good.sh")
    terminal.server.clock[0] += 5.0
    terminal.server.daemon.scheduler.ledger.idle_j += 1.0
    for words in (["acct"], ["report", "out"]):
        assert terminal.run(*words) == 1
        assert "expected owners' and nodes' energies to agree, got 51.0 J" in terminal.err
    assert "The books do not balance: expected" in Path("out/report.html").read_text()


def test_nodes_policy_and_ends(terminal: Terminal) -> None:
    terminal.run("submit", "--nodes", "2", "good.sh")
    terminal.run("submit", "good.sh")
    heads = ["NODE", "STATE", "SLOTS", "ALLOC/IDLE", "FREQ", "JOB"]
    assert terminal.lines("nodes") == [
        heads,
        ["n1", "allocated", "cpu:0", "1/0", "1"],
        ["n2", "allocated", "cpu:1", "1/0", "1"],
    ]
    assert terminal.lines("drain", "n[1-2]") == [["DRAINED"], ["n1"], ["n2"]]
    assert terminal.lines("nodes")[1] == ["n1", "draining", "cpu:0", "1/0", "1"]
    assert terminal.lines("resume", "n2") == [["RESUMED"], ["n2"]]
    heads = ["POLICY", "TASKS", "GOVERNOR"]
    assert terminal.lines("policy") == [heads, ["fifo", "short-term", "high"]]
    assert terminal.lines("policy", "easy") == [heads, ["easy", "short-term", "high"]]
    low = ["easy", "constraint", "low"]
    assert terminal.lines("policy", "constraint", "--governor", "low") == [heads, low]
    assert "loops.py, which does not exist" in terminal.refused(2, "policy", "loops.py")
    assert terminal.lines("cancel", "2") == [["CANCELLED"], ["2"]]
    assert terminal.run("wait", "2") == 1
    assert terminal.lines("shutdown") == [] and terminal.server.stopped == [True]


@pytest.mark.promise("power-cap")
def test_a_power_cap_that_comes_and_goes(terminal: Terminal) -> None:
    heads = ["CAP_W", "EXPECTED_W", "IDLE_W", "MEASURED_W"]
    assert terminal.lines("power-cap") == [heads, ["none", "10.0", "10.0", "none"]]
    assert terminal.lines("power-cap", "20") == [heads, ["20.0", "10.0", "10.0", "none"]]
    terminal.run("submit", "--power", "8", "good.sh")
    terminal.run("submit", "--power", "6.5", "good.sh")
    terminal.run("submit", "--power", "11", "good.sh")
    _, _, waits, never = terminal.lines("queue")
    assert " ".join(waits[9:]) == "needs 6.5 W on 1 node, 2 W are left of 20 W)"
    assert " ".join(never[9:13]) == "it never fits under" and never[8] == "(PowerCap:"
    assert terminal.lines("power-cap", "none")[1][:2] == ["none", "24.5"]
    assert [row[3] for row in terminal.lines("queue")[1:]] == ["RUNNING", "RUNNING", "PENDING"]


def test_a_policy_file_is_read_by_the_client(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('[order]\npart = "fcfs"\n')
    assert "mine.toml" in terminal.refused(2, "policy", "none/mine.toml")
    assert terminal.run("policy", "mine.toml") == 0, terminal.err


def test_one_look_and_a_report(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run("submit", "--job-name", "<runs>", "good.sh")
    terminal.server.clock[0] += 5.0
    assert terminal.run("top") == 0
    assert "Policy fifo, nodes 1 of 2 allocated, Running 1, Pending 0, Completed 0" in terminal.out
    assert terminal.lines("report", "out") == [["out/report.html"]]
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<td>&lt;runs&gt;</td>" in page and page.count('class="bar ') == 1
    (tmp_path / "file").touch()
    assert "a folder that can be written, got file/x" in terminal.refused(2, "report", "file/x")


@pytest.mark.parametrize(
    "words",
    [
        *("submit good.sh", "queue", "nodes", "show 1", "acct", "explain 1", "policy", "top"),
        *("power-cap", "power-cap 99"),
        *("cancel 1", "drain n1", "resume n1", "report out"),
    ],
)
@pytest.mark.promise("json")
def test_json_is_all_that_is_printed_or_goes_to_a_file(terminal: Terminal, words: str) -> None:
    terminal.run("submit", "good.sh")
    terminal.server.clock[0] += 5.0
    assert terminal.run(*words.split(), "--json", "-") == 0
    printed = json.loads(terminal.out)
    assert terminal.run(*words.split(), "--json", "out.json") == 0
    found = json.loads(Path("out.json").read_text())
    assert type(found) is type(printed)
    if isinstance(found, dict):
        assert list(found) == list(printed)


def test_what_steers_a_terminal_is_shown_as_text(terminal: Terminal) -> None:
    terminal.run("submit", "good.sh")
    job = terminal.server.daemon.jobs[JobId("1")]
    job.submission.name = "\x1b[2J[red]x[/b]<i>"
    job.answer = "\x9b31m\u202e"
    for words in ("queue", "top", "show 1", "acct"):
        assert terminal.run(*words.split()) == 0, terminal.err
        assert all(c.isprintable() or c == "\n" for c in terminal.out), (words, terminal.out)
        assert r"\x1b[2J[red]x[/b]<i>" in terminal.out, words
    assert r"got '\x1b]0;x'" in terminal.refused(2, "show", "\x1b]0;x")


@pytest.mark.promise("no-one-in")
def test_files_are_read_by_the_client(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('order = { part = "os:abort" }\n')
    assert "--policy-modules" in terminal.refused(2, "policy", "mine.toml")
    (tmp_path / "mine.py").write_text("def schedule(state):\n    return []\n")
    found = terminal.lines("policy", "mine.py")[1]
    assert found == ["fifo", str(tmp_path / "mine.py"), "high"]
    terminal.server.daemon.tasks.close()
    (kept,) = (tmp_path / "state" / "strategies").iterdir()
    assert kept.read_text() == (tmp_path / "mine.py").read_text()
    assert "x.json" in terminal.refused(2, "submit", "--profile", "x.json", "good.sh")


@pytest.mark.promise("jobs-selected")
def test_jobs_by_id_state_name_and_user(terminal: Terminal) -> None:
    for name in ("a", "b", "c"):
        terminal.run("submit", "--job-name", name, "--nodes", "2", "good.sh")
    terminal.run("submit", "--array", "0-2", "--nodes", "2", "--job-name", "a", "good.sh")

    def queue(*words: str) -> list[list[str]]:
        return terminal.lines("queue", "--format", "%i|%j|%T", *words)[1:]

    assert queue("--state", "pd", "--name", "b,c") == [["2|b|PENDING"], ["3|c|PENDING"]]
    assert queue("1,4_[1,2]") == [["1|a|RUNNING"], ["4_[1-2]|a|PENDING"]]
    assert queue("--user", "nobody-here") == [] and len(queue("--user", getpass.getuser())) == 4
    assert terminal.lines("queue", "1", "--format", "%.8i|%3j|%M") != []
    assert terminal.out.splitlines()[1].startswith("       1|a  |")
    assert "got 9, which" in terminal.refused(2, "cancel", "2", "9")
    assert len(queue("2")) == 1  # none of them was
    assert terminal.lines("cancel", "2", "4_[0-1]")[1:] == [["2"], ["4_[0-1]"]]
    assert terminal.lines("cancel", "--name", "a", "--state", "PENDING")[1:] == [["4_2"]]
    assert terminal.lines("cancel", "4", "--user", getpass.getuser()) == []
    assert queue("--state", "CA", "4") == [[f"4_{n}|a|CANCELLED"] for n in range(3)]
    assert queue() == [["1|a|RUNNING"], ["3|c|PENDING"]]


@pytest.mark.promise("attach")
def test_attach_copies_the_output_as_it_grows_and_ends_as_the_job_does(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal.run("submit", "good.sh")
    (row,) = commands.jobs(HERE)
    output = Path(row.output)
    assert row.exit_code is None and not output.exists()
    texts = iter(["", "one\ntw", "", "o\n", "rms: over\n"])
    over = msgspec.structs.replace(row, state="FAILED", summary="over", exit_code=7)

    def unfinished(server: str, wanted: str, hold_s: float, *, lines: bool = False) -> int:
        if text := next(texts):
            with output.open("a") as file:
                file.write(text)
        return 1 if text in ("", "one\ntw") else 0

    monkeypatch.setattr(commands, "unfinished", unfinished)
    monkeypatch.setattr(commands, "jobs", lambda server, wanted: [over])
    assert terminal.run("attach", "1") == 7
    assert terminal.out == "one\ntwo\nrms: over\n" == output.read_text()
    assert terminal.err == "rms: job 1 FAILED, exit status 7\n"
    texts = iter(["o\n"])
    assert terminal.run("wait", "1") == 7
    texts = iter(["o\n", "o\n"])
    assert terminal.run("attach", "1", "--json", "-") == 7
    assert json.loads(terminal.out) == {"id": "1", "state": "FAILED", "exit_code": 7}
    over, texts = msgspec.structs.replace(over, exit_code=0), iter(["o\n"])
    assert terminal.run("wait", "1") == 1  # its script hides that a step has failed


# --- what is refused ----------------------------------------------------------------------------

BAD_REQUESTS = {
    "submit --mode elastic good.sh": "elastic",
    "submit nowhere.sh": "nowhere.sh",
    "submit .": "directory",
    "submit empty.sh": "empty",
    "submit comments.sh": "command",
    "submit plain.sh": "#!/bin/sh",
    "submit bytes.sh": "bytes.sh",
    "submit wrong.sh": "MIN",
    "submit --array= good.sh": "indices",
    "submit --array=3-1 good.sh": "rising",
    "submit --nodes 4-2 good.sh": "MIN-MAX",
    "submit --nodes 1-2 --preferred 3 good.sh": "preferred",
    "submit --time never good.sh": "time",
    "submit --power 0 good.sh": "above 0",
    "submit --power 10 --power-limit 9 good.sh": "a power limit of at least 10 W",
    "power-cap much": "a power cap in watts like 250, or none",
    "power-cap 0": "a power cap in watts",
    "power-cap 10": "above the 10 W of idle nodes, got 10 W",
    "submit": "SCRIPT",
    "submit --export A,=x good.sh": "--export",
    "submit --chdir nowhere good.sh": "existing folder",
    "submit --json /nowhere/out.json good.sh": "/nowhere",
    "queue --json /nowhere/out.json": "/nowhere",
    "show 99": "99",
    "show x": "job id",
    "show a%20b": "a%20b",
    "explain 99": "99",
    "explain 1/2": "1/2",
    "cancel 99": "99",
    "cancel 7_[": "7_[",
    "cancel": "expected ids, states",
    "cancel --state PENDING,ODD": "expected states of PENDING",
    "queue --format %i%q": "'%q'",
    "wait 99": "99",
    "attach 99": "99",
    "resize 99 1": "99",
    "drain n9": "n9",
    "drain n[2-1]": "rising",
    "resume n8": "got n8",
    "policy nonsense": "array-share",
    "queue --server ftp:x": "ftp:x",
    "launch -- true": "job script",
    "nonsense": "nonsense",
}


@pytest.mark.parametrize("line", BAD_REQUESTS)
@pytest.mark.promise("cli")
def test_bad_request_is_answered_in_one_sentence(terminal: Terminal, line: str) -> None:
    assert BAD_REQUESTS[line] in terminal.refused(2, *line.split())
    assert not terminal.server.daemon.jobs


def test_resizes_that_cannot_be(terminal: Terminal) -> None:
    terminal.run("submit", "good.sh")
    assert "not resized: a fixed job is not resized" in terminal.refused(2, "resize", "1", "2")
    assert "expected a strategy of warm" in terminal.refused(
        2, "resize", "1", "2", "--strategy", "magic"
    )
    assert "expected 2 nodes of this cluster" in terminal.refused(
        2, "resize", "1", "2", "--on", "n1,n9"
    )


def test_no_daemon(terminal: Terminal, tmp_path: Path) -> None:
    for words in (["queue"], ["top"], ["report", "out"], ["resize", "1", "2"]):
        said = terminal.refused(1, *words, "--server", f"unix:{tmp_path}/none")
        assert "expected a running daemon (rms serve)" in said
    assert not Path("out").exists()


def test_help_names_every_command_and_each_has_its_own(terminal: Terminal) -> None:
    assert terminal.run("--help") == 0
    assert set(COMMANDS) <= set(terminal.out.split())
    for name in COMMANDS:
        assert terminal.run(name, "--help") == 0
        assert terminal.out.startswith(f"usage: rms {name} ") and "--json FILE" in terminal.out


@pytest.mark.promise("shared-nodes")
def test_a_job_states_its_bandwidth_or_its_profile_does(terminal: Terminal) -> None:
    """The option goes before the line of the script, and that before the profile."""
    point = Point(1, "separate", (2.0,), (3.0,), "model")
    program = Program(("a.out",), "f" * 64)
    known = Profile("a", program, Machine("p", 1), (point,), memory_bandwidth_gb_s=2.5)
    profiles.write(Path("a.json"), known)
    Path("said.sh").write_text("#!/bin/sh\n#RMS --memory-bandwidth=3.5\nsleep 9\n")
    profiled = ("--profile", "a.json")
    for words, gb_s in (
        (("--memory-bandwidth", "4.5", *profiled, "said.sh"), 4.5),
        ((*profiled, "said.sh"), 3.5),
        ((*profiled, "good.sh"), 2.5),
        (("good.sh",), None),
    ):
        ((number,),) = terminal.lines("submit", *words)
        job = terminal.server.daemon.context.state.job(JobId(number))
        assert job is not None and job.spec.bandwidth_gb_s == gb_s
    said = terminal.refused(2, "submit", "--memory-bandwidth", "much", "good.sh")
    assert "expected a number above 0 like 12.5, got 'much'" in said
