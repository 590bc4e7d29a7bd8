# What is installed can be listed, and what is not says so.
from importlib import metadata

names = [distribution.metadata["Name"] for distribution in metadata.distributions()]
try:
    metadata.version("no-such-package")
    missing = False
except metadata.PackageNotFoundError:
    missing = True
missing and isinstance(names, list)
