"""From a corpus and constraints to a finished fit: looks, checks, lays out, opens the run, runs the loop."""

from __future__ import annotations

import hashlib
import os
import warnings
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import numpy as np

from hmrf_dask.constraints import Constraints
from hmrf_dask.corpus import Corpus
from hmrf_dask.dataflow import DaskFlow, Dataflow, Lazy, check_workers, memory_of_all, setting, tree
from hmrf_dask.distortions.base import Distortion
from hmrf_dask.duplicates import find_duplicate_ids
from hmrf_dask.em import prepare
from hmrf_dask.em.engine import Engine
from hmrf_dask.em.loop import Fit, Progress
from hmrf_dask.em.model import Settings, State
from hmrf_dask.em.prepare import Facts, Pairs
from hmrf_dask.em.problem import Problem, gather_parts, lay_out, whole_labels
from hmrf_dask.em.starts import Ground, make_ground, restrict
from hmrf_dask.errors import HmrfWarning, InvalidInputError
from hmrf_dask.ids import hash_ids
from hmrf_dask.kernels.path import kernel_path
from hmrf_dask.kernels.random import uniforms
from hmrf_dask.rows import RowBlock
from hmrf_dask.runs import RunDirectory
from hmrf_dask.types import AnyArray, FloatArray, IntArray

SAMPLE_ROWS = 50_000  # starts run on a corpus of up to so many rows (or 200 a cluster) whole, on a sample beyond
SAMPLE_ROWS_PER_CLUSTER = 200


@dataclass
class Fitted:
    """A finished fit."""

    flow: Dataflow
    problem: Problem
    state: State
    run: RunDirectory
    stop: str
    history: list[tuple[str, str, float]]
    n_iter: int
    pairs: Pairs | None
    facts: Facts

    def labels(self) -> list[Lazy]:
        """Return the labels of every corpus partition, lazily, read from the run."""
        problem, state = self.problem, self.state
        return [
            self.flow.lazy(whole_labels, self.run, file, state.linked, places, positions)
            for file, places, positions in zip(
                state.free, problem.places, problem.positions, strict=True
            )
        ]

    def violations(self) -> dict[str, int]:
        """Return how many of the given pairs the labels break."""
        if self.pairs is None:
            return {"must_link": 0, "cannot_link": 0}
        laid = np.concatenate([self.run.read_labels(file) for file in self.state.linked])
        assert self.problem.layout is not None
        labels = laid[self.problem.layout.position]
        must, cannot = labels[self.pairs.must], labels[self.pairs.cannot]
        return {
            "must_link": int((must[:, 0] != must[:, 1]).sum()),
            "cannot_link": int((cannot[:, 0] == cannot[:, 1]).sum()),
        }


