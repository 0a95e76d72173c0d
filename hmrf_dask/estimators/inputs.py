"""Parameters, rows, labels and pairs of an estimator, checked and in the form that a fit takes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data

from hmrf_dask.constraints.pairs import Constraints
from hmrf_dask.corpus.partitioned import Corpus, as_corpus, delayed_chunks, is_dask_array
from hmrf_dask.distortions import Distortion
from hmrf_dask.distortions.idivergence import KullbackLeibler
from hmrf_dask.distortions.own import OwnDistortion
from hmrf_dask.errors import ConfigurationError, InvalidInputError, InvalidTypeError
from hmrf_dask.fit.seeds import CERTAIN, Seeds
from hmrf_dask.flow.dataflow import DaskFlow, task_memory
from hmrf_dask.parameters import NOTHING_TO_TRIM, PARAMETERS, check_parameter
from hmrf_dask.redaction import shortened
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.rows.blocks import Blocks, refuse_distortion
from hmrf_dask.rows.canonical import require_matrix, require_numbers, sound_csr
from hmrf_dask.tasks.model import Settings
from hmrf_dask.types import AnyArray, FloatArray, IntArray

CHECKED = 16  # given centroids at a time: they are copied to be checked
CHECKED_ELSEWHERE = ("distortion", "random_state")  # where an object is made of them
UNLABELLED = -1
ROUNDING = 1e-6  # by how much probabilities of a row may miss the sum of 1


class Labelled(NamedTuple):
    """The labels in `y`: how many rows it has; row, class and probability of each label."""

    n_rows: int
    rows: IntArray
    classes: AnyArray
    shares: AnyArray


def make_settings(
    parameters: Mapping[str, Any],
    fixed: Mapping[str, Any],
    distortion: Distortion,
    method: str,
    *,
    trusting: bool = False,
) -> Settings:
    """Return the settings that an estimator's parameters mean; `random_state` is a seed by now.

    The `method` is the estimator's name in the table of parameters, `fixed` what makes it this one;
    `trusting` says whether pairs have trust of their own. Where K is to be chosen, the
    settings have 0 clusters.
    """
    values = {name: _plain(value) for name, value in parameters.items()}
    trusted = values.get("trust") is not None
    if is_by_pair(values.get("trust")):
        values["trust"] = None  # it is with the pairs
    for name, value in values.items():
        if name not in CHECKED_ELSEWHERE and (name != "init" or isinstance(value, str)):
            check_parameter(name, value, method)
    if not isinstance(values.get("init", ""), str):
        values["init"] = "given"
    if isinstance(values["n_clusters"], str):
        if values.get("init") == "given":
            raise ConfigurationError(
                "n_clusters must be a number where init is an array, got 'auto'; give the number "
                "of its rows"
            )
        values["n_clusters"] = 0
    if values["trim_outliers"] and values["outliers"] is None:
        raise ConfigurationError(NOTHING_TO_TRIM)
    learning = values.get("learn_weights", False)
    values["metric"] = _metric(learning, distortion)
    values["learn_weights"] = _learning(learning, distortion)
    _check_refinement(values["refine"], distortion)
    if "penalty" in values:
        if trusted or (trusting and values["penalty"] == "auto"):
            values["penalty"] = _of_trust(values["penalty"])
        elif values["penalty"] == "auto":
            values["penalty"] = "trust" if distortion.name == "cosine" else "distance"
    values["seed"] = values.pop("random_state")
    values.pop("verbose", None)
    values.pop("distortion", None)
    return Settings(**{**values, **fixed}, task_memory=task_memory())


def draw_seed(random_state: Any) -> int:
    """Return the seed a `random_state` means: an integer as it is, else one draw of it.

    Examples
    --------
    >>> draw_seed(3), draw_seed(np.random.RandomState(0))
    (3, 209652396)
    """
    state = _plain(random_state)
    if state is None or state is np.random or isinstance(state, np.random.RandomState):
        return int(check_random_state(state).randint(2**31))
    check_parameter("random_state", state)
    return int(state)


def given_centroids(
    init: Any, distortion: Distortion, n_clusters: int, n_features: int
) -> FloatArray | None:
    """Return the centroids given as `init`, None for a named one; refuse another shape or domain.

    For kl they are scaled to sum 1, as its rows are. An array of float64 is used as it is.

    Examples
    --------
    >>> from hmrf_dask.distortions import make_distortion
    >>> given_centroids([[1, 3]], make_distortion("kl"), 1, 2).tolist()
    [[0.25, 0.75]]
    >>> given_centroids("random", make_distortion("kl"), 1, 2) is None
    True
    """
    if isinstance(init, str):
        return None
    expected = (n_clusters, n_features)
    shape = getattr(init, "shape", None)
    if isinstance(shape, tuple) and shape != expected:  # before it is copied
        raise _other_shape(shape, expected)
    try:
        if isinstance(init, np.ma.MaskedArray):
            raise TypeError("a mask would be lost")
        dense: Any = sound_csr(init).toarray() if hasattr(init, "toarray") else init
        centroids = np.ascontiguousarray(dense, np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        problem = PARAMETERS["init"].problem(None)
        raise ConfigurationError(f"init {problem} of numbers, got {shortened(init)}") from error
    finite = bool(np.isfinite(centroids).all())
    if centroids.shape != expected or not finite:
        raise _other_shape(centroids.shape, expected, "" if finite else " with NaN or infinity")
    try:
        for first in range(0, n_clusters, CHECKED):
            rows = centroids[first : first + CHECKED]
            distortion.check(RowBlock.from_array(rows, first_row=first))
    except InvalidInputError as error:
        raise ConfigurationError(f"init: {error}") from error
    if isinstance(distortion, KullbackLeibler):
        centroids = centroids / centroids.sum(axis=1, keepdims=True)
    return centroids


def _other_shape(
    shape: tuple[int, ...], expected: tuple[int, int], more: str = ""
) -> ConfigurationError:
    return ConfigurationError(
        f"init must be a finite array of shape {expected}, one row for each cluster and one column "
        f"for each feature, got shape {shape}{more}"
    )


def as_constraints(must_link: Any, cannot_link: Any, trust: Any = None) -> Constraints | None:
    """Return the pairs that `fit` got as constraints, None where there are none.

    `trust` is a probability for each of them, must-links first, if it is an array.

    Examples
    --------
    >>> len(as_constraints([(0, 1)], [(1, 2)])), as_constraints(None, None)
    (2, None)
    >>> as_constraints([(0, 1)], [(1, 2)], [0.9, 0.8]).cannot_link_trust.tolist()
    [0.8]
    """
    if is_by_pair(trust):
        return _trusted(must_link, cannot_link, trust)
    if isinstance(must_link, Constraints) and cannot_link is None:
        return must_link
    if isinstance(must_link, Constraints) or isinstance(cannot_link, Constraints):
        raise InvalidInputError(
            "a Constraints holds must-links and cannot-links: pass it alone, as must_link"
        )
    if must_link is None and cannot_link is None:
        return None
    return Constraints(must_link, cannot_link)


def is_by_pair(trust: Any) -> bool:
    """Return whether trust is given for each pair, not one for all.

    Examples
    --------
    >>> is_by_pair([0.9]), is_by_pair(0.9), is_by_pair(None)
    (True, False, False)
    """
    return _shape_of(trust) != ()


def _shape_of(trust: Any) -> tuple[int, ...] | str:
    """Return the shape of what is a number, a name or an array, or why there is none."""
    try:
        return tuple(np.shape(trust))
    except ValueError:
        return "of rows of different lengths"


def _trusted(must_link: Any, cannot_link: Any, trust: Any) -> Constraints | None:
    """Return pairs with the trust that an array gives each of them."""
    if isinstance(must_link, Constraints) or isinstance(cannot_link, Constraints):
        raise InvalidInputError(
            "trust must be one number, or None, where pairs are a Constraints, got an array: give "
            "it must_link_trust and cannot_link_trust"
        )
    Constraints(must_link, cannot_link)  # before they are counted: they may be no pairs
    n_must, n_cannot = (0 if pairs is None else len(pairs) for pairs in (must_link, cannot_link))
    if (shape := _shape_of(trust)) != (n_must + n_cannot,):
        raise ConfigurationError(
            f"trust must be one number, None, or an array of shape ({n_must + n_cannot},), a "
            f"probability for each pair, must-links first, got shape {shape}"
        )
    if not n_must + n_cannot:
        return None
    return Constraints(
        must_link,
        cannot_link,
        must_link_trust=trust[:n_must],
        cannot_link_trust=trust[n_must:],
    )


def without_costs(constraints: Constraints | None) -> Constraints | None:
    """Return the same pairs without costs or trust, for estimators whose pairs have none."""
    if constraints is None:
        return None
    return Constraints(constraints.must_link, constraints.cannot_link, ids=constraints.by_id)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _metric(asked: str | bool, distortion: Distortion) -> str:
    """Return whether a full metric is asked for, "" where there can be none."""
    if distortion.learning == "variance":
        return asked if isinstance(asked, str) else ""
    if asked == "full":
        raise ConfigurationError(
            f"learn_weights 'full' must go with the distortion 'euclidean', got "
            f"{distortion.name!r}; use learn_weights True, or distortion 'euclidean'"
        )
    return ""


def _learning(asked: str | bool, distortion: Distortion) -> bool:
    if asked in ("auto", "full"):
        return distortion.default_learning and asked == "auto"
    if asked and distortion.learning is None:
        raise ConfigurationError(
            f"learn_weights must be 'auto' or False for the distortion {distortion.name!r}, which "
            "has no rule for feature weights, got True"
        )
    return bool(asked)


def _of_trust(penalty: str) -> str:
    """Return the penalty where trust is given, the only one that it goes with."""
    if penalty not in ("auto", "trust"):
        raise ConfigurationError(
            f"trust must go with penalty 'auto' or 'trust', got penalty {penalty!r}, which costs "
            "the same however likely a pair is right; leave one of them out"
        )
    return "trust"


def _check_refinement(asked: str | bool, distortion: Distortion) -> None:
    if asked is True and distortion.refinement is None:
        raise ConfigurationError(
            f"refine must be 'auto' or False for the distortion {distortion.name!r}, which has no "
            "closed form of first variation, got True"
        )


def is_lazy(X: Any) -> bool:
    """Return whether rows come partition by partition, so that results do too.

    Examples
    --------
    >>> is_lazy("corpus"), is_lazy([[1.0, 2.0]])
    (True, False)
    """
    return isinstance(X, Corpus | str | os.PathLike) or hasattr(X, "dask")


class GivenRows:
    """What estimators share: parameters as given, X as a corpus, the number of its features."""

    n_features_in_: int

    def _keep(self, arguments: dict[str, Any]) -> None:
        """Set the parameters: all that a constructor got, each under its name, as it is."""
        for name, value in arguments.items():
            if name != "self":
                setattr(self, name, value)

    def _corpus(self, X: Any, *, fitting: bool) -> Corpus:
        """Return X as a corpus; matrices go through scikit-learn's own validation first.

        All but the check for NaN and infinity, which is ours: it names the rows.
        """
        if isinstance(X, Blocks):
            refuse_distortion(getattr(self, "distortion", "cosine"))
        _refuse_texts(X)
        if is_lazy(X) or isinstance(X, Blocks):
            corpus = as_corpus(X)
            self._check_width(corpus.n_features, fitting=fitting)
            return corpus
        if isinstance(X, np.ma.MaskedArray):
            raise InvalidInputError("rows must not be masked, got a masked array; fill it")
        if isinstance(X, np.ndarray) and X.dtype.kind != "O":
            require_numbers(X.dtype)
        if scipy.sparse.issparse(X):
            require_matrix(X)
            X = sound_csr(X)
        try:
            checked = validate_data(
                self, X, reset=fitting, accept_sparse="csr", dtype=[np.float64, np.float32],
                accept_large_sparse=True, ensure_all_finite=False,
            )  # fmt: skip
        except TypeError as error:  # scikit-learn's own checks ask for this class
            raise InvalidTypeError(str(error)) from error
        except (ValueError, OverflowError) as error:
            raise InvalidInputError(str(error)) from error
        return as_corpus(checked)

    def _check_width(self, n_features: int, *, fitting: bool) -> None:
        """Do what scikit-learn's validation does to other input: columns must be those of fit."""
        if fitting:
            self.n_features_in_ = n_features
            self.__dict__.pop("feature_names_in_", None)  # of an earlier fit
        elif n_features != self.n_features_in_:
            raise InvalidInputError(
                f"X has {n_features} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input"
            )


