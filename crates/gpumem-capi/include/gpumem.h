/* The C interface of gpumem: GPU memory from a pool, in stream order. Made by `cargo xtask header`; do not edit. */

#ifndef GPUMEM_H
#define GPUMEM_H

#include <stddef.h>
#include <stdint.h>

/*
 The version of this header: 10000 × major + 100 × minor + patch. `gpumem_version` returns the library's version.
 */
#define GPUMEM_VERSION 100

/*
 Texts use the names of this interface.
 */
#define GPUMEM_INTERFACE_C 0

/*
 Texts use the names of `gpumem.Pool` in Python.
 */
#define GPUMEM_INTERFACE_PYTHON 1

/*
 Texts use the names of `gpumem.torch`.
 */
#define GPUMEM_INTERFACE_PYTORCH 2

/*
 Texts use the names of `gpumem.cupy`.
 */
#define GPUMEM_INTERFACE_CUPY 3

/*
 Texts use the names of `gpumem.rmm`.
 */
#define GPUMEM_INTERFACE_RMM 4

/*
 Flag: `GPUMEM_CONF`, `GPUMEM_HARD_LIMIT` and the other variables of gpumem set options that the structure leaves unset.
 */
#define GPUMEM_FROM_ENVIRONMENT 1

/*
 `gpumem_pool_sleep` copies the contents of all blocks to pinned host memory, and `gpumem_pool_wake` copies them back.
 */
#define GPUMEM_KEEP_ON_HOST 0

/*
 The contents are lost: the memory is zero after `gpumem_pool_wake`.
 */
#define GPUMEM_KEEP_NOTHING 1

/*
 The work of a use only reads the memory.
 */
#define GPUMEM_USE_READ 0

/*
 The work of a use may write the memory.
 */
#define GPUMEM_USE_WRITE 1

/*
 The range is memory that the pool holds from the device: its blocks, and what is free between them.
 */
#define GPUMEM_RANGE_RESERVED 0

/*
 The range is a live block, with the requested size.
 */
#define GPUMEM_RANGE_BLOCK 1

/*
 The result of a function. After an error, `gpumem_last_error` has the text, and nothing else has changed unless the function says so.
 */
typedef enum gpumem_result {
  /*
   The call succeeded.
   */
  GPUMEM_SUCCESS = 0,
  /*
   A null pointer, an invalid option or text, or a structure of an unknown size.
   */
  GPUMEM_ERROR_INVALID_ARGUMENT = 1,
  /*
   A pool or stream that is null, destroyed, or of another type.
   */
  GPUMEM_ERROR_INVALID_HANDLE = 2,
  /*
   No live block begins at the address: it was freed, or did not come from this library.
   */
  GPUMEM_ERROR_UNKNOWN_ADDRESS = 3,
  /*
   The device or a limit refused the request. The text is the report, with advice.
   */
  GPUMEM_ERROR_OUT_OF_MEMORY = 4,
  /*
   The device, the driver, the backend or the kind of memory does not support the call.
   */
  GPUMEM_ERROR_UNSUPPORTED = 5,
  /*
   There is no driver, or no device with the ordinal.
   */
  GPUMEM_ERROR_NO_DEVICE = 6,
  /*
   The device's context is lost, and nothing on it can be used. After a reset of the device, new pools work; otherwise restart
   the process.
   */
  GPUMEM_ERROR_DEVICE_LOST = 7,
  /*
   A call of the driver failed.
   */
  GPUMEM_ERROR_DRIVER = 8,
  /*
   The objects do not belong together or are in the wrong state: another device, a retired stream, a capture.
   */
  GPUMEM_ERROR_STATE = 9,
  /*
   A defect of this library; the call may have done part of its work.
   */
  GPUMEM_ERROR_PANIC = 10,
  /*
   An environment variable of gpumem is unknown or has an invalid value. The text names it, and the nearest known name.
   */
  GPUMEM_ERROR_ENVIRONMENT = 11,
  /*
   The process was forked from one that had opened a driver, which does not work in the child. Start workers with `exec`, such as
   Python's `spawn`. Functions that free or destroy succeed there and do nothing.
   */
  GPUMEM_ERROR_FORKED = 12,
} gpumem_result;

/*
 Captures that another library begins and ends. The pointer is a number that only this library reads.
 */
typedef struct gpumem_captures gpumem_captures;

/*
 A registered holder of memory. The pointer is a number that only this library reads.
 */
typedef struct gpumem_holder gpumem_holder;

/*
 A pool of GPU memory. The pointer is a number that only this library reads.
 */
