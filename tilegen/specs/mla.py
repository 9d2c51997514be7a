"""The MLA decode spec: few queries a sequence, and a cache of latent keys that are values too."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, prod
from typing import Any

from attrs import Attribute, Converter, field, frozen

from tilegen.dims import Dim, Dyn, coordinate, extent, size
from tilegen.dims import hint as dim_hint
from tilegen.dtypes import DType, dtype
from tilegen.epilogue import finite
from tilegen.errors import SpecError
from tilegen.fields import instance_of, number, one_of
from tilegen.reprs import compact_repr
from tilegen.specs import decode_fields as fields
from tilegen.specs.operands import RESERVED, Operand, check_names

MAX_HEADS = 128
MAX_QUERIES = 4

# Names that the emitted source of the family uses itself.
_RESERVED = RESERVED | frozenset(
    "b m s d h scores weights total base top rescale part split first steps share rest "
    "blocks length limit partly stop merged weight hd d0 page row room seen half other query head "
    "key ring ahead scale k_full k_empty q_full latent rope consume load score weigh own theirs "
    "queries keys rate".split()
)


def _between(most: int) -> Converter[Any, int]:
    def convert(value: object, attribute: Attribute[Any]) -> int:
        found = coordinate(value, attribute)
        if isinstance(found, Dyn) or not 1 <= found <= most:
            raise SpecError(
                f"must be an int from 1 to {most}",
                rule="dim",
                field=attribute.name,
                value=value,
                hint="only batch and kv_len may be dynamic",
            )
        return found

    return Converter(convert, takes_field=True)


def _positive(spec: Any, attribute: object, value: float) -> None:
    if not value > 0:
        raise SpecError(
            "must be above 0",
            rule="constant",
            field="scale",
            value=value,
            hint="negate q for a negative one; with 0, the output is the mean of the values",
        )


def _pages(spec: Any, attribute: object, value: object) -> None:
    fields.page_size(spec, attribute, value)
    room = spec.kv_len
    if isinstance(value, int) and isinstance(room, int) and room % value:
        raise SpecError(
            f"has no whole pages in kv_len={room}",
            rule="page-size",
            field="page_size",
            value=value,
            hint=f"use kv_len={-(-room // value) * value}: there is room in whole pages",
        )


def _fits(spec: Any, attribute: object, value: object) -> None:
    fields.room(spec)
    dims = {dim.name: dim for dim in spec.dynamic}
    check_names(spec.operands + spec.outputs, dims, _RESERVED)


@frozen(kw_only=True, repr=False)
class MlaDecode:
    """out = softmax(scale * q @ kv.T) @ kv[:, :latent_dim] for each head, in fp32.

    The keys of a sequence are the first ``kv_lens`` of its cache; the last of them is the last
    query's own, the one before it that of the query before, and no query sees a later key. A query
    that sees none gives 0, and its ``lse`` is -inf; one with a score of +inf or NaN gives NaN in
    both. What the cache holds beyond the keys changes nothing, not even a NaN.

    Args:
        batch: Sequences; an int >= 0 or ``tg.dyn("batch")``.
        heads: Heads of q, 1 to 128; all share the keys.
        kv_len: Keys that a sequence has room for; an int >= 1 or ``tg.dyn("kv_len")``. No entry of
            ``kv_lens`` is above it, nor below 0: a launch trusts them.
        scale: What scores are multiplied by: it does not follow from the sizes of the latent form.
        latent_dim: Elements of a key that are its value too: 128, 256 or 512.
        rope_dim: Elements of a key after those, with its place: 32 or 64.
        seq_q: Queries of a sequence, 1 to 4.
        page_size: Keys of a page of the cache, a multiple of 16: ``kv`` is then (pages, page_size,
            latent_dim + rope_dim), and row b of ``page_table`` lists the pages of sequence b; of
            these, only as many are read as hold its keys. A static ``kv_len`` has whole pages; with
            a dynamic one, the table has ``<kv_len>_pages`` columns. None is (batch, kv_len,
            latent_dim + rope_dim).
        return_lse: Whether there is an output ``lse``, the logarithms of the sums of exponentials,
            natural, (batch, heads, seq_q) float32.
        dtype: ``float16`` or ``bfloat16``.

    Raises:
        SpecError: A field has no meaning, no effect, or is not served; names it.
    """

    batch: Dim = field(converter=extent)
    heads: int = field(converter=_between(MAX_HEADS))
    kv_len: Dim = field(converter=extent, validator=fields.filled)
    scale: float = field(converter=number, validator=[finite, _positive])
    latent_dim: int = field(default=512, validator=one_of(128, 256, 512))
    rope_dim: int = field(default=64, validator=one_of(32, 64))
    seq_q: int = field(default=1, converter=_between(MAX_QUERIES))
    page_size: int | None = field(default=None, validator=_pages)
    return_lse: bool = field(default=False, validator=instance_of(bool))
    dtype: DType = field(
        converter=lambda value: dtype(value, (DType.float16, DType.bfloat16)), validator=_fits
    )

    def __repr__(self) -> str:
        return compact_repr(self)

    @property
    def family(self) -> str:
        """The family word."""
        return "mla"

    @property
    def epilogue(self) -> tuple[Any, ...]:
        """What is done to the output: nothing."""
        return ()

    @property
    def out_dtype(self) -> DType:
        """Element type of ``out``: that of q."""
        return self.dtype

    @property
    def dim(self) -> int:
        """Elements of a key."""
        return self.latent_dim + self.rope_dim

    @property
    def kv_shape(self) -> tuple[Dim, ...]:
        """Shape of the cache but for the elements of a key."""
        if self.page_size is None:
            return (self.batch, self.kv_len)
        return (
            Dyn("pages", hint=max(1, dim_hint(self.batch) * self._pages_of_hint)),
            self.page_size,
        )

    @property
    def table_shape(self) -> tuple[Dim, ...]:
        """Shape of the table of pages; () without one."""
        if self.page_size is None:
            return ()
        if isinstance(self.kv_len, Dyn):
            return (self.batch, Dyn(f"{self.kv_len.name}_pages", hint=self._pages_of_hint))
        return (self.batch, self._pages_of_hint)

    @property
    def _pages_of_hint(self) -> int:
        return ceil(dim_hint(self.kv_len) / (self.page_size or 1))

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The inputs: q, kv, the table of pages where there is one, and the numbers of keys."""
        found = [
            Operand("q", (self.batch, self.seq_q, self.heads, self.dim), self.dtype, "mainloop"),
            Operand("kv", (*self.kv_shape, self.dim), self.dtype, "mainloop"),
        ]
        if self.page_size is not None:
            found.append(Operand("page_table", self.table_shape, DType.int32, "broadcast"))
        return (*found, Operand("kv_lens", (self.batch,), DType.int32, "broadcast"))

    @property
    def outputs(self) -> tuple[Operand, ...]:
        """``out``, and ``lse`` where it is asked for."""
        out = (self.batch, self.seq_q, self.heads, self.latent_dim)
        lse = Operand("lse", (self.batch, self.heads, self.seq_q), DType.float32, "full")
        return (Operand("out", out, self.dtype, "tile"), *([lse] if self.return_lse else []))

    @property
    def dynamic(self) -> tuple[Dyn, ...]:
        """The dynamic dimensions, each once."""
        dims = (self.batch, *self.kv_shape, *self.table_shape)
        return tuple({dim.name: dim for dim in dims if isinstance(dim, Dyn)}.values())

    def keys(self, sizes: Mapping[str, int]) -> int:
        """Return the keys that a sequence has room for."""
        if self.page_size is None or not isinstance(self.kv_len, Dyn):
            return size(self.kv_len, sizes)
        return size(self.table_shape[1], sizes) * self.page_size

    def flops(self, sizes: Mapping[str, int]) -> int:
        """Return the floating-point operations of both products over full caches."""
        pairs = size(self.batch, sizes) * self.heads * self.seq_q * self.keys(sizes)
        return 2 * pairs * (self.dim + self.latent_dim)

    def bytes(self, sizes: Mapping[str, int]) -> int:
        """Return the fewest bytes moved: full caches read once, the rest read or written once."""
        rest = [operand for operand in self.operands + self.outputs if operand.name != "kv"]
        total = sum(prod(size(d, sizes) for d in o.shape) * o.dtype.bytes for o in rest)
        keys = size(self.batch, sizes) * self.keys(sizes)
        return total + keys * self.dim * self.dtype.bytes
