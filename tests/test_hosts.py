"""Hosts of their own, on which clusters are proved and measured: shaped, cut off, and removed."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from tests.support.hosts import DEVICES, NAMESPACES, Host, hosts, no_hosts, remove_leftovers

pytestmark = pytest.mark.skipif(bool(no_hosts()), reason=f"no hosts of their own: {no_hosts()}")
SEND = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 0.5)"
MAKE_AND_DIE = """
import os, signal
from tests.support.hosts import hosts
with hosts(1) as network:
    print(network.hosts[0].name, network.hosts[0].link, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def reaches(host: Host, address: str, port: int) -> bool:
    command = host.command(sys.executable, "-S", "-c", SEND, address, str(port))
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_hosts_have_addresses_and_counted_links_until_they_are_cut_off() -> None:
    with hosts(1, megabits=1000) as network, socket.socket() as here:
        here.bind((network.address, 0))
        here.listen()
        (host,) = network.hosts
        before = host.sent_and_received()
        assert reaches(host, network.address, here.getsockname()[1])
        after = host.sent_and_received()
        assert all(later > earlier for earlier, later in zip(before, after, strict=True))
        host.cut_off()
        assert not reaches(host, network.address, here.getsockname()[1])
    assert not (DEVICES / host.link).exists()
    assert not (NAMESPACES / host.name).exists()


def test_hosts_of_a_killed_process_are_removed_by_the_next_one() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MAKE_AND_DIE], stdout=subprocess.PIPE, text=True, check=False
    )
    name, link = done.stdout.split()
    assert (done.returncode, (DEVICES / link).exists()) == (-9, True)
    remove_leftovers()
    assert not (NAMESPACES / name).exists()
    assert not (DEVICES / link).exists()
