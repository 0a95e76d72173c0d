"""From a corpus and constraints to a finished fit: survey, check, lay out, open the run, iterate.

A finished fit: where its labels are, and what they break.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import sha256
from importlib.metadata import version
from traceback import clear_frames
from typing import Any

import numpy as np

from hmrf_dask.checkpoints.directory import RunDirectory
from hmrf_dask.checkpoints.records import CheckpointStore, MemoryRun, iterations_in
from hmrf_dask.constraints.cliques import doubt_of_clique
from hmrf_dask.constraints.closure import SOFT, chain_of
from hmrf_dask.constraints.pairs import SHOWN, Constraints
from hmrf_dask.corpus.partitioned import Corpus, find_duplicate_ids
from hmrf_dask.distortions.base import Distortion
from hmrf_dask.errors import (
    ClusterError,
    HmrfWarning,
    InvalidInputError,
    LostOwnerError,
    counted,
)
from hmrf_dask.fit import preparation
from hmrf_dask.fit.answers import SuspectAnswer, find_suspects
from hmrf_dask.fit.candidates import refines_all
from hmrf_dask.fit.journal import Journal, resume
from hmrf_dask.fit.loop import UNFINISHED, Fit
from hmrf_dask.fit.metric_steps import MetricSteps, follow_labels
from hmrf_dask.fit.owners import Owned, in_driver, n_owners, owners_for
from hmrf_dask.fit.passes import Engine
from hmrf_dask.fit.preparation import (
    check_memory,
    linked_task,
    plan_tasks,
    reading_task,
    table_task,
    with_owners,
)
from hmrf_dask.fit.problem import (
    ENTRY_BYTES,
    ROW_BYTES,
    CorpusRows,
    Pairs,
    Problem,
    lay_out,
    whole_labels,
)
from hmrf_dask.fit.refinement import refines
from hmrf_dask.fit.seeds import Seeds, find_seeds, seeded_centroids
from hmrf_dask.fit.starts import initialise, prepare_start_sample
from hmrf_dask.fit.trimming import is_trimmed, keep_outliers_out
from hmrf_dask.flow.clients import AGAIN, in_this_process, local_threads, setting
from hmrf_dask.flow.cluster import check_workers, memory_of_all
from hmrf_dask.flow.dataflow import DaskFlow, Dataflow, Lazy, share_array, tree
from hmrf_dask.kernels.compiled import kernel_path
from hmrf_dask.kernels.threads import buffers_kept, threads_allowed
from hmrf_dask.progress import Tell, nothing
from hmrf_dask.tasks import start_sample
from hmrf_dask.tasks.model import Limits, Settings, State
from hmrf_dask.tasks.outliers import added, are_out, counts_by_cluster, limits_of, outliers
from hmrf_dask.tasks.partitions import Facts, StoredLabels, labels_at
from hmrf_dask.tasks.start_sample import start_sample_size
from hmrf_dask.types import FloatArray, IntArray, LabelArray

log = logging.getLogger("hmrf_dask")
MOST_LOSSES = 10  # of owners, one after the other without a commit


@dataclass(frozen=True)
class FitInput:
    """What a fit is asked for: all that decides its result, but for settings of the machine."""

    corpus: Corpus
    constraints: Constraints | None
    settings: Settings
    distortion: Distortion
    centroids: FloatArray | None = None  # first ones, (K, d)
    seeds: Seeds | None = None  # rows of known class: with must-link groups the first centroids
    last: FloatArray | None = None  # those that the fit before ended with: a start of the pool


def fit_corpus(
    asked: FitInput,
    *,
    run_dir: str | os.PathLike[str] | None = None,
    progress: Tell = nothing,
) -> Fitted:
    """Fit a corpus under Dask's scheduler; every mistake of the input is said before any work.

    Iterations are kept in `run_dir`, and a run found there is resumed. Without it a scratch run is
    made, which the caller removes. `progress` is called with the record of every commit.
    """
    preparation.check_settings(asked.settings, asked.corpus.n_rows)
    run: RunDirectory | MemoryRun
    if run_dir is not None:
        run = RunDirectory.at(run_dir)
    elif asked.corpus.in_client and in_this_process():
        run = MemoryRun()  # labels are few next to rows that are here too
    else:
        run = RunDirectory.scratch(setting("scratch-directory", None))
    with _if_stopped(lambda _: run.remove() if run_dir is None else None):  # a scratch run
        if isinstance(run, RunDirectory):
            check_workers(run)
        work = _survey(asked, fingerprinted=run_dir is not None)
        if isinstance(run, RunDirectory) and run_dir is not None:
            run.begin(config=_configuration(work), fingerprint=work.fingerprint)
        with _if_stopped(partial(_record_failure, run)):
            return _run(work, run, progress)


@contextmanager
def _if_stopped(act: Callable[[BaseException], None]) -> Iterator[None]:
    """Act where a fit stops, by an error or by Ctrl-C."""
    try:
        yield
    except BaseException as error:
        with suppress(Exception):  # the first error is the one to show
            act(error)
        raise


def _record_failure(run: RunDirectory | MemoryRun, error: BaseException) -> None:
    """Write into the run's events why it stopped, and those that wait."""
    run.event({"event": "failed", "error": type(error).__name__, "text": str(error)})
    run.flush_events()


