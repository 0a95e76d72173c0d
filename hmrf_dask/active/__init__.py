"""Active choice of questions: what to ask a person or an oracle, and what the answers say."""

from __future__ import annotations

from hmrf_dask.active.next_questions import next_choices, next_pairs
from hmrf_dask.questions.answers import Answers
from hmrf_dask.questions.oracles import ChoosingOracle, FileOracle, LabelOracle
from hmrf_dask.questions.selection import explore_consolidate

__all__ = [
    "Answers",
    "ChoosingOracle",
    "FileOracle",
    "LabelOracle",
    "explore_consolidate",
    "next_choices",
    "next_pairs",
]
