"""The pool of starts: candidates run on a start sample; the lowest J wins, or the answers decide.

Few rows: every candidate runs to its end, refined. Many rows: a tournament in heats, as a few
iterations show which of the candidates will end low.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.fit.candidates import (
    COMPLETED,
    FEW_ITERATIONS,
    UNCONSTRAINED,
    WHOLE,
    Choice,
    Heat,
    Match,
    Turn,
    begins_without_answers,
    candidate_centroids,
    ends_whole,
    ignores_pairs,
    match_of,
    run_candidate,
    run_fold,
)
from hmrf_dask.fit.journal import Candidate, Journal, write_candidate
from hmrf_dask.fit.loop import Iteration, Position, begin
from hmrf_dask.fit.passes import Engine
from hmrf_dask.fit.preparation import describe_nodes
from hmrf_dask.fit.problem import Pairs, Problem, gather_partitions
from hmrf_dask.flow.dataflow import Dataflow, Lazy, share_array, tree
from hmrf_dask.kernels.random import uniforms
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.rows.canonical import hash_ids
from hmrf_dask.tasks.first_centroids import Lowest, merge_lowest
from hmrf_dask.tasks.model import Settings
from hmrf_dask.tasks.start_sample import (
    LAST,
    Draw,
    StartSample,
    lowest_rows,
    make_start_sample,
    narrowed,
    restrict,
    smoothed,
    start_centroids,
    start_sample_size,
)
from hmrf_dask.types import BoolArray, FloatArray, IntArray

log = logging.getLogger("hmrf_dask")
IN_PARALLEL = 4  # candidates computed in one graph, each committed when all four are done
FROM_LAST = f"{LAST} 0"
WHOLE_CANDIDATE = 30  # iterations that a candidate that runs to its end stands for in a plan
WHOLE_WORK = 50_000  # rows × clusters: up to so many all candidates do

# Chosen on 20 Newsgroups, confirmed on arXiv: the winner ends as low as the lowest of ten that all
# run to their ends, for a third of the iterations (docs/design/method.md has the figures).
TOURNAMENT = (Heat(3, 4), Heat(10, 2), Heat(30, 1))
SHORT_TOURNAMENT = (Heat(3, 4), WHOLE)


def initialise(
    engine: Engine,
    journal: Journal,
    sample: Callable[[], Lazy],
    centroids: Callable[[], FloatArray] | None = None,
    last: FloatArray | None = None,
) -> Position:
    """Commit the first state of a fit and return it: of given centroids, or of the best candidate.

    `sample` gives the start sample as a task result, `centroids` makes the first ones, (K, d),
    where they come from the user or from seeds; the `last` ones are a candidate next to those that
    answers make. Candidates that were committed are not run again.
    """
    if centroids is not None:
        return _from_centroids(engine, journal, centroids())
    problem = engine.problem
    names = candidate_names(problem.settings, n_groups(problem), warm=last is not None)
    if last is not None and len(names) == 1:  # answers make no start
        return _from_centroids(engine, journal, smoothed(problem.distortion, last))
    started = sample()
    if len(names) == 1:
        lazy_centroids = engine.flow.lazy(start_centroids, started, names[0])
        return _from_centroids(engine, journal, engine.first_centroids(lazy_centroids))
    choice = _run_pool(engine, journal, started, names)
    journal.choose(choice.reason, choice.record())
    if last is not None and choice.winner.name == FROM_LAST and not _runs_whole(problem):
        return _from_centroids(engine, journal, smoothed(problem.distortion, last))
    return _from_winner(engine, journal, started, choice.winner)


def _from_centroids(engine: Engine, journal: Journal, centroids: Any) -> Position:
    engine.number = journal.next
    warm = bool(engine.problem.distortion.warm_smoothings)
    return _committed(journal, begin(engine, centroids), warm=warm)


@dataclass
class _Pool:
    """Candidates that are run, or were before the fit was stopped: each is a commit."""

    engine: Engine
    journal: Journal
    sample: Lazy
    narrow: Lazy  # for heats of a few iterations
    done: int = 0  # of the journal's candidates

    def run(self, turns: Sequence[Turn], *, later: int = 0) -> list[Candidate]:
        """Return the candidates of all turns; those that are not committed yet are run.

        So many more may come `later`.
        """
        journal, last = self.journal, self.done + len(turns)
        while (first := len(journal.candidates)) < last:
            few = turns[first - self.done :][:IN_PARALLEL]
            for candidate in self._computed(few, first + 1):
                journal.keep_candidate(candidate, of=last + later)
        ran, self.done = journal.candidates[self.done : last], last
        return ran

    def _computed(self, turns: Sequence[Turn], number: int) -> list[Candidate]:
        flow, run = self.engine.flow, self.engine.run
        sample = self.sample if turns[0].heat == WHOLE else self.narrow
        function = run_candidate if turns[0].fold is None else run_fold
        lazy = [flow.lazy(function, sample, run, at, turn) for at, turn in enumerate(turns, number)]
        return flow.compute(lazy)


def _run_pool(engine: Engine, journal: Journal, sample: Lazy, names: Sequence[str]) -> Choice:
    """Run what is not done, a few candidates in parallel, commit each; return the winner."""
    flow, problem = engine.flow, engine.problem
    plan = heats(problem.settings, problem.extent.n_rows, len(names))
    narrow = flow.persist([flow.lazy(narrowed, sample)])[0] if plan[0] != WHOLE else sample
    pool, later = _Pool(engine, journal, sample, narrow), sum(heat.going_on for heat in plan[:-1])
    ran = pool.run([Turn(name, plan[0]) for name in names], later=later)
    ran = ran + pool.run(_completing(problem, ran, plan[0]), later=later)
    by_heat = [ran]
    for ended, heat in pairwise(plan):
        best, later = ranked(ran)[: ended.going_on], later - ended.going_on
        turns = [Turn(candidate.name, heat, candidate) for candidate in ran if candidate in best]
        ran = pool.run(turns, later=later)
        by_heat.append(ran)
    lowest = ranked(ran)[0]
    match = match_of(lowest, by_heat[0])
    return Choice(lowest) if match is None else _met(pool, match, plan[-1], by_heat)


def _completing(problem: Problem, ran: Sequence[Candidate], heat: Heat) -> list[Turn]:
    """Return the start that completes fewer groups than K by what the best of those alone found."""
    alone = [candidate for candidate in ran if begins_without_answers(candidate.name)]
    if not alone or not 0 < n_groups(problem) < problem.settings.n_clusters:
        return []
    return [Turn(f"{COMPLETED} {ranked(alone)[0].name.split()[1]}", heat)]


def _met(pool: _Pool, match: Match, heat: Heat, by_heat: Sequence[Sequence[Candidate]]) -> Choice:
    """Return who wins a match, run as far as the last `heat` goes; `by_heat`: who ran in each."""
    untold = by_heat if heat != WHOLE else by_heat[:-1]
    untold = untold if ignores_pairs(match.lowest.name) else ()
    alone = _named(match.lowest.name, untold[-1] if untold else ())
    turns = match.turns(heat, alone)
    fits = pool.run(turns[:IN_PARALLEL], later=len(turns) - IN_PARALLEL)
    if match.verdict(fits).ahead:  # else more folds would hardly show it to be better
        fits = fits + pool.run(turns[IN_PARALLEL:], later=1)
    verdict = match.verdict(fits)
    if not verdict.against_energy:
        return Choice(match.lowest, verdict)
    name = match.challenger.name
    winner = _named(name, by_heat[-1])
    if winner is None:  # its J was too high for the last heat
        winner = pool.run([Turn(name, heat, match.challenger)])[0]
    return Choice(winner, verdict)


def _named(name: str, candidates: Sequence[Candidate]) -> Candidate | None:
    return next((candidate for candidate in candidates if candidate.name == name), None)


def heats(settings: Settings, n_rows: int, n_candidates: int) -> tuple[Heat, ...]:
    """Return the heats of a pool for a corpus of so many rows.

    Examples
    --------
    >>> [heat.iterations for heat in heats(Settings(20), 20_000, 10)]
    [3, 10, 30]
    >>> [heat.iterations for heat in heats(Settings(20), 4_000, 10)]
    [3, None]
    >>> [heat.iterations for heat in heats(Settings(20), 2_000, 10)]
    [None]
    """
    size = start_sample_size(n_rows, settings)
    if settings.hard or size * settings.n_clusters <= WHOLE_WORK:
        return (WHOLE,)
    pool = SHORT_TOURNAMENT if ends_whole(settings, size) else TOURNAMENT
    return tuple(heat for heat in pool if heat.going_on < n_candidates)


def pool_work(settings: Settings, n_rows: int, known: int) -> float:
    """Return the iterations of all candidates of a pool; with 30 for one that runs to its end.

    With `known` groups two are cross-fitted, on as many folds as run in parallel.

    Examples
    --------
    >>> pool_work(Settings(20), 20_000, known=0), pool_work(Settings(20), 20_000, known=100)
    (98.0, 147.0)
    """
    n_candidates = len(candidate_names(settings, known))
    plan, done, work = heats(settings, n_rows, n_candidates), 0, 0.0
    for heat in plan:
        work += n_candidates * (WHOLE_CANDIDATE if heat == WHOLE else (heat.iterations or 0) - done)
        n_candidates, done = heat.going_on, heat.iterations or 0
    if known and n_candidates:
        work += IN_PARALLEL * (WHOLE_CANDIDATE if plan[-1] == WHOLE else FEW_ITERATIONS)
    return float(work)


def ranked(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return candidates that ran equally far, the best first: by J, of equal J the first alone.

    What has the same J to the last bit is the same labels under other numbers.
    """
    best = {candidate.energy.total: candidate for candidate in reversed(candidates)}
    return [best[total] for total in sorted(best)]


