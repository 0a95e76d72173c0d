"""The loop: EM over partitions, its starts, its refinement, its commits."""

from __future__ import annotations
