"""Settings of the site, which Sphinx builds of the Markdown in this folder (``./scripts/docs``)."""

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

import drawings  # noqa: E402 - they lie beside this file
import generated  # noqa: E402
import rms_pages  # noqa: E402

from rms._version import __version__  # noqa: E402

project = "malleable-mpi"
author = "The malleable-mpi developers"
copyright = author
version = release = __version__

extensions = [
    "mathml",
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build", "package.md", "paper/*", "packaging/*"]
nitpicky = False

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "cache"
nb_execution_cache_path = str(ROOT / "docs" / "_build" / "notebooks")
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_preserve_defaults = True
html_math_renderer = "mathml"
# The prompt and the output are no part of what is copied.
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True

html_theme = "furo"
html_title = f"malleable-mpi {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
address = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"].get("Repository")
if address:  # a link to the source of each page
    html_theme_options = {
        "source_repository": address,
        "source_branch": "main",
        "source_directory": "docs/",
    }

# Address of pages that need a network; the build checks none of them.
linkcheck_ignore = [r"https?://.*"]

generated.write(ROOT / "docs" / "reference")
drawings.write(ROOT / "docs")
rms_pages.write(ROOT / "docs")
