"""Embedders: models that turn texts into vectors, found by name, by folder or by class.

Nothing is fetched: weights lie in an installed package or in a local folder.
"""

from __future__ import annotations

import json
import os
import re
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from hashlib import sha256
from importlib import import_module, metadata, util
from itertools import chain
from threading import Lock
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
import scipy.sparse

from hmrf_dask.errors import (
    ConfigurationError,
    HmrfError,
    InvalidInputError,
    counted,
    meant,
)
from hmrf_dask.redaction import shortened
from hmrf_dask.types import AnyArray, RowArray

ENTRY_POINTS: Final = "hmrf_dask.embedders"
# A job file may name classes that are listed here, "module:Class" separated by commas: what code
# runs is said by whoever runs the job, not by a file.
ALLOWED: Final = "HMRF_DASK_EMBEDDERS"
_CLASS: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_AT_ONCE: Final = 1024  # texts that are cut into tokens at a time
_TOGETHER: Final = 32  # texts that a transformer takes, always as many
_SHORTEST: Final = 16  # tokens; texts are padded to the next power of two


@runtime_checkable
class Embedder(Protocol):
    """A model that turns texts into vectors. It travels to tasks before it is loaded.

    Attributes
    ----------
    identity : str
        What vectors depend on: another identity, other vectors. A hash of the weights is best.
    width : int
        Numbers of a vector.
    row_exact : bool
        Whether a text has the same vector, to the bit, whatever texts come with it.
    """

    @property
    def identity(self) -> str:
        """What vectors depend on."""

    @property
    def width(self) -> int:
        """Numbers of a vector."""

    @property
    def row_exact(self) -> bool:
        """Whether a vector depends on its text alone."""

    def load(self) -> None:
        """Make ready, once in a process, before the first call of `embed`."""

    def embed(self, texts: Sequence[str]) -> RowArray:
        """Return float32 vectors (n, width); zeros of a text without a token that it knows."""


def find_embedder(model: str, folder: Callable[[str], str] = os.path.expanduser) -> Embedder:
    """Return the embedder that a name, a folder or a class stands for, not yet loaded.

    Parameters
    ----------
    model : str
        The name of an entry point of `hmrf_dask.embedders`, such as wordllama; a folder (with a /)
        that holds a model of sentence-transformers or model2vec; or module:Class, which the
        environment variable HMRF_DASK_EMBEDDERS must list.
    folder : callable, optional
        Makes a path absolute.

    Raises
    ------
    ConfigurationError
        There is none, or its package is not installed.
    """
    if "://" in model:
        raise ConfigurationError(
            f"model must be a name, a local folder or module:Class, got {shortened(model)}; "
            "nothing is fetched: put the model into a folder"
        )
    if "/" in model or model in (".", "..", "~"):
        return _of_folder(folder(model))
    with _in_words(f"model {model} must be a class that can be imported"):
        made = _class_of(model) if ":" in model else _named(model)
    with _in_words(f"model {model} must be a class that is made without arguments"):
        return _checked(made(), model)


@contextmanager
def _in_words(wanted: str) -> Iterator[None]:
    """Say what code raised that is not ours, in one sentence that begins with what is wanted."""
    try:
        yield
    except HmrfError:
        raise
    except Exception as error:
        raise ConfigurationError(f"{wanted}, got {_said(error)}; correct it") from error


def _said(error: Exception) -> str:
    """Return an error's class and its first words."""
    return f"{type(error).__name__}: {shortened(str(error))}"


def _checked(found: object, model: str) -> Embedder:
    """Return an embedder, or refuse what is none: kernels trust its width."""
    if not isinstance(found, Embedder):
        raise ConfigurationError(
            f"an embedder must have identity, width, row_exact, load and embed, got {model} "
            "without all of them; see hmrf_dask.text.embedders.Embedder"
        )
    given: tuple[object, object] = (found.identity, found.width)
    identity, width = given
    if not (isinstance(identity, str) and identity and type(width) is int and width > 0):
        raise ConfigurationError(
            "an embedder must have a str as identity and an int above 0 as width, got "
            f"{shortened(identity)} and {shortened(width)} of {model}; correct it"
        )
    return found


