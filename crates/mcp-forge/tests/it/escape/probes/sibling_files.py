# Files: two that live at the same time have each their own /tmp, /workspace and /dev/shm.
PLACES = ("/tmp", "/workspace", "/dev/shm")


def plant():
    for place in PLACES:
        with open(f"{place}/of-the-first", "w") as file:
            file.write("untouched")
    return {}


def reach(other):
    for place in PLACES:
        attempt(f"sees in {place}", lambda: os.listdir(place))
        attempt(f"opens in {place}", lambda: open(f"{place}/of-the-first").read())
        with open(f"{place}/of-the-second", "w") as file:
            file.write("here")


def notice():
    for place in PLACES:
        attempt(f"seen in {place}", lambda: os.path.exists(f"{place}/of-the-second"))
        attempt(f"changed in {place}", lambda: open(f"{place}/of-the-first").read() != "untouched")
