"""A sample of the hostile inputs; `make prove ARGS="--only hostile"` runs all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hmrf_dask import Corpus
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.rows.block import check_finite
from tests.support.hostile import ALL_CASES, BLOCKS, OUTSIDE, Case, check, make_world

ALONE = {"yaml: a bomb of aliases", "pairs: a device"}
INSIDE = [one for one in ALL_CASES if not one.alone]
LATER = ("twice", "other file", "gzip", "row_group")  # a fit finds it, or nothing is wrong
LYING = [
    one
    for one in BLOCKS
    if one.place == OUTSIDE and not one.alone and not any(word in one.name for word in LATER)
]
SAMPLE = [*INSIDE[::53], *[one for one in ALL_CASES if one.name in ALONE]]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    make_world(folder)
    return folder


@pytest.mark.parametrize("case", SAMPLE, ids=[one.name for one in SAMPLE])
def test_a_hostile_input_ends_in_words(case: Case, world: Path, tmp_path: Path) -> None:
    assert not check(case, world, tmp_path / "case")


@pytest.mark.parametrize("case", LYING, ids=[one.name for one in LYING])
def test_a_wrong_file_of_blocks_is_refused_where_it_is_read(case: Case, tmp_path: Path) -> None:
    write = case.files["blocks"]
    assert callable(write)
    write(tmp_path / "blocks")
    with pytest.raises(InvalidInputError, match=case.place):
        _read_all(str(tmp_path / "blocks"))


def _read_all(folder: str) -> None:
    for source in Corpus.from_parquet(folder).sources:
        check_finite(source.read())


def test_every_case_has_a_name_of_its_own() -> None:
    assert len({one.name for one in ALL_CASES}) == len(ALL_CASES) >= 300


def test_the_check_sees_what_goes_wrong(world: Path, tmp_path: Path) -> None:
    fine = Case("no harm", ("inspect", "nowhere"), fine=True)
    assert "another exit code" in check(fine, world, tmp_path / "fine")
    lost = Case("another place", ("inspect", "nowhere"), place="elsewhere")
    assert "the place is not named" in check(lost, world, tmp_path / "lost")
