# A pool of each kind, with a function of the code itself.
import multiprocessing

def square(number):
    return number * number

results = []
if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            results.append(pool.map(square, range(4)))
results == [[0, 1, 4, 9]] * 3