def _named(model: str) -> Callable[[], object]:
    own: dict[str, Callable[[], object]] = {"wordllama": WordLlama}
    if model in own:
        return own[model]
    others = {one.name: one for one in metadata.entry_points(group=ENTRY_POINTS)}
    if model not in others:
        known = sorted({*own, *others})
        raise ConfigurationError(
            f"model must be one of {', '.join(known)}, a folder (with a /) or module:Class, got "
            f"{shortened(model)}{meant(model, known)}"
        )
    found: Callable[[], object] = others[model].load()
    return found


def _class_of(model: str) -> Callable[[], object]:
    allowed = [one.strip() for one in os.environ.get(ALLOWED, "").split(",") if one.strip()]
    if model not in allowed or not _CLASS.fullmatch(model):
        raise ConfigurationError(
            f"a class as model must be listed in the environment variable {ALLOWED} "
            f"(module:Class, separated by commas), got {shortened(model)}, where it has "
            f"{', '.join(allowed) or 'none'}"
        )
    module, _, name = model.partition(":")
    found: Callable[[], object] = getattr(import_module(module), name)
    return found


def _of_folder(folder: str) -> Embedder:
    """Return the embedder of a folder by what lies in it."""
    config, modules = _json_in(folder, "config.json"), _json_in(folder, "modules.json")
    kinds = [str(one.get("type")) for one in modules or () if isinstance(one, dict)]
    is_static = isinstance(config, dict) and config.get("model_type") == "model2vec"
    if is_static or (kinds and kinds[0].endswith("StaticEmbedding")):
        return StaticFolder(folder)
    if kinds:
        return TransformerFolder(folder)
    got = "no folder" if not os.path.isdir(folder) else "a folder without either"
    raise ConfigurationError(
        f"{folder} must be a folder with a model of sentence-transformers (modules.json) or of "
        f"model2vec (config.json with model_type model2vec), got {got}; check the path"
    )


def _json_in(folder: str, name: str) -> Any:
    """Return what a JSON file of a folder holds, None where there is none."""
    try:
        with open(f"{folder}/{name}", "rb") as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def missing_extra(package: str, extra: str) -> ConfigurationError:
    """Return the error that a package is not installed, and which extra brings it.

    Examples
    --------
    >>> str(missing_extra("wordllama", "wordllama")).partition(";")[2]
    " install it: pip install 'hmrf-dask[wordllama]'"
    """
    return ConfigurationError(
        f"the package {package} must be installed for this model, got none; install it: pip "
        f"install 'hmrf-dask[{extra}]'"
    )


# ---- what a process has loaded, and what comes out of a model


_LOADED: dict[str, Embedder] = {}
_LOADING = Lock()


def loaded(embedder: Embedder) -> Embedder:
    """Return the embedder of this identity that is loaded in this process; one is loaded once."""
    with _LOADING:
        if embedder.identity not in _LOADED:
            with _in_words(f"the model {embedder.identity} must be one that can be loaded"):
                embedder.load()
            _LOADED[embedder.identity] = embedder
        return _LOADED[embedder.identity]


def checked_vectors(embedder: Embedder, texts: Sequence[str], ids: Sequence[str] = ()) -> RowArray:
    """Return vectors of texts, or raise InvalidInputError where the model keeps not to its word.

    `ids` are those of the documents, where they are known: errors name them.
    """
    vectors = _embedded(embedder, texts, ids)
    wanted = (len(texts), embedder.width)
    if vectors.shape != wanted or vectors.dtype.kind != "f":
        raise InvalidInputError(
            f"the embedder {embedder.identity} must return vectors of float32, shape {wanted}, got "
            f"{vectors.dtype} of shape {vectors.shape}{_among(texts, ids)}; correct it"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        vectors = np.ascontiguousarray(vectors, np.float32)
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad):
        raise InvalidInputError(
            f"the embedder {embedder.identity} must return finite numbers, got NaN or infinity for "
            f"{counted(len(bad), 'text')}, the first {_named_text(texts, ids, int(bad[0]))}; "
            "correct it, or leave such texts out"
        )
    if embedder.row_exact and len(texts) > 1:
        alone = _embedded(embedder, texts[:1], ids[:1]).astype(np.float32)
        if not np.array_equal(alone, vectors[:1]):
            raise InvalidInputError(
                f"the embedder {embedder.identity} must return the same vector for the same text, "
                f"as its row_exact says, got others for {_named_text(texts, ids, 0)}, alone and "
                f"with {len(texts) - 1} more; correct it, or let row_exact be False"
            )
    return vectors


