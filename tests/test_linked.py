from __future__ import annotations

import itertools
import re
from typing import Any
from unittest import mock

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from hmrf_dask.constraints import closure as closure_module
from hmrf_dask.constraints.closure import ClosureRules, ConstraintGraph, CostedPairs, build_graph
from hmrf_dask.errors import MemoryPlanError
from hmrf_dask.kernels.closure_tables import TableSizes, table_bytes
from hmrf_dask.linked.layout import CANNOT, MUST, LinkedLayout
from hmrf_dask.linked.plan import (
    RowSizes,
    heap_bytes,
    message_bytes,
    plan_layout,
    round_bytes,
)

GIGABYTE = 1 << 30


def graph_of(
    n: int,
    must: object,
    cannot: object = (),
    *,
    random: np.random.Generator | None = None,
    **options: Any,
) -> ConstraintGraph:
    lists = []
    for pairs, cost in ((must, 1.0), (cannot, 0.5)):
        nodes = np.asarray(pairs, np.int64).reshape(-1, 2)
        if random is not None:
            nodes = random.permuted(nodes[random.permutation(len(nodes))], axis=1)
        lists.append(CostedPairs(nodes, closure_cost=cost))
    rules = ClosureRules(**{"closure": False, "on_conflict": "keep", **options})
    return build_graph(n, *lists, rules)


def layout_of(
    graph: ConstraintGraph,
    row_bytes: object = 100,
    *,
    n_clusters: int = 3,
    task_memory: int = GIGABYTE,
    rows_per_partition: int = 65536,
    propagating: bool = False,
) -> LinkedLayout:
    nbytes = np.broadcast_to(np.asarray(row_bytes, np.int64), graph.n_nodes)
    return plan_layout(
        graph,
        n_clusters,
        RowSizes(nbytes, np.full(graph.n_nodes, 5), 10),
        task_memory=task_memory,
        rows_per_partition=rows_per_partition,
        propagating=propagating,
    )


def chain(nodes: object) -> np.ndarray:
    nodes = np.asarray(nodes)
    return np.stack([nodes[:-1], nodes[1:]], axis=1)


def same_layout(one: LinkedLayout, other: LinkedLayout) -> None:
    for name in one.__dataclass_fields__:
        if name != "graph":
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name), name)


@st.composite
def problems(draw: st.DrawFn) -> dict[str, object]:
    n = draw(st.integers(2, 40))
    pairs = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).filter(lambda p: p[0] < p[1])
    return {
        "n": n,
        "must": draw(st.lists(pairs, unique=True, max_size=n)),
        "cannot": draw(st.lists(pairs, unique=True, max_size=n)),
        "closure": draw(st.booleans()),
        "tables": draw(st.booleans()),
        "row_bytes": draw(st.lists(st.integers(1, 300), min_size=n, max_size=n)),
        "task_memory": draw(st.sampled_from([6000, 12000, GIGABYTE])),
        "rows_per_partition": draw(st.sampled_from([1, 3, 8, 100])),
        "propagating": draw(st.booleans()),
        "seed": draw(st.integers(0, 2**32 - 1)),
    }


