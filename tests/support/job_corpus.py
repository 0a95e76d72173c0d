"""A small collection of documents in files, with answers, manifest and job: for tests of runs."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

WORDS = {
    "space": "orbit moon rocket launch shuttle planet mission lunar satellite nasa",
    "motor": "engine brake wheel gear diesel clutch highway tyre mileage dealer",
    "faith": "church belief prayer scripture bishop faith gospel sermon parish creed",
}
COMMON = ["people", "time", "know", "think", "good", "make", "want", "said", "right", "answer"]
FILE = 20
JSON = dict[str, Any]


@dataclass
class JobCorpus:
    """Files of documents below a folder; `write` is how bytes get there, a bucket's or a disk's."""

    folder: Path
    seed: int = 0
    documents: list[JSON] = field(default_factory=list)

    def draw(self, n_documents: int, *, words: str = "") -> list[JSON]:
        """Return new documents of all classes in turn."""
        generator = np.random.default_rng([self.seed, len(self.documents)])
        drawn = []
        for number in range(len(self.documents), len(self.documents) + n_documents):
            label = list(WORDS)[number % len(WORDS)]
            own = generator.choice(WORDS[label].split(), 12)
            common = generator.choice([*COMMON, *words.split()], 12)
            text = " ".join([*own, *common])
            drawn.append({"id": f"{label}/{number:04}", "text": text, "label": label})
        self.documents += drawn
        return drawn

    def files(self, documents: list[JSON], first: int = 0) -> dict[str, bytes]:
        """Return gzipped JSONL files of documents, by name."""
        parts = range(0, len(documents), FILE)
        return {
            f"documents/part-{first + number:03}.jsonl.gz": lines(documents[start : start + FILE])
            for number, start in enumerate(parts)
        }

    def answers(self, n_pairs: int, seed: int = 0) -> bytes:
        """Return a pair file of right answers about documents that were drawn."""
        generator = np.random.default_rng(seed)
        found = set()
        while len(found) < n_pairs:
            first, second = sorted(generator.choice(len(self.documents), 2, replace=False).tolist())
            found.add((first, second))
        rows = ["a,b,kind"]
        for first, second in sorted(found):
            one, other = self.documents[first], self.documents[second]
            kind = "must" if one["label"] == other["label"] else "cannot"
            rows.append(f"{one['id']},{other['id']},{kind}")
        return "\n".join([*rows, ""]).encode()

    def write(self, files: dict[str, bytes]) -> None:
        """Put files into the folder."""
        for name, data in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def write_all(self, n_documents: int = 120, n_pairs: int = 30, **job: Any) -> Path:
        """Write documents, answers, manifest and job; return the path of the job."""
        self.write(self.files(self.draw(n_documents)))
        self.write({"answers.csv": self.answers(n_pairs)})
        return self.write_job(**job)

    def write_job(
        self, *, resource: JSON | None = None, columns: JSON | None = None, **job: Any
    ) -> Path:
        """Write manifest and job; keys given go before the usual ones."""
        manifest = {
            "$schema": "hmrf-dask/manifest/v1",
            "name": "small",
            "resources": [{"name": "all", "path": "documents/*", **(resource or {})}],
            "documents": {"label": "label"} if columns is None else columns,
            "answers": {"path": "answers.csv"},
        }
        content = {
            "$schema": "hmrf-dask/job/v1",
            "manifest": "manifest.yaml",
            "method": {"n_clusters": 3, "n_init": 2},
            "output": "out",
            **job,
        }
        self.write({"manifest.yaml": yaml.safe_dump(manifest).encode()})
        self.write({"job.yaml": yaml.safe_dump(content).encode()})
        return self.folder / "job.yaml"


def lines(documents: list[JSON]) -> bytes:
    """Return gzipped JSON lines; the same documents are the same bytes."""
    return gzip.compress("".join(f"{json.dumps(one)}\n" for one in documents).encode(), mtime=0)


def one_each(corpus: JobCorpus, n_documents: int, **job: Any) -> Path:
    """Write a file for each of some documents, and a job."""
    for document in corpus.draw(n_documents):
        write_one(corpus, document)
    corpus.write({"answers.csv": corpus.answers(10)})
    return corpus.write_job(**job)


def write_one(corpus: JobCorpus, document: dict[str, Any]) -> str:
    name = f"documents/{document['id'].replace('/', '-')}.jsonl"
    corpus.write({name: f"{json.dumps(document)}\n".encode()})
    return name


def names_of(corpus: JobCorpus, numbers: list[int]) -> list[str]:
    return [f"documents/{corpus.documents[one]['id'].replace('/', '-')}.jsonl" for one in numbers]
