"""What the emitted main() of an attention program computes with torch, as text."""

from __future__ import annotations

import re

from attrs import frozen

from tilegen.dtypes import DType
from tilegen.expr_print import to_torch
from tilegen.geometry.attention_functions import torch_names
from tilegen.geometry.attention_masks import TorchPlaces, conditions
from tilegen.geometry.attention_names import AttentionNames
from tilegen.specs.masks import (
    leaves,
)
from tilegen.specs.operands import Operand
from tilegen.specs.scores import Alibi, ScoreMod


@frozen
class AttentionTorch(AttentionNames):
    """Names of the computation, and the same by torch for one sequence and head."""

    @property
    def parts(self) -> list[str]:
        """Words of the emitted function's name, at most seven."""
        spec = self.spec
        parts = ["varlen"] if spec.varlen else [] if spec.layout == "bshd" else ["bhsd"]
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
        masked = masked if len(masked) < 60 else ", masked"
        return f"Attention: out = softmax(scale * q @ k.T{scores}{masked}) @ v{chain}"

    @property
    def torch_places(self) -> TorchPlaces:
        """How main() spells positions."""
        return TorchPlaces(self.keys, self.offset, self.spec.varlen)

    @property
    def seen_lines(self) -> tuple[str, ...]:
        """Torch statements of what the mask shows, which is named ``seen``."""
        statements, (first, *rest) = conditions(self.spec.mask, self.torch_places)
        return (*statements, f"seen = {first}", *(f"seen = seen & ({more})" for more in rest))

    @property
    def torch_names(self) -> dict[str, str]:
        """Torch text of the variables of both chains, for one sequence and head."""
        names = {"x": "x", "distance": "(place - column).double()"}
        places = {"b": "b", "h": "h", "q_idx": "row.double()", "kv_idx": "column.double()"}
        for op in self.spec.scores:
            if isinstance(op, ScoreMod):
                names |= torch_names(op.fn, places)
        for operand in self.spec.operands:
            if operand.name in self.captured:
                continue
            if operand.kind == "scalar":
                names[operand.name] = f"{operand.name}.double()"
            elif operand.kind == "tile":
                names[operand.name] = f"{self.one(operand.name)}.double()"
            elif operand.shape == self.spec.pairs:
                names[operand.name] = f"{operand.name}{self.torch_places.pair}.double()"
            elif any(isinstance(op, Alibi) and op.name == operand.name for op in self.spec.scores):
                names[operand.name] = f"{operand.name}[h].double()"
        return names

    def one(self, name: str) -> str:
        """Return torch text of one sequence and head of a tensor."""
        head = "h // GROUP" if name in ("k", "v") and self.group > 1 else "h"
        if self.spec.varlen:
            side = "kv" if name in ("k", "v") else "q"
            return f"{name}[start_{side}:stop_{side}, {head}]"
        return f"{name}[b, {head}]" if self.spec.layout == "bhsd" else f"{name}[b, :, {head}]"

    @property
    def one_lse(self) -> str:
        """Torch text of one sequence and head of the logarithms."""
        return "lse[h, start_q:stop_q]" if self.spec.varlen else "lse[b, h]"

    def drawn(self, operand: Operand) -> str:
        """Return torch text of random values of an operand."""
        shape = ", ".join(self.shape_symbols(operand))
        if operand.name.startswith("cu_seqlens"):
            tokens = self.tokens[operand.name.endswith("kv")]
            count = f'torch.linspace(0, {tokens}, BATCH + 1, device="cuda")'
            return f"{count}.to(torch.int32)"
        if operand.dtype == DType.bool:
            return f'torch.rand({shape}, device="cuda") < 0.9'
        if operand.dtype in (DType.int32, DType.int64) and operand.name in self.captured:
            kind = f'device="cuda", dtype=torch.{operand.dtype}'
            return f"torch.randint(0, 3, ({shape},), {kind})"
        if operand.dtype == DType.int32:
            most = f"{self.tokens[1]} // 3 + 1"
            some = f'torch.randint({most}, ({shape},), device="cuda", dtype=torch.int32)'
            return some.replace(",),", "),") if len(self.shape_symbols(operand)) > 1 else some
        return f'torch.randn({shape}, device="cuda").to(torch.{operand.dtype})'

    @property
    def compared(self) -> tuple[str, ...]:
        """Lines up to the scaled scores ``x`` of the last sequence and head."""
        used = self._used_lines if self.has_keys else ""
        lines = [f"b, h = {self.batch} - 1, HEADS - 1"]
        if self.spec.varlen:
            lines = lines if re.search(r"\bb\b", used) else ["h = HEADS - 1"]
            lines.append("start_q, stop_q = cu_seqlens_q.tolist()[-2:]")
            if self.has_keys:
                lines.append("start_kv, stop_kv = cu_seqlens_kv.tolist()[-2:]")
        if not self.has_keys:
            return tuple(lines)
        lines += [
            f"queries, keys = {self.one('q')}.double(), {self.one('k')}.double()",
            "x = queries @ keys.T * SCALE",
        ]
        if "column" in used:
            lines.append('column = torch.arange(len(keys), device="cuda")')
        if "row" in used or "place" in used:
            lines.append('row = torch.arange(len(queries), device="cuda")[:, None]')
        if "place" in used:
            lines.append("place = row + len(keys) - len(queries)")
        return tuple(lines)

    @property
    def _used_lines(self) -> str:
        """What the lines below those are made of."""
        chain = (to_torch(step.value, self.torch_names) for step in self.score_steps)
        return " ".join((*(self.seen_lines if self.spec.mask is not None else ()), *chain))

    @property
    def summed(self) -> tuple[str, ...]:
        """Lines from modified scores to the output ``x``."""
        if not self.has_keys:
            lines = [f"x = torch.zeros_like({self.one('out')}).double()"]
            if self.spec.return_lse:
                value = "sink[h].double()" if self.spec.sink else "-torch.inf"
                lines.append(f"lse_of_x = torch.zeros_like({self.one_lse}).double() + {value}")
            return tuple(lines)
        lines = []
        if self.spec.mask is not None:
            lines += self.seen_lines
            lines.append("x = x.masked_fill(~seen, -torch.inf)")
        if self.spec.sink:
            lines.append("x = torch.cat([x, sink[h].double().expand(len(x), 1)], 1)")
        if self.spec.return_lse:
            lines.append("lse_of_x = x.logsumexp(1)")
        values = f"{self.one('v')}.double()"
        last = "[:, :-1]" if self.spec.sink else ""
        return (*lines, f"x = torch.softmax(x, 1).nan_to_num(0.0){last} @ {values}")

    @property
    def calls_functional(self) -> bool:
        """Whether main() calls torch.nn.functional."""
        return any("functional." in to_torch(x, self.torch_names) for x in self.values)
