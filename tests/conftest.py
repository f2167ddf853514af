"""What holds for every test: one thread, a fixed seed, no network, no hub, no telemetry."""

from __future__ import annotations

import errno
import ipaddress
import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Before anything imports torch or Hugging Face; processes that tests start inherit it.
os.environ.update(
    HF_HUB_OFFLINE="1",
    HF_DATASETS_OFFLINE="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    DO_NOT_TRACK="1",
    RAY_USAGE_STATS_ENABLED="0",
    TOKENIZERS_PARALLELISM="false",
)
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import numpy as np
import pytest
import torch

torch.set_num_threads(1)

# The same examples in every run, and no deadline: test machines are shared.
hypothesis.settings.register_profile("tokenmix", deadline=None, derandomize=True)
hypothesis.settings.load_profile("tokenmix")


def _stays_on_this_machine(host: Any) -> bool:
    """True for loopback and for this machine's own name and addresses."""
    if host in (None, "", b"", "localhost", socket.gethostname(), "0.0.0.0", "::"):
        return True
    host = host.decode() if isinstance(host, bytes) else str(host)
    try:
        address = ipaddress.ip_address(host.split("%")[0])
    except ValueError:
        return False
    return address.is_loopback or str(address) in _own_addresses()


def _own_addresses() -> set[str]:
    try:
        return {str(info[4][0]) for info in _getaddrinfo(socket.gethostname(), None)}
    except OSError:
        return set()


_getaddrinfo = socket.getaddrinfo
_connect, _connect_ex = socket.socket.connect, socket.socket.connect_ex


def _refuse(host: Any) -> str:
    return f"tests use no network, and this one reached for {host!r}; use a local file, a fixture or localhost"


def _check(sock: socket.socket, address: Any) -> None:
    if sock.family not in (socket.AF_INET, socket.AF_INET6) or _stays_on_this_machine(address[0]):
        return
    if (
        sock.type == socket.SOCK_DGRAM
    ):  # sends nothing yet: libraries ask so for this machine's address, and can do without
        raise OSError(errno.ENETUNREACH, _refuse(address[0]))
    raise RuntimeError(_refuse(address[0]))


def _guarded_connect(self: socket.socket, address: Any) -> None:
    _check(self, address)
    _connect(self, address)


def _guarded_connect_ex(self: socket.socket, address: Any) -> int:
    _check(self, address)
    return _connect_ex(self, address)


def _guarded_getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
    if not _stays_on_this_machine(host):
        raise RuntimeError(_refuse(host))
    return _getaddrinfo(host, *args, **kwargs)


@pytest.fixture(scope="session", autouse=True)
def no_network() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", _guarded_connect)
        patch.setattr(socket.socket, "connect_ex", _guarded_connect_ex)
        patch.setattr(socket, "getaddrinfo", _guarded_getaddrinfo)
        yield


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    random.seed(0)
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002  some libraries still draw from the global generator


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data that TOKENMIX_DATA names; its README.md says what lies there."""
    folder = os.environ.get("TOKENMIX_DATA")
    if not folder:
        pytest.skip("real data: TOKENMIX_DATA is not set")
    if not Path(folder).is_dir():
        pytest.skip(f"real data: TOKENMIX_DATA={folder} is not a folder")
    return Path(folder)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))
