"""What goes on between turns: output of earlier ones, the event loop, interrupts."""

import time
import unittest

from harness import THREADS_LEFT, WAIT_TO_GO, SessionCase, need

THREAD = """
import threading
go, done = threading.Event(), threading.Event()
def late(*texts):
    def run():
        go.wait(60)
        for text in texts: print(text)
        done.set()
    go.clear(); done.clear()
    threading.Thread(target=run).start()
"""


class LateOutput(SessionCase):
    def test_a_thread_of_an_earlier_turn(self):
        self.execute(THREAD + "late('from one')\nprint('now')", execution_id="one")
        self.execute("print('two', end='')\ngo.set(); done.wait(60)\nprint('!')", execution_id="two")
        self.execute("None", execution_id="three")
        self.assertEqual(self.runner.late_text("one"), "from one\n")
        self.assertEqual(self.finish()[0], "now\ntwo!\n")

    def test_it_arrives_while_the_session_is_idle(self):
        code = WAIT_TO_GO + "import threading, sys\ndef f():\n  wait_to_go()\n  print('tick', file=sys.stderr)\nthreading.Thread(target=f).start()"
        self.execute(code, execution_id="one")
        self.runner.go()
        self.runner.wait_for_late(lambda: self.runner.late_text("one", "stderr") == "tick\n")
        self.assertEqual(self.finish(), ("", ""))

    def test_a_timer_that_fires_in_the_next_turn_cannot_answer_for_it(self):
        code = "import threading\nbegin = threading.Event()\ndef f():\n  begin.wait()\n  display('late'); print('late')\nt = threading.Thread(target=f); t.start()"
        self.execute(code, execution_id="one")
        self.assertEqual(self.value("begin.set(); t.join(); 'mine'", execution_id="two"), "mine")
        self.assertEqual(self.runner.displays, [])
        kinds = {event["type"]: event for event in self.runner.late}
        self.assertEqual(kinds["late_display"]["execution_id"], "one")
        self.assertEqual(kinds["late_display"]["data"], {"text/plain": "'late'"})
        self.assertEqual(self.runner.late_text("one"), "late\n")

    def test_threads_that_late_threads_start_are_of_the_same_turn(self):
        code = """
import threading
begin = threading.Event()
def inner(): print('inner')
def outer():
    begin.wait()
    t = threading.Thread(target=inner); t.start(); t.join()
t = threading.Thread(target=outer); t.start()
"""
        self.execute(code, execution_id="one")
        self.execute("begin.set(); t.join()")
        self.assertEqual(self.runner.late_text("one"), "inner\n")

    def test_raw_threads_and_pools(self):
        code = """
import _thread, threading
from concurrent.futures import ThreadPoolExecutor
pool = ThreadPoolExecutor(1)
pool.submit(print, 'pool one').result()
begin, ended = threading.Event(), threading.Event()
def raw(x, y=0):
    begin.wait(); print('raw', x, y); ended.set()
_thread.start_new_thread(raw, (1,), {'y': 2})
"""
        self.execute(code, execution_id="one")
        # A pool's thread is of an earlier turn; what it does is of the turn that asks for it.
        self.execute("pool.submit(print, 'pool two').result(); begin.set(); ended.wait()", execution_id="two")
        self.execute("None")
        self.assertEqual(self.runner.late_text("one"), "raw 1 2\n")
        self.assertEqual(self.finish()[0], "pool one\npool two\n")

    def test_threads_of_the_turn_itself_write_as_ever(self):
        code = "import threading, sys\nw = sys.stdout.write\nts = [threading.Thread(target=print, args=(n,)) for n in range(3)]\n[t.start() for t in ts]; [t.join() for t in ts]; None"
        self.execute(code)
        self.assertEqual(sorted(self.finish()[0].split()), ["0", "1", "2"])
        self.assertEqual(self.runner.late, [])

    def test_late_output_is_bounded_between_two_turns(self):
        self.execute(THREAD + "late('x' * 10**7, 'y')\nlate_turn = 1", execution_id="one")
        self.execute("go.set(); done.wait(60)", execution_id="two")
        self.execute("None")
        text = self.runner.late_text("one")
        self.assertLess(len(text), 256 << 10)
        self.assertGreater(len(text), 128 << 10)
        self.assertEqual(text.count("left out"), 1)
        # The next turn has room again.
        self.execute("late('again')", execution_id="three")
        self.execute("go.set(); done.wait(60)", execution_id="four")
        self.execute("None")
        self.assertEqual(self.runner.late_text("three"), "again\n")

    def test_many_small_late_lines_are_bounded_as_well(self):
        self.execute(THREAD + "late(*['z'] * 50_000)", execution_id="one")
        self.execute("go.set(); done.wait(60)")
        self.execute("None")
        self.assertLess(len(self.runner.late), 3000)
        self.assertIn("left out", self.runner.late_text("one"))

    def test_a_late_line_without_end_comes_at_the_latest_with_the_next_turn(self):
        code = WAIT_TO_GO + "import threading\ndef f():\n  wait_to_go()\n  print('no end', end='')\nt = threading.Thread(target=f)\nt.start()"
        self.execute(code, execution_id="one")
        self.runner.go()
        self.execute("t.join()", execution_id="two")
        self.execute("None")
        self.assertEqual(self.runner.late_text("one"), "no end")


