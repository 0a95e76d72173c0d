"""The two news rows of the proof table at reduced size: one set, one run, both folds."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from tests.proofs import news as news_rows
from tests.proofs.news import (
    MOST_PAIRS,
    PAIR_COUNTS,
    Cell,
    Row,
    defaults_row,
    draw_pairs,
    figures_of,
    folds,
    paper_arms_row,
)

NEWS = "news_different_3"
needs_data = pytest.mark.skipif(
    news_rows.missing([NEWS]) is not None, reason=str(news_rows.missing([NEWS]))
)


def cell(n_pairs: int = 0, **nmi: list[float]) -> Cell:
    values = {arm.replace("_", "-"): np.asarray(found) for arm, found in nmi.items()}
    return Cell(NEWS, n_pairs, values, dict(values), 0.1)


def test_every_document_is_once_in_training_and_once_in_the_test() -> None:
    for run in range(3):
        one, other = folds(301, run)
        assert sorted([*one[0], *one[1]]) == list(range(301))
        assert np.array_equal(one[0], other[1])
        assert np.array_equal(one[1], other[0])


def test_more_pairs_hold_the_fewer_and_are_all_of_the_training_half() -> None:
    classes = np.arange(100) % 3
    training = folds(100, 0)[0][0]
    every = [draw_pairs(training, classes, 0, 1, n_pairs) for n_pairs in PAIR_COUNTS]
    for n_pairs, (must, cannot) in zip(PAIR_COUNTS, every, strict=True):
        assert len({*must, *cannot}) == n_pairs
        assert all(classes[i] == classes[j] for i, j in must)
        assert all(classes[i] != classes[j] for i, j in cannot)
    for fewer, more in itertools.pairwise(every):
        assert set(fewer[0]) <= set(more[0])
        assert set(fewer[1]) <= set(more[1])
    assert set(np.ravel(every[-1][0] + every[-1][1])) <= set(training)
    assert sum(map(len, every[-1])) == MOST_PAIRS


@pytest.mark.parametrize(("learned", "held"), [([0.5, 0.6], True), ([0.2, 0.3], False)])
def test_a_cell_holds_where_learning_is_not_below_by_more_than_a_paired_error(
    learned: list[float], held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [cell(I_C=[0.5, 0.59], I_C_D=learned)] * 2
    monkeypatch.setattr(news_rows, "measure", lambda arms, **sizes: iter(cells))
    row = paper_arms_row()
    assert row.held == [held, held]
    assert row.passed == held


def test_the_defaults_must_hold_in_every_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = cell(defaults=[0.84, 0.84]), cell(defaults=[0.82, 0.82])
    wide = cell(defaults=[0.8, 0.88])  # the standard error is .04
    for cells, held in ([good, wide], [True, True]), ([good, bad], [True, False]):
        monkeypatch.setattr(news_rows, "measure", lambda arms, cells=cells, **sizes: iter(cells))
        row = defaults_row()
        assert row.held == held
        assert row.passed == all(held)


def test_without_the_data_a_row_says_why_it_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HMRF_DATA", "/nowhere")
    assert "HMRF_DATA" in figures_of(defaults_row, runs=range(1))["skipped"]


def test_figures_are_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(news_rows, "missing", lambda sets: None)
    for row, found in (
        (defaults_row, cell(defaults=[0.9, 0.8])),
        (paper_arms_row, cell(I_C=[0.5, 0.6], I_C_D=[0.5, 0.6])),
    ):
        monkeypatch.setattr(news_rows, "measure", lambda arms, one=found, **sizes: iter([one]))
        figures = json.loads(json.dumps(figures_of(row)))
        assert figures["passed"] is True
        assert len(figures["table"]) == figures["cells_held"] == len(figures["cells"]) == 1


@needs_data
def test_the_defaults_group_one_news_set() -> None:
    row = defaults_row(range(1), 2, [NEWS], (0, 250))
    assert [one.mean("defaults") > 0.75 for one in row.cells] == [True, True], row.lines
    figures = row.figures()
    assert figures["vectoriser"] == news_rows.VECTORISER
    assert figures["cells"][1]["pairs"] == 250


@needs_data
def test_the_papers_arms_run_on_one_news_set() -> None:
    row = paper_arms_row(range(1), 2, [NEWS], (0, 250))
    assert isinstance(row, Row)
    without, with_pairs = row.cells
    assert with_pairs.mean("I-C") > without.mean("I-C") + 0.1, row.lines
    assert with_pairs.mean("I-C-D") > with_pairs.mean("I-C") - 0.1, row.lines
