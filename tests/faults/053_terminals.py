"""A job with a name that the terminal's encoding lacks ended `rms queue` with a traceback."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable

import pytest

from dmr.cli import main as dmr_main
from mpdata.cli.main import main as mpdata_main
from rms.cli.main import main as rms_main
from rms.wire.terminal import publish


@pytest.mark.parametrize("main", [dmr_main, mpdata_main, rms_main])
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_what_an_encoding_lacks_is_written_out(
    main: Callable[[list[str]], int], encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(data, encoding))
    with pytest.raises(SystemExit):
        main(["--version"])
    publish(None, None, ["caf\u00e9 \u03b1 \ud800"])
    sys.stdout.flush()
    written = {"ascii": r"caf\xe9 \u03b1", "latin-1": "caf\u00e9 \\u03b1"}
    text = data.getvalue().decode(encoding).splitlines()[-1]
    assert text == written.get(encoding, "caf\u00e9 \u03b1") + r" \ud800"
