"""The tests of sessions once more with IPython's shell, made before the fork; and what only it has."""

import time
import unittest

import test_session
import test_session_late
import test_session_state
from harness import BOOTSTRAP, PRELOADED, WAIT_TO_GO, Session, SessionCase, need


@need("IPython")
class Names(test_session.Names):
    BOOTSTRAP = PRELOADED

    def test_history(self):
        self.value("5")
        self.value("6")
        self.assertEqual(self.value("[_, __, Out[1], In[1]]"), [6, 5, 5, "5"])

    def test_a_session_is_started_once_and_says_so_again(self):
        self.execute("x = 1")
        again = self.runner.ask({"type": "start_session"})
        self.assertEqual(again, {"type": "session_started", "shell": self.runner.shell})
        self.assertTrue(self.runner.shell.startswith("ipython "))
        self.assertEqual(self.value("x"), 1)


@need("IPython")
class Tools(test_session.Tools):
    BOOTSTRAP = PRELOADED


@need("IPython")
class Survival(test_session.Survival):
    BOOTSTRAP = PRELOADED


@need("IPython")
class LateOutput(test_session_late.LateOutput):
    BOOTSTRAP = PRELOADED


@need("IPython")
class Loop(test_session_late.Loop):
    BOOTSTRAP = PRELOADED


@need("IPython")
class Interrupts(test_session_late.Interrupts):
    BOOTSTRAP = PRELOADED

    def test_an_interrupt_in_ipythons_history_locks_nobody_out(self):
        """IPython 8 takes this lock for each cell, and an interrupt could leave it taken."""
        taken = "flag = getattr(get_ipython().history_manager, 'save_flag', None)\n"
        self.execute(taken + "_ = flag is None or flag._cond._lock.acquire()")
        self.assertEqual(self.value("6 * 7"), 42)


@need("IPython")
class Inspection(test_session_state.Inspection):
    BOOTSTRAP = PRELOADED


@need("IPython")
class AfterATurn(test_session_state.AfterATurn):
    BOOTSTRAP = PRELOADED


@need("IPython")
class Branches(test_session_state.Branches):
    BOOTSTRAP = PRELOADED

    def test_history_bindings_and_sources_are_copied(self):
        self.execute("def f():\n    return 1 / 0  # here")
        self.value("7")
        branch = self.branch()
        self.assertEqual(branch.execute("_")["result"], 7)
        self.assertIn("# here", branch.execute("f()")["error"]["traceback"])
        self.assertEqual(branch.execute("%time 8")["result"], 8)

    def test_after_a_script_magic(self):
        self.execute("%%bash\ntrue")
        branch = self.branch()
        self.execute("%%bash --out x\necho parent")
        branch.execute("%%bash --out x\necho branch")
        self.assertEqual((self.value("x"), branch.execute("x")["result"]), ("parent\n", "branch\n"))


