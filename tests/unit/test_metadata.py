"""Files that repeat facts of pyproject.toml and of the version agree with them."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from processes import ROOT

from rms._version import __version__
from rms.wire.terminal import EXTRAS, CommandError, missing_extra, require_extra

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT: Mapping[str, Any] = PYPROJECT["project"]
PACKAGING = ROOT / "docs" / "packaging"
SPACK = PACKAGING / "spack" / "package.py"
ADDRESSES = {
    "CITATION.cff": r'^repository-code: "?(.+?)"?$',
    "codemeta.json": r'"codeRepository": "(.+?)"',
    "docs/packaging/spack/package.py": r'^    git = "(.+?)"$',
}
"""The lines that state the address of the repository, where there is one."""

SPELLED_ALIKE = {"prometheus_client": "prometheus-client"}


def text(name: str) -> str:
    return (ROOT / name).read_text()


def requirements(*extras: str) -> dict[str, str]:
    """Return the least versions of the base, or of extras, by the names of the distributions."""
    lines = PROJECT["dependencies"] if not extras else []
    for extra in extras:
        lines = [*lines, *PROJECT["optional-dependencies"][extra]]
    pairs = [re.fullmatch(r"([\w-]+)>=([\d.]+)", line) for line in lines]
    assert all(pairs), lines
    return {pair[1]: pair[2] for pair in pairs if pair}


def test_the_base_is_what_dmr_needs_and_all_is_both_others() -> None:
    assert set(requirements()) == {"h5py", "mpi4py", "msgspec", "numpy", "xxhash"}
    assert PROJECT["optional-dependencies"]["all"] == ["malleable-mpi[mpdata,rms]"]
    assert "malleable-mpi[all,test]" in PROJECT["optional-dependencies"]["dev"]


@pytest.mark.parametrize("extra", ["mpdata", "rms"])
def test_commands_know_the_modules_of_each_extra(extra: str) -> None:
    modules = {SPELLED_ALIKE.get(name, name) for name in EXTRAS[extra]} - {"llvmlite"}
    assert modules == set(requirements(extra))


def test_a_module_of_an_extra_is_named_with_the_extra_of_the_command() -> None:
    for prog in ("mpdata", "rms"):
        sentence = "expected the module matplotlib, got none; pip install 'malleable-mpi[%s]'"
        assert missing_extra(prog, "matplotlib.pyplot") == sentence % prog
    assert missing_extra("dmr", "shtab") is not None
    assert missing_extra("rms", "json") is None and missing_extra("rms", None) is None


def test_a_missing_module_is_noticed_without_an_import(monkeypatch: pytest.MonkeyPatch) -> None:
    require_extra("rms")
    monkeypatch.setitem(EXTRAS, "rms", ("msgspec", "no_module_of_this_name"))
    with pytest.raises(CommandError, match=r"got none; pip install") as caught:
        require_extra("rms")
    assert caught.value.exit_code == 2


def test_citation_and_codemeta_state_the_same_version_licence_and_authors() -> None:
    (author,) = PROJECT["authors"]
    codemeta = json.loads(text("codemeta.json"))
    assert codemeta["name"] == PROJECT["name"]
    assert codemeta["description"] == PROJECT["description"]
    assert codemeta["version"] == __version__
    assert codemeta["license"].rpartition("/")[2] == PROJECT["license"]
    assert [one["name"] for one in codemeta["author"]] == [author["name"]]
    assert codemeta["softwareRequirements"] == list(requirements())
    assert codemeta["keywords"] == PROJECT["keywords"]
    head = text("CITATION.cff").partition("references:")[0]
    assert f"\nversion: {__version__}\n" in head
    assert f"\nlicense: {PROJECT['license']}\n" in head
    assert re.findall(r'^  - name: "(.*)"$', head, re.MULTILINE) == [author["name"]]


@pytest.mark.parametrize("name", ADDRESSES)
def test_one_address(name: str) -> None:
    address = PROJECT["urls"].get("Repository")
    assert re.findall(ADDRESSES[name], text(name), re.MULTILINE) == ([address] if address else [])


def test_the_paper_cites_what_its_bibliography_has_with_the_dois_of_the_citation_file() -> None:
    paper, entries = text("docs/paper/paper.md"), text("docs/paper/paper.bib")
    keys = re.findall(r"^@\w+\{(\w+),", entries, re.MULTILINE)
    assert set(re.findall(r"@(\w+)", paper.partition("bibliography:")[2])) == set(keys)
    dois = re.findall(r"^ {4}doi: (\S+)$", text("CITATION.cff"), re.MULTILINE)
    assert len(dois) >= 6
    assert set(dois) <= set(re.findall(r"doi\s+= \{(.*)\}", entries))


def spack_calls(statements: list[ast.stmt], variant: str = "") -> Iterator[tuple[str, str, bool]]:
    """Yield variant ("" for none), package with versions, and whether for builds alone."""
    for one in statements:
        call: Any = one.items[0].context_expr if isinstance(one, ast.With) else one
        call = call.value if isinstance(call, ast.Expr) else call
        name = call.func.id if isinstance(call, ast.Call) else ""
        if isinstance(one, ast.With):
            yield from spack_calls(one.body, call.args[0].value if name == "when" else variant)
        elif name == "depends_on":
            kinds = [ast.literal_eval(word.value) for word in call.keywords]
            yield variant, call.args[0].value, kinds == ["build"]


def test_the_spack_recipe_has_the_dependencies_of_the_project() -> None:
    def spec(requirement: tuple[str, str]) -> str:
        name, version = requirement
        return f"py-{name}@{version.removesuffix('.0')}:"

    (recipe,) = (one for one in ast.parse(SPACK.read_text()).body if isinstance(one, ast.ClassDef))
    calls = list(spack_calls(recipe.body))
    build = {words for _, words, alone in calls if alone}
    (hatchling,) = PYPROJECT["build-system"]["requires"]
    assert build == {spec(tuple(hatchling.split(">=")))}
    python = f"python@{PROJECT['requires-python'].removeprefix('>=')}:"
    base = {words for variant, words, alone in calls if not variant and not alone}
    assert {words.replace(".0:", ":") for words in base} == {
        python,
        *(spec(pair).replace(".0:", ":") for pair in requirements().items()),
    }
    for extra in ("mpdata", "rms"):
        of_extra = {words for variant, words, _ in calls if variant == f"+{extra}"}
        assert of_extra == {spec(pair) for pair in requirements(extra).items()}
    assert f'version("{__version__}")' in SPACK.read_text()
    assert f"py-malleable-mpi@{__version__}" in text("docs/install.md")


def test_the_containers_install_all_extras_and_mpich() -> None:
    containerfile = (PACKAGING / "Containerfile").read_text()
    lines = [line.split() for line in containerfile.splitlines() if line[:1].isupper()]
    kinds = [words[0] for words in lines]
    assert kinds == ["FROM", "ARG", "RUN", "COPY", "RUN", "USER", "WORKDIR", "ENV", "CMD"]
    definition = (PACKAGING / "malleable-mpi.def").read_text()
    image = re.findall(r"^(?:FROM|From:) (\S+)$", containerfile + definition, re.MULTILINE)
    assert len(image) == 2
    assert image[0].removeprefix("docker.io/library/") == image[1].removeprefix(
        "docker.io/library/"
    )
    assert '"${SOURCE}[all,mpich]"' in containerfile and '"/src[all,mpich]"' in definition
    assert f"malleable-mpi=={__version__}" in containerfile
    assert f"Version {__version__}\n" in definition


def test_the_workflow_runs_the_commands_of_the_readme() -> None:
    workflow = text(".github/workflows/ci.yml")
    commands = re.findall(r"- run: (\./scripts/\w+)", workflow)
    assert {"./scripts/test", "./scripts/demo", "./scripts/docs"} <= set(commands)
    assert all((ROOT / command).is_file() for command in commands)
    for form in ("fault", "request"):
        assert "dmr probe --json -" in text(f".github/ISSUE_TEMPLATE/{form}.yml")
