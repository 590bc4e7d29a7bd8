# D3: what the mount table tells about the host: paths, names of users, devices' mount points.
text = open("/proc/self/mountinfo").read()
tried["mounts"] = str(len(text.splitlines()))
for word in HOST["private_words"]:
    attempt(f"finds {word}", lambda: word in text)
for file in ("/proc/self/mounts", "/proc/self/mountstats", "/proc/mounts", "/etc/mtab"):
    attempt(file, lambda: [word for word in HOST["private_words"] if word in open(file).read()])
verdict()
