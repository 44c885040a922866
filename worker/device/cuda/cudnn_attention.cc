#include "worker/device/cuda/cudnn_attention.h"

#include <cuda_runtime_api.h>
#include <cudnn_frontend.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/mutex.h"
#include "offload/cuda/current_device.h"

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // where cudnn-frontend finds cuDNN's functions
}

namespace causeway::worker {
namespace {

namespace fe = cudnn_frontend;

using Pointers = std::unordered_map<int64_t, void*>;

constexpr size_t kOldestVersion = 91100;

enum Tensor : int64_t { kQ = 1, kK, kV, kOut, kStatistics, kDOut, kDQ, kDK, kDV };

absl::StatusOr<void*> Open(const std::string& directory, const std::string& file) {
  void* const library =
      dlopen(directory.empty() ? file.c_str() : absl::StrCat(directory, "/", file).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) return library;
  const char* const reason = dlerror();
  return absl::NotFoundError(
      absl::StrCat("expected ", file, " (or --cuda_libs=DIR): ", reason == nullptr ? "no reason" : reason));
}

absl::Status Load(const std::string& directory) {
  static core::Mutex mutex;
  core::MutexLock lock(mutex);
  if (fe::cudnn_dlhandle != nullptr) return absl::OkStatus();
  // cudnn-frontend opens it by its name alone, which finds what is loaded already.
  RETURN_IF_ERROR(Open(directory, absl::StrCat("libcudart.so.", CUDART_VERSION / 1000)).status());
  ASSIGN_OR_RETURN(void* const library, Open(directory, absl::StrCat("libcudnn.so.", CUDNN_MAJOR)));
  const auto version = reinterpret_cast<size_t (*)()>(dlsym(library, "cudnnGetVersion"));
  if (const size_t got = version == nullptr ? 0 : version(); got < kOldestVersion) {
    dlclose(library);
    return absl::NotFoundError(absl::StrCat("expected cuDNN ", kOldestVersion, " or newer, got ", got));
  }
  fe::cudnn_dlhandle = library;
  return absl::OkStatus();
}

// The answer of cudnn-frontend, which throws where a function is missing, as a status with cuDNN's words.
template <typename Calls>
absl::Status Done(absl::StatusCode code, absl::string_view what, Calls&& calls) {
  std::string words;
  try {
    fe::error_t error = calls();
    if (error.is_good()) return absl::OkStatus();
    words = error.get_message();
  } catch (const std::exception& exception) {
    words = exception.what();
  }
  return absl::Status(code, absl::StrCat("cuDNN: ", what, ": ", words));
}

// A tensor [batch, heads, sequence, size] whose rows of all heads lie `stride` values apart.
fe::graph::Tensor_attributes Rows(const AttentionShape& shape, Tensor id, int64_t heads, int64_t stride) {
  return fe::graph::Tensor_attributes()
      .set_uid(id)
      .set_dim({shape.batch, heads, shape.sequence, shape.head_size})
      .set_stride({shape.sequence * stride, shape.head_size, stride, 1});
}

fe::graph::Tensor_attributes Statistics(const AttentionShape& shape) {
  return fe::graph::Tensor_attributes()
      .set_uid(kStatistics)
      .set_dim({shape.batch, shape.heads, shape.sequence, 1})
      .set_stride({shape.heads * shape.sequence, shape.sequence, 1, 1})
      .set_data_type(fe::DataType_t::FLOAT);
}

// Both directions, described for devices of a compute capability (90: 9.0); each has a plan once it is built.
struct Graphs {
  Graphs(const AttentionShape& given, int capability);

  std::array<fe::graph::Graph*, 2> all() { return {&forward, &backward}; }

  const AttentionShape shape;
  const int64_t width, packed;  // values from a row to the next, of an output and of q, k, v
  fe::graph::Graph forward, backward;

