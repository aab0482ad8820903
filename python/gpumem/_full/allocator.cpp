/* PyTorch's allocator on gpumem: everything that the class CUDAAllocator has, so that all of PyTorch works with it.
 *
 * Compiled against the installed PyTorch when `gpumem.torch.install` is first called (__init__.py). What an allocation needs of gpumem is
 * in libgpumem_torch.so; the functions below that have a device and a stream as parameters call nothing of CUDA, so they are tested on the
 * simulator. */

#include "entry.h"
#include "history.h"
#include "private_pools.h"

#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#define TORCH_VERSION_IS_AT_LEAST(major, minor) \
    (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

namespace gpumem {
namespace {

using namespace c10::cuda::CUDACachingAllocator;
using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;
using c10::CachingDeviceAllocator::DeviceStats;

/* The devices that libgpumem_torch.so serves. */
constexpr DeviceIndex DEVICES_MAX = 64;

void check(gpumem_result result, DeviceIndex device) { gpumem_torch_raise(result, 0, device); }

/* gpumem's figures of a device; all zero before its first use. */
gpumem_status status_of(DeviceIndex device) {
    gpumem_status status{};
    status.struct_size = sizeof status;
    gpumem_pool *const pool = gpumem_torch_made_pool(device);
    if (pool != nullptr) check(gpumem_pool_status(pool, &status), device);
    return status;
}

/* Counts since `resetAccumulatedStats`. */
struct Counts {
    uint64_t allocations, frees, refusals, waits;
};

Counts counts_of(const gpumem_status &status) {
    return {status.allocation_count, status.allocation_count - status.block_count, status.refusal_count, status.host_wait_count};
}

/* Not below zero: other threads may allocate between two figures. */
uint64_t less(uint64_t value, int64_t by) { return static_cast<uint64_t>(std::max<int64_t>(static_cast<int64_t>(value) - by, 0)); }

/* The sum, and all of it in the pool of large blocks: gpumem has no other. */
StatArray all_large(uint64_t current, uint64_t peak, uint64_t allocated = 0, uint64_t freed = 0) {
    Stat stat;
    stat.current = static_cast<int64_t>(current);
    stat.peak = static_cast<int64_t>(std::max(current, peak));
    stat.allocated = static_cast<int64_t>(allocated);
    stat.freed = static_cast<int64_t>(freed);
    StatArray stats;
    stats[static_cast<size_t>(StatType::AGGREGATE)] = stats[static_cast<size_t>(StatType::LARGE_POOL)] = stat;
    return stats;
}

/* What the private pools of a device hold: segments from gpumem and from elsewhere, and the blocks in them. */
struct PrivateSums {
    int64_t segment_count = 0;
    int64_t outside_count = 0;
    int64_t reserved_bytes = 0;
    int64_t outside_bytes = 0;
    Sums allocated;
};

class Allocator final : public CUDAAllocator {
  public:
    /* ---------------------------------------------------------------------------------- with a device and a stream: see above */

    void *allocate_on(size_t size, DeviceIndex device, cudaStream_t stream) {
        if (size == 0) return nullptr;
        void *address = nullptr;
        PrivatePool *const pool = pools_.are_open() ? pools_.route(device, stream) : nullptr;
        MempoolId_t id = pool == nullptr ? MempoolId_t{0, 0} : pool->id;
        const auto request = [&] {
            return pool == nullptr ? gpumem_torch_try_alloc(size, device, stream, &address) : pools_.allocate(*pool, size, stream, &address);
        };
        gpumem_result result = request();
        if (C10_UNLIKELY(result == GPUMEM_ERROR_OUT_OF_MEMORY && run_free_memory_callbacks())) result = request();
        if (C10_UNLIKELY(result == GPUMEM_ERROR_OUT_OF_MEMORY && pool == nullptr)) {
            std::tie(address, id) = pools_.take_on_oom(device, size, stream);
            if (address != nullptr) result = GPUMEM_SUCCESS;
        }
        if (C10_UNLIKELY(result != GPUMEM_SUCCESS)) fail(result, size, device, stream, id);
        if (C10_UNLIKELY(history_.is_watching())) history_.allocated(address, Known{device, id, stream, size, nullptr});
        if (C10_UNLIKELY(c10::memoryProfilingEnabled())) report_to_profiler(address, static_cast<int64_t>(size), device);
        return address;
    }

    void free(void *address) {
        if (address == nullptr) return;
        const bool is_watched = history_.is_watching() || c10::memoryProfilingEnabled();
        if (C10_UNLIKELY(is_watched || pools_.have_blocks())) {
            /* In a forked child the memory stays the parent's. */
            if (gpumem_check_process() != GPUMEM_SUCCESS) return;
            if (is_watched) note_free(address);
            if (pools_.give(address)) return;
        }
        gpumem_torch_free(address, 0, 0, nullptr);
    }

    void record_use(void *address, cudaStream_t stream) {
        if (address == nullptr) return;
        if (pools_.have_blocks() && pools_.record_use(address, stream)) return;
        gpumem_torch_record_stream(address, stream);
    }

    /* ------------------------------------------------------------------------------------------------------------ allocation */

    c10::DataPtr allocate(size_t size) override {
        const DeviceIndex device = c10::cuda::current_device();
        void *const address = size == 0 ? nullptr : allocate_traced(size, device, c10::cuda::getCurrentCUDAStream(device));
        return data_ptr(address, device);
    }

    c10::DeleterFnPtr raw_deleter() const override { return &delete_tensor; }

    void *raw_alloc(size_t size) override {
        const DeviceIndex device = c10::cuda::current_device();
        return size == 0 ? nullptr : allocate_traced(size, device, c10::cuda::getCurrentCUDAStream(device));
    }

    void *raw_alloc_with_stream(size_t size, cudaStream_t stream) override {
        return size == 0 ? nullptr : allocate_traced(size, c10::cuda::current_device(), stream);
    }

    void raw_delete(void *address) override {
        const c10::impl::PyInterpreter *const traced = c10::impl::GPUTrace::get_trace();
        if (C10_UNLIKELY(traced != nullptr))
            (*traced)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<uintptr_t>(address));
        free(address);
    }

    void recordStream(const c10::DataPtr &data, c10::cuda::CUDAStream stream) override {
        /* Memory of other allocators is theirs to keep. */
        if (data.get_deleter() == &delete_tensor) record_use(data.get(), stream.stream());
    }

    void copy_data(void *to, const void *from, size_t size) const override {
        C10_CUDA_CHECK(cudaMemcpy(to, from, size, cudaMemcpyDeviceToDevice));
    }

    void *getBaseAllocation(void *address, size_t *size) override {
        size_t bytes = 0;
        void *base = address;
        const bool is_private = pools_.with_live(address, [&](Segment &segment, Block &) {
            base = segment.start;
            bytes = segment.size;
        });
        if (!is_private) {
            uint64_t found = 0;
            check(gpumem_size(address, &found), 0);
            bytes = found;
        }
        if (size != nullptr) *size = bytes;
        return base;
    }

    /* ---------------------------------------------------------------------------------------------------- state and settings */

    void init(int device_count) override { device_count_.store(static_cast<DeviceIndex>(std::min<int>(device_count, DEVICES_MAX))); }
    bool initialized() override { return device_count_.load() > 0; }
    void enable(bool value) override { is_enabled_.store(value); }
    bool isEnabled() const override { return is_enabled_.load(); }
    std::string name() override { return "gpumem"; }

    double getMemoryFraction(DeviceIndex device) override {
        gpumem_pool *pool = nullptr;
        check(gpumem_torch_pool(device, &pool), device);
        const gpumem_status status = status_of(device);
        return std::min(1.0, static_cast<double>(status.hard_limit_bytes) / static_cast<double>(status.device_total_bytes));
    }

    void setMemoryFraction(double fraction, DeviceIndex device) override {
        TORCH_CHECK(fraction >= 0 && fraction <= 1, "invalid fraction: ", fraction, ". Please set within [0, 1].");
        gpumem_torch_memory_fraction(fraction, device);
    }

    /* Private pools return their memory when they are released. */
    void emptyCache(MempoolId_t id = {0, 0}) override {
        if (id == MempoolId_t{0, 0}) gpumem_torch_empty_cache();
    }

    /* What one request may get, which convolutions take for their workspaces. */
    void cacheInfo(DeviceIndex device, size_t *largest) override {
        const gpumem_status status = status_of(device);
        const uint64_t free_bytes = status.device_total_bytes - std::min(status.device_used_bytes, status.device_total_bytes);
        const uint64_t allowed = status.hard_limit_bytes - std::min(status.in_use_bytes, status.hard_limit_bytes);
        *largest = std::max<size_t>(*largest, std::min(status.cached_bytes + free_bytes, allowed));
    }

    std::vector<StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex) override { return {}; }

    /* ------------------------------------------------------------------------------------------------------------ statistics */

    DeviceStats getDeviceStats(DeviceIndex device) override {
        const PrivateSums kept = private_sums(device);
        const gpumem_status status = status_of(device);
        /* To gpumem, a segment of a private pool is one block, and all of it in use. The peaks are upper bounds. */
        const auto outside_bytes = static_cast<uint64_t>(kept.outside_bytes);
        const int64_t unused = kept.reserved_bytes - static_cast<int64_t>(kept.allocated.bytes);
        const uint64_t allocated = less(status.in_use_bytes + outside_bytes, unused);
        const uint64_t requested = less(allocated, static_cast<int64_t>(kept.allocated.bytes - kept.allocated.requested_bytes));
        const uint64_t reserved = status.reserved_bytes + outside_bytes;
        const uint64_t count =
            less(status.block_count + kept.allocated.count, kept.segment_count - kept.outside_count);
        const Counts now = counts_of(status), then = counts_before(device);
        DeviceStats stats;
        stats.allocation = stats.active = all_large(count, 0, now.allocations - then.allocations, now.frees - then.frees);
        stats.segment = all_large(static_cast<uint64_t>(kept.segment_count), 0);
        stats.allocated_bytes = stats.active_bytes = all_large(allocated, status.in_use_peak_bytes);
        stats.requested_bytes = all_large(requested, status.in_use_peak_bytes);
        stats.reserved_bytes = all_large(reserved, status.reserved_peak_bytes);
        stats.inactive_split_bytes = all_large(less(reserved, static_cast<int64_t>(allocated)), 0);
        stats.num_ooms = static_cast<int64_t>(now.refusals - then.refusals);
        /* Both indicate a shortage of memory: PyTorch's allocator then empties its cache, and gpumem waits for memory. */
        stats.num_alloc_retries = stats.num_sync_all_streams = static_cast<int64_t>(now.waits - then.waits);
        return stats;
    }

    void resetAccumulatedStats(DeviceIndex device) override {
        const Counts now = counts_of(status_of(device));
        const std::lock_guard<std::mutex> guard(mutex_);
        counts_before_.at(static_cast<size_t>(device)) = now;
    }

    void resetPeakStats(DeviceIndex device) override {
        gpumem_pool *const pool = gpumem_torch_made_pool(device);
        if (pool != nullptr) check(gpumem_pool_reset_peaks(pool), device);
    }

    /* ------------------------------------------------------------------------------------------------------ history, snapshots */

    /* Without a pool, the memory of all. */
    SnapshotInfo snapshot(MempoolId_t id = {0, 0}, bool with_traces = true) override {
        SnapshotInfo info;
        if (id == MempoolId_t{0, 0}) {
            for (DeviceIndex device = 0; device < DEVICES_MAX; ++device) add_segments(info.segments, device);
        }
        pools_.for_each([&](const PrivatePool &pool) {
            if (id == MempoolId_t{0, 0} || id == pool.id) add_segments(info.segments, pool);
        });
        if (with_traces) {
            if (history_.is_recording()) history_.happened(TraceEntry::SNAPSHOT, 0, nullptr, 0, nullptr, {0, 0});
            info.device_traces = history_.entries(device_count_.load());
            info.external_annotations = history_.annotations();
        }
        return info;
    }

    bool isHistoryEnabled() override { return history_.is_recording(); }

    void recordHistory(bool enabled, CreateContextFn gather, size_t entries_max, RecordContext when, bool clears,
                       const std::vector<std::string> &skipped) override {
        history_.record(enabled, gather, entries_max, when, clears, skipped);
    }

    void recordAnnotation(const std::vector<std::pair<std::string, std::string>> &texts) override {
        if (history_.is_recording()) history_.annotate(c10::cuda::current_device(), texts);
    }

    void pushCompileContext(std::string &text) override { History::compile_contexts().push_back(text); }
    void popCompileContext() override {
        if (!History::compile_contexts().empty()) History::compile_contexts().pop_back();
    }
    void setUserMetadata(const std::string &text) override { History::metadata() = text; }
    std::string getUserMetadata() override { return History::metadata(); }
    void attachAllocatorTraceTracker(AllocatorTraceTracker tracker) override { history_.track(std::move(tracker)); }

    void attachOutOfMemoryObserver(OutOfMemoryObserver observer) override {
        const std::lock_guard<std::mutex> guard(mutex_);
        observers_.push_back(std::move(observer));
    }

#if TORCH_VERSION_IS_AT_LEAST(2, 12)
    Context getContextForPointer(const void *address) override { return history_.context_of(address); }
    /* gpumem makes room instead of rejecting a request ahead of it. */
    void attachOomRejectionObserver(OomRejectionObserver) override {}
#endif
#if TORCH_VERSION_IS_AT_LEAST(2, 14)
    bool supportsUserMetadata() override { return true; }
    void annotateMemory(const void *address, const std::string &text) override {
        if (history_.is_recording())
            history_.happened(TraceEntry::ANNOTATE, 0, const_cast<void *>(address), 0, nullptr, {0, 0}, text);
    }
#endif

    /* ---------------------------------------------------------------------------------------------------------- private pools */

    void beginAllocateToPool(DeviceIndex device, MempoolId_t id, std::function<bool(cudaStream_t)> includes) override {
        pools_.open(device, id, std::move(includes));
    }
    void endAllocateToPool(DeviceIndex device, MempoolId_t id) override { pools_.close(device, id); }

    void releasePool(DeviceIndex device, MempoolId_t id) override {
        /* Destructors of graphs call it, in a forked child too. */
        if (gpumem_check_process() == GPUMEM_SUCCESS) pools_.release(device, id);
    }

    int getPoolUseCount(DeviceIndex device, MempoolId_t id) override { return pools_.use_count(device, id); }

    void createOrIncrefPool(DeviceIndex device, MempoolId_t id, std::shared_ptr<CUDAAllocator> source = nullptr) override {
        pools_.retain(device, id, source);
    }

    void setUseOnOOM(DeviceIndex device, MempoolId_t id, bool value) override {
        pools_.change(device, id, [=](PrivatePool &pool) { pool.serves_on_oom = value; });
    }

    void setNoSplit(DeviceIndex device, MempoolId_t id) override {
        pools_.change(device, id, [](PrivatePool &pool) { pool.splits = false; });
    }

    bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t id, const std::unordered_set<void *> &expected) override {
        return pools_.has_exactly(device, id, expected);
    }

    std::shared_ptr<AllocatorState> getCheckpointState(DeviceIndex device, MempoolId_t id) override {
        return pools_.checkpoint(device, id);
    }

    CheckpointDelta setCheckpointPoolState(DeviceIndex device, std::shared_ptr<AllocatorState> state) override {
        const auto checkpoint = std::dynamic_pointer_cast<Checkpoint>(state);
        TORCH_CHECK(checkpoint != nullptr, "gpumem: the checkpoint is of another allocator; install gpumem before the first graph");
        auto [freed, allocated] = pools_.restore(device, *checkpoint);
        CheckpointDelta delta;
        delta.ptrs_freed = std::move(freed);
        for (void *const address : allocated) delta.dataptrs_allocd.push_back(data_ptr(address, device));
        return delta;
    }

    /* --------------------------------------------------------------------------------------------- other devices and processes */

    /* gpumem opens its pools to each other itself; this is for other memory. */
    void enablePeerAccess(DeviceIndex device, DeviceIndex peer) override {
        const c10::cuda::CUDAGuard guard(device);
        const cudaError_t result = cudaDeviceEnablePeerAccess(peer, 0);
        if (result == cudaErrorPeerAccessAlreadyEnabled) (void)cudaGetLastError();
        else C10_CUDA_CHECK(result);
    }

    /* Without a link, the driver copies mapped memory only if it is told the devices. */
    cudaError_t memcpyAsync(void *to, int to_device, const void *from, int from_device, size_t size, cudaStream_t stream,
                            bool has_link) override {
        if (has_link || to_device == from_device) return cudaMemcpyAsync(to, from, size, cudaMemcpyDeviceToDevice, stream);
        return cudaMemcpyPeerAsync(to, to_device, from, from_device, size, stream);
    }

    ShareableHandle shareIpcHandle(void *) override { refuse_sharing(); }
    std::shared_ptr<void> getIpcDevPtr(std::string) override { refuse_sharing(); }

  private:
    /* The deleter of all tensors, by which PyTorch tells gpumem's memory from other memory. */
    static void delete_tensor(void *address);

    static c10::DataPtr data_ptr(void *address, DeviceIndex device) {
        return {address, address, &delete_tensor, c10::Device(c10::kCUDA, device)};
    }

    [[noreturn]] static void refuse_sharing() {
        TORCH_CHECK(false, "gpumem does not share CUDA tensors between processes; send tensor.cpu(), or leave out gpumem.torch.install() in "
                           "programs that share them");
    }

    void *allocate_traced(size_t size, DeviceIndex device, cudaStream_t stream) {
        void *const address = allocate_on(size, device, stream);
        const c10::impl::PyInterpreter *const traced = c10::impl::GPUTrace::get_trace();
        if (C10_UNLIKELY(traced != nullptr))
            (*traced)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<uintptr_t>(address));
        return address;
    }

    /* True if a library of the program has freed memory. */
    static bool run_free_memory_callbacks() {
        bool has_freed = false;
        for (const auto &name : c10::FreeCudaMemoryCallbacksRegistry()->Keys())
            has_freed |= c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
        return has_freed;
    }

    [[noreturn]] void fail(gpumem_result result, size_t size, DeviceIndex device, cudaStream_t stream, MempoolId_t id) {
        /* Its text is the thread's last error, which the calls below may replace. */
        std::exception_ptr failure;
        try {
            gpumem_torch_raise(result, size, device);
        } catch (...) {
            failure = std::current_exception();
        }
        if (result == GPUMEM_ERROR_OUT_OF_MEMORY) {
            const gpumem_status status = status_of(device);
            const size_t free_bytes = status.device_total_bytes - std::min(status.device_used_bytes, status.device_total_bytes);
            if (history_.is_watching())
                history_.happened(TraceEntry::OOM, device, reinterpret_cast<void *>(free_bytes), size, stream, id);
            c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(size), status.in_use_bytes, status.reserved_bytes,
                                             c10::Device(c10::kCUDA, device));
            const size_t total = std::min(status.hard_limit_bytes, status.device_total_bytes);
            for (const OutOfMemoryObserver &observer : observers()) observer(device, size, total, free_bytes);
        }
        std::rethrow_exception(failure);
    }

    std::vector<OutOfMemoryObserver> observers() const {
        const std::lock_guard<std::mutex> guard(mutex_);
        return observers_;
    }

    void note_free(void *address) {
        size_t size = 0;
        DeviceIndex device = 0;
        const bool is_private = pools_.with_live(address, [&](Segment &segment, Block &block) {
            size = block.requested;
            device = segment.pool->device;
        });
        if (!is_private) {
            uint64_t bytes = 0;
            uint32_t ordinal = 0;
            if (gpumem_size(address, &bytes) != GPUMEM_SUCCESS || gpumem_ordinal(address, &ordinal) != GPUMEM_SUCCESS) return;
            size = bytes;
            device = static_cast<DeviceIndex>(ordinal);
        }
        if (history_.is_watching()) history_.freed(address, size, device);
        if (c10::memoryProfilingEnabled()) report_to_profiler(address, -static_cast<int64_t>(size), device);
    }

    void report_to_profiler(void *address, int64_t size, DeviceIndex device) const {
        const gpumem_status status = status_of(device);
        c10::reportMemoryUsageToProfiler(address, size, status.in_use_bytes, status.reserved_bytes, c10::Device(c10::kCUDA, device));
    }

    Counts counts_before(DeviceIndex device) const {
        const std::lock_guard<std::mutex> guard(mutex_);
        return counts_before_.at(static_cast<size_t>(device));
    }

    PrivateSums private_sums(DeviceIndex device) const {
        PrivateSums sums;
        pools_.for_each([&](const PrivatePool &pool) {
            if (pool.device != device) return;
            const auto count = static_cast<int64_t>(pool.segments().size()), bytes = static_cast<int64_t>(pool.reserved_bytes());
            sums.segment_count += count;
            sums.reserved_bytes += bytes;
            sums.outside_count += pool.source == nullptr ? 0 : count;
            sums.outside_bytes += pool.source == nullptr ? 0 : bytes;
            sums.allocated.count += pool.allocated().count;
            sums.allocated.bytes += pool.allocated().bytes;
            sums.allocated.requested_bytes += pool.allocated().requested_bytes;
        });
        return sums;
    }

    void add_segments(std::vector<SegmentInfo> &all, DeviceIndex device) const;
    void add_segments(std::vector<SegmentInfo> &all, const PrivatePool &pool) const;

    History history_;
    PrivatePools pools_{history_};
    std::atomic<DeviceIndex> device_count_{0};
    std::atomic<bool> is_enabled_{true};
    /* Guards what follows. */
    mutable std::mutex mutex_;
    std::vector<OutOfMemoryObserver> observers_;
    std::array<Counts, DEVICES_MAX> counts_before_{};
};

