"""What the engines build on: jobs, arrays, and running jobs that grow and shrink."""

from __future__ import annotations

from slurm_bed import NODES, Slurm


def test_all_nodes_are_idle(slurm: Slurm) -> None:
    assert slurm.idle() == {f"n{i + 1}" for i in range(NODES)}


def test_an_array_completes(slurm: Slurm) -> None:
    script = (
        "#!/bin/sh\n#SBATCH --array=1-3 --nodes=1 --output=task-%a.out\necho $SLURM_ARRAY_TASK_ID"
    )
    (slurm.folder / "tmp" / "array.sh").write_text(script)
    job = slurm("sbatch", "--parsable", "array.sh").strip()

    def states() -> dict[str, str]:
        return {name: state for name, state, _ in slurm.rows(job) if "." not in name}

    wanted = {f"{job}_{task}": "COMPLETED" for task in (1, 2, 3)}
    slurm.wait_until(lambda: states() == wanted, "the array is COMPLETED in accounting")
    for task in (1, 2, 3):
        assert (slurm.folder / "tmp" / f"task-{task}.out").read_text() == f"{task}\n"


def test_a_running_job_grows(slurm: Slurm) -> None:
    job = slurm.submit("--nodes=1")
    first = slurm.hosts(job)
    slurm.grow(job, 2)
    assert len(slurm.hosts(job)) == 3
    assert set(first) < set(slurm.hosts(job))
    assert slurm.show(job)["JobState"] == "RUNNING"
    slurm.wait_until(
        lambda: {(job, "RESIZING", "1"), (job, "RUNNING", "3")} <= set(slurm.rows(job)),
        "accounting has the resize",
    )


def test_a_running_job_shrinks_onto_named_nodes(slurm: Slurm) -> None:
    job = slurm.submit("--nodes=3")
    kept = [slurm.show(job)["BatchHost"], slurm.hosts(job)[-1]]
    slurm.shrink(job, *kept)
    assert set(slurm.hosts(job)) == set(kept)
    slurm.wait_until(lambda: len(slurm.idle()) == NODES - len(kept), "the rest is idle")
    slurm.wait_until(
        lambda: {(job, "RESIZING", "3"), (job, "RUNNING", "2")} <= set(slurm.rows(job)),
        "accounting has the resize",
    )


def test_a_job_is_resized_again_and_again(slurm: Slurm) -> None:
    job = slurm.submit("--nodes=1")
    home = slurm.show(job)["BatchHost"]
    for nodes in (2, 3):
        slurm.grow(job, nodes)
        assert len(slurm.hosts(job)) == 1 + nodes
        slurm.shrink(job, home)
        assert slurm.hosts(job) == [home]
    sizes = ["1", "3", "1", "4", "1"]

    def recorded() -> list[str]:
        return [nodes for name, _, nodes in slurm.rows(job) if name == job]

    slurm.wait_until(lambda: recorded() == sizes, "accounting has four resizes")


def test_the_batch_host_cannot_leave(slurm: Slurm) -> None:
    job = slurm.submit("--nodes=2")
    before = slurm.hosts(job)
    other = next(name for name in before if name != slurm.show(job)["BatchHost"])
    done = slurm.run("scontrol", "update", f"jobid={job}", f"NodeList={other}")
    assert done.returncode != 0
    assert slurm.hosts(job) == before


def test_a_job_with_a_batch_step_cannot_donate(slurm: Slurm) -> None:
    job = slurm.submit("--nodes=1")
    donor = slurm.submit("--nodes=1", f"--dependency=expand:{job}")
    done = slurm.run("scontrol", "update", f"jobid={donor}", "NumNodes=0")
    assert done.returncode != 0
    assert len(slurm.hosts(job)) == len(slurm.hosts(donor)) == 1


def test_a_cancelled_donor_leaves_both_as_they_were(slurm: Slurm) -> None:
    job = slurm.submit("--nodes=1")
    donor = slurm.allocate("--nodes=2", f"--dependency=expand:{job}")
    slurm("scancel", donor)
    done = slurm.run("scontrol", "update", f"jobid={donor}", "NumNodes=0")
    assert done.returncode != 0
    assert len(slurm.hosts(job)) == 1
    slurm.wait_until(lambda: len(slurm.idle()) == NODES - 1, "the donor's nodes are idle")


def test_a_donor_outlives_its_job(slurm: Slurm) -> None:
    """So whoever asks for donors has to cancel them on every path."""
    job = slurm.submit("--nodes=1")
    donor = slurm.allocate("--nodes=1", f"--dependency=expand:{job}")
    slurm("scancel", job)
    slurm.wait_until(lambda: slurm.show(job)["JobState"] == "CANCELLED", "the job ended")
    assert slurm.show(donor)["JobState"] == "RUNNING"


def test_a_step_loses_its_tasks_on_released_nodes(slurm: Slurm) -> None:
    """So steps on nodes that are to be released have to end first."""
    job = slurm.allocate("--nodes=2")
    stays, goes = slurm.hosts(job)
    # A task's processes are killed one by one, so its shell may see its sleep killed first.
    gone = slurm.folder / "tmp" / "gone"
    tell = f"echo began; until [ -e {gone} ]; do sleep 0.1; done; echo ended on $SLURMD_NODENAME"
    step = slurm.start("srun", f"--jobid={job}", "--nodes=2", "--ntasks=2", "sh", "-c", tell)
    try:
        slurm.wait_until(lambda: slurm("squeue", "--steps", "--noheader"), "the step runs")
        assert step.stdout is not None
        assert [step.stdout.readline() for _ in range(2)] == ["began\n"] * 2
        slurm("scontrol", "update", f"jobid={job}", f"NodeList={stays}")
        slurm.wait_until(lambda: goes in slurm.idle(), "a released node without the step")
        gone.touch()
        out, _ = step.communicate(timeout=300)
    finally:
        step.kill()
    assert f"ended on {stays}\n" in out
    assert f"ended on {goes}\n" not in out
    assert step.returncode != 0