typedef struct gpumem_pool gpumem_pool;

/*
 Memory that may move between its uses. The pointer is a number that only this library reads.
 */
typedef struct gpumem_spillable gpumem_spillable;

/*
 A stream of a device. The pointer is a number that only this library reads.
 */
typedef struct gpumem_stream gpumem_stream;

/*
 Receives the report of each request that is refused for lack of memory, before the request returns.

 It runs on the requesting thread, without a lock, and may call any function of this library, for example to free memory or to destroy
 the pool. Requests inside it are not reported. The text is valid during the call. It must return: no exception or `longjmp` may leave
 it.
 */
typedef void (*gpumem_out_of_memory_fn)(const char *report, void *user_data);

/*
 The options of a new pool. Set all bytes to 0, then `struct_size`, then what you need.
 */
typedef struct gpumem_pool_options {
  /*
   `sizeof(gpumem_pool_options)`
   */
  size_t struct_size;
  /*
   The device, counted from 0.
   */
  uint32_t ordinal;
  /*
   `GPUMEM_FROM_ENVIRONMENT`, or 0.
   */
  uint32_t flags;
  /*
   Options by name, `key:value,…`, as in the environment variable `GPUMEM_CONF`: `"backend:caching,kind:host"`. Null for none.
   */
  const char *conf;
  /*
   The hard limit in bytes; 0 for none.
   */
  uint64_t hard_limit_bytes;
  /*
   The soft limit in bytes, above which cached memory is released; 0 for none.
   */
  uint64_t soft_limit_bytes;
  /*
   The path of a file in which the pool records all of its requests, for `gpumem replay`, or null for none. `%p` in it is the process
   ID. Pools of one process with the same path record into one file.
   */
  const char *trace_path;
  /*
   Receives the reports of refused requests; null for none.
   */
  gpumem_out_of_memory_fn on_out_of_memory;
  /*
   Passed to `on_out_of_memory`. It must stay valid while the pool or one of its blocks exists.
   */
  void *user_data;
  /*
   The hard limit as a text, instead of `hard_limit_bytes`: `"2GiB"`, `"50%"` of the device's memory, or `"80%free"` of its free
   memory. Null for none.
   */
  const char *hard_limit;
  /*
   The soft limit as a text, instead of `soft_limit_bytes`. Null for none.
   */
  const char *soft_limit;
  /*
   The interface whose functions and options reports name: `GPUMEM_INTERFACE_C`, or the one of a program that wraps this interface.
   */
  uint32_t interface;
  /*
   Must be 0.
   */
  uint32_t reserved;
  /*
   The other devices that may use the memory: `"all"` with a link, an ordinal (`"1"`), or a list of ordinals (`"[0,1]"`), which must
   have a link. Null for none. Default pools without this option (`"none"` is a value) are open to the default pools of devices with a
   link.
   */
  const char *peers;
} gpumem_pool_options;

/*
 Allocations and frees of a thread in a scope. Set `struct_size` before the call.
 */
typedef struct gpumem_scope_usage {
  /*
   `sizeof(gpumem_scope_usage)`
   */
  size_t struct_size;
  /*
   The sum of allocated bytes.
   */
  uint64_t allocated_bytes;
  /*
   The number of allocated blocks.
   */
  uint64_t allocation_count;
  /*
   The sum of freed bytes, including blocks that were allocated earlier in another scope.
   */
  uint64_t freed_bytes;
  /*
   The number of freed blocks.
   */
  uint64_t free_count;
  /*
   The maximum increase of the bytes in use since the beginning of the scope.
   */
  uint64_t peak_bytes;
} gpumem_scope_usage;

/*
 Frees memory of the program (`gpumem_free`, `cudaFree`). With `is_last_resort` 0, frees memory that is cheap to recreate; with 1,
 everything that the program can do without. Returns 0 on success, or another number, which the report names.

 It runs on a thread that allocates, without a lock of this library, and may call any function of it; an allocation that is refused
 inside it calls no further holders. Several threads may call it at once. It must return: no exception or `longjmp` may leave it.
 */
typedef int32_t (*gpumem_reclaim_fn)(uint32_t is_last_resort, void *user_data);

/*
 A pool's counters at one moment, in bytes unless they count. Set `struct_size` before the call.
 */