@dataclass(frozen=True)
class _Surveyed:
    """A fit's input, read once and found good."""

    flow: DaskFlow
    asked: FitInput  # its distortion bound to the corpus, seeds with those that pairs add
    facts: Facts
    pairs: Pairs | None
    linked: Pairs | None  # linked rows: those of pairs, or seeds that are held
    slices: list[list[int]] | None = None  # co-located partitions, by number

    @property
    def fingerprint(self) -> str:
        """What the same input has again, whatever its partitions."""
        facts = self.facts
        return f"{facts.n_rows}-{facts.content:016x}-{facts.order:016x}"

    @property
    def refining(self) -> bool:
        """Whether first variation runs."""
        settings, sizes = self.asked.settings, (self.facts.n_rows, self.asked.settings.n_clusters)
        return refines(settings.refine, self.asked.distortion, *sizes)

    @property
    def refining_starts(self) -> bool:
        """Whether it runs in every candidate of the pool, too."""
        sample = start_sample_size(self.facts.n_rows, self.asked.settings)
        return refines_all(self.asked.settings, self.asked.distortion, sample)

    @property
    def row_bytes(self) -> int:
        """Bytes of an average row, whatever the partitions: it decides how many rows move."""
        return ENTRY_BYTES * self.facts.n_values // max(self.facts.n_rows, 1) + ROW_BYTES


def _survey(asked: FitInput, *, fingerprinted: bool) -> _Surveyed:
    """Read every row and every pair; raise whatever is wrong with them."""
    flow, settings, seeds = DaskFlow(), asked.settings, asked.seeds
    known_to_fit = asked.corpus.in_client or _files_fit(asked.corpus)
    corpus = asked.corpus.persist()  # rows of this process travel once
    table = table_task(settings.n_clusters, corpus.n_features)
    check_memory([table, reading_task(corpus.sources)])  # before anything of size d, and any row
    if known_to_fit:
        kept = flow.spread(corpus.partitions, corpus.row_counts)
        corpus = replace(corpus, partitions=tuple(kept), sources=())
    # Whether a corpus of tasks fits is known after the survey; too large files are read each time.
    slices = flow.co_located(corpus.blocks) if known_to_fit or corpus.sources else None
    reading = 0
    if corpus.sources and slices is not None:
        slices = preparation.cut_slices(slices, corpus.row_counts)
        reading = max(sum(corpus.row_counts[number] for number in numbers) for numbers in slices)
    facts = preparation.survey_corpus(
        flow, corpus, asked.distortion, fingerprinted=fingerprinted, slices=slices
    )
    distortion = asked.distortion.bind(preparation.extent_of(facts, corpus.n_features))
    preparation.examine_own(flow, corpus, distortion, settings.n_clusters)
    _check_ids(flow, corpus)
    _warn_of_zero_rows(facts, distortion)
    pairs = linked = None
    if asked.constraints:
        pairs = preparation.resolve(flow, corpus, asked.constraints, settings, distortion)
        _warn_of_conflicts(pairs, settings)
        _warn_of_clique(pairs, settings)
        linked = pairs
    if seeds is not None:
        seeds, linked = find_seeds(flow, corpus, seeds, pairs, settings.n_clusters)
    asked = replace(asked, corpus=corpus, distortion=distortion, seeds=seeds)
    work = _Surveyed(flow, asked, facts, pairs, linked, slices)
    number = n_owners(flow, settings, distortion, corpus.n_features)
    if words := in_driver(flow, settings, distortion, corpus.n_features):
        log.info("%s", words)
    needed = plan_tasks(
        facts, settings, corpus.n_features,
        linked=None if linked is None else linked_task(linked, settings),
        refining=work.refining, refining_starts=work.refining_starts, reading=reading,
    )  # fmt: skip
    if number:
        needed = with_owners(needed, number, flow.n_workers)
    check_memory(needed)
    if slices is not None or facts.nbytes > memory_of_all() // 2:
        return work  # without slices rows are read again in every pass, one partition a task
    kept = flow.spread(corpus.partitions, corpus.row_counts)
    corpus = replace(corpus, partitions=tuple(kept), sources=())
    return replace(work, asked=replace(asked, corpus=corpus), slices=flow.co_located(kept))


