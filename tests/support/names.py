"""Names of hosts for processes of a test, as they have in a cluster or in Compose."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = "NAMES_OF_HOSTS"
# What Python reads when it begins: the name of a host is that of a file with its address.
SITE = f"""
import os, socket
def getaddrinfo(host, *given, known=socket.getaddrinfo, **more):
    if isinstance(host, str):
        file = os.path.join(os.environ["{FOLDER}"], host.partition(".")[0])
        if os.path.exists(file):
            host = open(file).read()
    return known(host, *given, **more)
socket.getaddrinfo = getaddrinfo
"""


def named_hosts(folder: Path, addresses: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of processes that know these names; files that come later count."""
    names, site = folder / "names", folder / "site"
    names.mkdir()
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITE)
    for name, address in addresses.items():
        (names / name).write_text(address)
    return {"PYTHONPATH": f"{site}:{ROOT}", FOLDER: str(names)}
