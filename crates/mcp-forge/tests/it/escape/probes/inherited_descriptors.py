# C13: what is open at the start, and whether any of it leads out.
# A name in /proc/self/fd is enough to look at; opening through it is the attack.
names = {}
for number in range(4096):
    try:
        os.fstat(number)
        names[number] = os.readlink(f"/proc/self/fd/{number}")
    except OSError:
        pass
for number, name in names.items():
    attempt(f"descriptor {number}", lambda: number > 3 and name)
    attempt(f"out through {number}", lambda: os.read(
        os.open(HOST["canary"].lstrip("/"), os.O_RDONLY, dir_fd=number), 100))
    attempt(f"up through {number}", lambda: os.listdir(f"/proc/self/fd/{number}/.."))
tried["open"] = str(names)
verdict()
