"""From text to rows: latent semantic analysis of rows in partitions."""

from __future__ import annotations
