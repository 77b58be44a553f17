"""Ops in a wheel: ``ACCEL_BUILD_OPS=1 pip install .``

The build backend in ``build_tools/accel_ops_build`` unpacks setuptools' wheel and runs ``worker.py`` in the Python
whose torch the ops are built against. ``request.py`` reads the requested ops from the environment; ``tags.py`` derives
the wheel's tag from the needs of the binaries.
"""