typedef struct gpumem_status {
  /*
   `sizeof(gpumem_status)`
   */
  size_t struct_size;
  /*
   Bytes in live blocks.
   */
  uint64_t in_use_bytes;
  /*
   Bytes held from the device.
   */
  uint64_t reserved_bytes;
  /*
   Bytes cached for reuse, including freed memory that waits for work on the device.
   */
  uint64_t cached_bytes;
  /*
   The peak of memory in use.
   */
  uint64_t in_use_peak_bytes;
  /*
   The peak of reserved memory.
   */
  uint64_t reserved_peak_bytes;
  /*
   The number of live blocks, empty ones excluded.
   */
  uint64_t block_count;
  /*
   The number of allocations ever made, empty ones excluded.
   */
  uint64_t allocation_count;
  /*
   The hard limit, if any. `UINT64_MAX` if there is none.
   */
  uint64_t hard_limit_bytes;
  /*
   The soft limit, if any. `UINT64_MAX` if there is none.
   */
  uint64_t soft_limit_bytes;
  /*
   Memory in use on the whole device, by all processes.
   */
  uint64_t device_used_bytes;
  /*
   The total memory of the device.
   */
  uint64_t device_total_bytes;
  /*
   Requests that were refused because memory, a limit, a quota or a budget ran out.
   */
  uint64_t refusal_count;
  /*
   Allocations that no cache of the calling thread served, including those that the backend refused.
   */
  uint64_t slow_allocation_count;
  /*
   Bytes that the pool has returned to the driver.
   */
  uint64_t trimmed_bytes;
  /*
   Driver calls that obtain, map, trim or release memory of the pool.
   */
  uint64_t driver_call_count;
  /*
   Waits that the pool has inserted into streams, on the device.
   */
  uint64_t inserted_wait_count;
  /*
   Waits of the host for the device.
   */
  uint64_t host_wait_count;
  /*
   Bytes that sleep, and are not on the device.
   */
  uint64_t asleep_bytes;
  /*
   Bytes that other libraries hold in this pool.
   */
  uint64_t other_libraries_bytes;
  /*
   Bytes of arrays whose contents are on the host alone, until their next use.
   */
  uint64_t spilled_bytes;
  /*
   Arrays whose contents were moved to the host to make room.
   */
  uint64_t spill_count;
  /*
   Bytes copied to the host to make room.
   */
  uint64_t spilled_down_bytes;
  /*
   Bytes copied back, at the next use or ahead of it.
   */
  uint64_t spilled_up_bytes;
  /*
   The number of arrays whose contents are on the host alone.
   */
  uint64_t spilled_array_count;
  /*
   Bytes of arrays that a repetition of the program's loop needs at once. `UINT64_MAX` if there is none.
   */
  uint64_t spill_needed_bytes;
  /*
   Bytes of arrays that were in device memory at once in such a repetition. `UINT64_MAX` if there is none.
   */
  uint64_t spill_room_bytes;
  /*
   Bytes that each such repetition has to copy at least, in both directions. `UINT64_MAX` if there is none.
   */
  uint64_t spill_least_bytes;
  /*
   The least time of the copies of such a repetition, in nanoseconds, at the measured rates. `UINT64_MAX` if there is none.
   */
  uint64_t spill_least_time_ns;
  /*
   The rate of the copies to the host so far, in bytes per second, as measured by the device. `UINT64_MAX` if there is none.
   */
  uint64_t spilled_down_rate;
  /*
   The rate of the copies from the host so far, in bytes per second, as measured by the device. `UINT64_MAX` if there is none.
   */
  uint64_t spilled_up_rate;
  /*
   Bytes that made room without a copy, because the host had the contents.
   */
  uint64_t spill_avoided_bytes;
  /*
   The time that streams waited on the device for copies of contents; in C and Python, in nanoseconds.
   */
  uint64_t spill_wait_time;
} gpumem_status;

/*
 Receives a range of `gpumem_pool_ranges`, and what it is, such as `GPUMEM_RANGE_BLOCK`. It must return: no exception or `longjmp` may
 leave it.
 */
typedef void (*gpumem_range_fn)(uint32_t kind, void *address, uint64_t size_bytes, void *user_data);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Returns the version of the library, as `GPUMEM_VERSION` counts. A library of the same major version, and before 1.0 of the same minor
 version, serves programs that were compiled with an older header.
 */
uint32_t gpumem_version(void);

/*
 Returns the text of this thread's last error: the problem, the cause and the action. It is empty before the first error and
 while the thread ends, is not reset by a success, and is valid until this thread's next error. Never null.
 */
const char *gpumem_last_error(void);

/*
 Returns `FORKED` if the process was forked from one that had opened a driver, like every function that needs the driver. Succeeds
 otherwise. Takes no lock.
 */
