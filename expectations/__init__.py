"""Great Expectations: the checkpoint mechanics and one suite file per pipeline."""

import sys
from importlib.util import LazyLoader, find_spec, module_from_spec


def _import_when_used(name: str) -> None:
    """Let a package's module be imported by its first use, not by those that import it."""
    spec = find_spec(name)
    if name in sys.modules or spec is None or spec.loader is None:
        return
    spec.loader = LazyLoader(spec.loader)
    sys.modules[name] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    # Otherwise `from parent import child` asks the module whether it is complete, which uses it.
    parent, _, child = name.rpartition(".")
    setattr(sys.modules[parent], child, module)


# A sixth of what Great Expectations takes to import, for three of its expectations that compare distributions.
_import_when_used("scipy.stats")
