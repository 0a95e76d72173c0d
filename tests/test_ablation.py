"""The row of `make bench` about tricks: each can be taken out, and answers stay as they are."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hmrf_dask.distortions.base import TableDistortion
from hmrf_dask.kernels import nearest
from hmrf_dask.kernels.exact import exact_zero
from tests.benchmarks import ablation, report
from tests.benchmarks.measuring import Bench
from tests.benchmarks.sizes import TINY
from tests.benchmarks.tricks import TRICKS, Trick, recompiled

FEW = ("streams", "low-precision", "low-costs", "margins", "gains", "sent-ahead")


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(ablation, "workers", lambda number: nullcontext())
    return Bench(TINY, cache=tmp_path / "cache")


def test_the_plain_way_of_every_trick_is_put_in_its_place() -> None:
    for trick in TRICKS:
        owner, name, value = trick.replacements()[0]
        before = getattr(owner, name)
        with trick.off():
            assert getattr(owner, name) is value is not before
        assert getattr(owner, name) is before


def test_a_kernel_must_read_what_is_taken_out() -> None:
    with pytest.raises(NameError, match=r"_fill must read \['not_there'\]"):
        recompiled(nearest._fill, not_there=1)


def test_each_trick_has_a_figure_for_each_fit(bench: Bench, monkeypatch: Any) -> None:
    chosen = tuple(trick for trick in TRICKS if trick.name in FEW)
    monkeypatch.setattr(ablation, "TRICKS", chosen)
    figures = ablation.ablation(bench)
    assert [one.name for one in figures] == [f"ablation-{name}" for name in FEW]
    fits = {one.name: sorted(one.facts["gains_percent"]) for one in figures}
    assert fits["ablation-streams"] == ["K = 4, pairs"]
    assert fits["ablation-margins"] == ["K = 4", "K = 4, pairs"]
    assert fits["ablation-sent-ahead"] == ["K = 4, workers"]
    table = report.section(
        {"figures": {one.name: one.encoded() | {"row": "ablation"} for one in figures}}, []
    )
    assert sum("(`margins`)" in line for line in table) == 1


def test_a_trick_that_changes_labels_is_refused(bench: Bench, monkeypatch: Any) -> None:
    def first(self: Any, block: Any, terms: Any, table: Any, labels: Any, **options: Any) -> Any:
        return np.zeros(len(labels), np.int32), exact_zero()

    wrong = Trick("wrong", "everything first", lambda: ((TableDistortion, "nearest", first),))
    monkeypatch.setattr(ablation, "TRICKS", (wrong,))
    with pytest.raises(RuntimeError, match="everything first: labels must be those"):
        ablation.ablation(bench)