def _from_winner(engine: Engine, journal: Journal, sample: Lazy, winner: Candidate) -> Position:
    """Commit the winner: with its labels if it ran to its end on every row, else its centroids."""
    flow, distortion = engine.flow, engine.problem.distortion
    ended = _runs_whole(engine.problem)
    if ended and not engine.learning:  # else its J is of another sum, and it was another fit
        journal.n_iter = winner.n_iter
        journal.history = [("start", step, value) for step, value in winner.history]
    lazy_centroids = flow.lazy(candidate_centroids, sample, engine.run, winner.file)
    centroids = engine.first_centroids(lazy_centroids)
    engine.number = journal.next
    free = linked = None
    if ended:
        free, linked = write_candidate(engine, sample, winner.file)
    smoothing = distortion.final_smoothing
    iteration = begin(engine, centroids, smoothing=smoothing, free=free, linked=linked)
    warm = engine.learning and bool(distortion.warm_smoothings)
    return _committed(journal, iteration, warm=warm)


def _runs_whole(problem: Problem) -> bool:
    """Return whether candidates that are left run to their ends, on every row."""
    n_rows, settings = problem.extent.n_rows, problem.settings
    return start_sample_size(n_rows, settings) == n_rows and ends_whole(settings, n_rows)


def _committed(journal: Journal, iteration: Iteration, *, warm: bool) -> Position:
    phase = "warm-up" if warm else "fit"
    journal.keep(phase, 0, iteration)
    return Position(phase, 0, None, iteration.state)