def _files_fit(corpus: Corpus) -> bool:
    """Return whether a corpus of files fits into memory, so that they are read once."""
    sizes = [source.nbytes for source in corpus.sources]
    return bool(sizes) and sum(sizes) <= memory_of_all() // 2


def _run(work: _Surveyed, run: RunDirectory | MemoryRun, progress: Tell) -> Fitted:
    """Lay the problem out and run the loop from wherever the run directory stands."""
    flow, asked, linked = work.flow, work.asked, work.linked
    corpus, settings = asked.corpus, asked.settings
    extent = preparation.extent_of(work.facts, corpus.n_features)
    dense = work.facts.n_values == work.facts.n_rows * corpus.n_features
    rows = CorpusRows(corpus.blocks, corpus.row_counts, work.row_bytes, work.slices, dense)
    problem = lay_out(flow, settings, asked.distortion, extent, rows, linked)
    engine = Engine(flow, problem, run, owners=owners_for(flow, problem))
    try:  # between passes the driver alone is at work
        with threads_allowed(local_threads()), buffers_kept():
            journal, fit, state, stop = _to_the_end(work, engine, progress)
            flow.settle()
    except BaseException:  # Ctrl-C in a notebook keeps the frame, and the frame keeps the owners
        if engine.owners is not None:
            engine.owners.leave()
        raise
    stop = stop or UNFINISHED
    ended = {"stop": stop, "J": state.energy.value, "n_iter": journal.n_iter}
    if run.final() is None:
        run.event({"event": "stop", "commit": journal.committed, **ended})
    run.finalise(ended | {"commit": journal.committed})
    return Fitted(
        flow,
        fit.engine.problem,
        state,
        run,
        stop,
        history=journal.history,
        iterations=iterations_in(journal.recorded),
        n_iter=journal.n_iter,
        start_reason=journal.start_reason,
        pairs=work.pairs,
        facts=work.facts,
    )


def _to_the_end(
    work: _Surveyed, engine: Engine, progress: Tell
) -> tuple[Journal, Fit, State, str | None]:
    """Run the loop, again from its last commit where workers died with what they owned."""
    committed = losses = 0
    while True:
        journal = Journal(engine.run, progress)
        try:
            return journal, *_iterate(work, engine, journal)
        except LostOwnerError as error:
            losses = 1 if journal.committed > committed else losses + 1
            committed, what = journal.committed, str(error).partition("; ")[0]
            if engine.owners is None or losses > MOST_LOSSES:
                raise ClusterError(
                    "workers that own clusters must stay for an iteration, got them lost "
                    f"{losses} times after commit {committed} ({what}); see why they die (for want "
                    f"of memory?), and {AGAIN}"
                ) from error
            log.info("%s", what)  # nobody needs to run anything again
            clear_frames(error.__traceback__)  # what they name would be held by owners for long
            error.__traceback__ = error.__context__ = error.__cause__ = None
            engine.owners.move()


