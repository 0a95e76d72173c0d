"""One module per format: each turns an open file into records and damage."""

from __future__ import annotations