enum gpumem_result gpumem_check_process(void);

/*
 Like `gpumem_last_error`, with the names of functions and options of another interface, such as `GPUMEM_INTERFACE_PYTHON`, for programs
 that wrap this one. The text is valid until this thread's next error or next call of this function.
 */
const char *gpumem_last_error_as(uint32_t interface);

/*
 Creates a pool on a device of the driver that `GPUMEM_DRIVER` names: `cuda`, the default, or `drop-in`, a simulator.

 Errors: `INVALID_ARGUMENT` for a null pointer or an invalid option, `NO_DEVICE` without a driver or a device of that ordinal,
 `UNSUPPORTED` for a backend or a kind that the device lacks, `ENVIRONMENT` for an unknown or invalid environment variable.

 # Safety

 `options` is null, or points to a `struct_size` and to as many bytes as that states, with texts that end with a zero byte; `pool` is
 null or points to a place. `on_out_of_memory` may be called with `user_data` on any thread while the pool or one of its blocks exists.
 */
enum gpumem_result gpumem_pool_create(const struct gpumem_pool_options *options,
                                      struct gpumem_pool **pool);

/*
 Ends the use of a pool. Its blocks stay alive until they are freed, and the pool's memory returns to the driver after the last of
 them. A call on another thread that uses the pool finishes first.

 Errors: `INVALID_HANDLE` for a null pointer or a pool that was destroyed.
 */
enum gpumem_result gpumem_pool_destroy(struct gpumem_pool *pool);

/*
 Returns the device's default pool in this process, which the first call creates from the environment. Every call returns the same
 handle, until it is destroyed; the default pool itself lives until the process ends. After a reset of the device there is a new one.

 Errors: `NO_DEVICE` without a driver or a device of that ordinal, `ENVIRONMENT` for an unknown or invalid environment variable.

 # Safety

 `pool` is null or points to a place.
 */
enum gpumem_result gpumem_pool_for_device(uint32_t ordinal,
                                          struct gpumem_pool **pool);

/*
 Returns the part of a pool with a name, as a handle of its own. The first call with a name creates the part: a pool with the same
 options and with memory of its own, so `gpumem_pool_sleep` lets it sleep while the rest works. Its memory counts against the pool's hard
 limit, if there is one. It lives as long as the pool or one of its blocks.

 Errors: `INVALID_ARGUMENT` for a null pointer or a name that is not UTF-8.

 # Safety

 `name` is null or a text that ends with a zero byte; `part` is null or points to a place.
 */
enum gpumem_result gpumem_pool_part(struct gpumem_pool *pool,
                                    const char *name,
                                    struct gpumem_pool **part);

/*
 Makes a pool the device's default pool, which `gpumem_pool_for_device` returns and which lives until the process ends.

 Errors: `STATE` if the device already has a default pool.
 */
enum gpumem_result gpumem_pool_set_default(struct gpumem_pool *pool);

/*
 Makes a pool of the backend `native` the device's current pool, from which every `cuMemAllocAsync` of the process allocates.
 `gpumem_pool_end_current` or `gpumem_pool_destroy` ends it; calls nest.

 Errors: `UNSUPPORTED` for another backend or kind of memory, or for a limit that an old driver cannot enforce.
 */
enum gpumem_result gpumem_pool_make_current(struct gpumem_pool *pool);

/*
 Ends the latest `gpumem_pool_make_current` of this pool. The pool that was made current before it, or the device's default pool, is
 current again.

 Errors: `STATE` if the pool was not made current.
 */
enum gpumem_result gpumem_pool_end_current(struct gpumem_pool *pool);

/*
 Changes the hard limit. Cached memory beyond a lower limit is released. `UINT64_MAX` removes the limit.

 Errors: `INVALID_ARGUMENT` for a limit below 2 MiB.
 */
enum gpumem_result gpumem_pool_set_hard_limit(struct gpumem_pool *pool, uint64_t limit_bytes);

/*
 Changes the soft limit, above which cached memory is released. `UINT64_MAX` removes the limit.
 */
enum gpumem_result gpumem_pool_set_soft_limit(struct gpumem_pool *pool, uint64_t limit_bytes);

/*
 Like `gpumem_pool_set_hard_limit`, with a text: `"2GiB"`, `"50%"` of the device's memory, or `"80%free"` of its free memory.

 Errors: `INVALID_ARGUMENT` for a text that is not a limit, or a limit below 2 MiB.

 # Safety

 `limit` is null, or ends with a zero byte.
 */
