"""The decode spec: attention of a few queries a sequence over a cache of keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, prod
from typing import Any, Literal

from attrs import Converter, evolve, field, frozen

from tilegen.dims import Dim, Dyn, extent, size
from tilegen.dims import hint as dim_hint
from tilegen.dtypes import DType, dtype
from tilegen.epilogue import Cast, finite, operand_dtype, operand_kind
from tilegen.fields import instance_of
from tilegen.reprs import compact_repr
from tilegen.specs import attention_fields as shared
from tilegen.specs import decode_fields as fields
from tilegen.specs.attended import attended
from tilegen.specs.attention_fields import AttentionOp
from tilegen.specs.captured import Function
from tilegen.specs.masks import Mask, MaskMod, leaves
from tilegen.specs.operands import RESERVED, Operand, check_names
from tilegen.specs.scores import Alibi, ScoreMod, ScoreOp, not_all_zero

# Names that the emitted source of the family uses itself.
_RESERVED = RESERVED | frozenset(
    "b h m m0 n0 bm d d0 hd scores weights top base rescale total part merged flawed weight "
    "distance q_idx kv_idx row column seen sees query head rows partly stop first blocks share "
    "rest steps split length own other page pages score is_finite low middle rate last "
    "here p".split()
    + [f"page{page}" for page in range(fields.MAX_PAGES)]
)


def _fits(spec: Any, attribute: object, value: object) -> None:
    fields.room(spec)
    dims = {dim.name: dim for dim in spec.dynamic}
    tensors = spec.operands + spec.outputs
    strides = {f"{tensor.name}_strides" for tensor in tensors}
    check_names(tensors, dims, (_RESERVED - {"pages"} if "pages" in dims else _RESERVED) | strides)


@frozen(kw_only=True, repr=False)
class Decode:
    """out = chain(softmax(masked(scores(scale * q @ k.T))) @ v) for each head, in fp32.

    The keys of sequence b are the first ``kv_lens[b]`` of its cache, 0 to ``kv_len``; query i of
    ``seq_q`` stands at position ``i + kv_lens[b] - seq_q`` among them. Without a mask each query
    sees all of them, those of later queries too. A query that sees no key gives 0, and its ``lse``
    is -inf; one with a score of +inf or NaN gives NaN in both. What a query does not see changes
    nothing of it, and what the caches hold beyond the keys changes nothing at all, not even a NaN.

    Args:
        batch: Sequences; an int >= 1 or ``tg.dyn("batch")``, which may be 0 in a call.
        heads: Heads of q.
        kv_heads: Heads of k and v; each serves ``heads / kv_heads`` heads of q.
        kv_len: Keys that a sequence has room for; an int >= 1 or ``tg.dyn("kv_len")``.
        head_dim: Length of a head of q and k: a multiple of 8 up to 256.
        head_dim_v: Length of a head of v; None is ``head_dim``.
        seq_q: Queries of a sequence, 1 to 16.
        dtype: ``float16`` or ``bfloat16``.
        page_size: Keys of a page of the caches, a multiple of 16: ``k`` and ``v`` are then (pages,
            page_size, kv_heads, head_dim), and row b of ``page_table`` lists the pages of sequence
            b; of these, only as many are read as hold its keys. With a dynamic ``kv_len``, the
            table has ``<kv_len>_pages`` columns. None is (batch, kv_len, kv_heads, head_dim).
        kv_dtype: Element type of ``k`` and ``v``: ``float8_e4m3``, or None for that of q.
        kv_scales: What elements of one byte are multiplied by: ``"tensor"``, operands ``k_scale``
            and ``v_scale`` of one element each; ``"head"``, (kv_heads,) float32.
        scale: What scores are multiplied by, not 0; None is ``1 / sqrt(head_dim)``.
        scores: What is done to scaled scores, from left to right: `Softcap`, `Alibi`, `ScoreMod`.
        mask: The keys that a query sees: `Causal`, `Window`, `MaskMod`, joined; None is all.
        sink: Whether an operand ``sink`` (heads,) float32 holds a score that each query of a
            head gives to no key.
        return_lse: Whether there is an output ``lse``, the logarithms of the sums of exponentials,
            natural, (batch, heads, seq_q) float32.
        epilogue: What is done to the output, from left to right: `Scale` by a constant or by a
            one-element tensor, `Multiply` by a tensor of its shape, `Cast`.

    Raises:
        SpecError: A field has no meaning, no effect, or is not served; names it.
    """

    batch: Dim = field(converter=extent, validator=fields.sequences)
    heads: int = field(converter=Converter(shared.heads, takes_field=True))
    kv_heads: int = field(
        converter=Converter(shared.heads, takes_field=True), validator=shared.divides
    )
    kv_len: Dim = field(converter=extent, validator=fields.filled)
    head_dim: int = field(converter=Converter(shared.head_dim, takes_field=True))
    head_dim_v: int = field(
        default=None, converter=Converter(shared.width, takes_self=True, takes_field=True)
    )
    seq_q: int = field(default=1, converter=Converter(fields.queries, takes_field=True))
    dtype: DType = field(converter=lambda value: dtype(value, (DType.float16, DType.bfloat16)))
    page_size: int | None = field(default=None, validator=fields.page_size)
    kv_dtype: DType | None = field(
        default=None, converter=Converter(fields.kv_dtype, takes_self=True)
    )
    kv_scales: Literal["tensor", "head"] | None = field(
        default=None, converter=Converter(fields.kv_scales, takes_self=True)
    )
    scale: float = field(
        default=None,
        converter=Converter(shared.scale, takes_self=True),
        validator=[finite, not_all_zero],
    )
    scores: tuple[ScoreOp, ...] = field(
        default=(), converter=Converter(fields.scores, takes_self=True)
    )
    mask: Mask | None = field(default=None, converter=Converter(fields.mask, takes_self=True))
    sink: bool = field(default=False, validator=instance_of(bool))
    return_lse: bool = field(default=False, validator=instance_of(bool))
    epilogue: tuple[AttentionOp, ...] = field(
        default=(), converter=Converter(shared.chain, takes_self=True), validator=_fits
    )

    def __repr__(self) -> str:
        hidden = {"head_dim_v"} if self.head_dim_v == self.head_dim else set()
        if self.scale == self.head_dim**-0.5:
            hidden.add("scale")
        return compact_repr(self, hidden=hidden)

    def __or__(self, op: AttentionOp) -> Decode:
        """Return this spec with ``op`` appended to its epilogue."""
        return evolve(self, epilogue=(*self.epilogue, op))

    @property
    def family(self) -> str:
        """The family word."""
        return "decode"

    @property
    def out_dtype(self) -> DType:
        """Element type of ``out``: that of q."""
        return self.dtype

    @property
    def cache_dtype(self) -> DType:
        """Element type of k and v."""
        return self.kv_dtype or self.dtype

    @property
    def kv_shape(self) -> tuple[Dim, ...]:
        """Shape of the caches but for their heads."""
        if self.page_size is None:
            return (self.batch, self.kv_len)
        pages = max(1, dim_hint(self.batch) * self._pages_of_hint)
        return (Dyn("pages", hint=pages), self.page_size)

    @property
    def table_shape(self) -> tuple[Dim, ...]:
        """Shape of the table of pages; () without one."""
        if self.page_size is None:
            return ()
        if isinstance(self.kv_len, Dyn):
            return (
                self.batch,
                Dyn(f"{self.kv_len.name}_pages", hint=self._pages_of_hint),
            )
        return (self.batch, self._pages_of_hint)

    @property
    def _pages_of_hint(self) -> int:
        return ceil(dim_hint(self.kv_len) / (self.page_size or 1))

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The inputs: of the caches, then of scores, mask, functions, sink and epilogue."""
        queries, cache = (self.batch, self.seq_q, self.heads), (*self.kv_shape, self.kv_heads)
        found = [
            Operand("q", (*queries, self.head_dim), self.dtype, "mainloop"),
            Operand("k", (*cache, self.head_dim), self.cache_dtype, "mainloop"),
            Operand("v", (*cache, self.head_dim_v), self.cache_dtype, "mainloop"),
        ]
        if self.page_size is not None:
            found.append(Operand("page_table", self.table_shape, DType.int32, "broadcast"))
        found.append(Operand("kv_lens", (self.batch,), DType.int32, "broadcast"))
        if self.kv_scales is not None:
            one = self.kv_scales == "tensor"
            shape, kind = ((1,), "scalar") if one else ((self.kv_heads,), "broadcast")
            found += [Operand(f"{name}_scale", shape, DType.float32, kind) for name in "kv"]
        slopes = [op.name for op in self.scores if isinstance(op, Alibi)]
        captured = {t.name: t.operand for fn in self.functions for t in fn.tensors}
        for name in (*slopes, *captured, *(["sink"] if self.sink else [])):
            own = Operand(name, (self.heads,), DType.float32, "broadcast")
            found.append(captured.get(name, own))
        for op in self.epilogue:
            if not isinstance(op, Cast) and (kind := operand_kind(op)):
                shape = (1,) if kind == "scalar" else (*queries, self.head_dim_v)
                found.append(Operand(op.name, shape, operand_dtype(op, self.dtype), kind))
        return tuple(found)

    @property
    def outputs(self) -> tuple[Operand, ...]:
        """``out``, and ``lse`` where it is asked for."""
        out = (self.batch, self.seq_q, self.heads, self.head_dim_v)
        lse = Operand("lse", (self.batch, self.heads, self.seq_q), DType.float32, "full")
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
        dims = (self.batch, *self.kv_shape, *self.table_shape, *captured)
        return tuple({dim.name: dim for dim in dims if isinstance(dim, Dyn)}.values())

    def keys(self, sizes: Mapping[str, int]) -> int:
        """Return the keys that a sequence has room for."""
        if self.page_size is None or not isinstance(self.kv_len, Dyn):
            return size(self.kv_len, sizes)
        return size(self.table_shape[1], sizes) * self.page_size

    def flops(self, sizes: Mapping[str, int]) -> int:
        """Return the floating-point operations of both products over what the mask shows.

        Caches count as full, and what depends on the values of operands as shown.
        """
        pairs = attended(self.mask, self.seq_q, self.keys(sizes)) * self.heads
        return 2 * size(self.batch, sizes) * pairs * (self.head_dim + self.head_dim_v)

    def bytes(self, sizes: Mapping[str, int]) -> int:
        """Return the fewest bytes moved: full caches read once, the rest read or written once."""
        rest = [operand for operand in self.operands + self.outputs if operand.name not in "kv"]
        total = sum(prod(size(d, sizes) for d in o.shape) * o.dtype.bytes for o in rest)
        seen = attended(self.mask, 1, self.keys(sizes))
        width = self.kv_heads * (self.head_dim + self.head_dim_v) * self.cache_dtype.bytes
        return total + size(self.batch, sizes) * seen * width
