import importlib.metadata
import os
import platform

{
    "python": {
        "version": platform.python_version(),
        "implementation": platform.python_implementation(),
    },
    "packages": dict(
        sorted(
            (d.metadata["Name"], d.version)
            for d in importlib.metadata.distributions()
            if d.metadata["Name"] and d.version
        )
    ),
    "system": {
        "os": platform.system(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "cpus": len(os.sched_getaffinity(0)),
    },
}
