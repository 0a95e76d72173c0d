"""The rules of the house that no linter knows."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import hmrf_dask
from hmrf_dask import measures

ROOT = Path(__file__).parents[1]
MODULES = sorted(path for top in ("hmrf_dask", "pipelines") for path in (ROOT / top).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
LOCK, LOWEST = ((ROOT / f"requirements/{name}.txt").read_text() for name in ("lock", "lowest"))
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.mark.parametrize("lock", [LOCK, LOWEST], ids=["lock", "lowest"])
def test_locks_name_no_index_and_no_machine(lock: str) -> None:
    assert not re.findall(r"https?:|file:|--\w*index|--find-links|(?:^|\s)/\w+", lock)


@pytest.mark.parametrize("lock", [LOCK, LOWEST], ids=["lock", "lowest"])
def test_locks_pin_everything_with_hashes(lock: str) -> None:
    for line in lock.replace("\\\n", " ").splitlines():
        assert line.startswith("#") or re.match(r"[\w.-]+==\S+ .*--hash=sha256:\w{64}", line), line


def test_the_lowest_releases_are_those_of_the_ranges() -> None:
    pinned = dict(re.findall(r"^([\w.-]+)==([\w.]+)", LOWEST, re.MULTILINE))
    extra = PYPROJECT["project"]["optional-dependencies"]["s3"]
    for dependency in [*PYPROJECT["project"]["dependencies"], *extra]:
        name, least = dependency.split(",")[0].split(">=")
        assert re.sub(r"(\.0)+$", "", pinned[name]) == re.sub(r"(\.0)+$", "", least), name


def test_lock_holds_every_dependency() -> None:
    project, groups = PYPROJECT, PYPROJECT["dependency-groups"]
    asked = [
        *project["project"]["dependencies"],
        *groups["build"],
        *groups["test"],
        *groups["lint"],
        *groups["docs"],
    ]
    pinned = set(re.findall(r"^([\w.-]+)==", LOCK, re.MULTILINE))
    assert {re.split(r"[\[<>=]", one)[0] for one in asked} <= pinned


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_and_functions_fit_on_their_screens(module: Path) -> None:
    source = module.read_text()
    n_lines = source.count("\n")
    assert n_lines <= 600
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            n_lines = (node.end_lineno or 0) - node.lineno + 1
            n_documented = (ast.get_docstring(node, clean=False) or "").count("\n")
            assert n_lines - n_documented <= 60, node.name


def test_what_is_passed_has_a_name() -> None:
    long_calls = [
        (str(path.relative_to(ROOT)), node.lineno)
        for path in (ROOT / "hmrf_dask").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and len(node.args) > 6
    ]
    assert not long_calls


@pytest.mark.parametrize("module", TESTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_tests_are_short_and_take_their_helpers_from_modules_of_helpers(module: Path) -> None:
    source = module.read_text()
    assert source.count("\n") <= 600
    assert not re.findall(r"(?:from|import) tests\.test_\w+|from tests import .*\btest_\w+", source)


@pytest.mark.parametrize(
    "script",
    [".ci/run", *(str(path.relative_to(ROOT)) for path in (ROOT / "deploy").rglob("*.sh"))],
)
def test_scripts_parse_and_may_run(script: str) -> None:
    path = ROOT / script
    subprocess.run(["bash", "-n", str(path)], check=True)
    assert path.stat().st_mode & 0o111


@pytest.mark.parametrize("module", [hmrf_dask, measures])
def test_public_names_have_examples(module: ModuleType) -> None:
    for name in module.__all__:
        assert ">>>" in (inspect.getdoc(getattr(module, name)) or ""), name
