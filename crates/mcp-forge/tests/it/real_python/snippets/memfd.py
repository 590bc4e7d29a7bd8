# A file that is only memory, read by a child through its descriptor.
import os
import subprocess

descriptor = os.memfd_create("notes")
os.write(descriptor, b"hello")
os.lseek(descriptor, 0, os.SEEK_SET)
subprocess.check_output(["cat"], stdin=descriptor) == b"hello"
