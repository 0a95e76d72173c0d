"""Own distortions as users write them: the one that the README shows."""

from __future__ import annotations

import numpy as np

from hmrf_dask import OwnDistortion

# example:


class Hellinger(OwnDistortion):
    """Squared Hellinger distance of histograms: half of Σ (√x − √y)², rows scaled to sum 1."""

    name = "hellinger"

    def distance_matrix(self, rows, centroids):
        return np.stack([self._apart(rows, one) for one in centroids], axis=1)

    def pair_distances(self, rows, others):
        return self._apart(rows, self._shares(others))

    def largest_pair_distance(self, minimum, maximum):
        return 1.0

    def summands(self, rows):
        return np.sqrt(self._shares(rows))

    def centre(self, means):
        return means**2 / (means**2).sum(axis=1, keepdims=True)

    def _apart(self, rows, others):
        return 1.0 - np.minimum(np.sqrt(self._shares(rows) * others).sum(axis=1), 1.0)

    @staticmethod
    def _shares(rows):
        return rows / rows.sum(axis=1, keepdims=True)


# end of the example


def histograms(seed: int, n: int = 60) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    hidden = rng.integers(0, 3, n)
    profiles = rng.dirichlet(np.full(8, 0.5), 3)
    return rng.multinomial(12, profiles[hidden]).astype(float), hidden
