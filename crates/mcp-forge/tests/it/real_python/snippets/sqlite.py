# A database file in the workspace, with a journal, and read by a second connection.
import sqlite3

with sqlite3.connect("/workspace/orders.db") as database:
    database.execute("pragma journal_mode = wal")
    database.execute("create table orders (id integer primary key, total real)")
    database.executemany("insert into orders (total) values (?)", [(n / 2,) for n in range(1000)])
sqlite3.connect("/workspace/orders.db").execute("select count(*), sum(total) from orders").fetchone() == (1000, 249750.0)
