"""From texts to rows: counts, vocabulary, TF-IDF, latent semantic analysis."""

from __future__ import annotations
