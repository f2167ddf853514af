"""gelu(x) = x Φ(x) and its slope, for kernels."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def cdf(x, NARROW: tl.constexpr):
    """Φ(x) of the normal distribution; gelu(x) = x Φ(x).

    For 16-bit numbers Φ − ½ as an odd polynomial that leaves [−½, ½] at ±4.3 and is cut there, which costs nothing: the
    last multiply-add saturates. Φ is off by at most 2.2e-5, gelu by 4e-5, in less than half the instructions of erf:
    they, not memory, are what its kernels wait for.
    """
    if NARROW:
        s = x * x
        p = 4.3970121e-11 * s - 4.4199233e-09
        p = p * s + 1.9635462e-07
        p = p * s - 5.1255085e-06
        p = p * s + 8.8482765e-05
        p = p * s - 1.0806561e-03
        p = p * s + 9.7309618e-03
        p = p * s - 6.6225638e-02
        p = p * s + 3.9885299e-01
        return tl.minimum(tl.maximum(p * x + 0.5, 0.0), 1.0)
    else:
        return 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit
def slope(x, p):
    """gelu'(x) = Φ(x) + x φ(x),  φ(x) = exp(−x²/2) / √2π = 2^(−x² log₂(e)/2 − log₂(2π)/2),  of p = Φ(x)."""
    return p + x * tl.exp2(-0.7213475204444817 * (x * x) - 1.3257480647361593)
