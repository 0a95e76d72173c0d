"""Manifests: where documents and answers lie, what their columns are, whose they are.

Names of fields are those of Frictionless Data Package v2 where it has them; `documents`, `answers`,
`language` and `storage_options` are ours.
"""

from __future__ import annotations

import os
import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StrictBool,
    Tag,
    field_validator,
    model_validator,
)

from hmrf_dask.databases.statements import select_of
from hmrf_dask.documents.sources import kinds, open_source
from hmrf_dask.documents.yaml_files import (
    NAME_PATTERN,
    Variable,
    Words,
    read_yaml,
    refuse_other_kind,
    refusing,
    validated,
)
from hmrf_dask.errors import ConfigurationError, meant
from hmrf_dask.parameters import LIST_ITEMS, PATH_CHARACTERS, within
from hmrf_dask.redaction import shortened, without_secrets
from hmrf_dask.storage.addresses import (
    is_local,
    link_problem,
    local_path,
    plain_url,
    refuse_credentials,
    store_problem,
)

SCHEMA = "hmrf-dask/manifest/v1"
Format = Literal["jsonl", "parquet", "csv", "text", "builtin"]
Compression = Literal["none", "gz", "zst"]
DIGESTS = {"md5": 32, "sha1": 40, "sha256": 64, "sha512": 128}
BUILTIN = "builtin://"


def _checked_url(url: str) -> str:
    """Refuse what may carry a secret or reach elsewhere; return the URL without its spaces."""
    url = url.strip()
    if not url:
        raise ValueError("must be a path or a URL, got nothing")
    if problem := store_problem(url):
        raise ValueError(problem)
    return url


def _checked_column(name: str) -> str:
    """Refuse a column whose name, repeated for each bad record, may be a secret."""
    if (plain := without_secrets(name)) != name:
        raise ValueError(f"must be the name of a column, got what holds a secret, {plain!r}")
    return name


def _checked_endpoint(url: str) -> str:
    """Refuse what is no plain address of the web."""
    url = _checked_url(url)
    if not url.lower().startswith(("http://", "https://")):
        raise ValueError(f"must begin with http:// or https://, got {shortened(url)}")
    return url


def _checked_encoding(name: str) -> str:
    """Refuse an encoding that Python does not know."""
    try:
        "".encode(name)
    except (LookupError, ValueError):
        raise ValueError(f"must be an encoding that Python knows, got {shortened(name)}") from None
    return name


def _checked_language(tag: str) -> str:
    """Refuse what is no tag of BCP 47."""
    if not re.fullmatch(r"[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8}){0,9}", tag):
        raise ValueError(f"must be a tag of BCP 47 such as en or pt-BR, got {shortened(tag)}")
    return tag


def _checked_hash(text: str) -> str:
    """Return a hash as ``algorithm:hexadecimal``; without an algorithm it is MD5 (the standard)."""
    algorithm, _, digest = text.lower().rpartition(":")
    algorithm = algorithm or "md5"
    if algorithm not in DIGESTS:
        raise ValueError(f"must begin with {', '.join(DIGESTS)} and a colon, got {shortened(text)}")
    if not re.fullmatch(rf"[0-9a-f]{{{DIGESTS[algorithm]}}}", digest):
        raise ValueError(
            f"must have {DIGESTS[algorithm]} hexadecimal digits for {algorithm}, "
            f"got {shortened(text)}"
        )
    return f"{algorithm}:{digest}"