def _iterate(work: _Surveyed, engine: Engine, journal: Journal) -> tuple[Fit, State, str | None]:
    """Run the loop from the last commit to its end; return the fit, its state, why it ended."""
    asked, corpus, problem = work.asked, work.asked.corpus, engine.problem
    commit = journal.open(problem)
    sample = partial(prepare_start_sample, engine.flow, corpus, problem)
    metric = None
    if problem.settings.metric:
        metric = MetricSteps(engine, corpus, 4 * work.facts.nbytes <= memory_of_all())
    if commit is None or commit.record["phase"] == "start":
        centroids = _first_centroids(asked, engine, partial(sample, None))
        rows = partial(sample, work.linked, asked.last)
        begin = partial(initialise, engine, journal, rows, centroids, asked.last)
    else:
        engine = metric.resumed(commit) if metric else engine
        begin = partial(resume, engine, commit)
    fit = Fit(engine, journal, problem.settings.max_iter, work.refining)
    state, stop = fit.run(begin)
    if metric and not is_trimmed(fit):
        state, stop = follow_labels(metric, fit, state, stop)
    if problem.settings.trim_outliers:
        state, stop = keep_outliers_out(fit, stop)
    if isinstance(state.sums, Owned):
        state = state.sums.owners.ended(state)
    return fit, state, stop


def _first_centroids(
    asked: FitInput, engine: Engine, sample: Callable[[], Lazy]
) -> Callable[[], FloatArray] | None:
    """Return what makes the first centroids, None for a pool of starts."""
    if asked.centroids is not None:
        return partial(start_sample.smoothed, asked.distortion, asked.centroids)
    if asked.seeds is not None:
        return partial(seeded_centroids, engine, asked.seeds, sample)
    return None


def _configuration(work: _Surveyed) -> dict[str, Any]:
    """Return all that decides the result next to the rows, and what was found out before."""
    asked, odds = work.asked, work.pairs.odds if work.pairs else None
    constraints, seeds, centroids = asked.constraints, asked.seeds, asked.centroids
    return {
        "settings": asdict(asked.settings),
        "distortion": asked.distortion.identity,
        "constraints": constraints.fingerprint if constraints is not None else None,
        "answers": odds.encoded() if odds is not None else None,
        "seeds": seeds.fingerprint if seeds is not None else None,
        "init": None if centroids is None else sha256(centroids.tobytes()).hexdigest(),
        **({} if asked.last is None else {"last": sha256(asked.last.tobytes()).hexdigest()}),
        "kernels": kernel_path(),
        "hmrf_dask": version("hmrf-dask"),
    }


def _check_ids(flow: DaskFlow, corpus: Corpus) -> None:
    if corpus.has_ids:
        twice = find_duplicate_ids(corpus, flow)
        if twice:
            shown = ", ".join(repr(document) for document in twice[:5])
            raise InvalidInputError(
                f"document ids must be unique, got some twice: {shown}; give every document its "
                "own id"
            )


def _warn_of_zero_rows(facts: Facts, distortion: Distortion) -> None:
    if facts.n_zero and distortion.zero_rows == "undecided":
        shown = ", ".join(repr(document) for _, document in facts.zero_rows)
        warnings.warn(
            f"{facts.n_zero} rows are zero and have no direction (rows {shown}): "
            f"{distortion.name} keeps them at distance 1 from every cluster; a text is zero where "
            "it has no word that counts",
            HmrfWarning,
            stacklevel=5,
        )


def _warn_of_conflicts(pairs: Pairs, settings: Settings) -> None:
    graph = pairs.graph
    if graph.n_conflicts and settings.on_conflict != "keep":
        done = "dropped" if settings.on_conflict == "drop" else SOFT
        chains = "; ".join(chain_of(path) for path in graph.conflicts[:SHOWN])
        more = f"; … ({graph.n_conflicts:,} in all)" if graph.n_conflicts > SHOWN else ""
        warnings.warn(
            f"must-links contradict {counted(graph.n_conflicts, 'cannot-link')}, {done}: "
            f"{chains}{more}",
            HmrfWarning,
            stacklevel=5,
        )


def _warn_of_clique(pairs: Pairs, settings: Settings) -> None:
    if pairs.odds is None:  # hard pairs, which were refused, or such as cost nothing
        return

    def name(number: int) -> object:
        """Return the document of a node, as answers name it."""
        return pairs.names[number].item()

    if said := doubt_of_clique(pairs.graph, settings.n_clusters, name):
        warnings.warn(said, HmrfWarning, stacklevel=5)


