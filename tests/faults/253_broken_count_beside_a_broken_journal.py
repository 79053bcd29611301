"""A daemon did not start where a disk had damaged both the journal and its count."""

from __future__ import annotations

from pathlib import Path

from killed import bench
from said import Said

from rms.core.model.jobs import Mode
from rms.daemon.restart.recover import open_journal
from rms.daemon.store.file import CountFiles


def test_what_is_left_of_the_journal_goes_on(tmp_path: Path) -> None:
    with bench(tmp_path) as opened:
        opened.submit("1", (1, 1, 1), Mode.FIXED)
        opened.journal.flush()
        opened.close()
        path = opened.journal.path
        path.write_bytes(bytes(4096) + path.read_bytes()[4096:])
        for count in filter(Path.exists, CountFiles(path).paths):
            count.write_bytes(bytes(512))
        messages = Said()
        with open_journal(path):
            assert any("records could be read, and go on" in words for words in messages)
