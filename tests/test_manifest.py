"""Manifests: what they may say, all mistakes at once, and the files they name in a store."""

from __future__ import annotations

import gzip
import hashlib
import os
import pickle
import uuid
from pathlib import Path
from typing import Any

import fsspec
import pytest
import yaml

from hmrf_dask.documents import streams
from hmrf_dask.documents.files import list_answers, list_files
from hmrf_dask.documents.manifest import SCHEMA, Manifest, base_of, load_manifest
from hmrf_dask.errors import (
    ConfigurationError,
    InvalidInputError,
    SourceError,
    SourceUnavailableError,
)
from hmrf_dask.storage import addresses

MANIFESTS = Path(__file__).parents[1] / "data_manifests"


def described(*paths: Any, **changes: Any) -> dict[str, Any]:
    resources = [{"name": f"r{n}", "path": path} for n, path in enumerate(paths or ("a.jsonl",))]
    return {"$schema": SCHEMA, "name": "small", "resources": resources, **changes}


def written(folder: Path, content: Any) -> str:
    path = folder / "manifest.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return str(path)


def manifest_of(*paths: Any, **changes: Any) -> Manifest:
    return Manifest.model_validate(described(*paths, **changes))


def names(manifest: Manifest, base: Any) -> list[str]:
    return [source.path for source in list_files(manifest, str(base))]


def put(folder: Path, *paths: str, content: bytes = b'{"id": "a", "text": "b"}\n') -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


# --- what a manifest says --------------------------------------------------------------------


def test_a_manifest_is_read_from_files_and_stores(
    tmp_path: Path, s3_options: dict[str, Any]
) -> None:
    content = described(
        licenses=[{"name": "CC-BY-4.0"}], language="no", created="2026-11-18", version="1.0"
    )
    data = yaml.safe_dump(content).encode()
    places = {
        written(tmp_path, content): {},
        f"memory://{uuid.uuid4().hex}/manifest.yaml": {},
        f"s3://runs/{uuid.uuid4().hex}/manifest.yaml": s3_options,
    }
    for url, options in places.items():
        if "://" in url:
            files, path = fsspec.url_to_fs(url, **options)
            files.pipe_file(path, data)
        manifest = load_manifest(url, options)
        assert manifest.resources[0].path == ("a.jsonl",)
        assert (manifest.language, manifest.created) == ("no", "2026-11-18")
        assert base_of(url) == url.removesuffix("/manifest.yaml")


def test_a_kind_of_source_that_is_not_installed_is_named() -> None:
    resource = {"name": "inbox", "mailbox": {"folder": "mail"}}
    content = {"$schema": SCHEMA, "name": "small", "resources": [resource]}
    with pytest.raises(ValueError, match=r"must have path, or .*sql.*, got mailbox; install the"):
        Manifest.model_validate(content)


