"""the returned constant is changed in the cached binary (a flipped bit)"""

from benchmarks.torture.bench import Bench, NotApplicable, Outcome

# A value that is found in the machine code.
VALUE = 0x5A17C3


def run(bench: Bench) -> Outcome:
    bench.write(VALUE)
    bench.prepare(expected=VALUE)
    wanted = VALUE.to_bytes(4, "little"), str(VALUE).encode()
    found = False
    for binary in bench.binaries():
        data = whole = binary.read_bytes()
        for text in wanted:
            data = data.replace(text, bytes([text[0] ^ 1]) + text[1:])
        if data != whole:
            binary.write_bytes(data)
            found = True
    if not found:
        raise NotApplicable("the constant is not in the binary as such")
    return bench.judge(bench.load(), VALUE)
