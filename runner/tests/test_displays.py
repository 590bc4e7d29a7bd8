"""Displays: MIME bundles, caps, and figures of matplotlib, fake and real."""

import base64
import unittest

from harness import RunnerCase, need

PNG = b"\x89PNG\r\n\x1a\n"

# Just enough of matplotlib's shape: registers the modules that the runner looks for.
FAKE_MATPLOTLIB = """
import os, pathlib
root = pathlib.Path('matplotlib')
root.mkdir()
(root / '__init__.py').write_text('')
(root / 'figure.py').write_text('''
class Figure:
    def __init__(self, name): self.name, self.axes = name, [1]
    def __repr__(self): return "<Figure " + self.name + ">"
    def savefig(self, file, format, bbox_inches):
        assert format == "png" and bbox_inches == "tight"
        file.write(b"\\\\x89PNG\\\\r\\\\n\\\\x1a\\\\n" + self.name.encode())
''')
(root / '_pylab_helpers.py').write_text('''
class Gcf:
    figs = {}
    @classmethod
    def get_all_fig_managers(cls): return list(cls.figs.values())
''')
(root / 'pyplot.py').write_text('''
from ._pylab_helpers import Gcf
from .figure import Figure
class Manager: pass
def figure(name):
    manager = Manager()
    manager.canvas = Manager()
    manager.canvas.figure = Figure(name)
    Gcf.figs[name] = manager
    return manager.canvas.figure
def close(which):
    assert which == "all"
    Gcf.figs.clear()
def show(): raise AssertionError("not replaced")
''')
"""


class Bundles(RunnerCase):
    def displays(self):
        return [event["data"] for event in self.runner.displays]

    def test_every_representation(self):
        code = """
class Rich:
    def __repr__(self): return 'rich'
    def _repr_html_(self): return '<b>'
    def _repr_markdown_(self): return '**'
    def _repr_svg_(self): return '<svg>'
    def _repr_png_(self): return b'\\x89PNG\\r\\n\\x1a\\n'
    def _repr_jpeg_(self): return b'jpeg'
    def _repr_latex_(self): return '$x$', {'size': 3}
    def _repr_json_(self): return {'a': float('nan')}
class Jpeg:
    def _repr_jpeg_(self): return b'jpeg'
    def __repr__(self): return 'jpeg'
class Bundle:
    def __repr__(self): return 'bundle'
    def _repr_mimebundle_(self, include=None, exclude=None):
        return {'text/html': '<i>', 'image/png': b'x', 'application/x+json': [1], 'none/none': None}, {'text/html': {'w': 1}}
    def _repr_html_(self): raise AssertionError
display(Rich(), Jpeg(), Bundle(), 'text', None)
"""
        self.value(code)
        rich, jpeg, bundle, text, none = self.displays()
        self.assertEqual(
            rich,
            {
                "text/plain": "rich",
                "text/html": "<b>",
                "text/markdown": "**",
                "image/svg+xml": "<svg>",
                "image/png": base64.b64encode(PNG).decode(),
                "text/latex": "$x$",
                "application/json": {"a": "NaN"},
            },
        )
        self.assertEqual(self.runner.displays[0]["metadata"], {"text/latex": {"size": 3}})
        self.assertEqual(jpeg, {"text/plain": "jpeg", "image/jpeg": base64.b64encode(b"jpeg").decode()})
        self.assertEqual(
            bundle,
            {"text/plain": "bundle", "text/html": "<i>", "image/png": "eA==", "application/x+json": [1]},
        )
        self.assertEqual(self.runner.displays[2]["metadata"], {"text/html": {"w": 1}})
        self.assertEqual((text, none), ({"text/plain": "'text'"}, {"text/plain": "None"}))

    def test_result_display(self):
        done = self.execute(
            "class R:\n  def __repr__(s): return 'r'\n  def _repr_html_(s): return '<b>'\nR()"
        )
        self.assertEqual(done["result_display"], {"text/plain": "r", "text/html": "<b>"})
        self.assertEqual((done["result"], done["result_repr"]), ("r", "r"))
        self.assertNotIn("result_display", self.execute("object()"))
        self.assertNotIn(
            "result_display", self.execute("R = type('R', (), {'_repr_html_': lambda s: None})\nR()")
        )

    def test_hostile_representations(self):
        code = """
class Evil:
    def __getattr__(self, name): raise SystemExit(name)
    def _repr_mimebundle_(self, **k): raise KeyboardInterrupt
    def _repr_html_(self): return 5
    def _repr_markdown_(self): return '\\ud800'
    def _repr_svg_(self): return b'<svg>\\xff'
    def _repr_png_(self): return 'already base64'
    def _repr_json_(self): raise RecursionError
    def __repr__(self): return 'evil'
from unittest.mock import MagicMock
display(Evil(), MagicMock(name='m'), Evil)
"""
        self.value(code)
        evil, mock, kind = self.displays()
        self.assertEqual(evil["text/markdown"], "\\ud800")
        self.assertEqual(evil["image/svg+xml"], "<svg>\ufffd")
        self.assertEqual(mock.keys(), {"text/plain"})
        self.assertEqual(kind, {"text/plain": "<class '__main__.Evil'>"})

    def test_raw_and_filters(self):
        self.value(
            "display({'text/plain': 'a', 'text/html': 'b'}, raw=True, metadata={'x': 1}, display_id='7')"
        )
        self.value(
            "class R:\n  def _repr_html_(s): return 'h'\n  def _repr_latex_(s): return 'l'\ndisplay(R(), include=['text/html'])"
        )
        self.assertEqual(self.displays(), [{"text/plain": "a", "text/html": "b"}, {"text/html": "h"}])
        self.assertEqual(self.runner.displays[0]["metadata"], {"x": 1})

    def test_also_from_the_module(self):
        self.value("from mcp_forge import display as show\nshow(1)")
        self.assertEqual(self.displays(), [{"text/plain": "1"}])

    def test_threads(self):
        code = """
import threading
threads = [threading.Thread(target=display, args=('x' * 10_000,)) for _ in range(20)]
[t.start() for t in threads]; [t.join() for t in threads];
"""
        self.value(code)
        self.assertEqual(len(self.displays()), 20)


