"""The registry: one row a family. Everything that treats families alike reads it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from attrs import field, frozen

from tilegen.errors import SpecError


def _attribute(path: str) -> Any:
    module, name = path.split(":")
    return getattr(import_module(module), name)


@frozen(kw_only=True)
class Family:
    """One family; parts are ``module:name`` paths, imported on first use.

    Attributes:
        name: The family word.
        spec_path: Its spec class, or a tuple of them.
        schedule_path: Its schedule class.
        candidates_path: ``(spec, target, form) -> schedules`` in order of preference.
        options_path: Schedule field to the values a search may try.
        geometry_path: ``(spec, schedule, target, access) -> derived facts``.
        rules_path: Its legality rules.
        reference_path: ``(spec, operands, dtype) -> outputs`` by torch's own operators.
        tolerance_path: ``(spec, operands, reference) -> tolerances``.
        fuzz_path: What the fuzzer draws of it.
        cost_path: ``(spec, target, schedule) -> microseconds``, an estimate to rank schedules by.
        peers_path: Name to what makes a peer of a spec that kernels are timed against.
        templates: Schedule variant to template file.
        form: Schedule field that candidates are made for, where it is set.
    """

    name: str
    spec_path: str
    schedule_path: str
    candidates_path: str
    options_path: str
    geometry_path: str
    rules_path: str
    reference_path: str
    tolerance_path: str
    fuzz_path: str
    cost_path: str
    peers_path: str
    templates: dict[str, str] = field(factory=dict)
    form: str = "variant"

    def part(self, name: str) -> Any:
        """Return the part ``name``, such as ``rules``, importing its module."""
        return _attribute(getattr(self, f"{name}_path"))

    @property
    def specs(self) -> tuple[type, ...]:
        """Its spec classes."""
        found = self.part("spec")
        return found if isinstance(found, tuple) else (found,)


FAMILIES = {
    "gemm": Family(
        name="gemm",
        spec_path="tilegen.specs.gemm:Gemm",
        schedule_path="tilegen.schedules.gemm:GemmSchedule",
        candidates_path="tilegen.schedules.gemm:candidates",
        options_path="tilegen.schedules.gemm:OPTIONS",
        geometry_path="tilegen.geometry.gemm:GemmGeometry",
        rules_path="tilegen.rules.gemm:RULES",
        reference_path="tilegen.reference.gemm:reference",
        tolerance_path="tilegen.reference.gemm:tolerances",
        cost_path="tilegen.schedules.gemm:cost_us",
        peers_path="tilegen.peers.gemm:PEERS",
        fuzz_path="tilegen.fuzz.gemm:FUZZED",
        templates={
            "pipelined": "gemm/pipelined.py.j2",
            "cp_async": "gemm/pipelined.py.j2",
            "warp_specialized": "gemm/warp_specialized.py.j2",
            "ping_pong": "gemm/warp_specialized.py.j2",
        },
    ),
    "attention": Family(
        name="attention",
        spec_path="tilegen.specs.attention:Attention",
        schedule_path="tilegen.schedules.attention:AttentionSchedule",
        candidates_path="tilegen.schedules.attention:candidates",
        options_path="tilegen.schedules.attention:OPTIONS",
        geometry_path="tilegen.geometry.attention:AttentionGeometry",
        rules_path="tilegen.rules.attention:RULES",
        reference_path="tilegen.reference.attention:reference",
        tolerance_path="tilegen.reference.attention_bounds:tolerances",
        cost_path="tilegen.schedules.attention:cost_us",
        peers_path="tilegen.peers.attention:PEERS",
        fuzz_path="tilegen.fuzz.attention:FUZZED",
        templates={
            "pipelined": "attention/pipelined.py.j2",
            "warp_specialized": "attention/warp_specialized.py.j2",
        },
    ),
    "decode": Family(
        name="decode",
        spec_path="tilegen.specs.decode:Decode",
        schedule_path="tilegen.schedules.decode:DecodeSchedule",
        candidates_path="tilegen.schedules.decode:candidates",
        options_path="tilegen.schedules.decode:OPTIONS",
        geometry_path="tilegen.geometry.decode:DecodeGeometry",
        rules_path="tilegen.rules.decode:RULES",
        reference_path="tilegen.reference.decode:reference",
        tolerance_path="tilegen.reference.decode_bounds:tolerances",
        cost_path="tilegen.schedules.decode:cost_us",
        peers_path="tilegen.peers.decode:PEERS",
        fuzz_path="tilegen.fuzz.decode:FUZZED",
        templates={"pipelined": "decode/pipelined.py.j2"},
        form="min_blocks",
    ),
    "mla": Family(
        name="mla",
        spec_path="tilegen.specs.mla:MlaDecode",
        schedule_path="tilegen.schedules.mla:MlaSchedule",
        candidates_path="tilegen.schedules.mla:candidates",
        options_path="tilegen.schedules.mla:OPTIONS",
        geometry_path="tilegen.geometry.mla:MlaGeometry",
        rules_path="tilegen.rules.mla:RULES",
        reference_path="tilegen.reference.mla:reference",
        tolerance_path="tilegen.reference.mla_bounds:tolerances",
        cost_path="tilegen.schedules.mla:cost_us",
        peers_path="tilegen.peers.mla:PEERS",
        fuzz_path="tilegen.fuzz.mla:FUZZED",
        templates={
            "pipelined": "mla/pipelined.py.j2",
            "warp_specialized": "mla/halves.py.j2",
            "split_latent": "mla/halves.py.j2",
        },
    ),
    "rowwise": Family(
        name="rowwise",
        spec_path="tilegen.specs.rowwise:SPECS",
        schedule_path="tilegen.schedules.rowwise:RowwiseSchedule",
        candidates_path="tilegen.schedules.rowwise:candidates",
        options_path="tilegen.schedules.rowwise:OPTIONS",
        geometry_path="tilegen.geometry.rowwise:RowwiseGeometry",
        rules_path="tilegen.rules.rowwise:RULES",
        reference_path="tilegen.reference.rowwise:reference",
        tolerance_path="tilegen.reference.rowwise:tolerances",
        cost_path="tilegen.schedules.rowwise:cost_us",
        peers_path="tilegen.peers.rowwise:PEERS",
        fuzz_path="tilegen.fuzz.rowwise:FUZZED",
        templates={
            "registers": "rowwise/registers.py.j2",
            "passes": "rowwise/passes.py.j2",
            "columns": "rowwise/columns.py.j2",
            "split": "rowwise/split.py.j2",
            "cluster": "rowwise/cluster.py.j2",
        },
    ),
    "elementwise": Family(
        name="elementwise",
        spec_path="tilegen.specs.elementwise:Elementwise",
        schedule_path="tilegen.schedules.elementwise:ElementwiseSchedule",
        candidates_path="tilegen.schedules.elementwise:candidates",
        options_path="tilegen.schedules.elementwise:OPTIONS",
        geometry_path="tilegen.geometry.elementwise:ElementwiseGeometry",
        rules_path="tilegen.rules.elementwise:RULES",
        reference_path="tilegen.reference.elementwise:reference",
        tolerance_path="tilegen.reference.elementwise:tolerances",
        cost_path="tilegen.schedules.elementwise:cost_us",
        peers_path="tilegen.peers.elementwise:PEERS",
        fuzz_path="tilegen.fuzz.elementwise:FUZZED",
        templates={"vectors": "elementwise/vectors.py.j2"},
    ),
}


def family_of(spec: object) -> Family:
    """Return the family of a spec.

    Raises:
        SpecError: It is not a spec.
    """
    name = getattr(spec, "family", None)
    if name not in FAMILIES:
        raise SpecError(
            "is not a spec", rule="spec", field="spec", value=spec, hint="use one such as tg.Gemm"
        )
    return FAMILIES[name]
