// A simulated accelerator for PyTorch's key PrivateUse1: "sim".
#include "collectives.h"

#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/python.h>

namespace sim {

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr auto static_type = kType;
  Guard() = default;
  explicit Guard(c10::DeviceType) {}

  static StreamKey key(const c10::Stream& stream) {
    return {stream.device_index(), stream.id()};
  }
  static c10::Stream stream(const StreamKey& key) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, key.first), key.second);
  }

  c10::DeviceType type() const override {
    return kType;
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto before = c10::DeviceIndex(std::max(device_set, 0));
    device_set = device.index();
    return c10::Device(kType, before);
  }
  c10::Device getDevice() const override {
    return c10::Device(kType, current_device());
  }
  void setDevice(c10::Device device) const override {
    device_set = index_of(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    device_set = device.index();
  }
  c10::Stream getStream(c10::Device device) const override {
    return stream(current(index_of(device)));
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    Lock lock(state().mutex);
    return stream({index_of(device), ++state().streams});
  }
  c10::Stream exchangeStream(c10::Stream next) const override {
    const auto before = current(next.device_index());
    stream_set[next.device_index()] = next.id();
    return stream(before);
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return c10::DeviceIndex(devices());
  }

  void record(void** event, const c10::Stream& on, const c10::DeviceIndex, const c10::EventFlag) const override {
    Lock lock(state().mutex);
    if (!*event) {
      *event = new Event;
    }
    auto clock = state().clocks[key(on)];
    merge(clock, state().host);
    *static_cast<Event*>(*event) = {clock, std::chrono::steady_clock::now()};
  }
  void block(void* event, const c10::Stream& waiting) const override {
    Lock lock(state().mutex);
    if (event) {
      merge(state().clocks[key(waiting)], static_cast<Event*>(event)->clock);
    }
  }
  // Done when the host has waited for it, or for something after it.
  bool queryEvent(void* event) const override {
    Lock lock(state().mutex);
    const auto& clock = static_cast<Event*>(event)->clock;
    return std::all_of(clock.begin(), clock.end(), [](const auto& each) {
      return knows(state().host, each.first, each.second);
    });
  }
  void synchronizeEvent(void* event) const override {
    if (event) {
      host_waits(static_cast<Event*>(event)->clock);
    }
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  double elapsedTime(void* from, void* to, const c10::DeviceIndex) const override {
    TORCH_CHECK(from && to, "both events must be recorded first");
    const std::chrono::duration<double, std::milli> passed =
        static_cast<Event*>(to)->time - static_cast<Event*>(from)->time;
    return passed.count();
  }
  void synchronizeStream(const c10::Stream& on) const override {
    host_waits(clock_of(key(on)));
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    Clock all;
    {
      Lock lock(state().mutex);
      for (const auto& [stream, clock] : state().clocks) {
        if (stream.first == device) {
          merge(all, clock);
        }
      }
    }
    host_waits(all);
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);
REGISTER_ALLOCATOR(kType, &allocator());

inline void unpin(void* pointer) {
  Lock lock(state().mutex);
  state().pinned.erase(pointer);
  std::free(pointer);
}

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* pointer = nullptr;
    TORCH_CHECK(posix_memalign(&pointer, 64, std::max(bytes, size_t(1))) == 0, "the host is out of memory");
    Lock lock(state().mutex);
    state().pinned[pointer] = std::max(bytes, size_t(1));
    return {pointer, pointer, &unpin, c10::Device(c10::kCPU)};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isAvailable() const override {
    return devices() > 0;
  }
  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return true;
  }
  bool isPinnedPtr(const void* pointer) const override {
    return is_pinned(pointer);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    static auto* one = new PinnedAllocator;
    return one;
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_bytes(storage, bytes);
  }
};

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("resize_", &resize_);
  m.impl("view", &view);
  m.impl("as_strided", &as_strided);
  m.impl("_reshape_alias", &reshape_alias);
  m.impl("_copy_from", &copy_from);
  m.impl("_local_scalar_dense", &local_scalar);
  m.impl("record_stream", &record_stream);
  // PyTorch's own say only that there is none.
  for (const char* name : {"convolution_overrideable", "convolution_backward_overrideable"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&fallback>());
  }
}

}  // namespace sim

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace sim;
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  m.def("device_count", &devices);
  m.def("current_device", &current_device);
  m.def("set_device", [](int device) { device_set = index_of(c10::Device(kType, c10::DeviceIndex(device))); });
  m.def("forbid_host_reads", [](bool forbid) { reads_forbidden = forbid; });
  py::class_<Collectives, c10::intrusive_ptr<Collectives>, c10d::Backend>(m, "Collectives")
      .def(py::init<c10::intrusive_ptr<c10d::Backend>>())
      .def("_set_default_timeout", &Collectives::setTimeout);
}
