"""PyTorch's attention call by generated kernels.

Kernels are built when they are first needed, and kept: one for each number and width of heads,
element type, scale and kind of mask. Sequences and their lengths are free.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from math import prod
from typing import Any

import torch
from attrs import frozen

from tilegen.dims import Dyn
from tilegen.errors import OperandError
from tilegen.kernel import Kernel
from tilegen.program import build
from tilegen.specs.attention import Attention
from tilegen.specs.masks import Causal, MaskTensor
from tilegen.specs.scores import ScoreBias
from tilegen.torch_op import refuse_gradients

__all__ = ["attention"]

_NAME = "tilegen::attention"
_SERVED = (torch.float16, torch.bfloat16)


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Return what ``torch.nn.functional.scaled_dot_product_attention`` does, without dropout.

    It is the torch operator ``tilegen::attention``, for ``torch.compile(fullgraph=True)``, and for
    CUDA graphs once a call has built the kernel. A query that sees no key gives 0, whether a bool
    mask hides all or -inf is added to all, as by PyTorch's own kernels. There is no backward.

    Args:
        q: (..., heads, seq_q, head_dim), float16 or bfloat16; head_dim a multiple of 8 up to 256.
            Axes before the heads are sequences. Of three axes, the first is sequences of one head
            each, or heads where ``enable_gqa``.
        k: (..., kv_heads, seq_kv, head_dim).
        v: (..., kv_heads, seq_kv, head_dim_v).
        attn_mask: True where a query sees a key; or what is added to scaled scores, of q's element
            type or float32. It broadcasts to (..., heads, seq_q, seq_kv), without a copy unless q
            has five axes or more.
        is_causal: Whether query i sees keys 0 to i: from the top left, which is not `Causal`'s
            default where there are not as many keys as queries.
        scale: What scores are multiplied by; None is ``1 / sqrt(head_dim)``.
        enable_gqa: Whether a head of k and v serves ``heads / kv_heads`` heads of q.

    Raises:
        OperandError: A tensor does not fit; names it and says what would.
        SpecError: Heads of such a width or number are not served.
    """
    if q.device.type not in ("cuda", "meta"):
        raise OperandError("q", f"device={q.device}: must be a CUDA device; use q.cuda()")
    return _operator(q, k, v, attn_mask, is_causal, scale, enable_gqa)


@frozen
class _Kind:
    """What a kernel is made for."""

    heads: int
    kv_heads: int
    head_dim: int
    head_dim_v: int
    dtype: torch.dtype
    mask: torch.dtype | None
    is_causal: bool
    scale: float | None

    @property
    def spec(self) -> Attention:
        """The spec of the kernel."""
        mask = MaskTensor() if self.mask == torch.bool else None
        added = self.mask is not None and mask is None
        dtype: Any = self.mask  # taken by name
        return Attention(
            batch=Dyn("batch", hint=8),
            heads=self.heads,
            kv_heads=self.kv_heads,
            seq_q=Dyn("seq_q"),
            seq_kv=Dyn("seq_kv"),
            head_dim=self.head_dim,
            head_dim_v=self.head_dim_v,
            dtype=self.dtype,  # type: ignore[arg-type]
            layout="bhsd",
            scale=self.scale,  # type: ignore[arg-type]
            scores=(ScoreBias(dtype=dtype),) if added else (),
            mask=Causal(align="top-left") if self.is_causal else mask,
        )


@frozen(eq=False)
class _Call:
    """A call: its kind, and its tensors as a kernel takes them."""

    kind: _Kind
    operands: dict[str, torch.Tensor]
    shape: tuple[int, ...]


