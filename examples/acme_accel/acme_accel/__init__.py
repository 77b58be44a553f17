"""A template of a vendor's package: the accelerator ``acme``, and an op that only it has.

There is no such card: its "device" is the CPU, so that all of this runs anywhere. What to change:
``device_module`` goes (your ``torch_acme`` brings the real one), ``accelerator`` names it, ``ops`` has your
kernels. Importing this package does nothing.
"""