def test_all_mistakes_are_reported_at_once_with_their_paths(tmp_path: Path) -> None:
    text = """
$schema: hmrf-dask/manifest/v2
name: Not A Name
language: no
documents: {ids: key, max_bytes: many}
resources:
  - {name: one, path: a.jsonl, formt: jsonl}
  - {name: two, path: b.jsonl, format: jsonlines, hash: "sha256:12"}
  - {name: three}
licenses: [{title: ours}]
colour: red
"""
    with pytest.raises(ConfigurationError) as caught:
        load_manifest(written(tmp_path, text))
    described = str(caught.value)
    assert "manifest.yaml has 11 mistakes" in described
    for expected in (
        "$schema: must be hmrf-dask/manifest/v1, got 'hmrf-dask/manifest/v2'",
        "name: ",
        "language: must be a text, got false (put it in quotes",
        "documents.ids: must not be there (did you mean 'id'?)",
        "documents.max_bytes: ",
        "resources.0.formt: must not be there (did you mean 'format'?)",
        "resources.1.format: ",
        "(did you mean 'jsonl'?)",
        "resources.1.hash: must have 64 hexadecimal digits for sha256, got 'sha256:12'",
        "resources.2.path: is missing",
        "licenses.0: must have a name or a path",
        "colour: must not be there",
    ):
        assert expected in described


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"storage_options": {"secret": "hush"}}, "must not hold a credential, got 'secret'"),
        ({"storage_options": {"key": "AKIA"}}, "use a profile, the environment"),
        ({"storage_options": {"profil": "x"}}, "did you mean 'profile'?"),
        (
            {"storage_options": {"endpoint_url": "http://me:hush@127.0.0.1"}},
            "must not hold a user or a password",
        ),
        (
            {"resources": [{"name": "a", "path": "s3://me:hush@bucket/x.csv"}]},
            "user or a password, got s3://…;",
        ),
        (
            {"resources": [{"name": "a", "path": "https://x.org/a.csv?X-Amz-Signature=hush"}]},
            "must have no query and no fragment",
        ),
        (
            {"resources": [{"name": "a", "path": "simplecache::s3://bucket/x.csv"}]},
            "must be a plain URL without '::'",
        ),
        ({"resources": [{"name": "a", "path": " "}]}, "must be a path or a URL, got nothing"),
        ({"resources": []}, "resources: must have at least one item"),
        (
            {"resources": [{"name": "a", "path": "x.csv"} for _ in "ab"]},
            "names must differ, got a twice",
        ),
        ({"documents": {"text": None}}, "must have a text or an embedding column"),
        ({"documents": {"id": "text"}}, "must be different columns, got text, text"),
        (
            {"resources": [{"name": "a", "path": "x.csv", "encoding": "utf-9"}]},
            "must be an encoding that Python knows, got 'utf-9'",
        ),
        (
            {"resources": [{"name": "a", "path": "x", "format": "jsonl", "encoding": "latin-1"}]},
            "encoding of JSONL must be utf-8",
        ),
        (
            {"resources": [{"name": "a", "path": "x.csv", "hash": "crc:12"}]},
            "must begin with md5, sha1, sha256, sha512 and a colon",
        ),
    ],
)
def test_what_a_manifest_must_not_say(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_manifest(written(tmp_path, described(**changes)))
    assert message in str(caught.value)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: a\nname: b\n", "line 2, column 1: must be YAML, the key 'name' comes twice"),
        ("name: [a\n", "must be YAML"),
        ("", "must be a mapping of names to values"),
        ("- a\n", "must be a mapping of names to values, got a list"),
        ("name: !!python/object/apply:os.getcwd []\n", "must be YAML"),
    ],
)
def test_what_is_no_manifest(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load_manifest(written(tmp_path, text))


def test_a_manifest_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="there is no such file") as caught:
        load_manifest(tmp_path / "none.yaml")
    assert caught.value.exit_code == 78


@pytest.mark.parametrize("path", sorted(MANIFESTS.glob("*.yaml")), ids=lambda path: path.name)
def test_shipped_manifests_are_valid(path: Path) -> None:
    manifest = load_manifest(path)
    assert manifest.name == path.stem
    assert manifest.licenses
    assert manifest.sources


def test_builtin_corpora_are_sources() -> None:
    (source,) = list_files(load_manifest(MANIFESTS / "newsgroups20.yaml"), "/nowhere")
    assert source.format == "builtin"
    assert source.etag.startswith("scikit-learn-")
    with pytest.raises(ConfigurationError, match="a builtin corpus must be builtin://"):
        list_files(manifest_of("builtin://newsgroup"), "/nowhere")


# --- the files it names ----------------------------------------------------------------------