/* Never destroyed: tensors may be freed while the process ends. */
Allocator &allocator() {
    static Allocator *const made = new Allocator;
    return *made;
}

void Allocator::delete_tensor(void *address) { allocator().raw_delete(address); }

/* ---------------------------------------------------------------------------------------------------------------- snapshots */

void add_block(SegmentInfo &segment, size_t size, size_t requested, bool is_allocated, bool is_active, Context context = nullptr) {
    if (size == 0) return;
    BlockInfo block;
    block.size = size;
    block.requested_size = requested;
    block.allocated = is_allocated;
    block.active = is_active;
    block.context_when_allocated = std::move(context);
    segment.allocated_size += is_allocated ? size : 0;
    segment.active_size += is_active ? size : 0;
    segment.requested_size += requested;
    segment.blocks.push_back(std::move(block));
}

SegmentInfo segment_at(DeviceIndex device, size_t address, size_t size) {
    SegmentInfo segment;
    segment.device = device;
    segment.address = address;
    segment.total_size = size;
    segment.is_large = true;
    return segment;
}

/* A segment for each range that the device's pool has reserved, and for each block outside them. */
void Allocator::add_segments(std::vector<SegmentInfo> &all, DeviceIndex device) const {
    gpumem_pool *const whole = gpumem_torch_made_pool(device);
    if (whole == nullptr) return;
    struct Range {
        size_t start, size;
    };
    struct Ranges {
        std::vector<Range> reserved, blocks;
    } ranges;
    const auto visit = [](uint32_t kind, void *address, uint64_t size, void *to) {
        auto &found = *static_cast<Ranges *>(to);
        (kind == GPUMEM_RANGE_BLOCK ? found.blocks : found.reserved).push_back({reinterpret_cast<size_t>(address), size});
    };
    check(gpumem_pool_ranges(whole, visit, &ranges), device);
    /* The blocks that are segments of private pools are shown there. */
    std::unordered_set<size_t> shown;
    pools_.for_each([&](const PrivatePool &pool) {
        for (const auto &[start, segment] : pool.segments()) shown.insert(reinterpret_cast<size_t>(start));
    });
    auto block = ranges.blocks.begin();
    const auto add_outside = [&](size_t end) {
        for (; block != ranges.blocks.end() && block->start < end; ++block) {
            if (shown.count(block->start) != 0) continue;
            SegmentInfo own = segment_at(device, block->start, block->size);
            add_block(own, block->size, block->size, true, true, history_.context_of(reinterpret_cast<void *>(block->start)));
            all.push_back(std::move(own));
        }
    };
    for (const Range &range : ranges.reserved) {
        add_outside(range.start);
        size_t start = range.start;
        const size_t range_end = range.start + range.size;
        SegmentInfo segment = segment_at(device, start, 0);
        const auto finish = [&](size_t end) {
            add_block(segment, end - start, 0, false, false);
            segment.total_size = end - segment.address;
            if (segment.total_size > 0) all.push_back(std::move(segment));
            start = end;
        };
        for (; block != ranges.blocks.end() && block->start < range_end; ++block) {
            const auto next = std::next(block);
            const size_t room_end = next == ranges.blocks.end() ? range_end : std::min(next->start, range_end);
            const size_t size = std::min(round_up(block->size, BLOCK_MIN), room_end - block->start);
            if (shown.count(block->start) != 0) {
                finish(block->start);
                start = block->start + size;
                segment = segment_at(device, start, 0);
                continue;
            }
            add_block(segment, block->start - start, 0, false, false);
            add_block(segment, size, block->size, true, true, history_.context_of(reinterpret_cast<void *>(block->start)));
            start = block->start + size;
        }
        finish(range_end);
    }
    add_outside(SIZE_MAX);
}

void Allocator::add_segments(std::vector<SegmentInfo> &all, const PrivatePool &pool) const {
    for (const auto &[start, segment] : pool.segments()) {
        SegmentInfo info = segment_at(pool.device, reinterpret_cast<size_t>(start), segment.size);
        info.stream = segment.stream;
        info.is_large = segment.is_large;
        info.owner_private_pool_id = pool.id;
        for (const auto &[address, block] : segment.blocks) {
            const bool is_allocated = block.state == State::Allocated;
            add_block(info, block.size, block.requested, is_allocated, block.state != State::Free,
                      is_allocated ? history_.context_of(address) : nullptr);
        }
        all.push_back(std::move(info));
    }
}

} // namespace
} // namespace gpumem

/* Makes gpumem PyTorch's allocator. Returns 0 if PyTorch's own has memory already. */
extern "C" __attribute__((visibility("default"))) int gpumem_torch_full_install() {
    auto &current = c10::cuda::CUDACachingAllocator::allocator;
    if (current.load()->initialized()) return 0;
    current.store(&gpumem::allocator());
    c10::SetAllocator(c10::kCUDA, &gpumem::allocator());
    return 1;
}
