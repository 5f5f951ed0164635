"""The encodings, one file per idea. Importing this package registers them all."""

from importlib import import_module
from pkgutil import iter_modules

# in the order of the tables that list them
_ORDER = ("absolute", "rotary", "randomized", "distance", "recurrent", "gated", "cope", "dape", "tape")

for _name in sorted((module.name for module in iter_modules(__path__)), key=lambda name: (*_ORDER, name).index(name)):
    import_module(f"{__name__}.{_name}")