@need("IPython")
class Shell(SessionCase):
    BOOTSTRAP = PRELOADED

    def test_errors_show_the_users_frames_only(self):
        self.execute("def f():\n    return 1 / 0  # here")
        for code in ("f()", "import asyncio\nawait asyncio.sleep(0)\nf()", "%time f()", "%%time\nf()"):
            traceback = self.error(code, "ZeroDivisionError")["traceback"]
            self.assertIn('File "<execution 1>", line 2, in f\n    return 1 / 0  # here', traceback)
            for hidden in ("mcp_forge_runner", "IPython", "asyncio", "decorator", "\x1b"):
                self.assertNotIn(hidden, traceback)

    def test_nested_cells_keep_their_sources(self):
        code = "ip = get_ipython()\nip.run_cell('def g():\\n    raise ValueError  # nested')\ng()"
        self.assertIn("# nested", self.error(code, "ValueError")["traceback"])

    def test_exit_in_all_its_forms(self):
        self.execute("x = 1")
        for code in ("exit", "quit", "exit()", "import sys; sys.exit(3)"):
            self.error(code, "SystemExit")
        self.assertEqual(self.value("x"), 1)
        self.assertEqual(self.finish(), ("", ""))

    def test_no_file_is_made_and_no_thread_runs(self):
        for code in ("1", "%time 2", "await __import__('asyncio').sleep(0)", "!true", "len?", "%history"):
            self.execute(code)
        code = "import os, threading\n[len(threading.enumerate()), sorted(os.listdir('.'))]"
        self.assertEqual(self.value(code), [1, []])
        self.execute("y = 1\n%store y\n%bookmark here")
        # TMPDIR is here; without `pickleshare` IPython 8 keeps it in memory.
        self.assertLessEqual(set(self.value("sorted(os.listdir('.'))")), {".ipython"})

    def test_configuration_is_not_read(self):
        # A profile and a startup file where IPython's own programs would look for them.
        runner = Session("import os\nd = os.environ['HOME'] + '/.ipython/profile_default/startup'\nos.makedirs(d)\nopen(d + '/0.py', 'w').write('started = 1')\nopen(d + '/../ipython_config.py', 'w').write('c.InteractiveShell.ast_node_interactivity = \"none\"')" + BOOTSTRAP)
        self.addCleanup(runner.close)
        self.assertEqual(runner.execute("5")["result"], 5)
        self.assertEqual(runner.execute("started")["error"]["type"], "NameError")

    def test_several_values_of_a_cell(self):
        self.execute("%config InteractiveShell.ast_node_interactivity = 'all'")
        self.assertEqual(self.value("1\n2\n3"), 3)
        self.assertEqual([e["data"] for e in self.runner.displays], [{"text/plain": "1"}, {"text/plain": "2"}])

    def test_results_are_bounded(self):
        done = self.execute("class P:\n  def __repr__(s): return 'x' * 10**6\nP()", repr_chars=1000)
        self.assertLessEqual(len(done["result_repr"]), 1000)
        self.assertLessEqual(len(done.get("result_display", {}).get("text/plain", "")), 1000)
        done = self.execute("list(range(10**7))", repr_chars=1000)
        self.assertNotIn("result_display", done)

    def test_text_of_ipythons_own(self):
        done = self.execute("class P:\n  def _repr_pretty_(s, p, cycle): p.text('pretty')\nP()")
        self.assertEqual(done["result_display"], {"text/plain": "pretty"})

    def test_the_loop_is_the_sessions(self):
        code = "import asyncio\nasync def f():\n  await asyncio.sleep(0.02); print('late')\nt = asyncio.create_task(f())"
        self.execute(code, execution_id="one")
        self.runner.wait_for_late(lambda: self.runner.late_text("one") == "late\n")
        self.assertIs(self.value("await asyncio.sleep(0); t.done()"), True)

    def test_an_interrupted_command_is_ended(self):
        self.runner.start("!echo on; sleep 600")
        self.runner.wait_for_output("on")
        self.runner.interrupt_until_heard()
        self.assertEqual(self.runner.receive()["error"]["type"], "KeyboardInterrupt")
        code = "import subprocess\n'sleep' in subprocess.run(['ps', '-o', 'args', '--ppid', str(__import__('os').getpid())], capture_output=True, text=True).stdout"
        deadline = time.monotonic() + 30
        while self.value(code) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertIs(self.value(code), False)

    def test_late_displays(self):
        code = WAIT_TO_GO + "import threading\nfrom IPython.display import HTML\ndef f():\n  wait_to_go()\n  display(HTML('<b>'))\nt = threading.Thread(target=f)\nt.start()"
        self.execute(code, execution_id="one")
        self.runner.go()
        self.runner.wait_for_late(lambda: self.runner.late)
        self.assertEqual(self.runner.late[0]["data"]["text/html"], "<b>")
        self.assertEqual(self.runner.late[0]["execution_id"], "one")

    def test_updates_are_shown_at_the_end(self):
        self.execute("h = display('a', display_id=True)\nfor i in range(100): h.update(i)")
        self.assertEqual([e["data"]["text/plain"] for e in self.runner.displays], ["'a'", "99"])

    def test_tools_and_reset(self):
        tool = {"name": "t", "doc": "", "parameters": [], "returns": "Any"}
        self.execute("x = 1", tools=[tool])
        self.execute("%reset -f", tools=[tool])
        self.error("x", "NameError")
        self.assertEqual(self.value("callable(t), display is not None", tools=[tool]), [True, True])

    @need("matplotlib")
    def test_figures_are_shown_without_a_magic(self):
        self.execute("import matplotlib.pyplot as plt\nplt.plot([1, 2]);")
        self.execute("fig, ax = plt.subplots(); display(fig)")
        self.execute("fig, ax = plt.subplots()\nfig")
        kinds = [sorted(event["data"]) for event in self.runner.displays]
        self.assertEqual(kinds, [["image/png", "text/plain"]] * 2)
        done = self.execute("fig")
        self.assertIn("image/png", done["result_display"])


if __name__ == "__main__":
    unittest.main()
