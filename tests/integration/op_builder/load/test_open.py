"""From a binary to an object, once per process."""

from __future__ import annotations

import shutil
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from op_builder import Binding, env
from op_builder.cache.store import Cache, Entry
from op_builder.errors import IncompatibleOpError, LoadError
from op_builder.load.open import open_entry
from op_builder.system.outcomes import CheckOutcome, Failed, Rejection
from tests.support.builds import built_by_command, cached_or_built, row_of
from tests.support.processes import fork, wait_for
from tests.support.small_ops import STABLE_SOURCE, SmallBuilder, added, copied, make_small, replace_content


@pytest.fixture
def small(built: Path, tmp_path: Path) -> SmallBuilder:
    """A copy of ``small`` with its filled cache."""
    return SmallBuilder(*copied(built, tmp_path))


# One object per build -----------------------------------------------------------------------


def test_threads_that_load_at_once_compile_once_and_get_one_object(tmp_path: Path) -> None:
    small = make_small(tmp_path / "op", Cache(tmp_path / "cache"), amount="3.0f")
    start = threading.Barrier(6)

    def load(_: int) -> object:
        builder = SmallBuilder(small.directory, Cache(small.cache.root))
        start.wait(600)
        return builder.load()

    with ThreadPoolExecutor(6) as threads:
        assert len(set(map(id, threads.map(load, range(6))))) == 1
    assert len(small.cache.entries()) == 1


def test_a_forked_child_uses_the_loaded_op_and_loads_others(small: SmallBuilder, tmp_path: Path) -> None:
    op = small.load()
    other = make_small(tmp_path / "other", small.cache, amount="7.0f")

    def use() -> None:
        assert (added(op), added(small.load()), added(other.load())) == (1.0, 1.0, 7.0)

    assert wait_for([fork(use)]) == [0]
    assert added(other.load()) == 7.0, "what the child built is a hit here"


def test_a_child_forked_while_another_thread_loads_can_load(small: SmallBuilder) -> None:
    small.load()
    is_loading, release = threading.Event(), threading.Event()

    class Slow(SmallBuilder):
        def bind(self, opened: Any) -> Any:
            is_loading.set()
            release.wait(600)
            return opened

    thread = threading.Thread(target=Slow(small.directory, small.cache).load)
    thread.start()
    assert is_loading.wait(600)
    status = wait_for([fork(small.load)])
    release.set()
    thread.join()
    assert status == [0]


# Binding styles -----------------------------------------------------------------------------


def test_a_stable_op_has_a_namespace_with_the_hash_of_the_build(small: SmallBuilder) -> None:
    assert small.BINDING is Binding.STABLE
    op = small.load()
    (entry,) = small.cache.entries()
    assert op is getattr(torch.ops, f"accel_small_{entry.manifest.key.digest}")
    assert (entry.manifest.kind, entry.manifest.namespaces) == ("accel", ())
    assert entry.manifest.key_parts["binding"] == "stable"
    assert "python abi" not in entry.manifest.key_parts, "one binary for every Python"


PART = """
#include <torch/csrc/stable/library.h>
static void work() {}
OPENS(NAMESPACE, m) { m.def("NAME() -> ()"); }
STABLE_TORCH_LIBRARY_IMPL(NAMESPACE, CompositeExplicitAutograd, m) { m.impl("NAME", TORCH_BOX(&work)); }
"""
OWNED, SHARED = "STABLE_TORCH_LIBRARY", "STABLE_TORCH_LIBRARY_FRAGMENT"


def part(directory: Path, cache: Cache, opens: str, namespace: str, name: str) -> SmallBuilder:
    """An op of its own library, which opens a namespace for itself or to share it."""
    source = PART.replace("OPENS", opens).replace("NAMESPACE", namespace).replace("NAME", name)
    return make_small(directory, cache, source=source)


def test_libraries_may_extend_one_namespace(tmp_path: Path, cache: Cache) -> None:
    part(tmp_path / "one", cache, SHARED, "loader_shared", "first").load().first()
    part(tmp_path / "two", cache, OWNED, "loader_shared", "second").load().second()
    assert sorted(entry.manifest.defined_namespaces for entry in cache.entries()) == [(), ("loader_shared",)]


