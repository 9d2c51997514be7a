"""The attention spec: softmax of masked, modified scores, times the values."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, Literal

from attrs import Converter, evolve, field, frozen

from tilegen.dims import Dim, Dyn, blocks, extent, size
from tilegen.dtypes import DType, dtype
from tilegen.epilogue import (
    Cast,
    finite,
    operand_dtype,
    operand_kind,
)
from tilegen.errors import SpecError
from tilegen.fields import instance_of, one_of
from tilegen.reprs import compact_repr
from tilegen.specs import attention_fields as fields
from tilegen.specs.attended import attended
from tilegen.specs.attention_fields import AttentionOp
from tilegen.specs.block_map import block_map
from tilegen.specs.captured import Function
from tilegen.specs.masks import (
    NAMED,
    Mask,
    MaskMod,
    MaskTensor,
    PrefixLm,
    bottom_right,
    canonical,
    leaves,
)
from tilegen.specs.operands import RESERVED, Operand, check_names
from tilegen.specs.scores import Alibi, ScoreBias, ScoreMod, ScoreOp, not_all_zero, score_chain

# Names that the emitted source of the family uses itself.
_RESERVED = RESERVED | frozenset(
    "b h scores weights top base before total part row column seen sees flawed rest "
    "length_q length_kv start_q start_kv score distance q_idx kv_idx stop stop_kv low middle "
    "ahead steps barriers rows weigh clean k_full v_full q_full k_empty v_empty other "
    "attend load rescale flawed is_finite d0 partly stop first other low bm d x count "
    "partial blocks attempt tiles turn sums share judged show sms cta wave waves tile unit second "
    "pair done locate first_row end q_empty shared block ring full visit q_slot q_tile "
    "k_tile rate query_document key_document".split()
)


def _mask(value: object, spec: Any) -> Mask | None:
    """Return a mask in canonical form: among as many keys as queries, all are aligned alike."""
    if value is None:
        return None
    square = spec.seq_q == spec.seq_kv and not spec.varlen
    return canonical(bottom_right(value) if square else value)


def _dtype(value: object) -> DType:
    return dtype(value, (DType.float16, DType.bfloat16))


def _layout(spec: Any, attribute: object, value: object) -> None:
    if spec.varlen and value != "bshd":
        raise SpecError(
            "has no meaning for packed sequences, which are (tokens, heads, head_dim)",
            rule="no-effect",
            field="layout",
            value=value,
            hint="drop layout=",
        )


def _fits(spec: Any, attribute: object, value: object) -> None:
    if spec.varlen and (isinstance(spec.batch, Dyn) or not spec.batch):
        raise SpecError(
            "must be static, and at least 1, where sequences are packed",
            rule="dim",
            field="batch",
            value=getattr(spec.batch, "name", spec.batch),
            hint="give the most sequences of a call, and repeat the last entry of cu_seqlens for "
            "those that are fewer: empty sequences cost next to nothing",
        )
    dims = {dim.name: dim for dim in spec.dynamic}
    for dim in (spec.batch, spec.seq_q, spec.seq_kv):
        if isinstance(dim, Dyn) and dims[dim.name] != dim:
            raise SpecError(
                "is the name of two different dimensions",
                rule="dim",
                field="seq_kv",
                value=dim.name,
                hint="name them apart, or make them the same",
            )
    tensors = spec.operands + spec.outputs
    names = {dim.name for dim in spec.dynamic}
    check_names(tensors, names, _RESERVED | {f"{tensor.name}_strides" for tensor in tensors})


@frozen(kw_only=True, repr=False)
class Attention:
    """out = chain(softmax(masked(scores(scale * q @ k.T))) @ v) for each head, in fp32.

    A query that sees no key gives 0, and its ``lse`` is -inf; one with a score of +inf or NaN gives
    NaN in both. What a query does not see changes nothing of it, not even a NaN.

    Args:
        batch: Sequences; an int >= 0 or ``tg.dyn("batch")``. With ``varlen``, an int.
        heads: Heads of q.
        kv_heads: Heads of k and v; each serves ``heads / kv_heads`` heads of q.
        seq_q: Queries of a sequence; an int >= 0 or ``tg.dyn("seq_q")``. With ``varlen``, the
            queries of all sequences.
        seq_kv: Keys, likewise.
        head_dim: Length of a head of q and k: a multiple of 8 up to 256.
        head_dim_v: Length of a head of v; None is ``head_dim``.
        dtype: ``float16`` or ``bfloat16``.
        layout: ``"bshd"``, tensors are (batch, seq, heads, head_dim); ``"bhsd"``, (batch, heads,
            seq, head_dim).
        scale: What scores are multiplied by, not 0; None is ``1 / sqrt(head_dim)``.
        scores: What is done to scaled scores, from left to right: `Softcap`, `Alibi`,
            `ScoreBias`, `ScoreMod`.
        mask: The keys that a query sees, such as ``tg.Causal()``; None is all.
        block_map: Queries and keys of a block of an operand ``block_map``, which `tg.block_mask`
            makes of what the mask reads: the kernel then loads no block that the mask hides, and
            masks none that it shows whole. None where the mask's own form tells, or all is loaded.
        varlen: Whether sequences are packed one after the other as (tokens, heads, head_dim):
            sequence s has the queries from ``cu_seqlens_q[s]`` to ``cu_seqlens_q[s + 1]`` and the
            keys by ``cu_seqlens_kv``, both (batch + 1,) int32, ascending from 0. Tokens after
            the last entry belong to no sequence: as queries they see no key.
        sink: Whether an operand ``sink`` (heads,) float32 holds a score that each query of a
            head gives to no key.
        return_lse: Whether there is an output ``lse``, the logarithms of the sums of exponentials,
            natural, (batch, heads, seq_q) float32; packed, (heads, tokens).
        epilogue: What is done to the output, from left to right: `Scale` by a constant or by a
            one-element tensor, `Multiply` by a tensor of its shape, `Cast`.

    Raises:
        SpecError: A field has no meaning, no effect, or is not served; names it.
    """

    batch: Dim = field(converter=extent)
    heads: int = field(converter=Converter(fields.heads, takes_field=True))
    kv_heads: int = field(
        converter=Converter(fields.heads, takes_field=True), validator=fields.divides
    )
    seq_q: Dim = field(converter=extent)
    seq_kv: Dim = field(converter=extent)
    head_dim: int = field(converter=Converter(fields.head_dim, takes_field=True))
    head_dim_v: int = field(
        default=None,
        converter=Converter(fields.width, takes_self=True, takes_field=True),
    )
    dtype: DType = field(converter=_dtype)
    varlen: bool = field(default=False, validator=instance_of(bool))
    layout: Literal["bshd", "bhsd"] = field(
        default="bshd", validator=[one_of("bshd", "bhsd"), _layout]
    )
    scale: float = field(
        default=None,
        converter=Converter(fields.scale, takes_self=True),
        validator=[finite, not_all_zero],
    )
    scores: tuple[ScoreOp, ...] = field(
        default=(), converter=Converter(score_chain, takes_self=True)
    )
    mask: Mask | None = field(default=None, converter=Converter(_mask, takes_self=True))
    block_map: tuple[int, int] | None = field(
        default=None, converter=Converter(block_map, takes_self=True)
    )
    sink: bool = field(default=False, validator=instance_of(bool))
    return_lse: bool = field(default=False, validator=instance_of(bool))
    epilogue: tuple[AttentionOp, ...] = field(
        default=(), converter=Converter(fields.chain, takes_self=True), validator=_fits
    )

    def __repr__(self) -> str:
        hidden = {"head_dim_v"} if self.head_dim_v == self.head_dim else set()
        if self.scale == self.head_dim**-0.5:
            hidden.add("scale")
        return compact_repr(self, hidden=hidden)

    def __or__(self, op: AttentionOp) -> Attention:
        """Return this spec with ``op`` appended to its epilogue."""
        return evolve(self, epilogue=(*self.epilogue, op))

    @property
    def family(self) -> str:
        """The family word."""
        return "attention"

    @property
    def out_dtype(self) -> DType:
        """Element type of ``out``: that of q."""
        return self.dtype

    def _tensor(self, seq: Dim, heads: int, width: int) -> tuple[Dim, ...]:
        if self.varlen:
            return (seq, heads, width)
        if self.layout == "bhsd":
            return (self.batch, heads, seq, width)
        return (self.batch, seq, heads, width)

    @property
    def pairs(self) -> tuple[Dim, ...]:
        """Shape of what has a value for each query and key."""
        lead = () if self.varlen else (self.batch,)
        return (*lead, self.heads, self.seq_q, self.seq_kv)

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The inputs: q, k, v, those of varlen, scores, mask, functions, map, sink, epilogue."""
        kv = self.kv_heads
        q = self._tensor(self.seq_q, self.heads, self.head_dim)
        k = self._tensor(self.seq_kv, kv, self.head_dim)
        v = self._tensor(self.seq_kv, kv, self.head_dim_v)
        found = [
            Operand(name, shape, self.dtype, "mainloop")
            for name, shape in zip("qkv", (q, k, v), strict=True)
        ]
        if self.varlen:
            ends = (self.batch + 1,)  # type: ignore[operator]
            for name in ("cu_seqlens_q", "cu_seqlens_kv"):
                found.append(Operand(name, ends, DType.int32, "broadcast"))
        captured = {t.name: t.operand for fn in self.functions for t in fn.tensors}
        own = [self._score_operand(op) for op in self.scores if isinstance(op, (Alibi, ScoreBias))]
        own += [self._mask_operand(mask) for mask in leaves(self.mask) if isinstance(mask, NAMED)]
        found += [*own, *captured.values(), *self._map]
        if self.sink:
            found.append(Operand("sink", (self.heads,), DType.float32, "broadcast"))
        for op in self.epilogue:
            if not isinstance(op, Cast) and (kind := operand_kind(op)):
                shape = (
                    (1,)
                    if kind == "scalar"
                    else self._tensor(self.seq_q, self.heads, self.head_dim_v)
                )
                found.append(Operand(op.name, shape, operand_dtype(op, self.dtype), kind))
        return tuple(found)

    @property
    def _map(self) -> tuple[Operand, ...]:
        if self.block_map is None:
            return ()
        rows, columns = self.block_map
        tiles = (blocks(self.seq_q, rows), blocks(self.seq_kv, columns, 2))
        shape = (self.batch, self.heads, *tiles)
        return (Operand("block_map", shape, DType.int32, "derived"),)

    def _score_operand(self, op: Alibi | ScoreBias) -> Operand:
        if isinstance(op, Alibi):
            return Operand(op.name, (self.heads,), DType.float32, "broadcast")
        return Operand(op.name, self.pairs, op.dtype or self.dtype, "broadcast")

    def _mask_operand(self, mask: Any) -> Operand:
        if isinstance(mask, MaskTensor):
            return Operand(mask.name, self.pairs, DType.bool, "broadcast")
        if isinstance(mask, PrefixLm):
            return Operand(mask.name, (self.batch,), DType.int32, "broadcast")
        lead = () if self.varlen else (self.batch,)
        return Operand(mask.name, (*lead, self.seq_kv), DType.int32, "broadcast")

    @property
    def outputs(self) -> tuple[Operand, ...]:
        """``out``, and ``lse`` where it is asked for."""
        out = self._tensor(self.seq_q, self.heads, self.head_dim_v)
        lead = () if self.varlen else (self.batch,)
        lse = Operand("lse", (*lead, self.heads, self.seq_q), DType.float32, "full")
        return (Operand("out", out, self.dtype, "tile"), *([lse] if self.return_lse else []))

    @property
    def functions(self) -> tuple[Function, ...]:
        """The users' functions of scores, then of masks."""
        found = [op.fn for op in self.scores if isinstance(op, ScoreMod)]
        return (*found, *(mask.fn for mask in leaves(self.mask) if isinstance(mask, MaskMod)))

    @property
    def dynamic(self) -> tuple[Dyn, ...]:
        """The dynamic dimensions, those of captured tensors included, each once."""
        captured = [dim for fn in self.functions for t in fn.tensors for dim in t.operand.shape]
        dims = (self.batch, self.seq_q, self.seq_kv, *captured)
        return tuple({dim.name: dim for dim in dims if isinstance(dim, Dyn)}.values())

    def flops(self, sizes: Mapping[str, int]) -> int:
        """Return the floating-point operations of both products over what the mask shows.

        What depends on the values of operands counts as shown, and packed sequences as equally
        long.
        """
        batch, seq_q, seq_kv = (size(d, sizes) for d in (self.batch, self.seq_q, self.seq_kv))
        if self.varlen and batch:
            seq_q, seq_kv = seq_q // batch, seq_kv // batch
        seen = attended(self.mask, seq_q, seq_kv)
        return 2 * batch * self.heads * seen * (self.head_dim + self.head_dim_v)

    def bytes(self, sizes: Mapping[str, int]) -> int:
        """Return the fewest bytes moved: each operand read once, each output written once.

        A tensor over all pairs of queries and keys, or blocks of them, may be expanded: it counts
        once for all.
        """
        total = 0
        for operand in self.operands + self.outputs:
            shape = operand.shape
            if shape == self.pairs or operand.kind == "derived":
                shape = shape[-2:]
            total += prod(size(dim, sizes) for dim in shape) * operand.dtype.bytes
        return total
