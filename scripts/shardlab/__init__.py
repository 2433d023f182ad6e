"""Shardlab's library. It keeps the source of each module that it imports: files can be edited while a process runs."""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

IMPORTED: dict[str, bytes] = {}
"""Module: source that this process runs; empty if the file was edited at that very moment."""


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType | None:
        source = self.get_data(self.path)
        code = super().get_code(fullname)
        IMPORTED[fullname] = source if self.get_data(self.path) == source else b""
        return code


class _Finder:
    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name.startswith(f"{__name__}.") else None
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


sys.meta_path.insert(0, _Finder)
