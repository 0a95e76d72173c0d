"""The run directory: whole iterations or none, resume to the same bits, refusal of other runs."""

from __future__ import annotations
