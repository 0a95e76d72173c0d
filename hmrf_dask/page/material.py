"""What there is to ask about: questions, groups in their places, and the documents themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from hmrf_dask.answers.records import CHOICE, PAIR, Question
from hmrf_dask.jobs.ask import SEVERAL
from hmrf_dask.jobs.texts import Document
from hmrf_dask.page.marks import Weights, frequencies
from hmrf_dask.questions.rounds import ALL_SHOWN


class Texts(Protocol):
    """Where documents are read."""

    def read(self, ids: Iterable[str]) -> Mapping[str, Document]:
        """Return documents by their ids; one that is gone says why."""
        ...

    def columns(self, name: str) -> Mapping[str, str]:
        """Return the other columns of a document."""
        ...


MOST_NEAR: Final = 3  # two are shown, one of which may be what is asked about


@dataclass(frozen=True)
class Group:
    """A group that a document may belong to.

    Attributes
    ----------
    document : str
        Stands for it.
    words : tuple of str
        Of its cluster, the heaviest first; none where rows are not made of words.
    size : int or None
        Documents of its cluster, where it is of one.
    near : tuple of str
        Documents in the middle of its cluster.
    cluster : int or None
    """

    document: str
    words: tuple[str, ...] = ()
    size: int | None = None
    near: tuple[str, ...] = ()
    cluster: int | None = None

    @property
    def representatives(self) -> tuple[str, ...]:
        """The documents that may be shown of it, the one that stands for it first.

        Examples
        --------
        >>> Group("r", near=("s", "r", "t", "u")).representatives
        ('r', 's', 't')
        """
        return tuple(dict.fromkeys((self.document, *self.near)))[:MOST_NEAR]


@dataclass(frozen=True)
class Material:
    """A round of questions about an output, and what is shown with them.

    Attributes
    ----------
    name : str
        What the page is called.
    batch : tuple of Question
        Choices whose `shown` are all groups a document may belong to.
    groups : tuple of Group
        All that the batch shows, each in the place that it keeps.
    texts : Texts
    weigh : callable, optional
        What words are worth; without it rare ones of the documents at hand say more.
    """

    name: str
    batch: tuple[Question, ...]
    groups: tuple[Group, ...]
    texts: Texts
    weigh: Weights | None = None

    @property
    def kind(self) -> str:
        """How a person is asked at first.

        Examples
        --------
        >>> groups = tuple(map(Group, "abcde"))
        >>> Material("", (), groups, None).kind, Material("", (), groups[:4], None).kind
        ('choice', 'pair')
        """
        return CHOICE if len(self.groups) > SEVERAL else PAIR

    @property
    def all_shown(self) -> bool:
        """Whether all groups are shown at once."""
        return len(self.groups) <= ALL_SHOWN

    def documents(self) -> list[str]:
        """Return the documents that are shown before any answer."""
        of_groups = (one for group in self.groups for one in group.representatives)
        of_batch = (one for question in self.batch for one in question.documents)
        return list(dict.fromkeys((*of_batch, *of_groups)))


class Library:
    """Documents that are there; those that will be shown, maybe, are read at once."""

    def __init__(self, material: Material, others: Iterable[str] = ()) -> None:
        self._texts = material.texts
        wanted = dict.fromkeys((*material.documents(), *others))
        self._first = {
            name: one for name, one in self._texts.read(wanted).items() if not one.missing
        }

    def get(self, ids: Iterable[str]) -> dict[str, Document]:
        """Return those documents that are there.

        Parameters
        ----------
        ids : iterable of str
            Those that were not read before are read together.
        """
        wanted = list(dict.fromkeys(ids))
        if missing := [one for one in wanted if one not in self._first]:
            found = self._texts.read(missing)
        return {
            one: document
            for one in wanted
            if not (document := self._first[one] if one in self._first else found[one]).missing
        }

    def weights(self) -> Weights:
        """Return what words are worth by the documents that were read at first."""
        return frequencies([document.text for document in self._first.values()])