def _embedded(embedder: Embedder, texts: Sequence[str], ids: Sequence[str]) -> AnyArray:
    """Return what a model makes of texts, or say at which of them it fails."""
    made = _attempt(embedder, texts)
    if not isinstance(made, Exception):
        return made
    first, last = 0, len(texts)
    while last - first > 1:  # half of them at a time
        middle = (first + last) // 2
        half = _attempt(embedder, texts[first:middle])
        if isinstance(half, Exception):
            last, made = middle, half
        else:
            first = middle
    alone = _attempt(embedder, texts[first:last])
    where = (
        f"for {_named_text(texts, ids, first)}" if isinstance(alone, Exception)
        else f"for {counted(len(texts), 'text')} together{_among(texts, ids)}"
    )  # fmt: skip
    raise InvalidInputError(
        f"the embedder {embedder.identity} must return a vector for every text, got {_said(made)} "
        f"{where}; correct it, or leave such texts out"
    ) from made


def _attempt(embedder: Embedder, texts: Sequence[str]) -> AnyArray | Exception:
    """Return what a model makes of texts, or what it raised; our own errors are in words."""
    try:
        return np.asarray(embedder.embed(texts))
    except HmrfError:
        raise
    except Exception as error:  # noqa: BLE001 - a user's code may raise anything
        return error


def _among(texts: Sequence[str], ids: Sequence[str]) -> str:
    return f", the first of them {_named_text(texts, ids, 0)}" if len(texts) else ""


def _named_text(texts: Sequence[str], ids: Sequence[str], place: int) -> str:
    """Return what a text is called in an error."""
    text = shortened(texts[place])
    return f"document {shortened(ids[place])} ({text})" if len(ids) else text


# ---- static: a vector for each token, the mean of those of a text


class WordLlama:
    """WordLlama's static vectors, 256 numbers, whose weights its wheel holds.

    The files of the installed package are read; its code, which could fetch others, is not run.

    Raises
    ------
    ConfigurationError
        The package is not installed.
    """

    width: int = 256
    row_exact: bool = True
    _WEIGHTS: Final = "weights/l2_supercat_256.safetensors"
    _TOKENS: Final = "tokenizers/l2_supercat_tokenizer_config.json"

    def __init__(self) -> None:
        self.identity = f"wordllama/{_hash_of(_files_of_wordllama())}"

    def load(self) -> None:
        """Read the weights."""
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer

        weights, tokens = _files_of_wordllama()
        _refuse_other(self.identity, "wordllama", _hash_of((weights, tokens)))
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # a task has one thread
        self._vectors = load_file(weights)["embedding.weight"].astype(np.float32)
        self._tokenizer = Tokenizer.from_file(tokens)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def embed(self, texts: Sequence[str]) -> RowArray:
        """Return the mean of the vectors of each text's tokens."""
        parts = [
            self._means(texts[first : first + _AT_ONCE]) for first in range(0, len(texts), _AT_ONCE)
        ]
        return np.concatenate(parts) if parts else np.zeros((0, self.width), np.float32)

    def _means(self, texts: Sequence[str]) -> RowArray:
        encoded = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        numbers = [one.ids for one in encoded]
        lengths = np.fromiter(map(len, numbers), np.int64, len(numbers))
        tokens = np.fromiter(chain.from_iterable(numbers), np.int64, int(lengths.sum()))
        np.clip(tokens, 0, len(self._vectors) - 1, out=tokens)
        return _means_of(self._vectors, tokens, lengths)

    def __reduce__(self) -> tuple[type[_Unloaded], tuple[Any, ...]]:
        """Go without weights: a worker reads its own, which must be the same."""
        return _Unloaded, (WordLlama, {"identity": self.identity})


