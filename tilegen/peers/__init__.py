"""What kernels are timed against: PyTorch's ways to compute the same, one module a family.

A family's ``PEERS`` maps names, as ``against=`` takes them, to functions from a spec to a
`tilegen.race.Bind`; one that cannot compute a spec raises a SpecError that says why.
"""
