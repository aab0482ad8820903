"""The seconds that tinygrad's PTX emulator takes for a kernel, the best of some rounds.

usage: tinygrad.py EMULATOR TEXT BLOCKS BLOCK_THREADS NUMBER WORDS ROUNDS
"""

import ctypes
import importlib.util
import sys
import time

emulator, text = sys.argv[1:3]
blocks, threads, number, words, rounds = map(int, sys.argv[3:])
spec = importlib.util.spec_from_file_location("emu", emulator)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)

a = (ctypes.c_float * words)(*[at % 64 for at in range(words)])
b = (ctypes.c_float * words)()
arguments = [ctypes.addressof(a), ctypes.addressof(b), number]
source = ctypes.create_string_buffer(text.encode())
seconds = []
for _ in range(rounds):
    start = time.perf_counter()
    module.ptx_run(ctypes.cast(source, ctypes.c_char_p), 3, arguments, threads, 1, 1, blocks, 1, 1, 0)
    seconds.append(time.perf_counter() - start)
print(min(seconds))
