"""What a fitted estimator shows of itself: a report, plots, and a table in notebooks."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from html import escape
from importlib.metadata import version
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hmrf_dask.constraints.answer_files import encode_pairs
from hmrf_dask.constraints.pairs import Constraints
from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.errors import (
    ConfigurationError,
    HmrfError,
    HmrfWarning,
    InvalidInputError,
    in_words,
)
from hmrf_dask.estimators.comparison import labels_by_partition, survey_rows
from hmrf_dask.estimators.displays import ConvergenceDisplay, centroids_of, placed
from hmrf_dask.estimators.inputs import as_constraints
from hmrf_dask.estimators.prediction import OUTLIER
from hmrf_dask.flow.dataflow import DaskFlow, share_array, tree
from hmrf_dask.kernels.compiled import kernel_path
from hmrf_dask.measures.contingency import Contingency, merge, tabulate
from hmrf_dask.redaction import shortened
from hmrf_dask.report.agreement import compared
from hmrf_dask.report.alerts import Facts, alerts_of
from hmrf_dask.report.broken import broken_pairs, broken_shown, chains_in
from hmrf_dask.report.clusters import (
    Known,
    clusters_of,
    documents_of,
    sizes_of,
    with_documents,
)
from hmrf_dask.report.content import (
    HTML,
    LENGTH,
    AnswerPart,
    Doubtful,
    Fit,
    Report,
    Text,
    excerpt,
    step_of,
)
from hmrf_dask.report.words import Words
from hmrf_dask.rows.block import RowBlock
from hmrf_dask.storage.addresses import absolute_url
from hmrf_dask.storage.stores import open_storage
from hmrf_dask.types import AnyArray

if TYPE_CHECKING:
    from hmrf_dask.estimators.base import HMRFEstimator
    from hmrf_dask.progress import Tell

log = logging.getLogger("hmrf_dask")
Documents = list[list[Text]]  # sampled, typical, borderline, with broken answers
# Rows times clusters that a fit compares once more for a report that nobody asked for: 4 seconds.
MOST_COMPARED: Final = 50_000_000
_LIBRARIES: Final = ("numpy", "scipy", "numba", "llvmlite")
_SHOWN: Final = 12  # sizes of clusters in a notebook
_MOST_DOUBTFUL: Final = 50


class Reporting:
    """A mixin of estimators: report, plot and representation of what was fitted."""

    _reports: bool = True  # whether a fit with a run directory writes one

    def report(
        self,
        X: Any,
        *,
        path: str | os.PathLike[str] | None = None,
        texts: Any = None,
        words: Any = None,
        classes: Any = None,
        must_link: Any = None,
        cannot_link: Any = None,
    ) -> Report:
        """Return the report of the fit: alerts, map, words, documents, broken pairs, convergence.

        It reads the rows once, and compares each with all clusters. In a notebook it is shown as a
        page. A fit with a `run_dir` writes one there by itself, without texts and classes, where
        rows times clusters are at most 50,000,000.

        Parameters
        ----------
        X : as for `fit`
            The rows that were fitted.
        path : str or path, optional
            Where to write it: a file that ends in .html, with its data next to it as .json, or a
            folder for report.html and report.json; local or a URL.
        texts : sequence of str, or mapping of ids to str, optional
            What the rows are made of, in their order. Without them documents are shown by ids.
        words : vectoriser, or sequence of str, optional
            What columns are called: a fitted vectoriser, a pipeline of one that may end with
            `LSA` or `TruncatedSVD`, or the names themselves. Names of columns that X came with
            need not be given.
        classes : array-like, shape (n_samples,), optional
            Known classes, None or NaN where there is none: with them the report has the confusion
            table, NMI, pairwise F and the adjusted Rand index.
        must_link, cannot_link : as for `fit`, optional
            The pairs that the fit was given: with them it shows those that are broken.

        Returns
        -------
        Report
            Its fields are those of report.json; `to_html` gives the page.

        Examples
        --------
        >>> from hmrf_dask import KMeans
        >>> rows = [[1, 0.1], [1, 0.2], [0.1, 1], [0.2, 1]]
        >>> report = KMeans(2, random_state=0).fit(rows).report(rows, classes=["a", "a", "b", "b"])
        >>> report.agreement.scores["NMI"], [cluster.size for cluster in report.clusters]
        (1.0, [2, 2])
        """
        model = cast("HMRFEstimator", self)
        model.predictor()  # it is fitted
        trust = model.get_params(deep=False).get("trust")
        made = report_of(
            model,
            model._corpus(X, fitting=False),
            as_constraints(must_link, cannot_link, trust),
            texts=texts,
            words=model._words_of(words),
            classes=classes,
        )
        if path is not None:
            write_report(made, os.fspath(path))
        return made

    def plot_convergence(
        self, *, terms: Sequence[str] = ("J",), ax: Any = None
    ) -> ConvergenceDisplay:
        """Draw J over the iterations; it needs matplotlib.

        Parameters
        ----------
        terms : sequence of {"J", "distortion", "must_link", "cannot_link", "prior"}
            J, distances, what broken pairs cost, and what learned weights cost.
        ax : Axes, optional
            Of matplotlib; without it new ones.
        """
        return ConvergenceDisplay.from_estimator(cast("HMRFEstimator", self), terms=terms, ax=ax)

    def _report_into(
        self, run_dir: str, corpus: Corpus, constraints: Constraints | None, tell: Tell
    ) -> None:
        """Write the report of a fit into its run directory, unless it would take long.

        What goes wrong is a warning: the fit is done, whatever happens here.
        """
        model = cast("HMRFEstimator", self)
        if corpus.n_rows * model.n_clusters_ > MOST_COMPARED:
            log.info(
                "the fit wrote no report, which compares all %s rows with all %s clusters once "
                "more: report(X, path=%r) writes it",
                f"{corpus.n_rows:,}", f"{model.n_clusters_:,}", run_dir,
            )  # fmt: skip
            return
        tell({"step": "write the report page"})
        try:
            title = run_dir.rstrip("/").rpartition("/")[2]
            made = report_of(model, corpus, constraints, words=model._words_of(None), title=title)
            write_report(made, run_dir)
        except Exception as error:  # noqa: BLE001 - as above
            words = str(error) if isinstance(error, HmrfError) else in_words(error)
            warnings.warn(
                f"the report could not be written ({words}); the fit is whole, and "
                f"report(X, path={run_dir!r}) tries again",
                HmrfWarning,
                stacklevel=4,
            )
        else:
            tell({"report": f"{run_dir.rstrip('/')}/{HTML}"})

    def _words_of(self, words: Any) -> Words | None:
        """Return what columns are called, as `report` takes it; None where that is not known."""
        given = getattr(self, "feature_names_in_", None) if words is None else words
        if given is None:
            return None
        components = None
        if hasattr(given, "steps") and hasattr(given[-1], "components_"):
            components, given = np.asarray(given[-1].components_), given[:-1]
        names = given.get_feature_names_out() if hasattr(given, "get_feature_names_out") else given
        names = np.asarray(names, np.str_)  # of a dictionary or a text no list
        n_features = cast("HMRFEstimator", self).n_features_in_
        n_columns = len(np.atleast_1d(names) if components is None else components)
        if names.ndim != 1 or n_columns != n_features:
            raise ConfigurationError(
                f"words must be a vectoriser, or names, of the {n_features} columns of X, got "
                f"{n_columns if names.ndim == 1 else shortened(given)}"
            )
        return Words(lambda columns: names[columns].tolist(), n_features, components)

    # ---- in notebooks

    def _repr_html_inner(self) -> str:
        """Return scikit-learn's diagram, and what came of the fit."""
        shown: str = super()._repr_html_inner()  # type: ignore[misc]
        return shown + fit_table(cast("HMRFEstimator", self))

    def _repr_mimebundle_(self, **how: Any) -> dict[str, str]:
        """Return what Jupyter shows."""
        bundle: dict[str, str] = super()._repr_mimebundle_(**how)  # type: ignore[misc]
        if "text/html" in bundle:
            bundle["text/html"] += fit_table(cast("HMRFEstimator", self))
        return bundle


