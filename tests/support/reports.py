"""Reports without a run behind them: of any size, and with texts that would do harm."""

from __future__ import annotations

import base64
import gzip
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hmrf_dask.report.alerts import Facts, alerts_of
from hmrf_dask.report.content import (
    Agreement,
    AnswerPart,
    Broken,
    Cluster,
    Comparison,
    Doubtful,
    Fit,
    Flow,
    Moved,
    Near,
    Night,
    Report,
    Step,
    Text,
    Word,
)

PAYLOADS = (Path(__file__).parent / "payloads.txt").read_text().splitlines()
_DATA = re.compile(rb'<script type="application/gzip[+]base64" id="data">([^<]*)</script>')


def words(generator: np.random.Generator, number: int) -> str:
    """Return a text of drawn words, as varied as texts are."""
    drawn = generator.zipf(1.3, number) % 5_000
    return " ".join(f"{'aeioubcdfgmnprst'[one % 16]}{one:x}" for one in drawn.tolist())


def document(generator: np.random.Generator, number: int, n_clusters: int) -> Text:
    """Return a drawn document."""
    cluster = int(generator.integers(n_clusters))
    place = generator.integers(0, 1001, 2).tolist()
    other = (cluster + 1) % n_clusters
    return Text(f"doc/{number:07}", cluster, other, "pack", words(generator, 40)[:240], *place)


def cluster(generator: np.random.Generator, number: int, n_clusters: int) -> Cluster:
    """Return a drawn cluster with all that one has."""
    named = [words(generator, 1) for _ in range(16)]
    shown = [document(generator, at, n_clusters) for at in range(6)]
    x, y = generator.integers(0, 1001, 2).tolist()
    return Cluster(
        id=number,
        name="",
        size=int(generator.integers(1, 4_000)),
        size_before=int(generator.integers(1, 4_000)),
        change="kept",
        words=tuple(named[:10]),
        bars=tuple(Word(word, 0.3, 2.5, 1.1) for word in named),
        spread=0.8,
        linked=3,
        broken=number % 2,
        undecided=0,
        x=x,
        y=y,
        typical=tuple(shown[:3]),
        borderline=tuple(shown[3:]),
        similar=(Near((number + 1) % n_clusters, 0.4),),
    )


def example(n_clusters: int, n_documents: int) -> Report:
    """Return a report with all of its parts."""
    generator = np.random.default_rng(0)
    clusters = tuple(cluster(generator, number, n_clusters) for number in range(n_clusters))
    documents = tuple(document(generator, n, n_clusters) for n in range(n_documents))
    counts = {
        "pairs": {"must": 4, "cannot": 6},
        "violated": {"must": 1, "cannot": 0},
        "suspect": 1,
        "quarantined": 1,
        "questions": 3,
    }
    answers = AnswerPart(
        counts,
        (Broken("must", documents[0], documents[1], 0.5),),
        (Doubtful("a and b: same", "line 3"),),
        (Doubtful("x,y,z", "it has no kind"),),
        12,
        (("a", "b", "c"), tuple(f"document/{number}" for number in range(11))),
    )
    return Report(
        title="example",
        release={"number": 3, "when": "2026-01-02 03:04", "run": "ab", "mode": "fit"},
        documents={"all": n_documents, "new": 5, "gone": 2},
        vocabulary={},
        clusters_now={"number": n_clusters, "kept": n_clusters},
        alerts=alerts_of(Facts({"converged": False}, {}, {}, counts), clusters),
        clusters=clusters,
        documents_shown=documents,
        answers=answers,
        nights=tuple(Night(n, "2026-01-02 03:04", 90 + n, 3, 0.1, 0.8, 0.5) for n in (1, 2, 3)),
        flows=(Flow(0, 1 % n_clusters, 7), Flow(0, 0, 20), Flow(8, None, 2)),
        comparison=Comparison(2, 3, 10, 1, (Moved(documents[0], 1, "its file is new"),), {}),
        fit=Fit(
            {"J": 80.0, "iterations": 2, "stop_reason": "settled"},
            (Step("fit", 0, 9, {"J": 90.0}), Step("fit", 1, 3, {"J": 80.0})),
            {"fit": 1.5},
            {"n_clusters": n_clusters, "trust": None},
            {"hmrf-dask": "0", "numpy": "2"},
            ("hmrf-dask run job.yaml",),
            (Word("w", 2.0, 1.0, 2.0),),
        ),
        agreement=Agreement({"NMI": 0.5}, ("x", "y"), (0,), ((3,), (4,)), 7),
        limits=("Texts: 1 of 2 documents",),
    )


def hostile() -> Report:
    """Return a report with a payload wherever a document, an id, a word or a name is shown."""
    base, number = example(4, 20), iter(range(10**6))

    def payload() -> str:
        return PAYLOADS[next(number) % len(PAYLOADS)]

    def bad(text: Text) -> Text:
        return replace(text, id=payload(), text=payload())

    clusters = tuple(
        replace(
            one,
            name=payload() if one.id else "",
            words=tuple(payload() for _ in range(10)),
            bars=tuple(replace(bar, word=payload()) for bar in one.bars),
            typical=tuple(map(bad, one.typical)),
            borderline=tuple(map(bad, one.borderline)),
        )
        for one in base.clusters
    )
    broken = tuple(Broken("must", bad(base.documents_shown[0]), bad(base.documents_shown[1]), 1.0)
                   for _ in PAYLOADS)  # fmt: skip
    doubtful = tuple(Doubtful(payload(), payload()) for _ in PAYLOADS)
    moved = tuple(Moved(bad(base.documents_shown[0]), 9, payload()) for _ in PAYLOADS)
    assert base.comparison is not None
    return replace(
        base,
        title=payload(),
        clusters=clusters,
        documents_shown=tuple(map(bad, base.documents_shown)),
        answers=AnswerPart(
            base.answers.counts,
            broken,
            doubtful,
            doubtful,
            9,
            (tuple(PAYLOADS[:3]), tuple(PAYLOADS)),
        ),
        comparison=replace(base.comparison, moved=moved, names_before={"9": payload()}),
        fit=replace(base.fit, settings={payload(): payload()}, again=(payload(),)),
        agreement=Agreement({"NMI": 0.5}, (payload(), payload()), (0,), ((3,), (4,)), 7),
        limits=tuple(PAYLOADS),
    )


def packed_data(shown: bytes) -> dict[str, Any]:
    """Return what script shows of a page."""
    found = _DATA.search(shown)
    assert found is not None
    data: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(found[1])))
    return data
