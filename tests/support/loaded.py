"""Load scripts without the ending ``.py`` as modules."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from typing import Any

from processes import ROOT

SCRIPTS = ROOT / "scripts"


def script(name: str) -> Any:
    """Import a script; what it imports beside it needs :data:`SCRIPTS` in ``sys.path``."""
    loader = importlib.machinery.SourceFileLoader(f"script_{name}", str(SCRIPTS / name))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module
    loader.exec_module(module)
    return module
