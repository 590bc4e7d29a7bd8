# Goes behind each pair's functions: which of the two this is.
if HOST["role"] == "first":
    meet(planted=plant())
    notice()
else:
    reach(HOST["other"])
verdict()
