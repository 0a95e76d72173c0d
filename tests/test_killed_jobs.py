"""A run that is killed anywhere is resumed to the same bits, and readers never see half of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.job_corpus import JobCorpus
from tests.support.killed_jobs import killed_jobs

METHOD = {"n_clusters": 3, "n_init": 1}
KILLS, STOPS = 1, 1  # `make prove` dies far more often


def test_killed_anywhere_and_run_again_gives_the_same_bits(tmp_path: Path) -> None:
    job = JobCorpus(tmp_path).write_all(60, 10, method=METHOD, questions=5)
    found = killed_jobs(job, KILLS, seed=0)
    assert len(found["kills"]) == KILLS
    for one in found["kills"]:
        assert one["killed"], one
        assert not one["half"], one
        assert one["resumed"], one
        assert one["same"], one


@pytest.mark.long
def test_a_run_that_was_stopped_and_wakes_ends_and_changes_nothing(tmp_path: Path) -> None:
    job = JobCorpus(tmp_path).write_all(60, 10, method=METHOD, questions=5)
    found = killed_jobs(job, STOPS, seed=1, how="stopped")
    assert len(found["kills"]) == STOPS
    for one in found["kills"]:
        assert one["stopped"], one
        assert one["taken"], one
        assert one["as_undisturbed"], one
        assert one["code"] == 75, one
        assert "another run took over" in one["words"], one
        assert one["same"], one
        assert not one["changed"], one
