"""``python -m accelerator.launch``, the same as ``accel-launch``; ssh's driver runs it as a file."""

import os
import sys

if __name__ == "__main__" and not __package__:
    _HERE = os.path.dirname(os.path.abspath(__file__))
    if sys.path and sys.path[0] == _HERE:
        del sys.path[0]  # the launcher's modules must not be importable by their short names
    sys.path.append(os.path.dirname(os.path.dirname(_HERE)))  # last: an installed package is found before it

from accelerator.launch.command_line import run

if __name__ == "__main__":
    run()