enum gpumem_result gpumem_pool_set_hard_limit_text(struct gpumem_pool *pool,
                                                   const char *limit);

/*
 Like `gpumem_pool_set_soft_limit`, with a text like the one of `gpumem_pool_set_hard_limit_text`.

 Errors: `INVALID_ARGUMENT` for a text that is not a limit.

 # Safety

 `limit` is null, or ends with a zero byte.
 */
enum gpumem_result gpumem_pool_set_soft_limit_text(struct gpumem_pool *pool, const char *limit);

/*
 Releases cached memory until `keep_bytes` are reserved, without waiting. `released_bytes` may be null.

 # Safety

 `released_bytes` is null or points to a place.
 */
enum gpumem_result gpumem_pool_trim(struct gpumem_pool *pool, uint64_t keep_bytes, uint64_t *released_bytes);

/*
 Waits for the device, then releases all memory that no block holds. `released_bytes` may be null.

 # Safety

 `released_bytes` is null or points to a place.
 */
enum gpumem_result gpumem_pool_reclaim(struct gpumem_pool *pool, uint64_t *released_bytes);

/*
 Releases the physical memory of the pool to the device, after a wait for the device. Blocks keep their addresses, so captured graphs and
 stored addresses are valid again after `gpumem_pool_wake`. A server that alternates between training and inference lets the memory of
 one phase sleep during the other. `keep` is `GPUMEM_KEEP_ON_HOST` or `GPUMEM_KEEP_NOTHING`.

 While the pool sleeps, blocks may be freed, and allocations are errors (`STATE`). The program must queue no work that uses the memory.

 Errors: `UNSUPPORTED` unless the backend is `caching` over virtual memory of the device; `STATE` if the pool sleeps already, during a
 capture, or for a pool whose memory other processes use; `DRIVER` if a call fails, for example because the host has too little memory.
 The pool is then awake, or `gpumem_pool_wake` wakes it.
 */
enum gpumem_result gpumem_pool_sleep(struct gpumem_pool *pool,
                                     uint32_t keep);

/*
 Creates the memory of a sleeping pool again, at the same addresses. Does nothing if the pool is awake.

 Errors: `OUT_OF_MEMORY`, with the report as text, if the device or a limit refuses; `STATE` if another thread is putting the pool to
 sleep or waking it; `DRIVER` if a call fails. The pool then still sleeps: call it again, for example after memory was freed.
 */
enum gpumem_result gpumem_pool_wake(struct gpumem_pool *pool);

/*
 Waits until everything that the pool has recorded is in its trace file (`trace_path` or `GPUMEM_TRACE`).

 Errors: `STATE` for a pool without a trace, after the timeout, or if the file cannot be written.
 */
enum gpumem_result gpumem_pool_flush_trace(struct gpumem_pool *pool, uint64_t timeout_ms);

/*
 Creates a stream on the pool's device. `gpumem_stream_destroy` ends it.

 # Safety

 `stream` is null or points to a place.
 */
enum gpumem_result gpumem_stream_create(struct gpumem_pool *pool, struct gpumem_stream **stream);

/*
 Wraps a stream (`CUstream`, `cudaStream_t`) that another library created and will destroy. Null is the default stream.

 Errors: `STATE` for a stream of another context, and for one that is part of a capture, unless captures were announced
 (`gpumem_captures_expect`). The capture continues.

 # Safety

 - `raw` is null or a stream of the device's primary context, alive in every call that uses the result.
 - Before it is destroyed, call `gpumem_stream_retire`, or do not use the result in later calls.
 - `stream` is null or points to a place.
 */
enum gpumem_result gpumem_stream_borrow(struct gpumem_pool *pool,
                                        void *raw,
                                        struct gpumem_stream **stream);

/*
 Wraps a stream of another library that lives as long as the process uses the device, such as PyTorch's. Every call with one stream
 returns the same handle until it is retired or destroyed, so a program that has only the `CUstream` may call this for each request.
 `CU_STREAM_PER_THREAD` (2) is the calling thread's default stream: each thread has its own handle, which is destroyed when the thread
 ends.

 Errors: `STATE` for a stream of another context, and, in the first call with a stream, for one that is part of a capture
 (`gpumem_captures_expect`).

 # Safety

 - `raw` is null or a stream of the device's primary context, and is not destroyed before `gpumem_stream_retire` has returned.
 - `stream` is null or points to a place.
 */
enum gpumem_result gpumem_stream_long_lived(struct gpumem_pool *pool,
                                            void *raw,
                                            struct gpumem_stream **stream);