class Caps(RunnerCase):
    def texts(self):
        return [event["data"]["text/plain"] for event in self.runner.displays]

    def test_count(self):
        done = self.execute("for n in range(3): display(n)", displays=3)
        self.assertEqual((self.texts(), done.get("truncated")), (["0", "1", "2"], None))
        self.runner.displays.clear()
        done = self.execute("for n in range(10): display(n)", displays=3)
        self.assertEqual(self.texts()[:2], ["0", "1"])
        self.assertRegex(self.texts()[2], r"^\[8 displays left out: \d+ bytes over the limit\]$")
        self.assertEqual(len(self.texts()), 3)
        self.assertGreater(done["truncated"]["displays"], 8 * 50)

    def test_bytes(self):
        code = """
class Big:
    def __init__(self, size): self.size = size
    def __repr__(self): return 'big'
    def _repr_png_(self): return b'x' * self.size
display(Big(100), Big(3000), Big(100))
display({'text/plain': 'y' * 10_000}, raw=True)
"""
        done = self.execute(code, display_bytes=2500)
        first, second, third, last = self.runner.displays
        self.assertIn("image/png", first["data"])
        self.assertEqual(
            second["data"], {"text/plain": "big\n[image/png left out: 4002 bytes are over the limit]"}
        )
        self.assertIn("image/png", third["data"])
        self.assertRegex(last["data"]["text/plain"], r"^\[1 display left out: \d+ bytes over the limit\]$")
        self.assertGreater(done["truncated"]["displays"], 10_000)

    def test_result_display_counts(self):
        code = "class R:\n  def _repr_html_(s): return 'x' * 5000\nR()"
        done = self.execute(code, display_bytes=1000)
        self.assertNotIn("result_display", done)
        self.assertGreater(done["truncated"]["displays"], 4000)

    def test_none_allowed(self):
        for caps in ({"displays": 0}, {"display_bytes": 0}):
            done = self.execute("display(1)", **caps)
            self.assertGreater(done["truncated"]["displays"], 0)
        self.assertEqual(self.runner.displays, [])

    def test_a_flood(self):
        self.execute("for n in range(200_000): display(n)")
        self.assertEqual(len(self.runner.displays), 100)


