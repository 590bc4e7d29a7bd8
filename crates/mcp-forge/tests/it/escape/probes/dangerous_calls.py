# E4: calls that kernel bugs and escapes were made of. Their arguments are such that success harms
# nobody; any answer but "no such call" and "not permitted" shows that the kernel looked at them.
buffer = ctypes.create_string_buffer(4096)
CALLS = {
    "bpf": (0, 0, 0), "perf_event_open": (0, 0, -1, -1, 0), "keyctl": (0, -3, 1), "add_key": (b"user", b"x", b"y", 1, -3),
    "request_key": (b"user", b"x", 0, -3), "userfaultfd": (1,), "io_uring_setup": (1, buffer), "kexec_load": (0, 0, 0, 0),
    "init_module": (0, 0, b""), "finit_module": (-1, b"", 0), "process_vm_readv": (os.getpid(), 0, 0, 0, 0, 0),
    "process_vm_writev": (os.getpid(), 0, 0, 0, 0, 0), "pidfd_getfd": (-1, 0, 0), "open_by_handle_at": (-1, buffer, 0),
    "name_to_handle_at": (-100, b"/", buffer, buffer, 0), "fanotify_init": (0, 0), "quotactl": (0, 0, 0, 0),
    "swapon": (b"/nonexistent", 0), "reboot": (0, 0, 0, 0), "acct": (b"/nonexistent",), "syslog": (10, 0, 0), "iopl": (0,),
    "modify_ldt": (0, buffer, 16), "personality": (0x0040000,), "memfd_secret": (0,), "vmsplice": (-1, 0, 0, 0),
    "splice": (-1, 0, -1, 0, 0, 0), "tee": (-1, -1, 0, 0), "kcmp": (os.getpid(), os.getpid(), 1, 0, 0),
    "seccomp": (2, 0, buffer), "ptrace": (0, 0, 0, 0), "shmget": (0, 4096, 0o1600), "msgget": (0, 0o1600), "mq_open": (b"x", 0, 0, 0),
    "settimeofday": (0, 0), "sethostname": (b"x", -1), "process_madvise": (-1, 0, 0, 0, 0), "landlock_create_ruleset": (0, 0, 1),
    "swapon ": (0, 0),
}
for name, arguments in CALLS.items():
    def reached():
        result = syscall(name.strip(), *arguments)
        tried[f"{name} gave"] = result if result >= 0 else errno.errorcode.get(-result, result)
        return result not in (-errno.ENOSYS, -errno.EPERM)

    attempt(name, lambda: in_child(lambda: reached()))
verdict()
