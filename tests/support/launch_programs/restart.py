"""Fails in the first attempt, with a child left; succeeds in the second if that child has ended."""

import os
import subprocess
import sys
from pathlib import Path

import torch.distributed as dist

from tests.support.waiting import has_ended

dist.init_process_group("gloo")
dist.barrier()
child = Path("child")
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if dist.get_rank() == 0:
        child.write_text(str(subprocess.Popen(["sleep", "600"], start_new_session=True).pid))
    dist.barrier()
    sys.exit(3)
dist.destroy_process_group()
sys.exit(0 if has_ended(int(child.read_text())) else 5)
