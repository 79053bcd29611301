"""The completion record: whole or not at all, of a known format."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sentences import one_sentence

from rms.wire.messages import (
    COMPLETION_FORMAT,
    CompletionRecord,
    ProtocolError,
    ResizeReport,
    read_completion,
    write_completion,
)

RECORD = CompletionRecord(
    state="COMPLETED", exit_code=0, message="", step=120, generation=3, ranks=4
)

RECORDS = st.builds(
    CompletionRecord,
    state=st.sampled_from(["COMPLETED", "FAILED", "CANCELLED"]),
    exit_code=st.integers(0, 255),
    message=st.text(max_size=40),
    step=st.integers(0, 10**9),
    generation=st.integers(0, 1000),
    ranks=st.integers(1, 10**6),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("records")


@settings(max_examples=25)  # every example waits for the disk
@given(record=RECORDS)
def test_a_record_is_read_as_it_was_written(folder: Path, record: CompletionRecord) -> None:
    write_completion(folder / "record.json", record)
    assert read_completion(folder / "record.json") == record


def test_a_message_may_hold_what_is_no_text(tmp_path: Path) -> None:
    # Python writes the bytes of a file name that is not UTF-8 as lone surrogates.
    name = os.fsdecode(b"winds-\xff.nc")
    write_completion(tmp_path / "record.json", msgspec.structs.replace(RECORD, message=name))
    assert "winds-" in read_completion(tmp_path / "record.json").message


def test_missing_folders_are_made(tmp_path: Path) -> None:
    write_completion(tmp_path / "a" / "b" / "record.json", RECORD)
    assert read_completion(tmp_path / "a" / "b" / "record.json") == RECORD


def test_a_new_record_takes_the_place_of_the_old_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_completion(path, RECORD)
    write_completion(path, msgspec.structs.replace(RECORD, step=121))
    assert read_completion(path).step == 121
    assert list(tmp_path.iterdir()) == [path]


@dataclass
class FullDisk:
    """Stands in for os.fsync on a disk that takes no more."""

    asked: int = 0

    def __call__(self, descriptor: int) -> None:
        self.asked += 1
        raise OSError(28, "No space left on device")


def test_a_full_disk_leaves_the_old_record_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, disk = tmp_path / "record.json", FullDisk()
    write_completion(path, RECORD)
    monkeypatch.setattr(os, "fsync", disk)
    with pytest.raises(OSError, match="No space"):
        write_completion(path, msgspec.structs.replace(RECORD, step=121))
    assert disk.asked == 1
    assert read_completion(path) == RECORD


def test_the_record_appears_only_once_it_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "record.json"
    seen: list[bool] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: seen.append(path.exists()))
    write_completion(path, RECORD)
    assert seen == [False]
    assert path.exists()


def test_no_record_is_told_apart_from_a_bad_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_completion(tmp_path / "record.json")


def encoded(**other: Any) -> bytes:
    return json.dumps({**msgspec.to_builtins(RECORD), **other}).encode()


def test_torn_records_are_refused_wherever_they_end(tmp_path: Path) -> None:
    path, whole = tmp_path / "record.json", encoded()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with one_sentence(ProtocolError, str(path)):
            read_completion(path)


@pytest.mark.parametrize("version", [0, COMPLETION_FORMAT + 1, 99])
def test_unknown_formats_are_refused(tmp_path: Path, version: int) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(encoded(format=version))
    with one_sentence(ProtocolError, f"expected completion format 1, got {version}"):
        read_completion(path)


WRONG = {
    "state": encoded(state="DONE"),
    "text-step": encoded(step="twelve"),
    "null": encoded(exit_code=None),
    "unknown-key": encoded(colour="blue"),
    "missing-keys": b'{"state": "COMPLETED"}',
    "list": b"[]",
    "nothing": b"null",
    "text": b"COMPLETED\n",
    "zeros": b"\x00" * 64,
    "binary": b"\xff\xfe not text",
    "not-utf-8": encoded(message="?").replace(b"?", b"\xff"),
}


@pytest.mark.parametrize("content", WRONG.values(), ids=list(WRONG))
def test_what_is_not_a_record_is_refused_in_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(content)
    with one_sentence(ProtocolError, str(path)):
        read_completion(path)


TIMES = {"boot_s": 0.2, "stall_s": 0.3, "move_s": 0.1}
RESIZE = ResizeReport(5, 2, 4, "spawn", **TIMES, bytes=10, gb_per_s=1.0)


def test_a_resize_is_reported_by_the_names_of_the_command_line() -> None:
    names = "step from to strategy boot_s stall_s move_s bytes gb_per_s"
    assert " ".join(msgspec.to_builtins(RESIZE)) == names
