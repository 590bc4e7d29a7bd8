"""Displays: MIME bundles of objects, matplotlib's figures, and the caps on what is sent."""

from .originals import BUILTINS as __builtins__

import sys
from _thread import RLock

from . import values
from .channel import Closed, TooLarge, encode, well_formed
from .reprs import bounded_repr, class_mro

# In the order in which they are asked; the first image format that answers is enough.
METHODS = (
    ("_repr_html_", "text/html"),
    ("_repr_markdown_", "text/markdown"),
    ("_repr_svg_", "image/svg+xml"),
    ("_repr_png_", "image/png"),
    ("_repr_jpeg_", "image/jpeg"),
    ("_repr_latex_", "text/latex"),
    ("_repr_json_", "application/json"),
)
TEXT_CHARS = 2000
# Kept of the byte cap for the note that says what was left out.
NOTE_BYTES = 400
# Largest single display; a frame holds it with its envelope.
MAX_DISPLAY_BYTES = 12 << 20


class Displays:
    """The displays of one turn. Threads may display, too."""

    def __init__(self, channel, max_bytes: int, max_count: int) -> None:
        self.channel = channel
        self.room = max_bytes - NOTE_BYTES
        self.slots = max_count
        self.held = None
        self.left_out = 0
        self.missing = 0
        self.shown_figures = []
        self.lock = RLock()

    def publish(self, data: dict, metadata: dict) -> None:
        """Sends one bundle. What does not fit is left out, and said."""
        if not self.channel.in_owner():
            # A forked child has no connection; its output streams are shared.
            print(data.get("text/plain", ""))
            return
        with self.lock:
            frame = self.fit({"type": "display", "data": data, "metadata": metadata})
            if frame is None:
                return
            self.slots -= 1
            self.room -= len(frame)
            if self.slots:
                self.send(frame)
            else:
                # Whether the last slot is for this display or for the note is not known yet.
                self.held = frame

    def fit(self, message: dict):
        """The frame of a display, if need be without its largest forms; None if none fits."""
        frame = encode(message)
        size = len(frame)
        room = min(self.room, MAX_DISPLAY_BYTES) if self.slots > 0 else 0
        forms = dict(message["data"])
        text = forms.pop("text/plain", "")
        while len(frame) > room:
            if not forms or not self.slots:
                self.missing += 1
                self.left_out += size
                return None
            mime_type = max(forms, key=lambda name: len(encode(forms[name])))
            length = len(encode(forms.pop(mime_type)))
            text += f"\n[{mime_type} left out: {length} bytes are over the limit]"
            frame = encode({**message, "data": {**forms, "text/plain": text}})
        self.left_out += max(size - len(frame), 0)
        return frame

    def send(self, frame: bytes) -> None:
        try:
            self.channel.send_encoded(frame)
        except (Closed, TooLarge):
            # Closed: a thread outlived the turn. TooLarge cannot be: `fit` saw to it.
            return

    def finish(self) -> None:
        """Ends the turn's displays: sends what was held back, or a note of what is missing."""
        with self.lock:
            held, self.held = self.held, None
            if self.missing and self.slots == 0 and held is not None:
                self.missing += 1
                self.left_out += len(held)
                held = None
                self.slots = 1
            if held is not None:
                self.send(held)
            if self.missing and self.slots > 0 and self.room >= 0:
                self.send(encode(note(self.missing, self.left_out)))
            self.slots = 0

    def result_bundle(self, value):
        """The bundle of the turn's result if there is more to show than text, else None."""
        data, metadata = bundle(value)
        if len(data) < 2:
            return None
        if is_figure(value):
            self.shown_figures.append(value)
        return self.take_room(data)

    def take_room(self, data: dict):
        """The result's bundle, or None if there is no room for it."""
        with self.lock:
            room = min(self.room, MAX_DISPLAY_BYTES)
            size = len(encode(data))
            if size > room:
                self.left_out += size
                return None
            self.room -= size
        return data

    def display(self, *objects, include=None, exclude=None, metadata=None, raw=False, **options):
        """Shows objects to the caller: images, HTML, Markdown and more, with a plain text.

        Works as `IPython.display.display`; with `raw=True` an object is a MIME bundle itself.
        """
        for value in objects:
            if raw:
                data, found = clean_bundle(value), {}
            else:
                data, found = bundle(value)
                if is_figure(value):
                    self.shown_figures.append(value)
            if include is not None:
                data = {name: data[name] for name in data if name in include}
            if exclude is not None:
                data = {name: data[name] for name in data if name not in exclude}
            if metadata:
                found.update(values.to_json(dict(metadata), TEXT_CHARS)[0])
            self.publish(data, found)

    def publish_display_data(self, data, metadata=None, **options):
        """As `IPython.display.publish_display_data`."""
        self.display(data, raw=True, metadata=metadata)

    def flush_figures(self) -> None:
        """Displays matplotlib's open figures and closes them. Never imports matplotlib."""
        helpers = sys.modules.get("matplotlib._pylab_helpers")
        pyplot = sys.modules.get("matplotlib.pyplot")
        if helpers is None or pyplot is None:
            return
        for manager in helpers.Gcf.get_all_fig_managers():
            figure = manager.canvas.figure
            # One that was displayed by itself, or has nothing on it, is not shown again.
            if not any(figure is shown for shown in self.shown_figures) and not is_blank(figure):
                data, metadata = bundle(figure)
                self.publish(data, metadata)
        pyplot.close("all")

    def adjust_pyplot(self, module) -> None:
        """`plt.show()` displays there and then, so that the next plot begins a new figure."""

        def show(*args, **kwargs):
            """Displays the open figures and closes them."""
            self.flush_figures()

        show.__module__ = module.__name__
        module.show = show

    def adjust_ipython(self, module) -> None:
        """`IPython.display.display` outside an IPython shell would only print."""
        module.display = self.display
        module.publish_display_data = self.publish_display_data


