"""What is published from the code is what the code says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.published import PUBLISHED


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.name)
def test_what_is_published_is_that_of_the_code(path: Path) -> None:
    assert path.read_text() == PUBLISHED[path](), "write it again: make published"
