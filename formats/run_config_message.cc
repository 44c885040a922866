// core::RunConfig to the message that run.yaml is read into: every key of such a run, also those at their
// defaults.
#include "formats/config_names.h"
#include "formats/run_config_check.h"

namespace causeway::formats {
namespace {

v1::Model LlamaToMessage(const core::LlamaConfig& llama) {
  v1::Model model;
  model.set_hidden_size(llama.hidden_size);
  model.set_intermediate_size(llama.intermediate_size);
  model.set_num_hidden_layers(llama.num_hidden_layers);
  model.set_num_attention_heads(llama.num_attention_heads);
  model.set_num_key_value_heads(llama.num_key_value_heads);
  model.set_vocab_size(llama.vocab_size);
  model.set_max_position_embeddings(llama.max_position_embeddings);
  model.set_rms_norm_eps(llama.rms_norm_eps);
  model.set_rope_theta(llama.rope_theta);
  if (llama.rope_scaling) {
    v1::RopeScaling& scaling = *model.mutable_rope_scaling();
    scaling.set_rope_type(kLlama3);
    scaling.set_factor(llama.rope_scaling->factor);
    scaling.set_low_freq_factor(llama.rope_scaling->low_freq_factor);
    scaling.set_high_freq_factor(llama.rope_scaling->high_freq_factor);
    scaling.set_original_max_position_embeddings(llama.rope_scaling->original_max_position_embeddings);
  }
  model.set_tie_word_embeddings(llama.tie_word_embeddings);
  model.set_init_from(llama.init_from);
  return model;
}

v1::Model SyntheticToMessage(const core::SyntheticConfig& synthetic) {
  v1::Model model;
  model.set_step_ms(synthetic.step_ms);
  if (synthetic.seeded_init) model.set_init("seeded");
  for (const core::SyntheticTensor& tensor : synthetic.tensors) {
    v1::Tensor& added = *model.add_tensors();
    added.set_name(tensor.name);
    added.mutable_shape()->Add(tensor.shape.begin(), tensor.shape.end());
    added.set_init(tensor.init);
  }
  v1::Gradient& gradient = *model.mutable_gradient();
  gradient.set_kind(NameOf(synthetic.gradient, kGradients));
  gradient.set_apply(NameOf(synthetic.apply, kApplies));
  for (const auto& [site, value] : synthetic.gradient_by_site) (*gradient.mutable_by_site())[site] = value;
  return model;
}

v1::Inner InnerToMessage(const core::InnerConfig& inner) {
  v1::Inner message;
  message.set_optimizer(NameOf(inner.optimizer, kInnerOptimizers));
  message.set_lr(inner.lr);
  message.set_warmup_steps(inner.warmup_steps);
  message.set_schedule(NameOf(inner.schedule, kInnerSchedules));
  message.set_beta1(inner.beta1);
  message.set_beta2(inner.beta2);
  message.set_weight_decay(inner.weight_decay);
  message.set_clip(inner.clip);
  message.set_batch_size(inner.batch_size);
  message.set_sequence_length(inner.sequence_length);
  for (const auto& [site, rows] : inner.batch_by_site) (*message.mutable_batch_by_site())[site] = rows;
  message.set_batch_per_rank(inner.batch_per_rank);
  message.set_freeze_at(inner.freeze_at);
  message.set_micro_batches(inner.micro_batches);
  if (inner.partition) {
    message.mutable_partition()->set_weights(inner.partition->weights);
    message.mutable_partition()->set_gradients(inner.partition->gradients);
    message.mutable_partition()->set_optimizer(inner.partition->optimizer);
  }
  return message;
}

v1::Model ModelToMessage(const core::RunConfig& config) {
  v1::Model model;
  if (config.model_kind == core::ModelKind::kLlama) model = LlamaToMessage(config.llama);
  if (config.model_kind == core::ModelKind::kSynthetic) model = SyntheticToMessage(config.synthetic);
  model.set_kind(NameOf(config.model_kind, kModelKinds));
  return model;
}

v1::Sync SyncToMessage(const core::SyncConfig& sync) {
  v1::Sync message;
  message.set_mode(NameOf(sync.mode, kSyncModes));
  message.set_sync_every(sync.sync_every);
  message.set_num_fragments(sync.num_fragments);
  message.set_parts(sync.parts);
  if (sync.fragments.empty()) message.set_fragment_assignment(NameOf(sync.fragment_assignment, kAssignments));
  message.set_fragment_sync_delay(sync.fragment_sync_delay);
  message.set_fragment_update_alpha(sync.fragment_update_alpha);
  message.mutable_fragment_offsets()->Add(sync.fragment_offsets.begin(), sync.fragment_offsets.end());
  message.set_first_send(NameOf(sync.first_send, kFirstSends));
  message.set_device_memory(NameOf(sync.device_memory, kSyncMemories));
  for (const std::vector<std::string>& prefixes : sync.fragments) {
    message.add_fragments()->mutable_prefixes()->Add(prefixes.begin(), prefixes.end());
  }
  return message;
}

v1::Codec CodecToMessage(const core::CodecConfig& codec) {
  v1::Codec message;
  message.set_up(codec.allow_up.empty() ? core::CodecName(codec.up) : kAuto);
  message.set_down(codec.allow_down.empty() ? core::CodecName(codec.down) : kAuto);
  for (core::CodecId allowed : codec.allow_up) message.add_allow_up(core::CodecName(allowed));
  for (core::CodecId allowed : codec.allow_down) message.add_allow_down(core::CodecName(allowed));
  message.set_feedback_up(codec.feedback_up);
  message.set_feedback_down(codec.feedback_down);
  for (core::TensorKind kind : codec.exempt) message.add_exempt(core::TensorKindName(kind));
  message.set_zstd(codec.zstd);
  return message;
}

v1::Membership MembershipToMessage(const core::MembershipConfig& membership) {
  v1::Membership message;
  message.set_min_sites(membership.min_sites);
  message.set_min_quorum(membership.min_quorum);
  message.set_grace_ms(membership.grace_ms);
  message.set_lease_ms(membership.lease_ms);
  message.set_max_staleness(membership.max_staleness);
  message.set_weights(NameOf(membership.weights, kWeightRules));
  message.set_merge(NameOf(membership.merge, kMergeRules));
  message.set_max_tokens_per_step(membership.max_tokens_per_step);
  return message;
}

}  // namespace

v1::RunConfig RunConfigToMessage(const core::RunConfig& config) {
  v1::RunConfig message;
  message.set_run_id(config.run_id);
  message.set_seed(config.seed);
  message.mutable_run()->set_steps(config.steps);
  *message.mutable_model() = ModelToMessage(config);
  if (config.model_kind != core::ModelKind::kExternal) *message.mutable_inner() = InnerToMessage(config.inner);
  message.mutable_data()->set_mode(NameOf(config.data.mode, kDataModes));
  message.mutable_data()->set_token_bytes(config.data.token_bytes);
  message.mutable_data()->set_allow_equal(config.data.allow_equal);
  *message.mutable_sync() = SyncToMessage(config.sync);
  message.mutable_outer()->set_optimizer(config.outer.momentum == 0 ? kSgd : kNesterov);
  message.mutable_outer()->set_lr(config.outer.lr);
  message.mutable_outer()->set_momentum(config.outer.momentum);
  *message.mutable_codec() = CodecToMessage(config.codec);
  *message.mutable_membership() = MembershipToMessage(config.membership);
  message.mutable_values()->set_gate(config.values.gate);
  message.mutable_values()->set_clip(config.values.clip);
  message.mutable_values()->set_weight_cap(config.values.weight_cap);
  message.mutable_eval()->set_every_rounds(config.eval.every_rounds);
  message.mutable_eval()->set_held_out(config.eval.held_out);
  message.mutable_eval()->set_batches(config.eval.batches);
  message.mutable_checkpoint()->set_every_rounds(config.checkpoint.every_rounds);
  message.mutable_checkpoint()->set_keep(config.checkpoint.keep);
  message.mutable_checkpoint()->set_max_update_log_bytes(config.checkpoint.max_update_log_bytes);
  message.mutable_checkpoint()->set_min_free_bytes(config.checkpoint.min_free_bytes);
  message.mutable_offload()->set_k(core::InterleaveName(config.offload.k));
  message.mutable_offload()->set_subgroup(config.offload.subgroup);
  message.mutable_offload()->set_resident_share(core::ShareName(config.offload.resident_share));
  message.mutable_durability()->set_journal(NameOf(config.durability.journal, kJournalModes));
  message.set_placement(NameOf(config.placement, kPlacements));
  return message;
}

}  // namespace causeway::formats
