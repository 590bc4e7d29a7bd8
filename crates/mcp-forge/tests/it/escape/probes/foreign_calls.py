# E6: the calling conventions of 32 bits, where the numbers of the filter mean other calls.
import mmap


def run(code):
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    return ctypes.CFUNCTYPE(ctypes.c_int)(address)()


# mov eax, 20 (getpid); int 0x80; ret
attempt("int 0x80", lambda: in_child(lambda: run(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")) != ("signal", 31))
# mov eax, 0x40000027 (getpid of x32); syscall; ret
attempt("x32", lambda: in_child(lambda: run(b"\xb8\x27\x00\x00\x40\x0f\x05\xc3")) != ("signal", 31))
verdict()
