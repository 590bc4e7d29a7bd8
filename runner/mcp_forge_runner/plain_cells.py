"""Cells of plain Python: IPython's own syntax is looked for only where it may be."""

from .originals import BUILTINS as __builtins__

import re

from IPython.core.inputtransformer2 import TransformerManager

# Whatever is more than plain Python has one of these; so may plain Python, which is then looked
# through with IPython's tokenizer, as without this.
MAY_BE_SPECIAL = re.compile(
    r"""
      \A(?:\s|\Z)                # the first line is empty or indented
    | ^[ \t]*[%!,;/]             # a command
    | ^[ \t]*\.\.\. | >>> | In\ \[ # a prompt
    | =[\s\\]*[%!]               # the value of a command
    | \?                         # a question, or part of a string
    | ^[ \t]+$                   # a line whose space would go
    | [\r\v\f\x1c-\x1e\x85\u2028\u2029] # what splits lines, but not for Python
    """,
    re.VERBOSE | re.MULTILINE,
)


class CellTransformer(TransformerManager):
    """IPython's transformer, which leaves alone what it would not change."""

    def __init__(self) -> None:
        super().__init__()
        self.usual = self.steps()

    def steps(self) -> list:
        """What is done to a cell. Extensions may add to it."""
        return [*self.cleanup_transforms, *self.line_transforms, *self.token_transformers]

    def transform_cell(self, cell: str) -> str:
        if MAY_BE_SPECIAL.search(cell) or self.steps() != self.usual:
            return super().transform_cell(cell)
        return cell if cell.endswith("\n") else cell + "\n"
