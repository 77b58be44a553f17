# The same function for Numba; values.py stands for the header.
import numba
from values import VALUE


@numba.njit(cache=True)
def value():
    return VALUE
