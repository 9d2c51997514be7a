"""How the emitted file of a rowwise program spells buffers, indices and elements."""

from __future__ import annotations

from math import isinf

from attrs import frozen

from tilegen.dims import Dyn
from tilegen.dtypes import DType
from tilegen.geometry.parameters import in_64_bits
from tilegen.geometry.rowwise_fragments import RowwiseFragments
from tilegen.specs.cross_entropy import CrossEntropy
from tilegen.specs.norms import LayerNorm, RmsNorm
from tilegen.specs.operands import Operand
from tilegen.specs.quantize_row import LARGEST
from tilegen.specs.reductions import Reduce
from tilegen.specs.softmax import Softmax

_SHAPES = {"row_vector": ("COLS",), "tile": ("{rows}", "COLS"), "scalar": ("1",)}
_SHAPES |= {"mainloop": ("{rows}", "COLS"), "column_vector": ("{rows}",)}
_I = "int32"
_LOG2_E = 1.4426950408889634


@frozen
class RowwiseNames(RowwiseFragments):
    """Text of the emitted kernel that depends on spec and schedule."""

    @property
    def rows_symbol(self) -> str:
        """How the emitted file spells the number of rows."""
        return self.spec.rows.name if isinstance(self.spec.rows, Dyn) else "ROWS"

    @property
    def symbols(self) -> tuple[tuple[str, str], ...]:
        """Dynamic dimensions and run-time strides, with their integer types."""
        strides = (text for o in self.params for text in self.strides(o) if text != "1")
        return (
            *((dyn.name, _I) for dyn in self.spec.dynamic),
            *((stride, "int64") for stride in strides),
        )

    @property
    def assumed(self) -> tuple[tuple[str, int], ...]:
        """Dynamic sizes and strides with what they are multiples of."""
        sizes = tuple((d.name, d.multiple_of) for d in self.spec.dynamic if d.multiple_of > 1)
        strides = tuple(
            (self.strides(o)[0], self.vector_of(o.dtype))
            for o in self.row_tensors
            if self.access_of(o.name) == "strided" and self.vector_of(o.dtype) > 1
        )
        return sizes + strides

    def shape_symbols(self, operand: Operand) -> tuple[str, ...]:
        """Return the shape of an operand in the emitted file's symbols, such as ROWS and COLS."""
        if operand.kind == "workspace":
            return ("SPLITS", "COLS" if self.by_columns else self.rows_symbol)
        return tuple(text.format(rows=self.rows_symbol) for text in _SHAPES[operand.kind])

    def annotation(self, operand: Operand) -> tuple[str, ...]:
        """Return the arguments of a parameter's type: shape, strides if any, element type."""
        shape = self.shape_symbols(operand)
        if self.by_columns and len(shape) == 2 and self.schedule.threads * self.spec.cols >= 2**31:
            shape = in_64_bits(shape)
        tuples = [shape]
        if strides := self.strides(operand):
            tuples.append(strides)
        texts = (f"({', '.join(names)}{',' if len(names) == 1 else ''})" for names in tuples)
        return (*texts, f'"{operand.dtype}"')

    @property
    def constants(self) -> dict[str, object]:
        """Module-level constants of the emitted file: the sizes, blocks, numbers of the spec."""
        rows = {} if isinstance(self.spec.rows, Dyn) else {"ROWS": self.spec.rows}
        found: dict[str, object] = {**rows, "COLS": self.spec.cols}
        if self.rows_a_cta > 1:
            found["BLOCK_ROWS"] = self.rows_a_cta
        found["BLOCK_COLS"] = self.block_cols
        if self.variant == "passes":
            found["BLOCKS"] = self.trips
        if self.splits > 1:
            found["SPLITS"] = self.splits
        if self.splits > 1 and self.by_columns:
            found["SPLIT_ROWS"] = self.split_rows
        found["LANES"] = self.schedule.lanes
        if self.variant == "passes":
            found["PART"] = self.held
        if self.vector > 1:
            found["VECTOR"] = self.vector
        return found | self._numbers

    @property
    def _numbers(self) -> dict[str, object]:
        spec, found = self.spec, {}
        if isinstance(spec, (RmsNorm, LayerNorm)):
            found["EPS"] = spec.eps
        if isinstance(spec, RmsNorm) and spec.weight_offset:
            found["WEIGHT_OFFSET"] = spec.weight_offset
        if isinstance(spec, Softmax) and spec.scale is not None:
            found["SCALE"] = spec.scale
        if isinstance(spec, CrossEntropy):
            found["IGNORE_INDEX"] = spec.ignore_index
        if isinstance(spec, (RmsNorm, LayerNorm, Softmax)) and spec.quantize is not None:
            found["LARGEST"] = LARGEST[spec.quantize.dtype]
        if self.calls_exp2:
            found["LOG2_E"] = _LOG2_E
        return found

    # --- CTAs, rows and columns ---------------------------------------------------------------

    @property
    def launch(self) -> str:
        """The grid of the launch that reads the input."""
        if self.variant == "columns":
            tiles = "T.ceildiv(COLS, BLOCK_COLS)"
        elif self.rows_a_cta > 1:
            tiles = f"T.ceildiv({self.rows_symbol}, BLOCK_ROWS)"
        else:
            tiles = self.rows_symbol
        return f"{tiles} * SPLITS" if self.splits > 1 else tiles

    @property
    def block_rows(self) -> str:
        """How the emitted file spells the rows of a CTA."""
        return "BLOCK_ROWS" if self.rows_a_cta > 1 else "1"

    @property
    def first_row(self) -> str:
        """The first row of a CTA."""
        if self.variant == "columns":
            return "first"
        return "bm * BLOCK_ROWS" if self.rows_a_cta > 1 else "bm"

    @property
    def row(self) -> str:
        """The row of an element, as an index into global memory."""
        return self.first_row if self.rows_a_cta == 1 else f"{self.first_row} + i"

    @property
    def column(self) -> str:
        """The column of an element, as an index into global memory."""
        columns = {"registers": "j", "passes": "column", "split": "first + j"}
        columns["cluster"] = columns["split"]
        return columns.get(self.variant, f"bn * {'LANES' if self.splits > 1 else 'BLOCK_COLS'} + j")

    @property
    def inside(self) -> str:
        """The condition under which an element is one of the input."""
        if self.variant == "columns":
            return f"{self.row} < {self.rows_symbol}"
        return f"{self.column} < COLS"

    @property
    def place(self) -> str:
        """The index of an element along the axis that is reduced."""
        return self.row if self.variant == "columns" else self.column

    @property
    def extent(self) -> str:
        """The length of the axis that is reduced."""
        return self.rows_symbol if self.variant == "columns" else "COLS"

    @property
    def is_of_nothing(self) -> bool:
        """Whether rows, or columns, have no elements."""
        return (self.spec.rows if self.by_columns else self.spec.cols) == 0

    @property
    def count(self) -> str:
        """The divisor of a mean; any where there is nothing to divide."""
        if self.is_of_nothing:
            return "1.0"
        dynamic = self.by_columns and isinstance(self.spec.rows, Dyn)
        return f'T.cast({self.extent}, "float32")' if dynamic else self.extent

    @property
    def part_count(self) -> str:
        """The columns of the part of a row that a CTA has."""
        return "T.min(BLOCK_COLS, COLS - first)" if self.ragged else "BLOCK_COLS"

    @property
    def lanes_text(self) -> str:
        """Thread and register of an element (i, j) of a block of rows."""
        rows = self.schedule.threads // self.schedule.lanes
        if self.variant == "columns":
            thread = "j // VECTOR" if self.vector > 1 else "j"
            steps = f"i // {rows} * VECTOR + j % VECTOR" if self.vector > 1 else f"i // {rows}"
            return f"i % {rows} * LANES + {thread}, {steps}"
        first = "i * LANES + " if self.rows_a_cta > 1 else ""
        if self.vector == 1:
            return f"{first}j % LANES, j // LANES"
        registers = "j // (LANES * VECTOR) * VECTOR + j % VECTOR"
        return f"{first}j // VECTOR % LANES, {registers}"

    @property
    def lanes_words(self) -> str:
        """What ``lanes_text`` says, in words."""
        columns = "a column" if self.vector == 1 else "VECTOR columns"
        return f"{columns} of a row, lane after lane"

    # --- elements -----------------------------------------------------------------------------

    def load(self, operand: Operand, index: str) -> str:
        """Return the fp32 value of an element of a tensor."""
        return self.as_fp32(f"{operand.name}[{index}]", operand.dtype)

    def element_of(self, name: str) -> str:
        """Return the element of an output that a result belongs to."""
        if not self.reduces:
            return f"{name}[{self.row}, {self.column}]"
        return f"{name}[{self.column if self.by_columns else self.row}]"

    def as_fp32(self, text: str, dtype: DType) -> str:
        """Return the text of a value of some type as one of fp32."""
        return text if dtype == DType.float32 else f'T.cast({text}, "float32")'

    @property
    def names(self) -> dict[str, str]:
        """TileLang text of ``x`` and of each operand that the chain or the result reads."""
        index = {
            "row_vector": self.column,
            "column_vector": self.row,
            "tile": f"{self.row}, {self.column}",
            "mainloop": f"{self.row}, {self.column}",
            "scalar": "0",
        }
        operands = self.spec.operands
        return {"x": "x", **{o.name: self.load(o, index[o.kind]) for o in operands}}

    @property
    def chained(self) -> str:
        """Where the chain's last value goes, at an element."""
        buffer = "value" if self.quantizes else self.result
        return f"{buffer}[{'t, v' if self.variant == 'passes' else 'i, j'}]"

    @property
    def element(self) -> str:
        """The fp32 value of the element that the thread holds."""
        text = "part[t, v]" if self.variant == "passes" else "row[i, j]"
        return self.as_fp32(text, self.spec.dtype)

    @property
    def squares(self) -> bool:
        """Whether the sum is of squares."""
        spec = self.spec
        return isinstance(spec, RmsNorm) or getattr(spec, "op", "") in ("sum_squares", "l2")

    @property
    def sign(self) -> str:
        """What is made of an element before its maximum is looked for: its magnitude, or -x."""
        op = self.spec.op if isinstance(self.spec, Reduce) else ""
        return {"amax": "T.abs(x)", "min": "-x", "argmin": "-x"}.get(op, "")

    @property
    def mapped(self) -> bool:
        """Whether a user's function is applied first."""
        return isinstance(self.spec, Reduce) and self.spec.map is not None

    @property
    def identity(self) -> str:
        """What an element beyond the end counts as, or "" where 0 or a count will do."""
        if self.statistic in ("softmax", "extreme", "index"):
            return '-T.infinity("float32")'
        if self.statistic == "product":
            return "1.0"
        return "0.0" if self.statistic == "sum" and self.mapped else ""

    @property
    def needs_column(self) -> bool:
        """Whether the value of an element depends on its column."""
        masked = isinstance(self.spec, Softmax) and self.spec.mask is not None
        return masked or (self.ragged and self.identity != "")

    @property
    def is_coarse(self) -> bool:
        """Whether the output's rounding covers errors of a few units of fp32."""
        return DType.float32 not in (self.spec.dtype, self.spec.out_dtype)

    @property
    def exponential(self) -> str:
        """How ``exp`` is written: by exp2 where rounding, or a later logarithm, hides its error."""
        is_covered = self.is_coarse or (self.reduces and self.spec.dtype != DType.float32)
        return "T.exp2(({}) * LOG2_E)" if is_covered else "T.exp({})"

    @property
    def flushes(self) -> bool:
        """Whether fp32 below 2^-126 may count as 0: in exponents, and in powers over the largest.

        Such an input, bfloat16 only, changes an exponent by less than rounding does. A chain, a
        function or a large scale could make something of it.
        """
        spec = self.spec
        plain = not spec.epilogue and not self.mapped and abs(getattr(spec, "scale", 0) or 0) < 1e9
        return self.calls_exp2 and plain

    @property
    def scales_twice(self) -> bool:
        """Whether elements are scaled once for the largest one, and again to be compared to it."""
        spec = self.spec
        scaled = isinstance(spec, Softmax) and spec.scale is not None and not spec.log
        return scaled and self.variant in ("passes", "split")

    @property
    def compile_flags(self) -> list[str]:
        """What the emitted file tells nvcc."""
        flags = {"-ftz=true": self.flushes, "-fmad=false": self.scales_twice}
        return [flag for flag, holds in flags.items() if holds]

    @property
    def calls_exp2(self) -> bool:
        """Whether the emitted file needs the constant LOG2_E."""
        return self.statistic == "softmax" and self.exponential.startswith("T.exp2")

    # --- parts and steps -------------------------------------------------------------------

    @property
    def nothing(self) -> dict[str, str]:
        """What each statistic of a lane is before it has met an element."""
        values = {
            "lane_top": '-T.infinity("float32")',
            "lane_spot": self.extent,
            "lane_nan": self.extent if self.statistic == "index" else "0.0",
            "lane_total": "1.0" if self.statistic == "product" else "0.0",
        }
        return {name: values.get(name, "0.0") for name, _ in self.lane_statistics}

    @property
    def part_of_lane(self) -> tuple[tuple[str, str, str], ...]:
        """Statistics of lanes, the workspace of each, and what it is beyond the parts."""
        return tuple(
            (name, name.replace("lane_", "part_"), value) for name, value in self.nothing.items()
        )

    @property
    def count_of_part(self) -> str:
        """The elements of the part whose number is filled in."""
        if not self.ragged:
            return "BLOCK_COLS"
        return "T.min(BLOCK_COLS, COLS - {0} * BLOCK_COLS)"

    @property
    def merge(self) -> str:
        """The macro that merges statistics of lanes, or of parts."""
        columns = self.by_columns and self.statistic == "product"
        return "product_of_columns" if columns else self.statistic

    @property
    def laid_out(self) -> tuple[str, ...]:
        """Fragments of a column reduction that are as large as a block."""
        return ("row", *(name for name, _ in self.lane_statistics))

    @property
    def steps(self) -> str:
        """Blocks of rows that a CTA of a column reduction walks over."""
        rows = "BLOCK_ROWS * SPLITS" if self.splits > 1 else "BLOCK_ROWS"
        return f"T.ceildiv({self.rows_symbol}, {rows})"

    @staticmethod
    def halves(count: int) -> tuple[int, ...]:
        """Return how many pairs each step of a product by halves multiplies."""
        return tuple(1 << step for step in reversed(range(count.bit_length() - 1)))

    @property
    def denominator(self) -> str:
        """What squares about the mean are divided by, as text; "" where that is zero."""
        assert isinstance(self.spec, Reduce)
        correction = self.spec.correction or 0.0
        if self.variant == "columns":
            rows = self.spec.rows
            if isinstance(rows, Dyn):
                return f"T.max({self.count} - {correction!r}, 0.0)"
            left = max(0.0, rows - correction)
        else:
            left = max(0.0, self.spec.cols - correction)
        return repr(left) if left and not isinf(left) else ""