def laid_out(problem: dict[str, object], random: np.random.Generator | None) -> LinkedLayout:
    # so small a ratio puts every component with more closure than pairs into tables
    ratio = 1 if problem["tables"] else 64
    with (
        mock.patch.object(closure_module, "EXPLICIT_RATIO", ratio),
        mock.patch.object(closure_module, "EXPLICIT_PAIRS", 2048 * (ratio // 64)),
    ):
        graph = graph_of(
            problem["n"],
            problem["must"],
            problem["cannot"],
            random=random,
            closure=problem["closure"],
        )
    return layout_of(
        graph,
        problem["row_bytes"],
        task_memory=problem["task_memory"],
        rows_per_partition=problem["rows_per_partition"],
        propagating=problem["propagating"],
    )


@settings(max_examples=150)
@given(problem=problems())
def test_any_layout_keeps_its_promises(problem: dict[str, object]) -> None:
    random = np.random.default_rng(problem["seed"])
    try:
        layout = laid_out(problem, None)
    except MemoryPlanError as refusal:
        with pytest.raises(MemoryPlanError, match="tables.*" + re.escape(str(refusal)[-80:])):
            laid_out(problem, random)
        return
    same_layout(layout, laid_out(problem, random))
    graph = layout.graph
    assert sorted(layout.order.tolist()) == list(range(graph.n_nodes))
    assert layout.order[layout.position].tolist() == list(range(graph.n_nodes))
    row_bytes = np.asarray(problem["row_bytes"])
    homes: dict[int, int] = {}
    for number in range(len(layout.modes)):
        icm = layout.problem(number)
        components = {int(graph.components[node]) for node in icm.nodes}
        for component in components:
            assert homes.setdefault(component, number) == number
        if len(icm.partitions) > 1:
            assert len(components) == 1
        for partition in icm.partitions:
            nodes = nodes_of(layout, partition)
            assert 1 <= len(nodes) <= problem["rows_per_partition"]
            assert row_bytes[nodes].sum() <= problem["task_memory"] // 4
        check_icm_problem(layout, number, problem["task_memory"])
        check_messages(layout, number, problem["task_memory"], problem["propagating"])
    assert len(homes) == graph.n_components
    check_pairs(layout)


def nodes_of(layout: LinkedLayout, partition: int) -> Any:
    """Return the nodes of a partition, in the order of its rows."""
    return layout.order[slice(*layout.partition_starts[partition : partition + 2])]


def check_icm_problem(layout: LinkedLayout, number: int, task_memory: int) -> None:
    icm, graph = layout.problem(number), layout.graph
    laid = np.concatenate([nodes_of(layout, one) for one in icm.partitions])
    np.testing.assert_array_equal(laid, icm.nodes)
    if icm.mode == "rounds":
        assert len(set(graph.components[icm.nodes].tolist())) == 1
        assert heap_bytes(len(laid), len(icm.first), 3) > task_memory
        ends = np.bincount(np.concatenate([icm.first, icm.second]), minlength=len(laid))
        place = 0
        for partition in icm.partitions:
            n_rows = len(nodes_of(layout, partition))
            n_ends = int(ends[place : place + n_rows].sum())
            assert round_bytes(n_rows, n_ends, 3) <= task_memory
            place += n_rows
    else:
        by_component = np.split(laid, np.flatnonzero(np.diff(graph.components[laid])) + 1)
        assert len(by_component) == len(np.unique(graph.components[laid]))
        assert all((np.diff(nodes) > 0).all() for nodes in by_component)
        assert heap_bytes(len(laid), len(icm.first), 3) <= task_memory
    tables = graph.table_components[graph.components[icm.nodes]]
    assert tables.tolist() == [icm.mode == "table"] * len(laid)
    check_groups(layout, number)


def check_messages(layout: LinkedLayout, number: int, task_memory: int, asked: bool) -> None:
    """Messages are passed wherever they fit, and only there."""
    icm, graph = layout.problem(number), layout.graph
    if icm.mode == "messages":
        sizes = len(icm.nodes), len(icm.first), 3
        assert asked
        assert heap_bytes(*sizes) + message_bytes(*sizes) <= task_memory
    if icm.mode == "heap" and asked:
        homes = graph.components[icm.nodes]
        pairs = homes[icm.first]
        for component in set(homes.tolist()):
            sizes = int((homes == component).sum()), int((pairs == component).sum()), 3
            assert heap_bytes(*sizes) + message_bytes(*sizes) > task_memory


def check_groups(layout: LinkedLayout, number: int) -> None:
    icm, graph = layout.problem(number), layout.graph
    numbers = sorted(set(graph.groups[icm.nodes].tolist()))
    assert [numbers[one] for one in icm.groups] == graph.groups[icm.nodes].tolist()
    for group, (start, stop) in enumerate(itertools.pairwise(icm.group_starts.tolist())):
        members = icm.group_members[start:stop].tolist()
        assert members == np.flatnonzero(icm.groups == group).tolist()
        assert icm.group_tables[group] == graph.table_groups[numbers[group]]
    rivals = [[numbers[one] for one in pair] for pair in icm.rivals.tolist()]
    assert rivals == [pair for pair in graph.rivals.tolist() if pair[0] in numbers]


def check_pairs(layout: LinkedLayout) -> None:
    """Every explicit pair stands once, with its cost, in a problem and in a block that agree."""
    graph = layout.graph
    wanted = [
        (*pair, kind, cost)
        for pairs, costs, kind in (
            (graph.must_pairs, graph.must_pair_costs, MUST),
            (graph.cannot_pairs, graph.cannot_pair_costs, CANNOT),
        )
        for pair, cost in zip(pairs.tolist(), costs.tolist(), strict=True)
    ]
    found = []
    for number in range(len(layout.modes)):
        icm = layout.problem(number)
        ends = np.sort([icm.nodes[icm.first], icm.nodes[icm.second]], axis=0)
        by_block = []
        for block in map(layout.block, icm.blocks):
            first, second = (nodes_of(layout, part) for part in block.partitions)
            assert block.partitions[0] <= block.partitions[1]
            nodes = np.sort([first[block.first], second[block.second]], axis=0)
            by_block += list(zip(*nodes.tolist(), block.kind.tolist(), strict=True))
            pairs = zip(*nodes.tolist(), block.kind.tolist(), block.cost.tolist(), strict=True)
            found += list(pairs)
        assert by_block == list(zip(*ends.tolist(), icm.kind.tolist(), strict=True))
    assert sorted(found) == sorted(wanted)


def test_whole_components_follow_each_other_by_lowest_member() -> None:
    graph = graph_of(7, [(0, 5), (1, 2), (3, 6)], [(4, 6)])
    layout = layout_of(graph, rows_per_partition=4)
    assert layout.order.tolist() == [0, 5, 1, 2, 3, 4, 6]
    assert layout.partition_starts.tolist() == [0, 4, 7]
    assert layout.modes == ("heap", "heap")
    assert layout.problem(0).nodes.tolist() == [0, 5, 1, 2]
    assert layout.problem(0).groups.tolist() == [0, 0, 1, 1]


def test_a_cut_component_shares_no_partition_and_stays_one_icm_problem() -> None:
    graph = graph_of(12, [*chain([0, 1]), *chain([2, 3, 4, 5, 6, 7, 8]), *chain([9, 10, 11])])
    layout = layout_of(graph, rows_per_partition=5)
    assert layout.order.tolist() == [0, 1, 9, 10, 11, 2, 3, 4, 5, 6, 7, 8]
    assert layout.partition_starts.tolist() == [0, 5, 10, 12]
    assert layout.problem_starts.tolist() == [0, 1, 3]
    assert layout.modes == ("heap", "heap")


def test_a_long_chain_stays_contiguous_whatever_its_ids() -> None:
    n = 20_000
    shuffled = np.random.default_rng(5).permutation(n)
    graph = graph_of(n, chain(shuffled))
    layout = layout_of(graph, task_memory=1 << 20, rows_per_partition=65536)
    assert layout.modes == ("rounds",)
    assert len(layout.partition_starts) - 1 > 4
    # breadth-first from the lowest node runs both ways along the chain: two crossings at each cut
    between = list(map(layout.block, range(layout.n_blocks)))
    crossing = [len(block.first) for block in between if block.partitions[0] != block.partitions[1]]
    assert sum(crossing) <= 2 * (len(layout.partition_starts) - 1 - 1)
    assert layout.problem(0).nodes.tolist() == layout.order.tolist()
    assert layout.order[0] == 0


def test_breadth_first_order_takes_neighbours_by_index() -> None:
    graph = graph_of(7, [(0, 6), (0, 2)], [(2, 5), (3, 6), (2, 4), (1, 3)])
    memory = round_bytes(7, 12, 3)
    assert heap_bytes(7, 6, 3) < memory  # which is what a piece of all rows would need
    whole = layout_of(graph, 1, task_memory=heap_bytes(7, 6, 3))
    assert whole.order.tolist() == [0, 1, 2, 3, 4, 5, 6]
    cut = layout_of(graph, 1, task_memory=heap_bytes(7, 6, 3) - 1)
    assert cut.modes == ("rounds",)
    assert cut.order.tolist() == [0, 2, 6, 4, 5, 3, 1]


def test_the_task_memory_decides_between_heap_and_rounds() -> None:
    graph = graph_of(100, chain(np.arange(100)))
    need = heap_bytes(100, 99, 3)
    assert layout_of(graph, 1, task_memory=need).modes == ("heap",)
    assert layout_of(graph, 1, task_memory=need - 1).modes == ("rounds",)
    two = graph_of(200, [*chain(np.arange(100)), *chain(np.arange(100, 200))])
    assert layout_of(two, 1, task_memory=2 * need).modes == ("heap",)
    assert layout_of(two, 1, task_memory=2 * need - 1).modes == ("heap", "heap")


def tables(n: int = 400) -> ConstraintGraph:
    """Two components in table form, the second with a rival, and a pair in explicit form."""
    must = [*chain(np.arange(2, n)), *chain(np.arange(n + 2, 2 * n)), (0, n + 1)]
    return graph_of(2 * n, must, [(n + 5, 1), (n, 1)], closure=True)


def test_components_in_table_form_stay_whole_and_separate() -> None:
    graph = tables()
    layout = layout_of(graph)
    assert graph.table_components.sum() == 2
    assert layout.modes == ("heap", "table")
    assert layout.problem(0).nodes.tolist() == [0, 401]
    icm = layout.problem(1)
    assert len(icm.group_tables) == 4
    assert icm.group_tables.all()
    assert icm.group_components.tolist() == [0, 1, 0, 0]
    assert icm.rivals.tolist() == [[0, 2], [0, 3]]
    cut = layout_of(graph, rows_per_partition=250)
    assert cut.modes == ("heap", "table", "table")
    assert cut.problem_starts.tolist() == [0, 1, 3, 5]
    for number in (1, 2):
        nodes = cut.problem(number).nodes
        np.testing.assert_array_equal(nodes, np.sort(nodes))


def test_a_table_component_that_does_not_fit_is_refused_with_the_arithmetic() -> None:
    graph = tables()
    large = np.array([5 * 399])
    closures = table_bytes(10, 3, TableSizes(large, large, 5 * 400, 400, 3, 2))
    worst = heap_bytes(400, 0, 3) + 2 * 40_000 + closures
    with pytest.raises(MemoryPlanError, match=rf"2 × 40,000 .*= {worst:,} bytes.*closure to false"):
        layout_of(graph, task_memory=worst - 1)
    assert "table" in layout_of(graph, task_memory=4 * worst).modes


def test_rows_and_hubs_that_do_not_fit_are_refused_with_the_arithmetic() -> None:
    star = graph_of(4001, [(0, leaf) for leaf in range(1, 4001)])
    with pytest.raises(MemoryPlanError, match=r"row 7 of .* raise hmrf.task-memory to at least 36"):
        layout_of(star, [9 if node == 7 else 1 for node in range(4001)], task_memory=32)
    need = round_bytes(1, 4000, 3)
    with pytest.raises(MemoryPlanError, match=rf"4,000 explicit pairs at row 0 .* {need:,} bytes"):
        layout_of(star, 1, task_memory=need - 1)
    assert layout_of(star, 1, task_memory=need).modes == ("rounds",)


def test_nothing_constrained_is_an_empty_layout() -> None:
    layout = layout_of(graph_of(0, []))
    assert (len(layout.partition_starts) - 1, len(layout.modes), layout.n_blocks) == (0, 0, 0)
    assert layout.order.tolist() == []


def test_a_layout_cannot_be_changed() -> None:
    layout = layout_of(graph_of(3, [(0, 1), (1, 2)]))
    with pytest.raises(ValueError, match="read-only"):
        layout.order[0] = 1
