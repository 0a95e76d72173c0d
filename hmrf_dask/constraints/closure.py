"""Closure of the given pairs without blow-up: groups, components, contradictions with their paths.

A contradiction is a cannot-link that a must-link path joins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from hmrf_dask.constraints.pairs import PairValues, canonical_pairs, freeze_arrays
from hmrf_dask.errors import ConflictError, InvalidInputError
from hmrf_dask.kernels.compiled import njit
from hmrf_dask.types import BoolArray, FloatArray, IntArray, LabelArray, Sized


def connected_numbers(n_nodes: int, pairs: LabelArray) -> LabelArray:
    """Return the connected part of every node, parts numbered by their lowest node.

    Examples
    --------
    >>> connected_numbers(5, np.array([[1, 3], [0, 4]], np.int32)).tolist()
    [0, 1, 2, 1, 0]
    """
    if n_nodes == 0:
        return np.zeros(0, np.int32)
    n_parts, labels = connected_components(_matrix(n_nodes, pairs), directed=False)
    lowest = np.empty(n_parts, np.int64)
    lowest[labels[::-1]] = np.arange(n_nodes - 1, -1, -1)  # the last to write is the lowest
    number = np.empty(n_parts, np.int32)
    number[np.argsort(lowest)] = np.arange(n_parts, dtype=np.int32)
    return number[labels]


def _matrix(n_nodes: int, pairs: LabelArray) -> sp.coo_array:
    ones = np.ones(len(pairs), np.float64)  # csgraph works in float64: no copy on the way
    return sp.coo_array((ones, (pairs[:, 0], pairs[:, 1])), shape=(n_nodes, n_nodes))


def members_by_number(
    numbers: LabelArray | IntArray, n_numbers: int
) -> tuple[IntArray, LabelArray]:
    """Return where the members of each number start, and the members, ascending in each.

    Examples
    --------
    >>> starts, members = members_by_number(np.array([1, 0, 1]), 2)
    >>> members[starts[1] : starts[2]].tolist()
    [0, 2]
    """
    starts = np.zeros(n_numbers + 1, np.int64)
    np.cumsum(np.bincount(numbers, minlength=n_numbers), out=starts[1:])
    return starts, np.argsort(numbers, kind="stable").astype(np.int32)


class BreadthFirst:
    """Breadth-first searches over one graph of pairs, neighbours in index order.

    Examples
    --------
    >>> search = BreadthFirst(4, np.array([[0, 1], [1, 2], [2, 3]], np.int32))
    >>> search.order(1).tolist(), search.path(0, 3)
    ([1, 0, 2, 3], [0, 1, 2, 3])
    """

    def __init__(self, n_nodes: int, pairs: LabelArray) -> None:
        graph = _matrix(n_nodes, np.concatenate([pairs, pairs[:, ::-1]])).tocsr()
        graph.sort_indices()
        self._starts = graph.indptr.astype(np.int64)
        self._neighbours = graph.indices.astype(np.int32, copy=False)
        self._parent = np.full(n_nodes, -1, np.int32)
        self._queue = np.empty(n_nodes, np.int32)

    def order(self, source: int) -> LabelArray:
        """Return all nodes that can be reached, in the order they are met."""
        reached = self._run(source, -1)
        self._parent[reached] = -1
        return reached

    def path(self, source: int, target: int) -> list[int]:
        """Return the shortest path; of several, the one that is lowest node by node."""
        reached = self._run(source, target)
        path = [target]
        while path[-1] != source:
            path.append(int(self._parent[path[-1]]))
        self._parent[reached] = -1  # a search pays for what it reached, not for the graph
        return path[::-1]

    def _run(self, source: int, target: int) -> LabelArray:
        graph = self._starts, self._neighbours
        n_reached = _search(*graph, source, target, self._parent, self._queue)
        return self._queue[:n_reached].copy()


@njit(nogil=True, cache=True, makes_arrays=False)
def _search(
    starts: IntArray,
    neighbours: LabelArray,
    source: int,
    target: int,
    parent: LabelArray,
    queue: LabelArray,
) -> int:
    """Fill `queue` and `parent` from `source`, up to `target`; return how many were met.

    Neighbours of node i are at starts[i]..starts[i + 1].
    """
    parent[source] = source
    queue[0] = source
    head = 0
    tail = 1
    while head < tail:
        node = queue[head]
        head += 1
        for place in range(starts[node], starts[node + 1]):
            neighbour = neighbours[place]
            if parent[neighbour] >= 0:
                continue
            parent[neighbour] = node
            queue[tail] = neighbour
            tail += 1
            if neighbour == target:
                return tail
    return tail


@njit(nogil=True, cache=True, makes_arrays=False)
def _write_within(
    starts: IntArray, members: LabelArray, groups: LabelArray, n_nodes: int, keys: IntArray
) -> None:
    """Write lower × n_nodes + higher for all pairs of members of the same group, unsorted."""
    place = 0
    for group in groups:
        for first in range(starts[group], starts[group + 1]):
            base = np.int64(members[first]) * n_nodes  # members ascend: `first` is the lower
            for second in range(first + 1, starts[group + 1]):
                keys[place] = base + members[second]
                place += 1


@njit(nogil=True, cache=True, makes_arrays=False)
def _write_across(
    starts: IntArray, members: LabelArray, rivals: LabelArray, n_nodes: int, keys: IntArray
) -> None:
    """Write lower × n_nodes + higher for all pairs across two rival groups, unsorted."""
    place = 0
    for number in range(rivals.shape[0]):
        group, rival = rivals[number, 0], rivals[number, 1]
        for first in range(starts[group], starts[group + 1]):
            for second in range(starts[rival], starts[rival + 1]):
                here, there = np.int64(members[first]), np.int64(members[second])
                keys[place] = here * n_nodes + there if here < there else there * n_nodes + here
                place += 1


def contradicted(n_nodes: int, must: LabelArray, cannot: LabelArray) -> LabelArray:
    """Return the cannot-links whose ends must-links join.

    Examples
    --------
    >>> must, cannot = np.array([[0, 1], [1, 2]], np.int32), np.array([[0, 2], [0, 3]], np.int32)
    >>> contradicted(4, must, cannot).tolist()
    [[0, 2]]
    """
    groups = connected_numbers(n_nodes, must)
    inside: LabelArray = cannot[groups[cannot[:, 0]] == groups[cannot[:, 1]]]
    return inside


OnConflict = Literal["warn", "raise", "keep", "drop"]
Names = Callable[[int], object]

N_WITNESSES = 100
SOFT: Final = "kept as pairs that may be broken"  # what is said of contradictions
SHOWN_PATH = 8  # documents of a witness that a message shows


def witnesses(
    n_nodes: int,
    must: LabelArray,
    contradictions: LabelArray,
    names: Names,
    on_conflict: OnConflict,
) -> tuple[tuple[object, ...], ...]:
    """Return the names along the shortest must-link path of each of the first contradictions.

    These are cannot-links inside must-link groups, lowest first. Of several shortest paths it is
    the lowest. ConflictError says the first one where `on_conflict` is ``"raise"``.

    Examples
    --------
    >>> must, cannot = np.array([[0, 1], [1, 2]], np.int32), np.array([[0, 2]], np.int32)
    >>> witnesses(3, must, cannot, "abc".__getitem__, "keep")
    (('a', 'b', 'c'),)
    """
    if not len(contradictions):
        return ()
    search = BreadthFirst(n_nodes, must)
    shown = contradictions[: 1 if on_conflict == "raise" else N_WITNESSES].tolist()
    paths = tuple(tuple(map(names, search.path(*pair))) for pair in shown)
    if on_conflict == "raise":
        raise ConflictError(_conflict_message(paths[0], len(contradictions) - 1), paths[0])
    return paths


def _conflict_message(path: tuple[object, ...], n_more: int) -> str:
    more = "contradiction" if n_more == 1 else "contradictions"
    rest = f", and {n_more:,} more {more}" if n_more else ""
    return (
        "must-links and cannot-links must not contradict each other, got "
        f"{chain_of(path)}{rest}: correct the pairs, or, where pairs may be broken (HMRFKMeans, "
        "PCKMeans), set on_conflict to warn (given pairs only for these documents) or drop "
        "(without the contradicting cannot-links)"
    )


def chain_of(path: tuple[object, ...]) -> str:
    """Return a contradiction as people write it, the middle of a long one left out.

    Examples
    --------
    >>> chain_of(("a", "b", "c"))
    "'a' = 'b' = 'c' but 'a' ≠ 'c'"
    """
    shown = [repr(name) for name in path]
    if len(shown) > SHOWN_PATH:
        half = SHOWN_PATH // 2
        left_out = f"… ({len(shown) - SHOWN_PATH} more documents) …"
        shown = [*shown[:half], left_out, *shown[-half:]]
    return f"{' = '.join(shown)} but {path[0]!r} ≠ {path[-1]!r}"


EXPLICIT_PAIRS = 2048  # closure pairs that any component may have written out
EXPLICIT_RATIO = 64  # closure pairs written out per given pair of a larger component
PAIR_BUDGET = 20_000_000  # closure pairs in total where the distortion has no table form


@dataclass(frozen=True, slots=True, eq=False)
class ConstraintGraph(Sized):
    """The constrained documents, in id order, and all that their pairs cost.

    The constraint energy of a labelling is the sum over `must_pairs` and `cannot_pairs` (with their
    costs), plus `must_link_cost` for every pair inside a table group, plus `cannot_link_cost` for
    every pair across two rival groups. In components in table form the explicit pairs are
    differences, given cost minus closure cost, and may be negative.
    """

    groups: LabelArray  # group of each node, numbered by lowest member
    components: LabelArray  # of each node, over both kinds of pairs, numbered by lowest member
    group_components: LabelArray  # component of each group
    must_pairs: LabelArray  # explicit pairs of nodes, shape (m, 2), lower first, sorted
    must_pair_costs: FloatArray
    cannot_pairs: LabelArray
    cannot_pair_costs: FloatArray
    table_components: BoolArray  # which are in table form
    table_groups: BoolArray  # whose closure is a table; a contradictory group has no closure
    rivals: LabelArray  # cannot-linked groups in table form, shape (r, 2), lower first, sorted
    must_link_cost: float  # of one closure pair in table form
    cannot_link_cost: float
    contradictory_groups: LabelArray  # with a cannot-link inside: their closure is dropped
    dropped_pairs: LabelArray  # cannot-links that contradict must-links, shape (k, 2)
    conflicts: tuple[tuple[object, ...], ...]  # shortest must-link paths of the first 100, in names
    n_conflicts: int  # contradictions in all

    def __post_init__(self) -> None:
        """Make the arrays read-only."""
        freeze_arrays(self)

    @property
    def n_nodes(self) -> int:
        """Constrained documents."""
        return len(self.groups)

    @property
    def n_groups(self) -> int:
        """Must-link groups, single documents included."""
        return len(self.group_components)

    @property
    def n_components(self) -> int:
        """Components over both kinds."""
        return len(self.table_components)


class CostedPairs(NamedTuple):
    """Pairs of nodes of one kind, in any order and orientation, and what violating them costs.

    Costs are used as they come: round them to the recorded quantum before, so that pair cost minus
    closure cost is exact.
    """

    pairs: IntArray | LabelArray  # shape (m, 2)
    costs: FloatArray | None = None  # NaN for the cost of a closure pair; None where all cost that
    closure_cost: float = 1.0  # of a closure pair of this kind: the estimator's cost
    certain: BoolArray | None = None  # which pairs are closed; None: all. Then each comes once


class _Ordered(NamedTuple):
    """Pairs of one kind in canonical order, each with its cost."""

    pairs: LabelArray
    costs: FloatArray
    closure_cost: float
    certain: BoolArray

    def chosen(self, which: BoolArray) -> _Ordered:
        """Return some of the pairs."""
        few = (self.pairs[which], self.costs[which])
        return _Ordered(*few, self.closure_cost, self.certain[which])


@dataclass(frozen=True, slots=True)
class ClosureRules:
    """How pairs that follow from pairs are taken.

    Examples
    --------
    >>> must, rules = CostedPairs(np.array([[0, 1], [1, 2]])), ClosureRules(closure=False)
    >>> build_graph(3, must, CostedPairs(np.empty((0, 2), np.int64)), rules).must_pairs.tolist()
    [[0, 1], [1, 2]]
    """

    closure: bool = True  # False: the pairs themselves only, everywhere
    closure_form: bool = True  # whether the distortion can take closure penalties from tables
    on_conflict: OnConflict = "raise"  # warn, keep: without the closure of groups that contradict
    pair_budget: int = PAIR_BUDGET  # closure pairs in total where there is no `closure_form`


class _Forms(NamedTuple):
    """The must-link groups: their components, members, which have a closure, and their rivals."""

    components: LabelArray
    starts: IntArray
    members: LabelArray
    closed: BoolArray
    rivals: LabelArray
    contradictory: LabelArray  # groups with a cannot-link inside


def build_graph(
    n_nodes: int,
    must: CostedPairs,
    cannot: CostedPairs,
    rules: ClosureRules,
    names: Names = int,
    joined: LabelArray | None = None,
) -> ConstraintGraph:
    """Work out groups, components, contradictions and the form of every component's closure.

    Time and memory are linear in the pairs, except that a component with at most
    max(2048, 64 × its pairs) closure pairs has them written out. Nodes are the constrained
    documents in the order of their ids; errors and `conflicts` give their `names`. Where not all
    pairs are certain, `joined` are the groups that they join all the same (numbered by lowest
    member, certain must-links inside): they move together, but have no closure.

    Raises
    ------
    ConflictError
        A must-link path joins a cannot-linked pair and `on_conflict` is ``"raise"``.
    InvalidInputError
        The closure must be written out and exceeds `pair_budget`.

    Examples
    --------
    >>> must, cannot = np.array([[0, 1], [1, 2]]), np.array([[2, 3]])
    >>> graph = build_graph(4, CostedPairs(must), CostedPairs(cannot), ClosureRules())
    >>> graph.groups.tolist(), graph.must_pairs.tolist()
    ([0, 0, 0, 1], [[0, 1], [0, 2], [1, 2]])
    >>> graph.cannot_pairs.tolist()
    [[0, 3], [1, 3], [2, 3]]
    """
    musts = _ordered(must, n_nodes, "must_link", names)
    cannots = _ordered(cannot, n_nodes, "cannot_link", names)
    reached = connected_numbers(n_nodes, musts.pairs)
    inside = reached[cannots.pairs[:, 0]] == reached[cannots.pairs[:, 1]]
    contradictions = cannots.pairs[inside]
    conflicts = witnesses(n_nodes, musts.pairs, contradictions, names, rules.on_conflict)
    dropped = contradictions[:0]
    if rules.on_conflict == "drop":
        dropped, cannots = contradictions, cannots.chosen(~inside)
    closed = reached
    if not musts.certain.all():
        closed = connected_numbers(n_nodes, musts.pairs[musts.certain])
    components = connected_numbers(n_nodes, np.concatenate([musts.pairs, cannots.pairs]))
    forms = _forms(closed, components, cannots.pairs[cannots.certain], rules.closure)
    n_pairs = _pairs_per_component(components, musts.pairs, cannots.pairs)
    tables = _table_components(_closure_sizes(forms), n_pairs, rules)
    in_table = tables[forms.components]
    must_keys, cannot_keys = _written_keys(forms, in_table, n_nodes)
    explicit_must = _explicit(musts, closed, forms, in_table, must_keys)
    explicit_cannot = _explicit(cannots, closed, forms, in_table, cannot_keys)
    groups, number = _groups(closed, joined, tables[components], forms)
    group_components = np.zeros(int(groups.max(initial=-1)) + 1, np.int32)
    group_components[groups] = components
    table_groups = np.zeros(len(group_components), np.bool_)
    table_groups[number[forms.closed & in_table]] = True
    rivals = np.sort(number[forms.rivals[in_table[forms.rivals[:, 0]]]], axis=1)
    return ConstraintGraph(
        groups=groups,
        components=components,
        group_components=group_components,
        must_pairs=explicit_must[0],
        must_pair_costs=explicit_must[1],
        cannot_pairs=explicit_cannot[0],
        cannot_pair_costs=explicit_cannot[1],
        table_components=tables,
        table_groups=table_groups,
        rivals=rivals[np.lexsort((rivals[:, 1], rivals[:, 0]))],
        must_link_cost=musts.closure_cost,
        cannot_link_cost=cannots.closure_cost,
        contradictory_groups=np.unique(number[forms.contradictory]),
        dropped_pairs=dropped,
        conflicts=conflicts,
        n_conflicts=len(contradictions),
    )


def _groups(
    closed: LabelArray, joined: LabelArray | None, in_table: BoolArray, forms: _Forms
) -> tuple[LabelArray, LabelArray]:
    """Return the group of every node, and of every group with a closure the number it has there.

    In table form groups are those with a closure, else those that all pairs join.
    """
    if joined is None:
        return closed, np.arange(len(forms.closed), dtype=np.int32)
    lowest = forms.members[forms.starts[:-1]]  # of every group with a closure
    _, first = np.unique(joined, return_index=True)
    owner = np.where(in_table, lowest[closed], first[joined])
    own = np.stack([np.arange(len(owner)), owner], axis=1).astype(np.int32)
    groups = connected_numbers(len(owner), own)
    return groups, groups[lowest]


def _ordered(costed: CostedPairs, n_nodes: int, kind: str, names: Names) -> _Ordered:
    nodes = np.asarray(costed.pairs, np.int64).reshape(-1, 2)
    costs = np.full(len(nodes), np.nan) if costed.costs is None else costed.costs
    certain = np.ones(len(nodes)) if costed.certain is None else costed.certain.astype(np.float64)
    values = PairValues(np.asarray(costs, np.float64), certain)
    pairs, (costs, certain) = canonical_pairs(nodes, values, n_nodes, kind, names)
    default = float(costed.closure_cost)
    return _Ordered(pairs, np.where(np.isnan(costs), default, costs), default, certain > 0)


def _forms(groups: LabelArray, components: LabelArray, cannot: LabelArray, closure: bool) -> _Forms:
    group_components = np.zeros(int(groups.max(initial=-1)) + 1, np.int32)
    group_components[groups] = components
    sides = groups[cannot]
    contradictory = np.unique(sides[sides[:, 0] == sides[:, 1], 0])
    closed = np.full(len(group_components), closure)
    closed[contradictory] = False
    starts, members = members_by_number(groups, len(group_components))
    rivals = _rival_groups(groups, cannot, closed)
    return _Forms(group_components, starts, members, closed, rivals, contradictory)


def _rival_groups(groups: LabelArray, cannot: LabelArray, closed: BoolArray) -> LabelArray:
    """Return the cannot-linked pairs of groups that both have a closure, lower first, sorted."""
    sides = np.sort(groups[cannot].astype(np.int64), axis=1)
    sides = sides[closed[sides].all(axis=1)]
    keys = np.unique(sides[:, 0] * len(closed) + sides[:, 1])
    return np.stack(np.divmod(keys, max(len(closed), 1)), axis=1).astype(np.int32)


def _closure_sizes(forms: _Forms) -> IntArray:
    """Return the closure pairs of every component, must and cannot together."""
    sizes = np.diff(forms.starts)
    total = np.zeros(int(forms.components.max(initial=-1)) + 1, np.int64)
    np.add.at(total, forms.components, np.where(forms.closed, sizes * (sizes - 1) // 2, 0))
    across = sizes[forms.rivals[:, 0]] * sizes[forms.rivals[:, 1]]
    np.add.at(total, forms.components[forms.rivals[:, 0]], across)
    return total


def _pairs_per_component(components: LabelArray, must: LabelArray, cannot: LabelArray) -> IntArray:
    ends = components[np.concatenate([must[:, 0], cannot[:, 0]])]
    return np.bincount(ends, minlength=int(components.max(initial=-1)) + 1)


def _table_components(n_closure: IntArray, n_pairs: IntArray, rules: ClosureRules) -> BoolArray:
    """Return which components are in table form; refuse a closure too large to write out."""
    if rules.closure_form:
        return n_closure > np.maximum(EXPLICIT_PAIRS, EXPLICIT_RATIO * n_pairs)
    total = sum(n_closure.tolist())  # as Python integers: no overflow
    if total > rules.pair_budget:
        raise InvalidInputError(
            f"the closure must have at most {rules.pair_budget:,} pairs for a distortion without a "
            f"table form, got {total:,} from {int(n_pairs.sum()):,} given pairs "
            f"(the largest component alone: {int(n_closure.max()):,} from "
            f"{int(n_pairs[n_closure.argmax()]):,}): set closure to false, or give fewer pairs"
        )
    return np.zeros(len(n_closure), np.bool_)


def _written_keys(forms: _Forms, in_table: BoolArray, n_nodes: int) -> tuple[IntArray, IntArray]:
    """Return the closure pairs to write out, must and cannot, as lower × n_nodes + higher."""
    groups = np.flatnonzero(forms.closed & ~in_table).astype(np.int32)
    rivals = forms.rivals[~in_table[forms.rivals[:, 0]]]
    sizes = np.diff(forms.starts)
    within = np.empty((sizes[groups] * (sizes[groups] - 1) // 2).sum(), np.int64)
    across = np.empty(sizes[rivals].prod(axis=1).sum(), np.int64)
    _write_within(forms.starts, forms.members, groups, n_nodes, within)
    _write_across(forms.starts, forms.members, rivals, n_nodes, across)
    return within, across


def _explicit(
    costed: _Ordered,
    groups: LabelArray,
    forms: _Forms,
    in_table: BoolArray,
    closure_keys: IntArray,
) -> tuple[LabelArray, FloatArray]:
    """Return the explicit pairs of one kind: closure, costs of their own, differences.

    What is not certain is left out where the closure says what is.
    """
    n_nodes = len(groups)
    if not costed.certain.all():
        costed = costed.chosen(costed.certain | ~_decided(groups[costed.pairs], forms))
    ends = groups[costed.pairs]
    closed = forms.closed[ends].all(axis=1) & costed.certain
    tabled = closed & in_table[ends[:, 0]]
    costs = np.where(tabled, costed.costs - costed.closure_cost, costed.costs)
    keys = costed.pairs[:, 0].astype(np.int64) * n_nodes + costed.pairs[:, 1]
    keep = ~tabled | (costs != 0)
    written = closed & ~tabled  # these stand among the closure's keys already
    every = np.concatenate([closure_keys, keys[keep & ~written]])
    every.sort()
    every_cost = np.full(len(every), costed.closure_cost)
    every_cost[np.searchsorted(every, keys[keep])] = costs[keep]
    pairs = np.empty((len(every), 2), np.int32)
    np.floor_divide(every, max(n_nodes, 1), out=pairs[:, 0], casting="unsafe")
    np.remainder(every, max(n_nodes, 1), out=pairs[:, 1], casting="unsafe")
    return pairs, every_cost


def _decided(ends: LabelArray, forms: _Forms) -> BoolArray:
    """Return between which groups a closure says whether they are one."""
    n_groups, sides = len(forms.closed), np.sort(ends.astype(np.int64), axis=1)
    rivals = forms.rivals[:, 0].astype(np.int64) * n_groups + forms.rivals[:, 1]
    are_rivals = np.isin(sides[:, 0] * n_groups + sides[:, 1], rivals)
    one = (sides[:, 0] == sides[:, 1]) & forms.closed[sides[:, 0]]
    return np.asarray(one | are_rivals)
