"""Trust in answers: what they weigh, what contradictions show of it, and who is suspect."""

from __future__ import annotations

import json
import math
import warnings
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hmrf_dask import Constraints, HMRFKMeans, PCKMeans
from hmrf_dask.checkpoints.directory import RunDirectory
from hmrf_dask.constraints.trust import (
    CERTAIN,
    OddsPairs,
    joined_by_answers,
    shown_trust,
    trust_of_votes,
    turned,
)
from hmrf_dask.errors import (
    ConfigurationError,
    HmrfError,
    HmrfWarning,
    InvalidInputError,
    RunDirectoryError,
)
from tests import naive, naive_trust
from tests.support.long_cases import long
from tests.support.problems import label_pairs, planted_text, random_rows


def answers(
    classes: np.ndarray, n_pairs: int, seed: int, wrong: float
) -> tuple[np.ndarray, np.ndarray, set[tuple[int, int]]]:
    """Return random pairs of which a share says the opposite, and which these are."""
    must, cannot = label_pairs(classes, n_pairs, seed)
    pairs, same = np.concatenate([must, cannot]), np.arange(n_pairs) < len(must)
    turned_round = np.random.default_rng(seed).random(n_pairs) < wrong
    same ^= turned_round
    wrong_ones = {(min(pair), max(pair)) for pair in pairs[turned_round].tolist()}
    return pairs[same], pairs[~same], wrong_ones


def ones(pairs: np.ndarray) -> OddsPairs:
    lower = np.unique(np.sort(pairs, axis=1), axis=0).astype(np.int32).reshape(-1, 2)
    return OddsPairs(lower, np.ones(len(lower)), np.ones(len(lower)))


@pytest.mark.parametrize("wrong", [0.0, 0.05, 0.1, 0.2])
def test_contradictions_show_how_many_answers_are_wrong(wrong: float) -> None:
    classes = np.arange(60) % 3
    must, cannot, _ = answers(classes, 800, 1, wrong)
    assert shown_trust(60, must.astype(np.int32), cannot.astype(np.int32)) == pytest.approx(
        1.0 - wrong, abs=0.04
    )


def test_answers_that_nothing_tests_show_what_is_believed_of_people() -> None:
    chain = np.stack([np.arange(9), np.arange(1, 10)], axis=1).astype(np.int32)
    assert shown_trust(10, chain, np.zeros((0, 2), np.int32)) == pytest.approx(0.9)


def test_annotators_that_only_contradict_each_other_turn_nothing_round() -> None:
    pairs = np.stack([np.arange(0, 400, 2), np.arange(1, 400, 2)], axis=1).astype(np.int32)
    assert 0.5 < shown_trust(400, pairs, pairs) <= 0.9


def test_groups_of_answers_that_agree_are_those_of_must_links() -> None:
    must, cannot, _ = answers(np.arange(60) % 3, 120, 2, 0.0)
    lowest = list(range(60))
    for _ in range(60):
        for i, j in must.tolist():
            lowest[i] = lowest[j] = min(lowest[i], lowest[j])
    wanted = [sorted(set(lowest)).index(one) for one in lowest]
    assert joined_by_answers(60, ones(must), ones(cannot)).tolist() == wanted


def test_a_wrong_must_link_between_groups_does_not_join_them() -> None:
    # Of links that weigh the same the lowest comes first: the greedy rule may err with that one.
    classes = np.arange(40) % 2
    must, cannot, _ = answers(classes, 300, 3, 0.0)
    groups = joined_by_answers(40, ones(np.concatenate([must, [[38, 39]]])), ones(cannot))
    assert groups[38] != groups[39]
    assert all(len(set(groups[classes == one].tolist())) == 1 for one in (0, 1))


def test_odds_below_even_turn_a_pair_round_and_add_up() -> None:
    def pair(odds: float) -> OddsPairs:
        return OddsPairs(np.array([[0, 1]], np.int32), np.array([odds]), np.ones(1))

    must, cannot = turned(pair(-2.0), pair(1.0))
    assert len(must.pairs) == 0
    assert cannot.odds.tolist() == [3.0]
    must, cannot = turned(pair(CERTAIN), pair(-CERTAIN))
    assert must.odds.tolist() == [CERTAIN]


