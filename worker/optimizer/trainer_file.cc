#include "worker/optimizer/trainer_file.h"

#include "core/check.h"

namespace causeway::worker {

absl::StatusOr<formats::FileDigest> SaveTrainer(const std::string& path, const core::Manifest& manifest,
                                                const TensorValues& parameters, OptimizerState* optimizer) {
  std::vector<formats::TensorData> tensors;
  std::map<std::string, std::string> metadata;
  for (size_t i = 0; i < manifest.size(); ++i) {
    tensors.push_back({manifest[i].name, manifest[i].shape, parameters[static_cast<int>(i)]});
  }
  if (optimizer != nullptr) RETURN_IF_ERROR(optimizer->AppendState(tensors, metadata));
  absl::StatusOr<formats::FileDigest> written = formats::WriteSafetensors(path, tensors, metadata);
  if (optimizer != nullptr) optimizer->Saved();
  return written;
}

absl::StatusOr<formats::FileDigest> SaveGathered(const std::string& path, const std::vector<GatheredTensor>& gathered,
                                                 OptimizerState& optimizer) {
  std::vector<formats::TensorData> parts, tensors;
  std::map<std::string, std::string> metadata;
  RETURN_IF_ERROR(optimizer.AppendState(parts, metadata));
  for (const GatheredTensor& one : gathered) tensors.push_back({one.name, one.shape, one.values});
  absl::StatusOr<formats::FileDigest> written = formats::WriteSafetensors(path, tensors, metadata);
  optimizer.Saved();
  return written;
}

absl::Status LoadTrainer(const std::string& path, const core::Manifest& manifest, TensorValues& parameters,
                         OptimizerState* optimizer) {
  ASSIGN_OR_RETURN(const formats::SafetensorsFile file, formats::SafetensorsFile::Open(path));
  for (size_t i = 0; i < manifest.size(); ++i) {
    RETURN_IF_ERROR(file.Read(manifest[i].name, parameters[static_cast<int>(i)]));
  }
  return optimizer == nullptr ? absl::OkStatus() : optimizer->LoadState(file);
}

}  // namespace causeway::worker
