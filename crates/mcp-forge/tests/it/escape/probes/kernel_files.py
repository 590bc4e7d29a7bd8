# D5: facts and switches of the whole host that /proc holds beside processes.
NAMES = """kcore kmsg keys timer_list sched_debug sysrq-trigger kallsyms config.gz interrupts bus irq fs acpi scsi
    meminfo loadavg stat cpuinfo version cmdline modules partitions diskstats vmstat slabinfo latency_stats
    key-users crypto iomem ioports driver tty uptime swaps zoneinfo pagetypeinfo buddyinfo vmallocinfo sys""".split()
for name in NAMES:
    attempt(name, lambda: os.lstat(f"/proc/{name}") and "there")
    attempt(f"read {name}", lambda: open(f"/proc/{name}", "rb", buffering=0).read(16) and "read")
attempt("write sysrq-trigger", lambda: os.close(os.open("/proc/sysrq-trigger", os.O_WRONLY)) or "opened")
verdict()
