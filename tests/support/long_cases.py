"""Cases that `make prove` runs and `make test` does not: one more each of what others check."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def long(*cases: Any) -> list[Any]:
    """Return cases of a parametrised test, marked as long; a tuple is several arguments."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.long)
        for case in cases
    ]


def long_but(short: Iterable[Any], cases: Iterable[Any]) -> list[Any]:
    """Return cases in their order, all marked as long but some."""
    always = list(short)
    return [case if case in always else long(case)[0] for case in cases]
