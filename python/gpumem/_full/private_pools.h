/* The private pools of a process, and the allocations that are routed to them. */

#pragma once

#include "history.h"
#include "private_pool.h"

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace gpumem {

class PrivatePools {
  public:
    explicit PrivatePools(History &history) : history_(history) {}

    /* True if an allocation may belong to a private pool. */
    bool are_open() const { return open_count_.load(std::memory_order_acquire) != 0; }
    /* True if a free may be of a private pool's block. */
    bool have_blocks() const { return live_count_.load(std::memory_order_acquire) != 0; }

    void retain(DeviceIndex device, MempoolId_t id, const std::shared_ptr<CUDAAllocator> &source) {
        const std::lock_guard<std::mutex> guard(mutex_);
        entry(device, id, source).use_count += 1;
    }

    /* Routes this device's allocations on streams that `includes` names to the pool. */
    void open(DeviceIndex device, MempoolId_t id, std::function<bool(cudaStream_t)> includes) {
        gpumem_pool *whole = nullptr;
        gpumem_torch_raise(gpumem_torch_pool(device, &whole), 0, device);
        const std::lock_guard<std::mutex> guard(mutex_);
        PrivatePool &pool = entry(device, id, nullptr);
        const gpumem_result announced =
            pool.captures == nullptr ? gpumem_captures_expect(whole, &pool.captures) : gpumem_captures_expect_more(pool.captures);
        gpumem_torch_raise(announced, 0, device);
        pool.use_count += 1;
        open_.push_back(Open{&pool, std::move(includes)});
        open_count_.store(open_.size(), std::memory_order_release);
    }

    void close(DeviceIndex device, MempoolId_t id) {
        gpumem_captures *ended = nullptr;
        {
            const std::lock_guard<std::mutex> guard(mutex_);
            const auto closed = std::find_if(open_.begin(), open_.end(),
                                             [&](const Open &open) { return open.pool->device == device && open.pool->id == id; });
            if (closed == open_.end()) return;
            PrivatePool &pool = *closed->pool;
            open_.erase(closed);
            open_count_.store(open_.size(), std::memory_order_release);
            if (is_open(pool)) return;
            ended = pool.captures;
            /* Until here a wait could have become part of a graph. */
            pool.settle();
        }
        /* Waits for the device. */
        gpumem_torch_raise(gpumem_captures_end(ended), 0, device);
    }

    /* The last release returns the pool's free memory to gpumem; the rest follows with its last tensors. */
    void release(DeviceIndex device, MempoolId_t id) {
        gpumem_captures *ended = nullptr;
        {
            const std::lock_guard<std::mutex> guard(mutex_);
            const auto found = pools_.find({device, id});
            if (found == pools_.end() || found->second->use_count == 0) return;
            if (--found->second->use_count > 0) return;
            ended = std::exchange(found->second->captures, nullptr);
        }
        /* Waits for the device, which runs the graphs. */
        if (ended != nullptr) gpumem_captures_destroy(ended);
        Emptied emptied;
        {
            const std::lock_guard<std::mutex> guard(mutex_);
            emptied = take_unused(device, id);
        }
        end(emptied);
    }

    int use_count(DeviceIndex device, MempoolId_t id) const {
        const std::lock_guard<std::mutex> guard(mutex_);
        const auto found = pools_.find({device, id});
        return found == pools_.end() ? 0 : found->second->use_count;
    }

    /* Changes a pool under the lock. */
    template <typename Change> void change(DeviceIndex device, MempoolId_t id, Change change) {
        const std::lock_guard<std::mutex> guard(mutex_);
        change(existing(device, id));
    }

    /* The open pool that an allocation belongs to; null for none. An open pool stays. */
    PrivatePool *route(DeviceIndex device, cudaStream_t stream) const {
        const std::lock_guard<std::mutex> guard(mutex_);
        const auto found = std::find_if(open_.rbegin(), open_.rend(),
                                        [&](const Open &open) { return open.pool->device == device && open.includes(stream); });
        return found == open_.rend() ? nullptr : found->pool;
    }

    gpumem_result allocate(PrivatePool &pool, size_t size, cudaStream_t stream, void **address) {
        const gpumem_result added = gpumem_torch_add_capture(pool.captures, pool.device, stream);
        if (added != GPUMEM_SUCCESS) return added;
        while ((*address = take(pool, size, stream)) == nullptr) {
            const gpumem_result grown = grow(pool, size, stream);
            if (grown != GPUMEM_SUCCESS) return grown;
        }
        return GPUMEM_SUCCESS;
    }

    /* Free memory of a pool that serves others once the device is out of memory. */
    std::pair<void *, MempoolId_t> take_on_oom(DeviceIndex device, size_t size, cudaStream_t stream) {
        const std::lock_guard<std::mutex> guard(mutex_);
        for (const auto &[key, pool] : pools_) {
            if (key.first != device || !pool->serves_on_oom) continue;
            if (void *const address = take_locked(*pool, size, stream)) return {address, key.second};
        }
        return {nullptr, {0, 0}};
    }

    /* False if the address is not of a private pool. */
    bool give(void *address) {
        Emptied emptied;
        {
            const std::lock_guard<std::mutex> guard(mutex_);
            const auto found = live_.find(address);
            if (found == live_.end()) return false;
            Segment &segment = *found->second;
            PrivatePool &pool = *segment.pool;
            forget(found);
            pool.give(segment, static_cast<char *>(address));
            if (!is_open(pool)) pool.settle();
            if (pool.use_count == 0) emptied = take_unused(pool.device, pool.id);
        }
        end(emptied);
        return true;
    }

    bool record_use(void *address, cudaStream_t stream) {
        return with_live(address, [=](Segment &segment, Block &block) {
            const bool is_known = std::find(block.uses.begin(), block.uses.end(), stream) != block.uses.end();
            if (stream != segment.stream && !is_known) block.uses.push_back(stream);
        });
    }

    /* Calls `work` with the segment and the block at an address. False if it is not of a private pool. */
    template <typename Work> bool with_live(void *address, Work work) {
        const std::lock_guard<std::mutex> guard(mutex_);
        const auto found = live_.find(address);
        if (found == live_.end()) return false;
        work(*found->second, found->second->blocks.at(static_cast<char *>(address)));
        return true;
    }

    template <typename Visit> void for_each(Visit visit) const {
        const std::lock_guard<std::mutex> guard(mutex_);
        for (const auto &[key, pool] : pools_) visit(*pool);
    }

    std::shared_ptr<Checkpoint> checkpoint(DeviceIndex device, MempoolId_t id) {
        const std::lock_guard<std::mutex> guard(mutex_);
        return existing(device, id).checkpoint();
    }

    /* The addresses that were allocated before, and those that are now. */
    std::pair<std::vector<void *>, std::vector<void *>> restore(DeviceIndex device, const Checkpoint &state) {
        const std::lock_guard<std::mutex> guard(mutex_);
        PrivatePool &pool = existing(device, state.id);
        TORCH_CHECK(!is_open(pool), "gpumem: a pool cannot go back to a checkpoint while it serves allocations; end them first");
        TORCH_CHECK(pool.has_segments_of(state), "gpumem: memory of the checkpoint was released; record the graphs anew");
        std::vector<void *> freed, allocated;
        for (auto live = live_.begin(); live != live_.end();) {
            if (live->second->pool != &pool) {
                ++live;
                continue;
            }
            freed.push_back(live->first);
            live = live_.erase(live);
        }
        pool.restore(state);
        for (const auto &[start, blocks] : state.segments) {
            Segment &segment = pool.segment_at(start);
            for (const auto &[address, block] : blocks) {
                live_.emplace(address, &segment);
                allocated.push_back(address);
            }
        }
        live_count_.store(live_.size(), std::memory_order_release);
        return {std::move(freed), std::move(allocated)};
    }

    bool has_exactly(DeviceIndex device, MempoolId_t id, const std::unordered_set<void *> &expected) {
        const std::lock_guard<std::mutex> guard(mutex_);
        const PrivatePool &pool = existing(device, id);
        size_t count = 0;
        for (const auto &[address, segment] : live_) {
            if (segment->pool != &pool) continue;
            if (expected.count(address) == 0) return false;
            ++count;
        }
        return count == expected.size();
    }

  private:
    struct Open {
        PrivatePool *pool;
        std::function<bool(cudaStream_t)> includes;
    };

    /* Segments to be freed without the lock. */
    struct Emptied {
        DeviceIndex device = 0;
        MempoolId_t id{0, 0};
        std::shared_ptr<CUDAAllocator> source;
        std::vector<std::pair<char *, size_t>> segments;
    };

    using Live = std::unordered_map<void *, Segment *>;

    PrivatePool &entry(DeviceIndex device, MempoolId_t id, const std::shared_ptr<CUDAAllocator> &source) {
        auto &place = pools_[{device, id}];
        if (place == nullptr) place = std::make_unique<PrivatePool>(device, id, source);
        return *place;
    }

    PrivatePool &existing(DeviceIndex device, MempoolId_t id) {
        const auto found = pools_.find({device, id});
        TORCH_CHECK(found != pools_.end(), "gpumem has no private pool (", id.first, ", ", id.second, ") on the device ", int{device});
        return *found->second;
    }

    bool is_open(const PrivatePool &pool) const {
        return std::any_of(open_.begin(), open_.end(), [&](const Open &open) { return open.pool == &pool; });
    }

    void *take(PrivatePool &pool, size_t size, cudaStream_t stream) {
        const std::lock_guard<std::mutex> guard(mutex_);
        return take_locked(pool, size, stream);
    }

    void *take_locked(PrivatePool &pool, size_t size, cudaStream_t stream) {
        const auto [address, segment] = pool.take(size, stream);
        if (address == nullptr) return nullptr;
        live_.emplace(address, segment);
        live_count_.store(live_.size(), std::memory_order_release);
        return address;
    }

    /* Without the lock: gpumem may call functions of the program that free memory, and Python's. */
    gpumem_result grow(PrivatePool &pool, size_t size, cudaStream_t stream) {
        const size_t rounded = block_size(size), bytes = segment_size(rounded);
        void *start = nullptr;
        if (pool.source != nullptr) {
            start = pool.source->raw_alloc_with_stream(bytes, stream);
            if (start == nullptr) return GPUMEM_ERROR_OUT_OF_MEMORY;
        } else {
            const gpumem_result result = gpumem_torch_try_alloc(bytes, pool.device, stream, &start);
            if (result != GPUMEM_SUCCESS) return result;
            /* A graph on another stream may use the memory next, so it is waited for here. gpumem waits itself for memory that was
             * allocated in a capture, and refuses this call. */
            gpumem_torch_synchronize(pool.device, stream);
        }
        {
            const std::lock_guard<std::mutex> guard(mutex_);
            pool.add_segment(static_cast<char *>(start), bytes, stream, rounded > SMALL_MAX);
        }
        if (history_.is_watching()) history_.happened(Action::SEGMENT_ALLOC, pool.device, start, bytes, stream, pool.id);
        return GPUMEM_SUCCESS;
    }

    void forget(Live::iterator place) {
        live_.erase(place);
        live_count_.store(live_.size(), std::memory_order_release);
    }

    /* The free segments of a pool that nobody uses, and the pool itself once it is empty. */
    Emptied take_unused(DeviceIndex device, MempoolId_t id) {
        const auto found = pools_.find({device, id});
        if (found == pools_.end() || found->second->use_count > 0) return {};
        PrivatePool &pool = *found->second;
        pool.settle();
        Emptied emptied{device, id, pool.source, pool.take_free_segments()};
        if (pool.segments().empty()) pools_.erase(found);
        return emptied;
    }

    void end(const Emptied &emptied) {
        for (const auto &[start, size] : emptied.segments) {
            if (history_.is_watching()) history_.happened(Action::SEGMENT_FREE, emptied.device, start, size, nullptr, emptied.id);
            if (emptied.source != nullptr) emptied.source->raw_delete(start);
            else gpumem_torch_free(start, 0, emptied.device, nullptr);
        }
    }

    using Action = History::Action;

    History &history_;
    mutable std::mutex mutex_;
    std::map<std::pair<DeviceIndex, MempoolId_t>, std::unique_ptr<PrivatePool>> pools_;
    std::vector<Open> open_;
    std::atomic<size_t> open_count_{0};
    /* The allocated blocks of all pools. */
    Live live_;
    std::atomic<size_t> live_count_{0};
};

} // namespace gpumem
