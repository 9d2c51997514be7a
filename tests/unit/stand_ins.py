"""Stand-ins for what needs a GPU: computations in fp32, and CPU tensors that pass for CUDA's."""

import torch
from attrs import evolve

from tilegen.expr import Call
from tilegen.expr_rewrite import expanded
from tilegen.reference.expr import evaluate
from tilegen.segments import segments

torch.set_num_threads(1)  # the tensors are small: more threads only wait for each other


def cut(tensor):
    """Return fp32 values as TF32 tensor cores read them."""
    return (tensor.contiguous().view(torch.int32) & -(1 << 13)).view(torch.float32)


ROWS = {
    "": lambda x: x,
    "RowSoftmax": lambda x: torch.softmax(x, 1),
    "RowAmax": lambda x: x.abs().amax(1),
    "RowSumSquares": lambda x: x.square().sum(1),
}


def honest(spec, matmul=torch.matmul):
    """Return a computation of ``spec`` in fp32 with the roundings of a kernel."""

    def compute(operands, outputs):
        values = {}
        for operand in spec.operands[2:]:
            value = operands[operand.name].float()
            values[operand.name] = value[:, None] if operand.kind == "column_vector" else value
        if spec.k:
            a, b = operands["a"].float(), operands["b"].float()
            a = a if spec.layout[0] == "n" else a.T
            b = b if spec.layout[1] == "n" else b.T
            x = matmul(cut(a), cut(b)) if spec.compute else matmul(a, b)
        else:
            x = torch.zeros(outputs["out"].shape)
        for segment in segments(spec.epilogue, spec.numerics, spec.out_dtype):
            for step in segment.steps:
                x = evaluate(_written_out(step.value), {**values, "x": x})
            found = ROWS[segment.kind](x)
            if segment.store:
                outputs[segment.store].copy_(found)
            else:
                x = found

    return compute


def _written_out(expr):
    """Return an expression as kernels write it: torch's gelu is coarse on CPUs with AVX-512."""
    expr = expanded(expr)
    return (
        evolve(expr, args=tuple(map(_written_out, expr.args))) if isinstance(expr, Call) else expr
    )


def instead(spec, other):
    """Return a computation of ``other`` for the operands and outputs of ``spec``."""
    return honest(evolve(spec, epilogue=other.epilogue, numerics=other.numerics))


class CudaTensor(torch.Tensor):
    """A CPU tensor that says it is on CUDA device ``index``."""

    is_cuda = True
    index = 0

    @property
    def device(self):
        return torch.device("cuda", self.index)

    def get_device(self):
        return self.index


def cuda(tensor, index=0):
    """Return a tensor that says it is on a CUDA device; shares the memory of ``tensor``."""
    made = tensor.as_subclass(CudaTensor)
    made.index = index
    return made
