"""Why an op is not in the cache: what differs from the nearest entry."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from op_builder import paths
from op_builder.cache.key import PlanKey, Roots
from op_builder.cache.store import Entry
from op_builder.system.records import Memo

_FLAG_PARTS = ("c++ flags", "nvcc flags", "link flags")


def nearest_miss(entries: Iterable[Entry], key: PlanKey, roots: Roots, memo: Memo) -> tuple[Entry | None, list[str]]:
    """The entry with the fewest differences from ``key`` and the current headers: ``csrc/common/x.h changed``."""
    # Of equally near ones, the user most likely means the latest.
    latest_first = sorted(entries, key=lambda entry: entry.manifest.built_at, reverse=True)
    found = [(entry, _differences(entry, key, roots, memo)) for entry in latest_first]
    return min(found, key=lambda pair: len(pair[1]), default=(None, []))


def _differences(entry: Entry, key: PlanKey, roots: Roots, memo: Memo) -> list[str]:
    """One line for each part of the key and each header that differs from the entry's."""
    then, system = entry.manifest.key_parts, entry.manifest.system_headers
    lines = _source_lines(then, key)
    for name in sorted(set(then) | set(key.parts)):
        before, now = then.get(name), key.parts.get(name)
        if name.startswith("source ") or before == now:
            continue
        if name in _FLAG_PARTS:
            lines.append(f"{name}: {_list_changes(json.loads(before or '[]'), json.loads(now or '[]'))}")
        else:
            lines.append(f"{name}: {before or 'none'} -> {now or 'none'}")
    unlisted = entry.manifest.key.unlisted
    lines += [f"no tool lists the inputs of {what}" for what in unlisted]
    changed = [header for header in entry.manifest.headers if not header.is_unchanged(roots)]
    places = [f"{header.root}/{header.path}" for header in changed if header.path not in unlisted]
    lines += [f"{_name(place, roots)} {'changed' if _exists(place, roots) else 'was removed'}" for place in places]
    lines += [f"{_name(place, roots)} is new" for place in entry.manifest.absent if _exists(place, roots)]
    if not system.is_unchanged(memo):
        lines.append(f"one of {len(system.paths)} system headers changed")
    return lines


def _source_lines(then: dict[str, str], key: PlanKey) -> list[str]:
    before, now = _sources(then), _sources(dict(key.parts))
    kept = [label for label in before if label in now and before[label] != now[label]]
    lines = [_source_line(label, before[label], now[label]) for label in kept]
    lines += [f"{label} is new" for label in now if label not in before]
    lines += [f"{label} is no longer compiled" for label in before if label not in now]
    if not lines and list(before) != list(now):
        lines.append("the order of the sources changed")
    return lines


def _source_line(label: str, then: str, now: str) -> str:
    """``then`` and ``now``: a content hash and flags, as :func:`.key.plan_parts` joins them."""
    (content_then, *flags_then), (content_now, *flags_now) = then.split(" "), now.split(" ")
    if content_then != content_now:
        return f"{label} changed"
    return f"flags of {label}: {_list_changes(flags_then, flags_now)}"


def _sources(parts: dict[str, str]) -> dict[str, str]:
    """{label: content hash and flags}, in the order of compiling; equal labels are numbered."""
    numbered = [(name.split(" ", 2), digest) for name, digest in parts.items() if name.startswith("source ")]
    found: dict[str, str] = {}
    for (_, _, label), digest in sorted(numbered, key=lambda item: int(item[0][1])):
        same = sum(name.partition(" (")[0] == label for name in found)
        found[f"{label} ({same + 1})" if same else label] = digest
    return found


def _list_changes(before: Sequence[str], after: Sequence[str]) -> str:
    removed = [f"-{flag!r}" for flag in before if flag not in after]
    added = [f"+{flag!r}" for flag in after if flag not in before]
    return ", ".join([*removed, *added]) or "their order changed"


def _exists(place: str, roots: Roots) -> bool:
    return os.path.exists(roots.locate_name(place))


def _name(place: str, roots: Roots) -> str:
    """A file's path below its root; relative to this project's root if it is one of its files."""
    located = Path(roots.locate_name(place))
    return paths.label(located) if paths.is_native(located) else place.partition("/")[2]
