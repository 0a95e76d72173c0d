"""From text to rows: so far latent semantic analysis of rows that are there."""

from __future__ import annotations
