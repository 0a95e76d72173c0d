"""Compiled kernels: kept on disk, never stale, never in the way, one signature each; or Python."""

from __future__ import annotations

import ast
import fcntl
import importlib
import importlib.util
import inspect
import os
import re
import shutil
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hmrf_dask
from hmrf_dask.kernels import code_cache, compiled
from tests import golden

PACKAGE = Path(hmrf_dask.__file__).parent
KERNEL = """
def add(values):
    total = 0
    for value in values:
        total += value
    return total
"""

OTHER_PROCESS = """
import kernel_under_test
from hmrf_dask.kernels import compiled

kernel = compiled.njit(cache=True)(kernel_under_test.add)
print(kernel((1, 2, 3)), sum(kernel.stats.cache_hits.values()))
"""


@pytest.fixture
def kernel_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a file with a kernel, and an empty cache."""
    import numba

    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    file = tmp_path / "kernel_under_test.py"
    file.write_text(KERNEL)
    return file


def loaded(file: Path) -> Any:
    """Return the kernel of a file as a process that begins would see it."""
    code_cache.source_stamp.cache_clear()
    code_cache._hash_and_imports.cache_clear()
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return compiled.njit(cache=True)(module.add)


def came_from_disk(kernel: Any) -> bool:
    return sum(kernel.stats.cache_hits.values()) == 1


def test_code_is_kept_and_compiled_again_when_its_source_changes(kernel_file: Path) -> None:
    for expected, kept in ((6, False), (6, True)):
        kernel = loaded(kernel_file)
        assert kernel((1, 2, 3)) == expected
        assert came_from_disk(kernel) is kept
    kernel_file.write_text(KERNEL.replace("+= value", "+= 10 * value"))
    kernel = loaded(kernel_file)
    assert kernel((1, 2, 3)) == 60
    assert not came_from_disk(kernel)
    assert len(list((kernel_file.parent / "cache").rglob("*.nbc"))) == 1  # the old one is gone


def test_a_kernel_that_another_process_compiles_is_waited_for(
    kernel_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = kernel_file.parent
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, kernel_file.stem, raising=False)
    kernel = compiled.njit(cache=True)(importlib.import_module(kernel_file.stem).add)
    path = os.pathsep.join([str(folder), *sys.path])
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": path}
    command = [sys.executable, "-c", OTHER_PROCESS]
    turns = code_cache._turns(code_cache.folders(folder)[0])
    assert turns is not None
    fcntl.lockf(turns, fcntl.LOCK_EX)  # as if all kernels were being compiled
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as other:
        with suppress(subprocess.TimeoutExpired):  # without a wait it ends well before
            other.wait(4.0)
        assert kernel((1, 2, 3)) == 6
        fcntl.lockf(turns, fcntl.LOCK_UN)
        assert other.communicate(timeout=60)[0].split() == ["6", "1"]


@pytest.mark.parametrize("damage", [b"", b"no code", None])
def test_unreadable_code_is_compiled_again(kernel_file: Path, damage: bytes | None) -> None:
    assert loaded(kernel_file)((1, 2, 3)) == 6
    (code,) = (kernel_file.parent / "cache").rglob("*.nbc")
    code.write_bytes(code.read_bytes()[:-1] if damage is None else damage)
    for kept in (False, True):
        kernel = loaded(kernel_file)
        assert kernel((1, 2, 3)) == 6
        assert came_from_disk(kernel) is kept


def test_a_full_disk_stops_nothing(kernel_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    assert loaded(kernel_file)((1, 2, 3)) == 6
    assert not list((kernel_file.parent / "cache").rglob("*.nbc*"))


def _products(one, other, out):  # type: ignore[no-untyped-def]
    for i in range(one.shape[0]):
        for j in range(other.shape[0]):
            if one[i] != other[j]:
                out[i] += one[i] * other[j] - np.float64(i + 2 * j)
            elif i < j or one[i] > 0.0:
                out[j] -= one[j]


def test_options_are_not_compared_at_every_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    import numba
    from numba.core.targetconfig import TargetConfig

    reads, values = [0], TargetConfig.values

    def counted(options: Any) -> Any:
        reads[0] += 1
        return values(options)

    monkeypatch.setattr(TargetConfig, "values", counted)
    found = []
    forms: list[dict[str, Any]] = [{}, {"fastmath": True}, {"error_model": "numpy"}]
    for make in (numba.njit, compiled.njit, numba.njit, compiled.njit):
        reads[0] = 0
        for options in forms:
            make(**options)(_products)(*np.ones((3, 4)))
        found.append(reads[0])
    assert found[3] < found[2] / 3


def test_equal_options_are_one_object_and_others_another() -> None:
    from numba.core.compiler import Flags

    from hmrf_dask.kernels.code_cache import OpenFlags

    options = OpenFlags(Flags())
    one, same = options.copy(), OpenFlags(Flags()).copy()
    options.no_cpython_wrapper = True
    other = options.copy()
    assert one is same
    assert one != other
    assert (one.no_cpython_wrapper, other.no_cpython_wrapper) == (False, True)
    changed = one.copy()
    changed.no_cpython_wrapper = True
    assert not one.no_cpython_wrapper


# What follows runs in processes of their own, over a copy of the package.

ENERGY = """
import numpy as np
from hmrf_dask.kernels import problem, reconcile
nothing = np.zeros(0, int)
pairs = problem.adjacency(1, nothing, nothing, nothing)
one = problem.make_problem(0, np.full((1, 2), 21), 1, *pairs)
group = problem.make_grouping([0], [0, 1], [0])
_, energies = reconcile.group_gain_parts(np.zeros(1, np.int32), one, group)
print(energies[0, -1], sum(reconcile._parts.stats.cache_hits.values()))
"""


def run(code: str, home: Path, **environment: str) -> list[str]:
    """Run code over the package in `home`, with nowhere to write but what is given."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "NUMBA_DISABLE_JIT")
    }
    nowhere = {"HOME": "/dev/null/home", "PYTHONPATH": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=clean | nowhere | environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=home,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """Give a folder with a copy of the package in which nothing can be written.

    Files stand where folders would have to be: that stops the superuser too.
    """
    home = tmp_path / "installed"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, home / PACKAGE.name, ignore=ignored)
    for folder in (home / PACKAGE.name).rglob("*/"):
        (folder / "__pycache__").touch()
    return home


