"""Hosts of their own on one machine: network namespaces on a bridge, their links shaped by tc.

Every name carries the id of the process that made it, so what a killed one left behind is known,
and removed by the next one. Links have a rate and no latency. All of it needs root.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

MADE = re.compile(r"hmrf(\d+)(h|v|b)\d*")  # namespaces, the outer ends of links, bridges
DEVICES = Path("/sys/class/net")
NAMESPACES = Path("/run/netns")  # where `ip` has them
BLOCKS = 2048  # subnets of 64 addresses in 198.18.0.0/15, which is for such measurements


@dataclass(frozen=True)
class Host:
    """A namespace with one link; without a name it is the machine itself, on loopback."""

    name: str = ""
    address: str = "127.0.0.1"
    link: str = ""  # its end on the bridge

    def command(self, *arguments: str) -> list[str]:
        """Return a command that runs on this host."""
        return ["ip", "netns", "exec", self.name, *arguments] if self.name else list(arguments)

    def cut_off(self) -> None:
        """Take its link down: what is under way never arrives, and nobody is told."""
        _run("ip", "link", "set", self.link, "down")

    def sent_and_received(self) -> tuple[int, int]:
        """Return the bytes that it sent and received so far."""
        counters = DEVICES / self.link / "statistics"
        sent, received = (int((counters / f"{way}_bytes").read_text()) for way in ("rx", "tx"))
        return sent, received


@dataclass(frozen=True)
class Network:
    """Hosts that reach each other, and the machine itself, which has an address among them."""

    address: str
    hosts: tuple[Host, ...]


HERE = Host()


def no_hosts() -> str:
    """Say why no hosts can be made here; nothing where they can."""
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"no {' and no '.join(missing)} here: iproute2 is not installed"
    if os.geteuid():
        return "network namespaces need root"
    tried = subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False)
    return "" if tried.returncode == 0 else "this kernel, or this container, has no namespaces"


@contextmanager
def hosts(number: int, megabits: int = 1000) -> Iterator[Network]:
    """Give hosts whose links carry so many megabits a second each way; remove them."""
    remove_leftovers()
    mine = f"hmrf{os.getpid()}"
    block = os.getpid() % BLOCKS
    first = [198, 18 + block // 1024, block // 4 % 256, block % 4 * 64]
    addresses = [".".join(map(str, [*first[:3], first[3] + last])) for last in range(1, number + 2)]
    try:
        _run("ip", "link", "add", f"{mine}b", "type", "bridge")
        _run("ip", "address", "add", f"{addresses[0]}/26", "dev", f"{mine}b")
        _run("ip", "link", "set", f"{mine}b", "up")
        made = [
            Host(f"{mine}h{place}", address, f"{mine}v{place}")
            for place, address in enumerate(addresses[1:])
        ]
        for host in made:
            _join(host, f"{mine}b", megabits)
        yield Network(addresses[0], tuple(made))
    finally:
        _remove(os.getpid())


def _join(host: Host, bridge: str, megabits: int) -> None:
    _run("ip", "netns", "add", host.name)
    ends = ("type", "veth", "peer", "name", "eth0", "netns", host.name)
    _run("ip", "link", "add", host.link, *ends)
    _run("ip", "link", "set", host.link, "master", bridge)
    # A burst is what the kernel lets through between two of its ticks, of which there may be 100.
    shape = ("root", "tbf", "rate", f"{megabits}mbit", "burst", f"{max(256, 2 * megabits)}kb")
    _run("tc", "qdisc", "add", "dev", host.link, *shape, "latency", "50ms")
    _run("ip", "link", "set", host.link, "up")
    for inside in (
        ("tc", "qdisc", "add", "dev", "eth0", *shape, "latency", "50ms"),
        ("ip", "address", "add", f"{host.address}/26", "dev", "eth0"),
        ("ip", "link", "set", "eth0", "up"),
        ("ip", "link", "set", "lo", "up"),
    ):
        _run(*host.command(*inside))


def remove_leftovers() -> None:
    """Remove the hosts of processes that are gone, and what still runs on them."""
    names = _names_in(DEVICES) + _names_in(NAMESPACES)
    makers = {int(found[1]) for name in names if (found := MADE.fullmatch(name))}
    for maker in makers:
        if not Path(f"/proc/{maker}").exists():
            _remove(maker)


def _remove(maker: int) -> None:
    """End what runs on the hosts that a process made, and remove them with their links."""
    for name in _names_in(NAMESPACES):
        if name.startswith(f"hmrf{maker}h"):
            _end_all(name)
            _run("ip", "netns", "delete", name, must=False)
    for device in _names_in(DEVICES):
        if re.fullmatch(rf"hmrf{maker}[vb]\d*", device):
            _run("ip", "link", "delete", device, must=False)  # gone with its host, a moment later


def _names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()] if folder.exists() else []


def _end_all(name: str) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + 5
        while pids := _run("ip", "netns", "pids", name, must=False).split():
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(int(pid), number)
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)


def _run(*command: str, must: bool = True) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if must and done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