class Loop(SessionCase):
    def test_it_lives_between_turns(self):
        code = "import asyncio\nloop = asyncio.get_running_loop()\nq = asyncio.Queue()\nawait asyncio.sleep(0)"
        self.execute(code)
        self.assertIs(self.value("await q.put(5); asyncio.get_running_loop() is loop"), True)
        self.assertEqual(self.value("await q.get()"), 5)

    def test_tasks_go_on_while_the_session_is_idle(self):
        code = "import asyncio\nasync def f():\n  await asyncio.sleep(0.05)\n  print('task')\n  display('shown')\ntask = asyncio.create_task(f())"
        self.execute(code, execution_id="one")
        self.runner.wait_for_late(lambda: len(self.runner.late) == 2)
        self.assertEqual(self.runner.late_text("one"), "task\n")
        self.assertIs(self.value("task.done()"), True)

    def test_a_cell_that_makes_tasks_runs_in_the_loop_and_others_do_not(self):
        self.assertEqual(self.value("import asyncio\nasync def f(): return 3\nasyncio.run(f())"), 3)
        self.assertEqual(self.value("t = asyncio.ensure_future(f())\nawait t"), 3)
        self.execute("t = asyncio.get_running_loop().create_task(f())")
        self.assertEqual(self.value("await t"), 3)
        self.assertEqual(self.value("asyncio.run(f())"), 3)

    def test_a_task_that_blocks_the_idle_loop_is_interrupted_once_something_is_asked(self):
        code = "import asyncio, time\nasync def f():\n  time.sleep(0.02)\n  print('stuck')\n  time.sleep(600)\nt = asyncio.create_task(f())\nawait asyncio.sleep(0)"
        self.runner.start(code, execution_id="one")
        self.runner.wait_for_output("stuck")
        self.runner.interrupt()
        self.assertEqual(self.runner.receive()["error"]["type"], "KeyboardInterrupt")
        code = "async def g():\n  await asyncio.sleep(0.01)\n  print('stuck')\n  time.sleep(600)\nt = asyncio.create_task(g())"
        self.execute(code, execution_id="two")
        self.runner.wait_for_late(lambda: self.runner.late_text("two") == "stuck\n")
        self.runner.interrupt()
        self.assertTrue(self.runner.silent(0.1))
        self.runner.start("'mine'")
        time.sleep(0.1)
        while self.runner.silent(0.1):
            self.runner.interrupt()
        self.assertIn(self.runner.receive().get("result"), ("mine", None))
        self.assertEqual(self.value("5"), 5)

    def test_tasks_that_end_the_loop_or_raise_what_they_should_not(self):
        code = "import asyncio, sys\nasync def f():\n  await asyncio.sleep(0.01)\n  sys.exit(3)\nasync def g():\n  await asyncio.sleep(0.02)\n  asyncio.get_running_loop().stop()\nasync def h():\n  await asyncio.sleep(0.03)\n  print('alive')\nts = [asyncio.create_task(x()) for x in (f, g, h)]"
        self.execute(code, execution_id="one")
        self.runner.wait_for_late(lambda: "alive" in self.runner.late_text("one"))
        self.assertEqual(self.value("1"), 1)

    def test_the_user_closes_the_loop(self):
        self.execute("import asyncio\nloop = asyncio.get_running_loop()")
        self.execute("loop.close()")
        self.assertEqual(self.value("await asyncio.sleep(0, 5)"), 5)

    def test_tasks_cannot_call_tools_of_later_turns(self):
        tool = {"name": "t", "doc": "", "parameters": [], "returns": "Any"}
        code = "import asyncio\nbegin, seen = asyncio.Event(), []\nasync def f():\n  await begin.wait()\n  try: await t.aio()\n  except ToolError as e: seen.append(e.kind)\ntask = asyncio.create_task(f())"
        self.execute(code, tools=[tool])
        self.assertEqual(self.value("begin.set(); await task; seen", tools=[tool]), ["not_granted"])