def _some(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if not values:
        raise ValueError("must have at least one item")
    return values


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Url = Annotated[str, Field(max_length=PATH_CHARACTERS), AfterValidator(_checked_url)]
# Not min_length: pydantic reports it also where members have mistakes, and shows all of these.
Some = (AfterValidator(_some), Field(json_schema_extra={"minItems": 1}))
Urls = Annotated[tuple[Url, ...], Field(max_length=LIST_ITEMS), BeforeValidator(_as_list), *Some]
Hash = Annotated[str, Field(max_length=200), AfterValidator(_checked_hash)]
Name = Annotated[str, Field(pattern=NAME_PATTERN, max_length=100)]
Link = Annotated[Words, refusing(link_problem)]
Column = Annotated[str, Field(min_length=1, max_length=1_000), AfterValidator(_checked_column)]


Texts = Annotated[tuple[Column, ...], Field(max_length=LIST_ITEMS), *Some]
# Columns of assignments, next to which those that are kept lie.
ASSIGNED = (
    "doc_id", "cluster", "distortion", "runner_up", "margin", "constrained", "violated", "name",
)  # fmt: skip


class _Model(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, populate_by_name=True, hide_input_in_errors=True
    )


def _describe_kinds(schema: dict[str, Any]) -> None:
    """Describe a resource of a kind of source as a file has it: the name of the kind is a key."""
    del schema["properties"]["kind"], schema["properties"]["settings"]
    schema["required"] = ["name"]
    schema["additionalProperties"] = {
        "type": "object",
        "description": "Settings of an installed kind of source, under its name.",
    }
    schema["minProperties"] = 2


class License(_Model):
    """Under which licence the documents may be used."""

    name: Words | None = Field(default=None, description="An identifier such as CC-BY-4.0.")
    title: Words | None = Field(default=None, description="For people.")
    path: Link | None = Field(default=None, description="Where its text is.")

    @model_validator(mode="after")
    def _named(self) -> License:
        if self.name is None and self.path is None:
            raise ValueError("must have a name or a path")
        return self


class Origin(_Model):
    """Where the documents come from."""

    title: Words | None = Field(default=None, description="What it is called.")
    path: Link | None = Field(default=None, description="Where it is.")
    email: Words | None = Field(default=None, description="Whom to ask.")
    version: Words | None = Field(default=None, description="Which version of it.")


class StorageOptions(_Model):
    """How a store is reached. Never keys: those are in the environment, a profile or a role."""

    profile: Words | None = Field(
        default=None, description="Name of a profile in the AWS configuration."
    )
    endpoint_url: Annotated[str, AfterValidator(_checked_endpoint)] | None = Field(
        default=None, description="Of an object store other than the usual."
    )
    anon: StrictBool | None = Field(default=None, description="Read without credentials.")
    requester_pays: StrictBool | None = Field(
        default=None, description="Whether you pay for what is read, not the owner of the bucket."
    )
    project: Words | None = Field(default=None, description="The project that Google bills.")

    @model_validator(mode="before")
    @classmethod
    def _without_credentials(cls, value: Any) -> Any:
        if isinstance(value, dict):
            try:
                refuse_credentials(value)
            except ConfigurationError as error:
                raise ValueError(str(error).removeprefix("storage_options ")) from None
        return value


class Columns(_Model):
    """Which columns (keys, in JSONL) a document is made of."""

    id: Column = Field(
        default="id", description="What names a document: unique, at most 4,096 characters."
    )
    text: Column | Texts | None = Field(
        default="text",
        description="One column, or several whose texts are joined; null if there are only "
        "embeddings.",
    )
    time: Column | None = Field(default=None, description="When it was written; for people.")
    label: Column | None = Field(default=None, description="A known class: for measuring only.")
    embedding: Column | None = Field(
        default=None, description="Rows that are ready: lists of numbers."
    )
    keep: tuple[Column, ...] = Field(
        default=(),
        max_length=LIST_ITEMS,
        description="Columns that go through to the assignments, as texts.",
    )
    empty_text: Literal["reject", "keep"] = Field(
        default="reject", description="Whether a document without any text is a bad record."
    )
    max_bytes: Annotated[int, Field(**within("record_bytes"))] = Field(
        default=16 * 2**20, description="The longest record (a line, a cell, a file)."
    )

    @property
    def texts(self) -> tuple[str, ...]:
        """Names of the columns of text.

        Examples
        --------
        >>> Columns().texts, Columns(text=("subject", "body")).texts
        (('text',), ('subject', 'body'))
        """
        if self.text is None:
            return ()
        return (self.text,) if isinstance(self.text, str) else self.text

    @property
    def in_order(self) -> tuple[str | None, ...]:
        """Names of the columns of id, time, label and embedding, of texts, and of those to keep.

        None stands for no such column.

        Examples
        --------
        >>> Columns(id="key", text=("subject", "body"), keep=("product",)).in_order
        ('key', None, None, None, 'subject', 'body', 'product')
        """
        return self.id, self.time, self.label, self.embedding, *self.texts, *self.keep

    def described(self) -> dict[str, Any]:
        """Return what documents depend on, as JSON: a setting that is not used changes nothing."""
        return self.model_dump(mode="json", exclude=set() if self.keep else {"keep"})

    @model_validator(mode="after")
    def _something_to_read(self) -> Columns:
        if self.text is None and self.embedding is None:
            raise ValueError("must have a text or an embedding column")
        own = (self.id, self.time, self.label, self.embedding, *self.texts)
        used = [column for column in own if column is not None]
        if len(set(used)) < len(used):
            raise ValueError(f"must be different columns, got {', '.join(used)}")
        if taken := sorted({*self.keep} & {self.id, *self.texts, self.embedding, *ASSIGNED}):
            raise ValueError(
                f"keep must name columns other than id, text, embedding and {', '.join(ASSIGNED)}, "
                f"got {', '.join(taken)}"
            )
        if len(set(self.keep)) < len(self.keep):
            raise ValueError(f"keep must name each column once, got {', '.join(self.keep)}")
        return self


class Dialect(_Model):
    """How a CSV file is written (Table Dialect)."""

    delimiter: str = Field(
        default=",", min_length=1, max_length=1, description="What parts the cells."
    )
    quoteChar: str = Field(default='"', min_length=1, max_length=1, description="Around a cell.")  # noqa: N815 (the standard's name)
    header: StrictBool = Field(default=True, description="False: columns are named 1, 2, 3 …")

    @model_validator(mode="after")
    def _tells_apart(self) -> Dialect:
        marks = (self.delimiter, self.quoteChar)
        if marks[0] == marks[1] or any(mark in "\r\n\0" for mark in marks):
            raise ValueError(
                "delimiter and quoteChar must be two different characters and end no line, got "
                f"{marks[0]!r} and {marks[1]!r}"
            )
        return self


class _Files(_Model):
    """Files in a store, with what is known of their content."""

    path: Urls = Field(
        description="A path from the folder of the manifest, or a URL, or a list of them; * ? [ ] "
        "and ** are globs."
    )
    hash: Hash | None = Field(
        default=None, description="md5, or sha256:…; of a resource of one file."
    )
    bytes: Annotated[int, Field(**within("file_bytes"))] | None = Field(
        default=None, description="Of a resource of one file."
    )
    storage_options: StorageOptions | None = Field(
        default=None, description="How the store of these files is reached."
    )


class Resource(_Files):
    """Files of one kind that hold documents."""

    name: Name = Field(description="Lower-case letters, digits, '.', '_', '-'.")
    title: Words | None = Field(default=None, description="For people.")
    description: Words | None = Field(default=None, description="For people.")
    format: Format | None = Field(
        default=None, description="From the ending of the name if not given."
    )
    mediatype: Words | None = Field(default=None, description="For people.")
    compression: Compression | None = Field(
        default=None, description="From the ending if not given."
    )
    encoding: Annotated[str, Field(max_length=100), AfterValidator(_checked_encoding)] = Field(
        default="utf-8", description="Of CSV and text files, such as latin-1."
    )
    dialect: Dialect = Dialect()

    @model_validator(mode="after")
    def _encoding_fits(self) -> Resource:
        if self.format == "jsonl" and self.encoding.lower() not in ("utf-8", "utf8", "utf-8-sig"):
            raise ValueError("encoding of JSONL must be utf-8; convert the file")
        return self


class SourceResource(_Model):
    """Documents of another kind of source than files: ``{name: tickets, sql: {query: …}}``."""

    model_config = ConfigDict(json_schema_extra=_describe_kinds)

    name: Name = Field(description="Lower-case letters, digits, '.', '_', '-'.")
    title: Words | None = Field(default=None, description="For people.")
    description: Words | None = Field(default=None, description="For people.")
    kind: str = Field(exclude=True)
    settings: dict[str, Any] = Field(exclude=True)

    @model_validator(mode="before")
    @classmethod
    def _of_kind(cls, value: Any) -> Any:
        """Take the one key that is a kind of source, and its settings."""
        named = _kinds_in(value)
        if len(named) != 1 or not isinstance(value[named[0]], dict):
            raise ValueError(
                f"must have one kind of source with its settings ({', '.join(kinds())}), got "
                f"{' and '.join(named)}"
            )
        if named[0] not in kinds():
            raise ValueError(
                f"must have path, or an installed kind of source ({', '.join(kinds())}), got "
                f"{named[0]}{meant(named[0], kinds())}; install the package that brings it"
            )
        rest = {key: known for key, known in value.items() if key != named[0]}
        return {**rest, "kind": named[0], "settings": value[named[0]]}

    @property
    def path(self) -> tuple[str, ...]:
        """The paths of its files: none."""
        return ()


def _kinds_in(value: Any) -> list[str]:
    """Return the keys of a resource that name a kind of source other than files, or seem to."""
    if not isinstance(value, dict) or "path" in value:
        return []
    known = [key for key in value if key in kinds()]
    settings = (key for key, said in value.items() if isinstance(said, dict))
    return known or [key for key in settings if key not in Resource.model_fields]


def _which(value: Any) -> str:
    is_source = isinstance(value, SourceResource) or bool(_kinds_in(value))
    return "source" if is_source else "files"


AnyResource = Annotated[
    Annotated[Resource, Tag("files")] | Annotated[SourceResource, Tag("source")],
    Discriminator(_which),
]


class Answers(_Files):
    """What people judged, CSV, JSONL or Parquet: pairs (columns a, b, kind, weight) or classes.

    Known classes (columns id, label) are taken as pairs: of one class together, of two different.
    """


class Query(_Model):
    """Rows of a database."""

    query: Annotated[str, Field(min_length=1, max_length=100_000)] = Field(
        description="One select, whose columns are a, b, kind and, if wanted, weight, trust, "
        "annotator; or id and label."
    )
    url_env: Variable = Field(
        description="The environment variable with the address of the database: "
        "postgresql://… or sqlite:///…. A password is in that variable or in .pgpass.",
    )

    @field_validator("query")
    @classmethod
    def _is_one_select(cls, given: str) -> str:
        try:
            select_of(given)
        except ConfigurationError as error:
            raise ValueError(str(error).removeprefix("query ")) from None
        return given


class QueriedAnswers(_Model):
    """What people judged, in a table of a database: read as rows of a file are."""

    sql: Query

    @property
    def path(self) -> tuple[str, ...]:
        """The paths of its files: none."""
        return ()


def _from_where(value: Any) -> str:
    is_queried = isinstance(value, QueriedAnswers) or (isinstance(value, dict) and "sql" in value)
    return "sql" if is_queried else "files"


AnyAnswers = Annotated[
    Annotated[Answers, Tag("files")] | Annotated[QueriedAnswers, Tag("sql")],
    Discriminator(_from_where),
]


class Manifest(_Model):
    """A collection of documents and the answers about them."""

    schema_: Literal["hmrf-dask/manifest/v1"] = Field(
        alias="$schema", description="What this file is."
    )
    name: Name = Field(description="Lower-case letters, digits, '.', '_', '-'.")
    title: Words | None = Field(default=None, description="For people.")
    description: Words | None = Field(default=None, description="For people.")
    version: Words | None = Field(default=None, description="For people.")
    homepage: Link | None = Field(default=None, description="For people.")
    created: Words | None = Field(default=None, description="For people.")
    keywords: tuple[Words, ...] = Field(
        default=(), max_length=LIST_ITEMS, description="For people."
    )
    licenses: tuple[License, ...] = Field(
        default=(), max_length=LIST_ITEMS, description="How the documents may be used."
    )
    sources: tuple[Origin, ...] = Field(
        default=(), max_length=LIST_ITEMS, description="Where the documents come from."
    )
    language: Annotated[Words, AfterValidator(_checked_language)] | None = Field(
        default=None, description="BCP 47, such as en."
    )
    resources: Annotated[tuple[AnyResource, ...], Field(max_length=LIST_ITEMS), *Some] = Field(
        description="Files that hold documents, or other sources of them."
    )
    documents: Columns = Columns()
    answers: AnyAnswers | None = Field(default=None, description="What people judged.")
    storage_options: StorageOptions = StorageOptions()

    @model_validator(mode="after")
    def _names_differ(self) -> Manifest:
        names = [resource.name for resource in self.resources]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"resources: names must differ, got {', '.join(twice)} twice")
        return self

    @model_validator(mode="after")
    def _sources_open(self) -> Manifest:
        """Refuse wrong settings of sources; nothing is connected to."""
        for number, resource in enumerate(self.resources):
            if isinstance(resource, SourceResource):
                try:
                    open_source(resource, self.documents)
                except ConfigurationError as error:
                    raise ValueError(f"resources.{number}.{resource.kind}: {error}") from None
        return self