@pytest.mark.long
def test_code_is_compiled_again_when_a_function_it_calls_changes(
    copied: Path, tmp_path: Path
) -> None:
    cache = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    assert run(ENERGY, copied, **cache) == ["42", "0"]
    assert run(ENERGY, copied, **cache) == ["42", "1"]
    exact = copied / PACKAGE.name / "kernels" / "exact.py"
    exact.write_text(exact.read_text().replace("(value & MASK)", "((value + 1) & MASK)"))
    assert run(ENERGY, copied, **cache) == ["43", "0"]


@pytest.mark.long
def test_kernels_run_where_neither_package_nor_home_can_be_written(
    copied: Path, tmp_path: Path
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    for hits in "01":
        assert run(ENERGY, copied, TMPDIR=str(temporary)) == ["42", hits]
    (own,) = temporary.iterdir()
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    own.chmod(0o777)  # anybody could have put code there: it is not run
    assert run(ENERGY, copied, TMPDIR=str(temporary)) == ["42", "0"]
    shutil.rmtree(own)
    own.touch()
    assert run(ENERGY, copied, TMPDIR=str(temporary)) == ["42", "0"]


def test_without_any_temporary_folder_code_is_kept_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numba

    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("tempfile._candidate_tempdir_list", lambda: [])
    assert code_cache.folders(tmp_path)[0] == tmp_path / "__pycache__"


def test_a_user_without_a_home_has_code_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numba

    def homeless(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "expanduser", homeless)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    next_to_code, temporary = code_cache.folders(tmp_path)
    assert next_to_code == tmp_path / "__pycache__"
    assert temporary.parent == tmp_path / f"hmrf-dask-{os.getuid()}"


@pytest.mark.long
def test_processes_that_compile_at_once_share_a_cache(tmp_path: Path) -> None:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", ENERGY]
    several = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert [one.communicate()[0].split()[0] for one in several] == ["42"] * 2
    kept = [file.name for file in tmp_path.rglob("*.nbc*")]
    assert sorted(name.split(".")[1] for name in kept) == ["_adjacency", "_parts"]
    again = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert again.stdout.split() == ["42", "1"]


FITS = """
import sys
import numpy as np
import scipy.sparse
from hmrf_dask import COPKMeans, HMRFKMeans
from hmrf_dask.text.counts import TextSettings
from hmrf_dask.text.counts import count_texts
rng = np.random.default_rng(0)
rows = scipy.sparse.random(170, 40, 0.2, "csr", np.float32, rng=rng)
rows.data += 0.1
first = np.arange(0, 40, 2)
whole = np.stack([np.arange(79), np.arange(1, 80)], axis=1)
given = (
    (None, None),
    (np.stack([first, first + 1], axis=1), np.stack([first, first + 41], axis=1)),
    (np.concatenate([whole, whole + 80]), np.array([[0, 80]])),  # closed: in table form
)
for distortion, form in (("cosine", rows), ("euclidean", rows.toarray())):
    for must, cannot in given:
        model = HMRFKMeans(3, distortion=distortion, random_state=0, max_iter=3, **options)
        model.fit(form, must_link=must, cannot_link=cannot)
        assert len(model.labels_) == 170
    COPKMeans(3, distortion=distortion, random_state=0).fit(form, cannot_link=given[1][1])
for texts in ([], [""], ["to be", "né"], [" ".join(map(str, range(9999)))]):
    assert count_texts(texts, TextSettings()).n_texts == len(texts)
"""

SIGNATURES = """
for name, module in list(sys.modules.items()):
    for kernel in list(vars(module).values()) if name.startswith("hmrf_dask.") else []:
        options = getattr(kernel, "targetoptions", {})
        if options.get("no_cpython_wrapper"):
            continue  # part of the kernels that call it, each with its own form of the arguments
        if len(getattr(kernel, "signatures", ())) > 1:
            print(kernel.py_func.__module__, kernel.py_func.__qualname__, sep=".")
from hmrf_dask.kernels import closure_sweeps, tokens
assert closure_sweeps._run.signatures  # the fits are not all of one form
assert tokens._enter.signatures  # the table of words has grown
"""


@pytest.mark.long
def test_every_kernel_is_compiled_for_one_signature() -> None:
    environment = {
        name: os.environ[name] for name in ("NUMBA_CACHE_DIR", "HOME") if name in os.environ
    }
    assert run("options = {}" + FITS + SIGNATURES, PACKAGE.parent, **environment) == []


# Numba promises none of these to stay; pyproject.toml admits no release that nobody has tried.
PRIVATE_NAMES = {
    "numba.core": {"event"},
    "numba.core.compiler": {"Compiler", "CompileResult", "Flags"},
    "numba.core.serialize": {"dumps"},
    "numba.np.arrayobj": {"populate_array"},
}
PRIVATE_ATTRIBUTES = {
    "numba.core.compiler.CompileResult": {"_rebuild", "_reduce", "library", "lifted"},
    "numba.core.compiler.Flags": {"copy", "no_cfunc_wrapper", "nrt", "summary"},
    "numba.core.codegen.CPUCodegen": {"magic_tuple"},
    "numba.core.codegen.CPUCodeLibrary": {"codegen", "has_dynamic_globals"},
    "numba.core.cpu.CPUContext": {"codegen", "make_array", "refresh"},
    "numba.core.dispatcher.Dispatcher": {"compile", "stats"},
}


def test_records_have_the_types_of_their_fields() -> None:
    made = compiled.former(compiled.RowArrays)((1.0,), (), (0, 1), True, 1, 1)
    assert [array.dtype for array in made[:3]] == [np.float32, np.int32, np.int32]
    assert not any(array.flags.writeable for array in made[:3])


def test_private_parts_of_numba_are_these() -> None:
    used: dict[str, set[str]] = {}
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("numba."):
                used.setdefault(str(node.module), set()).update(name.name for name in node.names)
    assert used.pop("numba.extending") == {"intrinsic"}  # public
    assert used == PRIVATE_NAMES


@pytest.mark.parametrize("path", PRIVATE_ATTRIBUTES)
def test_private_parts_of_numba_are_there(path: str) -> None:
    module, _, name = path.rpartition(".")
    missing = PRIVATE_ATTRIBUTES[path] - set(dir(getattr(importlib.import_module(module), name)))
    assert not missing


def test_dispatchers_take_our_cache_and_call_no_more_of_it_than_it_has() -> None:
    from numba.core import dispatcher

    from hmrf_dask.kernels.code_cache import KernelCache

    source = inspect.getsource(dispatcher)
    assert "self._cache = NullCache()" in source
    called = set(re.findall(r"self\._cache\.(\w+)", source))
    assert (
        called == {"cache_path", "flush", "load_overload", "save_overload"} <= set(dir(KernelCache))
    )


def test_no_release_of_numba_is_admitted_that_nobody_has_tried() -> None:
    root = PACKAGE.parent
    (least, beyond) = re.findall(
        r'"numba>=0\.(\d+),<0\.(\d+)"', (root / "pyproject.toml").read_text()
    )[0]
    (locked,) = re.findall(r"^numba==0\.(\d+)", (root / "requirements/lock.txt").read_text(), re.M)
    assert int(least) <= int(locked) == int(beyond) - 1


def test_code_is_removed_when_a_kernel_is_compiled_again(kernel_file: Path) -> None:
    kernel = loaded(kernel_file)
    assert kernel((1, 2, 3)) == 6
    assert kernel.stats.cache_path == str(next((kernel_file.parent / "cache").iterdir()))
    (code,) = (kernel_file.parent / "cache").rglob("*.nbc")
    neighbour = code.with_name(code.name.replace(".add.", ".add.inner."))
    neighbour.touch()
    kernel._cache.flush()
    assert [file.name for file in code.parent.glob("*.nbc")] == [neighbour.name]


HIDE_NUMBA = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("numba", "llvmlite"):
            raise ModuleNotFoundError("No module named " + name, name=name)
sys.meta_path.insert(0, Hidden())
"""


def test_without_numba_it_is_said_what_to_install() -> None:
    code = """
from hmrf_dask.errors import HmrfError
try:
    import hmrf_dask.kernels.sums
except ImportError as error:
    print(isinstance(error, HmrfError), error.exit_code, "install numba" in str(error))
"""
    assert run(HIDE_NUMBA + code, PACKAGE.parent) == ["True", "78", "True"]


@pytest.mark.long
def test_kernels_run_as_python_to_the_same_bits() -> None:
    code = """
import warnings
warnings.simplefilter("ignore")  # the corpus of the tests is drawn by a kernel, whose sums overflow
from hmrf_dask.kernels.compiled import COMPILED
from tests import golden
print(COMPILED, *[golden.compute(f"fit: {name}") for name in ("cosine", "euclidean dense")])
"""
    found = run(code, PACKAGE.parent, NUMBA_DISABLE_JIT="1")
    compiled_to = [golden.compute(f"fit: {name}") for name in ("cosine", "euclidean dense")]
    assert found == ["False", *compiled_to]
