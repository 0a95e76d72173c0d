"""Texts to clusters as a user of scikit-learn writes it: JSONL in, JSONL out, in one process."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from sklearn.cluster import KMeans, MiniBatchKMeans
from sklearn.feature_extraction.text import TfidfVectorizer


def main(documents: str, results: str, way: str, n_clusters: str, seed: str) -> None:
    """Cluster the texts of a file, write the cluster of each."""
    with Path(documents).open(encoding="utf-8") as lines:
        read = [json.loads(line) for line in lines]
    rows = TfidfVectorizer(dtype=np.float32).fit_transform([one["text"] for one in read])
    kind = MiniBatchKMeans if way == "mini_batch" else KMeans
    options = {"n_init": 10} if way == "ten_starts" else {}
    model = kind(int(n_clusters), random_state=int(seed), **options).fit(rows)
    with Path(results).open("w", encoding="utf-8") as written:
        for one, cluster in zip(read, model.labels_.tolist(), strict=True):
            written.write(json.dumps({"id": one["id"], "cluster": cluster}) + "\n")
    sys.stdout.write(json.dumps({"n_iter": int(model.n_iter_)}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