def fit_table(model: HMRFEstimator) -> str:
    """Return a small table of a fit as HTML; nothing before there is one."""
    if not hasattr(model, "cluster_centers_"):
        return ""
    broken = [f"{number} {kind.replace('_', '-')}s" for kind, number in model.violations_.items()]
    rows = {
        "clusters": f"{model.n_clusters_:,}",
        "J": f"{model.objective_:.6g}",
        "iterations": f"{model.n_iter_}: {model.stop_reason_}",
        "broken pairs": ", ".join(broken),
    }
    if (counts := getattr(model, "_sizes", None)) is not None:
        largest = sorted(counts, reverse=True)
        more = ", …" if len(largest) > _SHOWN else ""
        rows["documents"] = f"{sum(counts):,}, by cluster "
        rows["documents"] += ", ".join(f"{size:,}" for size in largest[:_SHOWN]) + more
    lines = "".join(
        f'<tr><th style="text-align: left">{escape(name)}</th>'
        f'<td style="text-align: left">{escape(value)}</td></tr>'
        for name, value in rows.items()
    )
    return f"<table><caption>What the fit came to</caption><tbody>{lines}</tbody></table>"


def report_of(
    model: HMRFEstimator,
    corpus: Corpus,
    constraints: Constraints | None,
    *,
    texts: Any = None,
    words: Words | None = None,
    classes: Any = None,
    title: str = "",
) -> Report:
    """Return the report of a fitted estimator about its rows; see `HMRFKMeans.report`."""
    whole, violations = survey_rows(model, corpus, constraints)
    centroids, limits = centroids_of(model), list[str]()
    known = {one: Known(size=0) for one in centroids.ids if one not in whole.clusters}
    drawn = placed(centroids, sizes_of(whole, known), words)
    tables = (whole.sampled, whole.typical, whole.borderline, whole.breaking)
    shown = [documents_of(table, drawn) for table in tables]
    if texts is not None:
        shown = _with_texts(shown, texts, corpus)
    known[OUTLIER] = Known(name="outliers")
    clusters = with_documents(clusters_of(whole, drawn, known), shown[1], shown[2])
    pairs = [] if constraints is None else broken_pairs(encode_pairs(constraints), whole)
    counts = _answer_counts(model, constraints, violations)
    n_outliers = int(whole.sizes[whole.clusters == OUTLIER].sum())
    documents = {"all": whole.n_documents} | ({"outliers": n_outliers} if n_outliers else {})
    fit = _fit_of(model, drawn.learned)
    if texts is None:
        limits.append("Texts: none were given, so documents are shown by their ids alone.")
    if words is None:
        limits.append("Words: what columns are called was not given, so clusters have none.")
    return Report(
        title=title or type(model).__name__,
        release={},
        documents=documents,
        vocabulary={},
        clusters_now={"number": len(centroids.ids)},
        alerts=alerts_of(Facts(fit.facts, documents, {}, counts), clusters),
        clusters=clusters,
        documents_shown=tuple(shown[0]),
        answers=AnswerPart(
            counts,
            broken_shown(pairs, shown[3]),
            _doubtful(model, constraints),
            (),
            *((0, ()) if constraints is None else chains_in(constraints)),
        ),
        nights=(),
        flows=(),
        comparison=None,
        fit=fit,
        agreement=None if classes is None else _agreement(model, corpus, classes),
        limits=tuple(limits),
    )


