"""From emitted source to a TileLang function, its CUDA text, and a binary, each kept on disk.

TileLang's own kernel cache is bypassed: its keys do not name the CUDA toolkit, and a failed
compilation can hide behind an old binary. What is stored here is keyed by the program's digest.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import sys
import tempfile
import threading
import uuid
from hashlib import sha256
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from tilegen import cache
from tilegen.targets import TARGETS
from tilegen.toolchain import compiler, failure, load_tilelang, require_nvcc, versions

if TYPE_CHECKING:
    from tilelang.jit import JITKernel
    from tilelang.language import PrimFunc

    from tilegen.program import Program

PASS_CONFIGS: dict[str, object] = {}
COMPILE_FLAGS: tuple[str, ...] = ()

_VARIABLES = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "TILELANG_LAYOUT_COST_MODEL")
# TileLang shares unguarded state between compilations: one thread at a time traces or lowers.
_lock = threading.RLock()
_prim_funcs: dict[str, PrimFunc] = {}
_lowered: dict[str, Lowered] = {}
# Kept for good: unloading a module breaks the CUDA graphs that were captured from it.
_binaries: dict[str, JITKernel] = {}


@frozen
class Lowered:
    """What TileLang makes of a program, without nvcc.

    Attributes:
        cuda_source: Text of the device code.
        host_source: Text of the host module, TMA descriptors and launch included.
        grid: Launch extents in CTAs, as text over the dynamic dims.
        threads: Threads of a launched CTA, producers included.
        producer_threads: Threads that warp specialization added to those the source asks for.
        smem_bytes: Dynamic shared memory of a CTA.
        compile_flags: What the source itself tells nvcc.
    """

    cuda_source: str
    host_source: str
    grid: tuple[str, ...] = field(converter=tuple)
    threads: int
    producer_threads: int
    smem_bytes: int
    compile_flags: tuple[str, ...] = field(default=(), converter=tuple)


def digest(program: Program) -> str:
    """Return the SHA-256, in hex, of all that decides what ``program`` compiles to."""
    parts = {
        "source": program.source,
        "name": program.name,
        "target": program.target.tilelang,
        "pass_configs": PASS_CONFIGS,
        "compile_flags": COMPILE_FLAGS,
        "environment": {name: os.environ.get(name, "") for name in _VARIABLES},
        "versions": versions(),
    }
    return sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def prim_func(program: Program) -> PrimFunc:
    """Return the TileLang function of ``program``: its source, written, imported and built.

    Raises:
        CompileError: The source could not be written, or TileLang refuses to trace it.
    """
    with _lock:
        found = _prim_funcs.get(program.digest)
        if found is None:
            with compiler(program, "could not trace the source of"):
                found = _prim_funcs[program.digest] = _imported(program).build()
        return found


class _SourceLoader(SourceFileLoader):
    """Imports a file without reading or writing bytecode, whose content nothing verifies."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def _imported(program: Program) -> ModuleType:
    path = cache.write_source(program.digest, program.name, program.source)
    name = f"tilegen_emitted_{program.digest}"
    loader = _SourceLoader(name, str(path))
    spec = ModuleSpec(name, loader, origin=str(path))
    spec.has_location = True
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def lower(program: Program) -> Lowered:
    """Return the CUDA text of ``program`` and its launch; needs neither nvcc nor a GPU.

    Raises:
        CompileError: TileLang refuses the program.
    """
    key = program.digest
    with _lock:
        if key not in _lowered:
            with compiler(program, "could not lower the source of"):
                entry = cache.build_once(key, "lowered", lambda: _lower(program))
            _lowered[key] = Lowered(
                cuda_source=entry.files["kernel.cu"].decode(),
                host_source=entry.files["host.txt"].decode(),
                **json.loads(entry.files["launch.json"]),
            )
        return _lowered[key]


def _lower(program: Program) -> dict[str, bytes]:
    function = prim_func(program)
    tilelang = load_tilelang()
    from tilelang import tvm
    from tilelang.transform.pass_config import normalize_pass_configs

    target = tvm.target.Target(program.target.tilelang)
    configs = normalize_pass_configs(PASS_CONFIGS)
    with tvm.transform.PassContext(opt_level=3, config=configs), target:
        artifact = tilelang.lower(function, target=target)
    launch = _launch(function, artifact)
    return {
        "kernel.cu": artifact.kernel_source.encode(),
        "host.txt": str(artifact.host_mod).encode(),
        "launch.json": json.dumps(launch).encode(),
    }


