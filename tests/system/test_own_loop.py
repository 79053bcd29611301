"""A loop of one's own in a block of dmr.malleable: hooks, requests, arrays of one's own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from daemon import served
from own_loops import PROGRAM, lines, report
from processes import DEADLINE_S, MPIEXEC, Run, program, started
from selection import all_wide_but

PACED = program("paced")


@pytest.fixture(scope="module")
def steady(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the hash of a run that is left alone, computed once."""
    words = [MPIEXEC, "-n", "1", *PROGRAM, "plain", "40"]
    folder = tmp_path_factory.mktemp("steady")
    done = subprocess.run(words, cwd=folder, check=True, capture_output=True, text=True)
    said, digest = report(done.stdout.splitlines())
    assert said == "[] {'backends': ['']}"
    return digest


def test_code_after_the_block_is_reached_by_the_last_world_alone(run: Run, steady: str) -> None:
    found = lines(run, 2, "script")
    said, digest = report(found)
    assert said.startswith("[[10, 2, 3], [20, 3, 1]]") and digest == steady
    assert "'saves': [2, 3], 'loads': [3, 1]" in said
    assert found.count("after the block") == 1
    # Of both fields: the array of 23 x 29 doubles, and the list beside it.
    (moved,) = [line.split()[1:] for line in found if line.startswith("bytes ")]
    assert len(moved) == 2 and all(int(size) > 23 * 29 * 8 for size in moved)


