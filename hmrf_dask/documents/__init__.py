"""Documents in a store: manifests, the files they name, and batches of texts read from these."""

from __future__ import annotations
