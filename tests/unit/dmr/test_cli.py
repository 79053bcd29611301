"""What a user of ``dmr`` gets wrong: one sentence on standard error."""

from __future__ import annotations

from pathlib import Path

import pytest

from dmr.cli import main

BAD = [
    (["completion", "none.json"], 1, "expected a completion record, got no none.json"),
    (["completion", "."], 2, "expected a completion record, got .: Is a directory"),
    (["bench", "--from", "0"], 2, "expected --from of at least 1, got 0"),
    (["bench", "--mib", "0"], 2, "expected --mib of at least 1, got 0"),
    (["bench", "--strategy", "magic"], 2, "expected a strategy of warm, spawn, merge, restart"),
    (["check", "--resize", "3,0", "--", "true"], 2, "expected --resize RANKS[,RANKS...], got"),
    (
        ["check", "--", "no-such-program"],
        2,
        "a command that can be run, got no-such-program: No such",
    ),
    (["run", "-n", "0", "--", "true"], 2, "expected -n of at least 1, got 0"),
    (["run", "--spare", "a", "--", "true"], 2, "expected --spare with --hosts, got no --hosts"),
    (
        ["run", "--hosts", "a,b", "--spare", "b", "--rsh", "true", "--", "true"],
        2,
        "expected spares that are not in --hosts, got b",
    ),
    (["run", "-n", "2", "--least", "3", "--", "true"], 2, "expected --least of at most -n 2, got"),
    (["run", "--", "no-such-program"], 2, "expected a command that can be run, got no-such"),
    (["run", "--hosts", "a,a", "--rsh", "true", "--", "true"], 2, "each host once in --hosts, got"),
    (["run", "--hosts", "a:0", "--rsh", "true", "--", "true"], 2, "expected --hosts HOST[:RANKS]"),
    (
        ["run", "-n", "3", "--hosts", "a:1,b:1", "--rsh", "true", "--", "true"],
        2,
        "expected --hosts with room for 3 ranks, got 2",
    ),
    (["run", "--hosts", "a", "--rsh", "no-such", "--", "true"], 2, "a remote shell, got no-such"),
    (["run", "--json", "-", "--", "true"], 2, "expected a file for --json, got -"),
    (["bench", "--json", "no/such/x.json"], 2, "expected an existing folder for --json"),
]


@pytest.mark.parametrize(("words", "status", "why"), BAD)
def test_bad_input_is_one_sentence(
    words: list[str],
    status: int,
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == status
    said = capsys.readouterr()
    assert said.out == "" and len(said.err.splitlines()) == 1
    assert said.err.startswith("dmr: error: ") and why in said.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [["magic"], ["bench", "--from", "many"], ["run", "--every", "0"]])
def test_bad_usage_ends_with_status_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2 and "Traceback" not in capsys.readouterr().err