def _launch(function: PrimFunc, artifact: Any) -> dict[str, Any]:
    """Return the launch fields of Lowered; the largest, where a program launches twice."""
    from tilelang import tvm

    tirx, attributes = tvm.tirx, function.attrs or {}
    kernels = {
        str(kernel.attrs["global_symbol"]): [
            str(p) for p in kernel.attrs["tirx.kernel_launch_params"]
        ]
        for kernel in artifact.device_mod.functions.values()
    }
    asked: list[int] = []
    launches: list[dict[str, Any]] = []

    def visit(node: Any) -> None:
        if isinstance(node, tirx.SBlock) and "tl.launch_threads" in node.annotations:
            asked.append(math.prod(int(x) for x in node.annotations["tl.launch_threads"]))
        if isinstance(node, tirx.Call) and len(node.args):
            if names := kernels.get(str(getattr(node.args[0], "value", ""))):
                launches.append(dict(zip(names, list(node.args)[-len(names) :], strict=True)))

    for body in (function.body, *(host.body for host in artifact.host_mod.functions.values())):
        tirx.stmt_functor.post_order_visit(body, visit)
    threads = max(math.prod(int(x[f"threadIdx.{axis}"]) for axis in "xyz") for x in launches)
    return {
        "grid": [str(x) for name, x in launches[-1].items() if name.startswith("blockIdx")],
        "threads": threads,
        "producer_threads": threads - max(asked),
        "smem_bytes": max(int(x.get("tirx.use_dyn_shared_memory", 0)) for x in launches),
        "compile_flags": [str(flag) for flag in attributes.get("tilelang_compile_flags", ())],
    }


def binary(program: Program, *, force: bool = False) -> JITKernel:
    """Return the compiled kernel, called with one tensor for each of ``program.params``.

    It comes from memory, from disk, or from nvcc, which needs no GPU; ``force`` asks nvcc anyway.
    Where TileLang's cache is disabled (``TILELANG_DISABLE_CACHE=1``), the disk is left out.

    Raises:
        CompileError: There is no nvcc, or TileLang or nvcc refuses the program.
    """
    found = None if force else _binaries.get(program.digest)
    if found is not None:
        return found
    with _lock:
        found = None if force else _binaries.get(program.digest)
        if found is None:
            with compiler(program, "could not compile the source of"):
                found = _binaries[program.digest] = _binary(program, force)
        return found


def _binary(program: Program, force: bool) -> JITKernel:
    if not program.target.full:
        hint = "compile for one of " + ", ".join(t.name for t in TARGETS.values() if t.full)
        raise failure(program, f"target {program.target.name} is only lowered to source; {hint}")
    from tilelang.env import env

    function = prim_func(program)
    if not env.is_cache_enabled():
        return _compiled(program, function)

    def build() -> dict[str, bytes]:
        return _exported(_compiled(program, function))

    entry = cache.build_once(program.digest, "binary", build, force=force)
    try:
        return _loaded(program, function, entry)
    except Exception:
        # Sound, but not for this machine: its C library is older than that of the one that built.
        entry = cache.build_once(program.digest, "binary", build, force=True)
        return _loaded(program, function, entry)


def _compiled(program: Program, function: PrimFunc) -> JITKernel:
    require_nvcc(program)
    import tilelang
    from tilelang.env import CacheState

    enabled = CacheState.is_enabled()
    CacheState.disable()
    try:
        return tilelang.compile(function, **_arguments(program))
    finally:
        if enabled:
            CacheState.enable()


def _arguments(program: Program) -> dict[str, Any]:
    return {
        "out_idx": None,
        "execution_backend": "tvm_ffi",
        "target": program.target.tilelang,
        "target_host": None,
        "pass_configs": PASS_CONFIGS,
        "compile_flags": list(COMPILE_FLAGS),
    }


def _exported(kernel: Any) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory(prefix="tilegen-") as folder:
        path = Path(folder, "kernel.so")
        kernel.adapter.get_exportable_executable().export_library(str(path))
        library = path.read_bytes()
    # A name of its own: the loader hands out one library, with its state, for one path.
    return {
        f"kernel-{uuid.uuid4().hex}.so": library,
        "kernel.cu": kernel.get_kernel_source().encode(),
        "host.c": kernel.get_host_source().encode(),
    }


def _loaded(program: Program, function: PrimFunc, entry: cache.Entry) -> JITKernel:
    from tilelang.engine.param import KernelParam
    from tilelang.jit import JITKernel
    from tilelang.jit.adapter.base import CachedTextSource

    buffers = function.buffer_map
    return JITKernel.from_database(
        func=function,
        host_kernel_source=CachedTextSource(text=entry.files["host.c"].decode()),
        device_kernel_source=CachedTextSource(text=entry.files["kernel.cu"].decode()),
        kernel_lib_path=str(entry.path / next(n for n in entry.files if n.endswith(".so"))),
        params=[
            KernelParam.from_buffer(buffers[p]) if p in buffers else KernelParam.from_var(p)
            for p in function.params
        ],
        **_arguments(program),
    )
