"""What ``rms submit`` takes in and refuses, and what is left of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from routed import SCRIPT, Routed, routed

from rms.core.model.jobs import JobId
from rms.daemon.jobs.submit import exported
from rms.daemon.store.journal import Journal, JournalFullError
from rms.formats.jobscript import ScriptError
from rms.launch.local import LocalLauncher


@pytest.mark.promise("submitting")
def test_a_refused_submission_uses_no_number_and_leaves_no_folder(
    server: Routed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = tmp_path / "missing"
    for bad in ({"options": {"array": "x"}}, {"options": {"preferred": 9}}, {"text": "true"}):
        assert server.ask("POST", "/jobs", SCRIPT | bad)[0] == 400
    status, answer = server.ask("POST", "/jobs", SCRIPT | {"cwd": str(missing)})
    expected = {"error": f"expected an existing folder to run in, got {str(missing)!r}"}
    assert (status, answer) == (400, expected) and not missing.exists()
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", _no_room)
        assert server.ask("POST", "/jobs", SCRIPT | {"options": {"array": "0-2"}})[0] == 503
    jobs = server.daemon.launcher.state / "jobs"
    assert not server.daemon.jobs and not list(jobs.glob("*"))
    assert server.submit() == "1" and (jobs / "1" / "script").read_text() == SCRIPT["text"]
    assert server.submit() == "2"
    assert JobId("2") in server.daemon.jobs


def test_a_signal_that_cannot_be_passed_on_is_refused(server: Routed) -> None:
    options = {"resize_by": "signal", "signal": "B:TERM@30"}
    status, answer = server.ask("POST", "/jobs", SCRIPT | {"options": options})
    expected = "expected a signal other than B:TERM with --resize-by, got B:TERM@30"
    assert (status, answer) == (400, {"error": expected})
    assert server.submit(resize_by="messages", signal="B:TERM@30") == "1"
    assert server.submit(resize_by="command:true", signal="B:USR1") == "2"
    notes = [server.daemon.jobs[JobId(number)].submission for number in "12"]
    assert [note.resize_by for note in notes] == ["", "command:true"]


@pytest.mark.parametrize(
    ("wanted", "left"),
    [
        *(("ALL", {"A": "1", "B": "2"}), ("NONE", {}), ("NIL", {}), ("B", {"B": "2"})),
        *(("C", {}), ("ALL,A=x=y", {"A": "x=y", "B": "2"}), ("A=3,ALL", {"A": "3", "B": "2"})),
        *(("C=,B", {"C": "", "B": "2"}), ("NONE=1", {"NONE": "1"})),
    ],
)
def test_exported_variables(wanted: str, left: dict[str, str]) -> None:
    assert exported({"A": "1", "B": "2"}, wanted) == left


@pytest.mark.parametrize("wanted", ["", "A,,B", "=x", "NONE,A", "A,NIL"])
def test_what_cannot_be_exported(wanted: str) -> None:
    with pytest.raises(ScriptError, match="--export: expected"):
        exported({"A": "1"}, wanted)


@pytest.mark.promise("submitting")
def test_a_script_runs_with_what_it_was_submitted_with(tmp_path: Path) -> None:
    folder, where = tmp_path / "state", tmp_path / "where"
    where.mkdir()
    folder.mkdir(mode=0o700)
    text = '#!/bin/sh\n#SBATCH -e %x.err\nprintf "%s|" "$@" "$A" "$B" "$PWD"\necho no >&2\n'
    options = {
        "arguments": ["a b", "-x", "$HOME"],
        "job_name": "one",
        "output": "%x.out",
        "chdir": "where",
        "export": "A=3",
    }
    body = {"text": text, "cwd": str(tmp_path), "env": {"A": "1", "B": "2"}, "options": options}
    with routed(folder) as server:
        launcher = LocalLauncher(folder, "instance", "unix:none")
        server.daemon.context.launcher = server.daemon.launcher = launcher
        assert server.ask("POST", "/jobs", SCRIPT | body)[0] == 200
        script = server.daemon.jobs[JobId("1")].script
        assert script is not None and script.process is not None
        assert script.process.wait(120) == 0
    assert (where / "one.out").read_text() == f"a b|-x|$HOME|3||{where}|"
    assert (where / "one.err").read_text() == "no\n"
    assert not (tmp_path / "one.err").exists()


@pytest.mark.promise("submitting")
def test_a_repeated_submission_gives_the_same_ids(tmp_path: Path) -> None:
    body = SCRIPT | {"options": {"array": "0-1", "idempotency_key": "mine"}}
    other = SCRIPT | {"options": {"idempotency_key": "mine"}}
    with routed(tmp_path) as server:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Journal, "flush", _no_room)
            assert server.ask("POST", "/jobs", body)[0] == 503  # taken in, but who knows
        assert server.ask("POST", "/jobs", body) == (200, {"ids": ["1_0", "1_1"]})
        status, answer = server.ask("POST", "/jobs", other)
        assert status == 400 and "got that of 1_0" in answer["error"]
    with routed(tmp_path) as server:  # a restarted daemon knows too
        assert server.ask("POST", "/jobs", body) == (200, {"ids": ["1_0", "1_1"]})
        assert server.submit(idempotency_key="another") == "2"
        assert len(server.daemon.jobs) == 3


@pytest.mark.promise("submitting")
def test_options_for_sbatch_without_effect_are_said_or_refused(server: Routed) -> None:
    for line in ("-F nodes", "-C fast", "--reservation x"):
        body = SCRIPT | {"text": f"#!/bin/sh\n#SBATCH --qos=long {line}\ntrue\n"}
        status, answer = server.ask("POST", "/jobs", body)
        assert status == 400 and "which says when or where it may run" in answer["error"]
    body = SCRIPT | {"text": "#!/bin/sh\n#SBATCH --qos=long -p debug --colour\ntrue\n"}
    said = ["#SBATCH --qos=long -pdebug --colour: without effect here"]
    assert server.ask("POST", "/jobs", body) == (200, {"ids": ["1"], "warnings": said})


def _no_room(*_: object) -> int:
    raise JournalFullError("expected room, got none")
