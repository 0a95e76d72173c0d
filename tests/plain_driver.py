"""Fits in a process that cannot import numba: ``python -m tests.plain_driver RUN_DIR``."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import dask
import numpy as np

ROOT = Path(__file__).parents[1]
N_ROWS, N_FEATURES, K = 120, 60, 3
FITS: dict[str, dict[str, Any]] = {
    "cosine": {},
    "cosine learned": {"learn_weights": True},
    "cosine dense": {"dense": True, "penalty": "potts", "closure": False},
    "cosine in tables": {"chained": True},
    "cosine by messages": {"inference": "belief-propagation"},
    "pearson": {"distortion": "pearson", "learn_weights": True},
    "pearson dense": {"distortion": "pearson", "dense": True},
    "euclidean": {"distortion": "euclidean"},
    "euclidean dense": {"distortion": "euclidean", "dense": True},
    "i-divergence": {"distortion": "i-divergence"},
    "kl": {"distortion": "kl"},
}


class _Hide:
    """Finds no numba: it comes before the finders that would."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] in ("numba", "llvmlite"):
            raise ImportError(f"{name} cannot be imported here")


def rows(dense: bool = False) -> Any:
    """Return rows of three topics, none of them zero."""
    import scipy.sparse

    rng = np.random.default_rng(5)
    rates = rng.gamma(0.4, size=(K, N_FEATURES))
    counts = rng.poisson(0.3 * rates[np.arange(N_ROWS) % K])
    counts[:, 0] += 1
    values = counts.astype(np.float32)
    return values if dense else scipy.sparse.csr_array(values)


def pairs(chained: bool = False) -> dict[str, Any]:
    """Return pairs of the topics, as a chain so long that its closure is kept as a table."""
    rng = np.random.default_rng(6)
    both = rng.integers(0, N_ROWS, (80, 2))
    both = both[both[:, 0] != both[:, 1]]
    same = both[:, 0] % K == both[:, 1] % K
    must = both[same]
    if chained:
        chain = np.arange(0, N_ROWS, K)
        must = np.concatenate([must, np.stack([chain[:-1], chain[1:]], axis=1)])
    return {"must_link": must, "cannot_link": both[~same]}


def model(**parameters: Any) -> Any:
    """Return the estimator of all fits here."""
    from hmrf_dask import HMRFKMeans

    return HMRFKMeans(K, random_state=0, n_init=2, max_iter=8, **parameters)


def digest(fitted: Any) -> str:
    """Return a hash of all that a fit finds."""
    parts = (np.asarray(fitted.labels_), fitted.cluster_centers_, fitted.feature_weights_)
    whole = b"".join(np.ascontiguousarray(part).tobytes() for part in parts)
    return hashlib.sha256(whole + repr(fitted.objective_history_).encode()).hexdigest()


def told(
    *, n_partitions: int, dense: bool = False, chained: bool = False, **parameters: Any
) -> str:
    """Return the digest of a fit, after all that can be asked of it."""
    from hmrf_dask import Corpus

    X = rows(dense)
    corpus = Corpus.from_rows(X, n_partitions=n_partitions)
    fitted = model(**parameters).fit(corpus, **pairs(chained))
    distances = np.asarray(fitted.transform(X))
    assert (np.asarray(fitted.predict(X)) == distances.argmin(axis=1)).all()
    assert np.isfinite(fitted.score(X))
    return digest(fitted)


def run(run_dir: str) -> dict[str, Any]:
    """Return what a process without numba tells of its fits."""
    command = [sys.executable, "-m", "tests.plain_driver", run_dir]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def main(run_dir: str) -> None:
    """Fit everything twice, cut differently, and one run into a directory, twice."""
    sys.meta_path.insert(0, _Hide())  # type: ignore[arg-type]
    from hmrf_dask.kernels.path import kernel_path

    with dask.config.set(scheduler="synchronous"):
        fits = {
            name: [told(n_partitions=parts, **settings) for parts in (1, 4)]
            for name, settings in FITS.items()
        }
        runs = [digest(model().fit(rows(), **pairs(), run_dir=run_dir)) for _ in range(2)]
    loaded = sorted({name.partition(".")[0] for name in sys.modules} & {"numba", "llvmlite"})
    answer = {"path": kernel_path(), "fits": fits, "runs": runs, "loaded": loaded}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1])
