"""The same rows in every form that an estimator takes, and how an error names one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
from dask.delayed import delayed

from hmrf_dask import (
    Corpus,
)
from hmrf_dask.fit import fitting

N, D = 12, 5

# Each form of rows, and how an error names row 7 of it.
FORMS: dict[str, Callable[[np.ndarray], Any]] = {
    "ndarray": lambda rows: rows,
    "csr": sp.csr_matrix,
    "dask": lambda rows: da.from_array(rows, chunks=(4, max(rows.shape[1], 1))),
    "dask of unknown sizes": lambda rows: unknown([rows[:5], rows[5:]]),
    "corpus": lambda rows: Corpus.from_rows(
        rows, ids=[f"d{number}" for number in range(len(rows))], n_partitions=3
    ),
}


def name_of(form: str, row: int) -> str:
    return f"'d{row}'" if form == "corpus" else str(row)


def unknown(parts: list[np.ndarray]) -> Any:
    shape = (np.nan, parts[0].shape[1])  # of the others it may not be true
    arrays = [da.from_delayed(delayed(part), shape=shape, dtype=float) for part in parts]
    return da.concatenate(arrays, allow_unknown_chunksizes=True)


def good() -> np.ndarray:
    return np.random.default_rng(0).uniform(0.1, 1.0, (N, D))


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def no_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Let no fit reach its loop, and none leave files behind."""

    def reached(*args: Any) -> None:
        raise AssertionError("work began")

    monkeypatch.setattr(fitting, "_run", reached)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with dask.config.set({"hmrf.scratch-directory": str(scratch)}):
        yield
    assert list(scratch.iterdir()) == []


@pytest.fixture
def working(no_work: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let fits run after all."""
    monkeypatch.undo()
