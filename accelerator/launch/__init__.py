"""The launcher, ``accel-launch`` = ``python -m accelerator.launch``: ranks bound to cores, on one machine or many.

It plans (``topology``, ``binding``, ``hosts``, ``plan``: functions of their arguments). Torch's elastic agent, ssh, an
MPI's launcher or Slurm's start the processes. Nothing of the device layer imports it.
"""
