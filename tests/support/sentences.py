"""What every message to a user has to look like."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def one_sentence(kind: type[Exception], says: str = "") -> Iterator[None]:
    """Expect an error of one line that says what was expected and what was got."""
    with pytest.raises(kind, match=re.escape(says) or None) as caught:
        yield
    message = str(caught.value)
    assert "\n" not in message
    assert re.search(r"expected|needs", message), message
    assert re.search(r"got|which", message), message
