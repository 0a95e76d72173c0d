"""The report of a release or a fit: what a person reads, as a page and as JSON."""

from __future__ import annotations
