"""A sample of the hostile inputs; `make prove ARGS="--only hostile"` runs all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile_inputs import CASES, Case, check, make_world

APART = {"yaml: a bomb of aliases", "pairs: a device"}
INSIDE = [one for one in CASES if not one.apart]
SAMPLE = [*INSIDE[::37], *[one for one in CASES if one.name in APART]]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    make_world(folder)
    return folder


@pytest.mark.parametrize("case", SAMPLE, ids=[one.name for one in SAMPLE])
def test_a_hostile_input_ends_in_words(case: Case, world: Path, tmp_path: Path) -> None:
    assert not check(case, world, tmp_path / "case")


def test_every_case_has_a_name_of_its_own() -> None:
    assert len({one.name for one in CASES}) == len(CASES) >= 300


def test_the_check_sees_what_goes_wrong(world: Path, tmp_path: Path) -> None:
    fine = Case("no harm", ("inspect", "nowhere"), fine=True)
    assert "another exit code" in check(fine, world, tmp_path / "fine")
    lost = Case("another place", ("inspect", "nowhere"), place="elsewhere")
    assert "the place is not named" in check(lost, world, tmp_path / "lost")
