"""Clusters keep their ids: the matching is the best there is, ids are never given twice."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from hmrf_dask.errors import InvalidInputError
from hmrf_dask.releases import lineage as lineage_module
from hmrf_dask.releases.lineage import Lineage, carried_on, first_lineage, trace
from hmrf_dask.storage.sealed import DamagedFileError


def traced(
    table: list[list[int]],
    previous: Lineage | None = None,
    added: int = 0,
    least_share: float = 0.25,
) -> Lineage:
    """Return the lineage of a table of shared documents, all old documents being still there."""
    array = np.array(table)
    before = previous or first_lineage(array.sum(axis=1).tolist())
    rows, columns = array.nonzero()
    sizes = array.sum(axis=0) + added
    old = np.sort(before.ids)[rows]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lineage_module, "LEAST_SHARE", least_share)
        return trace(before, old, columns, array[rows, columns], sizes.tolist())


def kinds(lineage: Lineage) -> dict[int, str]:
    return {one.cluster: one.kind for one in lineage.changes}


def test_a_first_run_numbers_its_clusters() -> None:
    lineage = first_lineage([3, 0, 5])
    assert lineage.ids == (0, 1, 2)
    assert lineage.next_id == 3
    assert kinds(lineage) == dict.fromkeys(range(3), "new")
    assert (lineage.n_moved, lineage.moved_share, lineage.n_added) == (0, 0.0, 8)


def test_the_same_clusters_in_another_order_keep_their_ids() -> None:
    lineage = traced([[0, 9, 1], [0, 0, 10], [12, 0, 0]])
    assert lineage.ids == (2, 0, 1)
    assert lineage.next_id == 3
    assert set(kinds(lineage).values()) == {"kept"}
    assert (lineage.n_moved, lineage.moved_share) == (1, 1 / 32)
    change = lineage.changes[0]
    assert (change.size_before, change.size_after) == (10, 9)
    assert [(one.cluster, one.documents, one.share) for one in change.went_to] == [
        (0, 9, 0.9),
        (1, 1, 0.1),
    ]


def test_a_cluster_that_splits_continues_in_its_largest_part() -> None:
    lineage = traced([[60, 40, 0], [0, 0, 50]])
    assert lineage.ids == (0, 2, 1)
    assert kinds(lineage) == {0: "kept", 1: "kept", 2: "split"}
    assert lineage.changes[2].came_from[0].cluster == 0
    assert lineage.changes[2].came_from[0].share == 1.0
    assert (lineage.n_moved, lineage.moved_share) == (40, 40 / 150)


def test_clusters_that_merge_go_on_as_the_largest() -> None:
    lineage = traced([[60, 0], [50, 0], [0, 30]])
    assert lineage.ids == (0, 2)
    assert kinds(lineage) == {0: "kept", 1: "merged", 2: "kept"}
    gone = lineage.changes[1]
    assert (gone.went_to[0].cluster, gone.went_to[0].share, gone.size_after) == (0, 1.0, 0)
    assert lineage.next_id == 3


def test_new_and_vanished_clusters_and_ids_used_once() -> None:
    # Old cluster 1 is split up; label 1 has few old documents in it.
    lineage = traced([[50, 0, 0, 0, 0, 0], [0, 2, 9, 9, 9, 9]], added=20, least_share=0.3)
    assert lineage.ids == (0, 2, 3, 4, 5, 6)
    assert kinds(lineage) == {0: "kept", 1: "vanished"} | dict.fromkeys(range(2, 7), "new")
    later = trace(lineage, np.array([0, 4]), np.array([0, 1]), np.array([9, 9]), [9, 9, 5])
    assert later.ids == (0, 4, 7)
    assert later.next_id == 8
    assert later.n_gone == sum(lineage.sizes) - 18
    assert later.n_added == 5
    assert later.n_moved == 0


def test_too_little_in_common_is_another_cluster() -> None:
    table = [[20, 80, 0], [0, 0, 100]]
    assert traced(table, least_share=0.8).ids == (2, 0, 1)
    assert traced(table, least_share=0.81).ids == (2, 3, 1)
    # A whole old cluster, but a hundredth of the new one.
    assert kinds(traced([[990], [10]])) == {0: "kept", 1: "merged"}


def test_the_matching_is_of_all_documents_not_of_each_cluster() -> None:
    # The pair with the most in common would leave the other two with nothing.
    assert traced([[10, 9], [9, 1]]).ids == (1, 0)


def test_no_common_documents() -> None:
    nothing = np.zeros(0, np.int64)
    lineage = trace(first_lineage([5, 5]), nothing, nothing, nothing, [4, 0])
    assert lineage.ids == (2, 3)
    assert (lineage.n_moved, lineage.moved_share) == (0, 0.0)
    assert kinds(lineage) == {0: "vanished", 1: "vanished", 2: "new", 3: "new"}
    assert (lineage.n_common, lineage.n_gone, lineage.n_added) == (0, 10, 4)
    assert trace(replace(lineage, ids=(), sizes=()), nothing, nothing, nothing, [1]).ids == (4,)


def test_a_run_under_the_same_model_keeps_all() -> None:
    before = traced([[0, 9], [8, 0]])
    after = carried_on(before, [10, 9], n_common=15)
    assert after.ids == before.ids == (1, 0)
    assert (after.n_gone, after.n_added, after.next_id) == (2, 4, 2)
    assert [(one.cluster, one.size_before, one.size_after) for one in after.changes] == [
        (0, 9, 9),
        (1, 8, 10),
    ]


def test_a_lineage_is_read_as_it_was_written() -> None:
    lineage = traced([[60, 40, 3], [0, 7, 50]], added=2)
    assert Lineage.from_json(lineage.to_json()) == lineage
    for wrong in (b"", b"[]", b"{}", lineage.to_json().replace(b"v2", b"v9")):
        with pytest.raises(DamagedFileError, match=r"lineage.json"):
            Lineage.from_json(wrong)


def test_what_cannot_be() -> None:
    one = np.array([1])
    with pytest.raises(InvalidInputError, match=r"old clusters must be those .* \[1\]"):
        trace(first_lineage([1]), one, one, one, [1, 1])


def best_by_trying(table: np.ndarray, least_share: float) -> int:
    """Return the most shared documents of any matching of clusters that may be the same."""
    rows, columns = table.sum(axis=1), table.sum(axis=0)
    allowed = table >= least_share * np.maximum.outer(rows, columns)
    worth = np.where(allowed, table, 0)
    if worth.shape[0] > worth.shape[1]:
        worth = worth.T
    n_rows, n_columns = worth.shape
    return max(
        sum(int(worth[row, column]) for row, column in enumerate(chosen))
        for chosen in itertools.permutations(range(n_columns), n_rows)
    )


@st.composite
def tables(draw: st.DrawFn) -> list[list[int]]:
    n_rows, n_columns = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    cells = st.one_of(st.just(0), st.integers(0, 3), st.integers(0, 40))
    return [[draw(cells) for _ in range(n_columns)] for _ in range(n_rows)]


@given(tables(), st.sampled_from([0.05, 0.25, 0.5, 0.9]), st.integers(0, 30))
@settings(max_examples=120)
def test_the_matching_is_the_best_there_is(
    table: list[list[int]], least_share: float, added: int
) -> None:
    array = np.array(table)
    lineage = traced(table, added=added, least_share=least_share)
    n_old, n_new = array.shape
    same = [(old, new) for new, old in enumerate(lineage.ids) if old < n_old]
    kept = sum(int(array[pair]) for pair in same)
    assert kept == best_by_trying(array, least_share)
    rows, columns = array.sum(axis=1), array.sum(axis=0)
    for old, new in same:
        assert array[old, new] > 0
        assert array[old, new] >= least_share * max(rows[old], columns[new])
    documents = list(moves(array, lineage))
    assert lineage.n_moved == sum(old != new for old, new in documents)
    assert lineage.moved_share == lineage.n_moved / max(len(documents), 1)
    assert len(set(lineage.ids)) == n_new
    fresh = [one for one in lineage.ids if one >= n_old]
    assert fresh == list(range(n_old, n_old + len(fresh)))
    assert lineage.next_id == n_old + len(fresh)
    assert {one.cluster for one in lineage.changes} == set(range(n_old)) | set(lineage.ids)
    assert Lineage.from_json(lineage.to_json()) == lineage


def moves(array: np.ndarray, lineage: Lineage) -> Iterator[tuple[int, int]]:
    """Give the old and the new stable id of every document."""
    for old, new in np.ndindex(*array.shape):
        yield from [(old, lineage.ids[new])] * int(array[old, new])


@given(tables(), st.randoms(use_true_random=False))
@settings(max_examples=100)
def test_the_order_of_the_counts_changes_nothing(table: list[list[int]], random: object) -> None:
    array = np.array(table)
    rows, columns = array.nonzero()
    counts = array[rows, columns]
    order = np.random.default_rng(random.getrandbits(32)).permutation(len(rows))  # type: ignore[attr-defined]
    before = first_lineage(array.sum(axis=1).tolist())
    sizes = array.sum(axis=0).tolist()
    one = trace(before, rows, columns, counts, sizes)
    assert trace(before, rows[order], columns[order], counts[order], sizes) == one


def test_thousands_of_clusters_that_all_touch() -> None:
    rng = np.random.default_rng(0)
    n = 3000
    order = rng.permutation(n)
    old = np.repeat(np.arange(n), 2)
    new = np.stack([order, np.roll(order, 1)], axis=1).ravel()
    counts = np.tile([70, 30], n)
    lineage = trace(first_lineage([100] * n), old, new, counts, [100] * n)
    assert [lineage.ids[label] for label in order] == list(range(n))
    assert lineage.moved_share == 0.3
