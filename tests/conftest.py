"""What every test shares: hypothesis profiles and where cluster tests run."""

from __future__ import annotations

import gc
import math
import os
import signal
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from distributed import Client, LocalCluster

pytest.register_assert_rewrite("tests.support")  # before any of it is imported

from hmrf_dask.cli import progress  # noqa: E402
from tests.support.job_runs import unread  # noqa: E402
from tests.support.loop import only_tables  # noqa: E402
from tests.support.postgres import database, postgres  # noqa: E402
from tests.support.reads import little_memory  # noqa: E402
from tests.support.rows_in_forms import form, no_work, working  # noqa: E402
from tests.support.stores import place, s3_options, store  # noqa: E402
from tests.support.tables import tickets  # noqa: E402

__all__ = [
    "database",
    "form",
    "little_memory",
    "no_work",
    "only_tables",
    "place",
    "postgres",
    "s3_options",
    "store",
    "tickets",
    "unread",
    "working",
]  # fixtures

# The same examples in every run, so that a red test is red for everybody; a deadline would be a
# timing assertion, and the first call of a numba kernel compiles it. `HYPOTHESIS_PROFILE=explore`
# draws new examples, and more.
settings.register_profile(
    "repeatable",
    deadline=None,
    derandomize=True,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "explore", parent=settings.get_profile("repeatable"), derandomize=False, max_examples=200
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


def pytest_configure() -> None:
    """Let Ctrl-C be Ctrl-C (a shell makes what it starts in the background ignore it).

    Nor does a test wait for the disk: no power is cut here. What is synced, and when, is seen by
    tests that put a function of theirs in this place. And whether lines of progress come before
    an error is not left to how fast the machine is.
    """
    progress.AFTER = math.inf
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.fsync = lambda descriptor: None


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Keep tests of a cluster in one pytest worker, of a database in one: each starts once."""
    for item in items:
        if "process_cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.cluster)
        parallel = item.config.pluginmanager.hasplugin("xdist")
        if parallel and item.get_closest_marker("cluster"):
            item.add_marker(pytest.mark.xdist_group("cluster"))
        elif parallel and "postgres" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("postgres"))
    yield
    for item in items:
        _name_group(item)


def _name_group(item: pytest.Item) -> None:
    """Put the group of a test into its id, by which xdist's controller knows what to keep together.

    xdist 3.8 does so itself, where pytest 9.2 no longer reads it: all groups were split.
    """
    group, id_ = item.get_closest_marker("xdist_group"), getattr(item, "id", None)
    if group and id_ and item.config.getoption("loadgroup", False):
        item._id = type(id_).parse(f"{item.nodeid}@{group.args[0]}")  # type: ignore[attr-defined]


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over modules and tests: they stay until the end."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """Close the cluster after the last of its tests: idle, it takes a tenth of a core."""
    used = _cluster.cache_info().currsize
    if used and (nextitem is None or nextitem.get_closest_marker("cluster") is None):
        _cluster().close()
        _cluster.cache_clear()


@cache
def _cluster() -> LocalCluster:
    """Start the one cluster of the test run: two worker processes on loopback."""
    from distributed import LocalCluster

    return LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        env={
            # a worker asks one that died for so long, half a minute by default
            "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "3s",
            # taken a hundred times a second, idle or not
            "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
        },
    )


@pytest.fixture
def process_cluster() -> LocalCluster:
    """Give the one cluster of the test run."""
    return _cluster()


@pytest.fixture
def process_client(process_cluster: LocalCluster) -> Iterator[Client]:
    """Give a client that Dask uses as long as the test runs."""
    from distributed import Client

    with Client(process_cluster) as client:
        yield client