def given_seeds(
    y: Any, n_rows: int, n_clusters: int, distortion: Distortion, *, fixed: bool
) -> Seeds:
    """Return the seeds that `y` means, see `HMRFKMeans.fit`; refuse what is none, naming rows.

    Examples
    --------
    >>> from hmrf_dask.distortions import make_distortion
    >>> seeds = given_seeds([1, -1, 0], 3, 2, make_distortion("cosine"), fixed=False)
    >>> seeds.rows.tolist(), seeds.labels.tolist()
    ([0, 2], [1, 0])
    """
    if y is None:
        nothing = np.zeros(0, np.int64)
        return Seeds(nothing, nothing.astype(np.int32), nothing, fixed)
    n_labels, rows, labels, shares = _all_labelled(y, n_clusters)
    if n_labels != n_rows:
        raise InvalidInputError(
            f"y must have one entry for each of the {n_rows} rows of X, got {n_labels}; use -1 for "
            "rows without a label"
        )
    _check_labels(rows, labels, n_clusters)
    units = _units(rows, shares)
    positive = units > 0
    seeds = Seeds(rows[positive], labels[positive].astype(np.int32), units[positive], fixed)
    if seeds.soft and fixed:
        raise InvalidInputError(
            "seeds that keep their labels must be certain, got probabilities between 0 and 1; use "
            "SeededKMeans, or give one class for each seed"
        )
    if seeds.soft and isinstance(distortion, OwnDistortion):
        raise ConfigurationError(
            f"soft seeds must go with a built-in distortion, got {distortion.name!r}, whose rows "
            "cannot be weighed; give one class for each seed"
        )
    return seeds


