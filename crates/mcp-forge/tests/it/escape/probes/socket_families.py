# E5: every family and kind of socket, also with bits that the kernel does not look at.
for family in range(51):
    if family == 1:
        continue
    for kind in (1, 2, 3, 4, 5):
        for high in (0, 1 << 32, 1 << 63):
            def make():
                number = ctypes.c_long(family | high) if high < 1 << 63 else ctypes.c_long((family | high) - (1 << 64))
                ctypes.set_errno(0)
                return libc.syscall(ctypes.c_long(41 if os.uname().machine == "x86_64" else 198), number, ctypes.c_long(kind), ctypes.c_long(0)) >= 0

            try:
                result = make()
            except Exception as problem:
                result = f"{problem}"
            if result:
                breaches.append(f"family {family} kind {kind} high {high}")
tried["families"] = "0 to 50, five kinds, three spellings"
import socket

attempt("the allowed family does not work", lambda: not socket.socketpair())
verdict()
