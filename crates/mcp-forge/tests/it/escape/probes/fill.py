# B3, B4, C1: fills every directory that can be written, in bytes and in empty files.
def fill(path):
    total = 0
    with open(f"{path}/fill", "wb", buffering=0) as file:
        try:
            while total < 3 * HOST["tmpfs"][path]:
                total += file.write(b"x" * (256 << 10))
        except OSError as problem:
            tried[f"{path} full"] = os.strerror(problem.errno)
    os.unlink(f"{path}/fill")
    return total


def litter(path, most):
    made = 0
    os.mkdir(f"{path}/litter")
    try:
        for made in range(most):
            os.close(os.open(f"{path}/litter/{made}", os.O_CREAT))
    except OSError as problem:
        tried[f"{path} out of inodes"] = os.strerror(problem.errno)
    for name in range(made):
        os.unlink(f"{path}/litter/{name}")
    os.rmdir(f"{path}/litter")
    return made


for path, bound in HOST["tmpfs"].items():
    attempt(f"bytes in {path}", lambda: fill(path) > bound + 4096)
    attempt(f"files in {path}", lambda: litter(path, 2 * max(bound // 4096, 1024)) > max(bound // 4096, 1024))
# Full is not broken: the interpreter still has room to work.
held = [open(f"{path}/rest", "wb", buffering=0) for path in ("/tmp",)]
try:
    while held[0].write(b"x" * 4096):
        pass
except OSError:
    pass
assert len(bytearray(b"y" * (4 << 20))) == 4 << 20
verdict()
