"""Object stores, the files in them, and the exclusive-create log that runs and releases use."""

from __future__ import annotations
