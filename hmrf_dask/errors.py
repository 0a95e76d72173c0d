"""What can go wrong, in words: every error this package raises on purpose."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable
from itertools import islice
from typing import Self

from hmrf_dask.redaction import without_secrets

_IN_WORDS = {
    errno.EACCES: "no permission",
    errno.EDQUOT: "no space left in your quota",
    errno.EEXIST: "something that is there already",
    errno.EISDIR: "a folder where a file must be",
    errno.ELOOP: "links that lead in a circle",
    errno.ENAMETOOLONG: "a name that is too long",
    errno.ENOENT: "no such file or folder",
    errno.ENOSPC: "no space left",
    errno.ENOTDIR: "a file where a folder must be",
    errno.EPERM: "no permission",
    errno.EROFS: "a store that cannot be written",
}
# Of a store's errors trying again is no help against these; all others may pass.
_FOR_GOOD_NUMBERS = _IN_WORDS.keys() - {errno.EDQUOT, errno.ENOSPC} | {
    errno.EFBIG,
    errno.EINVAL,
    errno.EMSGSIZE,
    errno.ENODEV,
    errno.ENOSYS,
    errno.ENOTEMPTY,
    errno.ENOTSUP,
    errno.ENXIO,
    errno.EXDEV,
}
_FOR_GOOD_CLASSES = (
    FileExistsError,  # fsspec raises these without a number
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
    ImportError,
    TypeError,
    ValueError,
    NotImplementedError,
)
_PASSING_STATUS = {408, 409, 425, 429, 500, 502, 503, 504}
_PASSING_CODES = {  # of S3, with a status that would say otherwise
    "BadDigest",
    "IncompleteBody",
    "RequestTimeout",
    "SlowDown",
    "Throttling",
    "XAmzContentSHA256Mismatch",
}
_REFUSED_HERE = {  # botocore's: the request was not even sent
    "ConfigNotFound",
    "ConfigParseError",
    "InvalidConfigError",
    "InvalidRegionError",
    "NoRegionError",
    "ParamValidationError",
    "UnauthorizedSSOTokenError",
}
_STORES = ("aiobotocore", "aiohttp", "botocore", "fsspec", "gcsfs", "s3fs")
_NO_CREDENTIALS = {"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound"}  # botocore's
_LONGEST_MEANT = 100  # characters of a wrong name: comparing takes their square
_MOST_MEANT = 1_000  # known names
_UNKNOWN_STORE = "Protocol not known: "


def _without_secrets(argument: object) -> object:
    return without_secrets(argument) if isinstance(argument, str) else argument


class HmrfError(Exception):
    """Base of all errors of this package; `exit_code` is what the command line ends with.

    Its text has no secrets, whatever it repeats: see `hmrf_dask.redaction`.

    Examples
    --------
    >>> str(HmrfError("no answer from https://me:hunter2@example.org/"))
    'no answer from https://…@example.org/'
    """

    exit_code = 1

    def __init__(self, *args: object) -> None:
        super().__init__(*map(_without_secrets, args))


class InvalidInputError(HmrfError, ValueError):
    """The data, the ids or the pairs are not what they must be.

    Examples
    --------
    >>> issubclass(InvalidInputError, ValueError), InvalidInputError.exit_code
    (True, 65)
    """

    exit_code = 65


class InvalidTypeError(InvalidInputError, TypeError):
    """What should be rows is of a class that has none, or holds objects that are no numbers."""


class ConflictError(InvalidInputError):
    """A must-link path joins a pair that is cannot-linked.

    `witness` are the ids along the shortest such path: first and last are the pair.

    Examples
    --------
    >>> from hmrf_dask import HMRFKMeans
    >>> rows, must, cannot = [[1.0], [2.0], [3.0]], [(0, 1), (1, 2)], [(0, 2)]
    >>> try:
    ...     HMRFKMeans(2, on_conflict="raise").fit(rows, must_link=must, cannot_link=cannot)
    ... except ConflictError as error:
    ...     error.witness
    (0, 1, 2)
    """

    def __init__(self, message: str, witness: tuple[object, ...] = ()) -> None:
        super().__init__(message)
        self.witness = witness


class UnreadableFileError(InvalidInputError):
    """A file that was made of documents is missing or damaged: it can be made of them again.

    `path` is what its store calls it, `what` says what is wrong with it.

    Examples
    --------
    >>> error = UnreadableFileError("it must be whole", "runs/a.json", "it is missing")
    >>> error.path, error.what
    ('runs/a.json', 'it is missing')
    """

    def __init__(self, message: str, path: str = "", what: str = "") -> None:
        super().__init__(message)
        self.path, self.what = path, what


class InfeasibleError(InvalidInputError):
    """No labels were found that keep all hard pairs; `proved` says whether there are none.

    `blocking` are cannot-linked ids. Where it is proved they are all cannot-links between the
    documents that cannot be separated; else, of a document that was left without a cluster, one
    for each cluster: the first id is of its must-link group, the second is in that cluster.

    Examples
    --------
    >>> from hmrf_dask import COPKMeans
    >>> try:
    ...     COPKMeans(1, random_state=0).fit([[1.0], [2.0]], cannot_link=[(0, 1)])
    ... except InfeasibleError as error:
    ...     error.blocking, error.proved
    (((0, 1),), True)
    """

    def __init__(
        self,
        message: str,
        blocking: tuple[tuple[object, object], ...] = (),
        *,
        proved: bool = False,
    ) -> None:
        super().__init__(message)
        self.blocking, self.proved = blocking, proved


class ConfigurationError(HmrfError, ValueError):
    """A parameter or a setting has a value that cannot be used.

    Examples
    --------
    >>> from hmrf_dask import HMRFKMeans
    >>> HMRFKMeans(2, distortion="cosin").fit([[1.0], [2.0]])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    hmrf_dask.errors.ConfigurationError: distortion must be one of ['cosine', 'euclidean', ...
    """

    exit_code = 78


class DistortionError(ConfigurationError, TypeError):
    """A distortion object does not keep the protocol of `hmrf_dask.distortions.base`."""


class MemoryPlanError(HmrfError, MemoryError):
    """The plan needs more memory than there is; the message shows the arithmetic.

    Examples
    --------
    >>> issubclass(MemoryPlanError, MemoryError), MemoryPlanError.exit_code
    (True, 78)
    """

    exit_code = 78

    def __new__(cls, *args: object) -> Self:
        """Make one: what Dask unpickles errors with finds MemoryError's, which refuses."""
        return Exception.__new__(cls, *args)


class RunDirectoryError(HmrfError, OSError):
    """A run directory belongs to another run, is damaged, or cannot be reached."""

    exit_code = 78


class SourceError(HmrfError, OSError):
    """Documents or answers cannot be read from where the manifest says they are."""

    exit_code = 78


class SourceUnavailableError(SourceError):
    """The store does not answer now, or a file changed while it was read: trying again may help.

    Examples
    --------
    >>> SourceError.exit_code, SourceUnavailableError.exit_code
    (78, 75)
    """

    exit_code = 75


class ClusterError(HmrfError, RuntimeError):
    """The Dask cluster cannot do the work now: no workers, a deadline passed, a worker refused."""

    exit_code = 75


class LostOwnerError(ClusterError):
    """An owner of clusters is gone, or what it held: the fit resumes from its last commit."""


class HeldError(HmrfError, RuntimeError):
    """Another run holds the output now, or took it over from this one."""

    exit_code = 75


class NoAnswerError(ConnectionError):
    """A store gave no answer that helps, however often it was asked, until its time was over."""


class HmrfWarning(UserWarning):
    """Something a person should know that does not stop the run."""

    def __init__(self, *args: object) -> None:
        super().__init__(*map(_without_secrets, args))


def lacks_credentials(error: BaseException) -> bool:
    """Return whether a store was not even asked, for want of credentials: again is no help.

    Examples
    --------
    >>> NoCredentialsError = type("NoCredentialsError", (Exception,), {})  # as botocore has it
    >>> lacks_credentials(NoCredentialsError()), lacks_credentials(OSError())
    (True, False)
    """
    return type(error).__name__ in _NO_CREDENTIALS


def is_of_a_store(error: BaseException) -> bool:
    """Return whether a file system or a store's library raised an error.

    Examples
    --------
    >>> is_of_a_store(FileNotFoundError()), is_of_a_store(ValueError())
    (True, False)
    """
    libraries = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return isinstance(error, OSError) or not libraries.isdisjoint(_STORES)


def may_pass(error: BaseException) -> bool:
    """Return whether trying again may help against what a store raised: exit code 75, else 78.

    Examples
    --------
    >>> may_pass(TimeoutError()), may_pass(OSError(28, "No space left on device"))
    (True, True)
    >>> may_pass(OSError(30, "Read-only file system")), may_pass(FileNotFoundError("b"))
    (False, False)
    """
    if type(error).__name__ == "ClientPayloadError":  # aiohttp: it ended early, and calls that 400
        return True
    answer = _answered(error) or _answered(error.__cause__)
    if answer is not None:  # more than what s3fs makes of it
        status, code = answer
        return status in _PASSING_STATUS or code in _PASSING_CODES
    if lacks_credentials(error) or type(error).__name__ in _REFUSED_HERE:
        return False
    for_good = isinstance(error, OSError) and error.errno in _FOR_GOOD_NUMBERS
    return not (for_good or isinstance(error, _FOR_GOOD_CLASSES))


def _answered(error: BaseException | None) -> tuple[int, str] | None:
    """Return the HTTP status that a store answered with, and S3's code; None without an answer."""
    response = getattr(error, "response", None)  # of botocore
    if isinstance(response, dict):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return int(status), str(response.get("Error", {}).get("Code", ""))
    status = getattr(error, "status", None) or getattr(error, "code", None)  # aiohttp, gcsfs
    return (status, "") if isinstance(status, int) and status >= 300 else None


def in_words(error: BaseException) -> str:
    """Return what a file system or a store's library raised as a person says it.

    Examples
    --------
    >>> in_words(IsADirectoryError(21, "Is a directory", "/tmp"))
    'a folder where a file must be (/tmp)'
    >>> in_words(ValueError("Protocol not known: s4"))
    "an unknown kind of store, 's4'"
    """
    text = str(error)
    if isinstance(error, ValueError) and text.startswith(_UNKNOWN_STORE):
        return f"an unknown kind of store, {text.removeprefix(_UNKNOWN_STORE)!r}"
    if isinstance(error, OSError) and error.errno in _IN_WORDS:
        place = f" ({error.filename})" if isinstance(error.filename, str) else ""
        return f"{_IN_WORDS[error.errno]}{place}"
    if lacks_credentials(error):
        return f"no credentials for it ({text})"
    if isinstance(error, HmrfError | ImportError | NoAnswerError):
        return text
    if type(error).__name__ == "ParamValidationError":  # botocore's, with a heading of its own
        return text.partition("failed:")[2].strip() or text
    return f"{type(error).__name__}: {text}"


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun.

    Examples
    --------
    >>> counted(1, "bad record"), counted(2000, "bad record")
    ('1 bad record', '2,000 bad records')
    """
    return f"{number} {one}" if number == 1 else f"{number:,} {many or one + 's'}"


def meant(given: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return a question after the known name that is nearest to a given one; "" if none is near.

    Examples
    --------
    >>> meant("knd", ["a", "b", "kind"])
    " (did you mean 'kind'?)"
    """
    near = list(islice(known, _MOST_MEANT))
    close = difflib.get_close_matches(given[:_LONGEST_MEANT], near, n=1, cutoff=cutoff)
    return f" (did you mean {close[0]!r}?)" if close else ""


def rows_moved(iteration: int, moved: int) -> str:
    """Return in words how many rows an iteration moved; iteration 0 gives them their first cluster.

    Examples
    --------
    >>> rows_moved(0, 120), rows_moved(3, 1)
    ('120 rows got their first cluster', '1 row changed cluster')
    """
    first = iteration == 0 and moved
    return f"{counted(moved, 'row')} {'got their first' if first else 'changed'} cluster"
