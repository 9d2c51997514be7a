"""Derived facts of a GEMM program, and the names by which its emitted file calls things."""

from __future__ import annotations

from attrs import frozen

from tilegen.dims import Dyn
from tilegen.dtypes import DType
from tilegen.expr_print import to_torch
from tilegen.geometry.gemm_tiles import GemmTiles
from tilegen.geometry.parameters import in_64_bits
from tilegen.geometry.roles import Roles
from tilegen.geometry.row_statistics import RowStatistics
from tilegen.specs.operands import Operand


@frozen
class GemmGeometry(GemmTiles):
    """Everything that the rules and the templates of the GEMM family read."""

    @property
    def name(self) -> str:
        """Name of the emitted function, such as ``gemm_nt_bfloat16_bias_gelu``."""
        ops = [type(op).__name__.lower() for op in self.spec.epilogue]
        if len(ops) > 5:
            ops = [*ops[:5], f"and_{len(ops) - 5}_more"]
        return "_".join(["gemm", self.spec.layout, self.spec.dtype.value, *ops])

    @property
    def title(self) -> str:
        """First line of the emitted file's docstring."""
        letters = {"n": "", "t": ".T"}
        product = f"a{letters[self.spec.layout[0]]} @ b{letters[self.spec.layout[1]]}"
        chain = " -> ".join(type(op).__name__ for op in self.spec.epilogue)
        return f"GEMM: out = {product}" + (f" -> {chain}" if chain else "")

    @property
    def m_symbol(self) -> str:
        """How the emitted file spells m: a constant, or the name of a dynamic dimension."""
        return self.spec.m.name if isinstance(self.spec.m, Dyn) else "M"

    @property
    def sizes(self) -> dict[str, int]:
        """Module-level sizes of the emitted file."""
        sizes = {"N": self.spec.n, "K": self.spec.k}
        if not isinstance(self.spec.m, Dyn):
            sizes = {"M": self.spec.m, **sizes}
        return sizes

    @property
    def tile(self) -> dict[str, int]:
        """Module-level tile sizes of the emitted file."""
        s = self.schedule
        tile = {"BLOCK_M": s.block_m, "BLOCK_N": s.block_n}
        return {**tile, "BLOCK_K": s.block_k} if self.spec.k else tile

    @property
    def symbols(self) -> tuple[tuple[str, str], ...]:
        """Dynamic dimensions and run-time strides, with their integer types."""
        strides = (text for o in self.params for text in self.strides(o) if text != "1")
        return (
            *((dyn.name, "int32") for dyn in self.spec.dynamic),
            *((stride, "int64") for stride in strides),
        )

    def shape_symbols(self, operand: Operand) -> tuple[str, ...]:
        """Return the shape of an operand in the emitted file's symbols, such as M and K."""
        m = self.m_symbol
        mainloop = {
            "a": (m, "K") if self.spec.layout[0] == "n" else ("K", m),
            "b": ("K", "N") if self.spec.layout[1] == "n" else ("N", "K"),
        }
        if operand.kind == "mainloop":
            return mainloop[operand.name]
        shapes = {"row_vector": ("N",), "column_vector": (m,), "tile": (m, "N"), "scalar": ("1",)}
        return shapes[operand.kind]

    def extents(self, operand: Operand) -> tuple[str, ...]:
        """Return the shape that a parameter's type states."""
        shape, s = self.shape_symbols(operand), self.schedule
        long = max(s.block_m, s.block_n, s.block_k) * max(self.spec.n, self.spec.k) >= 2**31
        return in_64_bits(shape) if long and len(shape) == 2 else shape

    def element_type(self, operand: Operand) -> str:
        """Return the element type of a parameter as the emitted file names it."""
        return self.mainloop_dtype if operand.kind == "mainloop" else operand.dtype.value

    @property
    def mainloop_dtype(self) -> str:
        """Element type of a, b and their tiles: float32 is read as TF32 where WGMMA takes it."""
        if self.spec.dtype == DType.float32 and self.wgmma:
            return "tfloat32"
        return self.spec.dtype.value

    @property
    def names(self) -> dict[str, str]:
        """TileLang text of ``x`` and of each chain operand, at element (i, j) of the tile."""
        row, column = "bm * BLOCK_M + i", "bn * BLOCK_N + j"
        if self.specialized:
            row, column = "m0 + i", "n0 + j"
        index = {
            "row_vector": column,
            "column_vector": row,
            "tile": f"{row}, {column}",
            "scalar": "0",
        }
        names = {"x": "acc[j, i]" if self.swapped else "acc[i, j]"}
        for operand in self.spec.operands:
            if operand.kind in index:
                text = f"{operand.name}[{index[operand.kind]}]"
                if operand == self.fetched:
                    text = f"{self.stores[0].tile}[i, j]"
                if operand.dtype != DType.float32:
                    text = f'T.cast({text}, "float32")'
                names[operand.name] = text
        return names

    @property
    def chain_loop(self) -> str:
        """What the loop of a chain step runs over."""
        if self.swapped:
            return "j, i in T.Parallel(PART_N, PART_M)"
        tile = "PART" if self.specialized else "BLOCK"
        return f"i, j in T.Parallel({tile}_M, {tile}_N)"

    @property
    def roles(self) -> Roles:
        """Names and arguments of the warpgroups of a ``warp_specialized`` kernel."""
        return Roles(self)

    @property
    def row_statistics(self) -> RowStatistics:
        """How the kernel takes statistics of the rows of its tile."""
        return RowStatistics(self)

    @property
    def swizzle_layout(self) -> str:
        """TileLang's constructor of the operand tiles' layout, or "" for its own choice."""
        return {
            "64B": "make_half_bank_swizzled_layout",
            "32B": "make_quarter_bank_swizzled_layout",
            "none": "make_linear_layout",
        }.get(self.schedule.smem_swizzle, "")

    @property
    def swizzle_comment(self) -> str:
        """Why the layouts of the operand tiles are set by hand."""
        if self.schedule.smem_swizzle == "none":
            return "Operand tiles are plain row-major, without a swizzle against bank conflicts."
        width = self.schedule.smem_swizzle[:-1]
        return f"Rows of the operand tiles are swizzled in {width}-byte spans."

    @property
    def product_text(self) -> str:
        """The product as main() computes it with torch."""
        letters = {"n": "", "t": ".T"}
        a, b = self.spec.layout
        return f"a.double(){letters[a]} @ b.double(){letters[b]}"

    @property
    def torch_names(self) -> dict[str, str]:
        """Torch text of ``x`` and of each chain operand, for main()."""
        names = {"x": "x"}
        for operand in self.spec.operands:
            column = "[:, None]" if operand.kind == "column_vector" else ""
            names[operand.name] = f"{operand.name}{column}.double()"
        return names

    @property
    def calls_functional(self) -> bool:
        """Whether main() calls torch.nn.functional."""
        values = [] if self.is_empty else self.values
        return any("functional." in to_torch(x, self.torch_names) for x in values)
