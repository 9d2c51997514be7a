"""GPU architectures as data: limits and what their tensor cores and copy engines can do."""

from __future__ import annotations

from attrs import frozen

from tilegen.errors import SpecError


@frozen(kw_only=True)
class Target:
    """One architecture.

    Attributes:
        name: As users write it, such as ``sm_90a``.
        kind: TileLang's target kind, ``cuda`` or ``hip``.
        smem_bytes: Shared memory one CTA may use, in bytes.
        smem_per_sm: Shared memory of one SM, in bytes.
        tma: Whether the bulk tensor copy engine exists.
        wgmma: Whether warpgroup MMA exists.
        sms: SM count of the card that default schedules are made for.
        tflops: Dense 16-bit tensor-core rate of that card in TFLOP/s, sustained.
        bandwidth: Copy bandwidth of that card in GB/s, bytes read plus bytes written.
        full: Whether every step is served; otherwise programs only lower to source.
        warp: Threads of a warp, which hip calls a wavefront.
    """

    name: str
    kind: str = "cuda"
    smem_bytes: int
    smem_per_sm: int
    tma: bool = False
    wgmma: bool = False
    sms: int
    tflops: float
    bandwidth: float
    full: bool = False
    warp: int = 32
    registers_per_sm: int = 65536
    max_registers: int = 255
    max_threads: int = 1024

    @property
    def pdl(self) -> bool:
        """Whether a launch may begin before the last one ends: programmatic dependent launch."""
        return self.tma  # both came with sm_90

    @property
    def tilelang(self) -> dict[str, str]:
        """The target as ``tilelang.compile`` takes it."""
        return {"kind": self.kind, ("mcpu" if self.kind == "hip" else "arch"): self.name}

    def register_share(self, threads: int) -> int:
        """Return the registers of a thread if ``threads`` of an SM share alike."""
        share = self.registers_per_sm // max(threads, 1) // 8 * 8
        return min(share, self.max_registers)


_TARGETS = (
    Target(
        name="sm_80",
        smem_bytes=166912,
        smem_per_sm=167936,
        sms=108,
        tflops=260.0,
        bandwidth=1700.0,
        full=True,
    ),
    Target(
        name="sm_89",
        smem_bytes=101376,
        smem_per_sm=102400,
        sms=128,
        tflops=160.0,
        bandwidth=900.0,
    ),
    Target(
        name="sm_90a",
        smem_bytes=232448,
        smem_per_sm=233472,
        tma=True,
        wgmma=True,
        sms=132,
        tflops=800.0,
        bandwidth=4300.0,
        full=True,
    ),
    Target(
        name="sm_100a",
        smem_bytes=232448,
        smem_per_sm=233472,
        tma=True,
        sms=148,
        tflops=1600.0,
        bandwidth=7000.0,
    ),
    Target(
        name="sm_120a",
        smem_bytes=101376,
        smem_per_sm=102400,
        tma=True,
        sms=170,
        tflops=400.0,
        bandwidth=1600.0,
    ),
    Target(
        name="gfx942",
        kind="hip",
        warp=64,
        smem_bytes=65536,
        smem_per_sm=65536,
        sms=304,
        tflops=900.0,
        bandwidth=4500.0,
    ),
)
TARGETS = {target.name: target for target in _TARGETS}
_SUFFIXED = {"sm_90": "sm_90a", "sm_100": "sm_100a", "sm_120": "sm_120a"}


def target(value: object) -> Target:
    """Return the Target named ``value``; None is the current GPU, looked up through torch.

    Raises:
        SpecError: The name is unknown, or None was given where there is no GPU.
    """
    if isinstance(value, Target):
        return value
    if value is None:
        return _current()
    if isinstance(value, str) and value in TARGETS:
        return TARGETS[value]
    hint = f"use one of {', '.join(TARGETS)}"
    if isinstance(value, str) and value in _SUFFIXED:
        hint = f"use {_SUFFIXED[str(value)]!r}: warp specialization needs the architecture's suffix"
    raise SpecError(
        "is not a target tilegen knows", rule="target", field="target", value=value, hint=hint
    )


def _current() -> Target:
    import torch

    if not torch.cuda.is_available():
        raise SpecError(
            "there is no GPU to take the target from",
            rule="target",
            field="target",
            value=None,
            hint="pass target='sm_90a' or another of " + ", ".join(TARGETS),
        )
    major, minor = torch.cuda.get_device_capability()
    name = f"sm_{major}{minor}"
    return target(_SUFFIXED.get(name, name))
