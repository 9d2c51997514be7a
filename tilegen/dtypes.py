"""The closed table of element types: sizes, spellings and tensor-core atoms."""

from __future__ import annotations

from enum import Enum

from tilegen.errors import SpecError

_BITS = {"float16": 16, "bfloat16": 16, "float32": 32}
_BITS |= {"float8_e4m3fn": 8, "float8_e5m2": 8, "bool": 8, "int32": 32, "int64": 64}
_ALIASES = {"fp16": "float16", "half": "float16", "bf16": "bfloat16", "fp32": "float32"}
_ALIASES |= {"float": "float32", "float8_e4m3": "float8_e4m3fn"}


class DType(str, Enum):
    """An element type; equal to its torch name, such as ``"bfloat16"``."""

    float16 = "float16"
    bfloat16 = "bfloat16"
    float32 = "float32"
    float8_e4m3fn = "float8_e4m3fn"
    float8_e5m2 = "float8_e5m2"
    bool = "bool"
    int32 = "int32"
    int64 = "int64"

    def __str__(self) -> str:
        return self.value

    def __repr__(self) -> str:
        return repr(self.value)

    @property
    def bits(self) -> int:
        """Size of one element in bits."""
        return _BITS[self.value]

    @property
    def bytes(self) -> int:
        """Size of one element in bytes."""
        return self.bits // 8

    @property
    def mma_k(self) -> int:
        """Depth of the tensor-core instruction along k: 16 for 16-bit types, 8 for TF32."""
        return 256 // self.bits

    @property
    def epsilon(self) -> float:
        """Largest relative error of rounding to nearest: half a unit in the last place."""
        return {
            "float16": 2.0**-11,
            "bfloat16": 2.0**-8,
            "float32": 2.0**-24,
            "float8_e4m3fn": 2.0**-4,
            "float8_e5m2": 2.0**-3,
        }[self.value]


FLOATS = (DType.float16, DType.bfloat16, DType.float32)
"""What is computed with; the other types are those of masks, labels, indices and quantized rows."""


def dtype(value: object, among: tuple[DType, ...] = FLOATS, name: str = "dtype") -> DType:
    """Return the DType named by a string (aliases such as ``bf16`` too) or by a torch dtype.

    torch is not imported: a torch dtype is taken by its name.

    Args:
        value: The string or torch dtype.
        among: The types that are served.
        name: The field that it is the value of.

    Raises:
        SpecError: The type is not ``among`` those that are served.
    """
    text = str(value).removeprefix("torch.")
    text = _ALIASES.get(text, text)
    found = next((member for member in among if member.value == text), None)
    if found is None:
        known = ", ".join(member.value for member in among)
        raise SpecError(
            "is not a dtype tilegen serves",
            rule="dtype",
            field=name,
            value=value,
            hint=f"use one of {known}",
        )
    return found


def optional_dtype(value: object) -> DType | None:
    """Return ``dtype(value)``, or None for None."""
    return None if value is None else dtype(value)
