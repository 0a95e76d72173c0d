"""Whole jobs from files to files: what the commands run."""

from __future__ import annotations