def test_votes_of_different_annotators_add_up_and_repeats_do_not() -> None:
    said = [(True, "x", "y")] * 3
    notes: list[Any] = [{"annotator": name} for name in ("anna", "anna", "bob")]
    odds = math.log(0.8 / 0.2) + math.log(0.9 / 0.1)
    found = trust_of_votes(said, notes, {"anna": 0.8, "bob": 0.9})
    assert found.tolist() == pytest.approx([1.0 / (1.0 + math.exp(-odds))] * 3)


@pytest.mark.parametrize("trust", [-0.1, 1.1, math.nan, math.inf, "high", True])
def test_trust_that_cannot_be(trust: Any) -> None:
    rows = np.eye(4)
    with pytest.raises(ConfigurationError, match=r"^trust must be a number from 0 to 1"):
        HMRFKMeans(2, trust=trust).fit(rows, must_link=[(0, 1)])


@pytest.mark.parametrize("trust", [[0.9], [0.9, 0.8, 0.7]])
def test_trust_has_one_number_for_each_pair(trust: list[float]) -> None:
    with pytest.raises(ConfigurationError, match=r"an array of shape \(2,\)"):
        HMRFKMeans(2, trust=trust).fit(np.eye(4), must_link=[(0, 1)], cannot_link=[(0, 2)])
    with pytest.raises(InvalidInputError, match="must_link_trust must be a probability"):
        Constraints([(0, 1)], must_link_trust=[1.5])


def test_trust_goes_with_no_penalty_of_the_papers() -> None:
    with pytest.raises(ConfigurationError, match="trust must go with penalty 'auto' or 'trust'"):
        HMRFKMeans(2, penalty="potts", trust=0.9).fit(np.eye(4), must_link=[(0, 1)])
    with pytest.raises(ConfigurationError, match="trust must go with penalty 'auto' or 'trust'"):
        HMRFKMeans(2, penalty="potts", trust=[1.0]).fit(np.eye(4), must_link=[(0, 1)])
    pairs = Constraints([(0, 1)], must_link_trust=[0.9])
    with pytest.warns(HmrfWarning, match="penalty 'distance' takes all pairs as equally likely"):
        HMRFKMeans(2, penalty="distance", random_state=0).fit(np.eye(4), must_link=pairs)
    with pytest.warns(HmrfWarning, match="PCKMeans takes all pairs as equally likely"):
        PCKMeans(2, random_state=0).fit(np.eye(4), must_link=pairs)


def noisy_text() -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, set[tuple[int, int]]]:
    rows, classes = planted_text(150, 400, 3, 4, words=30)
    return rows, classes, *answers(classes, 400, 5, 0.1)


def fitted(
    rows: Any, must: Any, cannot: Any, run_dir: Path | None = None, **settings: Any
) -> HMRFKMeans:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HmrfWarning)  # contradictions, cliques
        model = HMRFKMeans(3, random_state=0, n_init=2, **settings)
        return model.fit(rows, must_link=must, cannot_link=cannot, run_dir=run_dir)


@pytest.mark.parametrize("inference", ["icm", "belief-propagation"])
@pytest.mark.parametrize("trust", [None, 0.7, *long(0.0, 0.5, 1.0)])
def test_j_never_rises_with_wrong_answers(inference: str, trust: float | None) -> None:
    rows, _, must, cannot, _ = noisy_text()
    history = fitted(rows, must, cannot, inference=inference, trust=trust).objective_history_
    assert (np.diff(history) <= 0).all()


def test_what_is_suspect_is_what_is_wrong() -> None:
    rows, _, must, cannot, wrong = noisy_text()
    suspects = fitted(rows, must, cannot).suspect_answers_
    found = {(min(one.a, one.b), max(one.a, one.b)) for one in suspects}
    assert len(found & wrong) >= 0.8 * max(len(found), len(wrong))
    likely = [one.probability for one in suspects]
    assert likely == sorted(likely)
    assert all(probability < 0.5 for probability in likely)


def test_what_answers_weigh_is_recorded_with_the_run(tmp_path: Path) -> None:
    rows, _, must, cannot, _ = noisy_text()
    model = fitted(rows, must, cannot, max_iter=2, run_dir=tmp_path)
    recorded = (RunDirectory.at(tmp_path).recorded_config() or {})["answers"]
    assert recorded["trust"] == pytest.approx(0.9, abs=0.1)
    assert 0.0 < recorded["kappa"] < 1.0
    first, *_ = (tmp_path / "events.jsonl").read_text().splitlines()
    assert recorded.items() <= json.loads(first).items()
    again = fitted(rows, must, cannot, max_iter=2, run_dir=tmp_path)  # reads what is there
    assert again.suspect_answers_ == model.suspect_answers_
    with pytest.raises(RunDirectoryError, match=r"config\.settings\.trust"):
        fitted(rows, must, cannot, max_iter=2, run_dir=tmp_path, trust=0.8)


