"""Integers of up to 76 digits as five limbs, for engines whose decimals have at most 38 digits.

A limb is a digit in base 10^17: the sum of five products of two limbs still has fewer than 38 digits. The highest limb
comes first and carries the sign, the others are never negative; so numbers are equal if their limbs are, and sort as
their limbs do. Sums and products are modular: an overflow of the highest limb may be dropped.
"""

from decimal import Decimal
from fractions import Fraction

LIMB_COUNT = 5
BASE = 10**17
HALF = BASE // 2  # no number of 76 digits has such a highest limb
LIFT = 10**18  # LIFT * BASE exceeds any sum in one limb, so adding it makes the limb positive


def split_limbs(number: int | Decimal, scale: int = 0) -> tuple[int, ...]:
    """Return the limbs of a number with `scale` decimal places, without the decimal point."""
    number, lower = (
        int(Fraction(number) * 10**scale),
        [],
    )  # a fraction, because decimals round to the precision of their context
    for _ in range(LIMB_COUNT - 1):
        number, limb = divmod(number, BASE)
        lower.append(limb)
    return (number, *reversed(lower))


def products() -> list[list[tuple[int, int]]]:
    """Return, for each limb of a product, lowest first, the pairs of factor limbs that contribute to it."""
    return [[(i, k - i) for i in range(k + 1)] for k in range(LIMB_COUNT)]
