/* Memory that PyTorch keeps apart: of graphs, of `torch.cuda.MemPool`, and of the trees of graphs of `torch.compile`.
 *
 * A private pool takes segments from gpumem and divides them itself, with the sizes of PyTorch's own allocator. So a graph keeps its
 * addresses, memory of one capture serves the next, and the pool goes back to the state of an earlier moment when a tree of graphs takes
 * another branch. */

#pragma once

#include "entry.h"

#include <c10/cuda/CUDACachingAllocator.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace gpumem {

using c10::DeviceIndex;
using c10::MempoolId_t;
using c10::cuda::CUDACachingAllocator::CUDAAllocator;

constexpr size_t MIB = size_t{1} << 20;
/* The sizes of PyTorch's own allocator. */
constexpr size_t BLOCK_MIN = 512;
constexpr size_t SMALL_MAX = MIB;
constexpr size_t SMALL_SEGMENT = 2 * MIB;
constexpr size_t LARGE_SEGMENT = 20 * MIB;
constexpr size_t OWN_SEGMENT_MIN = 10 * MIB;

inline size_t round_up(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

inline size_t block_size(size_t requested) { return std::max(round_up(requested, BLOCK_MIN), BLOCK_MIN); }

inline size_t segment_size(size_t size) {
    if (size <= SMALL_MAX) return SMALL_SEGMENT;
    return size < OWN_SEGMENT_MIN ? LARGE_SEGMENT : round_up(size, SMALL_SEGMENT);
}

/* Freed blocks wait while other streams may still use them. */
enum class State { Free, Allocated, Waiting };

struct Block {
    size_t size;
    size_t requested = 0;
    State state = State::Free;
    /* The streams of `Tensor.record_stream`. */
    std::vector<cudaStream_t> uses{};
};

/* Of allocated blocks. */
struct Sums {
    size_t count = 0;
    size_t bytes = 0;
    size_t requested_bytes = 0;

    void add(const Block &block) {
        count += 1;
        bytes += block.size;
        requested_bytes += block.requested;
    }

    void remove(const Block &block) {
        count -= 1;
        bytes -= block.size;
        requested_bytes -= block.requested;
    }
};

class PrivatePool;

/* Blocks of one stream, which cover it without gaps. */
struct Segment {
    PrivatePool *pool;
    char *start;
    size_t size;
    cudaStream_t stream;
    bool is_large;
    std::map<char *, Block> blocks;

    bool is_free() const { return blocks.size() == 1 && blocks.begin()->second.state == State::Free; }
};

/* The allocated blocks of a pool at one moment, by segment. */
struct Checkpoint : c10::cuda::CUDACachingAllocator::AllocatorState {
    MempoolId_t id;
    std::map<char *, std::map<char *, Block>> segments;
};

/* Without a lock of its own. It calls no code of Python's. */
class PrivatePool {
  public:
    PrivatePool(DeviceIndex device, MempoolId_t id, std::shared_ptr<CUDAAllocator> source)
        : device(device), id(id), source(std::move(source)) {}

    const DeviceIndex device;
    const MempoolId_t id;
    /* Where segments come from, if not from gpumem. */
    const std::shared_ptr<CUDAAllocator> source;
    /* Graphs, `MemPool` objects, and allocations that are under way. */
    int use_count = 0;
    bool serves_on_oom = false;
    bool splits = true;
    gpumem_captures *captures = nullptr;

    const std::map<char *, Segment> &segments() const { return segments_; }
    Segment &segment_at(char *start) { return segments_.at(start); }
    size_t reserved_bytes() const { return reserved_bytes_; }
    const Sums &allocated() const { return allocated_; }

    void add_segment(char *start, size_t size, cudaStream_t stream, bool is_large) {
        Segment &segment = segments_[start];
        segment = Segment{this, start, size, stream, is_large, {{start, Block{size}}}};
        reserved_bytes_ += size;
        free_.insert(key(segment, start, size));
    }

    /* The address and segment of the smallest free block that fits; null if there is none. */
    std::pair<char *, Segment *> take(size_t requested, cudaStream_t stream) {
        const size_t size = block_size(requested);
        const bool is_large = size > SMALL_MAX;
        const auto found = free_.lower_bound(Key{is_large, stream, size, nullptr});
        if (found == free_.end() || std::get<0>(*found) != is_large || std::get<1>(*found) != stream) return {nullptr, nullptr};
        char *const address = std::get<3>(*found);
        Segment &segment = segment_of(address);
        Block &block = segment.blocks.at(address);
        free_.erase(found);
        const size_t rest = block.size - size;
        if (splits && (is_large ? rest > SMALL_MAX : rest >= BLOCK_MIN)) {
            block.size = size;
            segment.blocks.emplace(address + size, Block{rest});
            free_.insert(key(segment, address + size, rest));
        }
        block.requested = requested;
        block.state = State::Allocated;
        allocated_.add(block);
        return {address, &segment};
    }

    /* Frees a block. It is free for its stream at once, unless others used it: then after `settle`. */
    void give(Segment &segment, char *address) {
        Block &block = segment.blocks.at(address);
        allocated_.remove(block);
        block.state = State::Waiting;
        if (block.uses.empty()) make_free(segment, address);
        else waiting_.push_back(address);
    }

    /* Orders the streams of freed blocks after the others that used them. A block whose streams cannot wait for each other, because one
     * captures, is tried again by the next call. */
    void settle() {
        for (char *const address : std::exchange(waiting_, {})) {
            Segment &segment = segment_of(address);
            const auto &uses = segment.blocks.at(address).uses;
            const bool are_ordered = std::all_of(uses.begin(), uses.end(), [&](cudaStream_t use) {
                return gpumem_torch_wait_for(device, segment.stream, use) == GPUMEM_SUCCESS;
            });
            if (are_ordered) make_free(segment, address);
            else waiting_.push_back(address);
        }
    }

    /* Takes the segments out of which nothing is allocated: addresses and sizes. */
    std::vector<std::pair<char *, size_t>> take_free_segments() {
        std::vector<std::pair<char *, size_t>> taken;
        for (auto place = segments_.begin(); place != segments_.end();) {
            const Segment &segment = place->second;
            if (!segment.is_free()) {
                ++place;
                continue;
            }
            free_.erase(key(segment, segment.start, segment.size));
            reserved_bytes_ -= segment.size;
            taken.emplace_back(segment.start, segment.size);
            place = segments_.erase(place);
        }
        return taken;
    }

    std::shared_ptr<Checkpoint> checkpoint() const {
        auto state = std::make_shared<Checkpoint>();
        state->id = id;
        for (const auto &[start, segment] : segments_) {
            auto &kept = state->segments[start];
            for (const auto &[address, block] : segment.blocks) {
                if (block.state == State::Allocated) kept.emplace(address, block);
            }
        }
        return state;
    }

    /* Whether the segments of a checkpoint are all there still. */
    bool has_segments_of(const Checkpoint &state) const {
        return std::all_of(state.segments.begin(), state.segments.end(), [this](const auto &kept) { return segments_.count(kept.first); });
    }

    /* Has exactly the blocks of the checkpoint allocated. */
    void restore(const Checkpoint &state) {
        settle();
        TORCH_CHECK(waiting_.empty(), "gpumem: a stream that captures uses memory of the checkpoint's pool; end the capture first");
        free_.clear();
        allocated_ = {};
        for (auto &[start, segment] : segments_) {
            segment.blocks.clear();
            char *end = start;
            const auto kept = state.segments.find(start);
            if (kept != state.segments.end()) {
                for (const auto &[address, block] : kept->second) {
                    add_free(segment, end, address);
                    segment.blocks.emplace(address, block);
                    allocated_.add(block);
                    end = address + block.size;
                }
            }
            add_free(segment, end, start + segment.size);
        }
    }

  private:
    /* Large or small, stream, size, address. */
    using Key = std::tuple<bool, cudaStream_t, size_t, char *>;

    static Key key(const Segment &segment, char *address, size_t size) { return {segment.is_large, segment.stream, size, address}; }

    Segment &segment_of(char *address) { return std::prev(segments_.upper_bound(address))->second; }

    void add_free(Segment &segment, char *start, char *end) {
        if (start == end) return;
        const auto size = static_cast<size_t>(end - start);
        segment.blocks.emplace(start, Block{size});
        free_.insert(key(segment, start, size));
    }

    /* Joins the block with free neighbours. */
    void make_free(Segment &segment, char *address) {
        auto place = segment.blocks.find(address);
        place->second = Block{place->second.size};
        if (place != segment.blocks.begin() && std::prev(place)->second.state == State::Free) --place;
        else free_.insert(key(segment, address, place->second.size));
        for (auto next = std::next(place); next != segment.blocks.end() && next->second.state == State::Free;
             next = segment.blocks.erase(next)) {
            free_.erase(key(segment, place->first, place->second.size));
            free_.erase(key(segment, next->first, next->second.size));
            place->second.size += next->second.size;
            free_.insert(key(segment, place->first, place->second.size));
        }
    }

    std::map<char *, Segment> segments_;
    std::set<Key> free_;
    std::vector<char *> waiting_;
    size_t reserved_bytes_ = 0;
    Sums allocated_;
};

} // namespace gpumem
