# Classes of the code itself survive pickling, also on the way through a child.
import pickle
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

@dataclass
class Order:
    name: str
    lines: list = field(default_factory=list)

def extended(order):
    order.lines.append("x")
    return order

with ProcessPoolExecutor(1) as executor:
    order = executor.submit(extended, Order("a")).result()
order == Order("a", ["x"]) and pickle.loads(pickle.dumps(order)) == order
