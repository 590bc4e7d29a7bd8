//! The variables that programs find in every sandbox, whatever the engine.

/// Variables of every sandbox. One thread for numeric libraries: more than the CPU share are
/// slower, and OpenBLAS breaks when it cannot start them.
pub(super) const VARIABLES: [(&str, &str); 15] = [
    ("HOME", "/workspace"),
    ("USER", "sandbox"),
    ("LOGNAME", "sandbox"),
    ("SHELL", "/bin/sh"),
    ("LANG", "C.UTF-8"),
    ("TZ", "UTC"),
    ("TERM", "dumb"),
    ("TMPDIR", "/tmp"),
    ("XDG_CACHE_HOME", "/tmp/.cache"),
    ("XDG_CONFIG_HOME", "/tmp/.config"),
    ("MPLBACKEND", "Agg"),
    ("MPLCONFIGDIR", "/tmp/.config/matplotlib"),
    ("OMP_NUM_THREADS", "1"),
    ("OPENBLAS_NUM_THREADS", "1"),
    ("MKL_NUM_THREADS", "1"),
];