def n_groups(problem: Problem) -> int:
    """Return how many must-link groups there are, single documents with cannot-links too."""
    return 0 if problem.constraints is None else problem.constraints.graph.n_groups


def candidate_names(settings: Settings, known: int, *, warm: bool = False) -> list[str]:
    """Return the candidates of a fit, in the order in which ties are decided.

    Of the `known` groups up to K are clusters as they are, such as classes of some documents. More
    of them are chosen from, or merged. With a `warm` start the centroids of the fit before are
    there in the place of those that ignore the answers.

    Examples
    --------
    >>> candidate_names(Settings(3, n_init=2), known=0)
    ['unconstrained 0', 'unconstrained 1']
    >>> candidate_names(Settings(3, n_init=1), known=3)
    ['unconstrained 0', 'agglomerated-singles 0']
    >>> candidate_names(Settings(3), known=3, warm=True)
    ['last-centroids 0', 'agglomerated-singles 0']
    """
    names = [FROM_LAST] if warm else []
    if settings.init in ("k-means++", "random"):
        return names or [f"{settings.init} {number}" for number in range(settings.n_init)]
    if settings.init == "neighborhoods":
        return [*names, "neighborhoods 0"][: 2 if known else 1]
    names = names or [f"{UNCONSTRAINED} {number}" for number in range(settings.n_init)]
    if not known:
        return names
    if known <= settings.n_clusters:
        return [*names, "agglomerated-singles 0"]
    return [*names, "farthest-first 0", "agglomerated 0", "agglomerated-singles 0"]


