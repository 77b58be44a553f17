"""The launcher, ``accel-launch`` = ``python -m accelerator.launch``: ranks bound to cores, on one machine or many.

It plans (``topology``, ``binding``, ``hostfile``: functions of their arguments), and has others start
the processes: torch's elastic agent, ssh, an MPI's launcher or Slurm's. Nothing of the device layer
imports it.
"""
