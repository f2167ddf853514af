"""What the tests of kernels share: where kernels run, how exact they are, and what they are compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tokenmix.ops.kernels import INSTALLED, INTERPRETING

RUNS = INSTALLED and (INTERPRETING or torch.cuda.is_available())
DEVICE = "cpu" if INTERPRETING or not torch.cuda.is_available() else "cuda"
DTYPES = [torch.float32] if DEVICE == "cpu" else [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
HOPPER = torch.cuda.is_available() and torch.version.hip is None and torch.cuda.get_device_capability()[0] == 9
on_hopper = pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")
needs_kernels = pytest.mark.skipif(not RUNS, reason="runs in test_in_the_interpreter, or on a GPU")


def disagreements(
    fast: Callable[..., Tensor], exact: Callable[..., Tensor], inputs: dict[str, Tensor]
) -> dict[str, float]:
    """Relative errors beyond the tolerance: output and every gradient of `fast` against `exact` in float64."""
    dtype = inputs["x" if "x" in inputs else "v"].dtype
    results = []
    for function, cast in ((fast, lambda t: t), (exact, Tensor.double)):
        leaves = {name: cast(t).detach().clone(memory_format=torch.preserve_format) for name, t in inputs.items()}
        for leaf in leaves.values():
            leaf.requires_grad_()
        out = function(**leaves)
        torch.manual_seed(1)
        out.backward(torch.randn(out.shape, device=out.device).to(out.dtype))
        results.append({"output": out, **{name: leaf.grad for name, leaf in leaves.items()}})
    found = {}
    for name, right in results[1].items():
        got = results[0][name]
        error = float("nan") if got is None else float((got.double() - right).norm() / right.norm().clamp_min(1e-12))
        if not error < TOLERANCE[dtype]:  # what is missing or not finite, too
            found[name] = error
    return found


def lengths(batch: int, longest: int) -> Tensor:
    """A padding mask: examples of all lengths, one of a single token."""
    ends = torch.linspace(longest, 1, batch).int()
    return (torch.arange(longest)[None] < ends[:, None]).to(DEVICE)


def draw(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, device=DEVICE).to(dtype)


def real_and_fake(op: Any, *arguments: Any) -> list[tuple[Any, Any]]:
    """(shape, strides, dtype) of each result, as it is and as the compiler is told; what is empty is left out."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        fake = op(*(mode.from_tensor(t) if isinstance(t, Tensor) else t for t in arguments))
    pairs = zip(op(*arguments), fake, strict=True)
    return [((r.shape, r.stride(), r.dtype), (f.shape, f.stride(), f.dtype)) for r, f in pairs if r.numel()]


def permuted(t: Tensor | None) -> Tensor | None:
    """The same numbers, the first dimension innermost in memory."""
    return None if t is None else t.transpose(0, -1).contiguous().transpose(0, -1)
