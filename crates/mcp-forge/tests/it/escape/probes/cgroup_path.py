# D4: the path of the own cgroup, which would name the sandbox and the server's service.
text = open("/proc/self/cgroup").read()
tried["text"] = text
attempt("tells more than /", lambda: [line for line in text.splitlines() if not line.endswith(":/")])
attempt("names the sandbox", lambda: "mcp-forge" in text)
verdict()
