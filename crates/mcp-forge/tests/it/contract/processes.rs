//! Threads, child processes and loops of the code's own.

use super::case::{Case, case, run};

pub(super) const CASES: &[Case] = &[
    case(
        "threads share the work",
        &[run("
            from concurrent.futures import ThreadPoolExecutor
            with ThreadPoolExecutor(8) as pool: squares = list(pool.map(lambda n: n * n, range(10)))
            squares")],
        "completed\nresult [0, 1, 4, 9, 16, 25, 36, 49, 64, 81]",
    ),
    case(
        "an exception in a thread is told on standard error only",
        &[run("
            import threading
            def fails(): raise ValueError('in a thread')
            thread = threading.Thread(target=fails, name='T')
            thread.start(); thread.join()
            'goes on'")],
        r#"completed
        result "goes on"
        stderr "Exception in thread T:\nTraceback (most recent call last):\n…ValueError: in a thread\n""#,
    ),
    case(
        "multiprocessing by fork",
        &[run("
            import multiprocessing
            def square(n): return n * n
            with multiprocessing.get_context('fork').Pool(2) as pool: squares = pool.map(square, range(5))
            squares")],
        "completed\nresult [0, 1, 4, 9, 16]",
    ),
    case(
        "multiprocessing by spawn",
        &[run("
            import multiprocessing
            def square(n): return n * n
            if __name__ == '__main__':
                with multiprocessing.get_context('spawn').Pool(2) as pool: squares = pool.map(square, range(5))
                print(squares)")],
        "completed\nstdout \"[0, 1, 4, 9, 16]\\n\"",
    ),
    case(
        "multiprocessing by a fork server",
        &[run("
            import multiprocessing
            def square(n): return n * n
            if __name__ == '__main__':
                with multiprocessing.get_context('forkserver').Pool(2) as pool: squares = pool.map(square, range(5))
                print(squares)")],
        "completed\nstdout \"[0, 1, 4, 9, 16]\\n\"",
    ),
    case(
        "queues, locks and shared memory between processes",
        &[run("
            import multiprocessing as m
            from multiprocessing import shared_memory
            context = m.get_context('fork')
            queue, lock = context.Queue(), context.Lock()
            memory = shared_memory.SharedMemory(create=True, size=8)
            def work():
                with lock: memory.buf[0] += 1
                queue.put('done')
            workers = [context.Process(target=work) for _ in range(3)]
            for worker in workers: worker.start()
            answers = [queue.get() for _ in workers]
            for worker in workers: worker.join()
            total = memory.buf[0]
            memory.close(); memory.unlink()
            [answers, total, [worker.exitcode for worker in workers]]")],
        r#"completed
        result [["done", "done", "done"], 3, [0, 0, 0]]"#,
    ),
    case(
        "a process pool whose worker dies says so",
        &[run("
            import os, multiprocessing
            from concurrent.futures import ProcessPoolExecutor
            from concurrent.futures.process import BrokenProcessPool
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context('fork')) as pool:
                try: pool.submit(os._exit, 3).result()
                except BrokenProcessPool: told = 'broken'
            told")],
        "completed\nresult \"broken\"",
    ),
    case(
        "children end with a status or a signal",
        &[run("
            import os, signal, subprocess, sys
            [subprocess.run(['sh', '-c', 'exit 3']).returncode, os.system('exit 4') >> 8,
             subprocess.run([sys.executable, '-c', 'import os; os.kill(os.getpid(), 11)']).returncode,
             subprocess.run(['cat'], input=b'through', capture_output=True).stdout.decode()]")],
        "completed\nresult [3, 4, -11, \"through\"]",
    ),
    case(
        "another interpreter has the same modules and no connection",
        &[run("
            import subprocess, sys
            code = 'import json, os; print(json.dumps([os.getcwd(), os.getuid(), sorted(map(int, os.listdir(\"/proc/self/fd\")))[:3]]))'
            subprocess.run([sys.executable, '-c', code], capture_output=True, text=True).stdout")],
        r#"completed
        result "[\"/workspace\", 1000, [0, 1, 2]]\n"
        repr "'[\"/workspace\", 1000, [0, 1, 2]]\\n'""#,
    ),
    case(
        "a program that is not there is not found",
        &[run("import subprocess\nsubprocess.run(['no-such-program'])")],
        r#"raised
        error FileNotFoundError: "[Errno 2] No such file or directory: 'no-such-program'"
        at 2 in <module>"#,
    ),
    case(
        "a child may be killed and waited for",
        &[run("
            import subprocess
            child = subprocess.Popen(['sleep', '100'])
            child.terminate()
            first = child.wait()
            child = subprocess.Popen(['sleep', '100'])
            child.kill()
            [first, child.wait()]")],
        "completed\nresult [-15, -9]",
    ),
    case(
        "orphans are no zombies of the code",
        &[run("
            import os
            read, write = os.pipe()
            if os.fork() == 0:
                if os.fork() == 0:
                    os.read(read, 1)
                    os._exit(0)
                os._exit(0)
            os.wait()
            os.write(write, b'x')
            try: os.wait()
            except ChildProcessError: told = 'none left'
            told")],
        "completed\nresult \"none left\"",
    ),
    case(
        "a daemon that ignores signals ends with its turn",
        &[run("
            import os, signal, time
            read, write = os.pipe()
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    for number in range(1, 64):
                        try: signal.signal(number, signal.SIG_IGN)
                        except (OSError, ValueError): pass
                    os.write(write, b'ready')
                    while True: time.sleep(0.1)
                os._exit(0)
            os.read(read, 5).decode()")],
        "completed\nresult \"ready\"",
    ),
    case(
        "a forked child that runs to the end of the code answers nothing",
        &[run("
            import os
            pid = os.fork()
            if pid: os.waitpid(pid, 0)
            print('parent' if pid else 'child')
            'parent' if pid else 'child'")],
        r#"completed
        result "parent"
        stdout "child\nparent\n""#,
    ),
    case(
        "a loop of asyncio with child processes",
        &[run("
            import asyncio
            async def ask():
                child = await asyncio.create_subprocess_exec('sh', '-c', 'echo out; exit 2', stdout=asyncio.subprocess.PIPE)
                out, _ = await child.communicate()
                return [out.decode(), child.returncode]
            await ask()")],
        r#"completed
        result ["out\n", 2]
        repr "['out\\n', 2]""#,
    ),
    case(
        "tasks that are left are cancelled at the end",
        &[run("
            import asyncio
            async def long():
                try: await asyncio.sleep(100)
                except asyncio.CancelledError:
                    print('cancelled')
                    raise
            task = asyncio.create_task(long())
            await asyncio.sleep(0)
            'end'")],
        r#"completed
        result "end"
        stdout "cancelled\n""#,
    ),
    case(
        "signal handlers and alarms work",
        &[run("
            import signal, time
            heard = []
            signal.signal(signal.SIGALRM, lambda *_: heard.append('alarm'))
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            while not heard: time.sleep(0.01)
            heard")],
        "completed\nresult [\"alarm\"]",
    ),
    case(
        "a thread that outlives the code does not delay the answer",
        &[run("import threading, time\nthreading.Thread(target=time.sleep, args=(100,)).start()\n'done'")],
        "completed\nresult \"done\"",
    ),
];
