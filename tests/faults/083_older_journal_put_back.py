"""An older journal that was put back with its count was taken for the newest, without a message."""

from __future__ import annotations

import shutil
from pathlib import Path

from killed import bench

from rms.core.model.jobs import Mode
from rms.daemon.restart.recover import settle


def test_it_is_reported_with_the_jobs_that_are_missing(tmp_path: Path) -> None:
    folder, saved = tmp_path / "state", tmp_path / "saved"
    folder.mkdir(), saved.mkdir()
    with bench(folder) as opened:
        opened.submit("1", (1, 1, 1), Mode.FIXED)
        opened.journal.flush()
        for file in folder.glob("journal*"):
            shutil.copy(file, saved)
        assert (saved / "journal.count").exists()
        opened.submit("2", (1, 1, 1), Mode.FIXED)
        opened.journal.flush()
        opened.close()
        for file in saved.iterdir():
            shutil.copy(file, folder)
        opened.start()
        settle(opened.daemon)
        log = "\n".join(opened.said)
        assert "are missing: it is damaged, or an older journal was restored" in log
        assert "missing in the journal, or refused when submitted: jobs 2" in log
        opened.said.clear()
        opened.journal.flush()
        opened.start()
        settle(opened.daemon)
        assert not any("missing" in words for words in opened.said)
