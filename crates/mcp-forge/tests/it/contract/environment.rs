//! What code finds around itself.

use super::case::{Case, Difference, case, run};

pub(super) const CASES: &[Case] = &[
    Case {
        differs: &[Difference {
            engine: "podman",
            without: None,
            what: "group 1000 is among the groups, too",
            reason: "the container service puts it there",
            expected: r#"completed
            result ["/workspace", [1000, 1000, 1000], [1000, 1000, 1000], [1000]]
            repr "['/workspace', (1000, 1000, 1000), (1000, 1000, 1000), [1000]]""#,
        }],
        ..case(
            "code runs in /workspace as user 1000 without groups",
            &[run("import os\n[os.getcwd(), os.getresuid(), os.getresgid(), os.getgroups()]")],
            r#"completed
            result ["/workspace", [1000, 1000, 1000], [1000, 1000, 1000], []]
            repr "['/workspace', (1000, 1000, 1000), (1000, 1000, 1000), []]""#,
        )
    },
    case(
        "the user has a name, a home and a shell",
        &[run("
            import getpass, os, pwd
            user = pwd.getpwuid(1000)
            [user.pw_name, user.pw_dir, user.pw_shell, getpass.getuser(), os.path.expanduser('~')]")],
        r#"completed
        result ["sandbox", "/workspace", "/bin/sh", "sandbox", "/workspace"]"#,
    ),
    case(
        "the arguments are those of an interactive interpreter",
        &[run("import sys\n[sys.argv, __name__, '__file__' in globals()]")],
        r#"completed
        result [[""], "__main__", false]"#,
    ),
    case(
        "the environment is its own, and the same everywhere",
        &[run("
            import os
            own = ('PATH', 'LD_LIBRARY_PATH', 'SSL_CERT_FILE')
            {name: os.environ[name] for name in sorted(os.environ) if name not in own}")],
        r#"completed
        result {"HOME": "/workspace", "LANG": "C.UTF-8", "LOGNAME": "sandbox", "MKL_NUM_THREADS": "1", "MPLBACKEND": "Agg", "MPLCONFIGDIR": "/tmp/.config/matplotlib", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "SHELL": "/bin/sh", "TERM": "dumb", "TMPDIR": "/tmp", "TZ": "UTC", "USER": "sandbox", "XDG_CACHE_HOME": "/tmp/.cache", "XDG_CONFIG_HOME": "/tmp/.config"}"#,
    ),
    case(
        "programs are found on PATH",
        &[run("import shutil, subprocess\n[bool(shutil.which(name)) for name in ('sh', 'ls', 'cat', 'env')] + [subprocess.run(['env', 'true']).returncode]")],
        "completed\nresult [true, true, true, true, 0]",
    ),
    case(
        "Python is isolated, in UTF-8 mode and writes no bytecode",
        &[run("import sys\nflags = sys.flags\n[flags.isolated, flags.utf8_mode, flags.dont_write_bytecode, flags.no_user_site, flags.hash_randomization, flags.optimize]")],
        "completed\nresult [1, 1, 1, 1, 1, 0]",
    ),
    case(
        "Python is at least 3.10, and CPython",
        &[run("import platform, sys\n[sys.version_info >= (3, 10), platform.python_implementation(), sys.platform]")],
        "completed\nresult [true, \"CPython\", \"linux\"]",
    ),
    case(
        "modules come from the interpreter and from /workspace",
        &[run("import sys\n[sys.path[0], all(place.startswith(('/usr', '/opt', '/workspace')) for place in sys.path)]")],
        "completed\nresult [\"/workspace\", true]",
    ),
    case(
        "text is UTF-8, output by lines, time is UTC",
        &[run("
            import locale, sys, time
            [sys.stdout.encoding, sys.stderr.encoding, sys.getfilesystemencoding(), locale.getpreferredencoding(), sys.stdout.line_buffering, time.tzname[0], time.timezone]")],
        r#"completed
        result ["utf-8", "utf-8", "utf-8", "utf-8", true, "UTC", 0]"#,
    ),
    case(
        "there is no network",
        &[run("
            import errno, socket
            told = []
            for family in (socket.AF_INET, socket.AF_INET6):
                try: socket.create_connection(('127.0.0.1' if family == socket.AF_INET else '::1', 80), 1)
                except OSError as error: told.append('refused')
            try: socket.getaddrinfo('example.com', 80)
            except OSError: told.append('no names')
            told")],
        r#"completed
        result ["refused", "refused", "no names"]"#,
    ),
    case(
        "no socket of another family than Unix is to be had",
        &[run("
            import socket
            told = []
            for family in (socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, socket.AF_PACKET, socket.AF_VSOCK):
                try: socket.socket(family, socket.SOCK_STREAM if family < 16 else socket.SOCK_RAW)
                except OSError: told.append('refused')
                else: told.append(str(family))
            told")],
        r#"completed
        result ["refused", "refused", "refused", "refused", "refused"]"#,
    ),
    case(
        "Unix sockets work inside",
        &[run("
            import socket
            one, two = socket.socketpair()
            one.send(b'pair')
            listener = socket.socket(socket.AF_UNIX)
            listener.bind('/tmp/s'); listener.listen()
            client = socket.socket(socket.AF_UNIX)
            client.connect('/tmp/s')
            listener.accept()[0].send(b'path')
            [two.recv(9).decode(), client.recv(9).decode()]")],
        r#"completed
        result ["pair", "path"]"#,
    ),
    case(
        "the machine's name says nothing",
        &[run("import platform, socket\n[socket.gethostname(), platform.node()]")],
        "completed\nresult [\"sandbox\", \"sandbox\"]",
    ),
    case(
        "code has no capabilities, cannot gain any, and is under seccomp",
        &[run("
            lines = open('/proc/self/status').read().splitlines()
            status = dict(line.split(':\\t', 1) for line in lines if ':\\t' in line)
            {name: status[name] for name in ('CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb', 'NoNewPrivs', 'Seccomp')}")],
        r#"completed
        result {"CapInh": "0000000000000000", "CapPrm": "0000000000000000", "CapEff": "0000000000000000", "CapBnd": "0000000000000000", "CapAmb": "0000000000000000", "NoNewPrivs": "1", "Seccomp": "2"}"#,
    ),
    case(
        "only the sandbox's own processes can be seen",
        &[run("
            import os
            names = [open(f'/proc/{pid}/comm').read().strip() for pid in os.listdir('/proc') if pid.isdigit()]
            [len(names) <= 2, 'systemd' in names]")],
        "completed\nresult [true, false]",
    ),
    case(
        "no mount, namespace, trace or key can be made",
        &[run("
            import ctypes, errno
            libc = ctypes.CDLL(None, use_errno=True)
            def attempt(*call):
                ctypes.set_errno(0)
                return libc.syscall(*call) == -1 and ctypes.get_errno() in (errno.EPERM, errno.ENOSYS, errno.EACCES)
            numbers = {'x86_64': (165, 272, 101, 248, 321, 298, 425), 'aarch64': (40, 97, 117, 217, 280, 241, 425)}[__import__('platform').machine()]
            mount, unshare, ptrace, add_key, bpf, perf, io_uring = numbers
            [attempt(mount, b'none', b'/tmp', b'tmpfs', 0, 0), attempt(unshare, 0x10000000), attempt(ptrace, 16, 1, 0, 0),
             attempt(add_key, b'user', b'k', b'v', 1, -2), attempt(bpf, 0, 0, 0), attempt(perf, 0, 0, -1, -1, 0), attempt(io_uring, 1, 0)]")],
        "completed\nresult [true, true, true, true, true, true, true]",
    ),
    case(
        "devices are the harmless ones",
        &[run("
            import os, stat
            wanted = ('null', 'zero', 'full', 'random', 'urandom', 'shm', 'stdin', 'stdout', 'stderr', 'fd')
            blocks = [name for name in os.listdir('/dev') if stat.S_ISBLK(os.lstat('/dev/' + name).st_mode)]
            [[name for name in wanted if not os.path.exists('/dev/' + name)], blocks, len(open('/dev/urandom', 'rb').read(8))]")],
        "completed\nresult [[], [], 8]",
    ),
    case(
        "certificates and time zones are there",
        &[run("import ssl, zoneinfo\n[len(ssl.create_default_context().get_ca_certs()) > 10, str(zoneinfo.ZoneInfo('Europe/Berlin'))]")],
        "completed\nresult [true, \"Europe/Berlin\"]",
    ),
    case(
        "two calls share no random state",
        &[run("import random, secrets, uuid\nlen({random.random(), uuid.uuid4().hex, secrets.token_hex(8)})")],
        "completed\nresult 3",
    ),
    case(
        "nothing but the code's own names and what is offered is in its namespace",
        &[run("mine = 1\nsorted(name for name in globals() if not name.startswith('__'))")],
        r#"completed
        result ["ToolError", "display", "mine"]"#,
    ),
    case(
        "the descriptors are those of the streams and of the connection",
        &[run("import os\nlen(os.listdir('/proc/self/fd'))")],
        "completed\nresult 5",
    ),
    case(
        "the interpreter has one thread",
        &[run("import os, threading\n[len(os.listdir('/proc/self/task')), threading.active_count()]")],
        "completed\nresult [1, 1]",
    ),
    case(
        "signals are as in every Python program",
        &[run("
            import signal
            [signal.getsignal(number).__name__ if callable(signal.getsignal(number)) else signal.getsignal(number).name for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD)] + [sorted(signal.pthread_sigmask(signal.SIG_BLOCK, []))]")],
        r#"completed
        result ["default_int_handler", "SIG_DFL", "SIG_IGN", "SIG_DFL", []]"#,
    ),
    Case {
        differs: &[Difference {
            engine: "podman",
            without: None,
            what: "the mount table names directories of the service's storage",
            reason: "the root is an overlay of them",
            expected: "completed\nresult […]",
        }],
        ..case(
            "nothing of the host's paths or users is to be read",
            &[run("
                text = ''
                for name in ('mountinfo', 'mounts', 'cgroup', 'environ', 'maps', 'cmdline'):
                    text += open('/proc/self/' + name).read()
                [word for word in ('/home/', '/root', 'docker', 'libpod', 'user.slice') if word in text]")],
            "completed\nresult []",
        )
    },
    case(
        "the file mode mask is 022",
        &[run("import os\nold = os.umask(0o077)\noct(old)")],
        "completed\nresult \"0o22\"",
    ),
    case(
        "the clock is the machine's, and its zone UTC",
        &[run("import datetime, time\n[time.time() > 1.7e9, str(datetime.datetime.now().astimezone().tzinfo)]")],
        "completed\nresult [true, \"UTC\"]",
    ),
    case(
        "pip and the network's tools lead nowhere",
        &[run("
            import urllib.request
            try: urllib.request.urlopen('http://example.com', timeout=2)
            except OSError as error: told = 'no way out'
            told")],
        "completed\nresult \"no way out\"",
    ),
];
