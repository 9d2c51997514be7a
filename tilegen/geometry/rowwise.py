"""Derived facts of a rowwise program: its name, and what its main() compares with."""

from __future__ import annotations

from attrs import frozen

from tilegen.expr_print import to_torch
from tilegen.geometry.rowwise_names import RowwiseNames
from tilegen.specs.cross_entropy import CrossEntropy
from tilegen.specs.norms import LayerNorm, RmsNorm
from tilegen.specs.reductions import INDICES, Reduce
from tilegen.specs.softmax import Softmax

_TORCH = {
    "sum": "x.sum({axis})",
    "mean": "x.mean({axis})",
    "max": "x.amax({axis})",
    "min": "x.amin({axis})",
    "amax": "x.abs().amax({axis})",
    "argmax": "x.argmax({axis}).double()",
    "argmin": "x.argmin({axis}).double()",
    "prod": "x.prod({axis})",
    "sum_squares": "x.square().sum({axis})",
    "l2": "x.square().sum({axis}).sqrt()",
    "logsumexp": "x.logsumexp({axis})",
    "var": "x.var({axis}, correction={correction})",
    "std": "x.std({axis}, correction={correction})",
}


@frozen
class RowwiseGeometry(RowwiseNames):
    """Everything that the rules and the templates of the rowwise family read."""

    @property
    def op(self) -> str:
        """The word by which templates and names call the spec, such as ``rmsnorm``."""
        return type(self.spec).__name__.lower()

    @property
    def name(self) -> str:
        """Name of the emitted function, such as ``rmsnorm_bfloat16_silu``."""
        ops = [type(op).__name__.lower() for op in self.spec.epilogue]
        if len(ops) > 5:
            ops = [*ops[:5], f"and_{len(ops) - 5}_more"]
        own = "log_softmax" if isinstance(self.spec, Softmax) and self.spec.log else self.op
        if isinstance(self.spec, Reduce):
            own = f"{self.spec.op}_of_{'rows' if self.spec.axis else 'columns'}"
        return "_".join([own, self.spec.dtype.value, *ops])

    @property
    def title(self) -> str:
        """First line of the emitted file's docstring."""
        chain = " -> ".join(type(op).__name__ for op in self.spec.epilogue)
        return self._what + (f" -> {chain}" if chain else "")

    @property
    def _what(self) -> str:
        spec = self.spec
        if isinstance(spec, Reduce):
            mapped = "map(input)" if self.mapped else "input"
            return f"out = {spec.op}({mapped}) along {'rows' if spec.axis else 'columns'}"
        if isinstance(spec, CrossEntropy):
            return "Cross-entropy: out = logsumexp(row) - row[label]"
        if isinstance(spec, Softmax):
            return f"out = {'log_' if spec.log else ''}softmax(x) along rows"
        own = {"weight": " * weight", "bias": " + bias"}
        affine = "".join(own[name] for name in spec.vectors) if spec.affine else ""
        if isinstance(spec, RmsNorm):
            return f"RMSNorm: out = x / sqrt(mean(x^2) + eps){affine} along rows"
        return f"LayerNorm: out = (x - mean(x)) / sqrt(var(x) + eps){affine} along rows"

    # --- what main() compares with --------------------------------------------------------------

    @property
    def product_lines(self) -> tuple[str, ...]:
        """The result before the chain, as main() computes it with torch, line by line."""
        spec = self.spec
        if isinstance(spec, Softmax):
            return self._softmax_lines(spec)
        if isinstance(spec, Reduce):
            return self._reduce_lines(spec)
        if isinstance(spec, CrossEntropy):
            return (
                "x = functional.cross_entropy(",
                '    input.double(), labels.long(), ignore_index=IGNORE_INDEX, reduction="none"',
                ")",
            )
        return self._norm_lines(spec)

    def _softmax_lines(self, spec: Softmax) -> tuple[str, ...]:
        scale = " * SCALE" if spec.scale is not None else ""
        masks = {
            "additive": ("x = x + mask.double()",),
            "bool": ("x = x.masked_fill(~mask, -torch.inf)",),
        }
        return (
            f"x = input.double(){scale}",
            *masks.get(spec.mask or "", ()),
            f"x = torch.{'log_' if spec.log else ''}softmax(x, -1)",
        )

    def _reduce_lines(self, spec: Reduce) -> tuple[str, ...]:
        mapped = "" if spec.map is None else f"x = {to_torch(spec.map, {'x': 'x'})}"
        text = _TORCH[spec.op].format(axis=spec.axis, correction=spec.correction)
        return ("x = input.double()", *([mapped] if mapped else []), f"x = {text}")

    def _norm_lines(self, spec: RmsNorm | LayerNorm) -> tuple[str, ...]:
        rounds = f".to(torch.{spec.dtype}).double()"
        lines = ["x = input.double()"]
        if spec.residual:
            lines = [f"x = (input.double() + residual.double()){rounds}"]
        vectors = [f"{name}.double()" for name in spec.vectors] if spec.affine else []
        if isinstance(spec, LayerNorm):
            given = ", ".join(vectors or ("None", "None"))
            return (*lines, f"x = functional.layer_norm(x, (COLS,), {given}, EPS)")
        lines.append("x = functional.rms_norm(x, (COLS,), None, EPS)")
        if spec.cast == "before_weight":
            lines.append(f"x = x{rounds}")
        if vectors:
            offset = "WEIGHT_OFFSET + " if spec.weight_offset else ""
            lines.append(f"x = x * ({offset}{vectors[0]})" if offset else f"x = x * {vectors[0]}")
        return tuple(lines)

    @property
    def torch_names(self) -> dict[str, str]:
        """Torch text of ``x`` and of each chain operand, for main()."""
        names = {"x": "x"}
        for operand in self.spec.operands:
            column = "[:, None]" if operand.kind == "column_vector" and not self.reduces else ""
            names[operand.name] = f"{operand.name}{column}.double()"
        return names

    @property
    def is_index(self) -> bool:
        """Whether the output is an index."""
        return isinstance(self.spec, Reduce) and self.spec.op in INDICES

    @property
    def calls_functional(self) -> bool:
        """Whether main() calls torch.nn.functional."""
        if self.is_empty:
            return False
        if isinstance(self.spec, (RmsNorm, LayerNorm, CrossEntropy)):
            return True
        values = [to_torch(x, self.torch_names) for x in self.values]
        return any("functional." in text for text in (*values, *self.product_lines))