def test_more_documents_that_exclude_one_another_than_clusters_are_warned_of_once() -> None:
    rows, *_ = noisy_text()
    clique = list(combinations((3, 8, 20, 45), 2))
    said = "^4 documents all exclude one another, of which 3 clusters separate .*: 3, 8, 20, 45; "
    with pytest.warns(HmrfWarning, match=said) as warned:
        HMRFKMeans(3, random_state=0, n_init=2).fit(rows, cannot_link=clique)
    assert len(warned) == 1
    HMRFKMeans(4, random_state=0, n_init=2).fit(rows, cannot_link=clique)
    HMRFKMeans(3, random_state=0, n_init=2, cannot_link_cost=0.0, must_link_cost=0.0).fit(
        rows, cannot_link=clique
    )


def test_a_pair_with_a_cost_of_its_own_costs_by_trust_where_others_cost_nothing() -> None:
    rows = np.array([[1.0, 0.1], [1.0, 0.2], [0.1, 1.0], [0.2, 1.0]])
    pairs = Constraints(must_link=[(0, 3)], must_link_costs=[0.5])
    free = {"must_link_cost": 0.0, "cannot_link_cost": 0.0, "trust": 0.6, "random_state": 0}
    model = HMRFKMeans(2, **free).fit(rows, must_link=pairs)
    assert model.violations_["must_link"] == 1
    cost = 0.5 * naive_trust.spread(rows.tolist(), "cosine") * math.log(0.6 / 0.4)
    assert model.objective_terms_["must_link"] == pytest.approx(cost, rel=2**-8)


@pytest.mark.parametrize("kind", ["must", "cannot"])
def test_answers_of_one_kind_alone(kind: str) -> None:
    rows, classes, *_ = noisy_text()
    must, cannot = label_pairs(classes, 60, 6)
    lists = (must, None) if kind == "must" else (None, cannot)
    assert np.isfinite(fitted(rows, *lists).objective_)


def test_answers_about_one_class_alone_and_more_clusters_than_can_be_told_apart() -> None:
    rows, classes, *_ = noisy_text()
    one = np.flatnonzero(classes == 0)
    chain = np.stack([one[:-1], one[1:]], axis=1)
    assert np.isfinite(fitted(rows, chain, None).objective_)
    same = np.tile(np.float32([1.0, 2.0]), (6, 1))
    assert np.isfinite(fitted(same, [(0, 1)], [(1, 2)]).objective_)


def drawn(seed: int, distortion: str) -> tuple[np.ndarray, list[naive_trust.Answer]]:
    """Return few rows, and answers: certain, doubted, turned round, some of them both ways."""
    rng = np.random.default_rng(seed)
    hidden = rng.integers(0, 3, 30).astype(np.int32)
    rows = random_rows(rng, hidden, 8, distortion, True)
    ends = {(int(a), int(b)) for a, b in np.sort(rng.integers(0, 30, (45, 2)), axis=1) if a != b}
    said = [(*pair, bool(same)) for pair in sorted(ends) for same in (True, False)]
    wanted = [same == (hidden[a] == hidden[b]) for a, b, same in said]
    likely = np.where(wanted, 0.9, 0.15) > rng.random(len(said))
    answers = [
        (*answer, float(rng.choice([1.0, 0.9, 0.8, 0.6, 0.5, 0.2])), float(rng.choice([1.0, 0.5])))
        for answer, chosen in zip(said, likely, strict=True)
        if chosen
    ]
    return rows, answers


def as_given(answers: list[naive_trust.Answer]) -> Constraints:
    """Return the answers as constraints; trust of .8 and costs of 1 are the estimator's."""
    lists: dict[str, Any] = {}
    for name, kind in (("must_link", True), ("cannot_link", False)):
        chosen = [answer for answer in answers if answer[2] is kind]
        lists[name] = [answer[:2] for answer in chosen]
        lists[f"{name}_trust"] = [math.nan if p == 0.8 else p for *_, p, _ in chosen]
        lists[f"{name}_costs"] = [math.nan if cost == 1.0 else cost for *_, cost in chosen]
    return Constraints(**lists)


