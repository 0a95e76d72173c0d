"""A job for documents that have none: a manifest and a job file next to a new output."""

from __future__ import annotations

import math
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from hmrf_dask.documents.first_records import (
    FirstRecords,
    first_records,
    id_column,
    is_english,
    names_it,
    text_columns,
)
from hmrf_dask.documents.yaml_files import JOB_FILE
from hmrf_dask.errors import ConfigurationError, InvalidInputError, counted, in_words, meant
from hmrf_dask.parameters import AUTO, MOST_FILES
from hmrf_dask.storage.addresses import absolute_url

OUTPUT, JOB, MANIFEST = "out", JOB_FILE, "manifest.yaml"
SUFFIX = "-clusters"
N_QUESTIONS: Final = 25
FEW: Final = 50  # documents, of which some may be empty; from 40 on K can be chosen
_KINDS: Final = {
    "text": (".txt", ".md"),
    "csv": (".csv", ".tsv"),
    "jsonl": (".jsonl", ".ndjson"),
    "parquet": (".parquet", ".pq"),
}
_COMPRESSIONS: Final = {".gz": "gz", ".zst": "zst", ".zstd": "zst"}
_SAMPLED: Final = 20  # files of text whose beginnings are read
_ENDINGS: Final = ", ".join(ending for some in _KINDS.values() for ending in some)
_OF_ROWS: Final = ", ".join(end for kind, ends in _KINDS.items() if kind != "text" for end in ends)
_SHEETS: Final = (".xlsx", ".xls", ".ods", ".numbers")
_BY_HAND: Final = "write a manifest and a job file, as the README shows them"


@dataclass(frozen=True)
class Wanted:
    """What somebody says of documents; what is left out is seen from these.

    Attributes
    ----------
    id : str or None
        The column of ids.
    text : tuple of str
        The columns of text.
    keep : tuple of str
        Columns that go through to the assignments.
    n_clusters : int or None
    """

    id: str | None = None
    text: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    n_clusters: int | None = None


NOTHING_SAID: Final = Wanted()


@dataclass(frozen=True)
class NewJob:
    """A job made for documents, or made before.

    Attributes
    ----------
    job, manifest : str
        Their files.
    output : str
    remark : str
        What was found, and what was left out.
    columns : dict
        Which are `id`, `text` and those to `keep`; `other` are not used.
    made : bool
        False where the job was there before.
    """

    job: str
    manifest: str
    output: str
    remark: str
    columns: dict[str, Any] = field(default_factory=dict, compare=False)
    made: bool = field(default=True, compare=False)


@dataclass(frozen=True)
class Documents:
    """Files of one kind, and what they begin with."""

    place: str  # a file, or the folder with all of them
    kind: str
    files: Sequence[str]
    texts: Sequence[str]  # some of them
    n_documents: int | None = None  # None where they were not all read
    columns: dict[str, Any] = field(default_factory=dict)
    records: FirstRecords | None = None


def job_for(place: str, wanted: Wanted = NOTHING_SAID) -> NewJob:
    """Make a job for documents, in a new folder next to them; one that is there stays.

    Documents are the rows of a file, or of a folder its text files and those below, or the rows of
    its CSV, JSON Lines or Parquet files, whichever are the most. Without a word on it K is chosen,
    and each fit ends with questions.

    Parameters
    ----------
    place : str
        A file or a folder of this machine.
    wanted : Wanted, optional

    Returns
    -------
    NewJob

    Raises
    ------
    ConfigurationError
        There are no documents, or it is not clear what they are: then somebody must say it.
    """
    path = absolute_url(place, "a file or folder")
    if "://" in path or not os.path.exists(path):
        raise ConfigurationError(
            f"a job can be made for a file or a folder of this machine that is there, got {place}; "
            f"check the path; for a store {_BY_HAND}"
        )
    if re.search(r"[*?\[]", path):
        raise ConfigurationError(
            f"documents must lie in a file or folder with a name without '*', '?' and '[', got "
            f"{place}; rename it"
        )
    home = f"{path if os.path.isdir(path) else _stem(path)}{SUFFIX}"
    made = new_job_in(home)
    if before := made_before(made, wanted):
        return before
    documents, left_out = _found(path, place, wanted)
    write_new(home, _manifest(documents, home), job_text(documents, wanted))
    what = counted(len(documents.files), f"{documents.kind} file")
    return NewJob(*places_of(made), f"{what}{left_out}: {made.job}", documents.columns)


