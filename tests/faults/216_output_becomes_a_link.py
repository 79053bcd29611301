"""An output that became a link after the submission led a job's lines into the daemon's files."""

from __future__ import annotations

from pathlib import Path

from daemon import served

TIME = ("--time", "1")


def test_neither_the_job_nor_its_last_line_is_written_through_a_link_made_meanwhile() -> None:
    with served(1) as rms:
        token = rms.state / "token"
        before = token.read_text()
        held = rms.submit("echo x", *TIME, "--hold", "--output", "late")
        (rms.work / "late").symlink_to(token)
        rms.rms("release", held)
        assert rms.over(held) == ["FAILED"]
        assert "outside the daemon's state folder" in rms.row(held)["reason"]
        lines = "rm early; ln -s ../s/token early; echo done > ready"
        ended = rms.submit(lines, *TIME, "--output", "early")
        assert rms.over(ended) == ["COMPLETED"]
        rms.until(lambda: f"job {ended}: its output does not take its last line" in rms.said(), "a")
        assert (rms.work / "ready").exists() and (rms.work / "early").is_symlink()
        assert token.read_text() == before
        assert Path(rms.row(ended)["output"]) == rms.work / "early"
