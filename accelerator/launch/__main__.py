"""``python -m accelerator.launch``, the same as ``accel-launch``."""

from accelerator.launch.command_line import run

if __name__ == "__main__":
    run()