def _answer_counts(
    model: HMRFEstimator, constraints: Constraints | None, violations: Mapping[str, int]
) -> dict[str, Any]:
    if constraints is None:
        return {}
    of_kind = {kind: f"{kind}_link" for kind in ("must", "cannot")}
    counts: dict[str, Any] = {
        "pairs": {kind: len(getattr(constraints, name)) for kind, name in of_kind.items()},
        "violated": {kind: violations[name] for kind, name in of_kind.items()},
    }
    if suspects := getattr(model, "suspect_answers_", []):
        counts["suspect"] = len(suspects)
    return counts


def _doubtful(model: HMRFEstimator, constraints: Constraints | None) -> tuple[Doubtful, ...]:
    suspects = [] if constraints is None else getattr(model, "suspect_answers_", [])
    return tuple(
        Doubtful(
            f"{one.a} and {one.b}: {'same' if one.kind == 'must' else 'different'}",
            f"right with {one.probability:.0%}",
        )
        for one in suspects[:_MOST_DOUBTFUL]
    )


def _fit_of(model: HMRFEstimator, learned: Any) -> Fit:
    """Return how the fit went."""
    facts = {
        "J": model.objective_,
        "iterations": model.n_iter_,
        "seed": model.seed_,
        "converged": model.converged_,
        "stop_reason": model.stop_reason_,
        "start_reason": model.start_reason_,
    }
    settings = {name: _plain(value) for name, value in model.get_params(deep=False).items()}
    again = repr(type(model)(**{**model.get_params(deep=False), "random_state": model.seed_}))
    libraries = kernel_path()
    versions = {"hmrf-dask": version("hmrf-dask")}
    return Fit(
        facts=facts,
        steps=tuple(step_of(one) for one in getattr(model, "iterations_", ())),
        seconds={},
        settings=settings | {"n_clusters": model.n_clusters_, "random_state": model.seed_},
        versions=versions | {name: str(libraries[name]) for name in _LIBRARIES},
        again=(f"{excerpt(again, 400)}.fit(X)",),
        learned=learned,
    )