LOOPS = program("any_loops")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return what the program of many loops says where nothing resizes it."""
    words = [MPIEXEC, "-n", "1", *LOOPS]
    folder = tmp_path_factory.mktemp("undisturbed")
    done = subprocess.run(words, cwd=folder, check=True, capture_output=True, text=True)
    assert done.stdout.startswith("[] in 32 steps, 28 draws, sha256 "), done.stdout
    return done.stdout.partition("in ")[2]


@pytest.mark.parametrize(
    ("script", "strategy"),
    [
        pytest.param("9:2,27:1", "auto"),
        pytest.param("2:3,9:4,12:3", "merge"),
        pytest.param("7:3,16:2,31:1", "auto", marks=pytest.mark.wide),
        pytest.param("12:3,30:1", "restart", marks=pytest.mark.wide),
    ],
)
@pytest.mark.promise("own-code")
def test_loops_of_all_kinds_go_on_where_they_were(
    run: Run, undisturbed: str, script: str, strategy: str
) -> None:
    words = [*LOOPS, *(["merge"] if strategy == "merge" else [])]
    env = {"DMR_RESIZE_AT": script, "DMR_STRATEGY": strategy}
    done = run(MPIEXEC, "-n", "1", *words, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    said, _, rest = done.stdout.splitlines(keepends=True)[-1].partition("in ")
    steps = [step.partition(":")[0] for step in script.split(",")]
    assert re.findall(r"\[(\d+), ", said.replace("[[", "[")) == steps and rest == undisturbed
    assert done.stdout.count(f"ranks by {strategy},") in (0, len(steps))


@pytest.mark.wide
def test_without_mpiexec_the_one_beside_python_starts_the_new_ranks(
    run: Run, undisturbed: str
) -> None:
    done = run(*LOOPS, env={"DMR_RESIZE_AT": "9:2", "PATH": os.defpath})
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith(f"[[9, 1, 2]] in {undisturbed}")


def test_the_surroundings_ask_for_resizes_and_backends(run: Run, steady: str) -> None:
    found = lines(run, 2, "plain", DMR_RESIZE_AT="5:3@rule,9:3@rule,10:1,20:1@abacus")
    said, digest = report(found)
    assert said.startswith("[[5, 2, 3], [9, 3, 3], [10, 3, 1], [20, 1, 1]]") and digest == steady
    assert "'backends': ['', 'rule', 'rule', 'rule', 'abacus']" in said


@pytest.mark.parametrize("script", all_wide_but(["5", "5:3@slide", "5:0", "7:2,6:1", "5:9"], "5:0"))
def test_a_wrong_script_is_refused(run: Run, script: str) -> None:
    done = run(MPIEXEC, "-n", "1", *PROGRAM, "plain", "40", env={"DMR_RESIZE_AT": script})
    assert done.returncode == 2
    assert done.stderr.startswith(f"dmr: error: DMR_RESIZE_AT={script}: expected")


def test_save_may_refuse_a_resize(run: Run, steady: str) -> None:
    found = lines(run, 2, "veto")
    said, digest = report(found)
    assert said.startswith("[[20, 2, 1]]") and digest == steady
    assert "'saves': [2, 2], 'loads': [1]" in said
    back = "resize to 3 ranks rolled back: expected another step than 10"
    assert back in found


@pytest.mark.wide
def test_a_list_without_owners_rolls_back(run: Run, steady: str) -> None:
    found = lines(run, 2, "owner")
    said, digest = report(found)
    assert said.startswith("[[20, 2, 1]]") and digest == steady
    (back,) = [one for one in found if "rolled back" in one]
    assert "owners of 0 to 2" in back


def test_the_application_asks_for_its_sizes(run: Run, steady: str) -> None:
    said, digest = report(lines(run, 3, "ask"))
    assert said.startswith("[[10, 3, 1], [25, 1, 4]]") and digest == steady


@pytest.mark.parametrize("cooldown", ["1e-9", "1000"])
@pytest.mark.covering(0)
def test_requests_wait_for_the_end_of_a_cooldown(run: Run, steady: str, cooldown: str) -> None:
    said, digest = report(lines(run, 3, "ask", DMR_COOLDOWN=cooldown))
    once, twice = "[[10, 3, 1]]", "[[10, 3, 1], [25, 1, 4]]"
    assert said.startswith(f"{once if cooldown == '1000' else twice} ") and digest == steady


@pytest.mark.parametrize(("cooldown", "tries"), [("", 2), ("1000", 1)])
@pytest.mark.covering(0)
def test_a_resize_that_was_rolled_back_begins_a_cooldown(
    run: Run, steady: str, cooldown: str, tries: int
) -> None:
    found = lines(run, 2, "ask-in-vain", DMR_COOLDOWN=cooldown)
    said, digest = report(found)
    assert said.startswith("[] ") and digest == steady
    assert f"'saves': {[2] * tries}" in said and "'loads'" not in said
    assert sum("rolled back: expected no resize at all" in one for one in found) == tries


@pytest.mark.wide
def test_scripted_resizes_know_no_cooldown(run: Run, steady: str) -> None:
    said, digest = report(lines(run, 2, "script", DMR_COOLDOWN="1000"))
    assert said.startswith("[[10, 2, 3], [20, 3, 1]]") and digest == steady


@pytest.mark.parametrize("cooldown", all_wide_but(["-1", "soon", "nan", "inf"], "soon"))
def test_a_wrong_cooldown_is_refused(run: Run, cooldown: str) -> None:
    done = run(MPIEXEC, "-n", "1", *PROGRAM, "plain", "40", env={"DMR_COOLDOWN": cooldown})
    assert done.returncode == 2
    assert done.stderr.startswith(f"dmr: error: DMR_COOLDOWN={cooldown}: expected")


def test_merge_is_refused_without_build(run: Run) -> None:
    done = run(MPIEXEC, "-n", "2", *PROGRAM, "script", "40", env={"DMR_STRATEGY": "merge"})
    assert done.returncode != 0 and "expected build= in dmr.malleable" in done.stderr


def test_an_array_of_another_shape_is_refused(run: Run) -> None:
    done = run(MPIEXEC, "-n", "2", *PROGRAM, "misfit", "40")
    assert done.returncode != 0
    assert "expected an array of shape (26, 17) for cells (0, 15) to (23, 29)" in done.stderr


@pytest.mark.promise("bits-merge")
def test_ranks_that_stay_keep_their_loop_and_their_items(run: Run, steady: str) -> None:
    found = lines(run, 2, "merge")
    assert sum("ranks by merge," in one for one in found) == 3
    said, digest = report(found)
    assert said.startswith("[[10, 2, 4], [20, 4, 2], [30, 2, 3]]") and digest == steady


@pytest.mark.parametrize("how", ["agreed", "alone"])
@pytest.mark.parametrize("who", ["new", "old", "first"])
@pytest.mark.covering(0)
def test_what_fails_to_build_on_one_rank_is_rolled_back_on_all(
    run: Run, steady: str, who: str, how: str
) -> None:
    found = lines(run, 2, "merge", FAULT=f"{who} {how}")
    said, digest = report(found)
    assert said.startswith("[[30, 2, 3]]") and digest == steady
    assert "'saves': [2, 2], 'loads': [3]" in said
    (back,) = [one for one in found if "rolled back" in one]
    assert "cannot build" in back


@pytest.mark.wide
def test_ranks_caught_in_a_build_end_with_a_word(run: Run) -> None:
    done = run(MPIEXEC, "-n", "2", *PROGRAM, "merge", "40", env={"FAULT": "old while others wait"})
    assert done.returncode != 0 and "ValueError: cannot build" in done.stderr
    assert "sha256" not in done.stdout


@pytest.mark.parametrize("ranks", all_wide_but([1, 3], 3))
def test_killed_and_restarted_on_other_ranks(run: Run, steady: str, ranks: int) -> None:
    died = run(MPIEXEC, "-n", "2", *PROGRAM, "kill", "40")
    assert died.returncode != 0 and "sha256" not in died.stdout
    found = lines(run, ranks, "again")
    assert any("checkpoint-0000000016.h5 at step 16" in one for one in found)
    assert report(found)[1] == steady


@pytest.mark.parametrize("script", all_wide_but(["", "5:1"], ""))
@pytest.mark.promise("sigterm")
def test_sigterm_leaves_a_checkpoint_and_a_sentence(tmp_path: Path, script: str) -> None:
    command = [MPIEXEC, "-n", "2", *PACED, PROGRAM[1], "again", "4000"]
    env = {**os.environ, "DMR_RESIZE_AT": script}
    with started(command, cwd=tmp_path, env=env) as job:
        assert job.stdout is not None
        for line in job.stdout:
            if line.startswith("resize at step 5" if script else "no checkpoint in saved"):
                break
        until = time.monotonic() + DEADLINE_S
        while not list((tmp_path / "saved").glob("checkpoint-*.h5")):
            assert job.poll() is None and time.monotonic() < until
            time.sleep(0.05)
        job.send_signal(signal.SIGTERM)
        rest = job.communicate(timeout=DEADLINE_S)[0]
    step = re.search(r"ended by SIGTERM at step (\d+)", rest)
    assert step is not None and "sha256" not in rest
    assert script or (job.returncode == 143 and "Traceback" not in rest)
    assert (tmp_path / "saved" / f"checkpoint-{int(step[1]):010d}.h5").exists()


@pytest.mark.wide
def test_ranks_caught_in_a_build_with_a_dead_world_end_with_a_word() -> None:
    with served(2, "--policy", "fifo") as rms:
        job = rms.submit(
            " ".join(["export FAULT='new while others wait'; mpirun", *PACED, PROGRAM[1],
                      "ask-rms-merge", "800"]),
            "--mode", "malleable", "--nodes", "1-2", "--preferred", "1",
        )  # fmt: skip
        rms.running(job)
        rms.ask("resize", job, "2")
        assert rms.over(job) == ["FAILED"]
        assert "error: build did not return within 20 s after: " in rms.output(job)
        rms.nothing_left()


def test_the_rms_grants_what_the_application_asks_for(run: Run) -> None:
    steps = 800
    plain = report(lines(run, 1, "plain", steps))[1]
    with served(3, "--policy", "fifo") as rms:
        job = rms.submit(
            " ".join(["mpirun", *PACED, PROGRAM[1], "ask-rms", str(steps)]),
            "--mode", "malleable", "--nodes", "1-3", "--preferred", "2",
        )  # fmt: skip
        rms.until(lambda: len(rms.row(job)["resizes"]) == 2, "two resizes")
        (rms.work / "go").touch()
        assert rms.over(job) == ["COMPLETED"], rms.output(job)
        done = [(r["from"], r["to"], r["strategy"]) for r in rms.row(job)["resizes"]]
        assert done == [(2, 3, "warm"), (3, 1, "warm")]
        assert report(rms.output(job).splitlines())[1] == plain
        rms.nothing_left()


def test_what_a_failed_shrink_has_sent_does_not_reach_the_next(run: Run) -> None:
    done = run(MPIEXEC, "-n", "1", *program("short_shrink"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("resize to 1 ranks rolled back") == 1
    assert "[[10, 1, 2], [30, 2, 1]] right True" in done.stdout


@pytest.mark.wide
def test_loops_of_all_kinds_under_the_rms(undisturbed: str) -> None:
    with served(2, "--policy", "fifo") as rms:
        job = rms.submit(
            " ".join(["export PACE_S=2; mpirun", *PACED, LOOPS[1]]),
            "--mode", "malleable", "--nodes", "1-2", "--preferred", "1",
        )  # fmt: skip
        for count, size in enumerate((2, 1), 1):
            rms.running(job)
            rms.resized(job, size)  # it may rest after the resize before
            rms.until(lambda count=count: len(rms.row(job)["resizes"]) == count, f"resize {count}")
        (rms.work / "go").touch()
        assert rms.over(job) == ["COMPLETED"], rms.output(job)
        assert {row["strategy"] for row in rms.row(job)["resizes"]} == {"warm"}
        assert f"in {undisturbed}" in rms.output(job)
        rms.nothing_left()


CONSTANT = program("constant_field")


@pytest.mark.wide
def test_a_constant_field_is_compared_not_moved(run: Run) -> None:
    script = {"DMR_RESIZE_AT": "3:3,6:1", "DMR_STRATEGY": "spawn"}
    done = run(MPIEXEC, "-n", "2", *CONSTANT, "3", env=script)
    k, u = np.sqrt(np.arange(300.0 * 64)).reshape(300, 64), np.zeros((300, 64))
    for _ in range(10):
        u += k * 2.0
    first, second, *_, last = done.stdout.splitlines()
    why = "field k: expected the constant data of the ranks before, got other data: set it before"
    assert first.startswith(f"resize to 3 ranks rolled back: {why}"), done.stdout + done.stderr
    assert second.startswith("resize at step 6: 2 -> 1 ranks by spawn")
    assert last == f"1 ranks, moved [{u.nbytes}], sum {u.sum()}"


@pytest.mark.parametrize(
    ("nodes", "moved"), [("2", [2, 1, 2]), pytest.param("1", [1, 1, 1], marks=pytest.mark.wide)]
)
def test_what_every_rank_has_is_sent_to_each_node_once(
    run: Run, nodes: str, moved: list[int]
) -> None:
    """MPICH can take one node for two."""
    words = [MPIEXEC, "-n", "2", *program("same_everywhere")]
    script = {"DMR_RESIZE_AT": "2:4,5:1,8:5", "DMR_STRATEGY": "spawn"}
    done = run(*words, env=script | {"MPIR_CVAR_NUM_CLIQUES": nodes})
    assert done.stdout.splitlines()[-1] == f"moved {moved}, good True", done.stderr