@pytest.mark.parametrize(
    ("first", "second", "name", "message"),
    [
        pytest.param(SHARED, SHARED, "first", "defines {}::first for torch, which already exists", id="one name"),
        pytest.param(OWNED, OWNED, "second", "defines the torch namespace {}, which already exists", id="two owners"),
    ],
)
def test_a_library_that_would_make_torch_end_the_process_is_refused(
    tmp_path: Path, cache: Cache, first: str, second: str, name: str, message: str
) -> None:
    namespace = f"clash_{name}"
    op = part(tmp_path / "one", cache, first, namespace, "first").load()
    with pytest.raises(LoadError, match=message.format(namespace)) as caught:
        part(tmp_path / "two", cache, second, namespace, name).load()
    assert "Restart Python" in caught.value.remedy
    op.first()


def test_a_binary_that_cannot_be_opened_is_a_load_error_with_a_remedy(small: SmallBuilder, tmp_path: Path) -> None:
    (entry,) = small.cache.entries()
    shutil.copytree(entry.directory, tmp_path / "torn")
    torn = Entry(tmp_path / "torn", entry.manifest._replace(op="torn"))
    replace_content(torn.artifact, b"\x7fELF, and then nothing")
    with pytest.raises(LoadError, match="cannot be opened") as caught:
        open_entry(torn, small.spec(), small.cache)
    assert caught.value.remedy


# Errors of ops ------------------------------------------------------------------------------

THROWING = """
#include <new>
#include <stdexcept>
#include "bindings/stable_library.h"

static void fail(int64_t kind) {
  if (kind == 0) throw std::invalid_argument("x: too short");
  if (kind == 1) throw std::bad_alloc();
  if (kind == 2) throw std::out_of_range("no such row");
  if (kind == 3) throw std::overflow_error("too large");
  throw std::runtime_error("the device failed");
}
static void define(accel::Library& m) { m.def("fail(int kind) -> ()"); }
static void implement(accel::Library& m) { m.impl("fail", TORCH_BOX(&fail)); }
ACCEL_OP_LIBRARY({nullptr, define}, {"CompositeExplicitAutograd", implement})
"""


def test_the_class_of_an_ops_error_does_not_depend_on_torch(tmp_path: Path, small: SmallBuilder) -> None:
    op = make_small(tmp_path / "throwing", small.cache, source=THROWING).load()
    expected = [
        (ValueError, "x: too short"),
        (MemoryError, "std::bad_alloc"),
        (IndexError, "no such row"),
        (OverflowError, "too large"),
        (RuntimeError, "the device failed"),
    ]
    for kind, (expected_class, message) in enumerate(expected):
        with pytest.raises(expected_class) as caught:
            op.fail(kind)
        assert (type(caught.value), str(caught.value)) == (expected_class, message)
    # An overload is torch's own: its class depends on torch, the text names the class.
    with pytest.raises((ValueError, RuntimeError), match=r"^ValueError: x: too short$"):
        op.fail.default(0)


def test_an_op_may_load_another_while_it_is_bound(small: SmallBuilder, tmp_path: Path) -> None:
    inner = make_small(tmp_path / "inner", small.cache, amount="2.0f")

    class Outer(SmallBuilder):
        def bind(self, opened: Any) -> Any:
            return opened, inner.load()

    inner.load()
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(Outer(small.directory, small.cache).load()), daemon=True)
    thread.start()
    thread.join(600)
    assert not thread.is_alive(), "the load waits for its own lock"
    assert [added(op) for op in found[0]] == [1.0, 2.0]


def test_a_class_that_is_defined_again_gets_its_own_front_end(small: SmallBuilder) -> None:
    for expected in ("first", None, "third"):  # None is a front end, too

        class Cell(SmallBuilder):
            def bind(self, opened: Any, made: str | None = expected) -> Any:
                return opened and made

        with env.scope(ACCEL_JIT="0"):
            assert Cell(small.directory, small.cache).load() == expected


def test_an_authors_check_may_wait_for_a_thread_that_loads_the_same_op(tmp_path: Path) -> None:
    small = make_small(tmp_path / "op", Cache(tmp_path / "cache"), amount="5.0f")
    other_loads = threading.Barrier(2)

    class Waits(SmallBuilder):
        def is_compatible(self, verbose: bool = False) -> bool:
            other_loads.wait(600)  # as for a module that the other thread imports
            return super().is_compatible(verbose)

    with ThreadPoolExecutor(2) as threads:
        load = [threads.submit(Waits(small.directory, Cache(small.cache.root)).load) for _ in range(2)]
        assert len({id(each.result(600)) for each in load}) == 1


def test_an_authors_method_may_wait_for_a_thread_that_uses_another_op(tmp_path: Path) -> None:
    is_planning, other_is_done = threading.Event(), threading.Event()
    small = make_small(tmp_path / "op", Cache(tmp_path / "cache"))

    class Waits(SmallBuilder):
        def sources(self) -> list[str]:
            is_planning.set()
            assert other_is_done.wait(600)  # as for a module that the other thread imports
            return super().sources()

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(Waits(small.directory, small.cache).is_compatible)
        assert is_planning.wait(600)
        assert small.is_compatible()
        other_is_done.set()
        assert waiting.result(600)


