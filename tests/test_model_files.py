"""Saved models: the same bits of every answer, no pickle, words for a folder that is not whole."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from hmrf_dask import HMRFKMeans, KMeans, MPCKMeans, load
from hmrf_dask.errors import DistortionError, InvalidInputError
from hmrf_dask.releases.own_files import RUN_DIRECTORY, is_own
from hmrf_dask.storage.sealed import digest, seal_for_people, unseal
from tests.support.family_fits import counts, pairs_of
from tests.support.long_cases import long
from tests.support.own_distortions import Hellinger
from tests.support.problems import DISTORTIONS


@pytest.mark.parametrize("learn", [True, *long(False)])
@pytest.mark.parametrize("distortion", DISTORTIONS)
def test_a_loaded_model_gives_the_same_bits(distortion: str, learn: bool, tmp_path: Path) -> None:
    rows, hidden = counts()
    model = HMRFKMeans(3, distortion=distortion, learn_weights=learn, random_state=0)
    model.fit(rows, must_link=pairs_of(hidden, 20))
    model.save(tmp_path / "model")
    other = load(tmp_path / "model")
    assert type(other) is HMRFKMeans
    assert other.get_params() == model.get_params()
    new = sp.csr_array(counts(seed=9)[0])
    np.testing.assert_array_equal(other.predict(new), model.predict(new))
    np.testing.assert_array_equal(other.transform(new), model.transform(new))
    assert other.score(new) == model.score(new)
    attributes = {name: one for name, one in vars(model).items() if name.endswith("_")}
    for name, value in attributes.items():
        # Those are of the rows and pairs, and of the run.
        if name not in ("labels_", "outliers_", "suspect_answers_", "iterations_"):
            np.testing.assert_equal(getattr(other, name), value)
    assert not hasattr(other, "labels_")


@pytest.mark.parametrize("kind", [HMRFKMeans, MPCKMeans, KMeans])
def test_every_estimator_comes_back_as_what_it_was(kind: type[Any], tmp_path: Path) -> None:
    rows, _ = counts()
    model = kind(3, init=rows[:3].astype(float), random_state=np.random.RandomState(0)).fit(rows)
    model.save(str(tmp_path))
    other = load(str(tmp_path))
    assert type(other) is kind
    np.testing.assert_array_equal(other.init, model.init)
    assert other.random_state is None
    assert other.seed_ == model.seed_
    np.testing.assert_array_equal(other.predict(rows), model.labels_)
    np.testing.assert_array_equal(other.fit(rows).labels_, model.labels_)


def test_memory_of_a_loaded_model_is_linear_in_its_features(tmp_path: Path) -> None:
    rows = sp.random(30, 5_000, 0.01, "csr", np.float32, np.random.default_rng(0))
    KMeans(3, n_init=1, random_state=0).fit(rows).save(tmp_path)
    tracemalloc.start()
    try:
        load(tmp_path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 40 * 8 * 5_000  # a square of features is 1,000 times as much


def test_a_model_can_be_anywhere_fsspec_reaches() -> None:
    rows, _ = counts()
    model = KMeans(3, random_state=0).fit(rows)
    model.save("memory://models/one")
    np.testing.assert_array_equal(load("memory://models/one").predict(rows), model.labels_)


def test_names_of_columns_come_back(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="only tables with names need it")
    rows, _ = counts(width=3)
    table = pandas.DataFrame(rows, columns=["a", "b", "c"])
    model = KMeans(3, random_state=0).fit(table)
    model.save(tmp_path)
    np.testing.assert_array_equal(load(tmp_path).predict(table), model.labels_)


@pytest.mark.parametrize("parameters", [
    {"init": np.eye(3)}, {"outliers": 0.1}, {"outliers": "auto"},
    {"distortion": "euclidean", "learn_weights": "full"},
], ids=["init", "share", "limits", "metric"])  # fmt: skip
def test_all_files_of_a_model_are_those_of_a_run(
    parameters: dict[str, Any], tmp_path: Path
) -> None:
    rows = np.random.default_rng(0).normal(np.repeat(np.eye(3), 10, axis=0), 0.1)
    pairs = {"must_link": [(0, 1), (10, 11)], "cannot_link": [(0, 10), (1, 20)]}
    model = HMRFKMeans(3, n_init=1, random_state=0, **parameters)
    model.fit(rows, **pairs).save(tmp_path / "model")
    names = [f"model/{path.name}" for path in (tmp_path / "model").iterdir()]
    assert len(names) >= 5
    assert all(is_own(name, RUN_DIRECTORY) for name in names), names  # else no run removes them


def test_a_later_model_replaces_an_earlier_one(tmp_path: Path) -> None:
    rows, _ = counts()
    KMeans(3, random_state=0).fit(rows).save(tmp_path)
    later = KMeans(2, distortion="euclidean", random_state=0).fit(rows)
    later.save(tmp_path)
    np.testing.assert_array_equal(load(tmp_path).predict(rows), later.labels_)


def test_a_saved_model_outlasts_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, _ = counts()
    model = KMeans(3, random_state=0).fit(rows)
    synced = set()

    def fsync(descriptor: int) -> None:
        synced.add(Path(f"/proc/self/fd/{descriptor}").resolve())

    monkeypatch.setattr(os, "fsync", fsync)
    model.save(tmp_path / "model")
    names = {path.name.split(".")[1] for path in synced if path.name.endswith(".temporary")}
    assert names == {file.stem for file in (tmp_path / "model").iterdir()}
    assert {tmp_path, tmp_path / "model"} <= synced


def test_nothing_in_the_folder_is_pickled(tmp_path: Path) -> None:
    rows, _ = counts()
    KMeans(3, random_state=0).fit(rows).save(tmp_path)
    files = sorted(file.name for file in tmp_path.iterdir())
    assert files == ["centroids.npy", "maximum.npy", "minimum.npy", "model.json", "weights.npy"]
    for file in tmp_path.glob("*.npy"):
        assert np.load(file, allow_pickle=False).dtype == np.float64


def test_own_distortions_cannot_be_saved(tmp_path: Path) -> None:
    rows, _ = counts()
    model = KMeans(3, distortion=Hellinger(), random_state=0).fit(rows)
    with pytest.raises(
        DistortionError, match=r"built-in distortion, got 'hellinger'.*keep cluster"
    ):
        model.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


# ---- folders that are not whole


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows, _ = counts()
    KMeans(3, random_state=0).fit(rows).save(tmp_path / "model")
    return tmp_path / "model"


def change(folder: Path, **fields: Any) -> None:
    """Write another record, sealed again."""
    file = folder / "model.json"
    content = unseal(file.read_bytes(), "model.json")
    file.write_bytes(seal_for_people(content | fields))


@pytest.mark.parametrize("name", ["centroids.npy", "weights.npy", "minimum.npy", "maximum.npy"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(InvalidInputError, match=f"must hold {name}, .* save the model again"):
        load(folder)


def test_a_changed_file_is_named(folder: Path) -> None:
    data = bytearray((folder / "centroids.npy").read_bytes())
    data[-1] ^= 1
    (folder / "centroids.npy").write_bytes(data)
    with pytest.raises(InvalidInputError, match=r"centroids\.npy must be the file .* other bytes"):
        load(folder)


def test_a_folder_without_a_model_is_refused(folder: Path) -> None:
    (folder / "model.json").unlink()
    for path in (folder, folder / "nowhere"):
        with pytest.raises(InvalidInputError, match=r"must be a folder that save\(\) wrote, got"):
            load(path)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", '{"format": "other/v1"}'])
def test_another_json_is_refused(folder: Path, text: str) -> None:
    (folder / "model.json").write_text(text)
    with pytest.raises(InvalidInputError, match=r"save the model again"):
        load(folder)


@pytest.mark.parametrize(
    "fields",
    [
        {"distortion": "hellinger"},
        {"corpus": {}},
        {"files": {}},
        {"files": None},
        {"parameters": 3},
        {"summary": {}},
        {"parameters": {"n_clusterz": 3}},
    ],
)
def test_a_record_that_lacks_something_is_refused(folder: Path, fields: dict[str, Any]) -> None:
    change(folder, **fields)
    with pytest.raises(InvalidInputError, match=r"must be as .*; save the model again"):
        load(folder)


def test_a_changed_digit_of_the_record_is_not_believed(folder: Path) -> None:
    file = folder / "model.json"
    data = file.read_bytes()
    place = data.index(b'"n_rows": ') + 10
    file.write_bytes(data[:place] + b"9" + data[place:])
    with pytest.raises(InvalidInputError, match=r"does not match its checksum; save the model"):
        load(folder)


def header(shape: str, dtype: str = "<f8") -> bytes:
    """Return an .npy file that claims a shape and holds 24 numbers."""
    said = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(said).to_bytes(2, "little") + said.encode() + bytes(192)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x93NUMPY",
        header("(1000000000000,)"),
        header("(3, 1000000000000)"),
        header("(-1, 8)"),
        header("(3, 9)"),
        header("(24,)", "|O"),
        header("(24,)", "|V0"),
        header("(24,)"),  # whole, but no centroids
        header("(3, 8)", "<i8"),
    ],
)
def test_a_lying_array_is_refused_whatever_names_it(folder: Path, data: bytes) -> None:
    (folder / "centroids.npy").write_bytes(data)
    with pytest.raises(InvalidInputError, match=r"centroids\.npy must be the file .* other bytes"):
        load(folder)
    files = unseal((folder / "model.json").read_bytes(), "model.json")["files"]
    change(folder, files=files | {"centroids.npy": digest(data)})
    with pytest.raises(InvalidInputError, match=r"save the model again"):
        load(folder)


def test_a_later_estimator_is_named(folder: Path) -> None:
    change(folder, estimator="KMedians")
    with pytest.raises(InvalidInputError, match=r"one of HMRFKMeans, .* got 'KMedians'"):
        load(folder)