def new_job_in(home: str) -> NewJob:
    """Return where a job in a folder is, or will be."""
    return NewJob(f"{home}/{JOB}", f"{home}/{MANIFEST}", f"{home}/{OUTPUT}", "")


def made_before(made: NewJob, wanted: Wanted) -> NewJob | None:
    """Return the job that is there, None where none is; options are for new ones."""
    if not os.path.exists(made.job):
        return None
    if wanted != NOTHING_SAID:
        raise ConfigurationError(
            f"options must go with a new job, got {made.job}, which is there; edit it and "
            f"{MANIFEST} next to it, or remove both"
        )
    return NewJob(*places_of(made), f"the job of {made.job}, made before", made=False)


def places_of(made: NewJob) -> tuple[str, str, str]:
    """Return the files of a job and its output."""
    return made.job, made.manifest, made.output


def _stem(path: str) -> str:
    """Return a file's path without its endings."""
    stem, ending = os.path.splitext(path)
    return os.path.splitext(stem)[0] if ending.lower() in _COMPRESSIONS else stem


def _found(path: str, place: str, wanted: Wanted) -> tuple[Documents, str]:
    """Return the documents at a path, and in words which files were left out."""
    if not os.path.isdir(path):
        kind = _kind_of(path)
        if kind is None or kind == "text":
            raise ConfigurationError(
                f"documents must be in a file named {_OF_ROWS} (or such a file with .gz or .zst "
                f"at its end), or in a folder of text files, got {place}; {_advice(path)}"
            )
        return _of_rows(path, kind, [path], wanted), ""
    files = _files(path)
    kind = max(files, key=lambda one: (len(files[one]), one == "text"), default="")
    if not kind:
        raise InvalidInputError(
            f"a folder of documents must have files named {_ENDINGS}, got none in {place}; check "
            "the path"
        )
    n_others = sum(map(len, files.values())) - len(files[kind])
    left_out = f"; {counted(n_others, 'file')} of another kind left out" if n_others else ""
    if kind != "text":
        return _of_rows(path, kind, files[kind], wanted), left_out
    if wanted.id or wanted.text or wanted.keep:
        raise ConfigurationError(
            f"--id, --text and --keep must go with files that have columns, got {place} with text "
            "files, each a document that is called by its path; leave them out"
        )
    if len(files[kind]) < 2:
        raise InvalidInputError(
            "there must be at least two documents to compare, got one file; put each document in "
            "a file of its own"
        )
    texts = [_beginning(file) for file in files[kind][:_SAMPLED]]
    return Documents(path, kind, files[kind], texts, n_documents=len(files[kind])), left_out


def _kind_of(path: str) -> str | None:
    stem, ending = os.path.splitext(path.lower())
    ending = os.path.splitext(stem)[1] if ending in _COMPRESSIONS else ending
    return next((kind for kind, endings in _KINDS.items() if ending in endings), None)


def _advice(path: str) -> str:
    """Return what to do with a file that holds no rows of documents."""
    ending = os.path.splitext(path)[1].lower()
    if ending in _SHEETS:
        return "save the sheet as CSV, and name that file"
    if ending in _KINDS["text"]:
        return "a text file is one document: give the folder of all"
    return f"give one of these, or {_BY_HAND}"


def _files(folder: str) -> dict[str, list[str]]:
    """Return the files of a folder that may hold documents, by kind."""
    found: dict[str, list[str]] = defaultdict(list)
    n_files = 0
    for above, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            kind = _kind_of(name)
            if kind and not name.startswith("."):
                found[kind].append(f"{above}/{name}")
                n_files += 1
        if n_files > MOST_FILES:
            raise InvalidInputError(
                f"a folder must have at most {MOST_FILES:,} files, got more in {folder}; put "
                "documents together in larger files"
            )
    return dict(found)


def _beginning(file: str) -> str:
    try:
        with open(file, encoding="utf-8", errors="replace") as opened:
            return opened.read(5_000)
    except OSError as error:
        raise InvalidInputError(f"{file}: cannot be read, {in_words(error)}; correct it") from None


# ---- columns


def _of_rows(path: str, kind: str, files: Sequence[str], wanted: Wanted) -> Documents:
    """Return documents that are rows of files, by what the first file begins with."""
    compression = _COMPRESSIONS.get(os.path.splitext(files[0])[1].lower(), "none")
    records = first_records(kind, files[0], compression)
    columns = chosen_columns(files[0], records, wanted)
    texts = [text for name in columns["text"] for text in records.values(name)]
    n_documents = len(records.rows) if records.complete and len(files) == 1 else None
    return Documents(
        path, kind, files, texts, n_documents=n_documents, columns=columns, records=records
    )