def _all_labelled(y: Any, n_clusters: int) -> Labelled:
    """Return the labelled rows of all of `y`; of a dask array they alone reach this process."""
    if not is_dask_array(y):
        return labelled_rows(y, n_clusters)
    if y.ndim > 1:
        if y.ndim > 2 or y.shape[1] != n_clusters:
            raise _not_labels(y.shape, y.dtype, n_clusters)
        y = y.rechunk({1: -1})
    chunks = [chunk[0] if isinstance(chunk, list) else chunk for chunk in delayed_chunks(y)]
    flow = DaskFlow()
    parts: list[Labelled] = flow.compute(
        [flow.lazy(labelled_rows, chunk, n_clusters) for chunk in chunks]
    )
    offsets = np.cumsum([0, *(part.n_rows for part in parts)])
    return Labelled(
        int(offsets[-1]),
        np.concatenate([part.rows + offset for part, offset in zip(parts, offsets, strict=False)]),
        np.concatenate([part.classes for part in parts]),
        np.concatenate([part.shares for part in parts]),
    )


def labelled_rows(y: Any, n_clusters: int) -> Labelled:
    """Return what is labelled in a `y` that is here, ordered by row.

    Examples
    --------
    >>> labelled_rows([[0.5, 0.5], [0, 0]], 2).classes.tolist()
    [0, 1]
    """
    if isinstance(y, np.ma.MaskedArray):
        raise InvalidInputError("y must not be masked, got a masked array; use -1 for no label")
    sparse = hasattr(y, "tocsr")
    if isinstance(y, list | tuple) and any(isinstance(label, bool | np.bool_) for label in y):
        raise InvalidInputError("y must hold numbers of classes, got true or false among them")
    try:
        array = sound_csr(y) if sparse else np.asarray(y)
    except InvalidInputError:
        raise
    except ValueError as error:
        raise InvalidInputError(f"y must be a table of numbers, got {shortened(y)}") from error
    if array.ndim == 2 and array.shape[1] == n_clusters and array.dtype.kind in "biuf":
        rows, classes = array.nonzero()
        order = np.lexsort((classes, rows))
        rows, classes = rows[order].astype(np.int64), classes[order].astype(np.int64)
        shares = np.asarray(array[rows, classes], np.float64).ravel()
        return Labelled(array.shape[0], rows, classes, shares)
    whole = array.dtype.kind == "f" and not sparse and _is_whole(array)
    if array.ndim != 1 or not (array.dtype.kind in "iu" or whole):
        raise _not_labels(array.shape, array.dtype, n_clusters)
    rows = np.flatnonzero(array != UNLABELLED)
    return Labelled(len(array), rows, array[rows].astype(np.int64), np.ones(len(rows)))


