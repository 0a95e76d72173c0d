"""Alerts of a report: each appears when it should, says what to do, and not otherwise."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hmrf_dask import KMeans
from hmrf_dask.report import alerts
from hmrf_dask.report.alerts import Facts, alerts_of
from hmrf_dask.report.content import Cluster, Near

WORDS = (("moon", "star"), ("gear", "brake"), ("leaf", "seed"), ("salt", "pan"), ("key", "lock"))


def clusters(**changed: Iterable[Any]) -> list[Cluster]:
    """Return five sound clusters; of some fields the values of all five."""
    columns = {name: list(values) for name, values in changed.items()}
    fields = [{name: column[at] for name, column in columns.items()} for at in range(5)]
    return [
        replace(
            Cluster(at, "", 20, None, "kept", words, (), 0.5, 0, 0, 0, 0, 0, gain=0.4),
            **some,
        )
        for at, (words, some) in enumerate(zip(WORDS, fields, strict=True))
    ]


def near(*pairs: tuple[int, float]) -> list[tuple[Near, ...]]:
    found = {at: (Near(other, how),) for at, (other, how) in enumerate(pairs)}
    return [found.get(at, ()) for at in range(5)]


SOUND: dict[str, dict[str, Any]] = {
    "fit": {"converged": True, "iterations": 4},
    "documents": {"all": 100, "moved_share": 0.02},
    "vocabulary": {"unknown_share": 0.06, "unknown_share_then": 0.04},
    "answers": {"pairs": {"must": 10, "cannot": 10}, "violated": {"must": 0, "cannot": 0}},
}


def facts(**changed: dict[str, Any]) -> Facts:
    return Facts(**{name: {**SOUND[name], **changed.get(name, {})} for name in SOUND})


CASES: dict[str, tuple[Facts, list[Cluster], str, str, tuple[int, ...]]] = {
    "not converged": (
        facts(fit={"converged": False, "stop_reason": "max_iter"}), clusters(),
        "stopped after 4 iterations", "Raise method.max_iter", (),
    ),
    "a cluster holds a third": (
        facts(), clusters(size=[40, 15, 15, 15, 15]),
        "cluster 0 (moon, star) holds 40%", "borderline documents", (0,),
    ),
    "empty clusters": (
        facts(), clusters(size=[25, 25, 25, 25, 0]), "1 cluster without", "fewer clusters", (4,),
    ),
    "tiny clusters": (
        facts(), clusters(size=[25, 25, 25, 24, 1]), "1 cluster is tiny", "outliers", (4,),
    ),
    "clusters of leftovers": (
        facts(), clusters(size=[30, 20, 20, 15, 15], gain=[0.1, 0.4, 0.5, 0.4, 0.4]),
        "cluster 0 (moon, star): hardly more alike", "more clusters", (0,),
    ),
    "clusters look alike": (
        facts(), clusters(similar=near((1, 0.9), (0, 0.9))),
        "1 pair of clusters look alike: cluster 0 (moon, star) and cluster 1", "answers", (0, 1),
    ),
    "words like boilerplate": (
        facts(), clusters(words=[("please", *some) for some in WORDS]),
        "please", "text.stop_words", (),
    ),
    "broken answers": (
        facts(answers={"violated": {"must": 1, "cannot": 1}}), clusters(),
        "2 of 20 pairs that answers say are broken (10.0%)", "correct those that are wrong", (),
    ),
    "suspect answers": (
        facts(answers={"suspect": 2}), clusters(), "2 answers more likely wrong", "Read them", (),
    ),
    "answers left out": (
        facts(answers={"quarantined": 1}), clusters(), "1 line of answers left out", "rejects", (),
    ),
    "answers wait": (
        facts(answers={"unused": 3}), clusters(), "3 new answers not used", "mode fit", (),
    ),
    "drift": (
        facts(vocabulary={"unknown_share": 0.12}), clusters(),
        "12% of the words in new files", "text.refit: always", (),
    ),
    "many documents moved": (
        facts(documents={"moved_share": 0.2}), clusters(),
        "20% of the documents", "start: warm", (),
    ),
    "documents left out": (
        facts(documents={"quarantined": 4}), clusters(), "4 records left out", "rejects", (),
    ),
    "many outliers": (
        facts(documents={"outliers": 20}), clusters(), "20 documents (20%)", "method.outliers", (),
    ),
    "documents without words": (
        facts(), clusters(undecided=[3, 0, 0, 0, 0]), "3 documents (3.0%)", "min_df", (),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", CASES)
def test_an_alert_appears_alone_and_says_what_to_do(kind: str) -> None:
    known, some, said, to_do, about = CASES[kind]
    (alert,) = alerts_of(known, some)
    assert alert.kind == kind
    assert said in alert.said
    assert to_do in alert.to_do
    assert alert.clusters == about


def test_every_alert_has_a_case_and_a_line_in_the_docs() -> None:
    root = Path(alerts.__file__).parents[2]
    source = Path(alerts.__file__).read_text()
    assert {*re.findall(r'Alert\(\s*"([^"]+)"', source)} == {*CASES}
    page = (root / "docs" / "report.md").read_text()
    assert [kind for kind in CASES if f"\n| {kind} |" not in page] == []


def test_nothing_is_alerted_of_a_sound_fit_and_serious_things_come_first() -> None:
    assert alerts_of(facts(), clusters()) == ()
    ill = facts(fit={"converged": False}, documents={"quarantined": 1}, answers={"suspect": 1})
    weights = [alert.weight for alert in alerts_of(ill, clusters(size=[60, 39, 1, 0, 0]))]
    assert weights == sorted(weights, reverse=True)
    assert {"serious", "notice"} == {*weights}


def test_a_cluster_of_leftovers_is_told_from_clusters_of_a_subject() -> None:
    rng = np.random.default_rng(0)
    topics = np.repeat(np.eye(5, 40), 30, axis=0) + 0.05 * rng.random((150, 40))
    rest = 0.2 + rng.random((60, 40)) * (rng.random((60, 40)) < 0.4)  # a bit of everything
    rows = np.concatenate([topics, rest])
    start = np.concatenate([topics[::30], rest.mean(axis=0)[None]])
    model = KMeans(6, init=start, refine=False, random_state=0).fit(rows)
    report = model.report(rows)
    (left,) = [one for one in report.alerts if one.kind == "clusters of leftovers"]
    assert left.clusters == (5,)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    unit, mean = rows / lengths, (rows / lengths).mean(axis=0)
    centres = model.cluster_centers_ / np.linalg.norm(model.cluster_centers_, axis=1)[:, None]
    cosines = centres @ (mean / np.linalg.norm(mean))
    for one in report.clusters:
        own = (unit[model.labels_ == one.id] @ centres[one.id]).mean()
        assert one.gain == pytest.approx(own * (1 - cosines[one.id]), rel=1e-5)