def _call(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    attn_mask: torch.Tensor | None,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> _Call:
    """Return a call; OperandError where a tensor does not fit."""
    _check_types({"q": q, "k": k, "v": v}, attn_mask)
    if is_causal and attn_mask is not None:
        raise OperandError("attn_mask", "is given with is_causal=True; give one of them")
    shape, lead = (*q.shape[:-1], v.shape[-1]), q.shape[:-3]
    headless = q.dim() == 2 or (q.dim() == 3 and not enable_gqa)
    if headless:
        lead = q.shape[:-2]
        q, k, v = (tensor.unsqueeze(-3) for tensor in (q, k, v))
    _check_shapes(q, k, v, enable_gqa)
    batch = prod(lead)
    operands = {
        name: tensor.reshape(batch, *tensor.shape[-3:])
        for name, tensor in (("q", q), ("k", k), ("v", v))
    }
    if attn_mask is not None:
        name = "mask" if attn_mask.dtype == torch.bool else "bias"
        pairs = (*lead, q.shape[-3], q.shape[-2], k.shape[-2])
        operands[name] = _expanded(attn_mask, pairs, headless)
    own = int(q.shape[-1])
    kind = _Kind(
        heads=int(q.shape[-3]),
        kv_heads=int(k.shape[-3]),
        head_dim=own,
        head_dim_v=int(v.shape[-1]),
        dtype=q.dtype,
        mask=None if attn_mask is None else attn_mask.dtype,
        is_causal=is_causal,
        scale=None if own and scale == own**-0.5 else scale,
    )
    return _Call(kind, operands, shape)


def _check_types(tensors: dict[str, torch.Tensor], mask: torch.Tensor | None) -> None:
    """Check element types, devices and numbers of axes."""
    q = tensors["q"]
    if q.dtype not in _SERVED:
        raise OperandError("q", f"dtype={q.dtype}: must be {' or '.join(map(str, _SERVED))}")
    if q.dim() < 2:
        raise OperandError("q", f"has {q.dim()} axes, must have 2 at least")
    for name, tensor in tensors.items():
        if tensor.dtype != q.dtype:
            raise OperandError(name, f"dtype={tensor.dtype}: must be {q.dtype}, as q")
        if tensor.dim() != q.dim():
            raise OperandError(name, f"has {tensor.dim()} axes, must have {q.dim()}, as q")
    kinds = (torch.bool, q.dtype, torch.float32)
    if mask is not None and mask.dtype not in kinds:
        said = f"dtype={mask.dtype}: must be {', '.join(map(str, kinds[:2]))} or {kinds[2]}"
        raise OperandError("attn_mask", said)
    for name, tensor in {**tensors, "attn_mask": mask}.items():
        if tensor is not None and tensor.device != q.device:
            said = f"device={tensor.device}: must be {q.device}, where q is"
            raise OperandError(name, f"{said}; use {name}.to({str(q.device)!r})")


def _check_shapes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, enable_gqa: bool) -> None:
    """Check that tensors with an axis of heads go together."""
    lead, heads = tuple(q.shape[:-3]), q.shape[-3]
    for name, tensor, width in (("k", k, q.shape[-1]), ("v", v, v.shape[-1])):
        wanted = (*lead, k.shape[-3], k.shape[-2], width)
        if tuple(tensor.shape) != wanted:
            said = f"shape={tuple(tensor.shape)}: must be {wanted}, as q is {tuple(q.shape)}"
            raise OperandError(name, said + (" and k like this" if name == "v" else ""))
    if k.shape[-3] != heads and not enable_gqa:
        said = f"shape={tuple(k.shape)}: has {k.shape[-3]} heads, and q has {heads}"
        raise OperandError("k", f"{said}; repeat them, or pass enable_gqa=True")


def _expanded(mask: torch.Tensor, pairs: tuple[int, ...], headless: bool) -> torch.Tensor:
    """Return a mask as (batch, heads, seq_q, seq_kv), of whose axes some have stride 0."""
    rank = len(pairs) - headless
    sizes = (*(1,) * (rank - mask.dim()), *mask.shape)
    wanted = (*pairs[:-3], *pairs[-2:]) if headless else pairs
    if len(sizes) > rank or any(n not in (1, m) for n, m in zip(sizes, wanted, strict=True)):
        said = f"shape={tuple(mask.shape)}: must broadcast to {wanted}"
        raise OperandError("attn_mask", said)
    mask = mask.reshape(sizes)
    mask = mask.unsqueeze(-3) if headless else mask
    lead, rest = pairs[:-3], mask.shape[-3:]
    if len(lead) > 1 and any(n != 1 for n in mask.shape[:-3]):
        mask = mask.expand(*lead, *rest)
    batch = prod(mask.shape[:-3])
    return mask.reshape(batch, *rest).expand(prod(lead), *pairs[-3:])


_lock = threading.Lock()
_kernels: dict[tuple[_Kind, int], Kernel] = {}


def _kernel(kind: _Kind, device: torch.device) -> Kernel:
    """Return the kernel of a kind for a device, built on first use: once, also by threads."""
    where = (kind, device.index or 0)
    found = _kernels.get(where)
    if found is not None:
        return found
    with _lock:
        if where not in _kernels:
            with torch.cuda.device(device):
                _kernels[where] = build(kind.spec).compile()
        return _kernels[where]


def _run(call: _Call, kernel: Callable[..., torch.Tensor]) -> torch.Tensor:
    return kernel(**call.operands).view(call.shape)


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    attn_mask: torch.Tensor | None,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> torch.Tensor:
    call = _call(q, k, v, attn_mask, is_causal, scale, enable_gqa)
    return _run(call, _kernel(call.kind, q.device))


_operator = torch.library.custom_op(
    _NAME,
    _attend,
    mutates_args=(),
    device_types="cuda",
    schema="(Tensor q, Tensor k, Tensor v, Tensor? attn_mask, bool is_causal, float? scale, "
    "bool enable_gqa) -> Tensor",
)


@_operator.register_fake
def _fake(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    attn_mask: torch.Tensor | None,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> torch.Tensor:
    call = _call(q, k, v, attn_mask, is_causal, scale, enable_gqa)
    _ = call.kind.spec  # refuses heads that are not served
    return q.new_empty(call.shape)


refuse_gradients(_operator, _NAME, ("q", "k", "v", "attn_mask"))
