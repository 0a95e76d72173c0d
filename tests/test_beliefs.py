"""What answers say together: against plain loops, whatever the order of lines and the names."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hmrf_dask.active import Answers, explore_consolidate
from hmrf_dask.answers.beliefs import Beliefs, believe
from hmrf_dask.answers.journal import open_journal
from hmrf_dask.answers.records import Entry
from hmrf_dask.errors import HmrfWarning, InvalidInputError
from hmrf_dask.questions.oracles import ChoosingOracle, LabelOracle
from tests.naive_beliefs import groups_of, posterior

SURE = {"": 1.0}


def pairs_of(*lines: str, **more: Any) -> list[Entry]:
    """Return entries of lines such as "x = r", "x / r" and "x ? r"."""
    said = {"=": "same", "/": "different", "?": "unknown"}
    words = [line.split() for line in lines]
    return [
        Entry(f"{n:05d}", "pair", (first, second), answer=said[sign], **more)
        for n, (first, sign, second) in enumerate(words)
    ]


def dialogue(
    n_groups: int, n_documents: int, rng: random.Random, *, infers: bool = True
) -> list[Entry]:
    """Return a dialogue in which every document is asked against members of groups."""
    truth = [rng.randrange(n_groups) for _ in range(n_documents)]
    groups, lines = [[0]], list[str]()
    for document in range(1, n_documents):
        unsure, home = False, None
        order = list(range(len(groups)))
        rng.shuffle(order)
        for nth, group in enumerate(order, 1):
            if infers and nth == len(groups) == n_groups and not unsure:
                home = group
                break
            member = rng.choice(groups[group])
            sign = "?" if rng.random() < 0.1 else "=" if truth[member] == truth[document] else "/"
            lines.append(f"d{document} {sign} d{member}")
            unsure |= sign == "?"
            if sign == "=":
                home = group
                break
        if home is not None:
            groups[home].append(document)
        elif not unsure and len(groups) < n_groups:
            groups.append([document])
    return pairs_of(*lines)


@given(st.integers(0, 10**6), st.integers(2, 5), st.integers(4, 25), st.booleans())
@settings(deadline=None, max_examples=60)
def test_certain_answers_make_the_groups_of_plain_loops(
    seed: int, n_groups: int, n_documents: int, known: bool
) -> None:
    entries = dialogue(n_groups, n_documents, random.Random(seed), infers=known)
    pairs = [(*entry.documents, entry.answer) for entry in entries]
    n_known = n_groups if known else None
    found = believe(entries, trust=SURE, n_groups=n_known).groups
    wanted = groups_of(pairs, n_known)  # type: ignore[arg-type]
    assert {frozenset(group.members) for group in found} == wanted


@given(st.integers(0, 10**6), st.randoms())
@settings(deadline=None, max_examples=40)
def test_order_of_lines_repeats_and_names_of_annotators_change_nothing(
    seed: int, shuffled: random.Random
) -> None:
    rng = random.Random(seed)
    entries = [
        replace(entry, annotator=rng.choice("ab"), likely=(rng.random(),))
        if rng.random() < 0.9
        else replace(entry, answer=rng.choice(["same", "different"]))
        for entry in dialogue(3, 25, rng)
    ]
    wanted = believe(entries, n_groups=3)
    again = [replace(entry, annotator=entry.annotator + "'") for entry in entries] * 2
    shuffled.shuffle(again)
    renamed = believe(again, n_groups=3)
    assert renamed.groups == wanted.groups
    assert renamed.trust == wanted.trust
    assert renamed.open == wanted.open
    assert renamed.constraints().fingerprint == wanted.constraints().fingerprint
    rates = {name + "'": known for name, known in wanted.annotators.items()}
    assert renamed.annotators == rates


@given(
    st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=6),
    st.lists(st.floats(0.05, 1.0), min_size=3, max_size=3),
    st.floats(0.01, 0.4),
)
@settings(deadline=None)
def test_the_posterior_is_prior_times_odds(
    votes: list[tuple[int, bool]], shares: list[float], error_rate: float
) -> None:
    shares = [share / sum(shares) for share in shares]
    entries = pairs_of(*(f"{a} / {b}" for a, b in ("sr", "tr", "ts")), annotator="sure")
    members = {0: "r", 1: "s", 2: "t"}
    for number, (group, is_same) in enumerate(votes):
        name = f"{members[group]}{number}"
        entries += pairs_of(f"{name} = {members[group]}", annotator="sure")
        sign = "=" if is_same else "/"
        entries += pairs_of(f"x {sign} {name}", likely=(shares[group],))
    entries += [
        Entry("", "pair", ("x", members[group]), answer="unknown", likely=(shares[group],))
        for group in range(3)
    ]
    entries = [replace(entry, id=str(number)) for number, entry in enumerate(entries)]
    beliefs = believe(entries, trust={"sure": 1.0, "": 1.0 - error_rate}, n_groups=3)
    found = beliefs.opinion("x").likely
    for group, wanted in enumerate(posterior(shares, votes, error_rate)):
        assert found[beliefs.anchor_of[members[group]]] == pytest.approx(wanted, abs=1e-3)


def known_groups(*lines: str, **options: Any) -> Beliefs:
    """Return what is believed where the groups of r and s are known for sure."""
    base = pairs_of("s / r", "r2 = r", "s2 = s", "r3 = r", "s3 = s", annotator="sure")
    more = [replace(entry, id="x" + entry.id) for entry in pairs_of(*lines)]
    return believe([*base, *more], trust={"sure": 1.0, **options}, n_groups=2)


def test_a_document_is_settled_as_soon_as_it_is_likely_enough() -> None:
    assert known_groups("x = r", **{"": 0.9}).open == ("x",)
    settled = known_groups("x = r", "x = r2", **{"": 0.9})
    assert settled.anchor_of["x"] == "r"
    assert settled.trust["x"] == pytest.approx(81 / 82)
    assert settled.disputes == ()
    disputed = known_groups("x / r", "x = r2", "x = r3", "x / s", **{"": 0.9})
    assert [(one.document, one.entries) for one in disputed.disputes] == [("x", ("x00000",))]


def test_after_six_questions_it_is_set_aside() -> None:
    lines = ["x ? r", "x ? s", "x ? r2", "x ? s2", "x = r3"]
    assert known_groups(*lines, **{"": 0.9}).set_aside == ()
    assert known_groups(*lines, "x = s3", **{"": 0.9}).set_aside == ("x",)


def test_an_error_rate_is_learned_from_answers_that_test_each_other() -> None:
    rng, base = random.Random(0), pairs_of("s / r", "t / r", "t / s", annotator="sure")
    for name, wrong in (("good", 0.02), ("bad", 0.3)):
        for document in range(300):
            own = rng.choice("rst")
            for group in "rst":
                answer = (own == group) != (rng.random() < wrong)
                base += pairs_of(
                    f"{name}{document} {'=' if answer else '/'} {group}", annotator=name
                )
    entries = [replace(entry, id=str(number)) for number, entry in enumerate(base)]
    people = believe(entries, trust={"sure": 1.0}, n_groups=3).annotators
    assert people["good"].error_rate == pytest.approx(0.02, abs=0.01)
    assert people["bad"].error_rate == pytest.approx(0.3, abs=0.04)
    assert people["sure"].error_rate < 1e-6


def test_what_is_said_both_ways_counts_for_nothing_but_shows_an_error() -> None:
    once = known_groups("x = r", **{"": 0.9})
    both = known_groups("x = r", "x / r", **{"": 0.9})
    assert both.opinion("x").odds == {}
    assert once.opinion("x").odds["r"] == pytest.approx(math.log(9), abs=1e-3)
    assert both.annotators[""].n_changed == 1


def test_a_choice_is_one_answer_however_many_groups_are_shown() -> None:
    base = pairs_of("s / r", "t / r", "t / s", annotator="sure")
    chosen = Entry("c", "choice", ("x", "s"), ("r", "s", "t"), answer="same")
    none = Entry("d", "choice", ("y",), ("r", "s"), answer="none")
    beliefs = believe([*base, chosen, none], trust={"sure": 1.0, "": 0.9}, n_groups=3)
    odds = beliefs.opinion("x").likely["s"] / (1.0 - beliefs.opinion("x").likely["s"])
    assert odds == pytest.approx(27 / 2, rel=1e-3)
    assert beliefs.opinion("y").elsewhere == pytest.approx(18 / 20, rel=1e-3)


def test_chosen_and_new_under_certainty() -> None:
    base = pairs_of("s / r")
    chosen = Entry("c", "choice", ("x", "s"), ("r", "s"), answer="same")
    new = Entry("d", "choice", ("y",), ("r", "s"), answer="new")
    beliefs = believe([*base, chosen, new], trust=SURE)
    assert {group.members for group in beliefs.groups} == {("r",), ("s", "x"), ("y",)}
    pairs = beliefs.constraints()
    assert pairs.must_link.tolist() == [["s", "x"]]
    assert pairs.cannot_link.tolist() == [["r", "s"], ["r", "x"], ["r", "y"], ["s", "y"]]
    assert not pairs.is_uncertain


def test_groups_that_turn_out_to_be_one_are_joined() -> None:
    base = pairs_of("s / r")  # wrong: it is one group
    for number in range(12):
        base += pairs_of(f"x{number} = r", f"x{number} = s")
    entries = [replace(entry, id=str(number)) for number, entry in enumerate(base)]
    assert len(believe(entries, trust={"": 0.9}, n_groups=3).groups) == 1
    assert len(believe(entries[:5], trust={"": 0.9}, n_groups=3).groups) == 2


def clicks(*lines: str) -> list[Entry]:
    """Return choices among r, s and t of lines such as "x r s": one by a, one by b."""
    return [
        Entry(f"{who}{n}", "choice", (name, own), ("r", "s", "t"), answer="same", annotator=who)
        for n, (name, *chosen) in enumerate(map(str.split, lines))
        for who, own in zip("ab", chosen, strict=False)
    ]


def test_groups_are_joined_where_people_choose_either_and_not_by_a_few_wrong_choices() -> None:
    base, trust = pairs_of("s / r", "t / r", "t / s"), {"": 0.9, "a": 0.9, "b": 0.9}
    both = [f"x{n} {'r s' if n % 2 else 's r'}" for n in range(12)]
    assert len(believe([*base, *clicks(*both)], trust=trust, n_groups=3).groups) == 2
    told_apart = [f"y{n} {'r r' if n % 2 else 's s'}" for n in range(8)]
    entries = [*base, *clicks(*both[:4], *told_apart)]
    assert len(believe(entries, trust=trust, n_groups=3).groups) == 3


def test_a_contradiction_has_its_chain_and_the_answers_of_each_link() -> None:
    beliefs = believe(pairs_of("a = b", "b = c", "c / a"))
    (found,) = beliefs.contradictions
    assert found.documents == ("a", "b", "c")
    assert found.links == (("00000",), ("00001",), ("00002",))


def test_answers_that_are_taken_back_count_for_nothing() -> None:
    entries = [*pairs_of("x = r"), Entry("u", "undo", about="00000")]
    assert believe(entries).groups == ()


@pytest.mark.long
def test_very_many_answers_take_no_minutes() -> None:
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 50, 20_000)
    entries = pairs_of(*(f"g{n} / g{m}" for n in range(50) for m in range(n)))
    entries += pairs_of(*(f"x{n:05d} = g{group}" for n, group in enumerate(groups.tolist())))
    entries = [replace(entry, id=str(number)) for number, entry in enumerate(entries)]
    assert len(believe(entries, trust=SURE).anchor_of) == 20_050


# ---- the public object


def test_answers_are_read_with_what_is_left_out(tmp_path: Any) -> None:
    journal = open_journal(tmp_path / "journal.jsonl")
    journal.append(*pairs_of("x = r", "y / r"))
    with (tmp_path / "journal.jsonl").open("ab") as file:
        file.write(b'{"id": "3", "kind": "pair", "documents": ["z"]}\n')
    with pytest.warns(HmrfWarning, match=r"line 3 is left out: .*two different documents"):
        answers = Answers.read(tmp_path / "journal.jsonl", trust=1.0)
    assert len(answers) == 2
    assert answers.constraints().must_link.tolist() == [["r", "x"]]
    assert repr(answers) == "Answers(3 documents in 2 groups, 0 open, 0 disputed)"
    with pytest.raises(InvalidInputError, match=r"trust must be a probability .* got 2"):
        Answers([], trust={"anna": 2})
    assert len(Answers([]).constraints()) == 0


# ---- oracles, and the default strategy with them


def planted(n: int, n_groups: int, seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, n_groups, n)
    return np.eye(n_groups)[labels] + 0.35 * rng.random((n, n_groups)), labels


def test_a_label_oracle_errs_as_often_as_it_is_told_and_always_alike() -> None:
    labels = np.arange(200) % 4
    oracle = LabelOracle(labels, error_rate=0.1, unknown_rate=0.2, seed=3)
    said = {(a, b): oracle(a, b) for a in range(200) for b in range(a)}
    assert all(oracle(b, a) == answer for (a, b), answer in said.items())
    unknown = sum(answer is None for answer in said.values()) / len(said)
    wrong = np.mean([
        answer != (labels[a] == labels[b]) for (a, b), answer in said.items() if answer is not None
    ])  # fmt: skip
    assert unknown == pytest.approx(0.2, abs=0.01)
    assert wrong == pytest.approx(0.1, abs=0.01)
    hard = LabelOracle(labels, error_rate=0.1, difficulty=np.where(labels == 0, 5.0, 0.0))
    wrongs = [hard(a, b) != (labels[a] == labels[b]) for a in range(200) for b in range(a)]
    assert np.mean(wrongs) == pytest.approx(0.1 * 5 / 4, abs=0.01)
    assert not any(hard(a, b) for a in range(1, 4) for b in range(5, 8) if labels[a] != labels[b])


def test_a_choosing_oracle_errs_as_often() -> None:
    labels = np.arange(400) % 4
    oracle = ChoosingOracle(labels, error_rate=0.1, unknown_rate=0.2, seed=1)
    said = [oracle.choose(n, [0, 1, 2]) for n in range(4, 400)]
    known = [(n % 4, place) for n, place in enumerate(said, 4) if place is not None]
    assert len(known) / len(said) == pytest.approx(0.8, abs=0.06)
    right = [place == (own if own < 3 else "new") for own, place in known]
    assert np.mean(right) == pytest.approx(0.9, abs=0.05)


@pytest.mark.parametrize("kind", [LabelOracle, ChoosingOracle])
def test_wrong_answers_do_not_reach_the_pairs(kind: type[LabelOracle]) -> None:
    X, labels = planted(200, 3, 0)
    oracle = kind(labels, error_rate=0.1, unknown_rate=0.2, seed=0)
    pairs = explore_consolidate(X, oracle, 3, 150, random_state=0)
    wrong = labels[pairs.must_link[:, 0]] != labels[pairs.must_link[:, 1]]
    assert len(wrong) > 20
    assert wrong.mean() < 0.06


@pytest.mark.parametrize("n_clusters", [3, None])
def test_clicks_count_as_questions_and_find_every_group(n_clusters: int | None) -> None:
    X, labels = planted(60, 3, 1)

    class Counted(ChoosingOracle):
        n_asked = 0

        def choose(self, document: Any, representatives: Any) -> Any:
            self.n_asked += 1
            assert document not in representatives
            return super().choose(document, representatives)

    oracle = Counted(labels)
    pairs = explore_consolidate(X, oracle, n_clusters, 25, trust=1.0, random_state=0)
    assert oracle.n_asked == 25
    assert (labels[pairs.must_link[:, 0]] == labels[pairs.must_link[:, 1]]).all()
    assert (labels[pairs.cannot_link[:, 0]] != labels[pairs.cannot_link[:, 1]]).all()
    assert len(np.unique(labels[pairs.documents])) == 3
    assert len(pairs.must_link) >= 22 - (n_clusters is None)


def test_of_many_groups_five_are_shown_and_then_five_more() -> None:
    X, shown = np.eye(30)[np.arange(90) % 30], list[int]()

    class Counted(ChoosingOracle):
        def choose(self, document: Any, representatives: Any) -> Any:
            shown.append(len(representatives))
            return super().choose(document, representatives)

    explore_consolidate(X + 0.01, Counted(np.arange(90) % 30), 30, 400, trust=1.0, random_state=0)
    assert max(shown) == 20
    assert shown.count(5) > 20


def test_a_wrong_new_hides_no_groups() -> None:
    X, shown = np.eye(20)[np.arange(80) % 20] + 0.01, list[int]()

    class Forgetful(ChoosingOracle):
        def choose(self, document: Any, representatives: Any) -> Any:
            shown.append(len(representatives))
            if len(shown) == 30:
                return "new"
            return super().choose(document, representatives)

    explore_consolidate(X, Forgetful(np.arange(80) % 20), 20, 60, trust=0.9, random_state=0)
    assert shown[-1] == 21
    assert 5 not in shown[20:]


@pytest.mark.parametrize("answer", [5, -1, True, "other", 0.5])
def test_a_choice_that_is_none_is_refused_in_words(answer: Any) -> None:
    class Odd(LabelOracle):
        def choose(self, document: Any, representatives: Any) -> Any:
            return answer

    with pytest.raises(InvalidInputError, match="choose must return a place from 0 to 0, 'new'"):
        explore_consolidate(np.eye(3), Odd([0, 1, 2]), 3, 5, random_state=0)


@pytest.mark.parametrize(
    ("entries", "how", "words"),
    [
        ([Entry("1", "pair", ("x",), answer="same")], {}, "two different documents"),
        ([Entry("1", "pair", ["x", "r"], answer="same")], {}, "documents must be"),  # type: ignore[arg-type]
        ([Entry("1", "pair", (1, 2), answer="same")], {}, "an id must be text"),  # type: ignore[arg-type]
        ([Entry("1", "pair", ("x", "r"), answer="maybe")], {}, "the answer must be one of"),
        ([Entry("1", "pair", ("x", "r"), answer="same", time="now")], {}, "ISO 8601"),
        ("xr", {}, "entries must be lines of a journal"),
        (None, {}, "entries must be lines of a journal"),
        ([], {"trust": 3}, "trust must be"),
        ([], {"trust": "0.9"}, "trust must be"),
        ([], {"trust": {"anna": "0.9"}}, "trust must be"),
        ([], {"n_clusters": "3"}, "n_clusters must be"),
        ([], {"n_clusters": 0}, "n_clusters must be"),
    ],
)
def test_answers_that_are_none_are_refused_in_words(
    entries: Any, how: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidInputError, match=words):
        Answers(entries, **how)
