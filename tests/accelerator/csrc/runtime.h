// The simulated devices: memory, streams and events.
//
// Work runs at once, on host memory. What a GPU would do later and in any order is tracked with vector clocks: a stream
// has a clock, an event is a copy of one, waiting merges. An access of memory that is not ordered after the last write
// by another stream is an error, where a GPU would compute with what happens to lie there.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <chrono>
#include <cstdlib>
#include <list>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace sim {

constexpr auto kType = c10::DeviceType::PrivateUse1;
using StreamKey = std::pair<int, int64_t>;  // device, stream
using Clock = std::map<StreamKey, uint64_t>;

struct Block {
  size_t size = 0;
  int device = 0;
  StreamKey allocated_on, writer;
  uint64_t written = 0;
  Clock readers;
  std::set<StreamKey> recorded;  // record_stream
};

struct Event {
  Clock clock;
  std::chrono::steady_clock::time_point time;
};

struct HostCopy {  // to pinned memory, not waited for yet
  StreamKey stream;
  uint64_t number;
  at::Tensor from, to;
};

struct Access {
  void* block;
  bool write;
};

struct State {
  std::recursive_mutex mutex;
  std::map<void*, Block> blocks;
  std::map<void*, size_t> pinned;
  std::map<StreamKey, Clock> clocks;
  Clock host;
  std::list<HostCopy> copies;
  std::vector<c10::CachingDeviceAllocator::DeviceStats> stats;
  int64_t streams = 0;
  std::map<StreamKey, std::list<Clock>> freed;  // what other streams may still do with memory that was given back
};

constexpr int64_t kMemory = int64_t(4) << 30;  // of each device

inline int devices() {
  static const int count = std::getenv("SIM_DEVICES") ? std::atoi(std::getenv("SIM_DEVICES")) : 4;
  return count;
}

inline State& state() {
  static State* one = [] {
    auto* made = new State;  // never deleted: tensors outlive static objects
    made->stats.resize(devices());
    return made;
  }();
  return *one;
}

using Lock = std::lock_guard<std::recursive_mutex>;
inline thread_local int device_set = -1;
inline thread_local bool reads_forbidden = false;
inline thread_local std::map<int, int64_t> stream_set;

inline int current_device() {
  static const auto first = std::this_thread::get_id();
  TORCH_CHECK(
      device_set >= 0 || std::this_thread::get_id() == first,
      "this thread asks for the current device and never set one: on a GPU it would get device 0");
  return std::max(device_set, 0);
}

inline StreamKey current(int device) {
  return {device, stream_set[device]};
}

inline void merge(Clock& into, const Clock& from) {
  for (const auto& [stream, number] : from) {
    auto& known = into[stream];
    known = std::max(known, number);
  }
}

inline bool knows(const Clock& clock, const StreamKey& stream, uint64_t number) {
  auto found = clock.find(stream);
  return number == 0 || (found != clock.end() && found->second >= number);
}

