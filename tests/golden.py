"""Digests of what the package computes, recorded: nothing may change an answer by a bit unnoticed.

`make golden` computes every case again and writes golden.json; a change of it needs a line in the
changelog. Digests are over values, not over files: formats may change, answers may not.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pyarrow.parquet as pq
from threadpoolctl import threadpool_info

from hmrf_dask import (
    LSA,
    HMRFKMeans,
    load,
)
from hmrf_dask.constraints.pairs import Constraints
from hmrf_dask.kernels.compiled import kernel_path
from hmrf_dask.releases.release import latest
from hmrf_dask.text.counts import Counted, TextSettings, count_texts
from hmrf_dask.text.tfidf import Frequencies, Vocabulary, make_vocabulary, to_rows
from tests.support.cases import CASES, FITS, IN_ROUNDS, ROOMY
from tests.support.family_fits import digest_of, text_corpus
from tests.support.fits import fit
from tests.support.job_corpus import JobCorpus, lines
from tests.support.job_runs import assigned, run
from tests.support.problems import planted_text

RECORD = Path(__file__).with_name("golden.json")
Compute = Callable[[], str]


def compute(name: str) -> str:
    """Return the digest of a case as it is now."""
    with dask.config.set(scheduler="synchronous"):
        return CASES_BY_NAME[name]()


def recorded() -> dict[str, Any]:
    """Return what golden.json holds: what it was made on, and a digest a case."""
    found: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


def path_of(name: str) -> dict[str, str]:
    """Return what the bits of a case depend on; LSA alone stands on BLAS."""
    return kernel_path() | ({"blas": _blas()} if name == "lsa" else {})


def _blas() -> str:
    """Return the BLAS libraries in this process, and for which processors they compute."""
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    parts = ("internal_api", "version", "architecture")
    return ", ".join(sorted(" ".join(str(pool.get(part)) for part in parts) for pool in pools))


def digest(*values: Any) -> str:
    """Return a hash of arrays by their bytes and of all else as JSON, which keeps every bit."""
    total = hashlib.sha256()
    for value in values:
        if isinstance(value, np.ndarray):
            total.update(str((value.dtype.str, value.shape)).encode())
            total.update(np.ascontiguousarray(value).tobytes())
        else:
            total.update(json.dumps(value, sort_keys=True).encode())
    return total.hexdigest()[:16]


# ---- fits


def _of_fit(name: str) -> str:
    case = FITS[name]
    return fit(replace(case, memory=case.memory or ROOMY), 3).digest


def _of_family(name: str) -> str:
    return digest_of(FITS[name].fitted(3))


def _of_full_metric() -> str:
    model = FITS["full metric"].fitted(3)
    history = model.objective_history_.tolist()
    return digest(np.asarray(model.labels_, np.int32), model.metric_, history)


def _predicted() -> str:
    rows, _, must, cannot = text_corpus()
    model = HMRFKMeans(3, random_state=0, n_init=2).fit(rows, must_link=must, cannot_link=cannot)
    return digest(model.predict(rows), model.transform(rows), float(model.score(rows)))


# ---- texts


def _components() -> str:
    rows = planted_text(240, 300, 6, 0, words=25)[0]
    model = LSA(8, random_state=0).fit(rows)
    return digest(model.components_, model.singular_values_, model.transform(rows))


TEXTS = [
    f"{subject} {verb} the {thing} of {place}, {number} times; naïve café № {number}"
    for number, (subject, verb, thing, place) in enumerate(
        (subject, verb, thing, place)
        for subject in ("Cats", "planets", "engines")
        for verb in ("see", "turn", "leave")
        for thing in ("orbit", "wheel")
        for place in ("Rome", "Łódź", "Mars")
    )
]


def _rows_of_texts(settings: TextSettings) -> str:
    counted: Counted = count_texts(TEXTS, settings)
    vocabulary: Vocabulary = make_vocabulary(Frequencies.of(counted, settings), settings)
    ids = [str(number) for number in range(len(TEXTS))]
    rows = to_rows(counted, vocabulary, ids)[0].to_scipy()
    return digest(rows.data, rows.indices, rows.indptr, vocabulary.identity)


# ---- a job


@cache
def _nights() -> dict[str, str]:
    """Return digests of three nights: new files and answers, one file changed, one gone."""
    with tempfile.TemporaryDirectory() as folder:
        corpus = JobCorpus(Path(folder))
        job = corpus.write_all(120, 30)
        found = _night("first", job)
        corpus.write(corpus.files(corpus.draw(40, words="budget pension"), first=6))
        found |= _night("second", job)
        (corpus.folder / "documents/part-002.jsonl.gz").unlink()
        changed = [{**one, "text": f"{one['text']} mission"} for one in corpus.documents[60:80]]
        corpus.write({"documents/part-003.jsonl.gz": lines(changed)})
        corpus.documents = corpus.documents[:40] + corpus.documents[60:]
        corpus.write({"answers.csv": corpus.answers(45, seed=7)})
        return found | _night("third", job)


def _night(name: str, job: Path) -> dict[str, str]:
    report = run(job)
    release = latest(report.output)
    assert release is not None
    files = {Path(one).name: f"{report.output}/{one}" for one in release.files}
    model = load(str(Path(files["model.json"]).parent))
    lineage = json.loads(Path(files["lineage.json"]).read_text(encoding="utf-8"))
    lineage = lineage.get("content", lineage)
    answers = Constraints.from_file(files["answers.parquet"]).as_text()
    documents = sorted(assigned(report).items())
    clusters = pq.read_table(files["clusters.parquet"]).to_pylist()
    return {
        f"job: {name} night, assignments": digest(documents),
        f"job: {name} night, clusters": digest(clusters),
        f"job: {name} night, lineage": digest(
            lineage["ids"], lineage["sizes"], lineage["next_id"], lineage["changes"]
        ),
        f"job: {name} night, model": digest(
            model.cluster_centers_, model.feature_weights_, float(model.objective_)
        ),
        f"job: {name} night, answers": digest(
            sorted(answers.must_link.tolist()), sorted(answers.cannot_link.tolist())
        ),
    }


NIGHTS = [
    f"job: {night} night, {part}"
    for night in ("first", "second", "third")
    for part in ("assignments", "clusters", "lineage", "model", "answers")
]

CASES_BY_NAME: Mapping[str, Compute] = {
    **{f"fit: {name}": partial(_of_fit, name) for name in CASES},
    **{f"rounds: {name}": partial(_of_fit, f"{name}, in rounds") for name in IN_ROUNDS},
    "fit: ids": partial(_of_fit, "with ids"),
    "fit: one start": partial(_of_fit, "one start"),
    "fit: starts in heats": partial(_of_fit, "starts in heats"),
    "fit: starts by held-out answers": partial(_of_fit, "starts by held-out answers"),
    "beliefs: distance": partial(_of_fit, "beliefs"),
    "beliefs: potts": partial(_of_fit, "beliefs, potts"),
    "first variation": partial(_of_fit, "first variation"),
    "first variation: small tasks": partial(_of_fit, "first variation in small tasks"),
    "seeds: SeededKMeans": partial(_of_family, "SeededKMeans"),
    "seeds: ConstrainedKMeans": partial(_of_family, "ConstrainedKMeans"),
    "seeds: soft": partial(_of_family, "SeededKMeans, soft"),
    "hard pairs: COPKMeans": partial(_of_family, "COPKMeans"),
    "family: PCKMeans": partial(_of_family, "PCKMeans"),
    "family: MPCKMeans": partial(_of_family, "MPCKMeans"),
    "family: KMeans": partial(_of_family, "KMeans"),
    "family: full metric": _of_full_metric,
    "predict, transform, score": _predicted,
    "lsa": _components,
    "texts: words": partial(_rows_of_texts, TextSettings()),
    "texts: hashing": partial(_rows_of_texts, TextSettings(kind="hashing", n_features=512)),
    "texts: characters": partial(_rows_of_texts, TextSettings(kind="characters")),
    **{name: lambda name=name: _nights()[name] for name in NIGHTS},
}


def main() -> None:
    """Compute everything again and write the record."""
    found = {}
    for name in CASES_BY_NAME:
        found[name] = compute(name)
        sys.stderr.write(f"{found[name]} {name}\n")
    content = {"path": path_of("lsa"), "digests": found}
    RECORD.write_text(f"{json.dumps(content, indent=1)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
