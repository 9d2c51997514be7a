"""What this machine can do: tools, versions, GPU and cache."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from attrs import frozen
from rich.console import Console
from rich.progress import Progress

from tilegen import __version__, cache
from tilegen.errors import SpecError
from tilegen.targets import target
from tilegen.toolchain import nvcc, versions

if TYPE_CHECKING:
    from tilegen.rules.probes import ProbeResult


@frozen(kw_only=True)
class Machine:
    """What was found; a text says "none" where there is no such thing.

    Attributes:
        tilegen: Its version.
        python: Its version.
        tilelang: Its version.
        torch: Its version.
        nvcc: Its version and path.
        gpu: Name of the current GPU, as torch sees it.
        driver: Version of the NVIDIA driver.
        target: The target of the current GPU, or why it has none.
        cache: The folder in use.
        cache_entries: Programs in it.
        cache_bytes: Its size.
        cache_fallback: Whether it stands in for one that cannot be written.
        can: What of render, lower, compile and run can be done here.
    """

    tilegen: str
    python: str
    tilelang: str
    torch: str
    nvcc: str
    gpu: str
    driver: str
    target: str
    cache: str
    cache_entries: int
    cache_bytes: int
    cache_fallback: bool
    can: tuple[str, ...]

    def rows(self) -> tuple[tuple[str, str], ...]:
        """Return (label, text) pairs."""
        instead = ", in place of one that cannot be written" if self.cache_fallback else ""
        size = f"{self.cache_entries} programs, {self.cache_bytes / 1e6:.1f} MB"
        return (
            ("tilegen", self.tilegen),
            ("python", self.python),
            ("tilelang", self.tilelang),
            ("torch", self.torch),
            ("nvcc", self.nvcc),
            ("gpu", self.gpu),
            ("driver", self.driver),
            ("target", self.target),
            ("cache", f"{self.cache} ({size}{instead})"),
            ("can", ", ".join(self.can)),
        )


def examine() -> Machine:
    """Return what this machine can do; imports torch, to see the GPU as it does."""
    found = versions()
    gpu, where = _gpu()
    compiler = nvcc()
    kept = cache.stats()
    can = {
        "render": True,
        "lower": found["tilelang"] != "none",
        "compile": found["tilelang"] != "none" and compiler is not None,
        "run": gpu != "none" and found["tilelang"] != "none",
    }
    return Machine(
        tilegen=__version__,
        python=platform.python_version(),
        tilelang=found["tilelang"],
        torch=_version("torch"),
        nvcc=f"{found['nvcc']} at {compiler}" if compiler else "none",
        gpu=gpu,
        driver=_driver(),
        target=where,
        cache=str(kept.path),
        cache_entries=kept.entries,
        cache_bytes=kept.bytes,
        cache_fallback=kept.fallback,
        can=tuple(name for name, able in can.items() if able),
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _gpu() -> tuple[str, str]:
    """Return the current GPU's name and its target."""
    import torch

    if not torch.cuda.is_available():
        return "none", "none: pass one, such as --target sm_90a"
    name = torch.cuda.get_device_name()
    try:
        return name, target(None).name
    except SpecError as error:
        return name, f"none: {error}"


def _driver() -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        return "none"
    query = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, check=False)
    return done.stdout.split("\n")[0].strip() or "none" if done.returncode == 0 else "none"


def probe() -> tuple[ProbeResult, ...]:
    """Return what the hazard table's probes do here, with a progress bar on a terminal's stderr.

    Raises:
        TilegenError: Nothing can be probed on this machine.
    """
    from tilegen.rules.hazards import hazards
    from tilegen.rules.probes import run_all

    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("probes", total=sum(row.probe is not None for row in hazards()))
        return run_all(progress=lambda result: progress.advance(task))


def hazard_rows(results: tuple[ProbeResult, ...]) -> Iterator[tuple[str, str]]:
    """Yield (label, text) pairs: how many probes ran, then each that did not do as recorded."""
    from tilegen.rules.hazards import installed, table_version

    changed = [result for result in results if result.changed]
    mode = results[0].mode if results else "none"
    yield "hazards", f"{len(results)} probes (mode {mode}), {len(changed)} not as recorded"
    here = installed()
    if here is not None and table_version(here) != here:
        recorded = table_version(here)
        yield "", f"recorded for tilelang {recorded}: rows without a probe are unchecked for {here}"
    for result in changed:
        detail = f" ({result.detail})" if result.detail else ""
        yield (
            result.hazard.id,
            f"{result.outcome}{detail}, recorded as {result.expected}: {result.hazard.title}",
        )
