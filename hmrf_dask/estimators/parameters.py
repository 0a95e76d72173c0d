"""Parameters of estimators, checked before any work and turned into the settings of a fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from hmrf_dask.constraints.pairs import Constraints
from hmrf_dask.distortions import Distortion
from hmrf_dask.distortions.idivergence import KullbackLeibler
from hmrf_dask.errors import ConfigurationError, InvalidInputError
from hmrf_dask.flow.dataflow import task_memory
from hmrf_dask.limits import COST_MUST_BE, RANGES, check_count, problem_of_cost
from hmrf_dask.redaction import shortened
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.rows.canonical import sound_csr
from hmrf_dask.tasks.model import Settings
from hmrf_dask.types import FloatArray

INITS = ("auto", "neighborhoods", "k-means++", "random")
CHOICES: dict[str, tuple[Any, ...]] = {
    "penalty": ("distance", "potts"),
    "fill": ("k-means++", "perturb", "random"),
    "inference": ("icm", "belief-propagation"),
    "refine": ("auto", True, False),
    "learn_weights": ("auto", True, False),
    "weight_update": ("normalized", "paper"),
    "on_conflict": ("raise", "keep", "drop"),
    "closure": (True, False),
}
COSTS = ("must_link_cost", "cannot_link_cost")
COUNTS = ("n_clusters", "n_init", "max_iter", "retries")
CHECKED = 16  # given centroids at a time: they are copied to be looked at
PARAMETERS = frozenset((*CHOICES, *COSTS, *COUNTS, "init", "random_state"))


def make_settings(
    parameters: Mapping[str, Any], distortion: Distortion, inits: tuple[str, ...] = INITS
) -> Settings:
    """Return the settings that an estimator's parameters mean; `random_state` is a seed by now.

    Raises
    ------
    ConfigurationError
        A parameter has a value that cannot be used, or that does not go with the distortion.
    """
    values = {name: _plain(value) for name, value in parameters.items()}
    for name, value in values.items():
        if name in CHOICES:
            check_choice(name, value, CHOICES[name])
        elif name in COSTS:
            _check_cost(name, value)
        elif name in COUNTS:
            check_count(name, value)
    init = values.pop("init")
    if isinstance(init, str) and init not in inits:
        raise ConfigurationError(
            f"init must be one of {_listed(inits)} or an array of shape (n_clusters, n_features), "
            f"got {shortened(init)}"
        )
    values["learn_weights"] = _learning(values["learn_weights"], distortion)
    _check_refinement(values["refine"], distortion)
    values["seed"] = values.pop("random_state")
    values["init"] = init if isinstance(init, str) else "given"
    return Settings(**values, task_memory=task_memory())


def draw_seed(random_state: Any) -> int:
    """Return the seed a `random_state` means: an integer as it is, else one draw of it."""
    state = _plain(random_state)
    if state is None or state is np.random or isinstance(state, np.random.RandomState):
        return int(check_random_state(state).randint(2**31))
    if not _is_integer(state) or not 0 <= state <= RANGES["random_state"].most:
        raise ConfigurationError(
            "random_state must be an integer from 0 to 2**64 - 1, a RandomState or None, got "
            f"{shortened(state)}"
        )
    return int(state)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def given_centroids(
    init: Any, distortion: Distortion, n_clusters: int, n_features: int
) -> FloatArray | None:
    """Return the centroids given as `init`, None for a named one; refuse another shape or domain.

    For kl they are scaled to sum 1, as its rows are. An array of float64 is used as it is.
    """
    if isinstance(init, str):
        return None
    told = getattr(init, "shape", None)
    if isinstance(told, tuple) and told != (n_clusters, n_features):  # before it is copied
        raise _other_shape(told, n_clusters, n_features)
    try:
        if isinstance(init, np.ma.MaskedArray):
            raise TypeError("a mask would be lost")
        dense: Any = sound_csr(init).toarray() if hasattr(init, "toarray") else init
        given = np.ascontiguousarray(dense, np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigurationError(
            f"init must be one of {_listed(INITS)} or an array of numbers, got {shortened(init)}"
        ) from error
    if given.shape != (n_clusters, n_features):
        raise _other_shape(given.shape, n_clusters, n_features)
    if not np.isfinite(given).all():
        raise _other_shape(given.shape, n_clusters, n_features, " with NaN or infinity")
    try:
        for first in range(0, n_clusters, CHECKED):
            rows = given[first : first + CHECKED]
            distortion.check(RowBlock.from_array(rows, first_row=first))
    except InvalidInputError as error:
        raise ConfigurationError(f"init: {error}") from error
    if isinstance(distortion, KullbackLeibler):
        given = given / given.sum(axis=1, keepdims=True)
    return given


def _other_shape(
    shape: tuple[int, ...], n_clusters: int, n_features: int, more: str = ""
) -> ConfigurationError:
    return ConfigurationError(
        f"init must be a finite array of shape ({n_clusters}, {n_features}), one row for each "
        f"cluster and one column for each feature, got shape {shape}{more}"
    )


def as_constraints(must_link: Any, cannot_link: Any) -> Constraints | None:
    """Return the constraints `fit` was given, None where there are none."""
    if isinstance(must_link, Constraints) and cannot_link is None:
        return must_link
    if isinstance(must_link, Constraints) or isinstance(cannot_link, Constraints):
        raise InvalidInputError(
            "a Constraints holds must-links and cannot-links: pass it alone, as must_link"
        )
    if must_link is None and cannot_link is None:
        return None
    return Constraints(must_link, cannot_link)


def without_costs(constraints: Constraints | None) -> Constraints | None:
    """Return the same pairs without costs of their own, for estimators whose pairs have none."""
    if constraints is None:
        return None
    return Constraints(constraints.must_link, constraints.cannot_link, ids=constraints.by_id)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _listed(values: tuple[Any, ...]) -> str:
    return ", ".join(repr(value) for value in values)


def check_choice(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    """Raise ConfigurationError unless a parameter is one of the values it may have."""
    if not any(type(value) is type(one) and value == one for one in allowed):
        raise ConfigurationError(
            f"{name} must be one of {_listed(allowed)}, got {shortened(value)}"
        )


def _check_cost(name: str, value: Any) -> None:
    is_number = _is_integer(value) or isinstance(value, float)
    problem = problem_of_cost(value) if is_number else COST_MUST_BE
    if problem:
        raise ConfigurationError(f"{name} {problem}, got {shortened(value)}")


def _learning(asked: str | bool, distortion: Distortion) -> bool:
    if asked == "auto":
        return distortion.default_learning
    if asked and distortion.learning is None:
        raise ConfigurationError(
            f"learn_weights must be 'auto' or False for the distortion {distortion.name!r}, which "
            "has no rule for feature weights, got True"
        )
    return bool(asked)


def _check_refinement(asked: str | bool, distortion: Distortion) -> None:
    if asked is True and distortion.refinement is None:
        raise ConfigurationError(
            f"refine must be 'auto' or False for the distortion {distortion.name!r}, which has no "
            "closed form of first variation, got True"
        )
