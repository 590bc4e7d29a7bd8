//! Files: what can be written where, and that nothing of it stays.

use super::case::{Case, case, run, run_in};

pub(super) const CASES: &[Case] = &[
    case(
        "/workspace, /tmp and /dev/shm are empty and can be written",
        &[run("
            import os
            found = []
            for place in ('/workspace', '/tmp', '/dev/shm'):
                empty = os.listdir(place) == []
                with open(place + '/f', 'w') as file: file.write('written')
                found.append([empty, open(place + '/f').read()])
            found")],
        r#"completed
        result [[true, "written"], [true, "written"], [true, "written"]]"#,
    ),
    case(
        "nothing of one call is found by the next",
        &[
            run("import os\nfor place in ('/workspace', '/tmp', '/dev/shm'): open(place + '/mark', 'x').close()\nleft = 1"),
            run("import os\n[os.path.exists(place + '/mark') for place in ('/workspace', '/tmp', '/dev/shm')] + ['left' in globals()]"),
        ],
        "completed\n---\ncompleted\nresult [false, false, false, false]",
    ),
    case(
        "files work as files do",
        &[run("
            import os, shutil
            os.makedirs('a/b')
            open('a/b/f', 'w').write('1')
            os.link('a/b/f', 'a/hard'); os.symlink('b/f', 'a/soft'); os.mkfifo('a/fifo')
            os.rename('a/b/f', 'a/b/g'); os.chmod('a/b/g', 0o640)
            os.truncate('a/hard', 3)
            stat = os.stat('a/b/g')
            shutil.copytree('a/b', 'c'); shutil.rmtree('a/b')
            [stat.st_nlink, oct(stat.st_mode), stat.st_size, stat.st_uid, os.listdir('c'), os.path.exists('a/soft'), sorted(os.listdir('.'))]")],
        r#"completed
        result [2, "0o100640", 3, 1000, ["g"], false, ["a", "c"]]"#,
    ),
    case(
        "names of any characters",
        &[run("
            import os
            names = ['a b', 'ü', '-rf', '\\n', '\\u202egnp.exe', '\\U0001f600', b'\\xff'.decode('utf-8', 'surrogateescape'), 'n' * 255]
            for name in names: open(name, 'w').close()
            set(os.listdir()) == set(names)")],
        "completed\nresult true",
    ),
    case(
        "temporary files are in /tmp",
        &[run("
            import os, tempfile
            with tempfile.NamedTemporaryFile() as one, tempfile.TemporaryDirectory() as two:
                places = [os.path.dirname(one.name), os.path.dirname(two)]
            places")],
        r#"completed
        result ["/tmp", "/tmp"]"#,
    ),
    case(
        "the root and the interpreter's own files cannot be written",
        &[run("
            import errno, os, sys
            told = []
            for place in ('/', '/usr', '/etc', '/usr/bin', os.path.dirname(os.__file__), os.path.dirname(sys.executable)):
                try: open(os.path.join(place, 'mine'), 'w')
                except OSError as error: told.append(errno.errorcode[error.errno] in ('EROFS', 'EACCES'))
                else: told.append(place)
            told")],
        "completed\nresult [true, true, true, true, true, true]",
    ),
    case(
        "a program can be written and run",
        &[run("
            import os, subprocess
            open('tool.sh', 'w').write('#!/bin/sh\\necho ran \"$1\"\\n')
            os.chmod('tool.sh', 0o755)
            subprocess.run(['./tool.sh', 'x'], capture_output=True, text=True).stdout")],
        r#"completed
        result "ran x\n"
        repr "'ran x\\n'""#,
    ),
    case(
        "a module in /workspace can be imported",
        &[run("open('own.py', 'w').write('answer = 42')\nimport own\n[own.answer, own.__file__]")],
        r#"completed
        result [42, "/workspace/own.py"]"#,
    ),
    case(
        "SQLite works on a file",
        &[run("
            import sqlite3
            with sqlite3.connect('/workspace/d.sqlite') as database:
                database.execute('pragma journal_mode=wal')
                database.execute('create table t (x)')
                database.executemany('insert into t values (?)', [(n,) for n in range(1000)])
                total = database.execute('select sum(x) from t').fetchone()[0]
            total")],
        "completed\nresult 499500",
    ),
    case(
        "locks and memory maps of files",
        &[run("
            import fcntl, mmap
            with open('/tmp/m', 'w+b') as file:
                file.truncate(4096)
                fcntl.flock(file, fcntl.LOCK_EX)
                with mmap.mmap(file.fileno(), 4096) as view: view[:3] = b'abc'
                file.seek(0)
                read = file.read(3).decode()
            read")],
        "completed\nresult \"abc\"",
    ),
    case(
        "a sparse file may be larger than the directory",
        &[run("
            import os
            os.close(os.open('/tmp/sparse', os.O_CREAT | os.O_RDWR))
            os.truncate('/tmp/sparse', 400 << 20)
            stat = os.stat('/tmp/sparse')
            [stat.st_size, stat.st_blocks]")],
        "completed\nresult [419430400, 0]",
    ),
    case(
        "files of a call without a session are not told",
        &[run("open('/workspace/mine.txt', 'w').write('x');")],
        "completed",
    ),
    case(
        "files of a session stay, and those that a call made or changed are told",
        &[
            run_in("a", "import os\nos.mkdir('out')\nopen('out/one.csv', 'w').write('1,2')\nopen('two.txt', 'w').write('x');"),
            run_in("a", "open('two.txt', 'a').write('yz'); open('/tmp/untold', 'w').write('t');"),
            run_in("a", "[open('out/one.csv').read(), open('two.txt').read(), open('/tmp/untold').read()]"),
        ],
        r#"completed
        session 1 fresh
        file "out/one.csv" 3
        file "two.txt" 1
        ---
        completed
        session 1
        file "two.txt" 3
        ---
        completed
        result ["1,2", "xyz", "t"]
        session 1"#,
    ),
];
