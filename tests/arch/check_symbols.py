#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rules of the house that only the linker's view can be asked about; prints TAP.

    check_symbols.py INCLUDE-DIR libkvroute.so libkvroute.a [libproto.a libengine.a ...]

The shared library exports the public functions and nothing else. The static ones, which are the layers without I/O, call
nothing that reads a clock, draws a random number, opens, reads or prints anything, or starts a thread; and they have no
variables that outlive a call. Each rule is first tried on an object with a planted offence.
"""

import glob
import os
import re
import subprocess
import sys
import tempfile

REFUSED = re.compile(
    r"(?:__)?(?:"
    # standard streams, files, descriptors
    r"f?printf|vf?printf|v?dprintf|perror|f?puts|f?putc|putchar|puts|fopen|fdopen|freopen|fclose|fread|fwrite|fflush|fgets"
    r"|getline|getdelim|stdin|stdout|stderr|v?syslog|open(?:at)?|creat|read|p?readv?|write|p?writev?|close|ioctl|fcntl"
    r"|unlink|rename|l?stat|fstat|opendir|readdir|pipe2?|dup2?"
    # network and event loops
    r"|socket|connect|accept4?|bind|listen|send|sendto|sendmsg|recv|recvfrom|recvmsg|shutdown|getaddrinfo|poll|ppoll|select"
    r"|epoll_\w+|eventfd|timerfd_\w+|uv_\w+"
    # clock and chance
    r"|time|clock|clock_gettime|gettimeofday|localtime(?:_r)?|gmtime(?:_r)?|nanosleep|usleep|sleep|s?rand|s?random|rand_r"
    r"|[dejlmn]rand48|getrandom|getentropy|arc4random\w*"
    # the process
    r"|fork|vfork|exec\w*|system|popen|exit|_exit|(?:secure_)?getenv|setenv|signal|sigaction|kill|pthread_create|thrd_create"
    r")(?:_chk|64)?")


def nm(arguments):
    done = subprocess.run(["nm"] + arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.split("\n")


def refused_calls(library):
    """Symbols the library needs from elsewhere that are on the list, with the object that needs them."""
    bad = []
    for line in nm(["-A", "--undefined-only", library]):
        match = re.match(r"(.*):\s+U (\S+)$", line)
        if match and REFUSED.fullmatch(match.group(2).split("@")[0]):
            bad.append("%s calls %s" % (match.group(1).replace(library, os.path.basename(library)), match.group(2)))
    return bad


def variables(library):
    """Objects in writable sections. Tables of pointers to constants lie in .data.rel.ro and are none."""
    bad = []
    for line in nm(["--format=sysv", "--defined-only", library]):
        fields = [f.strip() for f in line.split("|")]
        if len(fields) == 7 and re.match(r"\.(data|bss|tdata|tbss)(?!\.rel\.ro)|\*COM\*", fields[6]):
            bad.append("%s: variable %s in %s" % (os.path.basename(library), fields[0], fields[6]))
    return bad


def exported(shared):
    names = set()
    for line in nm(["-D", "--defined-only", shared]):
        match = re.match(r"[0-9a-f]+ [A-Z] (\S+)$", line)
        if match:
            names.add(match.group(1).split("@")[0])
    return names


def declared(include_dir):
    names = set()
    for header in glob.glob(os.path.join(include_dir, "**", "*.h"), recursive=True):
        with open(header, encoding="utf-8") as f:
            text = re.sub(r"/\*.*?\*/", " ", f.read(), flags=re.S)
        text = re.sub(r"^\s*#\s*define(?:.*\\\n)*.*$", "", text, flags=re.M)
        for statement in re.findall(r"KVR_PUBLIC\b([^;{]*);", text):
            match = re.search(r"\b(kvr_\w+)\s*\(", statement)
            if match:
                names.add(match.group(1))
    return names


def planted(folder, source):
    """An archive in this folder with one object made of this source."""
    c, o, a = (os.path.join(folder, "planted." + e) for e in ("c", "o", "a"))
    with open(c, "w", encoding="utf-8") as f:
        f.write(source)
    subprocess.run([os.environ.get("CC", "cc"), "-O1", "-c", c, "-o", o], stdin=subprocess.DEVNULL, check=True)
    subprocess.run(["ar", "rcs", a, o], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return a


def main():
    include_dir, shared, layers = sys.argv[1], sys.argv[2], sys.argv[3:]
    with tempfile.TemporaryDirectory(prefix="kvroute-arch-") as folder:
        call_seen = refused_calls(planted(folder, "#include <time.h>\nlong f(void);\n"
                                                  "long f(void) { return (long)time(0); }\n"))
        variable_seen = variables(planted(folder, "int f(void);\nint f(void) { static int n; return ++n; }\n"))
    out_of_step = exported(shared) ^ declared(include_dir)
    results = [
        ("a planted call is found", [] if call_seen else ["not found"]),
        ("a planted variable is found", [] if variable_seen else ["not found"]),
        ("libkvroute.so exports what the public headers declare, and nothing else",
         ["%s is %s" % (n, "exported but not declared" if n in exported(shared) else "declared but not exported")
          for n in sorted(out_of_step)]),
    ]
    for library in layers:
        name = os.path.basename(library)
        results.append((name + " has no I/O, no clock, no chance, no threads of its own", refused_calls(library)))
        results.append((name + " has no variables that outlive a call", variables(library)))
    print("1..%d" % len(results))
    for number, (title, bad) in enumerate(results, 1):
        print("%s %d - %s" % ("not ok" if bad else "ok", number, title))
        for line in bad[:50]:
            print("#   " + line)
    return 1 if any(bad for _, bad in results) else 0


if __name__ == "__main__":
    sys.exit(main())