/*
 Declares that the owner of a borrowed or long-lived stream is about to destroy it. Only work queued so far counts, and later calls that
 name the stream are errors.

 Errors: `STATE` if it was retired before.
 */
enum gpumem_result gpumem_stream_retire(struct gpumem_stream *stream);

/*
 Ends the use of a handle. A stream of `gpumem_stream_create` is destroyed; a stream of another library is not.

 Errors: `INVALID_HANDLE` for a null pointer or a stream that was destroyed.
 */
enum gpumem_result gpumem_stream_destroy(struct gpumem_stream *stream);

/*
 Returns the driver's handle of a stream (`CUstream`, `cudaStream_t`).

 # Safety

 `raw` is null or points to a place.
 */
enum gpumem_result gpumem_stream_raw(struct gpumem_stream *stream, void **raw);

/*
 Makes later work on `stream` wait, on the device, for the work queued so far on `other`.
 */
enum gpumem_result gpumem_stream_wait_for(struct gpumem_stream *stream, struct gpumem_stream *other);

/*
 Waits on the host for the work queued on a stream.
 */
enum gpumem_result gpumem_stream_synchronize(struct gpumem_stream *stream);

/*
 Allocates memory for work that is queued on `stream` from now on. `address` becomes a device address (`CUdeviceptr`), which is also a
 host pointer for pools of host or unified memory. For 0 bytes it becomes null, which need not be freed.

 Errors: `OUT_OF_MEMORY`, with the report as text; `STATE` for a stream of another device or one that was retired.

 # Safety

 `address` is null or points to a place.
 */
enum gpumem_result gpumem_alloc(struct gpumem_pool *pool,
                                uint64_t size_bytes,
                                struct gpumem_stream *stream,
                                void **address);

/*
 Like `gpumem_alloc`, on a stream (`CUstream`, `cudaStream_t`) that another library created and may destroy after the call. Null is the
 default stream. It is for allocators that receive the stream with each request; `gpumem_alloc` with a handle is faster.

 Errors: `OUT_OF_MEMORY`, with the report as text; `STATE` for a stream of another context, and for one that is part of a capture, unless
 captures were announced (`gpumem_captures_expect`). The capture continues.

 # Safety

 `raw` is null or a live stream of the device's primary context; `address` is null or points to a place.
 */
enum gpumem_result gpumem_alloc_borrowed(struct gpumem_pool *pool,
                                         uint64_t size_bytes,
                                         void *raw,
                                         void **address);

/*
 Frees memory of any pool by its address. It is reused once the work queued so far on its stream, and on the streams of
 `gpumem_record_use`, is complete; the call does not wait. Null is ignored. In a forked child the memory stays the parent's.

 Errors: `UNKNOWN_ADDRESS` for an address that was freed, lies inside a block, or came from another allocator.
 */
enum gpumem_result gpumem_free(void *address);

/*
 Like `gpumem_free`, in a call that names the stream that used the memory last. For borrowed streams this lets other streams reuse the
 memory earlier.

 Errors: those of `gpumem_free`; `INVALID_HANDLE` or `STATE` for a wrong stream, such as a retired one. The memory is then not freed.
 */
enum gpumem_result gpumem_free_on(void *address,
                                  struct gpumem_stream *stream);

/*
 Like `gpumem_free_on`, on a stream (`CUstream`, `cudaStream_t`) that another library created and may destroy after the call. Null is the
 default stream.

 Errors: those of `gpumem_free`; `STATE` for a stream of another context, and for one that is part of a capture, unless captures were
 announced. The memory is then not freed.

 # Safety

 `raw` is null or a live stream of the primary context of the memory's device.
 */
enum gpumem_result gpumem_free_borrowed(void *address,
                                        void *raw);

/*
 Records that work on another stream uses the memory: the free waits, on the device, for all work queued on that stream before the free.
 Make that stream wait for the memory's own stream before its first use (`gpumem_stream_wait_for`).

 Errors: `UNKNOWN_ADDRESS` for an address without a live block; `STATE` for a stream that was retired, or another thread's default
 stream. Nothing is then recorded.
 */
enum gpumem_result gpumem_record_use(void *address,
                                     struct gpumem_stream *stream);

/*
 Returns the size that was requested for the block at an address.

 Errors: `UNKNOWN_ADDRESS` for an address without a live block.

 # Safety

 `size_bytes` is null or points to a place.
 */
enum gpumem_result gpumem_size(void *address, uint64_t *size_bytes);