def chosen_columns(file: str, records: FirstRecords, wanted: Wanted) -> dict[str, Any]:
    """Return which columns of a file are ids and texts, as somebody says or as they look."""
    for option, names in (("--id", [wanted.id]), ("--text", wanted.text), ("--keep", wanted.keep)):
        for name in names:
            if name is not None and name not in records.names:
                raise ConfigurationError(
                    f"{option} must name a column of {file} ({_shown(records)}), got {name!r}"
                    f"{meant(name, records.names)}"
                )
    id_ = wanted.id or id_column(records)
    if id_ is None or id_ in wanted.text:
        raise InvalidInputError(
            f"{file}: must have a column that is called id or the like, or whose values are all "
            f"unlike, got {_shown(records)}; name it by --id COLUMN, or write a manifest that says "
            "which column is the id; documents are known by their ids from run to run, so where no "
            "column is different for each add one, such as a number that stays with its row"
        )
    if not wanted.id and not names_it(id_, records):
        raise InvalidInputError(
            f"{file}: the first line must name the columns, got {_shown(records)}, which looks "
            "like a record; put a line such as id,text before it, or name the column of ids by "
            "--id COLUMN"
        )
    texts = wanted.text or text_columns(records, id_)
    if not texts:
        raise InvalidInputError(
            f"{file}: must have a column of texts, called text, body or the like, got "
            f"{_shown(records)}; name one or several by --text COLUMN,COLUMN, or write a manifest "
            "that says which column is the text"
        )
    used = {id_, *texts, *wanted.keep}
    other = tuple(name for name in records.names if name not in used)
    return {"id": id_, "text": tuple(texts), "keep": wanted.keep, "other": other}


def _shown(records: FirstRecords) -> str:
    return ", ".join(map(str, records.names[:20]))[:400] or "none"


# ---- the two files


def _manifest(documents: Documents, home: str) -> str:
    """Return the manifest, with a word on what may be changed."""
    relative = os.path.relpath(documents.place, home)
    paths = [relative]
    if os.path.isdir(documents.place):
        endings = sorted({_ending(file) for file in documents.files})
        paths = [f"{relative}/**/*{ending}" for ending in endings]
    lines = [
        "# Where the documents are. `hmrf-dask check` says what is found there.",
        "$schema: hmrf-dask/manifest/v1",
        f"name: {as_yaml(named_after(documents.place))}",
        "resources:",
        "  - name: documents",
        f"    path: {as_yaml(paths[0] if len(paths) == 1 else paths)}",
        f"    format: {documents.kind}",
        *_as_written(documents.records),
        *(documents_lines(documents.columns) if documents.columns else ()),
        "# answers: # what people know of pairs: columns a, b (ids), kind (same or different)",
        "#   path: answers.csv",
    ]
    return "\n".join([*lines, ""])


def _ending(file: str) -> str:
    """Return the endings of a file, those of compressed ones too."""
    name = os.path.basename(file)
    stem, ending = os.path.splitext(name)
    return os.path.splitext(stem)[1] + ending if ending.lower() in _COMPRESSIONS else ending


def _as_written(records: FirstRecords | None) -> Iterator[str]:
    """Yield how CSV is written, where that is not as usual."""
    if records is None:
        return
    if records.encoding != "utf-8":
        yield f"    encoding: {records.encoding}"
    if records.dialect.delimiter != ",":
        yield f"    dialect: {{delimiter: {_quoted(records.dialect.delimiter)}}}"


def documents_lines(columns: dict[str, Any]) -> Iterator[str]:
    """Yield which columns are what, as a manifest says it."""
    texts, keep, other = (list(columns[name]) for name in ("text", "keep", "other"))
    yield "documents:"
    yield f"  id: {as_yaml(columns['id'])} # each document's own: it stays with it from run to run"
    yield f"  text: {as_yaml(texts[0] if len(texts) == 1 else texts)} # several are joined"
    if keep:
        yield f"  keep: {as_yaml(keep)} # columns to have next to the clusters"
    elif other:
        yield f"  # keep: {as_yaml(other)} # columns to have next to the clusters"


