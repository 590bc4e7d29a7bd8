# Another local time zone.
import os
import time

names = []
for zone in ("America/New_York", "UTC"):
    os.environ["TZ"] = zone
    time.tzset()
    names.append(time.tzname[0])
names == ["EST", "UTC"]
