# The same function for Numba; values.py stands for the header.
import numba
from values import VALUE


@numba.njit(cache=True)
def constant():
    return VALUE


def value():
    result = constant()
    if constant.stats.cache_misses:
        print("compiled")
    return result
