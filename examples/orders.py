# What the agent of `mcp-forge demo` sends: a year of shop orders, read through a tool, checked here.
import asyncio, csv, io

FOLDER = "/path/to/orders"


def text_of(answer):
    return answer if isinstance(answer, str) else answer["content"]


listing = text_of(filesystem_list_directory(path=FOLDER))
names = sorted(line.removeprefix("[FILE] ") for line in listing.splitlines() if line.startswith("[FILE] "))


async def read(name):
    text = text_of(await filesystem_read_text_file.aio(path=f"{FOLDER}/{name}"))
    print(f"{name}: {len(text):,} characters", flush=True)
    return list(csv.DictReader(io.StringIO(text)))


months = await asyncio.gather(*(read(name) for name in names))  # all files at once

revenue, seen, suspicious = {}, set(), []


def mistake_in(order):
    quantity, price, total = int(order["quantity"]), float(order["unit_price"]), float(order["total"])
    if order["order_id"] in seen:
        return "charged twice"
    if quantity < 1:
        return f"sold {quantity}"
    if abs(quantity * price - total) > 0.005:
        return f"{quantity} x {price:.2f} is not {total:.2f}"


for name, orders in zip(names, months):
    good = 0.0
    for order in orders:
        if mistake := mistake_in(order):
            suspicious.append([order["order_id"], mistake])
        else:
            good += float(order["total"])
        seen.add(order["order_id"])
    revenue[name.removesuffix(".csv")] = round(good)

{
    "orders": len(seen),
    "revenue": sum(revenue.values()),
    "best_month": max(revenue, key=revenue.get),
    "suspicious": suspicious,
}
