"""numba's compiler, its steps unchanged, with options that are cheap to look up.

While numba infers types it looks up every operator it meets in tables whose keys hold the options
of the function at hand, thousands of times for a kernel, and each time these are hashed and
compared one by one. Here they are one object for each set of values: a look is cheap.
"""

from __future__ import annotations

from typing import Any

from numba.core.compiler import Compiler, Flags

_KNOWN: dict[str, Settled] = {}


class Settled(Flags):  # type: ignore[misc]
    """Options that no longer change: one object for all that are equal."""

    __slots__ = ()
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def copy(self) -> Flags:
        """Return options that may be changed."""
        return Flags(self)


class Open(Flags):  # type: ignore[misc]
    """Options that may still change; their copies, which numba compiles under, are settled."""

    __slots__ = ()

    def copy(self) -> Settled:
        """Return the one object for options as they are now."""
        # what numba makes the names of symbols of
        return _KNOWN.setdefault(self.summary(), Settled(self))


class KernelCompiler(Compiler):  # type: ignore[misc]
    """The compiler of kernels."""

    def __init__(
        self, typing: Any, target: Any, library: Any, args: Any, result: Any, flags: Flags,
        local: Any,
    ) -> None:  # fmt: skip
        super().__init__(typing, target, library, args, result, Open(flags), local)
