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


def compiled_locale(charmap: str, directory: Path) -> dict[str, str]:
    """The variables of a Chinese locale in an old encoding."""
    language = {"GBK": "zh_CN"}[charmap]
    localedef = shutil.which("localedef")
    if localedef is None or not Path("/usr/share/i18n/charmaps").is_dir():
        pytest.skip("no localedef, or no charmaps")
    name = f"{language}.{charmap}"
    subprocess.run([localedef, "-c", "-i", language, "-f", charmap, str(directory / name)], capture_output=True)
    return {"LOCPATH": str(directory), "LC_ALL": name}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("locale", "encoding"),
    [("C.UTF-8", "utf-8"), ("GBK", "gbk")],
)
def test_a_changed_header_is_noticed(tmp_path: Path, locale: str, encoding: str) -> None:
    variables = {"LC_ALL": locale} if locale.startswith("C") else compiled_locale(locale, tmp_path)
    environment = {**os.environ, **variables, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "utf8"}
    root = tmp_path / "root"
    root.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(root)], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split(maxsplit=1) == [encoding, "[]\n"]