 private:
  using Operand = std::shared_ptr<fe::graph::Tensor_attributes>;
  struct Inputs {
    Operand q, k, v;
  };
  Inputs Begin(fe::graph::Graph& graph) const;
  template <typename Attributes>
  void SetCausal(Attributes& attributes) const {
    attributes.set_attn_scale(1 / std::sqrt(static_cast<float>(shape.head_size)))
        .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
        .set_diagonal_band_right_bound(0);
  }
  static void SetOutput(const Operand& made, const fe::graph::Tensor_attributes& layout) {
    made->set_output(true).set_uid(layout.get_uid()).set_dim(layout.get_dim()).set_stride(layout.get_stride());
  }
  void DescribeForward();
  void DescribeBackward();
};

Graphs::Graphs(const AttentionShape& given, int capability)
    : shape(given), width(shape.heads * shape.head_size), packed((shape.heads + 2 * shape.kv_heads) * shape.head_size) {
  for (fe::graph::Graph* const graph : all()) graph->set_sm_version(capability);
  DescribeForward();
  DescribeBackward();
}

Graphs::Inputs Graphs::Begin(fe::graph::Graph& graph) const {
  graph.set_io_data_type(fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  return {graph.tensor(Rows(shape, kQ, shape.heads, packed)), graph.tensor(Rows(shape, kK, shape.kv_heads, packed)),
          graph.tensor(Rows(shape, kV, shape.kv_heads, packed))};
}

void Graphs::DescribeForward() {
  const Inputs in = Begin(forward);
  auto attributes = fe::graph::SDPA_attributes().set_name("attention").set_generate_stats(true);
  SetCausal(attributes);
  const auto [out, statistics] = forward.sdpa(in.q, in.k, in.v, attributes);
  SetOutput(out, Rows(shape, kOut, shape.heads, width));
  SetOutput(statistics, Statistics(shape));
  statistics->set_data_type(fe::DataType_t::FLOAT);
}

void Graphs::DescribeBackward() {
  const Inputs in = Begin(backward);
  const Operand out = backward.tensor(Rows(shape, kOut, shape.heads, width));
  const Operand dout = backward.tensor(Rows(shape, kDOut, shape.heads, width));
  const Operand statistics = backward.tensor(Statistics(shape));
  auto attributes =
      fe::graph::SDPA_backward_attributes().set_name("attention backward").set_deterministic_algorithm(true);
  SetCausal(attributes);
  const auto [dq, dk, dv] = backward.sdpa_backward(in.q, in.k, in.v, out, dout, statistics, attributes);
  SetOutput(dq, Rows(shape, kDQ, shape.heads, packed));
  SetOutput(dk, Rows(shape, kDK, shape.kv_heads, packed));
  SetOutput(dv, Rows(shape, kDV, shape.kv_heads, packed));
}

std::string Named(const AttentionShape& shape) {
  return absl::StrCat("attention of ", shape.heads, " heads, ", shape.kv_heads, " of keys, of size ", shape.head_size,
                      ", over ", shape.batch, " rows of ", shape.sequence);
}

class CudnnAttention final : public DeviceAttention {
 public:
  CudnnAttention(const AttentionShape& shape, int capability, offload::CudaDevice* device)
      : graphs_(shape, capability), device_(device) {}
  ~CudnnAttention() override {
    if (handle_ != nullptr) fe::detail::destroy_handle(handle_);
  }

  absl::Status Open();

  AttentionKind kind() const override { return AttentionKind::kCudnn; }
  int64_t statistics() const override { return graphs_.shape.batch * graphs_.shape.heads * graphs_.shape.sequence; }
  int64_t buffer_bytes() const override { return buffer_bytes_; }
  void SetBuffer(void* memory) override { buffer_ = memory; }
  void Forward(const void* qkv, void* out, float* statistics) override;
  void Backward(const void* qkv, const void* out, const float* statistics, const void* dout, void* dqkv) override;

 private:
  // Adds where q, k and v of packed rows begin.
  void Add(const void* packed, Tensor q, Pointers& pointers) const;
  void Execute(const fe::graph::Graph& graph, Pointers& pointers);

  Graphs graphs_;
  offload::CudaDevice* const device_;
  cudnnHandle_t handle_ = nullptr;
  void* buffer_ = nullptr;
  int64_t buffer_bytes_ = 0;
};

absl::Status CudnnAttention::Open() {
  const auto opened = [](cudnnStatus_t result) {
    return result == CUDNN_STATUS_SUCCESS
               ? fe::error_t{}
               : fe::error_t{fe::error_code_t::HANDLE_ERROR, fe::detail::get_error_string(result)};
  };
  RETURN_IF_ERROR(
      Done(absl::StatusCode::kUnavailable, "opening it", [&] { return opened(fe::detail::create_handle(&handle_)); }));
  const auto stream = static_cast<cudaStream_t>(device_->StreamOf(offload::Queue::kCompute));
  RETURN_IF_ERROR(Done(absl::StatusCode::kUnavailable, "setting its stream",
                       [&] { return opened(fe::detail::set_stream(handle_, stream)); }));
  for (fe::graph::Graph* const graph : graphs_.all()) {
    const auto done = [&](auto&& call) { return Done(absl::StatusCode::kInvalidArgument, Named(graphs_.shape), call); };
    int64_t bytes = 0;
    RETURN_IF_ERROR(done([&] { return graph->build(handle_, {fe::HeurMode_t::A}); }));
    RETURN_IF_ERROR(done([&] { return graph->get_workspace_size(bytes); }));
    buffer_bytes_ = std::max(buffer_bytes_, bytes);
  }
  return absl::OkStatus();
}

void CudnnAttention::Add(const void* packed, Tensor q, Pointers& pointers) const {
  const AttentionShape& shape = graphs_.shape;
  char* const begin = static_cast<char*>(const_cast<void*>(packed));
  constexpr int64_t kValueBytes = 2;
  pointers[q] = begin;
  pointers[q + 1] = begin + shape.heads * shape.head_size * kValueBytes;
  pointers[q + 2] = begin + (shape.heads + shape.kv_heads) * shape.head_size * kValueBytes;
}

void CudnnAttention::Execute(const fe::graph::Graph& graph, Pointers& pointers) {
  if (!device_->status().ok()) return;
  const offload::CurrentDevice here(device_->index());
  const absl::Status done = Done(absl::StatusCode::kInternal, Named(graphs_.shape),
                                 [&] { return graph.execute(handle_, pointers, buffer_); });
  if (!done.ok()) device_->Fail(done);
}

void CudnnAttention::Forward(const void* qkv, void* out, float* statistics) {
  Pointers pointers = {{kOut, out}, {kStatistics, statistics}};
  Add(qkv, kQ, pointers);
  Execute(graphs_.forward, pointers);
}

void CudnnAttention::Backward(const void* qkv, const void* out, const float* statistics, const void* dout, void* dqkv) {
  Pointers pointers = {
      {kOut, const_cast<void*>(out)}, {kStatistics, const_cast<float*>(statistics)}, {kDOut, const_cast<void*>(dout)}};
  Add(qkv, kQ, pointers);
  Add(dqkv, kDQ, pointers);
  Execute(graphs_.backward, pointers);
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceAttention>> MakeCudnnAttention(const AttentionShape& shape,
                                                                    const std::string& library_directory,
                                                                    offload::CudaDevice* device) {
  RETURN_IF_ERROR(Load(library_directory));
  const offload::CurrentDevice here(device->index());
  int major = 0, minor = 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device->index()) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device->index()) != cudaSuccess) {
    return absl::UnavailableError("CUDA does not tell the device's compute capability");
  }
  auto attention = std::make_unique<CudnnAttention>(shape, 10 * major + minor, device);
  RETURN_IF_ERROR(attention->Open());
  return attention;
}

absl::Status CheckCudnnAttention(const AttentionShape& shape, const std::string& library_directory,
                                 const std::string& device_properties) {
  RETURN_IF_ERROR(Load(library_directory));
  const auto properties = std::make_shared<fe::DeviceProperties>();
  RETURN_IF_ERROR(Done(absl::StatusCode::kInvalidArgument, "reading a device's description", [&] {
    return properties->deserialize({device_properties.begin(), device_properties.end()});
  }));
  const auto json = nlohmann::json::parse(device_properties, nullptr, /*allow_exceptions=*/false);
  Graphs graphs(shape, json.value("deviceVer", 0) / 10);
  for (fe::graph::Graph* const graph : graphs.all()) {
    const auto done = [&](auto&& call) { return Done(absl::StatusCode::kInvalidArgument, Named(shape), call); };
    graph->set_device_properties(properties);
    RETURN_IF_ERROR(done([&] { return graph->validate(); }));
    RETURN_IF_ERROR(done([&] { return graph->build_operation_graph(); }));
    RETURN_IF_ERROR(done([&] { return graph->create_execution_plans({fe::HeurMode_t::A}); }));
    RETURN_IF_ERROR(done([&] { return graph->check_support(); }));
  }
  return absl::OkStatus();
}

}  // namespace causeway::worker