// The host waited for all of this: copies to pinned memory have arrived.
//
// Whoever holds Python's lock may wait for the mutex (a tensor is freed), so nothing that asks for Python's lock runs
// under the mutex: no dispatch to Python, and no end of a tensor that Python knows. Call this without it.
inline void host_waits(const Clock& clock) {
  std::list<HostCopy> arrived;  // ends after the mutex was given back
  Lock lock(state().mutex);
  const c10::impl::ExcludeDispatchKeyGuard no_python(
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
  merge(state().host, clock);
  for (auto copy = state().copies.begin(); copy != state().copies.end();) {
    const auto one = copy++;
    if (knows(state().host, one->stream, one->number)) {
      one->to.copy_(one->from);
      arrived.splice(arrived.end(), state().copies, one);
    }
  }
}

inline Clock clock_of(const StreamKey& stream) {
  Lock lock(state().mutex);
  return state().clocks[stream];
}

inline std::string name(const StreamKey& stream) {
  return "stream " + std::to_string(stream.second) + " of sim:" + std::to_string(stream.first);
}

// Enqueue work that reads and writes blocks. Raises where another stream's work on them may not be done.
inline uint64_t launch(const StreamKey& stream, const std::vector<Access>& accesses, const std::string& what) {
  Lock lock(state().mutex);
  auto& clock = state().clocks[stream];
  merge(clock, state().host);
  const auto number = ++clock[stream];
  for (const auto& access : accesses) {
    auto found = state().blocks.find(access.block);
    if (found == state().blocks.end()) {
      continue;  // no bytes
    }
    auto& block = found->second;
    TORCH_CHECK(
        knows(clock, block.writer, block.written), what, " on ", name(stream), access.write ? " writes" : " reads",
        " what ", name(block.writer), " wrote: wait for it first (wait_stream, or an event)");
    if (access.write) {
      for (const auto& [reader, read] : block.readers) {
        TORCH_CHECK(
            knows(clock, reader, read), what, " on ", name(stream), " writes what ", name(reader),
            " may still read: wait for it first (wait_stream, or an event)");
      }
      block.readers.clear();
      block.writer = stream;
      block.written = number;
    } else {
      block.readers[stream] = number;
    }
  }
  return number;
}

// A read by the host that has to wait for the device.
inline void host_reads(const StreamKey& stream, const std::string& what) {
  TORCH_CHECK(!reads_forbidden, what, ": the host waits for the device here");
  host_waits(clock_of(stream));
}

inline void release(void* pointer) {
  Lock lock(state().mutex);
  auto found = state().blocks.find(pointer);
  if (found == state().blocks.end()) {
    return;
  }
  auto& block = found->second;
  Clock uses = block.readers;
  merge(uses, {{block.writer, block.written}});
  for (const auto& stream : block.recorded) {
    uses.erase(stream);  // the allocator waits for it
  }
  uses.erase(block.allocated_on);
  if (!uses.empty()) {
    state().freed[block.allocated_on].push_back(uses);
  }
  auto& stats = state().stats[block.device];
  stats.allocated_bytes[0].decrease(block.size);
  std::free(pointer);
  state().blocks.erase(found);
}

// A stream is given memory: what others still do with memory that it gave back has to be ordered before.
inline void check_reuse(const StreamKey& stream) {
  auto& freed = state().freed[stream];
  auto& clock = state().clocks[stream];
  merge(clock, state().host);
  for (const auto& uses : freed) {
    for (const auto& [user, number] : uses) {
      TORCH_CHECK(
          knows(clock, user, number), "memory that ", name(stream), " gave back may be given out again while ",
          name(user), " still uses it: call record_stream, or wait");
    }
  }
  freed.clear();
}

struct Allocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    const int device = current_device();
    const c10::Device place(kType, device);
    if (bytes == 0) {
      return {nullptr, nullptr, &release, place};
    }
    Lock lock(state().mutex);
    check_reuse(current(device));
    auto& stats = state().stats[device];
    void* pointer = nullptr;
    TORCH_CHECK(posix_memalign(&pointer, 64, bytes) == 0, "the host is out of memory");
    std::memset(pointer, 0xff, bytes);  // NaN, -1: what was never written is noticed
    Block block;
    block.size = bytes;
    block.device = device;
    block.allocated_on = block.writer = current(device);
    state().blocks[pointer] = block;
    stats.allocated_bytes[0].increase(bytes);
    return {pointer, pointer, &release, place};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  bool initialized() override {
    return true;
  }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr& pointer, c10::Stream stream) override {
    Lock lock(state().mutex);
    auto found = state().blocks.find(pointer.get());
    if (found != state().blocks.end()) {
      found->second.recorded.insert({stream.device_index(), stream.id()});
    }
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    Lock lock(state().mutex);
    return state().stats.at(device);
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex device) override {
    Lock lock(state().mutex);
    state().stats.at(device).allocated_bytes[0].reset_peak();
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    Lock lock(state().mutex);
    return {kMemory - state().stats.at(device).allocated_bytes[0].current, kMemory};
  }
};

inline Allocator& allocator() {
  static auto* one = new Allocator;
  return *one;
}

}  // namespace sim
