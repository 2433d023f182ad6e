// A process group's backend for the device, over gloo: ordered like NCCL's, on a stream of its own, which waits for the
// current one, and for which the current one waits in `Work.wait`.
#pragma once

#include "kernels.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace sim {

using Tensors = std::vector<at::Tensor>;
using Started = c10::intrusive_ptr<c10d::Work>;

struct Work final : c10d::Work {
  Work(int rank, c10d::OpType type, Started started, Tensors reads, Tensors tensors, Clock done)
      : c10d::Work(rank, type), started(std::move(started)), reads(std::move(reads)), tensors(std::move(tensors)),
        done(std::move(done)) {}

  bool wait(std::chrono::milliseconds timeout) override {
    if (!waited) {  // gloo's would copy its results once more
      started->wait(timeout);
      waited = true;
    }
    const auto read = std::move(reads);  // NCCL's keeps them until here, too; they end without the mutex (host_waits)
    Lock lock(state().mutex);
    for (const auto& [stream, number] : done) {
      merge(state().clocks[current(stream.first)], done);
    }
    return true;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    wait(kNoTimeout);
    std::vector<c10::Device> places;
    if (!tensors.empty()) {
      places.push_back(tensors.front().device());
    }
    auto future =
        c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), std::move(places));
    future->markCompleted(at::IValue(tensors));
    return future;
  }
  Started started;
  Tensors reads, tensors;
  Clock done;
  bool waited = false;
};

inline Tensors on_cpu(const Tensors& tensors) {
  Tensors same;
  for (const auto& tensor : tensors) {
    TORCH_CHECK(is_sim(tensor), "a collective of sim's backend on a tensor of ", tensor.device());
    same.push_back(on_cpu(tensor));
  }
  return same;
}

inline std::vector<Tensors> on_cpu(const std::vector<Tensors>& lists) {
  std::vector<Tensors> same;
  for (const auto& tensors : lists) {
    same.push_back(on_cpu(tensors));
  }
  return same;
}

inline Tensors flat(const std::vector<Tensors>& lists) {
  Tensors all;
  for (const auto& tensors : lists) {
    all.insert(all.end(), tensors.begin(), tensors.end());
  }
  return all;
}

struct Collectives final : c10d::Backend {
  explicit Collectives(c10::intrusive_ptr<c10d::Backend> over)
      : c10d::Backend(over->getRank(), over->getSize()), gloo(std::move(over)) {
    Lock lock(state().mutex);
    stream = ++state().streams;
  }

  void setTimeout(std::chrono::milliseconds given) override {
    gloo->setTimeout(given);
  }

  // Enqueue: `start` is given nothing and begins the work on the CPU.
  template <typename Start>
  Started enqueued(
      c10d::OpType type, const Tensors& reads, const Tensors& writes, bool async, Start start) {
    const auto& first = writes.empty() ? reads.front() : writes.front();
    const int device = first.device().index();
    Clock done;
    {
      Lock lock(state().mutex);
      const StreamKey here = current(device), there = async ? StreamKey{device, stream} : here;
      sim::merge(state().clocks[there], state().clocks[here]);
      std::vector<Access> accesses;
      for (const auto& tensor : reads) {
        accesses.push_back({block_of(tensor), false});
      }
      for (const auto& tensor : writes) {
        accesses.push_back({block_of(tensor), true});
      }
      launch(there, accesses, c10d::opTypeToString(type));
      done = state().clocks[there];
    }
    auto work = c10::make_intrusive<Work>(getRank(), type, start(), reads, writes, std::move(done));
    if (!async) {
      work->wait(kNoTimeout);
    }
    return work;
  }

  Started broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    auto same = on_cpu(tensors);
    const bool root = options.rootRank == getRank();
    return enqueued(c10d::OpType::BROADCAST, root ? tensors : Tensors(), root ? Tensors() : tensors, options.asyncOp,
                    [&] { return gloo->broadcast(same, options); });
  }
  Started allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    auto same = on_cpu(tensors);
    return enqueued(c10d::OpType::ALLREDUCE, {}, tensors, options.asyncOp,
                    [&] { return gloo->allreduce(same, options); });
  }
  Started allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    auto into = on_cpu(outputs);
    auto from = on_cpu(inputs);
    return enqueued(c10d::OpType::ALLGATHER, inputs, flat(outputs), options.asyncOp,
                    [&] { return gloo->allgather(into, from, options); });
  }
  Started gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override {
    auto into = on_cpu(outputs);
    auto from = on_cpu(inputs);
    return enqueued(c10d::OpType::GATHER, inputs, flat(outputs), options.asyncOp,
                    [&] { return gloo->gather(into, from, options); });
  }
  Started scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override {
    auto into = on_cpu(outputs);
    auto from = on_cpu(inputs);
    return enqueued(c10d::OpType::SCATTER, flat(inputs), outputs, options.asyncOp,
                    [&] { return gloo->scatter(into, from, options); });
  }
  Started _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override {
    auto into = on_cpu(output), from = on_cpu(input);
    return enqueued(c10d::OpType::_ALLGATHER_BASE, {input}, {output}, options.asyncOp,
                    [&] { return gloo->_allgather_base(into, from, options); });
  }
  Started allgather_into_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    auto into = on_cpu(outputs), from = on_cpu(inputs);
    return enqueued(c10d::OpType::COALESCED, inputs, outputs, options.asyncOp,
                    [&] { return gloo->allgather_into_tensor_coalesced(into, from, options); });
  }
  Started _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override {
    auto into = on_cpu(output), from = on_cpu(input);
    return enqueued(c10d::OpType::_REDUCE_SCATTER_BASE, {input}, {output}, options.asyncOp,
                    [&] { return gloo->_reduce_scatter_base(into, from, options); });
  }
  Started reduce_scatter_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) override {
    auto into = on_cpu(outputs), from = on_cpu(inputs);
    return enqueued(c10d::OpType::COALESCED, inputs, outputs, options.asyncOp,
                    [&] { return gloo->reduce_scatter_tensor_coalesced(into, from, options); });
  }
  Started alltoall_base(
      at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes, std::vector<int64_t>& input_sizes,
      const c10d::AllToAllOptions& options) override {
    auto into = on_cpu(output), from = on_cpu(input);
    return enqueued(c10d::OpType::ALLTOALL_BASE, {input}, {output}, options.asyncOp,
                    [&] { return gloo->alltoall_base(into, from, output_sizes, input_sizes, options); });
  }
  Started send(Tensors& tensors, int to, int tag) override {
    auto same = on_cpu(tensors);
    return enqueued(c10d::OpType::SEND, tensors, {}, true, [&] { return gloo->send(same, to, tag); });
  }
  Started recv(Tensors& tensors, int from, int tag) override {
    auto same = on_cpu(tensors);
    return enqueued(c10d::OpType::RECV, {}, tensors, true, [&] { return gloo->recv(same, from, tag); });
  }
  Started barrier(const c10d::BarrierOptions& options) override {
    return gloo->barrier(options);
  }

  c10::intrusive_ptr<c10d::Backend> gloo;
  int64_t stream;
};

}  // namespace sim