/*
 Returns the device of the block at an address, counted from 0.

 Errors: `UNKNOWN_ADDRESS` for an address without a live block.

 # Safety

 `ordinal` is null or points to a place.
 */
enum gpumem_result gpumem_ordinal(void *address, uint32_t *ordinal);

/*
 Announces that another library is about to begin captures (`cuStreamBeginCapture`) on streams of the pool's device. From now on calls
 that name a stream ask the driver whether it captures.

 # Safety

 `captures` is null or points to a place.
 */
enum gpumem_result gpumem_captures_expect(struct gpumem_pool *pool,
                                          struct gpumem_captures **captures);

/*
 Announces further captures, after `gpumem_captures_end`. They share memory with the earlier ones: later captures reuse what earlier ones
 have freed. Their graphs must run one after another, in the order of their captures. Before `gpumem_captures_end` it has no effect.
 */
enum gpumem_result gpumem_captures_expect_more(struct gpumem_captures *captures);

/*
 Adds the capture that a stream is part of, if any. Call it before each allocation on a stream that may capture: memory that is
 allocated, freed or used in the capture from now on is kept until `gpumem_captures_destroy`.

 Errors: `STATE` if the stream's capture is broken.
 */
enum gpumem_result gpumem_captures_add(struct gpumem_captures *captures,
                                       struct gpumem_stream *stream);

/*
 Declares that the captures have ended (`cuStreamEndCapture`). Waits until their graphs may be launched on any stream.

 A capture that is still active continues and keeps its memory, and the call succeeds: the next call ends it, or another set that has
 added it. After the call no capture is added, until `gpumem_captures_expect_more`.

 Errors: `STATE` if another capture prevents the wait; the next call waits again.
 */
enum gpumem_result gpumem_captures_end(struct gpumem_captures *captures);

/*
 Declares that the graphs of the captures will not be launched again. Waits for the device, and releases their memory.
 */
enum gpumem_result gpumem_captures_destroy(struct gpumem_captures *captures);

/*
 Opens a scope on the calling thread: until `gpumem_scope_end`, the thread's allocations from the pool count for the tag, in the text of
 the status and in reports. In nested scopes the innermost counts. Scopes of one name share their tag, on all threads. `scope` becomes a
 number that only this thread may end; the thread's scopes end with it.

 Errors: `INVALID_ARGUMENT` for a null pointer or a tag that is not UTF-8; `STATE` on a thread that is ending.

 # Safety

 `tag` is null or a text that ends with a zero byte; `scope` is null or points to a place.
 */
enum gpumem_result gpumem_scope_begin(struct gpumem_pool *pool,
                                      const char *tag,
                                      uint64_t *scope);

/*
 Ends a scope of the calling thread, in any order. `usage` may be null.

 Errors: `STATE` for a scope that was ended, or that another thread has opened.

 # Safety

 `usage` is null, or points to a `struct_size` and to as many bytes as that states.
 */
enum gpumem_result gpumem_scope_end(uint64_t scope, struct gpumem_scope_usage *usage);

/*
 Registers a function that frees memory when a request of any pool on the same device would otherwise be refused, and in
 `gpumem_pool_reclaim`. It is called for requests of the pool's kind of memory: host memory, or device memory. `name` is for reports.

 Errors: `INVALID_ARGUMENT` for a null pointer or a name that is not UTF-8.

 # Safety

 `name` is null or a text that ends with a zero byte; `holder` is null or points to a place. `reclaim` may be called with `user_data` on
 any thread until `gpumem_holder_unregister` and all calls that began before it have returned.
 */
enum gpumem_result gpumem_holder_register(struct gpumem_pool *pool,
                                          const char *name,
                                          gpumem_reclaim_fn reclaim,
                                          void *user_data,
                                          struct gpumem_holder **holder);

/*
 Ends a registration: no later request calls the function. A call on another thread may still be running.

 Errors: `INVALID_HANDLE` for a null pointer or a holder that was unregistered.
 */
enum gpumem_result gpumem_holder_unregister(struct gpumem_holder *holder);

/*
 Makes the block at an address spillable: while the pool is short of memory, its contents may move to the host, unless a use is open. The
 block has no fixed address from now on, and `address` is unknown to other functions: `gpumem_spillable_begin` returns the address of a
 use, `gpumem_spillable_free` frees the memory. In a pool that does not spill, and for blocks of less than 64 KiB, all of this works, and
 the address stays. Up to 4096 blocks may be spillable at a time. Call it once the work that is queued on the block has been recorded
 (`gpumem_record_use`).

 Errors: `UNKNOWN_ADDRESS` for an address without a live block; `INVALID_ARGUMENT` for a null pointer; `STATE` for too many. Then the block is
 as it was.

 # Safety

 `memory` is null or points to a place.
 */
