"""From a builder class to its recipe: the values of its methods, checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from op_builder.recipe import Recipe, text_list

if TYPE_CHECKING:
    from typing import ClassVar, Protocol

    from op_builder.plan import Binding

    class Author(Protocol):
        """The methods of a builder that give its recipe; :class:`op_builder.builder.base.OpBuilder` documents them."""

        BINDING: ClassVar[Binding]
        name: str

        def absolute_name(self) -> str: ...
        def sources(self) -> list[str]: ...
        def source_texts(self) -> dict[str, str]: ...
        def source_args(self, source: str) -> list[str]: ...
        def include_paths(self) -> list[str]: ...
        def cxx_args(self) -> list[str]: ...
        def nvcc_args(self) -> list[str]: ...
        def extra_ldflags(self) -> list[str]: ...
        def libraries_args(self) -> list[str]: ...
        def cuda_archs(self) -> list[str]: ...


_SEPARATE_VALUE = ("-I", "-isystem", "-iquote", "-idirafter", "-include", "-D", "-U", "-L", "-l", "-gencode")


def recipe_of(author: Author) -> Recipe:
    """The recipe that an author's methods give.

    Raises:
        ArgumentError: a method returns a value of a wrong type.
    """
    owner = type(author)
    where = f"{owner.__qualname__}."
    names = text_list(author.sources(), f"{where}sources()")
    texts = dict(author.source_texts())
    recipe = Recipe(
        op=author.name,
        binding=author.BINDING,
        sources=tuple(names),
        texts=texts,
        source_flags={
            name: tuple(flag_list(author.source_args(name), f"{where}source_args({name!r})"))
            for name in (*names, *texts)
        },
        module_name=author.absolute_name().rpartition(".")[2],
        owner=owner,
    )
    if recipe.uses_cuda:
        nvcc_flags = tuple(flag_list(author.nvcc_args(), f"{where}nvcc_args()"))
        recipe = recipe._replace(cuda_archs=tuple(author.cuda_archs()), nvcc_flags=nvcc_flags)
    link_flags = flag_list(author.extra_ldflags(), f"{where}extra_ldflags()")
    libraries = flag_list(author.libraries_args(), f"{where}libraries_args()")
    return recipe._replace(
        cxx_flags=tuple(flag_list(author.cxx_args(), f"{where}cxx_args()")),
        include_dirs=tuple(text_list(author.include_paths(), f"{where}include_paths()")),
        link_flags=(*link_flags, *map(_library_flag, libraries)),
    )


def _library_flag(entry: str) -> str:
    """``-lname`` for a bare library name; flags and paths are unchanged."""
    return entry if entry.startswith("-") or "/" in entry else f"-l{entry}"


def flag_list(items: object, where: str) -> list[str]:
    """:func:`text_list`, where a string with several flags is split, as torch's extensions do."""
    return [word for text in text_list(items, where) for word in _words(text)]


def _words(flag: str) -> list[str]:
    words = flag.split()
    is_several = len(words) > 1 and (words[0] in _SEPARATE_VALUE or any(word.startswith("-") for word in words[1:]))
    # With quotes, the blanks are part of a value: -DNAME="a -b".
    return words if is_several and not {'"', "'"} & set(flag) else [flag]