def fit_corpus(
    corpus: Corpus,
    constraints: Constraints | None,
    settings: Settings,
    distortion: Distortion,
    *,
    given: FloatArray | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    storage_options: dict[str, Any] | None = None,
    progress: Progress = lambda record: None,
) -> Fitted:
    """Fit a corpus under Dask's scheduler; every mistake of the input is said before any work."""
    flow = DaskFlow()
    prepare.check_settings(settings, corpus.n_rows)
    facts = prepare.look_at_corpus(flow, corpus, distortion)
    extent = prepare.extent_of(facts, corpus.n_features)
    bound = distortion.bind(extent)
    prepare.examine_own(flow, corpus, bound, settings.n_clusters)
    prepare.check_memory(facts, settings, corpus.n_features)
    _check_ids(corpus)
    _warn_of_zero_rows(facts, bound)
    pairs = None
    if constraints is not None and len(constraints):
        pairs = prepare.resolve(flow, corpus, constraints, settings, bound.closure_form)
        _warn_of_conflicts(pairs, settings)
    run = _open_run(run_dir, storage_options, settings, bound, facts, constraints, given)
    check_workers(run)
    corpus = _kept(corpus, facts)
    row_bytes = max(1, facts.nbytes // max(facts.n_rows, 1))
    problem = lay_out(
        flow, settings, bound, extent, corpus.partitions, corpus.row_counts, pairs.graph if pairs else None,
        pairs.node_rows if pairs else None, pairs.row_values if pairs else None, pairs.cost_unit if pairs else 2.0**-8,
        row_bytes,
    )  # fmt: skip
    ground, whole = _ground(flow, corpus, problem, pairs)
    fit = Fit(Engine(flow, problem, run), ground, whole, pairs is not None, given, progress)
    state, stop = fit.run()
    run.finalise(
        {"stop": stop, "J": state.energy.value, "n_iter": fit.n_iter, "commit": fit.committed}
    )
    return Fitted(flow, problem, state, run, stop, fit.history, fit.n_iter, pairs, facts)


def _check_ids(corpus: Corpus) -> None:
    if corpus.has_ids:
        twice = find_duplicate_ids(corpus)
        if twice:
            shown = ", ".join(repr(one) for one in twice[:5])
            raise InvalidInputError(
                f"document ids must be unique, got some twice: {shown}; give every document its own id"
            )


def _warn_of_zero_rows(facts: Facts, distortion: Distortion) -> None:
    if facts.n_zero and distortion.zero_rows == "undecided":
        shown = ", ".join(repr(one) for one in facts.zero_rows)
        warnings.warn(
            f"{facts.n_zero} rows are zero and have no direction (rows {shown}): {distortion.name} keeps them at distance 1 from every cluster",
            HmrfWarning,
            stacklevel=4,
        )


def _warn_of_conflicts(pairs: Pairs, settings: Settings) -> None:
    if pairs.graph.n_conflicts:
        done = "kept as soft pairs without closure" if settings.on_conflict == "keep" else "dropped"
        warnings.warn(
            f"{pairs.graph.n_conflicts} cannot-links contradict must-links and were {done}; the first: {pairs.graph.conflicts[0]}",
            HmrfWarning,
            stacklevel=4,
        )


def _open_run(
    run_dir: str | os.PathLike[str] | None,
    storage_options: dict[str, Any] | None,
    settings: Settings,
    distortion: Distortion,
    facts: Facts,
    constraints: Constraints | None,
    given: FloatArray | None,
) -> RunDirectory:
    if run_dir is None:
        return RunDirectory.scratch(setting("scratch-directory", None))
    config = {
        "settings": asdict(settings),
        "distortion": distortion.name,
        "constraints": constraints.fingerprint if constraints is not None else None,
        "init": None if given is None else given_fingerprint(given),
        "kernels": kernel_path(),
        "hmrf_dask": version("hmrf-dask"),
    }
    fingerprint = f"{facts.n_rows}-{facts.content:016x}-{facts.order:016x}"
    return RunDirectory.open(
        run_dir, config=config, fingerprint=fingerprint, storage_options=storage_options
    )


def given_fingerprint(given: FloatArray) -> str:
    """Return a content hash of centroids that the user gave."""
    return hashlib.sha256(np.ascontiguousarray(given).tobytes()).hexdigest()


def _kept(corpus: Corpus, facts: Facts) -> Corpus:
    """Return the corpus with its rows kept in memory where half of it holds them; else they are read again in every pass."""
    return corpus.persist() if facts.nbytes <= memory_of_all() // 2 else corpus


# ---- the ground of the starts


@dataclass(frozen=True)
class Lowest:
    """The rows of a part with the lowest keyed numbers."""

    numbers: FloatArray
    ids: AnyArray
    rows: IntArray
    most: int


def lowest_rows(block: RowBlock, first_row: int, skip: IntArray, seed: int, most: int) -> Lowest:
    """Return the `most` free rows of a part with the lowest keyed numbers."""
    free = np.ones(block.n_rows, np.bool_)
    free[skip] = False
    rows = np.flatnonzero(free)
    numbers = uniforms(block.keys[rows], seed, "sample", 0, 0, 0)
    return _first(Lowest(numbers, block.ids[rows], rows + first_row, most))


def _first(lowest: Lowest) -> Lowest:
    order = np.lexsort((lowest.ids, lowest.numbers))[: lowest.most]
    return Lowest(lowest.numbers[order], lowest.ids[order], lowest.rows[order], lowest.most)


def merge_lowest(lists: list[Lowest]) -> Lowest:
    """Return the lowest of several parts."""
    return _first(
        Lowest(
            np.concatenate([one.numbers for one in lists]),
            np.concatenate([one.ids for one in lists]),
            np.concatenate([one.rows for one in lists]),
            lists[0].most,
        )
    )


def _ground(
    flow: Dataflow, corpus: Corpus, problem: Problem, pairs: Pairs | None
) -> tuple[Lazy, bool]:
    """Return the rows that starts work on as a task result, and whether they are the whole corpus."""
    settings = problem.settings
    most = max(SAMPLE_ROWS, SAMPLE_ROWS_PER_CLUSTER * settings.n_clusters)
    whole = corpus.n_rows <= most
    graph = pairs.graph if pairs else None
    nodes = pairs.node_rows if pairs else np.zeros(0, np.int64)
    if whole:
        rows = np.arange(corpus.n_rows, dtype=np.int64)
    else:
        keep = (
            _sampled_nodes(flow, corpus, pairs, settings, most // 2)
            if pairs
            else np.zeros(0, np.bool_)
        )
        graph = restrict(pairs.graph, keep) if pairs and keep.any() else None
        nodes = nodes[keep]
        rows = np.concatenate([nodes, _sampled_rows(flow, corpus, problem, most - len(nodes))])
    block = gather_parts(
        flow,
        corpus.partitions,
        np.asarray(corpus.offsets),
        rows,
        np.asarray([0, len(rows)]),
        "sample",
    )[0].block
    places = (
        np.argsort(rows, kind="stable")[np.searchsorted(np.sort(rows), nodes)]
        if len(nodes)
        else nodes
    )
    empty = RowBlock.from_array(np.zeros((0, corpus.n_features), np.float32))
    plan = Ground(
        empty,
        rows,
        graph,
        places,
        settings,
        problem.distortion,
        problem.extent,
        problem.cost_unit,
        problem.row_bytes,
    )
    return flow.persist([flow.lazy(make_ground, block, flow.share(plan))])[0], whole


def _sampled_rows(flow: Dataflow, corpus: Corpus, problem: Problem, most: int) -> IntArray:
    lists = [
        flow.lazy(lowest_rows, part.block, part.first_row, places, problem.settings.seed, most)
        for part, places in zip(problem.free, problem.places, strict=True)
    ]
    lowest: Lowest = flow.compute([tree(flow, merge_lowest, lists)])[0]
    return lowest.rows


def _sampled_nodes(
    flow: Dataflow, corpus: Corpus, pairs: Pairs, settings: Settings, most: int
) -> AnyArray:
    """Return a mask of the nodes of whole components, by the lowest keyed number of a member, that fit into `most` rows."""
    graph = pairs.graph
    ids, _ = prepare.describe_nodes(flow, corpus, pairs.node_rows)
    numbers = uniforms(hash_ids(ids), settings.seed, "sample", 0, 0, 0)
    lowest = np.full(graph.n_components, np.inf)
    np.minimum.at(lowest, graph.components, numbers)
    sizes = np.bincount(graph.components, minlength=graph.n_components)
    order = np.argsort(lowest, kind="stable")
    chosen = np.zeros(graph.n_components, np.bool_)
    chosen[order[np.cumsum(sizes[order]) <= most]] = True
    return chosen[graph.components]