def job_text(documents: Documents, wanted: Wanted, more: Sequence[str] = ()) -> str:
    """Return the job, with a word on what may be changed."""
    n_clusters = wanted.n_clusters or n_clusters_for(documents.n_documents)
    chosen = " # chosen on a sample, then kept; or give a number" if n_clusters == AUTO else ""
    lines = [
        "# What to do with the documents. `hmrf-dask run` does it; later runs read what is new.",
        "$schema: hmrf-dask/job/v1",
        f"name: {as_yaml(named_after(documents.place))}",
        f"manifest: {MANIFEST}",
        *_text_lines(documents),
        f"method: {{n_clusters: {n_clusters}}}{chosen}",
        "on_bad_record: quarantine # empty texts and the like are left out, and listed",
        f"output: {OUTPUT}",
        f"questions: {N_QUESTIONS} # to a person, next: `hmrf-dask label` asks them",
    ]
    return "\n".join([*lines, *more, ""])


def _text_lines(documents: Documents) -> Iterator[str]:
    settings = text_settings(documents.texts, documents.n_documents)
    left_out = ["stop words"] if "stop_words" in settings else []
    left_out += ["words of one document, and of half of all"] if "min_df" in settings else []
    if settings:
        yield f"text: {as_yaml(settings)} # left out: {', '.join(left_out)}"


def text_settings(texts: Sequence[str], n_documents: int | None) -> dict[str, Any]:
    """Return how texts become rows: words of one document, or of most, distinguish nothing.

    Examples
    --------
    >>> text_settings(["the end of all and everything"], n_documents=1000)
    {'stop_words': 'english', 'min_df': 2, 'max_df': 0.5}
    """
    settings: dict[str, Any] = {"stop_words": "english"} if is_english(texts) else {}
    if n_documents is None or n_documents >= FEW:
        settings |= {"min_df": 2, "max_df": 0.5}
    return settings


def n_clusters_for(n_documents: int | None) -> int | str:
    """Return K for so few documents that it cannot be chosen, the rule of thumb √(n / 2).

    Examples
    --------
    >>> n_clusters_for(18), n_clusters_for(10**6)
    (3, 'auto')
    """
    if n_documents is None or n_documents >= FEW:
        return AUTO
    return max(2, round(math.sqrt(n_documents / 2)))


def as_yaml(value: Any) -> str:
    r"""Return a value as YAML has it in a line.

    Examples
    --------
    >>> as_yaml(["a b", "no"]), as_yaml("id")
    ("[a b, 'no']", 'id')
    >>> print(as_yaml("Ticket\nnumber"))
    "Ticket\nnumber"
    """
    for style in (None, '"'):  # in double quotes ends of lines are escaped
        line = yaml.safe_dump(
            value, sort_keys=False, default_flow_style=True, allow_unicode=True, width=2**20,
            default_style=style,
        ).removesuffix("\n").removesuffix("\n...")  # fmt: skip
        if len(line.splitlines()) == 1:
            break
    return str(line.strip())


def _quoted(text: str) -> str:
    return '"\\t"' if text == "\t" else f'"{text}"'


def named_after(place: str) -> str:
    """Return a name for a manifest or a job.

    Examples
    --------
    >>> named_after("/data/My News (2026).csv.gz")
    'my-news-2026'
    """
    name = re.sub(r"[^a-z0-9]+", "-", os.path.basename(_bare(place)).lower()).strip("-")
    return name[:80].strip("-") or "documents"


def _bare(place: str) -> str:
    return place if _kind_of(place) is None else _stem(place)


def write_new(home: str, manifest: str, job: str) -> None:
    """Write both files; the job comes last, so that one that is there has its manifest."""
    try:
        os.makedirs(home, exist_ok=True)
        for name, text in ((MANIFEST, manifest), (JOB, job)):
            _refuse_other(f"{home}/{name}", text)
            with open(f"{home}/{name}", "w", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise ConfigurationError(
            f"a job must be written next to its documents, got {in_words(error)} for {home}; write "
            "a manifest and a job file elsewhere, as the README shows them"
        ) from error


def _refuse_other(path: str, text: str) -> None:
    """Refuse to replace a file that says anything else: it is somebody's."""
    if os.path.exists(path):
        with open(path, "rb") as file:
            if not text.encode().startswith(file.read(len(text.encode()) + 1)):
                raise ConfigurationError(
                    f"{path} must be none or what is written there for documents without a job, "
                    "got another file; rename it, or write a job next to it"
                )
