"""The demo: docstrings of the scientific packages at hand, clustered with simulated answers.

It is a module of the package, not a file under pipelines/, because `hmrf-dask demo` must work where
only the package is installed.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.sparse as sp
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS, TfidfVectorizer
from sklearn.metrics import normalized_mutual_info_score

from hmrf_dask.constraints.pairs import Constraints
from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.documents.builtin import SUBPACKAGES, Document, read_docstrings
from hmrf_dask.errors import ConfigurationError
from hmrf_dask.estimators.classes import HMRFKMeans
from hmrf_dask.jobs.assignments import write_assignments
from hmrf_dask.jobs.fit_files import start_afresh
from hmrf_dask.jobs.places import ASSIGNMENTS_FOLDER, MODEL, record_assignments
from hmrf_dask.jobs.report import report_after_fit
from hmrf_dask.jobs.report_fit import encode_classes
from hmrf_dask.jobs.words import sums_by_cluster, telling_words
from hmrf_dask.measures.contingency import tabulate
from hmrf_dask.progress import Tell, nothing
from hmrf_dask.questions.oracles import ChoosingOracle
from hmrf_dask.questions.selection import explore_consolidate
from hmrf_dask.releases.own_files import RUN_DIRECTORY, remove_files
from hmrf_dask.report.content import HTML, LENGTH, excerpt
from hmrf_dask.report.words import Words
from hmrf_dask.storage.addresses import absolute_url
from hmrf_dask.storage.stores import open_storage
from hmrf_dask.types import AnyArray, BoolArray, IntArray, LabelArray

N_ANSWERS = 300
N_QUESTIONS = 25  # chosen ones, next to as many random pairs
N_PARTITIONS = 4
SEED = 0
STEPS = (
    "read the docstrings of numpy, scipy and scikit-learn",
    "cluster them without answers",
    f"ask about {N_QUESTIONS} random pairs",
    f"ask {N_QUESTIONS} chosen questions",
    f"cluster them with {N_ANSWERS} answers",
    "write the report",
)
TOP_WORDS = 5
NAME = "demo.txt"  # whose folder it is
_DEMO = re.compile(r"documents\.parquet|pairs\.csv|rows-[0-9a-f]{8}|run")


def tfidf_rows(documents: list[Document]) -> tuple[sp.csr_array, list[str]]:
    """Weigh the words of every document; return float32 rows of unit length and the words."""
    vectorizer = TfidfVectorizer(
        token_pattern=r"\b[a-z]{3,}\b",  # plain words; names with underscores give labels away
        stop_words=sorted(ENGLISH_STOP_WORDS | {"numpy", "scipy", "sklearn"}),
        min_df=3,
        max_df=0.3,
        sublinear_tf=True,
        dtype=np.float32,
    )
    rows = vectorizer.fit_transform([document.text for document in documents])
    return sp.csr_array(rows), list(vectorizer.get_feature_names_out())


def simulated_answers(labels: Sequence[str], n_pairs: int, seed: int) -> tuple[IntArray, IntArray]:
    """Ask about random pairs until half the answers are "same" and half are "different".

    Both, must-links first, are row numbers of shape (n_pairs / 2, 2); no pair comes twice.

    Examples
    --------
    >>> must_link, cannot_link = simulated_answers(["x", "x", "y", "y"], n_pairs=4, seed=0)
    >>> must_link.shape, cannot_link.shape
    ((2, 2), (2, 2))
    """
    generator = np.random.default_rng(seed)
    same: dict[tuple[int, int], None] = {}
    different: dict[tuple[int, int], None] = {}
    while min(len(same), len(different)) < n_pairs // 2:
        first, second = sorted(generator.choice(len(labels), 2, replace=False).tolist())
        answers = same if labels[first] == labels[second] else different
        if len(answers) < n_pairs // 2:
            answers[first, second] = None
    return np.array(list(same)), np.array(list(different))


@dataclass(frozen=True)
class ClusterSummary:
    """One cluster in words: its size, what is special in it, and where most of it comes from."""

    cluster: int
    size: int
    top_words: list[str]
    mostly: str
    share: float


@dataclass(frozen=True)
class FewAnswers:
    """What a few answers brought: the pairs they gave, and NMI as in `DemoResult`."""

    n_pairs: int
    nmi: float
    nmi_unasked: float


@dataclass(frozen=True)
class DemoResult:
    """What the demo found; NMI is measured on all documents and on those nobody was asked about.

    `random_pairs` and `chosen_questions` are about as many answers each, few of them.
    """

    n_documents: int
    n_words: int
    n_answers: int
    n_asked_documents: int
    nmi_without_answers: float
    nmi_with_answers: float
    nmi_unasked_without_answers: float
    nmi_unasked_with_answers: float
    n_questions: int
    random_pairs: FewAnswers
    chosen_questions: FewAnswers
    violations: dict[str, int]
    n_iterations: int
    stop_reason: str
    clusters: list[ClusterSummary]
    files: dict[str, str]
    seconds: float


def run_demo(folder: str, *, fresh: bool, tell: Tell = nothing) -> DemoResult:
    """Go the whole way below a folder: documents, rows, answers, fit, assignments in Parquet.

    The run that is there goes on, or is read, unless it is to be a `fresh` one. `tell` is called
    with what happens; see `hmrf_dask.progress`.
    """
    if "://" in folder:
        raise ConfigurationError(f"the demo writes into a folder of this machine, got {folder!r}")
    started = time.perf_counter()
    _claim(folder)
    if fresh:
        start_afresh(f"{folder}/run")
    tell({"plan": STEPS})
    tell({"step": STEPS[0]})
    documents = read_docstrings()
    rows, words = tfidf_rows(documents)
    truth = np.array([document.label for document in documents])
    must_link, cannot_link = simulated_answers(truth.tolist(), N_ANSWERS, seed=SEED)
    ids = np.array([document.id for document in documents])
    constraints = Constraints(ids[must_link], ids[cannot_link])
    files = _write_inputs(folder, documents, rows, constraints)
    corpus = Corpus.from_rows(rows, ids, n_partitions=N_PARTITIONS).to_parquet(files["rows"])

    tell({"step": STEPS[1]})
    model = HMRFKMeans(len(SUBPACKAGES), random_state=SEED)
    model._progress = tell
    without = np.asarray(model.fit(corpus).labels_)
    unasked = np.ones(len(documents), dtype=bool)
    unasked[np.concatenate([must_link, cannot_link]).ravel()] = False
    brought = _brought(model, corpus, documents, unasked)
    tell({"step": STEPS[4]})
    model._reports = False  # it is written with the texts
    model.fit(corpus, must_link=constraints, run_dir=files["run"])
    labels = np.asarray(model.labels_)
    tell({"step": STEPS[5]})
    _write_results(files["run"], model, corpus, constraints, (documents, words))
    return DemoResult(
        n_documents=len(documents),
        n_words=len(words),
        n_answers=N_ANSWERS,
        n_asked_documents=int((~unasked).sum()),
        nmi_without_answers=_agreement(truth, without),
        nmi_with_answers=_agreement(truth, labels),
        nmi_unasked_without_answers=_agreement(truth[unasked], without[unasked]),
        nmi_unasked_with_answers=_agreement(truth[unasked], labels[unasked]),
        n_questions=N_QUESTIONS,
        random_pairs=brought["random"],
        chosen_questions=brought["default"],
        violations=dict(model.violations_),
        n_iterations=model.n_iter_,
        stop_reason=model.stop_reason_,
        clusters=_describe_clusters(labels, rows, words, truth),
        files=files,
        seconds=time.perf_counter() - started,
    )


def _brought(
    model: HMRFKMeans, corpus: Corpus, documents: list[Document], unasked: BoolArray
) -> dict[str, FewAnswers]:
    """Return what a few answers brought, to random pairs and to chosen questions."""
    truth = np.array([document.label for document in documents])
    person = ChoosingOracle({document.id: document.label for document in documents})
    brought = {}
    for step, strategy in ((STEPS[2], "random"), (STEPS[3], "default")):
        model._progress({"step": step})
        pairs = explore_consolidate(
            corpus, person, len(SUBPACKAGES), N_QUESTIONS, strategy=strategy, random_state=SEED
        )
        labels = np.asarray(model.fit(corpus, must_link=pairs).labels_)
        brought[strategy] = FewAnswers(
            len(pairs), _agreement(truth, labels), _agreement(truth[unasked], labels[unasked])
        )
    return brought


def _claim(folder: str) -> None:
    """Make a folder the demo's, with a file that says so; refuse where others' files lie."""
    storage = open_storage(absolute_url(folder), {}, durable=False)
    if NAME in (there := storage.names("")):
        return
    if foreign := sorted(name for name in there if _DEMO.fullmatch(name)):
        raise ConfigurationError(
            f"the demo must write into a new folder, or one of a demo, got {folder!r}, where "
            f"{foreign[0]} lies; name another folder"
        )
    storage.make_root()
    storage.write(NAME, b"hmrf-dask demo wrote the files here, and writes them again\n")


def _write_inputs(
    folder: str, documents: list[Document], rows: sp.csr_array, constraints: Constraints
) -> dict[str, str]:
    """Write what the fit is made from, so that a reader can see it and fit it again."""
    # Other versions of the packages give other rows, and those a folder of their own.
    content = sha256(rows.indices.tobytes() + rows.data.tobytes()).hexdigest()[:8]
    files = {
        "documents": f"{folder}/documents.parquet",
        "rows": f"{folder}/rows-{content}",
        "pairs": f"{folder}/pairs.csv",
        "run": f"{folder}/run",
        "assignments": f"{folder}/run/{ASSIGNMENTS_FOLDER}",
        "report": f"{folder}/run/{HTML}",
    }
    columns = [list(column) for column in zip(*documents, strict=True)]
    pq.write_table(pa.table(columns, ["doc_id", "text", "label"]), files["documents"])
    constraints.to_file(files["pairs"])
    return files


def _write_results(
    run: str,
    model: HMRFKMeans,
    corpus: Corpus,
    constraints: Constraints,
    material: tuple[list[Document], list[str]],
) -> None:
    """Write model, assignments and the report of a fit; `material` are its documents and words."""
    documents, words = material
    remove_files(open_storage(absolute_url(run), {}, durable=True), MODEL, RUN_DIRECTORY)
    model.save(f"{run}/{MODEL}")
    written = write_assignments(corpus, model.labels_, model, run, constraints=constraints)
    record_assignments(run, written.files)
    truth = np.array([document.label for document in documents])
    report_after_fit(
        run, constraints, written.violations, title="Docstrings of numpy, scipy and sklearn",
        words=lambda: Words(lambda columns: [words[column] for column in columns], len(words)),
        texts=lambda _: {one.id: excerpt(one.text, LENGTH) for one in documents},
        classes=lambda: encode_classes(tabulate(truth, np.asarray(model.labels_))),
    )  # fmt: skip


def _agreement(truth: AnyArray, labels: LabelArray) -> float:
    return float(normalized_mutual_info_score(truth, labels))


def _describe_clusters(
    labels: LabelArray, rows: sp.csr_array, words: list[str], truth: AnyArray
) -> list[ClusterSummary]:
    """Summarise the clusters, largest first."""
    ones = np.ones(rows.nnz, np.int64)
    has_word = sp.csr_array((ones, rows.indices, rows.indptr), shape=rows.shape)
    counts = sums_by_cluster(has_word, labels, len(SUBPACKAGES))
    top_words = telling_words(counts, pa.array(words), TOP_WORDS)
    summaries = []
    for cluster in range(len(SUBPACKAGES)):
        members = np.flatnonzero(labels == cluster)
        if not len(members):
            summaries.append(ClusterSummary(cluster, 0, [], "", 0.0))
            continue
        mostly, count = Counter(truth[members].tolist()).most_common(1)[0]
        share = count / len(members)
        summaries.append(ClusterSummary(cluster, len(members), top_words[cluster], mostly, share))
    return sorted(summaries, key=lambda summary: -summary.size)
