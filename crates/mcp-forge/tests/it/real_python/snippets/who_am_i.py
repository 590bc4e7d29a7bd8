# Names and places that programs ask for.
import getpass
import os
import platform
import pwd
import socket
from pathlib import Path

facts = [getpass.getuser(), pwd.getpwuid(os.getuid()).pw_name, str(Path.home()), os.getcwd(), socket.gethostname(), platform.system()]
facts == ["sandbox", "sandbox", "/workspace", "/workspace", "sandbox", "Linux"]
