# There are no terminals, and asking for one is a clean error.
import os
import pty

errors = []
for ask in (os.openpty, pty.openpty, lambda: os.ttyname(1), lambda: os.get_terminal_size(1)):
    try:
        ask()
    except OSError as error:
        errors.append(type(error).__name__)
len(errors) == 4 and not os.isatty(1)
