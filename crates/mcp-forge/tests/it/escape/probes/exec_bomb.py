# A6: many programs, started with vfork and exec.
import subprocess

most, programs = HOST["pids"] + 20, []
try:
    for _ in range(most):
        programs.append(subprocess.Popen(["/bin/sleep", "1000"]))
except OSError as problem:
    tried["stopped by"] = str(problem)
attempt("more than the limit", lambda: len(programs) > HOST["pids"])
for program in programs:
    program.kill()
    program.wait()
verdict(programs=len(programs))