class Interrupts(SessionCase):
    PLACES = (
        "import time\nprint('on'); time.sleep(600)",
        "print('on')\nwhile True: pass",
        "import asyncio\nprint('on'); await asyncio.sleep(600)",
        "import asyncio\nprint('on'); await asyncio.gather(asyncio.sleep(600), asyncio.sleep(600))",
        "import threading\nprint('on'); threading.Event().wait()",
        "import subprocess\nprint('on'); subprocess.run(['sleep', '600'])",
        "class R:\n  def __repr__(s):\n    import time\n    print('on'); time.sleep(600)\nR()",
        "class R:\n  def _repr_html_(s):\n    import time\n    print('on'); time.sleep(600)\nR()",
        "import time\ntry:\n  print('on'); time.sleep(600)\nfinally:\n  cleaned = True",
        "import os\nprint('on'); os.read(os.pipe()[0], 1)",
    )

    def test_wherever_the_code_is(self):
        self.execute("kept = 5")
        for code in self.PLACES:
            with self.subTest(code):
                self.runner.output["stdout"].clear()
                self.runner.start(code)
                self.runner.wait_for_output("on")
                time.sleep(0.05)
                self.runner.interrupt_until_heard()
                done = self.runner.receive()
                self.assertEqual(done["error"]["type"], "KeyboardInterrupt", done)
                self.assertNotIn("mcp_forge_runner", done["error"]["traceback"])
                self.assertEqual(self.value("kept"), 5)

    @need("numpy")
    def test_in_a_loop_of_numpy(self):
        self.runner.start("import numpy as np\na = np.ones((200, 200))\nprint('on')\nwhile True: a = a @ a * 0")
        self.runner.wait_for_output("on")
        self.runner.interrupt_until_heard()
        self.assertEqual(self.runner.receive()["error"]["type"], "KeyboardInterrupt")

    def test_the_traceback_says_where_the_code_awaited(self):
        code = "import asyncio\nasync def slow():\n  print('on')\n  await asyncio.sleep(600)\nawait slow()"
        self.runner.start(code)
        self.runner.wait_for_output("on")
        time.sleep(0.05)
        self.runner.interrupt_until_heard()
        self.assertIn("line 4, in slow", self.runner.receive()["error"]["traceback"])

    def test_a_tool_call(self):
        tool = {"name": "t", "doc": "", "parameters": [], "returns": "Any"}
        for code in ("t()", "await t.aio()"):
            self.runner.start(code, [tool])
            self.assertEqual(self.runner.receive()["type"], "tool_call")
            time.sleep(0.05)
            self.runner.interrupt()
            self.assertEqual(self.runner.receive()["error"]["type"], "KeyboardInterrupt")

    def test_a_tool_call_that_has_just_begun(self):
        """The thread that reads answers is there, and nothing was sent: it must end with the turn."""
        tool = {"name": "t", "doc": "", "parameters": [], "returns": "Any"}
        code = """
import os, signal
from mcp_forge_runner import channel
start = channel.start_new_thread
def interrupted(*arguments):
    start(*arguments)
    os.kill(os.getpid(), signal.SIGINT)
channel.start_new_thread = interrupted
try: t()
finally: channel.start_new_thread = start
"""
        self.runner.start(code, [tool])
        self.assertEqual(self.runner.receive()["error"]["type"], "KeyboardInterrupt")
        self.assertEqual(self.value(THREADS_LEFT), 1)
        self.assertEqual(self.value("6 * 7"), 42)
        self.assertEqual(self.finish(), ("", ""))

    def test_while_nothing_runs_it_means_nothing(self):
        self.execute("import asyncio; await asyncio.sleep(0)")
        for number in range(30):
            self.runner.interrupt()
            self.runner.start(str(number))
            done = self.runner.receive()
            if "error" in done:  # it arrived when the turn had begun
                self.assertEqual(done["error"]["type"], "KeyboardInterrupt")
            else:
                self.assertEqual(done["result"], number)
        self.runner.interrupt()
        self.assertEqual(self.runner.inspect()["threads"], [])
        self.assertEqual(self.value("5"), 5)

    def test_before_the_first_turn_it_means_nothing(self):
        for _ in range(5):
            self.runner.interrupt()
        self.assertIn(self.execute("5").get("result"), (5, None))
        self.assertEqual(self.value("6"), 6)

    def test_a_storm_loses_no_frame(self):
        self.execute("kept = 5")
        for _ in range(15):
            self.runner.start("for i in range(20000): pass\n[{'a': i} for i in range(2000)]")
            for _ in range(20):
                self.runner.interrupt()
                time.sleep(0.0005)
            self.assertEqual(self.runner.receive()["type"], "done")
        self.assertEqual(self.value("kept"), 5)

    def test_code_that_keeps_going(self):
        code = "import signal\nsignal.signal(signal.SIGINT, lambda *a: None)\nimport time\nprint('on')\ntime.sleep(0.5)\n'went on'"
        self.runner.start(code)
        self.runner.wait_for_output("on")
        self.runner.interrupt()
        self.assertEqual(self.runner.receive()["result"], "went on")
        self.runner.start("print('again'); time.sleep(600)")
        self.runner.wait_for_output("again")
        self.runner.interrupt_until_heard()
        self.assertEqual(self.runner.receive()["error"]["type"], "KeyboardInterrupt")


if __name__ == "__main__":
    unittest.main()
