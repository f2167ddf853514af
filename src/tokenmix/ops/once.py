"""Ways back that are operators of their own have no further way back: whoever asks for one is told so."""

from __future__ import annotations

from typing import Any, NoReturn

from torch.library import CustomOpDef

REFUSAL = (
    "no gradients of gradients through {}: its gradient is one fused operator; take them with torch.func, for example "
    "torch.func.jvp(torch.func.grad(f), …), which goes through plain operators"
)


def once(backward: CustomOpDef) -> None:
    """The gradients that `backward` computes are an error to differentiate."""
    name = f"{backward._namespace}::{backward._name.removesuffix('_backward')}"

    def refuse(ctx: Any, *grads: Any) -> NoReturn:
        raise RuntimeError(REFUSAL.format(name))

    backward.register_autograd(refuse)