def test_paths_globs_and_folders_begin_at_the_manifest(tmp_path: Path) -> None:
    base = tmp_path / "odd [name]*"
    put(base, "b.jsonl", "a.jsonl.gz", "in/c.jsonl.zst", "in/deep/d.jsonl", "in/_SUCCESS", "x.bin")
    put(base, "in/.hidden/e.jsonl", "in/deep/._d.jsonl")
    assert names(manifest_of("b.jsonl"), base) == ["b.jsonl"]
    assert names(manifest_of(["*.jsonl", "*.jsonl.gz"]), base) == ["a.jsonl.gz", "b.jsonl"]
    assert names(manifest_of("in"), base) == ["in/c.jsonl.zst", "in/deep/d.jsonl"]
    assert names(manifest_of("in/**/d.jsonl"), base) == ["in/deep/d.jsonl"]
    assert names(manifest_of(["b.jsonl", "[ab].jsonl"]), base) == ["b.jsonl"]
    absolute = str(tmp_path / "odd [[]name[]]*" / "b.jsonl")
    assert names(manifest_of(absolute), "/nowhere") == [str(base / "b.jsonl")]
    assert [s.compression for s in list_files(manifest_of("in"), str(base))] == ["zst", "none"]


def test_texts_are_called_by_their_path_below_the_folder(tmp_path: Path) -> None:
    put(tmp_path, "texts/a.txt", "texts/b/a.txt", "texts/_c.md")
    for path in ("texts", "texts/**/*"):
        manifest = Manifest.model_validate(
            described(resources=[{"name": "t", "path": path, "format": "text"}])
        )
        sources = list_files(manifest, str(tmp_path))
        assert [s.document_id for s in sources] == ["_c.md", "a.txt", "b/a.txt"]


