// The operators: each runs on the CPU, on the same memory, after a check of what it reads and writes.
#pragma once

#include "runtime.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

namespace sim {

struct DeviceSwitch {
  const int before = device_set;
  explicit DeviceSwitch(int device) {
    device_set = device;
  }
  ~DeviceSwitch() {
    device_set = before;
  }
};

inline bool is_sim(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kType;
}

inline void* block_of(const at::Tensor& tensor) {
  return tensor.storage().data_ptr().get();
}

// The same bytes as a tensor of the CPU.
inline at::Tensor on_cpu(const at::Tensor& tensor) {
  const auto& storage = tensor.storage();
  c10::Storage bytes(
      c10::Storage::use_byte_size_t(), storage.nbytes(),
      c10::DataPtr(storage.data_ptr().get(), c10::Device(c10::kCPU)), nullptr, false);
  auto same = at::detail::make_tensor<c10::TensorImpl>(
      std::move(bytes), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  same.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  return same;
}

inline int index_of(c10::Device device) {
  const int index = device.has_index() ? device.index() : current_device();
  TORCH_CHECK(index < devices(), "there is no sim:", index, ", only ", devices(), " devices");
  return index;
}

inline at::Tensor empty_strided(
    c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout>, std::optional<c10::Device> device, std::optional<bool> pin) {
  TORCH_CHECK(!pin.value_or(false), "only memory of the CPU can be pinned");
  DeviceSwitch on(index_of(device.value_or(c10::Device(kType))));
  return at::detail::empty_strided_generic(
      size, stride, &allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      dtype.value_or(c10::typeMetaToScalarType(c10::get_default_dtype())));
}

inline at::Tensor empty(
    c10::IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
    std::optional<c10::Device> device, std::optional<bool> pin, std::optional<c10::MemoryFormat> format) {
  TORCH_CHECK(!pin.value_or(false), "only memory of the CPU can be pinned");
  DeviceSwitch on(index_of(device.value_or(c10::Device(kType))));
  return at::detail::empty_generic(
      size, &allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      dtype.value_or(c10::typeMetaToScalarType(c10::get_default_dtype())), format);
}

inline void resize_bytes(const c10::Storage& storage, size_t bytes) {
  DeviceSwitch on(storage.device().index());
  auto fresh = allocator().allocate(bytes);
  if (const auto kept = std::min(bytes, storage.nbytes())) {
    const auto stream = current(storage.device().index());
    launch(stream, {{storage.data_ptr().get(), false}, {fresh.get(), true}}, "resize");
    std::memcpy(fresh.get(), storage.data_ptr().get(), kept);
  }
  storage.set_data_ptr_noswap(std::move(fresh));
  storage.set_nbytes(bytes);
}

inline const at::Tensor& resize_(
    const at::Tensor& self, c10::IntArrayRef size, std::optional<c10::MemoryFormat>) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(size);
  const auto needed = size_t(impl->numel() + impl->storage_offset()) * impl->itemsize();
  if (impl->numel() && needed > self.storage().nbytes()) {
    resize_bytes(self.storage(), needed);
  }
  return self;
}

inline at::Tensor view(const at::Tensor& self, c10::IntArrayRef size) {
  return at::native::view(self, size);
}

inline at::Tensor as_strided(
    const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}

inline at::Tensor reshape_alias(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride) {
  return at::native::as_strided_tensorimpl(self, size, stride, std::nullopt);
}

inline bool is_pinned(const void* pointer) {
  Lock lock(state().mutex);
  auto after = state().pinned.upper_bound(const_cast<void*>(pointer));
  if (after == state().pinned.begin()) {
    return false;
  }
  --after;
  return pointer < static_cast<char*>(after->first) + after->second;
}

inline at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  at::AutoDispatchBelowADInplaceOrView below;
  if (is_sim(from) && is_sim(to)) {
    const auto stream = current(from.device().index()), other = current(to.device().index());
    {
      Lock lock(state().mutex);
      merge(state().clocks[stream], state().clocks[other]);
      launch(stream, {{block_of(from), false}, {block_of(to), true}}, "copy");
      merge(state().clocks[other], state().clocks[stream]);
    }
    on_cpu(to).copy_(on_cpu(from));
  } else if (is_sim(to)) {
    const auto stream = current(to.device().index());
    launch(stream, {{block_of(to), true}}, "copy");
    if (!(non_blocking && is_pinned(from.data_ptr())) && from.dim() && from.numel()) {
      host_reads(stream, "a copy from memory that is not pinned");
    }
    on_cpu(to).copy_(from);
  } else {
    const auto stream = current(from.device().index());
    const auto number = launch(stream, {{block_of(from), false}}, "copy");
    if (non_blocking && to.numel() && is_pinned(to.data_ptr())) {
      const auto bytes = on_cpu(from).clone();
      Lock lock(state().mutex);
      state().copies.push_back({stream, number, bytes, to});
      std::memset(to.storage().mutable_data(), 0xff, to.storage().nbytes());
    } else {
      host_reads(stream, "a copy to the host");
      to.copy_(on_cpu(from));
    }
  }
  return to;
}

inline c10::Scalar local_scalar(const at::Tensor& self) {
  at::AutoDispatchBelowADInplaceOrView below;
  const auto stream = current(self.device().index());
  launch(stream, {{block_of(self), false}}, "item");
  host_reads(stream, "item()");
  return on_cpu(self).item();
}