def settled(rows: np.ndarray, answers: list[naive_trust.Answer], **settings: Any) -> HMRFKMeans:
    shared: dict[str, Any] = {"trust": 0.8, "on_conflict": "keep", "tol": 0.0, "n_init": 2}
    return HMRFKMeans(3, random_state=0, **shared, **settings).fit(
        rows, must_link=as_given(answers)
    )


KINDS = pytest.mark.parametrize("distortion", ["cosine", "pearson", "euclidean"])
MEANT = pytest.mark.filterwarnings("ignore::hmrf_dask.errors.HmrfWarning")  # zero rows, cliques


@MEANT
@KINDS
@pytest.mark.parametrize("closure", [True, *long(False)])
def test_j_is_the_oracles_with_answers_of_every_kind(distortion: str, closure: bool) -> None:
    n_broken = 0.0
    for seed in range(6):
        rows, answers = drawn(seed, distortion)
        model = settled(rows, answers, distortion=distortion, closure=closure, learn_weights=False)
        kappa = naive_trust.spread(rows.tolist(), distortion)
        pairs = naive_trust.costed_pairs(len(rows), answers, kappa, closure=closure)
        oracle = naive.Model(rows.astype(np.float64), distortion, "potts", pairs)
        expected = naive.energy(
            oracle, model.labels_, model.cluster_centers_, np.ones(rows.shape[1])
        )
        terms, slack = model.objective_terms_, 1e-9 * expected.absolute
        assert terms["must_link"] == pytest.approx(expected.must_link, rel=0, abs=slack)
        assert terms["cannot_link"] == pytest.approx(expected.cannot_link, rel=0, abs=slack)
        assert model.objective_ == pytest.approx(expected.total, rel=0, abs=slack + 1e-9)
        n_broken += terms["must_link"] + terms["cannot_link"]
    assert n_broken > 0


@MEANT
@KINDS
def test_suspects_are_the_oracles_each_judged_without_itself(distortion: str) -> None:
    n_suspects = 0
    for seed in range(6):
        rows, answers = drawn(seed, distortion)
        model = settled(rows, answers, distortion=distortion, learn_weights=False)
        kappa = naive_trust.spread(rows.tolist(), distortion)
        oracle = naive.Model(rows.astype(np.float64), distortion)
        right = naive_trust.likelihoods(oracle, model.labels_, 3, answers, kappa)
        wanted = {
            (a, b, "must" if same else "cannot"): likely
            for (a, b, same, *_), likely in zip(answers, right, strict=True)
        }
        suspects = {(one.a, one.b, one.kind): one.probability for one in model.suspect_answers_}
        sure = {answer for answer, likely in wanted.items() if likely < 0.5 - 1e-6}
        assert sure <= suspects.keys()
        for answer, likely in suspects.items():
            assert likely == pytest.approx(wanted[answer], rel=1e-5, abs=1e-9)
        n_suspects += len(suspects)
    assert n_suspects > 6


@pytest.mark.parametrize("trust", [0.5, 0.5 + 1e-12])
def test_answers_as_likely_right_as_wrong_say_nothing(trust: float) -> None:
    rows, _, must, cannot, _ = noisy_text()
    settings: dict[str, Any] = {"n_init": 2, "random_state": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("error", HmrfWarning)  # they contradict nothing
        model = HMRFKMeans(3, trust=trust, **settings)
        model.fit(rows, must_link=must, cannot_link=cannot)
    assert "of 0 withheld relations" in model.start_reason_
    assert model.suspect_answers_ != []  # the rows alone judge them


@pytest.mark.parametrize(
    ("trust", "must", "words"),
    [
        ([[0.9], [0.8, 0.7]], [(0, 1), (0, 2)], "trust must be one number, None, or an array"),
        ([0.9], 5, "must_link must be an array of pairs"),
        ([0.9], iter([(0, 1)]), "must_link must be an array of pairs"),
    ],
)
def test_trust_of_no_shape_and_of_no_pairs_is_refused_in_words(
    trust: Any, must: Any, words: str
) -> None:
    with pytest.raises(HmrfError, match=words):
        HMRFKMeans(2, trust=trust).fit(np.eye(4), must_link=must)
