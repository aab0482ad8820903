/* PyTorch's memory history: what was allocated and freed, with stacks, for snapshots and trackers. Idle, it is one atomic load for each
 * allocation and free. */

#pragma once

#include <c10/core/Allocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/ApproximateClock.h>

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace gpumem {

using c10::DeviceIndex;
using c10::GatheredContext;
using c10::MempoolId_t;
using c10::CachingDeviceAllocator::AllocatorTraceTracker;
using c10::CachingDeviceAllocator::AnnotationEntry;
using c10::CachingDeviceAllocator::CreateContextFn;
using c10::CachingDeviceAllocator::RecordContext;
using c10::CachingDeviceAllocator::TraceEntry;
using Context = std::shared_ptr<GatheredContext>;

/* An allocation that the history knows. */
struct Known {
    DeviceIndex device;
    MempoolId_t pool;
    cudaStream_t stream;
    size_t size;
    Context context;
};

class History {
  public:
    using Action = TraceEntry::Action;

    bool is_watching() const { return is_watching_.load(std::memory_order_relaxed); }
    bool is_recording() const { return is_recording_.load(std::memory_order_relaxed); }

    void record(bool enabled, CreateContextFn gather, size_t entries_max, RecordContext when, bool clears,
                const std::vector<std::string> &skipped) {
        const std::lock_guard<std::mutex> guard(mutex_);
        /* Measures the clock once. */
        if (enabled && !clock_) clock_.emplace();
        gather_.store(enabled ? gather : nullptr);
        when_.store(enabled ? when : RecordContext::NEVER);
        entries_max_ = std::max<size_t>(entries_max, 1);
        skipped_.clear();
        for (const std::string &action : skipped) skipped_.insert(c10::CachingDeviceAllocator::parseTraceEntryAction(action));
        if (!enabled || clears) {
            entries_.clear();
            annotations_.clear();
        }
        if (!enabled) known_.clear();
        is_recording_.store(enabled);
        is_watching_.store(enabled || !trackers_.empty());
    }

    void track(AllocatorTraceTracker tracker) {
        const std::lock_guard<std::mutex> guard(mutex_);
        trackers_.push_back(std::move(tracker));
        is_watching_.store(true);
    }

    /* This thread's stack, if stacks are recorded for such events. It takes Python's lock, so no other lock may be held. */
    Context gather(RecordContext level) const {
        const CreateContextFn gather = gather_.load();
        return gather != nullptr && when_.load() >= level ? gather() : nullptr;
    }

    void allocated(void *address, Known known) {
        known.context = gather(RecordContext::STATE);
        const std::lock_guard<std::mutex> guard(mutex_);
        Context shown = when_.load() >= RecordContext::ALLOC ? known.context : nullptr;
        add(Action::ALLOC, known.device, address, known.size, known.stream, known.pool, std::move(shown));
        known_[address] = std::move(known);
    }

    /* Before the free. `size` is for an allocation from before the recording. */
    void freed(void *address, size_t size, DeviceIndex device) {
        Context context = gather(RecordContext::ALL);
        const std::lock_guard<std::mutex> guard(mutex_);
        Known known{device, {0, 0}, nullptr, size, nullptr};
        const auto found = known_.find(address);
        if (found != known_.end()) {
            known = std::move(found->second);
            known_.erase(found);
        }
        for (const Action action : {Action::FREE_REQUESTED, Action::FREE_COMPLETED})
            add(action, known.device, address, known.size, known.stream, known.pool, context);
    }

    void happened(Action action, DeviceIndex device, void *address, size_t size, cudaStream_t stream, MempoolId_t pool,
                  const std::string &metadata = "") {
        Context context = gather(RecordContext::ALLOC);
        const std::lock_guard<std::mutex> guard(mutex_);
        add(action, device, address, size, stream, pool, std::move(context), metadata);
    }

    Context context_of(const void *address) const {
        const std::lock_guard<std::mutex> guard(mutex_);
        const auto found = known_.find(const_cast<void *>(address));
        return found == known_.end() ? nullptr : found->second.context;
    }

    void annotate(DeviceIndex device, const std::vector<std::pair<std::string, std::string>> &texts) {
        if (!is_recording()) return;
        AnnotationEntry entry(device, c10::getApproximateTime());
        for (const auto &[name, value] : texts) entry.recordUserMetadata(name, value);
        const std::lock_guard<std::mutex> guard(mutex_);
        annotations_.push_back(std::move(entry));
        if (annotations_.size() > entries_max_) annotations_.pop_front();
    }

    /* The entries of each device, oldest first, with Unix times. */
    std::vector<std::vector<TraceEntry>> entries(DeviceIndex device_count) const {
        const std::lock_guard<std::mutex> guard(mutex_);
        std::vector<std::vector<TraceEntry>> all(static_cast<size_t>(device_count));
        for (const auto &[device, entries] : entries_) {
            if (static_cast<size_t>(device) >= all.size()) all.resize(static_cast<size_t>(device) + 1);
            all[static_cast<size_t>(device)].assign(entries.begin(), entries.end());
        }
        for (auto &entries : all) set_times(entries);
        return all;
    }

    std::vector<AnnotationEntry> annotations() const {
        const std::lock_guard<std::mutex> guard(mutex_);
        std::vector<AnnotationEntry> all(annotations_.begin(), annotations_.end());
        set_times(all);
        return all;
    }

    /* What this thread writes into its entries. */
    static std::string &metadata() {
        thread_local std::string text;
        return text;
    }
    static std::vector<std::string> &compile_contexts() {
        thread_local std::vector<std::string> texts;
        return texts;
    }

  private:
    template <typename Entry> void set_times(std::vector<Entry> &entries) const {
        if (entries.empty() || !clock_) return;
        const auto nanoseconds = clock_->makeConverter();
        for (Entry &entry : entries) entry.time_.t_ = nanoseconds(entry.time_.approx_t_) / 1000;
    }

    void add(Action action, DeviceIndex device, void *address, size_t size, cudaStream_t stream, MempoolId_t pool, Context context,
             const std::string &metadata = "") {
        const auto &contexts = compile_contexts();
        const TraceEntry entry(action, device, reinterpret_cast<size_t>(address), size, stream, pool, c10::getApproximateTime(),
                               std::move(context), contexts.empty() ? "" : contexts.back(),
                               metadata.empty() ? History::metadata() : metadata);
        for (const auto &tracker : trackers_) tracker(entry);
        if (!is_recording() || skipped_.count(action) != 0) return;
        auto &entries = entries_[device];
        entries.push_back(entry);
        if (entries.size() > entries_max_) entries.pop_front();
    }

    mutable std::mutex mutex_;
    std::atomic<bool> is_watching_{false};
    std::atomic<bool> is_recording_{false};
    std::atomic<CreateContextFn> gather_{nullptr};
    std::atomic<RecordContext> when_{RecordContext::NEVER};
    size_t entries_max_ = 1;
    std::set<Action> skipped_;
    std::map<DeviceIndex, std::deque<TraceEntry>> entries_;
    std::deque<AnnotationEntry> annotations_;
    std::unordered_map<void *, Known> known_;
    std::vector<AllocatorTraceTracker> trackers_;
    mutable std::optional<c10::ApproximateClockToUnixTimeConverter> clock_;
};

} // namespace gpumem
