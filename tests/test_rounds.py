"""Components above the task memory, through the engine: in pieces, as well settled as in one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import dask
import numpy as np
import pytest

from hmrf_dask import Constraints, HMRFKMeans
from hmrf_dask.fit.passes import Engine
from hmrf_dask.linked.layout import CANNOT
from hmrf_dask.tasks import icm as tasks_icm
from hmrf_dask.tasks.model import State
from tests.support.icm_oracle import Component
from tests.support.icm_problems import DISTORTIONS, SMALL, in_rounds, renumbered, tangled
from tests.support.loop import iterations, make_bench
from tests.support.problems import Problem


def integers(engine: Engine, state: State) -> Iterator[tuple[Component, list[int]]]:
    """Yield every ICM problem as the oracle's component, and its labels."""
    problem, pricing = engine.problem, engine.price(state.model)
    shared = engine.flow.share(state.model)
    for number, one in enumerate(problem.icm_problems):
        costs = [
            tasks_icm.exact_costs(problem.linked[part].block, shared, pricing.scale)
            for part in one.partitions
        ]
        icm, pairs = one.problem, pricing.problems[number]
        signed = {}
        for point in range(len(icm.nodes)):
            for edge in range(pairs.start[point], pairs.start[point + 1]):
                signed[point, int(pairs.neighbour[edge])] = int(pairs.signed[edge])
        kinds = dict(
            zip(
                zip(icm.first.tolist(), icm.second.tolist(), strict=True),
                icm.kind,
                strict=True,
            )
        )
        listed = [
            (
                i,
                j,
                "cannot" if kind == CANNOT else "must",
                signed[i, j] if kind == CANNOT else -signed[i, j],
            )
            for (i, j), kind in kinds.items()
        ]
        labels = engine.stored(one.partitions, state.linked).read()
        rows = np.concatenate(costs).tolist()
        yield (
            Component(rows, listed, renumbered(icm.groups.tolist()), pricing.scale.shift),
            labels.tolist(),
        )


def settled_in_one_place(problem: Problem, state: State, labels: np.ndarray) -> None:
    """Check that no point and no group could move with a gain, in the oracle's own integers."""
    whole = make_bench(problem)
    assert {one.mode for one in whole.engine.problem.icm_problems} == {"heap"}
    laid = whole.engine.problem
    files = tuple(
        whole.engine.run.write_labels(0, part.name, part.first_row, labels[laid.laid_rows(part)])
        for part in laid.linked
    )
    same = State(state.model, state.sums, state.counts, state.free, files, state.energy)
    for component, own in integers(whole.engine, same):
        assert component.best_single_gain(own) == 0
        assert component.best_group_gain(own) == 0


@pytest.mark.parametrize("distortion", DISTORTIONS)
def test_j_is_the_oracles_and_never_rises(distortion: str) -> None:
    for seed in range(4):
        problem = tangled(seed, distortion=distortion)
        bench = make_bench(problem, task_memory=SMALL)
        in_rounds(bench)
        seen = []
        for phase, turn in iterations(bench, most=6):
            assert turn.state.energy.value == pytest.approx(
                bench.energy(turn.state).total, rel=1e-9
            )
            if phase != "warm-up":
                seen.append(turn.state.energy.total)
        assert len(seen) > 1
        assert all(after <= before for before, after in pairwise(seen))


@pytest.mark.parametrize("distortion", DISTORTIONS)
def test_no_single_and_no_group_move_is_left(distortion: str) -> None:
    for seed in range(3):
        problem = tangled(seed, n=40, distortion=distortion)
        bench = make_bench(problem, task_memory=SMALL)
        in_rounds(bench)
        _, turn = next(iterations(bench))  # its labels began undecided
        labels = bench.labels(turn.state)
        assert (labels >= 0).all()
        settled_in_one_place(problem, turn.state, labels)


def test_a_chain_of_more_rounds_than_there_are_is_settled_in_its_e_step() -> None:
    """Rows are equal, so no M-step lowers J: what an E-step leaves open would end the fit so."""
    rng, n_rows = np.random.default_rng(0), 400
    row, links = rng.random(7), np.arange(n_rows)
    chain = Constraints(
        cannot_link=np.stack([links[:-1], links[1:]], axis=1),
        cannot_link_costs=np.linspace(2, 1, n_rows - 1),  # falling: one row moves in a round
    )
    init = np.stack([row, row + 0.3 * rng.random(7)])
    model = HMRFKMeans(2, init=init, n_init=1, refine=False, penalty="potts")
    with dask.config.set({"hmrf.task-memory": "24 KiB", "scheduler": "synchronous"}):
        model.fit(np.tile(row, (n_rows, 1)), must_link=chain)
    assert model.violations_["cannot_link"] == 0
    assert model.objective_ == pytest.approx(0.0, abs=1e-9)
    assert model.converged_
