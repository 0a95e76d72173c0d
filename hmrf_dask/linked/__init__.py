"""Where constrained documents lie: linked partitions and ICM problems."""

from __future__ import annotations