def _means_of(vectors: RowArray, tokens: AnyArray, lengths: AnyArray) -> RowArray:
    """Return the mean vector of each text's tokens, added in their order: of the text alone."""
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    ones = np.ones(len(tokens), np.float32)
    counts = scipy.sparse.csr_array((ones, tokens, ends), shape=(len(lengths), len(vectors)))
    sums: RowArray = counts @ vectors
    sums /= np.maximum(lengths, 1).astype(np.float32)[:, None]
    return sums


def _files_of_wordllama() -> tuple[str, str]:
    try:
        spec = util.find_spec("wordllama")
        known = all(util.find_spec(name) for name in ("safetensors", "tokenizers"))
    except (ImportError, ValueError):
        spec, known = None, False
    if spec is None or not spec.submodule_search_locations or not known:
        raise missing_extra("wordllama", "wordllama")
    folder = spec.submodule_search_locations[0]
    weights, tokens = f"{folder}/{WordLlama._WEIGHTS}", f"{folder}/{WordLlama._TOKENS}"
    for path in (weights, tokens):
        if not os.path.isfile(path):
            raise ConfigurationError(
                f"the package wordllama must bring {os.path.relpath(path, folder)}, got a version "
                "without it; install one that does: pip install 'hmrf-dask[wordllama]'"
            )
    return weights, tokens


class _Folder(ABC):
    """A model in a local folder, which every worker must see."""

    kind: str
    extra: str
    package: str

    def __init__(self, folder: str) -> None:
        if util.find_spec(self.package) is None:
            raise missing_extra(self.extra, self.extra)
        self.folder = folder
        self.identity = f"{self.kind}/{_hash_of(tuple(_model_files(folder)))}"
        self.width = self._width_in(folder)

    @abstractmethod
    def _width_in(self, folder: str) -> int: ...

    def _refuse_changed(self) -> None:
        _refuse_other(self.identity, self.kind, _hash_of(tuple(_model_files(self.folder))))

    def __reduce__(self) -> tuple[type[_Unloaded], tuple[Any, ...]]:
        """Go without weights."""
        known = {name: getattr(self, name) for name in ("folder", "identity", "width")}
        return _Unloaded, (type(self), known)


class _Unloaded:
    """How embedders travel: the constructor, which hashes weights, is not run again."""

    def __new__(cls, kind: type[Any], known: dict[str, Any]) -> Any:
        """Return an embedder with what is known of it."""
        made = object.__new__(kind)
        made.__dict__.update(known)
        return made


class StaticFolder(_Folder):
    """A static model of model2vec in a local folder."""

    kind = extra = package = "model2vec"
    row_exact: bool = True

    def _width_in(self, folder: str) -> int:
        return _shape_in(f"{folder}/model.safetensors", "embeddings")[1]

    def load(self) -> None:
        """Read the weights."""
        from model2vec import StaticModel

        self._refuse_changed()
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self._model = StaticModel.from_pretrained(self.folder)

    def embed(self, texts: Sequence[str]) -> RowArray:
        """Return what the model encodes."""
        if not len(texts):
            return np.zeros((0, self.width), np.float32)
        encoded = self._model.encode(list(texts), use_multiprocessing=False)
        return np.asarray(encoded, np.float32)