@dataclass
class Fitted:
    """A finished fit."""

    flow: Dataflow
    problem: Problem
    state: State
    run: RunDirectory | MemoryRun
    stop: str
    history: list[tuple[str, str, float]]
    iterations: list[dict[str, Any]]
    n_iter: int
    start_reason: str
    pairs: Pairs | None
    facts: Facts

    def labels(self) -> list[Lazy]:
        """Return the labels of every corpus partition, lazily, read from the run."""
        problem, flow = self.problem, self.flow
        parts = zip(self.state.free, problem.places, problem.positions, strict=True)
        return [
            flow.lazy(
                whole_labels, self.run, file, self._holding(positions),
                share_array(flow, places), share_array(flow, positions),
            )
            for file, places, positions in parts
        ]  # fmt: skip

    def _holding(self, positions: np.ndarray[Any, Any]) -> list[Any]:
        """Return the files that hold some of these linked positions."""
        files = self.state.linked
        ends = np.asarray([file.first_row + file.n_rows for file in files])
        return [files[i] for i in np.unique(np.searchsorted(ends, positions, side="right"))]

    def objective_history(self) -> list[float]:
        """Return J after every step that promises not to raise it: all but the warm-up's."""
        return [value for phase, _, value in self.history if phase != "warm-up"]

    def _labels_of_nodes(self, pairs: Pairs) -> LabelArray:
        """Return the labels of constrained rows, from linked parts where they are linked rows."""
        problem = self.problem
        if problem.layout is not None and problem.constraints is pairs:
            laid = np.concatenate([self.run.read_labels(file) for file in self.state.linked])
            return laid[problem.layout.position]
        firsts = np.asarray([part.first_row for part in problem.free])
        homes = np.searchsorted(firsts, pairs.node_rows, side="right") - 1
        used, parts, flow = np.unique(homes), self.labels(), self.flow
        rows = [share_array(flow, pairs.node_rows[homes == home] - firsts[home]) for home in used]
        by_home = zip(used, rows, strict=True)
        computed = flow.compute([flow.lazy(labels_at, parts[home], own) for home, own in by_home])
        labels = np.empty(len(homes), np.int32)
        for home, own in zip(used, computed, strict=True):
            labels[homes == home] = own
        return labels

    def outliers(self) -> tuple[IntArray | Limits | None, list[Lazy] | None]:
        """Return the limit of each cluster and the outliers of each partition, if asked for.

        Where they are kept out of centroids the limits are those of the model.
        """
        if self.problem.settings.outliers is None:
            return None, None
        if (limits := self.state.model.limits) is not None:
            files = (StoredLabels(self.run, [file]) for file in self.state.free)
            return limits, [self.flow.lazy(are_out, stored) for stored in files]
        return find_outliers(self.flow, self.problem, self.state, self.run)

    def suspect_answers(self) -> list[SuspectAnswer]:
        """Return the answers that are more likely wrong than right, the least likely first."""
        if self.pairs is None or self.problem.constraints is not self.pairs:
            return []
        labels = self._labels_of_nodes(self.pairs)
        return find_suspects(self.flow, self.problem, self.state, self.run, labels)

    def violations(self) -> dict[str, int]:
        """Return how many of the given pairs the labels break."""
        if self.pairs is None:
            return {"must_link": 0, "cannot_link": 0}
        labels = self._labels_of_nodes(self.pairs)
        must, cannot = labels[self.pairs.must], labels[self.pairs.cannot]
        return {
            "must_link": int((must[:, 0] != must[:, 1]).sum()),
            "cannot_link": int((cannot[:, 0] == cannot[:, 1]).sum()),
        }


def find_outliers(
    flow: Dataflow, problem: Problem, state: State, run: CheckpointStore
) -> tuple[IntArray, list[Lazy]]:
    """Return the limit of each cluster, and lazily the outliers of every corpus partition."""
    rule, model = problem.settings.outliers, flow.share(state.model)
    parts = [
        (part.block, StoredLabels(run, [file]), model)
        for part, file in zip(problem.free, state.free, strict=True)
    ]
    counts = [flow.lazy(counts_by_cluster, *part) for part in parts]
    total = flow.compute([tree(flow, added, counts)])[0]
    limits = limits_of(total, None if isinstance(rule, str) else rule)
    known = share_array(flow, limits)
    return limits, [flow.lazy(outliers, *part, known) for part in parts]
