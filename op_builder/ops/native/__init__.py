"""What ``load()`` returns: one Python module object per op, over the torch ops underneath."""