class TransformerFolder(_Folder):
    """A model of sentence-transformers in a local folder, on one thread.

    A text is padded to the next power of two of its tokens and goes with as many others as ever, so
    that what is multiplied has the same shape for the same text.
    """

    kind = extra = "sentence-transformers"
    package = "sentence_transformers"
    row_exact: bool = False

    def _width_in(self, folder: str) -> int:
        modules = _json_in(folder, "modules.json")
        paths = [one.get("path", "") for one in modules if isinstance(one, dict)]
        configs = [_json_in(os.path.join(folder, path), "config.json") or {} for path in paths]
        names = ("out_features", "word_embedding_dimension", "hidden_size")
        widths = [one[name] for one in reversed(configs) for name in names if name in one]
        if not widths or type(widths[0]) is not int:
            raise ConfigurationError(
                f"{folder} must say how many numbers a vector has (word_embedding_dimension in the "
                "config of its pooling), got none; save the model again"
            )
        return widths[0]

    def load(self) -> None:
        """Read the weights; only safetensors, which hold no code."""
        import torch
        from sentence_transformers import SentenceTransformer

        self._refuse_changed()
        torch.set_num_threads(1)
        self._model = SentenceTransformer(
            self.folder, device="cpu", local_files_only=True, trust_remote_code=False,
            model_kwargs={"use_safetensors": True},
        )  # fmt: skip
        self._model.eval()

    def embed(self, texts: Sequence[str]) -> RowArray:
        """Return what the model encodes, `_TOGETHER` texts of one padded length at a time."""
        import torch

        vectors = np.zeros((len(texts), self.width), np.float32)
        tokenizer, most = self._model.tokenizer, self._model.max_seq_length
        for length, places in _by_length(self._lengths(texts), most):
            chosen = [texts[place] for place in places]
            chosen += chosen[-1:] * (_TOGETHER - len(chosen))
            features = tokenizer(
                chosen, padding="max_length", truncation=True, max_length=length,
                return_tensors="pt",
            )  # fmt: skip
            with torch.inference_mode():
                encoded = self._model.forward(dict(features))["sentence_embedding"]
            vectors[places] = encoded[: len(places)].numpy()
        return vectors

    def _lengths(self, texts: Sequence[str]) -> list[int]:
        most = self._model.max_seq_length
        encoded = self._model.tokenizer(list(texts), truncation=True, max_length=most)
        return [len(one) for one in encoded["input_ids"]] if len(texts) else []


def _by_length(lengths: Sequence[int], most: int) -> Iterator[tuple[int, list[int]]]:
    """Yield texts that are padded to one length, as many as go together, by their places.

    Examples
    --------
    >>> list(_by_length([3, 40, 5, 300], 256))
    [(16, [0, 2]), (64, [1]), (256, [3])]
    """
    padded = [min(most, max(_SHORTEST, 1 << max(0, one - 1).bit_length())) for one in lengths]
    for length in sorted(set(padded)):
        places = [place for place, one in enumerate(padded) if one == length]
        for first in range(0, len(places), _TOGETHER):
            yield length, places[first : first + _TOGETHER]


# ---- what files are


def _model_files(folder: str) -> list[str]:
    """Return the files of a model, without notes about it."""
    found = []
    for above, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [f"{above}/{one}" for one in names if one[0] != "." and not one.endswith(".md")]
    return sorted(found)


def _hash_of(paths: tuple[str, ...]) -> str:
    """Return a hash of files, read again only where one has changed."""
    stamps = [(path, os.stat(path)) for path in paths]
    return _hashed(tuple((path, one.st_size, one.st_mtime_ns) for path, one in stamps))


@lru_cache(maxsize=8)
def _hashed(stamps: tuple[tuple[str, int, int], ...]) -> str:
    top = os.path.commonpath([path for path, _, _ in stamps]) if stamps else ""
    whole = sha256()
    for path, _, _ in stamps:
        with open(path, "rb") as file:
            content = sha256(file.read()).hexdigest()
        whole.update(f"{os.path.relpath(path, top)} {content}\n".encode())
    return whole.hexdigest()[:24]


def _refuse_other(identity: str, kind: str, found: str) -> None:
    """Refuse weights that are not those that the driver has."""
    if identity != f"{kind}/{found}":
        raise ConfigurationError(
            f"a worker must have the same model as the driver, {identity}, got {kind}/{found}; "
            "install the same version, or wait until nobody changes the folder"
        )


def _shape_in(path: str, tensor: str) -> tuple[int, int]:
    """Return the shape of a matrix in a safetensors file, by its header."""
    try:
        with open(path, "rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            if size > 2**20 * 100:
                raise ValueError("a header of more than 100 MiB")
            rows, columns = json.loads(file.read(size))[tensor]["shape"]
    except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
        raise ConfigurationError(
            f"{path} must be a safetensors file with a matrix {tensor!r}, got one that is not "
            f"({error}); save the model again"
        ) from error
    return int(rows), int(columns)
