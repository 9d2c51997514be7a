"""Legality rules: named reasons why a program is refused, one module a family."""
