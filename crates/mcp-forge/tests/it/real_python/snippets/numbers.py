# Exact numbers.
from decimal import Decimal, localcontext
from fractions import Fraction

with localcontext() as context:
    context.prec = 50
    root = Decimal(2).sqrt()
str(root) == "1.4142135623730950488016887242096980785696718753769" and Fraction(1, 3) + Fraction(1, 6) == Fraction(1, 2)
