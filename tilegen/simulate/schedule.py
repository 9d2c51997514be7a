"""TileLang's own schedule of a function: its passes up to the software pipeline, for one target.

They run before layouts are inferred, so copies and products are still tile operations, while
buffers of several stages, barriers, asynchronous copies and the split into producer and consumer
warpgroups are explicit. Beside tir.py, this is the only file that touches TileLang's modules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilegen.errors import SimulationError
from tilegen.simulate import tir
from tilegen.targets import TARGETS

LEVELS = ("tile", *(target.name for target in TARGETS.values() if target.full))

# Each pass, and the name of the condition under which it runs. They are those of the CUDA
# pipeline (tilegen.cuda.pipeline) of the version that `tir.VERSION` names, in its order; a test
# compares them.
PASSES: tuple[tuple[str, str], ...] = (
    ("tirx.transform.BindTarget", ""),
    ("tilelang.transform.MaterializeKernelLaunch", ""),
    ("tilelang.cuda.transform.AnnotateDeviceBoundTmaCopies", ""),
    ("tilelang.transform.LetInline", "should_force_let_inline"),
    ("tilelang.transform.AddWrapperForSingleBufStore", ""),
    ("tilelang.transform.LegalizeNegativeIndex", ""),
    ("tilelang.transform.VerifyParallelLoop", "should_enable_race_check"),
    ("tilelang.transform.InjectAssumes", ""),
    ("tilelang.transform.Simplify", ""),
    ("tilelang.transform.CanonicalizeLegacyReducer", ""),
    ("tilelang.transform.VerifyReducerEpoch", ""),
    ("tilelang.transform.VerifyBufferInit", ""),
    ("tilelang.cuda.transform.AutoWarpSpecialization", "allow_warp_specialized"),
    ("tilelang.cuda.transform.MaterializeWSSchedule", "allow_warp_specialized"),
    ("tilelang.cuda.transform.ProducerConsumerWarpSpecialized", "allow_warp_specialized"),
    ("tilelang.cuda.transform.LowerBlackwell2SM", ""),
    ("tilelang.transform.IfStmtBinding", ""),
    ("tilelang.transform.UnrollLoop", ""),
    ("tilelang.transform.Simplify", ""),
    ("tilelang.transform.PipelinePlanning", ""),
    ("tilelang.transform.InjectSoftwarePipeline", ""),
    ("tilelang.transform.Simplify", ""),
)


def scheduled(function: tir.Node, level: str) -> tir.Node:
    """Return a function as TileLang schedules it for a target.

    Args:
        function: The function as it is written.
        level: Name of the target, one of `LEVELS`.

    Raises:
        SimulationError: A pass refuses the function, or the target has not what it uses.
    """
    import tilelang
    from tilelang import tvm

    if not TARGETS[level].tma:
        _require_no_hopper(function, level)
    target = tvm.target.Target(TARGETS[level].tilelang)
    module = tvm.IRModule({tir.name_of(function): function})
    roots = {"tilelang": tilelang, "tirx": tvm.tirx}
    arguments = {
        "BindTarget": ((target,), {}),
        "MaterializeKernelLaunch": ((), {"lower_thread_binding": True, "default_threads": 128}),
    }
    with tvm.transform.PassContext(opt_level=3), target:
        for path, condition in PASSES:
            if condition and not _holds(condition, target):
                continue
            root, *rest = path.split(".")
            made: Any = roots[root]
            for name in rest:
                made = getattr(made, name)
            positional, named = arguments.get(rest[-1], ((), {}))
            module = _run(made(*positional, **named), module, path)
    (result,) = (found for _, found in module.functions.items())
    return result


def _run(transform: Callable[[Any], Any], module: Any, path: str) -> Any:
    try:
        return transform(module)
    except Exception as error:
        said = (str(error).strip() or "no reason is given").splitlines()[-1]
        raise SimulationError(f"TileLang's pass {path} refuses the function: {said}") from error


def _holds(condition: str, target: Any) -> bool:
    from tilelang.cuda import pipeline

    named = {"target": target} if condition == "allow_warp_specialized" else {}
    return bool(getattr(pipeline, condition)(**named))


def _require_no_hopper(function: tir.Node, level: str) -> None:
    """Refuse what TileLang lowers for sm_90 and later only."""
    for node in tir.walk(function.body):
        if tir.kind(node) == "SBlock":
            for buffer in node.alloc_buffers:
                if buffer.scope() == tir.BARRIER:
                    raise tir.refusal(f"barrier {buffer.name}, which {level} has not,", node)
        elif tir.kind(node) == "Call" and tir.operation(node) in tir.HOPPER:
            raise tir.refusal(f"operation {tir.full_operation(node)}, which {level} has not,")
