"""Writes the first events of a recorded program as the pickle that torch.cuda.memory._dump_snapshot writes."""
import gzip, pickle, sys
source, out, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
lines = gzip.open(source, "rt").read().split("\n")[1:]
late = {}
for line in lines:
    p = line.split(",")
    if p[0] == "c":
        late[p[1]] = True
frames = [[{"filename": "steps/train.py", "line": n, "name": f"step{n}"}] for n in range(4)]
trace, where, sizes, top, now = [], {}, {}, 0x7f0000000000, 1_700_000_000_000_000
def add(action, addr, size, stream, n):
    global now
    now += 10
    trace.append({"action": action, "addr": addr, "size": size, "stream": stream, "time_us": now, "compile_context": "N/A",
                  "user_metadata": "", "pool_id": (0, 0), "frames": frames[n % 4]})
start = top
for n, line in enumerate(lines[:count]):
    p = line.split(",")
    if p[0] == "a":
        size = int(p[2]); where[p[1]] = (top, size, int(p[3]) * 0x5000)
        add("alloc", top, size, int(p[3]) * 0x5000, n); top += (size + 511) // 512 * 512
    elif p[0] == "f":
        addr, size, stream = where[p[1]]
        add("free_requested", addr, size, stream, n)
        if p[1] in late: continue
        add("free_completed", addr, size, stream, n); del where[p[1]]
    elif p[0] == "c":
        addr, size, stream = where.pop(p[1]); add("free_completed", addr, size, stream, n)
blocks, at = [], start
for addr, size, stream in sorted(where.values()):
    if addr > at: blocks.append({"address": at, "size": addr - at, "requested_size": 0, "state": "inactive", "frames": []})
    real = (size + 511) // 512 * 512
    blocks.append({"address": addr, "size": real, "requested_size": size, "state": "active_allocated", "frames": frames[0]})
    at = addr + real
if at < top: blocks.append({"address": at, "size": top - at, "requested_size": 0, "state": "inactive", "frames": []})
snapshot = {"segments": [{"device": 0, "address": start, "total_size": top - start, "allocated_size": 0, "active_size": 0,
    "requested_size": 0, "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": True, "frames": [], "blocks": blocks}],
    "device_traces": [trace], "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "garbage_collection_threshold": 0.0,
    "expandable_segments": True, "backend": "native", "release_lock_on_cudamalloc": False, "pinned_use_cuda_host_register": False,
    "roundup_power2_divisions": {"1": 0, "2": 0}}, "external_annotations": []}
with open(out, "wb") as f:
    pickle.dump(snapshot, f)
