"""Choosing a kernel's block sizes by measurement, once per machine.

The first call of a problem times every candidate and remembers the fastest, in memory and in a file
(TOKENMIX_CACHE, by default ~/.cache/tokenmix), so that later runs choose the same and compute the same bits. Kernels that
have changed are measured anew. A candidate whose results are not those of the last one, the plainest, is told and left out.
TOKENMIX_AUTOTUNE=0 takes the first candidate, the one that was best on an H200; so does a call under graph capture.
"""

from __future__ import annotations

import json
import logging
import os
import zlib
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, TypeAlias

import torch
import triton
from torch import Tensor

from tokenmix.ops.kernels import INTERPRETING

log = logging.getLogger(__name__)

Config: TypeAlias = dict[str, Any]  #: keyword arguments of a launch: block sizes, num_warps, num_stages
Results: TypeAlias = Sequence[Tensor | None] | None  #: what a launch fills

_chosen: dict[tuple[Any, ...], Config] = {}


def choose(name: str, key: Sequence[Any], configs: Sequence[Config], launch: Callable[[Config], Results]) -> Config:
    """The fastest of `configs` for the problem `key` of the kernel `name`; `launch` runs one of them.

    Candidates that do not compile, or need more shared memory than there is, are passed over. `launch` returns the tensors
    that it fills, by which candidates are compared, or None. Tensors of zeros, or with infinite numbers, tell nothing: then
    the plainest is taken, and the choice is left to a later call.
    """
    if len(configs) == 1 or INTERPRETING:
        return configs[0]
    known = _chosen.get((name, *key))
    if known is not None and known in configs:  # the same problem may come in tensors that some cannot read
        return known
    if os.environ.get("TOKENMIX_AUTOTUNE", "1") == "0" or torch.cuda.is_current_stream_capturing():
        return configs[0]
    listed = zlib.crc32(repr(configs).encode(), _sources())  # other candidates, or kernels, are another choice
    tag = f"{name} {_machine()} {' '.join(map(str, key))} of {listed:08x}"
    best = _read().get(tag)
    if best is None:
        plain, made = _plainest(tag, configs, launch)
        if not all(map(_tells, made)):
            return plain
        best = _measure(tag, configs, launch, made)
        _write(tag, best)
    _chosen[(name, *key)] = configs[best]
    return configs[best]


def milliseconds(call: Callable[[], Any], budget: float = 30.0) -> float:
    """The median time the GPU takes for `call`, the L2 cache cleared before each; about `budget` milliseconds in all.

    The GPU sleeps while the host queues the calls, so that what launching them costs the host does not count: it is as
    much as a small kernel runs, and nothing in a captured graph.
    """
    call()  # compiles
    cache = triton.runtime.driver.active.get_empty_cache_for_benchmark()

    def queue(times: int) -> list[float]:
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(times)]
        for start, end in events:
            triton.runtime.driver.active.clear_cache(cache)
            start.record()
            call()
            end.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) for start, end in events]

    torch.cuda.synchronize()
    began = perf_counter()
    once = queue(2)[-1]
    times = max(3, min(50, int(budget / once)))
    seconds = min(0.1, times * (perf_counter() - began) / 2)
    torch.cuda._sleep(int(seconds * 2e9))  # in cycles of about half a nanosecond
    return median(queue(times))


def _plainest(
    tag: str, configs: Sequence[Config], launch: Callable[[Config], Results]
) -> tuple[Config, Sequence[Tensor]]:
    """The last candidate that runs here, and of what it makes a sample."""
    for config in reversed(configs):
        try:
            return config, _sample(launch(config))
        except Exception as error:  # this machine cannot run it: too much shared memory, no TMA, …
            log.debug("%s: %s does not run: %s", tag, config, error)
    return configs[-1], ()


def _measure(
    tag: str, configs: Sequence[Config], launch: Callable[[Config], Results], plainest: Sequence[Tensor]
) -> int:
    times = [float("inf")] * len(configs)
    for n, config in enumerate(configs):
        try:
            time = milliseconds(partial(launch, config))
            for made in launch(config) or ():
                if made is not None:
                    made.fill_(float("nan"))  # what is left out shows
            right = all(map(_agree, _sample(launch(config)), plainest))
        except Exception as error:
            log.debug("%s: %s does not run: %s", tag, config, error)
            continue
        if right:
            times[n] = time
        else:
            log.warning("%s: %s computes something else than the others and is not used", tag, config)
    best = min(range(len(times)), key=times.__getitem__)
    if times[best] == float("inf"):
        raise RuntimeError(f"no configuration of {tag} runs on this machine; set TOKENMIX_KERNELS=0 to do without")
    log.info("%s: %s, %.3f ms", tag, configs[best], times[best])
    return best


def _sample(results: Results) -> list[Tensor]:
    """A million numbers, or up to two, of each result: some of every tile, and of every column."""
    return [t.flatten()[:: t.numel() >> 20 | 1].clone() for t in results or () if t is not None and t.numel()]


def _tells(plainest: Tensor) -> bool:
    return bool(torch.finfo(plainest.dtype).tiny < plainest.abs().max() < float("inf"))


def _agree(made: Tensor, plainest: Tensor) -> bool:
    """Is every difference as small as rounding makes it?"""
    return bool((made - plainest).abs().max() <= 0.02 * plainest.abs().max())


def _file() -> Path:
    folder = os.environ.get("TOKENMIX_CACHE") or Path.home() / ".cache" / "tokenmix"
    return Path(folder) / f"kernels-triton{triton.__version__}.json"


def _read() -> dict[str, int]:
    try:
        return json.loads(_file().read_text())
    except (OSError, ValueError):
        return {}


def _write(tag: str, best: int) -> None:
    try:
        _file().parent.mkdir(parents=True, exist_ok=True)
        partial = _file().with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(_read() | {tag: best}, indent=1, sort_keys=True))
        partial.replace(_file())
    except OSError as error:  # a read-only home: measured again next time
        log.debug("cannot remember %s: %s", tag, error)


@cache
def _sources() -> int:
    """A number for the text of the kernels."""
    return zlib.crc32(b"".join(file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py"))))


@cache
def _machine() -> str:
    return torch.cuda.get_device_name().replace(" ", "-")


@cache
def processors() -> int:
    """Multiprocessors of the GPU; a few in the interpreter."""
    if INTERPRETING:
        return 3
    return torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count


@cache
def has_tma() -> bool:
    """Does the GPU have the bulk tensor copy engine (TMA)?"""
    return not INTERPRETING and torch.cuda.get_device_capability()[0] >= 9


@cache
def gluon() -> bool:
    """Do the kernels written in Gluon run here? They use Hopper's own matrix instructions, which later GPUs do not have."""
    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    return not INTERPRETING and torch.cuda.get_device_capability()[0] == 9 and version >= (3, 6)


def precision(dtype: torch.dtype) -> str:
    """How tl.dot multiplies: exactly for float32, unless the user allowed TF32 for matrix products."""
    if dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest":
        return "ieee"
    return "tf32"
