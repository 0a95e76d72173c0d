"""The row of the proof table about damage: a flipped bit of any file of an output is seen."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.proofs.loop import Figures, Row
from tests.support.damaged_outputs import campaign


def flips() -> Figures:
    """Damage 300 files of an output, of every kind in turn, and ask eight commands each time."""
    with tempfile.TemporaryDirectory() as folder:
        return campaign(Path(folder), 300)


FLIP_ROWS = (
    Row(
        "flips",
        "300 damaged files of an output, of every kind: the same results, or words and exit code",
        flips,
        lambda f: f["damages"] == 300 and not f["wrong"],
    ),
)
