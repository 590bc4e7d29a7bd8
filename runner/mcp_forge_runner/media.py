"""What tools return besides JSON and text: images, audio and resources as Python objects."""

from .originals import BUILTINS as __builtins__


class Media:
    """An image or a sound that a tool returned. It displays itself as the last expression."""

    __module__ = "mcp_forge"

    def __init__(self, data: bytes, mime_type: str) -> None:
        self.data = data
        self.mime_type = mime_type

    def __repr__(self) -> str:
        return f"<Media {self.mime_type}, {len(self.data)} bytes; .data, .save(path)>"

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict:
        return {self.mime_type: self.data}

    def save(self, path) -> None:
        """Writes the bytes to a file."""
        with open(path, "wb") as file:
            file.write(self.data)


class Resource:
    """A resource that a tool returned: `.text` or `.data` if embedded, else only its `.uri`."""

    __module__ = "mcp_forge"

    def __init__(self, uri: str, mime_type=None, text=None, data=None) -> None:
        self.uri = uri
        self.mime_type = mime_type
        self.text = text
        self.data = data

    def __repr__(self) -> str:
        content = "a link, never fetched"
        if self.text is not None:
            content = f"{len(self.text)} characters in .text"
        elif self.data is not None:
            content = f"{len(self.data)} bytes in .data"
        kind = f", {self.mime_type}" if self.mime_type else ""
        return f"<Resource {self.uri!r}{kind}: {content}>"

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict:
        content = self.text if self.text is not None else self.data
        if content is None or not self.mime_type:
            return {}
        return {self.mime_type: content}

    def save(self, path) -> None:
        """Writes the embedded text (as UTF-8) or bytes to a file."""
        content = self.data if self.text is None else self.text.encode("utf-8")
        if content is None:
            raise ValueError(f"{self.uri!r} is a link without content; nothing to save")
        with open(path, "wb") as file:
            file.write(content)


def from_value(value: dict):
    """A `ToolValue` of the protocol as the Python value that the tool's caller gets."""
    if value["kind"] == "json":
        return value["value"]
    objects = [from_block(block) for block in value["blocks"]]
    return objects[0] if len(objects) == 1 else objects


def from_block(block: dict):
    """One content block as a `str`, `Media` or `Resource`."""
    if block["type"] == "text":
        return block["text"]
    if block["type"] in ("image", "audio"):
        return Media(from_base64(block["data"]), block["mime_type"])
    data = block.get("data")
    if data is not None:
        data = from_base64(data)
    return Resource(block["uri"], block.get("mime_type"), block.get("text"), data)


def from_base64(text: str) -> bytes:
    from binascii import a2b_base64

    return a2b_base64(text)
