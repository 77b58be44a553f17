"""in place of the cached binary is a link to a file of another user"""

import os
import shutil

from benchmarks.torture.bench import OTHER_UID, Bench, NotApplicable, Outcome


def run(bench: Bench) -> Outcome:
    if os.geteuid() != 0:
        raise NotApplicable("needs root, to make a file of another user")
    bench.prepare()
    targets = []
    for number, binary in enumerate(bench.binaries()):
        planted = bench.root / f"planted-{number}{binary.suffix}"
        shutil.move(binary, planted)
        os.chown(planted, OTHER_UID, OTHER_UID)
        binary.symlink_to(planted)
        targets.append(planted)
    clear = ("owner", "owned by", "not trusted", "link")
    return bench.load_untrusted(targets, clear, "it followed the link")
