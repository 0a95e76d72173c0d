"""Batches of questions about finished models: as written, whatever the partitions and the order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hmrf_dask import Constraints, Corpus, HMRFKMeans, KMeans
from hmrf_dask.active import next_choices, next_pairs
from hmrf_dask.answers.beliefs import believe
from hmrf_dask.answers.records import Entry, Question
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.questions.batches import Clusters
from hmrf_dask.questions.pool import Pool
from hmrf_dask.tasks import open_rows
from tests.naive_active import batch_of_uncertain, gaps_between_clusters
from tests.support.fits import scheduled
from tests.support.long_cases import long
from tests.support.problems import planted_text, string_ids

X, TOPICS = planted_text(240, 120, 6, 0, words=12)
IDS = string_ids(240, 0)
MODEL = KMeans(6, n_init=2, random_state=0).fit(X)


def answers_of(questions: list[Question], number: int = 0) -> list[Entry]:
    """Return what somebody who knows the topics says to pairs."""
    topic = dict(zip(IDS.tolist(), TOPICS.tolist(), strict=True))
    found = []
    for place, question in enumerate(questions):
        first, second = (topic[name] for name in question.documents)
        answer = "same" if first == second else "different"
        found.append(Entry(f"{number}-{place}", "pair", question.documents, answer=answer))
    return found


def batch_in(order: NDArray[np.int64], n_partitions: int, entries: list[Entry]) -> list[Question]:
    corpus = Corpus.from_rows(X[order], ids=IDS[order], n_partitions=n_partitions)
    return next_choices(MODEL, 20, X=corpus, answers=entries)


def test_the_same_batch_for_any_partitioning_and_order() -> None:
    order = np.random.default_rng(0).permutation(240)
    entries: list[Entry] = []
    for night in range(3):
        with scheduled("synchronous"):
            wanted = batch_in(np.arange(240), 1, entries)
            assert batch_in(order, 5, entries) == wanted
        with scheduled("threads"):
            assert batch_in(np.arange(240), 60, entries) == wanted
        assert len({question.documents for question in wanted}) == len(wanted) == 20
        pairs = [Question("pair", (*one.documents, one.shown[0])) for one in wanted]
        entries += answers_of(pairs, night)


def test_on_processes_the_same_batch(process_cluster: Any) -> None:
    with scheduled("synchronous"):
        wanted = batch_in(np.arange(240), 3, [])
    with scheduled("processes", process_cluster):
        assert batch_in(np.arange(240), 3, []) == wanted


def signed(n_rows: int, n_clusters: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    rng = np.random.default_rng(n_rows)
    centroids = rng.normal(size=(n_clusters, 8))
    rows = centroids[rng.integers(0, n_clusters, n_rows)] + rng.normal(size=(n_rows, 8))
    return rows, centroids


@pytest.mark.parametrize(
    ("n_rows", "n_clusters", "n"), [(2000, 5, 10), (300, 3, 25), *long((900, 40, 8))]
)
def test_rows_are_chosen_as_written(n_rows: int, n_clusters: int, n: int) -> None:
    rows, centroids = signed(n_rows, n_clusters)
    model = KMeans(n_clusters, init=centroids, max_iter=1, refine=False).fit(rows)
    found = next_choices(model, n, X=Corpus.from_rows(rows, n_partitions=3))
    asked = [int(one.documents[0]) for one in found if one.why == "uncertain"]
    anchors = {name for one in found if one.why == "anchors" for name in one.documents + one.shown}
    near = batch_of_uncertain(rows, model.cluster_centers_, [int(name) for name in anchors], n)
    others = {int(one.documents[0]) for one in found if one.why != "uncertain"}
    assert asked == [row for row in near if row not in others][: len(asked)]


def test_a_pass_reports_the_least_gaps_however_few_rows_it_compares_in_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows, centroids = signed(4000, 7)
    compared = list[int]()
    pool = Pool(Corpus.from_rows(rows, n_partitions=2), None)
    plain = open_rows._listed

    def noted(some: Any, places: Any, *further: Any) -> Any:
        compared.append(len(places))
        return plain(some, places, *further)

    monkeypatch.setattr(open_rows, "_listed", noted)
    clusters = Clusters.of(pool, centroids)
    none = np.array([], np.str_)
    wanted = open_rows.Wanted(none, np.zeros(0, np.bool_), clusters.lengths, 12, 0.0)
    with scheduled("synchronous"):
        found = pool.open_rows(centroids, wanted, None)
    cosines, gaps = gaps_between_clusters(rows, centroids)
    order = np.argsort(gaps, kind="stable")[:12]
    assert found.between.rows.rows.tolist() == order.tolist()
    np.testing.assert_allclose(found.between.cosines, cosines[order], atol=1e-6)
    assert sum(compared) < 800


def test_what_is_settled_is_not_asked() -> None:
    corpus, entries, settled = Corpus.from_rows(X, ids=IDS), list[Entry](), set[str]()
    topic = dict(zip(IDS.tolist(), TOPICS.tolist(), strict=True))
    for night in range(4):
        found = next_choices(MODEL, 20, X=corpus, answers=entries)
        assert not settled & {one.documents[0] for one in found if one.why != "anchors"}
        known = {
            (one.documents[0], name)
            for one in entries
            for name in one.shown
            if one.answer == "none"
        }
        for number, one in enumerate(found):
            assert not known & {(one.documents[0], name) for name in one.shown}
            own = [name for name in one.shown if topic[name] == topic[one.documents[0]]]
            name, answer = f"{night}-{number}", "same" if own else "none"
            documents = (*one.documents, *own[:1])
            entries.append(Entry(name, "choice", documents, one.shown, answer, likely=one.likely))
        settled = set(believe(entries).anchor_of)
    assert len(settled) > 30


def test_an_unknown_document_is_not_asked_about_again() -> None:
    corpus = Corpus.from_rows(X, ids=IDS)
    first = next_choices(MODEL, 20, X=corpus)
    entries = [Entry(one.id, "choice", one.documents, one.shown, "unknown") for one in first]
    again = next_choices(MODEL, 20, X=corpus, answers=entries)
    assert not {one.documents for one in first} & {one.documents for one in again}
    assert len(again) == 20


def test_groups_stand_for_clusters_by_the_member_nearest_to_its_centroid() -> None:
    same = [np.flatnonzero(topic == TOPICS)[:4] for topic in range(6)]
    means = np.array([X[topic == TOPICS].toarray().mean(axis=0) for topic in range(6)])
    model = KMeans(6, init=means, max_iter=1, refine=False).fit(X)
    pairs = Constraints(
        [(int(rows[0]), int(row)) for rows in same for row in rows[1:]],
        [(int(same[one][0]), int(same[two][0])) for one in range(6) for two in range(one)],
    )
    found = next_choices(model, 20, X=X, answers=pairs)
    members = {str(row) for rows in same for row in rows}
    assert {name for one in found for name in one.shown} <= members
    assert {one.why for one in found} == {"uncertain"}
    assert all(sum(one.likely) == pytest.approx(1.0, abs=0.001) for one in found)
    assert all(one.settles >= 4 for one in found)


def test_pairs_are_the_likeliest_of_each_choice() -> None:
    choices, pairs = (ask(MODEL, 12, X=X) for ask in (next_choices, next_pairs))
    assert [(*one.documents, one.shown[0]) for one in choices] == [one.documents for one in pairs]
    assert all(one.kind == "pair" and len(one.likely) == 1 for one in pairs)


@pytest.mark.parametrize("how", ["alike", "zeros", "one cluster", "vacant", "few"])
def test_odd_rows(how: str) -> None:
    rows = np.abs(signed(30, 3)[0])
    model = KMeans(3, n_init=1, random_state=0).fit(rows)
    if how == "alike":
        rows[:] = rows[0]
    elif how == "zeros":
        rows[5:] = 0.0
    elif how == "few":
        rows = rows[:2]
    elif how == "vacant":
        model.cluster_centers_[2] = -1.0
    else:
        model = KMeans(1, random_state=0).fit(rows)
    found = next_choices(model, 10, X=Corpus.from_rows(rows, n_partitions=2))
    assert len({one.documents for one in found}) == len(found) <= 10
    assert all(one.documents[0] not in one.shown and one.shown for one in found)
    assert bool(found) == (how not in ("one cluster", "alike"))


def test_more_questions_than_documents() -> None:
    found = next_choices(MODEL, 1000, X=X)
    assert len({one.documents for one in found}) == len(found)
    assert 200 < len(found) <= 240


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"n": -1}, "n must be an integer from 0 to 10000"),
        ({"X": None}, "X must be the rows that the model was fitted on, got none"),
        ({"X": X[:, :7]}, "X must have the 120 columns"),
        ({"answers": [3]}, "answers must be Constraints, Answers or entries"),
        ({"answers": Constraints([("a", "b")])}, "which have no ids"),
        ({"finished": 3}, "a fitted estimator or the address of an output, got 3"),
    ],
)
def test_what_cannot_be_is_refused_in_words(how: dict[str, Any], words: str) -> None:
    arguments = {"finished": MODEL, "n": 5, "X": X, **how}
    with pytest.raises(InvalidInputError, match=words):
        next_choices(arguments.pop("finished"), arguments.pop("n"), **arguments)


def test_answers_and_questions_of_a_model_with_pairs() -> None:
    pairs = Constraints([(0, int(np.flatnonzero(TOPICS[0] == TOPICS)[1]))])
    model = HMRFKMeans(6, n_init=1, random_state=0).fit(X, must_link=pairs)
    found = next_choices(model, 5, X=X, answers=pairs)
    assert len(found) == 5
