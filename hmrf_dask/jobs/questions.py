"""The next questions about an output: chosen at the end of a fit, or when they are asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from hmrf_dask.answers.beliefs import believe
from hmrf_dask.answers.journal import FILE, FOLDER
from hmrf_dask.answers.records import Question
from hmrf_dask.constraints.answer_files import parse_pairs
from hmrf_dask.constraints.answer_rows import MUST, said
from hmrf_dask.constraints.pairs import Constraints
from hmrf_dask.corpus.partitioned import Corpus
from hmrf_dask.distortions.cosine import Cosine, metric_of
from hmrf_dask.errors import HmrfError, InvalidInputError
from hmrf_dask.estimators.base import HMRFEstimator
from hmrf_dask.estimators.classes import load
from hmrf_dask.jobs import assignments, journal
from hmrf_dask.jobs.answers import Answers
from hmrf_dask.jobs.assignments import Files
from hmrf_dask.jobs.inputs import load_job
from hmrf_dask.jobs.parent import JOB
from hmrf_dask.jobs.places import (
    ANSWERS,
    NOTES,
    QUESTIONS,
    explained_to_readers,
    last_release,
    model_folder,
)
from hmrf_dask.jobs.rows import rows_of_release
from hmrf_dask.jobs.steps import JobRun, Material
from hmrf_dask.questions import answers as given_answers
from hmrf_dask.questions.batches import Clusters, choose, known_from
from hmrf_dask.questions.known import Known
from hmrf_dask.questions.pool import Pool
from hmrf_dask.releases.release import Release, read_file
from hmrf_dask.storage.addresses import absolute_url
from hmrf_dask.storage.whole_files import decode_parquet, encode_parquet
from hmrf_dask.text.files import Place
from hmrf_dask.text.vectorise import corpus_of

_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("kind", pa.string()),
        ("documents", pa.list_(pa.string())),
        ("shown", pa.list_(pa.string())),
        ("likely", pa.list_(pa.float64())),
        ("why", pa.string()),
        ("settles", pa.float64()),
    ]
)


def encode_questions(batch: list[Question]) -> bytes:
    """Return questions as the Parquet file of a release.

    Examples
    --------
    >>> batch = [Question("choice", ("x",), ("r", "s"), (0.75, 0.25), settles=2.0)]
    >>> decode_questions(encode_questions(batch)) == batch
    True
    """
    rows = [{name: getattr(question, name) for name in _SCHEMA.names} for question in batch]
    return encode_parquet(pa.Table.from_pylist(rows, schema=_SCHEMA))


def decode_questions(data: bytes) -> list[Question]:
    """Return what `encode_questions` wrote."""
    return [
        Question(
            row["kind"],
            tuple(row["documents"]),
            tuple(row["shown"]),
            tuple(row["likely"]),
            row["why"],
            row["settles"],
        )
        for row in decode_parquet(data).to_pylist()
    ]


def questions_of(output: str) -> list[Question]:
    """Return the questions that the last release of an output ends with, none if it has none."""
    release = last_release(output)
    name = None if release is None else _named(release, QUESTIONS)
    if release is None or name is None:
        return []
    with explained_to_readers():
        place = Place(absolute_url(output))
        return decode_questions(read_file(place.storage, name, release.files[name]))


def write_questions(
    run: JobRun, material: Material, answers: Answers, model: HMRFEstimator
) -> tuple[Files, int]:
    """Write as many of the next questions of a fit as the job wants; return how many there are."""
    wanted = run.inputs.job.questions
    with run.watch.step("choose questions"):
        table = decode_parquet(run.place.storage.read(f"{run.name}/{assignments.NAME}"))
        entries = run.inputs.journal.read.entries
        beliefs = believe(entries, trust=run.inputs.job.annotators)
        known = Known.believed(entries, beliefs, answers.used)
        batch = _chosen(material.corpus, model, table, known, wanted)
        return run.write(QUESTIONS, encode_questions(batch)), len(batch)


def annotators_of(output: str, job: str = "") -> Mapping[str, float]:
    """Return the trust in people that the job of an output names, none where nobody can read it.

    `job` is its file, where the last release does not say it.
    """
    release = last_release(output)
    file = job or ("" if release is None else str(release.ledger.get(JOB) or ""))
    try:
        return load_job(file).annotators if file else {}
    except HmrfError:
        return {}


def batch_of(
    output: str, n: int, answers: Any = None, trust: Mapping[str, float] | None = None
) -> tuple[Known, list[Question]]:
    """Return what is known of the documents of an output, and the next questions about them.

    Entries count next to the pairs of the last fit; without `answers` those of the journal do.
    `trust` is that in people; without it what the job says.
    """
    release, url = last_release(output), absolute_url(output)
    if release is None:
        raise InvalidInputError(
            f"a finished model must be a fitted estimator or an output with a release, got "
            f"{output!r:.200} without one; run the job first"
        )
    place = Place(url)
    with explained_to_readers():
        model = load(model_folder(output))
        rows = rows_of_release(release, place, model.cluster_centers_.shape[1])
        table = decode_parquet(_read(release, place, assignments.NAME))
    corpus = corpus_of(rows, place.options)
    trust = annotators_of(output) if trust is None else trust
    if isinstance(answers, Constraints | given_answers.Answers):
        known = known_from(answers, corpus)
    else:
        entries = journal.take(url).read.entries if answers is None else list(answers)
        beliefs = believe(entries, trust=trust)
        known = Known.believed(entries, beliefs, _of_files(release, place))
    return known, _chosen(corpus, model, table, known, n)


def _of_files(release: Release, place: Place) -> Constraints | None:
    """Return the pairs of a release without those of its journal, which may be taken back."""
    if _named(release, ANSWERS) is None:
        return None
    pairs = parse_pairs(_read(release, place, ANSWERS), ANSWERS).as_text()
    noted = _read(release, place, NOTES) if _named(release, NOTES) is not None else b""
    of_journal = {
        said(note["a"], note["b"], must=note["kind"] == MUST)
        for note in map(json.loads, noted.splitlines())
        if "kind" in note and note["source"].rpartition("/")[2] in (FILE, FOLDER)
    }
    left = [
        [pair for pair in given.tolist() if said(*pair, must=must) not in of_journal]
        for must, given in ((True, pairs.must_link), (False, pairs.cannot_link))
    ]
    return Constraints(left[0] or None, left[1] or None, ids=True)


def _named(release: Release, name: str) -> str | None:
    return next((path for path in release.files if path.endswith(f"/{name}")), None)


def _read(release: Release, place: Place, name: str) -> bytes:
    path = _named(release, name)
    assert path is not None
    return read_file(place.storage, path, release.files[path])


def _chosen(
    corpus: Corpus, model: HMRFEstimator, table: pa.Table, known: Known, n: int
) -> list[Question]:
    """Return the next questions; `table` are the clusters as a release lists them."""
    pool, predictor = Pool(corpus, None), model.predictor()
    plain = isinstance(predictor.distortion, Cosine) and not len(metric_of(predictor.weights))
    if plain:
        clusters = _clusters_of(model, table)
    else:  # distances of another kind say nothing about directions
        clusters = Clusters.of(pool, model.cluster_centers_)
    return choose(pool, clusters, known, n)


def _clusters_of(model: HMRFEstimator, table: pa.Table) -> Clusters:
    """Return the clusters of a cosine model as a release lists them: no pass over the rows."""
    place = {cluster: row for row, cluster in enumerate(table["cluster"].to_pylist())}
    rows = [place[cluster] for cluster in model.cluster_ids_.tolist()]
    sizes = np.asarray(table["size"].to_pylist(), np.int64)[rows]
    cohesion = np.array([one or 0.0 for one in table["cohesion"].to_pylist()])[rows]
    central = table["representatives"].to_pylist()
    return Clusters(
        model.cluster_centers_,
        sizes * (1.0 - cohesion),
        sizes,
        [list(map(str, central[row])) for row in rows],
    )
