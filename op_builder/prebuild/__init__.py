"""Ops built ahead into a wheel: ``ACCEL_BUILD_OPS=1 pip install .``

::

    backend.py     the hooks that pip, build and uv call, in their own build environment
    order.py       what the environment asks for
    target.py      which torch it is built against, and the Python that has it
    worker.py      run by that Python: chooses the ops, builds them, puts them beside their packages
    tags.py        what the binaries need, as a wheel's tag
    wheel.py       taking a wheel apart and packing it again

setuptools makes the wheel as for any project without ops. It is unpacked, the ops are compiled from the
sources in it, as they will be found once it is installed, and it is packed again with the binaries and
the tag they need. So this serves every project that setuptools can build.
"""
