"""A template of a vendor's package: the accelerator ``acme``, and an op that only it has.

The card does not exist: its "device" is the CPU, so that the template runs anywhere. To use it, remove
``device_module`` (your ``torch_acme`` provides the real one), name that in ``accelerator``, and put your kernels
into ``ops``. Importing this package does nothing.
"""
