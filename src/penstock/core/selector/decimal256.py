"""Whole numbers of up to 76 digits as five places, for engines whose decimals end at 38.

A place counts up to 10^17: the product of two, added five times, still has less than 38 digits. The highest place comes
first and carries the sign, the others are never below zero; so numbers are equal where their places are, and sort as
their places do. Sums and products are those of a ring: what overflows the highest place may be forgotten.
"""

from decimal import Decimal
from fractions import Fraction

PLACES = 5
BASE = 10**17
HALF = BASE // 2  # no number of 76 digits comes near it in the highest place
LIFT = 10**18  # so many BASE are more than any sum in one place, above zero or below: with them, it is above


def places(number: int | Decimal, scale: int = 0) -> tuple[int, ...]:
    """The places of a number that has `scale` digits after the point, without the point."""
    number, lower = int(Fraction(number) * 10**scale), []  # a fraction: decimals round to the digits of their context
    for _ in range(PLACES - 1):
        number, place = divmod(number, BASE)
        lower.append(place)
    return (number, *reversed(lower))


def products() -> list[list[tuple[int, int]]]:
    """For each place of a product, the lowest first, which places of its factors meet there."""
    return [[(i, k - i) for i in range(k + 1)] for k in range(PLACES)]
