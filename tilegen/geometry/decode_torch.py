"""What the emitted main() of a decode program computes with torch, as text."""

from __future__ import annotations

import re

from attrs import frozen

from tilegen.dtypes import DType
from tilegen.expr_print import to_torch
from tilegen.geometry.attention_functions import torch_names
from tilegen.geometry.attention_masks import TorchPlaces, conditions
from tilegen.geometry.decode_masked import DecodeMasked
from tilegen.specs.masks import leaves
from tilegen.specs.operands import Operand
from tilegen.specs.scores import Alibi, ScoreMod


@frozen
class DecodeTorch(DecodeMasked):
    """Names of the computation, and the same by torch for the last sequence and head."""

    documents: tuple[str, ...] = ()

    @property
    def parts(self) -> list[str]:
        """Words of the emitted function's name, at most seven."""
        spec = self.spec
        parts = ["paged"] if spec.page_size is not None else []
        parts += ["fp8"] if self.widens else []
        parts += [type(op).__name__.lower() for op in spec.scores]
        parts += [type(leaf).__name__.lower() for leaf in leaves(spec.mask)]
        parts += ["sink"] if spec.sink else []
        parts += ["lse"] if spec.return_lse else []
        parts += [type(op).__name__.lower() for op in spec.epilogue]
        return [*parts[:6], f"and_{len(parts) - 6}_more"] if len(parts) > 6 else parts

    @property
    def title(self) -> str:
        """First line of the emitted file's docstring."""
        spec = self.spec
        scores = "".join(f" -> {type(op).__name__}" for op in spec.scores)
        chain = "".join(f" -> {type(op).__name__}" for op in spec.epilogue)
        masked = "" if spec.mask is None else f", {spec.mask!r}"
        masked = masked if len(masked) < 50 else ", masked"
        paged = ", in pages" if spec.page_size is not None else ""
        return f"Decode: out = softmax(scale * q @ k.T{scores}{masked}) @ v{chain}{paged}"

    @property
    def seen_lines(self) -> tuple[str, ...]:
        """Torch statements of what the mask shows, which is named ``seen``."""
        places = TorchPlaces("", "", False)
        statements, (first, *rest) = conditions(self.spec.mask, places)
        return (*statements, f"seen = {first}", *(f"seen = seen & ({more})" for more in rest))

    @property
    def kv_head(self) -> str:
        """The head of k and v of the head h of q."""
        return "h" if self.group == 1 else "h // GROUP"

    @property
    def torch_names(self) -> dict[str, str]:
        """Torch text of the variables of both chains, for one sequence and head."""
        names = {"x": "x", "distance": "(place - column).double()"}
        places = {"b": "b", "h": "h", "q_idx": "row.double()", "kv_idx": "column.double()"}
        slopes = [op.name for op in self.spec.scores if isinstance(op, Alibi)]
        for op in self.spec.scores:
            if isinstance(op, ScoreMod):
                names |= torch_names(op.fn, places)
        for operand in self.spec.operands:
            name = operand.name
            if name in self.captured:
                continue
            if operand.kind == "scalar":
                names[name] = f"{name}.double()"
            elif operand.kind == "tile":
                names[name] = f"{self.one(name)}.double()"
            elif name in ("k_scale", "v_scale"):
                names[name] = f"{name}[{self.kv_head}].double()"
            elif name in slopes:
                names[name] = f"{name}[h].double()"
        return names

    def one(self, name: str) -> str:
        """Return torch text of one sequence and head of a tensor like the output."""
        return f"{name}[b, :, h]"

    one_lse = "lse[b, h]"

    @property
    def cached(self) -> list[str]:
        """Torch lines of the keys and values of one sequence and head."""
        if self.spec.page_size is None:
            part = f"[b, :length, {self.kv_head}]"
            return [f"keys, values = k{part}.double(), v{part}.double()"]
        part = f"[listed, :, {self.kv_head}].flatten(0, 1)[:length].double()"
        return ["listed = page_table[b].long()", f"keys = k{part}", f"values = v{part}"]

    def drawn(self, operand: Operand) -> str:
        """Return torch text of random values of an operand."""
        symbols = self.shape_symbols(operand)
        shape = f"{', '.join(symbols)}{',' if len(symbols) == 1 else ''}"
        if operand.kind == "workspace":
            return f'torch.full(({shape}), torch.nan, device="cuda")'
        most = {"kv_lens": f"1, {self.room} + 1", "page_table": "pages"}.get(operand.name, "3")
        if operand.dtype == DType.bool:
            return f'torch.rand({shape.rstrip(",")}, device="cuda") < 0.9'
        if operand.dtype in (DType.int32, DType.int64):
            cast = ".int()" if operand.dtype == DType.int32 else ""
            return f'torch.randint({most}, ({shape}), device="cuda"){cast}'
        return f'torch.randn({shape.rstrip(",")}, device="cuda").to(torch.{operand.dtype})'

    @property
    def compared(self) -> tuple[str, ...]:
        """Lines up to the scaled scores ``x`` of the last sequence and head."""
        used = self._used_lines
        lines = [
            f"b, h = {self.batch} - 1, HEADS - 1",
            "length = int(kv_lens[b])",
            *self.cached,
            f"x = {self.one('q')}.double() @ keys.T * SCALE",
        ]
        if "column" in used:
            lines.append('column = torch.arange(length, device="cuda")')
        if "row" in used or "place" in used:
            lines.append('row = torch.arange(SEQ_Q, device="cuda")[:, None]')
        if "place" in used:
            lines.append("place = row + length - SEQ_Q")
        return tuple(lines)

    @property
    def _used_lines(self) -> str:
        """What the lines below those are made of."""
        chain = (to_torch(step.value, self.torch_names) for step in self.score_steps)
        return " ".join((*(self.seen_lines if self.spec.mask is not None else ()), *chain))

    @property
    def summed(self) -> tuple[str, ...]:
        """Lines from modified scores to the output ``x``."""
        lines = []
        if self.spec.mask is not None:
            lines += [*self.seen_lines, "x = x.masked_fill(~seen, -torch.inf)"]
        if self.spec.sink:
            lines.append("x = torch.cat([x, sink[h].double().expand(SEQ_Q, 1)], 1)")
        if self.spec.return_lse:
            lines.append("lse_of_x = x.logsumexp(1)")
        last = "[:, :-1]" if self.spec.sink else ""
        return (*lines, f"x = torch.softmax(x, 1).nan_to_num(0.0){last} @ values")

    @property
    def calls_functional(self) -> bool:
        """Whether main() calls torch.nn.functional."""
        names = self.torch_names
        return any(re.search(r"\bfunctional\.", to_torch(x, names)) for x in self.values)