def bundle(value):
    """The MIME bundle and metadata of any object; always with `text/plain`. Never raises."""
    data = {"text/plain": bounded_repr(value, TEXT_CHARS)[0]}
    metadata = {}
    try:
        if is_figure(value):
            data["image/png"] = as_base64(render_figure(value))
            return data, metadata
        found = ask(value, "_repr_mimebundle_", metadata, "")
        if isinstance(found, dict) and found:
            data.update(clean_bundle(found))
            return data, metadata
    except BaseException:
        # What cannot be rendered is shown as text.
        pass
    for method, mime_type in METHODS:
        if mime_type == "image/jpeg" and "image/png" in data:
            continue
        try:
            content = ask(value, method, metadata, mime_type)
            if content is not None:
                data.update(clean_bundle({mime_type: content}))
        except BaseException:
            continue
    return data, metadata


def ask(value, method: str, metadata: dict, mime_type: str):
    """What an object's `_repr_*_` returns, without its metadata; None if it has no such method.

    Looked up on the class, because `__getattr__` of proxies and mocks answers to any name.
    """
    kind = type(value)
    for base in class_mro(kind):
        if method in vars(base):
            break
    else:
        return None
    found = getattr(value, method)()
    if type(found) is tuple and len(found) == 2:
        found, extra = found
        extra = values.to_json(extra, TEXT_CHARS)[0]
        if isinstance(extra, dict) and extra:
            metadata.update(extra if not mime_type else {mime_type: extra})
    return found


def clean_bundle(data) -> dict:
    """A bundle as plain data: bytes in base64, text well formed, JSON by the rules of values."""
    result = {}
    for mime_type, content in dict(data).items():
        if not isinstance(mime_type, str) or content is None:
            continue
        name = well_formed(str.__str__(mime_type))
        if isinstance(content, (bytes, bytearray, memoryview)):
            is_text = name.startswith("text/") or name == "image/svg+xml"
            content = bytes(content).decode("utf-8", "replace") if is_text else as_base64(content)
        if isinstance(content, str):
            result[name] = well_formed(str.__str__(content))
        else:
            result[name] = values.to_json(content, MAX_DISPLAY_BYTES)[0]
    return result


def as_base64(data) -> str:
    from binascii import b2a_base64

    return b2a_base64(data, newline=False).decode("ascii")


def is_figure(value) -> bool:
    """Whether the object is a matplotlib figure."""
    figure_module = sys.modules.get("matplotlib.figure")
    figure_class = getattr(figure_module, "Figure", None)
    return figure_class is not None and figure_class in class_mro(type(value))


def render_figure(figure) -> bytes:
    """A figure as PNG, trimmed to what is drawn."""
    from io import BytesIO

    file = BytesIO()
    figure.savefig(file, format="png", bbox_inches="tight")
    return file.getvalue()


def is_blank(figure) -> bool:
    """Whether nothing was drawn on a figure: `plt.figure()` and then an error, for example."""
    return not any(getattr(figure, name, None) for name in ("axes", "lines", "texts", "images", "patches"))


def note(missing: int, left_out: int) -> dict:
    """The display that stands for those that were left out."""
    noun = "display" if missing == 1 else "displays"
    text = f"[{missing} {noun} left out: {left_out} bytes over the limit]"
    return {"type": "display", "data": {"text/plain": text}, "metadata": {}}
