"""Data of published studies, which the project does not ship: read from a folder of the user's."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import TypeVar

import msgspec

from rms.formats.config import FileError

Row = TypeVar("Row", bound=msgspec.Struct)


def read_rows(path: Path, row: type[Row], source: str) -> list[Row]:
    """Read a CSV file, also a compressed one; columns that ``row`` does not name are left out.

    Args:
        source: where the file comes from, for who lacks it.

    Raises:
        FileError: missing, or a line does not say what it should.
    """
    found: list[Row] = []
    try:
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            for fields in reader:
                found.append(msgspec.convert(fields, row, strict=False))
    except FileNotFoundError:
        raise FileError(
            f"expected {path}, which does not exist; it is made from {source}"
        ) from None
    except msgspec.ValidationError as error:
        wrong = str(error).replace("`", "")
        raise FileError(f"{path}, line {reader.line_num}: {wrong}") from None
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise FileError(f"{path}: expected a CSV file, got: {error}") from None
    if not found:
        raise FileError(f"{path}: expected at least one row, got none")
    return found