enum gpumem_result gpumem_spillable_create(struct gpumem_pool *pool,
                                           void *address,
                                           struct gpumem_spillable **memory);

/*
 Begins a use by work that will be queued on `stream`: brings the contents back if they are on the host, makes the stream wait for them on the
 device, and returns their address, which is valid until `gpumem_spillable_end` with this stream. `access` is `GPUMEM_USE_READ` or
 `GPUMEM_USE_WRITE`. Several uses may be open at once, on one stream or several; as with other memory, the caller orders the streams of
 conflicting uses.

 Errors: `OUT_OF_MEMORY`, with the report as text; `STATE` for a stream that was retired, belongs to another device, or is part of an announced
 capture (`gpumem_captures_expect`), whose graph would keep the address; `INVALID_HANDLE`. No use has then begun.

 # Safety

 `address` is null or points to a place.
 */
enum gpumem_result gpumem_spillable_begin(struct gpumem_spillable *memory,
                                          struct gpumem_stream *stream,
                                          uint32_t access,
                                          void **address);

/*
 Ends the latest open use on `stream`: its work has been queued. Moves of the contents, and their end, are ordered behind it.

 Errors: `STATE` if no use is open on the stream, or for a stream that was retired: then the memory does not move any more;
 `INVALID_HANDLE`.
 */
enum gpumem_result gpumem_spillable_end(struct gpumem_spillable *memory,
                                        struct gpumem_stream *stream);

/*
 Frees the memory, wherever it is, in the order of the streams that used it; see `gpumem_free`. Null is ignored.

 Errors: `STATE` while a use is open; `INVALID_HANDLE` for memory that was freed.
 */
enum gpumem_result gpumem_spillable_free(struct gpumem_spillable *memory);

/*
 Writes a pool's counters.

 # Safety

 `status` is null, or points to a `struct_size` and to as many bytes as that states.
 */
enum gpumem_result gpumem_pool_status(struct gpumem_pool *pool, struct gpumem_status *status);

/*
 Writes a pool's counters as text that ends with a zero byte, cut to `capacity_bytes`. `length_bytes`, which may be null, becomes the
 length of the whole text without the zero byte; pass a null `text` to get only the length.

 # Safety

 `text` is null or points to `capacity_bytes`; `length_bytes` is null or points to a place.
 */
enum gpumem_result gpumem_pool_status_text(struct gpumem_pool *pool,
                                           char *text,
                                           size_t capacity_bytes,
                                           size_t *length_bytes);

/*
 Writes a pool's counters as JSON, those of its tags and streams included. The text is written like that of `gpumem_pool_status_text`.

 # Safety

 `text` is null or points to `capacity_bytes`; `length_bytes` is null or points to a place.
 */
enum gpumem_result gpumem_pool_status_json(struct gpumem_pool *pool,
                                           char *text,
                                           size_t capacity_bytes,
                                           size_t *length_bytes);

/*
 Writes the report of a request that the driver has refused to another library, which allocates from this pool
 (`gpumem_pool_make_current`): the memory in use and its holders, the limits, and advice. It describes the state at the call; no request
 is made. The text is written like that of `gpumem_pool_status_text`, with the names of an interface, such as `GPUMEM_INTERFACE_C`.

 # Safety

 `text` is null or points to `capacity_bytes`; `length_bytes` is null or points to a place.
 */
enum gpumem_result gpumem_pool_explain_refusal(struct gpumem_pool *pool,
                                               uint64_t size_bytes,
                                               uint32_t interface,
                                               char *text,
                                               size_t capacity_bytes,
                                               size_t *length_bytes);

/*
 Calls `visit` with each range of memory that the pool holds from the device, in order, and then with each live block of its device that
 this library has allocated, from any pool, in order. The call describes one moment; `visit` runs after it, without a lock, and may call
 any function of this library. Pools of the backends `native` and `none` have blocks only.

 Errors: `INVALID_ARGUMENT` for a null pointer.

 # Safety

 `visit` may be called with `user_data` until this call returns.
 */
enum gpumem_result gpumem_pool_ranges(struct gpumem_pool *pool,
                                      gpumem_range_fn visit,
                                      void *user_data);

/*
 Resets the peaks that `gpumem_pool_status` reports.
 */
enum gpumem_result gpumem_pool_reset_peaks(struct gpumem_pool *pool);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* GPUMEM_H */
