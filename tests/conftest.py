"""What every test shares: hypothesis profiles and where cluster tests run."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

# The same examples in every run, so that a red test is red for everybody; a deadline would be a
# timing assertion, and the first call of a numba kernel compiles it. `HYPOTHESIS_PROFILE=explore`
# looks for new examples.
settings.register_profile(
    "repeatable",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", parent=settings.get_profile("repeatable"), derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep cluster tests in one pytest worker: a process cluster takes seconds to start."""
    for item in items:
        if item.get_closest_marker("cluster"):
            item.add_marker(pytest.mark.xdist_group("cluster"))
