"""Replaces packages that MLServer imports but does not use in the tests: Kafka, tracing, pandas, and a client for batches.

They are not installed, because they need more than 300 MB. Each attribute of such a package is an empty class.
`scripts/fetch-mlserver` copies this file, with a file `.pth` that imports it when Python starts.
"""

import importlib.abc
import importlib.machinery
import sys

NAMES = {"aiokafka", "opentelemetry", "pandas", "tritonclient"}


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] in NAMES else None

    def exec_module(self, module):
        def attribute(name):
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (), {})

        module.__getattr__ = attribute


sys.meta_path.append(Finder())