class FakeFigures(RunnerCase):
    def setUp(self):
        super().setUp()
        self.value(FAKE_MATPLOTLIB + "\nNone")

    def images(self):
        return [base64.b64decode(event["data"]["image/png"])[8:].decode() for event in self.runner.displays]

    def test_at_the_end_even_after_an_error(self):
        self.error(
            "import matplotlib.pyplot as plt\nplt.figure('a')\nplt.figure('b')\n1/0", "ZeroDivisionError"
        )
        self.assertEqual(self.images(), ["a", "b"])

    def test_show_displays_and_begins_anew(self):
        self.value(
            "import matplotlib.pyplot as plt\nplt.figure('a')\nplt.show()\nplt.figure('b')\nplt.show(block=False)\nprint(1)"
        )
        self.assertEqual(self.images(), ["a", "b"])
        self.assertIs(
            self.value("from matplotlib import pyplot, _pylab_helpers\nnot _pylab_helpers.Gcf.figs"), True
        )

    def test_show_in_a_second_turn(self):
        self.value("import matplotlib.pyplot")
        self.value("from matplotlib.pyplot import figure, show\nfigure('a')\nshow()")
        self.assertEqual(self.images(), ["a"])

    def test_a_figure_is_shown_once(self):
        done = self.execute("import matplotlib.pyplot as plt\nplt.figure('a')")
        self.assertEqual(self.images(), [])
        self.assertIn("image/png", done["result_display"])
        self.value("import matplotlib.pyplot as plt\ndisplay(plt.figure('b'))")
        self.assertEqual(self.images(), ["b"])

    def test_what_cannot_be_drawn(self):
        code = "import matplotlib.pyplot as plt\nf = plt.figure('a')\ndel f.name\nplt.figure('b').axes.clear()\n1"
        self.assertEqual(self.value(code), 1)
        self.assertEqual([event["data"].keys() for event in self.runner.displays], [{"text/plain"}])


class RealPackages(RunnerCase):
    @need("matplotlib")
    def test_matplotlib(self):
        code = """
import matplotlib.pyplot as plt
plt.plot([1, 2, 3])
plt.show()
fig, ax = plt.subplots()
ax.bar(['a', 'b'], [1, 2])
plt.figure()
print(plt.get_backend())
"""
        self.value(code)
        images = [base64.b64decode(event["data"]["image/png"]) for event in self.runner.displays]
        self.assertEqual([image[:8] for image in images], [PNG, PNG])
        self.assertNotEqual(images[0], images[1])
        self.assertIn("Figure", self.runner.displays[0]["data"]["text/plain"])

    @need("matplotlib")
    def test_matplotlib_figure_as_result(self):
        done = self.execute("import matplotlib.pyplot as plt\nfig = plt.figure()\nplt.plot([1])\nfig")
        self.assertEqual(base64.b64decode(done["result_display"]["image/png"])[:8], PNG)
        self.assertEqual(self.runner.displays, [])

    @need("pandas")
    def test_pandas(self):
        done = self.execute("import pandas as pd\npd.DataFrame({'a': [1, 2]})")
        self.assertIn("<table", done["result_display"]["text/html"])
        self.assertEqual(done["result"], {"columns": ["a"], "index": [0, 1], "data": [[1], [2]]})
        self.assertEqual(done["result_repr"], "   a\n0  1\n1  2")

    @need("PIL")
    def test_pillow(self):
        done = self.execute("from PIL import Image\nImage.new('RGB', (2, 2))")
        self.assertEqual(base64.b64decode(done["result_display"]["image/png"])[:8], PNG)

    @need("IPython")
    def test_ipython(self):
        done = self.execute(
            "from IPython.display import display, HTML, Image\ndisplay(HTML('<b>'))\nHTML('<i>')"
        )
        self.assertEqual(self.runner.displays[0]["data"]["text/html"], "<b>")
        self.assertEqual(done["result_display"]["text/html"], "<i>")


if __name__ == "__main__":
    unittest.main()
