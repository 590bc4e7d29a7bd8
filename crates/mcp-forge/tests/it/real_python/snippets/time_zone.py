# The time zone data base.
from datetime import datetime
from zoneinfo import ZoneInfo, available_timezones

berlin = ZoneInfo("Europe/Berlin")
offsets = [datetime(2026, month, 1, tzinfo=berlin).utcoffset().total_seconds() for month in (1, 7)]
offsets == [3600.0, 7200.0] and len(available_timezones()) > 400
