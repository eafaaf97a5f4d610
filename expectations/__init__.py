"""Great Expectations: the checkpoint mechanics and one suite file per pipeline."""

import sys
from importlib.util import LazyLoader, find_spec, module_from_spec


def _import_when_used(name: str) -> None:
    """Import a package's module at its first use, not when it is imported."""
    spec = find_spec(name)
    if name in sys.modules or spec is None or spec.loader is None:
        return
    spec.loader = LazyLoader(spec.loader)
    sys.modules[name] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    # Otherwise `from parent import child` checks whether the module is complete, which counts as a use.
    parent, _, child = name.rpartition(".")
    setattr(sys.modules[parent], child, module)


# It takes a sixth of Great Expectations' import time, for three expectations that compare distributions.
_import_when_used("scipy.stats")
