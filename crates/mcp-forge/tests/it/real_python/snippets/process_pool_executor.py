# Work spread over processes, and an exception that comes back from one.
from concurrent.futures import ProcessPoolExecutor

def invert(number):
    return 1 / number

with ProcessPoolExecutor(2) as executor:
    values = list(executor.map(invert, [1, 2, 4]))
    try:
        executor.submit(invert, 0).result()
        error = None
    except ZeroDivisionError as caught:
        error = str(caught)
(values, error) == ([1.0, 0.5, 0.25], "division by zero")
