"""A changed header is noticed whatever its directory is called and whatever the locale is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.small_ops import STABLE_SOURCE
from tests.unit.op_builder.cache.test_depfiles import NAMES

# One op includes a header from each directory. It is built once; then each header in turn is edited and restored.
CHILD = f"""
import os, sys
from pathlib import Path
from op_builder.cache.store import Cache
from op_builder.load.resolver import Request
from tests.support.small_ops import SmallBuilder, make_small

class Builder(SmallBuilder):
    def include_paths(self):
        return [*super().include_paths(), *(name for number, name in enumerate(names) if number % 2)]

root = Path(sys.argv[1])
names = [os.fsdecode(b"%s/%s" % (os.fsencode(root), name)) for name in {NAMES!r}]
small = make_small(root / "op", Cache(root / "cache"), source={STABLE_SOURCE!r} + "".join(
    f'#include "v{{number}}.h"\\n' for number in range(len(names))
))
small.__class__ = Builder
headers = [os.path.join(name, f"v{{number}}.h") for number, name in enumerate(names)]
for name, header in zip(names, headers):
    os.makedirs(name)
    Path(header).write_text("// one")
small.flags += [f"-I{{name}}" for number, name in enumerate(names) if not number % 2]
small.load(verbose=False)
stale = []
for name, header in zip(names, headers):
    assert Request.of(small).find_cached()
    Path(header).write_text("// two")
    if Request.of(small).find_cached():
        stale.append(name)
    Path(header).write_text("// one")
print(sys.getfilesystemencoding(), ascii(stale))
"""


@pytest.mark.slow
def test_a_changed_header_is_noticed_in_a_locale_of_another_encoding(tmp_path: Path) -> None:
    localedef = shutil.which("localedef")
    if localedef is None or not Path("/usr/share/i18n/charmaps").is_dir():
        pytest.skip("no localedef, or no charmaps")
    command = [localedef, "-c", "-i", "zh_CN", "-f", "GBK", str(tmp_path / "zh_CN.GBK")]
    subprocess.run(command, capture_output=True, check=False)
    variables = {"LOCPATH": str(tmp_path), "LC_ALL": "zh_CN.GBK", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment = {**os.environ, **variables, "PYTHONIOENCODING": "utf8"}
    root = tmp_path / "root"
    root.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(root)], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split(maxsplit=1) == ["gbk", "[]\n"]