def prepare_start_sample(
    flow: Dataflow, corpus: Corpus, problem: Problem, pairs: Pairs | None,
    last: FloatArray | None = None,
) -> Lazy:  # fmt: skip
    """Return what starts begin with as a task result: rows, and the constraints among them."""
    settings = problem.settings
    most = start_sample_size(corpus.n_rows, settings)
    graph = pairs.graph if pairs else None
    nodes = pairs.node_rows if pairs else np.zeros(0, np.int64)
    if most == corpus.n_rows:
        rows = np.arange(corpus.n_rows, dtype=np.int64)
    else:
        keep = np.zeros(0, np.bool_)
        if pairs:
            keep = _sampled_nodes(flow, corpus, pairs, settings, most // 2)
        graph = restrict(pairs.graph, keep) if pairs and keep.any() else None
        nodes = nodes[keep]
        rows = np.concatenate([nodes, _sampled_rows(flow, corpus, problem, np.sort(nodes), most)])
    order = np.argsort(rows, kind="stable")
    places = order[np.searchsorted(rows[order], nodes)]
    bounds = np.asarray([0, len(rows)], np.int64)
    offsets = np.asarray(corpus.offsets)
    gathered = gather_partitions(flow, corpus.blocks, offsets, rows, bounds, "sample")[0]
    plan = StartSample(
        RowBlock.from_array(np.zeros((0, corpus.n_features), np.float32)),
        rows,
        graph,
        places,
        settings=settings,
        distortion=problem.distortion,
        extent=problem.extent,
        cost_unit=problem.cost_unit,
        row_bytes=problem.row_bytes,
        last=last,
    )
    return flow.persist([flow.lazy(make_start_sample, gathered.block, flow.share(plan))])[0]


def _sampled_rows(
    flow: Dataflow, corpus: Corpus, problem: Problem, taken: IntArray, most: int
) -> IntArray:
    """Return rows that fill the sample up to `most`; `taken` are those it has, sorted."""
    lists, draw = [], Draw(problem.settings.seed, most - len(taken))
    for part, block, places in zip(problem.free, corpus.named, problem.places, strict=True):
        here = slice(*np.searchsorted(taken, [part.first_row, part.first_row + part.n_rows]))
        arrays = (share_array(flow, rows) for rows in (places, taken[here] - part.first_row))
        lists.append(flow.lazy(lowest_rows, block, part.first_row, *arrays, draw))
    lowest: Lowest = flow.compute([tree(flow, merge_lowest, lists)])[0]
    return lowest.rows


def _sampled_nodes(
    flow: Dataflow, corpus: Corpus, pairs: Pairs, settings: Settings, most: int
) -> BoolArray:
    """Return a mask of at most `most` nodes: whole components, and a part of one that is larger.

    They come by the lowest keyed number of a member, nodes of a larger one by their own, last.
    """
    graph = pairs.graph
    ids, _ = describe_nodes(flow, corpus, pairs.node_rows)
    numbers = uniforms(hash_ids(ids), settings.seed, "sample", 0, 0, 0)
    lowest = np.full(graph.n_components, np.inf)
    np.minimum.at(lowest, graph.components, numbers)
    sizes = np.bincount(graph.components, minlength=graph.n_components)
    order = np.argsort(lowest, kind="stable")
    order = order[sizes[order] <= most]
    whole = np.zeros(graph.n_components, np.bool_)
    whole[order[np.cumsum(sizes[order]) <= most]] = True
    chosen = whole[graph.components]
    larger = np.flatnonzero(sizes[graph.components] > most)
    left = most - int(chosen.sum())
    chosen[larger[np.argsort(numbers[larger], kind="stable")[:left]]] = True
    return chosen