def load_manifest(
    url: str | os.PathLike[str], storage_options: dict[str, Any] | None = None
) -> Manifest:
    """Read a manifest; every mistake in it is named in one ConfigurationError.

    The `storage_options` say how the store of the manifest itself is reached.
    """
    address = plain_url(url, "a manifest")
    content = read_yaml(address, "manifest", storage_options)
    refuse_other_kind(content, address, "manifest")
    return validated(Manifest, content, address)


def base_of(url: str | os.PathLike[str]) -> str:
    """Return the folder of a manifest (absolute, or a URL): relative paths in it begin there.

    Examples
    --------
    >>> base_of("/data/news/manifest.yaml"), base_of("s3://bucket/news/manifest.yaml")
    ('/data/news', 's3://bucket/news')
    """
    address = os.fspath(url)
    if is_local(address):
        return os.path.dirname(local_path(address))
    return address.rpartition("/")[0]


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema that is published as data_manifests/schema/manifest-v1.json.

    Examples
    --------
    >>> json_schema()["title"], json_schema()["required"]
    ('Manifest', ['$schema', 'name', 'resources'])
    """
    from hmrf_dask.documents.mongo import MongoSettings  # these import this module
    from hmrf_dask.documents.search import SearchSettings
    from hmrf_dask.documents.sql import SqlSettings

    schema = Manifest.model_json_schema(by_alias=True)
    definitions = schema["$defs"]
    known: dict[str, type[BaseModel]] = {
        "mongo": MongoSettings,
        "search": SearchSettings,
        "sql": SqlSettings,
    }
    for kind, settings in known.items():
        named = {"$ref": f"#/$defs/{settings.__name__}"}
        definitions["SourceResource"]["properties"][kind] = named
        definitions[settings.__name__] = settings.model_json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA,
        **schema,
    }