inline void record_stream(at::Tensor& self, c10::Stream stream) {
  allocator().recordStream(self.storage().data_ptr(), stream);
}

struct Call {
  explicit Call(const c10::OperatorHandle& op) : op(op), name(op.schema().name() + "." + op.schema().overload_name()) {}

  const c10::OperatorHandle& op;
  const std::string name;
  int device = -1;
  std::vector<Access> accesses;
  std::vector<std::pair<at::Tensor, at::Tensor>> given;  // on the device, on the CPU
  std::vector<std::pair<at::Tensor, at::Tensor>> to_resize;

  void meet(int other) {
    TORCH_CHECK(
        device < 0 || device == other, name, ": expected all tensors to be on one device, got sim:", device,
        " and sim:", other);
    device = other;
  }

  at::Tensor taken(const at::Tensor& tensor, bool write) {
    if (!is_sim(tensor)) {
      return tensor;
    }
    meet(tensor.device().index());
    accesses.push_back({block_of(tensor), write});
    const bool empty = write && tensor.numel() == 0;  // it may be resized, or have sizes such as (0, 64)
    auto same = empty ? at::empty(tensor.sizes(), tensor.options().device(at::kCPU)) : on_cpu(tensor);
    if (empty) {
      to_resize.emplace_back(tensor, same);
    }
    given.emplace_back(tensor, same);
    return same;
  }

  // A tensor of the CPU beside those of the device.
  void refuse(const at::Tensor& tensor) const {
    const bool index = name.find("index") != std::string::npos;
    TORCH_CHECK(
        !tensor.defined() || is_sim(tensor) || tensor.dim() == 0 || index, name,
        ": expected all tensors to be on one device, got sim:", device, " and ", tensor.device());
  }

  at::Tensor returned(const at::Tensor& result, bool fresh) {
    if (!result.defined() || is_sim(result)) {
      return result;
    }
    const char* data = static_cast<const char*>(result.storage().data_ptr().get());
    for (const auto& [tensor, same] : given) {
      if (!fresh && same.unsafeGetTensorImpl() == result.unsafeGetTensorImpl()) {
        return tensor;
      }
      if (data && data == same.storage().data_ptr().get() && is_sim(tensor) && data == block_of(tensor)) {
        auto view = at::detail::make_tensor<c10::TensorImpl>(
            c10::TensorImpl::VIEW, c10::Storage(tensor.storage()), tensor.key_set(), result.dtype());
        view.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes(), result.strides(), result.storage_offset());
        return view;
      }
    }
    auto made = empty_strided(
        result.sizes(), result.strides(), result.scalar_type(), std::nullopt, c10::Device(kType, device), false);
    on_cpu(made).copy_(result);
    launch(current(device), {{block_of(made), true}}, name);
    return made;
  }
};

// The CPU's operator; a convolution has another name on a device that PyTorch does not know.
inline c10::OperatorHandle kernel_of(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  auto& dispatcher = c10::Dispatcher::singleton();
  if (op.schema().name() == "aten::convolution_overrideable") {
    return dispatcher.findSchemaOrThrow("aten::convolution", "");
  }
  if (op.schema().name() == "aten::convolution_backward_overrideable") {
    const auto begin = stack->end() - int64_t(op.schema().arguments().size());
    stack->insert(begin + 3, at::IValue(std::vector<int64_t>{begin->toTensor().size(1)}));  // the bias's sizes
    return dispatcher.findSchemaOrThrow("aten::convolution_backward", "");
  }
  return op;
}

inline void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::AutoDispatchBelowADInplaceOrView below;
  static const std::set<std::string> sized_by_values = {
      "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::equal", "aten::bincount"};
  const auto& schema = op.schema();
  Call call(op);
  const auto count = schema.arguments().size();
  const auto begin = stack->size() - count;
  std::vector<at::Tensor> tensors;
  for (size_t i = 0; i < count; ++i) {
    auto& value = (*stack)[begin + i];
    const auto* info = schema.arguments()[i].alias_info();
    const bool write = info && info->isWrite();
    if (value.isTensor()) {
      tensors.push_back(value.toTensor());
      value = call.taken(value.toTensor(), write);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) {
        tensors.push_back(tensor);
        list.push_back(call.taken(tensor, write));
      }
      value = list;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
        list.push_back(tensor ? std::optional(call.taken(*tensor, write)) : std::nullopt);
      }
      value = list;
    }
  }
  TORCH_CHECK(call.device >= 0, call.name, " has no tensor of the device");
  for (const auto& tensor : tensors) {
    call.refuse(tensor);
  }
  launch(current(call.device), call.accesses, call.name);
  if (sized_by_values.count(schema.name())) {
    host_reads(current(call.device), call.name);
  }
  kernel_of(op, stack).redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  for (const auto& [tensor, same] : call.to_resize) {
    if (same.numel()) {
      resize_(tensor, same.sizes(), std::nullopt);
      on_cpu(tensor).copy_(same);
    }
  }
  const auto results = stack->size() - schema.returns().size();
  for (size_t i = results; i < stack->size(); ++i) {
    auto& value = (*stack)[i];
    if (value.isTensor()) {
      value = call.returned(value.toTensor(), schema.returns()[i - results].alias_info() == nullptr);
    }
  }
}

}  // namespace sim