def _plain(value: Any) -> Any:
    """Return a parameter as people write it."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    shape = getattr(value, "shape", None)
    return f"an array of shape {shape}" if shape is not None else type(value).__name__


# ---- what the caller alone knows


def _with_texts(shown: Documents, texts: Any, corpus: Corpus) -> Documents:
    """Return documents with the beginnings of their texts."""
    read = _text_reader(texts, corpus, {one.id for part in shown for one in part})
    return [[replace(one, text=excerpt(read(one.id), LENGTH)) for one in part] for part in shown]


def _text_reader(texts: Any, corpus: Corpus, wanted: set[str]) -> Callable[[str], str]:
    """Return what gives the text of a document."""
    if isinstance(texts, Mapping):
        by_id = {str(name): texts[name] for name in texts if str(name) in wanted}
        return lambda name: _text(by_id.get(name))
    if isinstance(texts, str) or not hasattr(texts, "__len__") or len(texts) != corpus.n_rows:
        got = f"{len(texts)}" if hasattr(texts, "__len__") else type(texts).__name__
        raise InvalidInputError(
            f"texts must be one for each of the {corpus.n_rows} rows, or a mapping of their ids, "
            f"got {got}"
        )
    places = _rows_named(corpus, wanted)
    at = texts.iloc if hasattr(texts, "iloc") else texts
    return lambda name: _text(at[places[name]])


def _text(value: Any) -> str:
    return "" if _is_missing(value) else str(value)


def _rows_named(corpus: Corpus, wanted: set[str]) -> dict[str, int]:
    """Return the rows of documents, as reports call them."""
    flow = DaskFlow()
    names = flow.share(pa.array(sorted(wanted), pa.string()))
    found = flow.compute([flow.lazy(_found, block, names) for block in corpus.named])
    parts = zip(found, corpus.offsets, strict=False)
    return {name: first + row for part, first in parts for name, row in part.items()}


def _found(block: RowBlock, wanted: pa.Array) -> dict[str, int]:
    ids = pa.array(block.ids.tolist()).cast(pa.string())
    rows = pc.indices_nonzero(pc.is_in(ids, value_set=wanted)).to_pylist()
    return {ids[row].as_py(): row for row in rows}


def _agreement(model: HMRFEstimator, corpus: Corpus, classes: Any) -> Any:
    """Return how well clusters fit known classes, counted partition by partition."""
    known = np.asarray(classes, dtype=object)
    if known.shape != (corpus.n_rows,):
        got = len(known) if known.ndim == 1 else f"the shape {known.shape}"
        raise InvalidInputError(
            f"classes must be one for each of the {corpus.n_rows} rows, got {got}"
        )
    missing = np.fromiter(map(_is_missing, known), np.bool_, len(known))
    names = np.where(missing, "", known).astype(np.str_)
    flow = DaskFlow()
    called = share_array(flow, model.cluster_ids_)
    tables = [
        flow.lazy(
            _tabulated, share_array(flow, names[start:stop]),
            share_array(flow, missing[start:stop]), labels, called,
        )
        for labels, (start, stop) in zip(
            labels_by_partition(flow, model, corpus), pairwise(corpus.offsets), strict=True
        )
    ]  # fmt: skip
    table: Contingency = flow.compute([tree(flow, merge, tables)])[0]
    cells = (table.classes[table.rows], table.clusters[table.columns], table.counts)
    return compared(*(cell.tolist() for cell in cells))


def _is_missing(value: Any) -> bool:
    """Return whether a value is None, NaN, or one of those of pandas, which are equal to nothing.

    Examples
    --------
    >>> _is_missing(None), _is_missing(float("nan")), _is_missing("")
    (True, True, False)
    """
    try:
        return value is None or bool(value != value)
    except TypeError:  # pandas.NA does not say
        return True


def _tabulated(
    classes: AnyArray, missing: AnyArray, labels: AnyArray, called: AnyArray
) -> Contingency:
    there = ~np.asarray(missing, np.bool_)
    labels = np.asarray(labels)
    clusters = np.where(labels < 0, np.int32(-1), called[labels])
    return tabulate(classes[there], clusters[there])


def write_report(report: Report, path: str) -> None:
    """Write a report and its data, see `HMRFKMeans.report`."""
    from hmrf_dask.report.page import page  # not where none is written: it reads templates

    folder, _, name = absolute_url(path).rpartition("/")
    if not name.endswith(".html"):
        folder, name = f"{folder}/{name}", HTML
    storage = open_storage(folder, {}, durable=True)
    storage.make_root()
    storage.write(name, page(report))
    storage.write(f"{name.removesuffix('.html')}.json", report.to_json())
