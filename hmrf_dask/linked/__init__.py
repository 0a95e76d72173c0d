"""Where constrained documents lie: linked partitions and the bundles of ICM."""

from __future__ import annotations