def _is_whole(array: AnyArray) -> bool:
    return bool((np.isfinite(array) & (array == np.floor(array))).all())


def _refuse_texts(X: Any) -> None:
    """Refuse texts where their rows belong, and say what takes texts."""
    is_column = isinstance(X, list | tuple) or getattr(X, "ndim", 0) == 1
    if is_column and isinstance(next(iter(X), None), str):
        raise InvalidInputError(
            "X must be rows of numbers, got texts; give these to hmrf_dask.group(texts), or make "
            "rows of them, for example with sklearn's TfidfVectorizer().fit_transform(texts)"
        )
    if isinstance(X, str | os.PathLike) and os.path.isfile(X):
        raise InvalidInputError(
            f"X must be rows of numbers, or a folder that Corpus.to_parquet wrote, got the file "
            f"{os.fspath(X)!r}; read its texts and give them to hmrf_dask.group(texts), or make a "
            "job of it with `hmrf-dask init`"
        )


def _not_labels(shape: tuple[float, ...], dtype: Any, n_clusters: int) -> InvalidInputError:
    unknown = "" if np.dtype(dtype).kind in "biuf" else "Unknown label type: "
    return InvalidInputError(  # what scikit-learn says of labels that are no numbers comes first
        f"{unknown}y must hold a class from 0 to {n_clusters - 1} or -1 for each row, or a "
        f"probability for each row and class, shape (n_samples, {n_clusters}), got an array of "
        f"shape {shape} and type {dtype}"
        + ("; number them, for example with sklearn's LabelEncoder" if unknown else "")
    )