def test_when_opening_fails_the_waiting_threads_try_one_after_the_other(small: SmallBuilder) -> None:
    (entry,) = small.cache.entries()
    opening: list[int] = []
    numbers: list[int] = []

    def fail(_: Cache) -> None:
        opening.append(1)
        numbers.append(len(opening))
        time.sleep(0.05)
        opening.pop()
        raise LoadError("It has no device.", "Plug one in.")

    failing = entry._replace(manifest=entry.manifest._replace(op="failing"))  # which no other test has opened
    spec = small.spec()._replace(open_libraries=fail)
    with ThreadPoolExecutor(4) as threads:
        loads = [threads.submit(open_entry, failing, spec, small.cache) for _ in range(4)]
        assert all(isinstance(each.exception(600), LoadError) for each in loads)
    assert numbers == [1] * 4


@pytest.mark.slow  # the second thread waits for ten seconds
def test_a_thread_that_waited_too_long_does_not_refuse_the_library_of_the_first(
    tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = SmallBuilder(tmp_path, cache)
    monkeypatch.setattr(SmallBuilder, "BINDING", Binding.TORCH)
    name = f"slow_{uuid.uuid4().hex}"
    source = '#include <torch/library.h>\nTORCH_LIBRARY(NAME, m) { m.def("twice(Tensor x) -> Tensor"); }\n'
    (tmp_path / "small.cpp").write_text(source.replace("NAME", name))
    entry, both = cached_or_built(builder), threading.Barrier(2)
    spec = builder.spec()._replace(open_libraries=lambda _: both.wait(600))
    with ThreadPoolExecutor(2) as threads:
        loads = [threads.submit(open_entry, entry, spec, cache) for _ in range(2)]
        assert len({id(each.result(600)) for each in loads}) == 1


# Calls load() of a module, which the process that tries the library does not have.
INITIALIZER = """
extern "C" int PyGILState_Ensure();
extern "C" void PyGILState_Release(int);
extern "C" int PyRun_SimpleString(const char*);
static const int called = [] {
  const int state = PyGILState_Ensure();
  const int code = PyRun_SimpleString("import sys; m = sys.modules.get('loaded_by_an_initializer'); m and m.load()");
  PyGILState_Release(state);
  return code;
}();
"""


def test_an_op_that_a_librarys_initializer_loads_is_refused(
    tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    outer = make_small(tmp_path / "outer", cache, source=STABLE_SOURCE + INITIALIZER)
    inner, refused = make_small(tmp_path / "inner", cache), []
    cached_or_built(inner)

    def load() -> None:
        with pytest.raises(LoadError, match="opens another"):
            inner.load()
        refused.append(inner)

    monkeypatch.setitem(sys.modules, "loaded_by_an_initializer", SimpleNamespace(load=load))
    assert added(outer.load()) == 1.0
    assert refused == [inner]
    assert added(inner.load()) == 1.0


def test_an_authors_rejection_prevents_a_build_and_no_existing_binary(tmp_path: Path) -> None:
    small = make_small(tmp_path / "op", Cache(tmp_path / "cache"), amount="7.0f")

    class Rejects(SmallBuilder):
        def is_compatible(self, verbose: bool = False) -> bool:  # noqa: ARG002
            self.warning("It needs libacme")
            return False

    rejecting = Rejects(small.directory, small.cache)
    with pytest.raises(IncompatibleOpError, match="libacme"):
        rejecting.load()
    (result,) = built_by_command([rejecting])
    row = row_of(rejecting)
    assert (result.status, row.compatible) == ("skipped", False)
    assert "libacme" in result.message
    assert "libacme" in row.reason
    small.load()
    assert row_of(rejecting).compatible
    assert added(rejecting.load()) == 7.0


def test_the_opinion_of_one_author_does_not_hide_that_of_another_op(tmp_path: Path) -> None:
    small = make_small(tmp_path / "op", Cache(tmp_path / "cache"))

    class Never(SmallBuilder):
        def load_checks(self) -> list[CheckOutcome]:
            return [Failed("device", Rejection("There is none.", "Buy one."))]

    class Asks(SmallBuilder):
        def is_compatible(self, verbose: bool = False) -> bool:
            return Never(self.directory, self.cache).is_compatible(verbose)

    assert Asks(small.directory, small.cache).own_rejection() is not None
