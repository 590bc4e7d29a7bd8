# Imports every module of a list, each on its own, and says what came of it.
import importlib, sys, warnings

warnings.simplefilter("ignore")
failed = {}
for name in MODULES:
    # What ends the interpreter is known by the last line.
    print(name, flush=True)
    try:
        importlib.import_module(name)
    except BaseException as error:
        failed[name] = f"{type(error).__name__}: {error}"[:500]
failed
