"""The launcher, ``accel-launch`` = ``python -m accelerator.launch``: ranks bound to cores, on one machine or many.

``topology``, ``binding``, ``hosts`` and ``plan`` are functions of their arguments. Torch's elastic agent, ssh, mpirun
or srun starts the processes.
"""