@pytest.mark.parametrize("spelling", ["~/texts/**/*.txt", "file://{home}/texts/**/*.txt"])
def test_documents_of_a_glob_are_called_by_their_path_below_it_in_any_spelling(
    spelling: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    put(tmp_path, "texts/a.txt", "texts/b/a.txt")
    manifest = manifest_of(resources=[{"name": "r", "path": spelling.format(home=tmp_path)}])
    sources = list_files(manifest, str(tmp_path))
    assert [source.document_id for source in sources] == ["a.txt", "b/a.txt"]


@pytest.mark.parametrize("kind", ["memory", "s3"])
def test_objects_of_a_store(kind: str, request: pytest.FixtureRequest) -> None:
    options = {} if kind == "memory" else request.getfixturevalue("s3_options")
    root = f"{kind}://{'runs/' if kind == 's3' else ''}{uuid.uuid4().hex}"
    files, path = fsspec.url_to_fs(root, **options)
    for name in ("in/b.jsonl", "in/a.csv", "in/deep/c.jsonl", "in/_temporary/d.jsonl", "e.jsonl"):
        files.pipe_file(f"{path}/{name}", name.encode())
    changes = {"storage_options": {**options, "profile": None}}

    def listed(*paths: Any, base: str = "/nowhere") -> list[str]:
        manifest = manifest_of(*paths, **changes)
        found = list_files(manifest, base)
        assert all(source.path == source.url for source in found)
        assert all(source.size == len(source.url) - len(root) - 1 for source in found)
        return [source.path.removeprefix(f"{root}/") for source in found]

    assert listed(f"{root}/in") == ["in/a.csv", "in/b.jsonl", "in/deep/c.jsonl"]
    assert listed(f"{root}/in/*.jsonl") == ["in/b.jsonl"]
    assert listed("in/**/*.jsonl", base=root)[0] == "in/_temporary/d.jsonl"
    assert listed("e.jsonl", f"{root}/in/a.csv", base=root) == ["e.jsonl", "in/a.csv"]
    (before,) = list_files(manifest_of(f"{root}/e.jsonl", **changes), "/")
    assert list_files(manifest_of(f"{root}/e.jsonl", **changes), "/") == [before]
    assert pickle.loads(pickle.dumps(before)) == before
    files.pipe_file(f"{path}/e.jsonl", b"f.jsonl")
    (after,) = list_files(manifest_of(f"{root}/e.jsonl", **changes), "/")
    assert after.size == before.size
    assert after.etag != before.etag


def test_an_etag_follows_every_change_of_a_local_file(tmp_path: Path) -> None:
    put(tmp_path, "a.jsonl")
    os.utime(tmp_path / "a.jsonl", ns=(1, 1_700_000_000_000_000_001))
    (before,) = list_files(manifest_of("a.jsonl"), str(tmp_path))
    os.utime(tmp_path / "a.jsonl", ns=(1, 1_700_000_000_000_000_002))
    (after,) = list_files(manifest_of("a.jsonl"), str(tmp_path))
    assert int(after.etag, 16) - int(before.etag, 16) == 1


def test_names_of_objects_may_have_any_sign() -> None:
    files = fsspec.filesystem("memory")
    for name in ("a#1.jsonl", "a?b=c.jsonl", "me:x@y.jsonl"):
        files.pipe(f"/signs/{name}", b"{}\n")
    sources = list_files(manifest_of("memory://signs/*.jsonl"), "/")
    assert len(sources) == 3
    for source in sources:
        assert streams.read_whole(source.url, {}) == b"{}\n"


def test_a_store_without_documents(tmp_path: Path, s3_options: dict[str, Any]) -> None:
    (tmp_path / "empty").mkdir()
    for path in ("empty", "*.jsonl"):
        with pytest.raises(InvalidInputError, match="must be at least one file, got none"):
            names(manifest_of(path), tmp_path)
    (tmp_path / "broken.csv").symlink_to(tmp_path / "nowhere")
    for path in ("none.jsonl", str(tmp_path / "none"), "memory://none/none.jsonl", "*.csv"):
        with pytest.raises(SourceError, match="there is no such file or folder") as caught:
            names(manifest_of(path), tmp_path)
        assert caught.value.exit_code == 78
    with pytest.raises(SourceError, match=r"s3://no-such-bucket/x\.csv: .*no such file") as caught:
        names(manifest_of("s3://no-such-bucket/x.csv", storage_options=s3_options), "/")
    assert caught.value.exit_code == 78


class Unreachable(fsspec.AbstractFileSystem):
    """A store that is down, or that does not know us."""

    protocol = "unreachable"
    cachable = False
    failure: Exception = ConnectionError("refused")

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        raise self.failure


@pytest.mark.parametrize(
    ("failure", "code", "message"),
    [
        (ConnectionError("refused"), 75, "ConnectionError: refused; run again later"),
        (TimeoutError("slow"), 75, "run again later"),
        (OSError(5, "input/output error"), 75, "run again later"),
        (PermissionError("Forbidden"), 78, "no permission"),
        (type("NoCredentialsError", (Exception,), {})("none found"), 78, "give credentials in"),
    ],
)
def test_a_store_that_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, code: int, message: str
) -> None:
    fsspec.register_implementation("unreachable", Unreachable, clobber=True)
    monkeypatch.setattr(Unreachable, "failure", failure)
    monkeypatch.setattr(addresses, "STORES", addresses.STORES | {"unreachable"})
    with pytest.raises(SourceError, match=message) as caught:
        names(manifest_of("unreachable://bucket/a.jsonl"), "/")
    assert caught.value.exit_code == code
    assert isinstance(caught.value, SourceUnavailableError) == (code == 75)


def test_a_folder_that_may_not_be_read(tmp_path: Path) -> None:
    put(tmp_path, "in/a.jsonl")
    with pytest.MonkeyPatch.context() as patch:  # the tests may run as root, who may read all
        patch.setattr(os, "scandir", refuse)
        with pytest.raises(SourceError, match="no permission") as caught:
            names(manifest_of("in"), tmp_path)
    assert caught.value.exit_code == 78


def refuse(path: object) -> Any:
    raise PermissionError(13, "Permission denied", str(path))


def test_a_store_whose_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(url: str, **options: Any) -> Any:
        raise ImportError("Please install gcsfs")

    monkeypatch.setattr(fsspec, "url_to_fs", missing)
    with pytest.raises(SourceError, match=r"install hmrf-dask\[gcs\]"):
        names(manifest_of("gs://bucket/a.jsonl"), "/")


