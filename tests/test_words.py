"""What clusters are about: their words against plain loops, and in a release of a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from hmrf_dask.jobs.words import telling_words, usual_classes
from tests import naive_clusters
from tests.support.job_corpus import JobCorpus
from tests.support.job_runs import run

NAMES = ["aa", "bb", "cc", "dd", "ee"]
COUNTS = st.lists(st.lists(st.integers(0, 6), min_size=5, max_size=5), min_size=1, max_size=4)


@given(COUNTS, st.integers(1, 6))
def test_words_are_those_of_plain_loops(counts: list[list[int]], n_words: int) -> None:
    found = telling_words(sp.csr_array(np.array(counts)), pa.array(NAMES), n_words)
    assert found == naive_clusters.telling_words(counts, NAMES, n_words)


@given(st.lists(st.integers(0, 20), min_size=1, max_size=40))
def test_usual_classes_hold_half_of_the_documents_at_least(sizes: list[int]) -> None:
    usual = usual_classes(np.array(sizes))
    assert 2 * np.array(sizes)[usual].sum() >= sum(sizes)
    each = [number for number, size in enumerate(sizes) for _ in range(size)]
    if each:
        first, last = naive_clusters.usual(each)
        assert np.flatnonzero(usual).tolist() == list(range(first, last + 1))


@pytest.mark.parametrize("text", [{}, {"kind": "hashing", "n_features": 4096}, {"lsa": 3}])
def test_words_of_all_documents_tell_no_cluster(text: dict[str, Any], tmp_path: Path) -> None:
    corpus = JobCorpus(tmp_path)
    job = corpus.write_all(60, 10, text=text)
    every = [{**one, "text": f"{one['text']} article com don"} for one in corpus.documents]
    corpus.write(corpus.files(every))
    report = run(job)
    table = pq.read_table(Path(report.output) / report.places["clusters"]).to_pylist()
    listed = {word for row in table for word in row["top_words"][:5]}
    assert len(listed) == 15
    assert not listed & {"article", "com", "don"}
