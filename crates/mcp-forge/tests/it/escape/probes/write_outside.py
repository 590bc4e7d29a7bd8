# C15: writes, makes, renames and deletes where nothing may be written.
import site
import sysconfig

places = [
    "/", "/etc", "/usr", "/usr/lib", "/usr/local/lib", "/opt", "/opt/mcp-forge", "/opt/python", "/bin/..", "/dev",
    sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), sys.prefix, "/opt/environment/lib",
    *site.getsitepackages(),
]
for place in places:
    for name in ("canary", "sitecustomize.py", "usercustomize.py", "evil.pth"):
        attempt(f"make {place}/{name}", lambda: open(f"{place}/{name}", "x").close() or "made")
    attempt(f"mkdir {place}/new", lambda: os.mkdir(f"{place}/new") or "made")
    attempt(f"link {place}/new-link", lambda: os.symlink("/tmp", f"{place}/new-link") or "made")
    attempt(f"touch {place}", lambda: os.utime(place) or "touched")
    attempt(f"chmod {place}", lambda: os.chmod(place, 0o777) or "changed")
for file in ("/etc/hosts", "/etc/passwd", "/etc/resolv.conf", os.__file__, sys.executable, "/opt/mcp-forge/mcp_forge_runner/__init__.py"):
    attempt(f"append {file}", lambda: open(file, "a").close() or "opened")
    attempt(f"truncate {file}", lambda: os.truncate(file, os.stat(file).st_size) or "truncated")
    attempt(f"hard link {file}", lambda: os.link(file, "/tmp/hard") or "linked")
attempt("remount", lambda: syscall("mount", 0, b"/", 0, 0x20 | 0x1000, 0) == 0)
verdict()
