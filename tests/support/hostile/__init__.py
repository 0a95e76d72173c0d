"""Hostile inputs, each one line: files laid over a small healthy world, and a command."""

from __future__ import annotations

from tests.support.hostile import rows, settings, texts
from tests.support.hostile.rows import BLOCKS, OUTSIDE
from tests.support.hostile.worlds import SECONDS, Case, check, make_world

ALL_CASES: tuple[Case, ...] = (
    *settings.values(), *settings.FURTHER_VALUES, *settings.YAML, *settings.options(), *rows.ROWS,
    *texts.DOCUMENTS, *texts.answer_files(), *texts.FURTHER_FILES, *BLOCKS, *settings.SIZES,
    *rows.SIZES, *texts.BOMBS, *settings.URLS,
)  # fmt: skip

__all__ = ["ALL_CASES", "BLOCKS", "OUTSIDE", "SECONDS", "Case", "check", "make_world"]