def test_options_reach_only_stores_that_know_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def note(url: str, options: dict[str, Any], **_: Any) -> Any:
        asked[url] = options
        raise FileNotFoundError(url)

    monkeypatch.setattr(streams, "open_files", note)
    options = {"profile": "me", "anon": True, "project": "ours"}
    for url in ("s3://b/a.csv", "gs://b/a.csv", "memory://b/a.csv"):
        with pytest.raises(SourceError):
            names(manifest_of(url, storage_options=options), "/")
    assert asked["s3://b/a.csv"] == {"profile": "me", "anon": True}
    assert asked["gs://b/a.csv"] == {"project": "ours", "token": "anon"}
    assert asked["memory://b/a.csv"] == {}


def test_sizes_and_hashes_are_those_of_one_file(tmp_path: Path) -> None:
    put(tmp_path, "a.jsonl", "b.jsonl", content=b"{}\n")

    def of_one_file(**changes: Any) -> Manifest:
        resource = {"name": "r", "path": "a.jsonl", **changes}
        return Manifest.model_validate(described(resources=[resource]))

    digest = hashlib.md5(b"{}\n").hexdigest()
    (source,) = list_files(of_one_file(bytes=3, hash=digest.upper()), str(tmp_path))
    assert source.hash == f"md5:{digest}"
    with pytest.raises(InvalidInputError, match=r"a\.jsonl: must have 4 bytes .* got 3"):
        names(of_one_file(bytes=4), tmp_path)
    with pytest.raises(ConfigurationError, match="must be those of one file, got 2 files"):
        names(of_one_file(path="*.jsonl", bytes=3), tmp_path)


def test_files_whose_kind_is_not_clear(tmp_path: Path) -> None:
    put(tmp_path, "a.json", "a.parquet.gz", "a.csv")
    with pytest.raises(ConfigurationError, match=r"the format of a\.json must be known by its end"):
        names(manifest_of("a.json"), tmp_path)
    with pytest.raises(ConfigurationError, match="Parquet must not be compressed as a whole"):
        names(manifest_of("a.parquet.gz"), tmp_path)
    with pytest.raises(ConfigurationError, match=r"a\.csv must be in one of them, got it in two"):
        names(manifest_of("a.csv", "*.csv"), tmp_path)


def test_answers_are_pair_files(tmp_path: Path) -> None:
    put(tmp_path, "a.jsonl", "b.csv", "c.parquet", "d.txt")
    assert list_answers(manifest_of(), str(tmp_path)) == []
    found = list_answers(manifest_of(answers={"path": ["b.csv", "*.parquet"]}), str(tmp_path))
    assert [(one.path, one.format) for one in found] == [("b.csv", "csv"), ("c.parquet", "parquet")]
    with pytest.raises(ConfigurationError, match=r"named \.csv, \.jsonl or \.parquet, got d\.txt"):
        list_answers(manifest_of(answers={"path": "d.txt"}), str(tmp_path))


def test_tab_separated_files_are_csv_with_tabs(tmp_path: Path) -> None:
    put(tmp_path, "a.tsv", "b.csv")
    put(tmp_path, "c.tsv.gz", content=gzip.compress(b""))
    found = list_files(manifest_of("*.?sv*"), str(tmp_path))
    assert [one.dialect.delimiter for one in found] == ["\t", ",", "\t"]


def test_links_that_go_round_are_followed_once(tmp_path: Path) -> None:
    (tmp_path / "docs" / "deep").mkdir(parents=True)
    (tmp_path / "docs" / "deep" / "a.csv").write_text("id,text\n")
    (tmp_path / "docs" / "deep" / "round").symlink_to(tmp_path / "docs")
    assert names(manifest_of("docs"), str(tmp_path)) == ["docs/deep/a.csv"]
