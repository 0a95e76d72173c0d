"""Who may read local files: the umask says, and in private folders their owner alone.

A folder that nobody but its owner may enter passes that on: files in it are made 0600 and folders
0700, by any process that writes there, without being told.
"""

from __future__ import annotations

import contextlib
import os
import stat

PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700
OTHERS = 0o077  # what all but the owner may do


def is_private(folder: str) -> bool:
    """Return whether only its owner may enter a folder.

    One that is not there is an error: another thread may make it before a file is opened in it.
    """
    return not stat.S_IMODE(os.stat(folder or ".").st_mode) & OTHERS


def open_file(path: str, flags: int) -> int:
    """Open a file, made as its folder says where it is new; an opener for `open`, too."""
    return os.open(path, flags, PRIVATE_FILE if is_private(os.path.dirname(path)) else 0o666)


def make_folder(path: str) -> None:
    """Make a folder, as the one above says, unless it is there."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, PRIVATE_FOLDER if is_private(os.path.dirname(path)) else 0o777)


def make_folders(path: str) -> None:
    """Make a folder and those above it."""
    if path and not os.path.isdir(path):
        make_folders(os.path.dirname(path))
        make_folder(path)