def _check_labels(rows: IntArray, labels: AnyArray, n_clusters: int) -> None:
    wrong = np.flatnonzero((labels < 0) | (labels >= n_clusters))
    if len(wrong):
        first = ", ".join(f"{labels[place]} (row {rows[place]})" for place in wrong[:5])
        raise InvalidInputError(
            f"y must hold classes from 0 to {n_clusters - 1} for n_clusters={n_clusters}, or -1 "
            f"where unlabelled, got {first}{' and more' if len(wrong) > 5 else ''}; number the "
            "classes from 0, or ask for more clusters"
        )


def _units(rows: IntArray, shares: AnyArray) -> IntArray:
    """Return probabilities in units of a share; refuse rows where they are none."""
    known, starts = np.unique(rows, return_index=True)
    sums = np.add.reduceat(shares, starts) if len(rows) else np.zeros(0)
    lowest = np.minimum.reduceat(shares, starts) if len(rows) else np.zeros(0)
    good = (np.abs(sums - 1.0) <= ROUNDING) & (lowest >= 0)
    wrong = np.flatnonzero(~good)  # NaN is not good either
    if len(wrong):
        raise InvalidInputError(
            f"probabilities of a row must be 0 or more and sum to 1, or all be 0 where it is "
            f"unlabelled, got the sum {sums[wrong[0]]:.9g} and the lowest {lowest[wrong[0]]:g} in "
            f"row {known[wrong[0]]} ({len(wrong)} such rows)"
        )
    return np.asarray(np.rint(shares * CERTAIN), np.int64)
