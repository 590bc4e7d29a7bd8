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
